"""The smallest count that is enough, with few questions."""

import math
from collections.abc import Callable
from functools import cache

CLEARLY = 1.03
"""A promise is clearly broken where it is missed by more than this ratio; below, the border may be another one."""
MOST_TIMES = 4
"""More than so many times what is planned is not asked for, whatever changes: then the answer is another fleet."""
_PATIENCE = 6
_ONE_BY_ONE = 16
"""So many counts are asked in their order, before larger ones are galloped over."""


def below_near_misses(excess: Callable[[int], float], found: int) -> int:
    """Walks down from a border while what lies below misses by a hair.

    Where latency hardly falls with more replicas, a promise near that plateau is kept and broken by turns, and a
    bisection ends at any of several borders. The walk goes on across misses of at most 3 %, six in a row, and ends
    at the first clear one.

    Args:
        excess: What a count does over what is promised: at most 1 is enough.
        found: A count that is enough; one fewer is not.

    Returns:
        The lowest count found to be enough; one fewer is not.
    """
    misses = 0
    count = found - 1
    while count >= 1 and misses < _PATIENCE:
        over = excess(count)
        if over > CLEARLY:
            break
        misses += 1
        if over <= 1.0:
            found, misses = count, 0
        count -= 1
    return found


def wider_count(count: int) -> int:
    """The next of a few round counts: each up to 8, then four in every doubling."""
    step = 1 << max(0, (count - 1).bit_length() - 3)
    return -(-count // step) * step


def smallest_enough(enough: Callable[[int], bool], start: int, cap: int, *, stride: int | None = None) -> int | None:
    """Gallops from ``start`` until it has a count that is enough next to one that is not, then bisects.

    The answer was asked and is enough, and one fewer was asked and is not (or is zero). When ``enough`` is not
    monotone it is one of several such borders. Each count is asked at most once.

    Args:
        enough: The question; 0 is never asked and never enough.
        start: Where to begin, clamped to 1..``cap``.
        cap: Largest count to ask, >= 1.
        stride: The first step from ``start``, doubled from then on; an eighth of ``start`` unless given.

    Returns:
        The count, or ``None`` when no count asked up to ``cap`` (itself included) is enough.
    """
    first = max(1, min(start, cap))
    low, high = _bracket(enough, first, cap, stride or max(1, first // 8))
    if high is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def first_enough(enough: Callable[[int], bool], cap: int) -> int | None:
    """The smallest count that is enough where one more may be too few again: which replica fails hangs on chance.

    Each of the first 16 counts is asked; beyond them the border found is followed down across six that are not enough.

    Args:
        enough: The question, of 1 and more.
        cap: Largest count to ask, >= 1.

    Returns:
        ``None`` when no count asked is enough.
    """
    for count in range(1, min(cap, _ONE_BY_ONE) + 1):
        if enough(count):
            return count
    if cap <= _ONE_BY_ONE:
        return None
    known = cache(lambda more: enough(_ONE_BY_ONE + more))
    beyond = smallest_enough(known, 1, cap - _ONE_BY_ONE)
    if beyond is None:
        return None
    return _ONE_BY_ONE + below_near_misses(lambda more: 1.0 if known(more) else CLEARLY, beyond)


def _bracket(enough: Callable[[int], bool], start: int, cap: int, step: int) -> tuple[int, int | None]:
    """A count that is not enough (0 at least) and a larger one that is, or ``None``."""
    if enough(start):
        high = start
        while high > 1:
            probe = max(1, high - step)
            if not enough(probe):
                return probe, high
            high = probe
            step *= 2
        return 0, high
    low = start
    while low < cap:
        probe = min(cap, low + step)
        if enough(probe):
            return low, probe
        low = probe
        step *= 2
    return low, None


def largest_factor(keeps: Callable[[float], bool], *, most: float, precision: float) -> float:
    """The largest factor that is kept, within ``precision``, by doubling from 1 up to ``most`` and then halving.

    1 is taken to be kept.
    """
    good, bad = 1.0, 2.0
    while bad <= most and keeps(bad):
        good, bad = bad, bad * 2.0
    if good >= most:
        return good
    while bad / good > precision:
        middle = math.sqrt(good * bad)
        if keeps(middle):
            good = middle
        else:
            bad = middle
    return good
