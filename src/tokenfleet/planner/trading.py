"""A setting that trades one promise for another, such as the size of a step: TTFT against the gaps between tokens."""

from collections.abc import Callable, Sequence

from tokenfleet.domain.slo import SloResult

_GAPS = ("itl", "tpot")


def balanced(values: Sequence[int], broken: Callable[[int], Sequence[SloResult]]) -> int | None:
    """A value with which no clause is broken.

    Gaps between tokens grow with the value, everything else (TTFT, E2E, errors) falls: what is broken worst says on
    which side to look, and the border between the two is bisected.

    Args:
        values: What may be tried, the smallest first.
        broken: The clauses that a value breaks, asked once for each value at most.

    Returns:
        The value, or ``None`` where one side or the other is broken with all that were tried.
    """
    low, high = 0, len(values) - 1
    while low <= high:
        middle = (low + high) // 2
        found = broken(values[middle])
        if not found:
            return values[middle]
        if max(found, key=excess_of).name.startswith(_GAPS):
            high = middle - 1
        else:
            low = middle + 1
    return None


def excess_of(result: SloResult) -> float:
    """What a broken clause comes to over what it promises; infinite where nothing can be said."""
    if result.predicted is None or result.promised <= 0.0:
        return float("inf")
    return result.predicted / result.promised


def sizes_between(least: int, most: int, grain: int) -> list[int]:
    """Multiples of ``grain`` from ``least`` up to ``most``, each about a twelfth above the one before."""
    found, value = [], float(least)
    while value < most:
        rounded = -(-round(value) // grain) * grain
        if rounded < most and rounded not in found:
            found.append(rounded)
        value = max(value * 1.09, value + grain / 2)
    return found
