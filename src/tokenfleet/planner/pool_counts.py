"""The cheapest counts of several pools that feed forward.

Each pool has a least count of its own: the fewest replicas that are enough while the others have plenty. No fewer can
do, so the answer is sought from there on, in order of price. It is the cheapest as far as more replicas do no harm.
Where that takes too long, all are grown alike until they are enough, or have plenty, and what is not needed is taken
away as far as it goes, from the dearest pool on or from another one: then no pool can do with fewer, though others may
be cheaper.
"""

import heapq
from collections.abc import Callable, Iterator
from itertools import islice
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
        The counts, or ``None`` when even the most are not enough.
    """
    plenty = plenty_of(enough, start, cap_factor)
    if plenty is None:
        return None
    least = tuple(map(max, least_counts(enough, plenty, start), floor or (1,) * len(start)))
    return cheapest_between(enough, least, tuple(map(max, least, plenty)), usd)


def cheapest_between(enough: Enough, least: Counts, plenty: Counts, usd: tuple[float, ...]) -> Counts:
    """The cheapest counts from the least ones on, where plenty are enough."""
    found = next((counts for counts in in_order_of_price(least, usd) if enough(counts)), None)
    if found is not None:
        return found
    dearest_first = sorted(range(len(usd)), key=lambda index: (-usd[index], index))
    # What the others give away one pool may have to make up for alone.
    most = tuple(len(usd) * count for count in plenty)
    turns = [(*dearest_first[turn:], *dearest_first[:turn]) for turn in range(len(usd))]
    alike = _alike(enough, least, plenty)
    tried = [_lessened(enough, least, from_, turn) for from_ in (alike, most) for turn in turns]
    return min(tried, key=lambda counts: _entry(counts, usd))


def _alike(enough: Enough, least: Counts, plenty: Counts) -> Counts:
    """The first counts that are enough on the way from the least ones to plenty, where all pools grow alike."""
    steps = max(much - few for few, much in zip(least, plenty, strict=True))

    def at(step: int) -> Counts:
        return tuple(few + -(-(much - few) * step // steps) for few, much in zip(least, plenty, strict=True))

    first = smallest_enough(lambda step: enough(at(step)), 1, steps) if steps else None
    return plenty if first is None else at(first)


def _lessened(enough: Enough, least: Counts, most: Counts, turn: Counts) -> Counts:
    """What is left of the most once each pool in turn has given away what is not needed."""
    counts = most
    for index in turn:

        def with_count(count: int, index: int = index, others: Counts = counts) -> bool:
            return enough((*others[:index], count, *others[index + 1 :]))

        fewest = smallest_enough(with_count, least[index], counts[index]) or counts[index]
        counts = (*counts[:index], fewest, *counts[index + 1 :])
    return counts


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
    """The fewest replicas of each pool that are enough while the others have plenty, which is enough.

    What plenty barely keeps, as waits of several stages add up, one pool may have to make up for alone: it may.
    """
    most = tuple(len(plenty) * count for count in plenty)
    return tuple(least_count(enough, most, start, index) for index in range(len(plenty)))


def least_count(enough: Enough, plenty: Counts, start: Counts, index: int) -> int:
    """The fewest replicas of one pool that are enough while the others have plenty."""

    def with_count(count: int) -> bool:
        return enough((*plenty[:index], count, *plenty[index + 1 :]))

    return smallest_enough(with_count, start[index], plenty[index]) or plenty[index]


def even_fewer(enough: Enough, counts: Counts) -> Counts:
    """Counts of which no pool can do with one fewer, from those that are enough on; others are left as they are.

    Plenty of one pool may ask more of the next than the least of it does, as where a full link holds back what comes.
    """
    if not enough(counts):
        return counts
    for index in reversed(range(len(counts))):
        while counts[index] > 1 and enough(fewer := (*counts[:index], counts[index] - 1, *counts[index + 1 :])):
            counts = fewer
    return counts


def in_order_of_price(least: Counts, usd: tuple[float, ...]) -> Iterator[Counts]:
    """Counts from the least ones on, cheaper ones first; as many as are worth a replay each."""
    return islice(by_price(least, usd, lambda _: True), _MOST_STEPS)


def by_price(least: Counts, usd: tuple[float, ...], may_be: Callable[[Counts], bool]) -> Iterator[Counts]:
    """Counts from the least ones on, cheaper ones first, without any beyond those that may not be."""
    waiting, known = [_entry(least, usd)] if may_be(least) else [], {least}
    while waiting:
        _, counts = heapq.heappop(waiting)
        yield counts
        for index in range(len(counts)):
            further = (*counts[:index], counts[index] + 1, *counts[index + 1 :])
            if further not in known and may_be(further):
                known.add(further)
                heapq.heappush(waiting, _entry(further, usd))


def _entry(counts: Counts, usd: tuple[float, ...]) -> tuple[float, Counts]:
    return sum(count * each for count, each in zip(counts, usd, strict=True)), counts
