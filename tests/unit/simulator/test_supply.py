"""Spot reclaims and stock-outs: seeded, in order, and at the peak."""

from itertools import pairwise

import numpy as np
import pytest

from tokenfleet.domain.errors import BadInput
from tokenfleet.simulator.supply import obtained_s, spot_reclaims, stock_outs

HOUR_S = 3600.0
NIGHT_AND_DAY = np.concatenate([np.linspace(0.0, 12 * HOUR_S, 1_000), np.linspace(12 * HOUR_S, 24 * HOUR_S, 9_000)])


def test_machines_go_when_everybody_peaks():
    taken = [
        each.time_s
        for seed in range(40)
        for each in spot_reclaims(NIGHT_AND_DAY, [0, 1, 2, 3], per_hour=0.5, notice_s=30.0, seed=seed)
        if each.kind == "drain"
    ]
    by_day = sum(time_s >= 12 * HOUR_S for time_s in taken) / len(taken)
    assert 0.85 < by_day < 0.95, "nine tenths of the demand"
    # 0.5 an hour for 24 hours, two of four replicas each.
    assert len(taken) / 40 == pytest.approx(24.0, rel=0.15)
    flat = [
        each.time_s
        for seed in range(40)
        for each in spot_reclaims(NIGHT_AND_DAY, [0, 1], per_hour=0.5, notice_s=30.0, peak_power=0.0, seed=seed)
    ]
    assert sum(time_s >= 12 * HOUR_S for time_s in flat) / len(flat) == pytest.approx(0.5, abs=0.1)


def test_a_notice_comes_before_the_end_and_several_go_together():
    events = spot_reclaims(NIGHT_AND_DAY, [4, 5, 6, 7], per_hour=1.0, notice_s=120.0, taken_fraction=0.75, seed=3)
    assert events == spot_reclaims(
        NIGHT_AND_DAY, [4, 5, 6, 7], per_hour=1.0, notice_s=120.0, taken_fraction=0.75, seed=3
    )
    assert [each.time_s for each in events] == sorted(each.time_s for each in events)
    drains = [each for each in events if each.kind == "drain"]
    fails = [each for each in events if each.kind == "fail"]
    assert len(drains) == len(fails)
    assert {each.replicas[0] for each in events} <= {4, 5, 6, 7}
    for said in drains:
        assert any(gone.replicas == said.replicas and gone.time_s == said.time_s + 120.0 for gone in fails)
    assert spot_reclaims(NIGHT_AND_DAY, [], per_hour=1.0, notice_s=1.0, seed=1) == ()
    assert spot_reclaims(np.array([]), [1], per_hour=1.0, notice_s=1.0, seed=1) == ()


def test_stock_outs_are_apart_and_follow_demand():
    spans = [span for seed in range(40) for span in stock_outs(NIGHT_AND_DAY, per_hour=0.5, mean_s=600.0, seed=seed)]
    assert sum(start_s >= 12 * HOUR_S for start_s, _ in spans) / len(spans) > 0.8
    for seed in range(10):
        own = stock_outs(NIGHT_AND_DAY, per_hour=6.0, mean_s=900.0, seed=seed)
        assert all(end_s < later_s for (_, end_s), (later_s, _) in pairwise(own))
        assert all(start_s <= end_s for start_s, end_s in own)


def test_what_is_asked_for_in_a_stock_out_comes_when_it_ends():
    spans = ((100.0, 200.0), (300.0, 310.0))
    assert [obtained_s(time_s, spans) for time_s in (99.0, 100.0, 199.0, 200.0, 305.0)] == [
        99.0,
        200.0,
        200.0,
        200.0,
        310.0,
    ]


def test_numbers_without_sense_are_refused_at_once():
    with pytest.raises(BadInput) as error:
        spot_reclaims(NIGHT_AND_DAY, [0], per_hour=-1.0, notice_s=-1.0, taken_fraction=0.0, seed=1)
    assert [problem.where for problem in error.value.problems] == ["per_hour", "notice_s", "taken_fraction"]
    with pytest.raises(BadInput, match="mean_s"):
        stock_outs(NIGHT_AND_DAY, per_hour=1.0, mean_s=float("nan"), seed=1)
