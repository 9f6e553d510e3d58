"""GPUs of several zones dealt out to several lots of equal replicas: an exact search, in integers only.

Lots are dealt one after the other, the largest replicas first, and each zone by zone, as evenly as what is left allows.
After every step it is asked of all zones together whether they can still hold what is left; where all replicas are of
one size that is the whole answer, so that the first way taken is an answer, or there is none.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from tokenfleet.domain.records import dataclass

Counts = tuple[int, ...]
_MOST_STEPS = 20_000


@dataclass(slots=True)
class Patience:
    """Steps that a search may still take; where it takes more it is stopped, without an answer."""

    step_count: int = _MOST_STEPS
    is_lost: bool = False
    """Whether the search was stopped."""


@dataclass(frozen=True, slots=True)
class Lot:
    """Equal replicas."""

    gpu_count: int
    """GPUs of each."""
    count: int
    loss_count: int
    """At most so many may be lost with the fullest zones."""
    stands: Callable[[Counts], bool]
    """Whether so many in each zone do for all else."""


def dealt(
    lots: Sequence[Lot],
    rooms: Sequence[int | None],
    lost_zone_count: int,
    patience: Patience,
    *,
    beyond_gpu_count: int = 0,
) -> tuple[Counts, ...] | None:
    """So many replicas of each lot in each zone, that all lots have room at once.

    Args:
        lots: What is dealt.
        rooms: GPUs of each zone; ``None``: as many as are wanted.
        lost_zone_count: Zones that may be lost together; 0: none is.
        patience: How long to try.
        beyond_gpu_count: GPUs that zones may have to have beyond their own, all of them together.

    Returns:
        For each lot; ``None`` where there is no way.
    """
    order = sorted(range(len(lots)), key=lambda at: (-lots[at].gpu_count, at))
    deal = _Deal([lots[at] for at in order], lost_zone_count, patience)
    found = deal.all_lots(_bounded(rooms, lots), beyond_gpu_count)
    return None if found is None else tuple(counts for _, counts in sorted(zip(order, found, strict=True)))


def may_be_dealt(
    lots: Sequence[Lot], rooms: Sequence[int | None], lost_zone_count: int, *, beyond_gpu_count: int = 0
) -> bool:
    """Whether nothing that is known without a search speaks against it; as for :func:`dealt`."""
    return _Deal(lots, lost_zone_count, Patience()).is_possible(_bounded(rooms, lots), beyond_gpu_count)


def _bounded(rooms: Sequence[int | None], lots: Sequence[Lot]) -> Counts:
    """As many GPUs as all lots take, where a zone has as many as are wanted."""
    most = sum(lot.gpu_count * lot.count for lot in lots)
    return tuple(most if room is None else room for room in rooms)


class _Deal:
    def __init__(self, lots: Sequence[Lot], lost_zone_count: int, patience: Patience) -> None:
        self._lots, self._lost, self._patience = lots, lost_zone_count, patience
        self._hopeless: set[tuple[int, Counts, int]] = set()

    def is_possible(self, rooms: Counts, beyond: int) -> bool:
        """Whether the zones may hold every lot."""
        return not self._lots or self._possible(0, self._lots[0].count, 0, rooms, beyond)

    def all_lots(self, rooms: Counts, beyond: int) -> list[Counts] | None:
        """Every lot, where it is possible."""
        return self._lots_from(0, rooms, beyond) if self.is_possible(rooms, beyond) else None

    def _lots_from(self, at: int, rooms: Counts, beyond: int) -> list[Counts] | None:
        """All lots from one on."""
        if at == len(self._lots):
            return []
        if (at, rooms, beyond) not in self._hopeless:
            for counts, left, more in self._ways(at, (), rooms, beyond):
                rest = self._lots_from(at + 1, left, more) if self._lots[at].stands(counts) else None
                if rest is not None:
                    return [counts, *rest]
            self._hopeless.add((at, rooms, beyond))
        return None

    def _ways(self, at: int, given: Counts, rooms: Counts, beyond: int) -> Iterator[tuple[Counts, Counts, int]]:
        """Ways to go on with a lot of which the first zones have been ``given`` some, the most even first."""
        lot, zone = self._lots[at], len(given)
        left, after = lot.count - sum(given), len(rooms) - zone - 1
        if after < 0:
            yield given, rooms, beyond
            return
        high = min(left, self._most_beside(lot, given), (rooms[zone] + beyond) // lot.gpu_count)
        low = max(0, left - self._most(lot, after))
        even = -(-left // (after + 1))
        for count in sorted(range(low, high + 1), key=lambda count: (abs(count - even), -count)):
            over = max(0, count * lot.gpu_count - rooms[zone])
            rest = (*rooms[:zone], max(0, rooms[zone] - count * lot.gpu_count), *rooms[zone + 1 :])
            if self._possible(at, left - count, zone + 1, rest, beyond - over):
                yield from self._ways(at, (*given, count), rest, beyond - over)

    def _most_beside(self, lot: Lot, given: Counts) -> int:
        """Replicas of a lot that one more zone may hold beside those that were given some."""
        lost_too = sorted(given, reverse=True)[: max(0, self._lost - 1)]
        return lot.loss_count - sum(lost_too) if self._lost else lot.count

    def _most(self, lot: Lot, zone_count: int) -> int:
        """Replicas of a lot that so many zones may hold."""
        if not self._lost or not zone_count:
            return lot.count if zone_count else 0
        return min(lot.count, lot.loss_count * max(zone_count, self._lost) // self._lost)

    def _possible(self, at: int, left: int, done: int, rooms: Counts, beyond: int) -> bool:
        """Whether any zones together are too small for what must stand in them; True says nothing for certain.

        Of a lot so many must stand in some zones as the others may not hold. Zones are alike to all lots but the one
        that is being dealt, of which the first ``done`` have theirs: so of each kind the smallest ones are asked after.
        """
        self._patience.step_count -= 1
        if self._patience.step_count < 0:
            self._patience.is_lost = True
            return False
        # What may be had beyond the rooms of zones may fill them up to whole replicas.
        sizes = {1} if beyond else {lot.gpu_count for lot in self._lots[at:]}
        return all(
            self._possible_in(at, left, done, [room // size * size for room in rooms], beyond, size) for size in sizes
        )

    def _possible_in(self, at: int, left: int, done: int, rooms: list[int], beyond: int, size: int) -> bool:
        """The same of lots whose replicas are multiples of a ``size``."""
        lots = [lot for lot in self._lots[at + 1 :] if not lot.gpu_count % size]
        own = 0 if self._lots[at].gpu_count % size else self._lots[at].gpu_count
        undecided = len(rooms) - done
        first, last = ([0, *accumulate(sorted(part))] for part in (rooms[:done], rooms[done:]))
        later = [
            sum(lot.gpu_count * (lot.count - self._most(lot, len(rooms) - zones)) for lot in lots)
            for zones in range(len(rooms) + 1)
        ]
        return all(
            own * max(0, left - self._most(self._lots[at], undecided - mine)) + later[others + mine]
            <= held + free + beyond
            for others, held in enumerate(first)
            for mine, free in enumerate(last)
        )
