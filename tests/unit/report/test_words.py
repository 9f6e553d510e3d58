"""Numbers as people read them."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.app.report import words
from tokenfleet.app.report.demand import _unsaid
from tokenfleet.domain.trace import Quality


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.01234, "0.0123"), (1.0, "1"), (0.9996, "1"), (12.34, "12.3"), (99.96, "100"), (1234.5, "1,234")],
)
def test_digits(value, text):
    assert words.digits(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.038, "38 ms"),
        (0.00052, "0.52 ms"),
        (0.1, "0.1 s"),
        (0.712, "0.712 s"),
        (2.0, "2 s"),
        (119.0, "119 s"),
        (150.0, "2.5 min"),
        (3 * 86_400.0, "3 d"),
        (None, "unknown"),
        (math.nan, "unknown"),
    ],
)
def test_durations(value, text):
    assert words.duration(value) == text.replace(" ", words.GAP)


@pytest.mark.parametrize(
    ("value", "text"),
    [(9999, "9,999"), (12_345, "12.3 k"), (4.5e6, "4.5 M"), (20.4, "20.4"), (math.inf, "unknown")],
)
def test_amounts(value, text):
    assert words.amount(value) == text.replace(" ", words.GAP)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (29.5, "$29.50"),
        (1234.5, "$1,234"),
        (0.152, "$0.15"),
        (0.00041, "$0.00041"),
        (0, "$0.00"),
        (-3, "-$3.00"),
        (1e-9, "$0.00"),
    ],
)
def test_dollars(value, text):
    assert words.usd(value) == text


@pytest.mark.parametrize(
    ("value", "low", "high", "unit", "text"),
    [
        (0.71, 0.45, 1.1, "s", "0.71 s (0.45–1.1)"),
        (0.09, 0.05, 0.2, "s", "90 ms (50–200)"),
        (0.001, 0.0, 0.002, "fraction", "0.1 % (0–0.2)"),
        (0.0, 0.0, 0.0, "fraction", "0 %"),
        (0.71, None, None, "s", "0.71 s"),
        (0.71, 0.45, None, "s", "0.71 s (0.45–never)"),
        (None, None, None, "s", "unknown"),
    ],
)
def test_ranges_stand_in_the_unit_of_the_value(value, low, high, unit, text):
    assert words.measure_range(value, low, high, unit).replace(words.GAP, " ") == text


def test_clock():
    assert words.clock(5820.0) == "01:37:00"
    assert words.clock(2 * 86_400 + 61.0) == "2 d 00:01:01"


@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=6))
def test_shown_cents_add_up_to_the_shown_total(parts):
    total = math.fsum(parts)
    shown = [round(float(each[1:].replace(",", "")) * 10_000) for each in words.cents_that_add_up(parts, total)]
    decimals = 2 if total >= 0.5 else 4
    assert sum(shown) == round(round(total * 10**decimals) * 10 ** (4 - decimals))
    for value, units in zip(parts, shown, strict=True):
        assert abs(units / 10_000 - value) <= 10**-decimals + 1e-9


def test_parts_that_do_not_add_up_are_not_bent():
    assert words.cents_that_add_up([1.0, 2.0], 5.0) == ["$1.00", "$2.00"]


def test_times_beside_a_promise_share_its_unit():
    assert words.promise(0.1, "s").replace(words.GAP, " ") == "100 ms"
    assert words.promise(2.0, "s").replace(words.GAP, " ") == "2 s"
    assert words.measure_range(0.212, 0.15, 0.3, "s", beside=0.1).replace(words.GAP, " ") == "212 ms (150–300)"
    assert words.measure_range(0.038, None, None, "s", beside=2.0).replace(words.GAP, " ") == "0.038 s"


def test_a_clock_without_a_zone_is_no_missing_clock():
    quality = Quality(rows_read=1, rows_kept=1, rows_dropped={}, detected={}, warnings=())
    naive = {"zone": "not written: the clock is kept as it is, its offset from UTC unknown"}
    assert _unsaid(quality) == "at a time the source does not say"
    assert "workload.zone" in _unsaid(replace(quality, detected=naive))
