"""What an interval is charged and averaged over: what was there during it, not what is there at its end."""

import numpy as np
import pytest

from tokenfleet import simulator, workload
from tokenfleet.app.intervals import fleet_intervals, intervals_of, left_tokens, mean_of, serving
from tokenfleet.app.scenario import checked
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.simulate_question import FleetOptions, fleet_by_options
from tokenfleet.catalog import model
from tokenfleet.domain.world import Happening, ReplicaState, World
from tokenfleet.planner.scaling import gpu_hours

INTERVAL_S = 30.0
VALUES = {
    "name": "small",
    "workload": {"lengths": {"input": "900:2000", "output": "150:300"}, "mean_rate": 30},
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "slo": {"ttft_p99": "2s"},
    "gpus": ["l40s"],
    "precision": "fp8",
}


@pytest.fixture(scope="module")
def run():
    asked = checked(Scenario, VALUES, str)
    fleet = fleet_by_options(asked, model(asked.model), FleetOptions(replicas=3))
    trace = workload.draw_trace(
        workload.Lengths.parse("900:2000"),
        workload.Lengths.parse("150:300"),
        mean_rate_per_s=30.0,
        peak_to_mean=1.0,
        interarrival_cv=1.0,
        duration_s=240.0,
        seed=3,
    )
    moments = (("fail", 100.0), ("start", 125.0), ("ready", 165.0))
    happenings = tuple(Happening(time_s=time_s, kind=kind, replicas=(1,)) for kind, time_s in moments)
    world = World(happenings=happenings)
    record = simulator.replay(trace, fleet, telemetry_interval_s=INTERVAL_S, world=world)
    return record, fleet, intervals_of(record, INTERVAL_S, fleet, [model(asked.model)])


def test_seconds_held_and_served_are_those_of_each_interval(run):
    record, _, done = run
    assert done.held_s[:6, 1].tolist() == [30.0, 30.0, 30.0, 10.0, 25.0, 30.0]
    assert done.serving_s[:6, 1].tolist() == [30.0, 30.0, 30.0, 10.0, 0.0, 15.0]
    assert (done.held_s[:, [0, 2]] == INTERVAL_S).all()
    after_s = len(done.held_s) * INTERVAL_S - record.end_s
    served_s = record.turmoil.state_s[:, ReplicaState.READY]
    np.testing.assert_allclose(done.serving_s.sum(axis=0) - after_s, served_s)


def test_the_price_is_of_what_was_held(run):
    record, fleet, done = run
    tokens = left_tokens(record, done)
    whole = fleet_intervals(record, done, fleet, {"l40s": 3600.0}, tokens)
    usd = whole.usd_per_million_output_tokens * tokens / 1e6
    np.testing.assert_allclose(usd[:6], [90.0, 90.0, 90.0, 70.0, 85.0, 90.0])
    after_s = 3 * (len(usd) * INTERVAL_S - record.end_s)
    assert usd.sum() - after_s == pytest.approx(gpu_hours(record, fleet) * 3600.0)


def test_a_fleet_that_works_all_the_time_looks_busy_whoever_is_away(run):
    _, _, done = run
    busy = done.of_fleet(done.busy_fraction)
    assert busy[2:6].min() > 0.97, "two work, one is away or loads"
    parts = sum(done.of_fleet(values) for values in done.bound_fraction.values())
    np.testing.assert_allclose(parts, busy)
    assert busy.max() <= 1.0


def test_a_replica_that_loads_is_in_no_mean(run):
    gauges = run[0].telemetry
    assert gauges.state[4, 1] == ReplicaState.STARTING
    there = serving(gauges.state, gauges.kv_used_fraction)
    assert there[:7].tolist() == [[True, number not in (3, 4), True] for number in range(7)]
    used = gauges.kv_used_fraction
    assert mean_of(used, there)[4] == pytest.approx(used[4, [0, 2]].mean())
    assert serving(None, used).all()
