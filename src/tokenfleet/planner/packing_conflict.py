"""Why the zones have no room for all scenarios: the fewest that do not go together, and the GPUs that would do."""

from collections.abc import Iterator, Sequence
from itertools import combinations

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
    return Conflict(places=places, short=_short([ways[at] for at in places] if alone else ways))


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


def _short(ways: Ways) -> tuple[TooFewGpus, ...]:
    """Zones that need more GPUs, for the choice of fleets that needs the fewest more; of equals, the cheapest."""
    least: dict[str, int] | None = None
    limits: dict[str, int] = {}
    known: set[tuple[Shelf, ...]] = set()
    for _, chosen in choices(ways):
        shelves = shelves_of(chosen)
        if shelves in known:
            continue
        known.add(shelves)
        more = _more(shelves)
        if least is None or sum(more.values()) < sum(least.values()):
            least = more
            pools = [option.pool for option in chosen]
            limits = {zone.name: zone.gpu_limit_count or 0 for zone in zones_of(pools)}
    if not least:
        raise ValueError("these scenarios have room")
    return tuple(
        TooFewGpus(zone=zone, gpu_limit_count=limits[zone], needed_gpu_count=limits[zone] + count)
        for zone, count in least.items()
    )


def _more(shelves: Sequence[Shelf]) -> dict[str, int]:
    """GPUs that zones would have to have beyond their limits."""
    from tokenfleet.planner.packing_program import solved

    pools = [pool for shelf in shelves for pool in shelf.pools]
    found = solved([block for _, block in blocks_of(shelves)], zones_of(pools), sparing=False, beyond=True)
    if found is None:
        raise ValueError("a pool that cannot survive what may be lost, with any number of GPUs")
    return found.more_gpu_counts
