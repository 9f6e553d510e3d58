"""The smallest count that is enough, with few questions."""

from collections.abc import Callable


def smallest_enough(enough: Callable[[int], bool], start: int, cap: int) -> int | None:
    """Gallops from ``start`` until it has a count that is enough next to one that is not, then bisects.

    The answer was asked and is enough, and one fewer was asked and is not (or is zero). When ``enough`` is not
    monotone it is one of several such borders. Each count is asked at most once.

    Args:
        enough: The question; 0 is never asked and never enough.
        start: Where to begin, clamped to 1..``cap``.
        cap: Largest count to ask, >= 1.

    Returns:
        The count, or ``None`` when no count asked up to ``cap`` (itself included) is enough.
    """
    low, high = _bracket(enough, max(1, min(start, cap)), cap)
    if high is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def _bracket(enough: Callable[[int], bool], start: int, cap: int) -> tuple[int, int | None]:
    """A count that is not enough (0 at least) and a larger one that is, or ``None``."""
    step = max(1, start // 8)
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
