"""A forecast by time of day and week: what it sees, what it says, and that it sees the past alone."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfleet.control import ScalingPolicy, ScalingState, SeasonalRule, decide
from tokenfleet.control.seasons import DAY_S, SLOT_S, WEEK_S, Seasons, counted, seasonal_per_s
from unit.control.ticks import signals

TICK_S = 60.0


def rate(time_s: float) -> float:
    """A day with a peak at noon, and weekends at half of it."""
    level = 10.0 + 8.0 * math.sin(2 * math.pi * (time_s / DAY_S - 0.25))
    return level if time_s % WEEK_S < 5 * DAY_S else level / 2


def after(span_s: float, arrivals=rate) -> Seasons:
    seasons = Seasons()
    for tick in range(round(span_s / TICK_S) + 1):
        time_s = tick * TICK_S
        seasons = counted(time_s, round(arrivals(time_s - TICK_S / 2) * TICK_S), seasons)
    return seasons


@pytest.fixture(scope="module")
def fortnight() -> Seasons:
    return after(9 * DAY_S)


def test_a_day_ago_until_a_week_has_been_seen(fortnight: Seasons) -> None:
    now_s = 1.5 * DAY_S
    day = after(now_s)
    assert seasonal_per_s(after(0.9 * DAY_S), 0.9 * DAY_S, 0.9 * DAY_S + 600) is None
    expected, error = seasonal_per_s(day, now_s, now_s + 600)
    assert expected == pytest.approx(rate(now_s + 600), rel=0.02)
    assert error < 0.1
    # Monday morning: a day before was Sunday, a week before was Monday.
    monday_s = 7 * DAY_S + 9 * 3600.0
    week = after(monday_s)
    assert seasonal_per_s(week, monday_s, monday_s + 600)[0] == pytest.approx(rate(monday_s + 600), rel=0.02)


def test_today_counts_as_twice_as_busy_at_most() -> None:
    def twice(time_s: float) -> float:
        return rate(time_s) * (1.0 if time_s < DAY_S else 1.4)

    def storm(time_s: float) -> float:
        return rate(time_s) * (1.0 if time_s < DAY_S else 9.0)

    now_s = 1.5 * DAY_S
    usual = rate(now_s + 600)
    assert seasonal_per_s(after(now_s, twice), now_s, now_s + 600)[0] == pytest.approx(1.4 * usual, rel=0.02)
    expected, error = seasonal_per_s(after(now_s, storm), now_s, now_s + 600)
    assert expected == pytest.approx(2.0 * usual, rel=0.02)
    assert error > 5 * usual, "and it says how far off it is"


def test_slots_that_nobody_saw_are_unknown_and_not_0() -> None:
    seasons = counted(0.0, 5, Seasons())
    for time_s, arrived in ((150.0, 30), (330.0, 30), (600.0, None), (700.0, 3), (950.0, 3), (2000.0, 3)):
        seasons = counted(time_s, arrived, seasons)
    assert seasons.rate_at(100.0) is None, "the first slot was not seen from its start"
    assert seasons.rate_at(400.0) is None, "a metric was missing"
    assert seasons.rate_at(700.0) == pytest.approx(6 / SLOT_S)
    assert seasons.rate_at(1000.0) == pytest.approx(3 / SLOT_S)
    assert seasons.rate_at(1300.0) is None, "no tick lies in it"


def test_little_is_kept(fortnight: Seasons) -> None:
    assert len(fortnight.rates_per_s) <= (WEEK_S + DAY_S) / SLOT_S


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 500), min_size=40, max_size=80), st.integers(10, 30))
def test_nothing_depends_on_what_comes_later(arrivals: list[int], cut: int) -> None:
    def up_to(count: int) -> list[Seasons]:
        seasons, all_of_them = Seasons(), []
        for tick, arrived in enumerate(arrivals[:count]):
            seasons = counted(100.0 * tick, arrived, seasons)
            all_of_them.append(seasons)
        return all_of_them

    assert up_to(cut) == up_to(len(arrivals))[:cut]


def test_the_rule_asks_for_the_morning_before_it_comes() -> None:
    policy = ScalingPolicy(rules=(SeasonalRule(ahead_s=1800.0, capacity_per_s=2.0),), min_count=1, max_count=20)
    state = ScalingState(target_count=5)
    steps = []
    for tick in range(1, round(1.6 * DAY_S / TICK_S)):
        time_s = tick * TICK_S
        seen = signals(time_s, waiting=(0,) * state.target_count)
        seen = replace(seen, arrived_count=round(rate(time_s - TICK_S / 2) * TICK_S), ready_count=state.target_count)
        step, state = decide(seen, policy, state)
        steps.append(step)
    assert steps[100].reason.startswith("no day has passed yet: ")
    first = [step for step in steps if 0.1 * DAY_S < step.time_s < 0.9 * DAY_S]
    assert all(2.0 * step.target_count >= rate(step.time_s) for step in first), "until then by level and trend"
    late = [step for step in steps if step.time_s > 1.1 * DAY_S]
    assert all(2.0 * step.target_count >= rate(step.time_s + 1500.0) for step in late if step.time_s < 1.45 * DAY_S)
    assert max(step.target_count for step in late) <= 12
