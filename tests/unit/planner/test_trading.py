"""A setting that trades TTFT for gaps is bisected to where neither is broken."""

from itertools import pairwise

import pytest

from tokenfleet.domain.slo import SloResult
from tokenfleet.planner import balanced, sizes_between
from tokenfleet.planner.trading import excess_of


def clause(name: str, predicted: float | None) -> SloResult:
    return SloResult(
        name=name,
        unit="s",
        promised=1.0,
        predicted=predicted,
        predicted_low=None,
        predicted_high=None,
        sample_count=100,
        kept=False,
    )


def world(low: int, high: int):
    """Values below ``low`` break TTFT, values above ``high`` break the gaps; how much says how far."""
    asked = []

    def broken(value: int) -> tuple[SloResult, ...]:
        asked.append(value)
        late = (clause("ttft_p95", 1.0 + (low - value) / low),) if value < low else ()
        slow = (clause("itl_p99", 1.0 + (value - high) / high),) if value > high else ()
        return (*late, *slow)

    return broken, asked


@pytest.mark.parametrize("window", [(64, 70), (640, 800), (4000, 4600), (200, 8192)])
def test_what_keeps_both_is_found_with_few_questions(window) -> None:
    broken, asked = world(*window)
    values = sizes_between(64, 8192, 64)
    assert window[0] <= balanced(values, broken) <= window[1]
    assert len(asked) <= len(values).bit_length()


def test_where_the_two_overlap_there_is_none() -> None:
    broken, asked = world(900, 600)
    assert balanced(sizes_between(64, 8192, 64), broken) is None
    assert len(set(asked)) == len(asked)


def test_what_never_finishes_is_broken_worst() -> None:
    assert excess_of(clause("ttft_p95", None)) == float("inf")
    assert excess_of(clause("itl_p99", 1.5)) == 1.5


def test_values_are_multiples_below_the_most_a_twelfth_apart() -> None:
    values = sizes_between(64, 8192, 64)
    assert values == sorted(set(values))
    assert values[0] == 64
    assert all(value % 64 == 0 and value < 8192 for value in values)
    assert all(after <= max(before * 1.2, before + 64) for before, after in pairwise(values))
    assert sizes_between(1, 6, 1) == [1, 2, 3, 4, 5]
    assert sizes_between(8, 8, 1) == []
