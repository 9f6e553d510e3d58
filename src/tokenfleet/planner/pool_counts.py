"""The cheapest counts of several pools that feed forward.

Each pool has a least count of its own: the fewest replicas that are enough while the others have plenty. No fewer can
do, so the answer is sought from there on, in order of price. It is the cheapest as far as more replicas do no harm.
"""

import heapq
from collections.abc import Callable, Iterator
from typing import Final

from tokenfleet.planner.counting import smallest_enough

Counts = tuple[int, ...]
Enough = Callable[[Counts], bool]
_MOST_STEPS: Final = 60
"""Counts tried from the least ones on."""


def cheapest_counts(
    enough: Enough, start: Counts, usd: tuple[float, ...], *, cap_factor: int, floor: Counts | None = None
) -> Counts | None:
    """The cheapest counts that are enough.

    Args:
        enough: The question, asked once for each counts at most by whoever remembers.
        start: Where to begin, at least 1 each.
        usd: Price of one replica of each pool.
        cap_factor: Pools are given up to so many times ``start``.
        floor: Fewer replicas are not asked for; ``None``: at least 1 each.

    Returns:
        The counts, or ``None`` when even the most are not enough, or none of those tried beyond the least ones.
    """
    plenty = plenty_of(enough, start, cap_factor)
    if plenty is None:
        return None
    least = tuple(map(max, least_counts(enough, plenty, start), floor or (1,) * len(start)))
    return next((counts for counts in in_order_of_price(least, usd) if enough(counts)), None)


def plenty_of(enough: Enough, start: Counts, cap_factor: int) -> Counts | None:
    """Counts with room for everybody: twice the start, doubled until they are enough; ``None`` at the cap."""
    factor = 2
    while factor <= cap_factor:
        plenty = tuple(count * factor for count in start)
        if enough(plenty):
            return plenty
        factor *= 2
    return None


def least_counts(enough: Enough, plenty: Counts, start: Counts) -> Counts:
    """The fewest replicas of each pool that are enough while the others have plenty, which is enough."""
    return tuple(least_count(enough, plenty, start, index) for index in range(len(plenty)))


def least_count(enough: Enough, plenty: Counts, start: Counts, index: int) -> int:
    """The fewest replicas of one pool that are enough while the others have plenty."""

    def with_count(count: int) -> bool:
        return enough((*plenty[:index], count, *plenty[index + 1 :]))

    return smallest_enough(with_count, start[index], plenty[index]) or plenty[index]


def in_order_of_price(least: Counts, usd: tuple[float, ...]) -> Iterator[Counts]:
    """Counts from the least ones on, cheaper ones first."""

    def entry(counts: Counts) -> tuple[float, Counts]:
        return sum(count * each for count, each in zip(counts, usd, strict=True)), counts

    waiting, known = [entry(least)], {least}
    for _ in range(_MOST_STEPS):
        _, counts = heapq.heappop(waiting)
        yield counts
        for index in range(len(counts)):
            further = (*counts[:index], counts[index] + 1, *counts[index + 1 :])
            if further not in known:
                known.add(further)
                heapq.heappush(waiting, entry(further))
