"""How people write durations, shares, rates, tokens: read exactly, refused with the way to write it."""

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokenfleet.app.quantities import (
    Unreadable,
    parse_duration_s,
    parse_fraction,
    parse_moment_s,
    parse_positive,
    parse_rate_per_s,
    parse_tokens,
    shown_duration,
    shown_usd,
    written_duration,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2s", 2.0),
        ("100ms", 0.1),
        ("30min", 1800.0),
        ("1.5h", 5400.0),
        ("7d", 604800.0),
        ("250us", 250e-6),
        (".5s", 0.5),
    ],
)
def test_durations(text, seconds):
    assert parse_duration_s(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("2 sec", '"2 sec" is not a duration; write 2s or 2000ms'),
        ("2 s", '"2 s" is not a duration; write 2s or 2000ms'),
        ("5 minutes", '"5 minutes" is not a duration; write 5min'),
        ("5m", '"5m" is not a duration; write 5min'),
        (2, "2 has no unit; write 2s or 2ms"),
        (0.5, "0.5 has no unit; write 0.5s or 0.5ms"),
        ("2", '"2" is not a duration; write 2s, 100ms or 30min'),
        ("2 parsecs", '"2 parsecs" is not a duration; write a unit of us, ms, s, min, h, d, such as 2s'),
        ("0s", '"0s" is not a time one can wait; write a duration above 0, such as 2s'),
        ("-2s", '"-2s" is not a duration; write 2s, 100ms or 30min'),
        (None, "nothing is not a duration; write 2s, 100ms or 30min"),
        (True, "true is not a duration; write 2s, 100ms or 30min"),
        ([2], "[2] is not a duration; write 2s, 100ms or 30min"),
    ],
)
def test_what_is_no_duration_says_how_to_write_one(value, said):
    with pytest.raises(Unreadable) as caught:
        parse_duration_s(value)
    assert str(caught.value) == said


@given(st.floats(min_value=1e-3, max_value=1e6))
def test_a_written_duration_reads_back(duration_s):
    assert parse_duration_s(written_duration(duration_s)) == pytest.approx(duration_s, rel=1e-5)


def test_shares_need_their_percent_sign():
    assert parse_fraction("0.1%") == pytest.approx(0.001)
    assert parse_fraction("0 %") == 0.0
    assert parse_fraction(0) == 0.0
    with pytest.raises(Unreadable, match=r"write 0\.1% or 10%"):
        parse_fraction(0.1)
    with pytest.raises(Unreadable, match="more than everything"):
        parse_fraction("101%")
    with pytest.raises(Unreadable, match="in percent"):
        parse_fraction("few")


@pytest.mark.parametrize("value", ["170%", "10%", 0, "0%"])
def test_a_share_with_a_least_says_the_range_that_holds(value):
    assert parse_fraction("25%", least_fraction=0.25) == 0.25
    with pytest.raises(Unreadable) as refused:
        parse_fraction(value, least_fraction=0.25)
    assert refused.value.mend == "write a share between 25% and 100%"
    assert refused.value.what.endswith("is more than everything" if value == "170%" else "is less than 25%")


def test_rates():
    assert parse_rate_per_s(20) == 20.0
    assert parse_rate_per_s("20/s") == 20.0
    assert parse_rate_per_s("1200/min") == pytest.approx(20.0)
    assert parse_rate_per_s("3600/h") == pytest.approx(1.0)
    for wrong in ("20 rps", "-1", 0, "0/s", "fast", None, True, "nan"):
        with pytest.raises(Unreadable):
            parse_rate_per_s(wrong)


def test_tokens_are_whole_and_never_a_guess_between_1000_and_1024():
    assert parse_tokens(4096) == parse_tokens("4096") == parse_tokens("4,096") == parse_tokens("4_096") == 4096
    with pytest.raises(Unreadable, match="write 32000 or 32768"):
        parse_tokens("32k")
    for wrong in (0, -5, 1.5, "many", True, None, "٣", "9" * 400):
        with pytest.raises(Unreadable):
            parse_tokens(wrong)


def test_plain_numbers():
    assert parse_positive("1.3") == parse_positive(1.3) == 1.3
    with pytest.raises(Unreadable, match=r"write 1\.3 for 30 % more"):
        parse_positive("+30%")
    for wrong in (0, -1, float("inf"), float("nan"), "much", True, None):
        with pytest.raises(Unreadable):
            parse_positive(wrong)


@given(st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.booleans(), st.lists(st.integers(), max_size=2)))
@example("0\x1f")
def test_anything_else_is_refused_and_never_crashes(value):
    for parse in (parse_duration_s, parse_fraction, parse_rate_per_s, parse_tokens, parse_positive):
        with suppress(Unreadable):
            assert parse(value) >= 0


def test_shown_to_a_person():
    assert [shown_duration(time_s) for time_s in (0.0042, 0.038, 0.149, 0.71, 12.4, 370.0, 9000.0)] == [
        "4.2 ms", "38 ms", "149 ms", "0.71 s", "12.4 s", "6 min 10 s", "2 h 30 min",
    ]  # fmt: skip
    assert [shown_usd(usd) for usd in (0.00041, 0.15, 29.5, 12345.6)] == ["$0.00041", "$0.15", "$29.50", "$12,346"]
    assert [shown_usd(usd) for usd in (0.0, 1.3e-9, 2.4e-7, 0.02, 0.099)] == [
        "$0",
        "$0",
        "$0.00000024",
        "$0.02",
        "$0.099",
    ]


def test_a_moment_may_be_the_start_itself():
    assert [parse_moment_s(value) for value in ("0s", "0.0min", "2s")] == [0.0, 0.0, 2.0]
    with pytest.raises(Unreadable, match="is not a duration"):
        parse_moment_s("0")
