"""Why the zones have no room for all scenarios: the fewest that do not go together, and the GPUs that would do."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import inf

from tokenfleet.domain.records import dataclass
from tokenfleet.planner.packing import Shelf, blocks_of, zones_of
from tokenfleet.planner.packing_choice import Ways, choices, pack_together, shelves_of

_SMALL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TooFewGpus:
    """What a zone has, and what it would have to have."""

    zone: str
    gpu_limit_count: int
    needed_gpu_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Scenarios that no packing holds together."""

    places: tuple[int, ...]
    """Which of them: without any one of these the others have room."""
    short: tuple[TooFewGpus, ...]
    """Limits with which all scenarios have room: as few GPUs more as will do."""
    proved: bool
    """No fewer GPUs more would do; else the time was up."""


def conflict(ways: Ways) -> Conflict:
    """The smallest reason why ``pack_together`` has no answer.

    One scenario that has no room alone is found first, then two; of more, some of which none can be left out.

    Args:
        ways: Of each scenario, the ways to serve it; together they have no room.

    Raises:
        BadInput: as for ``pack_together``.
    """
    places = next(_crowds(ways), None) or _filtered(ways)
    alone = len(places) == 1
    short, proved = _short([ways[at] for at in places] if alone else ways)
    return Conflict(places=places, short=short, proved=proved)


def _crowds(ways: Ways) -> Iterator[tuple[int, ...]]:
    for size in range(1, min(_SMALL, len(ways)) + 1):
        for places in combinations(range(len(ways)), size):
            if pack_together([ways[at] for at in places]) is None:
                yield places


def _filtered(ways: Ways) -> tuple[int, ...]:
    """Scenarios of which none can be left out: each is dropped in turn where the others still have no room."""
    left = tuple(range(len(ways)))
    for at in range(len(ways)):
        without = tuple(place for place in left if place != at)
        if pack_together([ways[place] for place in without]) is None:
            left = without
    return left


def _short(ways: Ways) -> tuple[tuple[TooFewGpus, ...], bool]:
    """Zones that need more GPUs, for the choice of fleets that needs the fewest more, and whether that is sure."""
    best: tuple[TooFewGpus, ...] = ()
    least, proved = inf, True
    # Choices that can do with few GPUs come first, and those that cannot do with fewer than were found are left out.
    wanted = sorted({shelves_of(chosen): None for _, chosen in choices(ways)}, key=_least_more)
    for shelves in wanted:
        if _least_more(shelves) >= least:
            break
        found = _more(shelves, least - 1)
        if found is not None:
            best, sure = found
            proved &= sure
            least = sum(each.needed_gpu_count - each.gpu_limit_count for each in best)
    if not best:
        raise ValueError("these scenarios have room, or some cannot survive what may be lost with any number of GPUs")
    return best, proved


def _least_more(shelves: Sequence[Shelf]) -> float:
    """No nodes of these shelves take fewer GPUs more than there are."""
    limits = [zone.gpu_limit_count for zone in zones_of([pool for shelf in shelves for pool in shelf.pools])]
    had = sum(inf if limit is None else limit for limit in limits)
    taken = sum(
        -(-sum(pool.gpu_count * pool.least_count for pool in shelf.pools) // shelf.gpus_per_node_count)
        * shelf.gpus_per_node_count
        for shelf in shelves
    )
    return max(0.0, taken - had)


def _more(shelves: Sequence[Shelf], most: float) -> tuple[tuple[TooFewGpus, ...], bool] | None:
    """Zones that would have to have more GPUs, as few as will do if sure; ``None`` where that is more than ``most``."""
    from tokenfleet.planner.packing_program import solved

    zones = zones_of([pool for shelf in shelves for pool in shelf.pools])
    found = solved([block for _, block in blocks_of(shelves)], zones, beyond=most)
    if found is None:
        return None
    limits = {zone.name: zone.gpu_limit_count or 0 for zone in zones}
    short = tuple(
        TooFewGpus(zone=zone, gpu_limit_count=limits[zone], needed_gpu_count=limits[zone] + count)
        for zone, count in found.more_gpu_counts.items()
    )
    return short, found.proved
