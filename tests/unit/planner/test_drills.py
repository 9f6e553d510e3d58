"""Drills on the real replay."""

from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.domain.run import requests_of
from tokenfleet.domain.survival import Redundancy, Rollout, Zone
from tokenfleet.planner import DRILLS, DrillPlan, drills
from tokenfleet.planner.drilling import flooded_peak, held_at_peak
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.traffic import Traffic
from unit.planner import toy
from unit.planner.test_moment import REPLICA, demand

QUESTION = replace(
    toy.question([REPLICA], [toy.price("l40s", 1.0)], promise=toy.slo(ttft=2.0, itl=0.2)),
    redundancy=Redundancy(zones=(Zone(name="a"), Zone(name="b")), replicas_per_node_count=2),
    rollout=Rollout(ready_after_s=20.0),
)
TRACE = demand()


def test_a_roomy_fleet_passes_and_a_tight_one_fails_by_clause():
    roomy = drills(QUESTION, TRACE, REPLICA, 12, DrillPlan())
    assert [drill.name for drill in roomy] == list(DRILLS)
    assert all(drill.passed for drill in roomy)
    # The demand ends before twelve replicas have changed their version, so it comes again.
    changed = roomy[DRILLS.index("rollout")]
    assert "times, one after the other, until the 240 s of it are over" in changed.how
    assert all(result.kept for drill in roomy for result in drill.slo)
    hasty = replace(QUESTION, slo=toy.slo(ttft=0.3, itl=0.2))
    tight = {drill.name: drill for drill in drills(hasty, TRACE, REPLICA, 2, DrillPlan(burst_factor=6.0))}
    assert tight["burst"].passed is False
    broken = [result for result in tight["burst"].slo if not result.kept]
    assert broken[0].predicted > broken[0].promised
    assert tight["zone"].passed is False
    assert "requests lost, sent again" in tight["zone"].how


def test_what_cannot_be_drilled_is_said_and_does_not_fail():
    nowhere = replace(QUESTION, redundancy=Redundancy(), rollout=Rollout())
    found = {drill.name: drill for drill in drills(nowhere, TRACE, REPLICA, 4, DrillPlan(names=("zone", "rollout")))}
    assert found["zone"].passed is None
    assert found["rollout"].passed is None
    assert "cold_start" in found["rollout"].how
    at_once = replace(nowhere, rollout=Rollout(max_unavailable_count=4, max_surge_count=0, ready_after_s=20.0))
    (gone,) = drills(at_once, TRACE, REPLICA, 4, DrillPlan(names=("rollout",)))
    assert (gone.passed, gone.how) == (False, "nothing is left to serve")
    (alone,) = drills(nowhere, TRACE, REPLICA, 1, DrillPlan(names=("replica",)))
    assert (alone.passed, alone.how) == (False, "nothing is left to serve")


def test_demand_is_raised_to_the_peak_and_held():
    random = np.random.default_rng(1)
    counts = [100, 150, 200, 120, 400, 150, 100, 130]
    arrival = np.sort(np.concatenate([60.0 * m + random.uniform(0, 60, n) for m, n in enumerate(counts)]))
    total = len(arrival)
    trace = replace(
        TRACE,
        arrival_s=arrival,
        input_tokens=np.full(total, 100, dtype=np.int32),
        output_tokens=np.full(total, 50, dtype=np.int32),
    )
    held = held_at_peak(Traffic(trace, (240.0, 300.0)), ramp_s=120.0, hold_s=180.0)
    assert held.window_s == (240.0, 420.0)
    minutes = np.bincount((held.trace.arrival_s // 60).astype(int))
    assert minutes[[4, 5, 6]] == pytest.approx([400, 400, 400], abs=2)
    assert minutes[[2, 3]] == pytest.approx([200, 400 * 2 / 3], abs=2)
    assert list(minutes[[0, 1, 7]]) == [100, 150, 130]


def test_a_flood_is_another_tenants_and_everybody_else_is_judged():
    traffic = Traffic(TRACE, (60.0, 120.0))
    flooded, others = flooded_peak(traffic, 0.25)
    inside = ((TRACE.arrival_s >= 60) & (TRACE.arrival_s < 120)).sum()
    assert (~others).sum() == round(0.25 * inside)
    assert set(flooded.trace.input_tokens[~others]) == {TRACE.input_tokens.max()}
    assert np.array_equal(flooded.trace.arrival_s[others], TRACE.arrival_s)
    assert np.array_equal(flooded.trace.input_tokens[others], TRACE.input_tokens)
    record = Replays(QUESTION.slo, "least_in_flight").run(flooded, REPLICA, 4)
    spared = requests_of(record, others)
    assert np.array_equal(spared.arrival_s, TRACE.arrival_s)
    assert len(spared.ttft_s) == len(spared.status) == TRACE.request_count
