"""Ways to scale, compared by replay on a hill of demand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.control import QueueRule, ScalingPolicy
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.slo import LatencyTarget, Slo
from tokenfleet.domain.trace import Trace
from tokenfleet.planner.scaling import (
    ScalingSetting,
    busiest_minute_per_s,
    compare_scaling,
    own_way,
    scaled,
    schedule_from,
    usual_ways,
)
from unit.planner import toy

SLO = Slo(latency=(LatencyTarget(metric="ttft", quantile=0.9, limit_s=2.0),), error_rate_fraction=0.01)


def trace_at(rate_at, *, seconds, outputs=100):
    """Evenly spaced arrivals at a rate that may change."""
    times, time_s = [], 0.0
    while time_s < seconds:
        times.append(time_s)
        time_s += 1.0 / rate_at(time_s)
    count = len(times)
    return Trace(
        arrival_s=np.array(times),
        input_tokens=np.full(count, 200, dtype=np.int32),
        output_tokens=np.full(count, outputs, dtype=np.int32),
    )


def hill(time_s):
    """2 requests a second, and 10 at the top an hour in."""
    return 2.0 + 8.0 * math.exp(-(((time_s - 3600.0) / 900.0) ** 2))


HILL = trace_at(hill, seconds=7200.0)


def setting(**given):
    # Four slots and a second for 100 tokens: 4 requests a second less the prefill steps.
    replica = toy.replica(slots=4, step_ms=10.0, token_us=2.0)
    fleet = Fleet(groups=(ReplicaGroup(replica=replica, replica_count=6),))
    return ScalingSetting(**{"fleet": fleet, "slo": SLO, "start_count": 1, "cold_start_s": 240.0} | given)


@pytest.fixture(scope="module")
def found():
    ways = usual_ways(HILL, min_count=1, max_count=6, ttft_limit_s=2.0, cold_start_s=240.0)
    return compare_scaling(HILL, setting(), ways)


def by_name(found):
    return {way.name: way for way in found.ways}


def test_every_way_serves_every_request_and_is_charged_for_what_it_holds(found):
    assert found.fixed_is_enough
    for way in found.ways:
        assert np.isfinite(way.record.finish_s).all()
        longest = way.most_count * way.record.end_s / 3600.0
        least = way.record.end_s / 3600.0
        assert least * 0.99 <= way.gpu_hours <= longest * 1.01


def test_the_fixed_count_is_the_smallest_that_keeps_every_minute(found):
    fixed = found.ways[0]
    assert fixed.minutes.broken_count == 0
    assert fixed.gpu_hours == pytest.approx(fixed.most_count * fixed.record.end_s / 3600.0)
    assert found.capacity_per_s == pytest.approx(busiest_minute_per_s(HILL) / fixed.most_count)
    assert fixed.most_count > 1


def test_reacting_is_too_late_by_a_cold_start_and_looking_ahead_is_not(found):
    ways = by_name(found)
    assert ways["queue 5"].minutes.broken_count > 0, "the queue is full before anybody is asked for"
    assert ways["schedule"].minutes.broken_count == 0
    assert ways["schedule"].gpu_hours < found.ways[0].gpu_hours
    assert ways["forecast"].minutes.broken_count <= ways["queue 5"].minutes.broken_count
    assert found.best.minutes.broken_count == 0
    assert found.best.gpu_hours == min(way.gpu_hours for way in found.ways if way.minutes.broken_count == 0)


def test_a_shorter_cold_start_breaks_fewer_minutes(found):
    policy = ScalingPolicy(rules=(QueueRule(limit_count=5.0),), max_count=6)
    quick = scaled(HILL, setting(cold_start_s=15.0), "quick", policy)
    slow = scaled(HILL, setting(cold_start_s=600.0), "slow", policy)
    assert quick.minutes.broken_count < slow.minutes.broken_count


def test_nothing_is_there_in_a_stock_out(found):
    policy = ScalingPolicy(rules=(QueueRule(limit_count=3.0),), max_count=6)
    free = scaled(HILL, setting(), "free", policy)
    out = scaled(HILL, setting(stock_outs_s=((1800.0, 5000.0),)), "out", policy)
    assert out.minutes.broken_count > free.minutes.broken_count
    assert max(step.ready_count for step in out.steps if step.time_s < 5000.0) == 1


def test_same_question_same_answer(found):
    again = compare_scaling(HILL, setting(), [own_way("queue 5", by_name(found)["queue 5"].policy)])
    first, second = by_name(found)["queue 5"], again.ways[1]
    assert first.record.finish_s.tobytes() == second.record.finish_s.tobytes()
    assert first.steps == second.steps


def test_a_fleet_that_is_too_small_is_said_to_be():
    replica = toy.replica(slots=1, step_ms=50.0)
    small = Fleet(groups=(ReplicaGroup(replica=replica, replica_count=1),))
    policy = ScalingPolicy(rules=(QueueRule(),), max_count=1)
    short = trace_at(lambda _: 3.0, seconds=300.0)
    found = compare_scaling(short, setting(fleet=small), [own_way("own", policy)])
    assert not found.fixed_is_enough
    assert found.ways[0].name == "fixed at 1"


def test_a_minute_in_which_one_request_is_slow_alone_asks_for_no_more_replicas():
    thin = trace_at(lambda _: 0.1, seconds=300.0)
    inputs = thin.input_tokens.copy()
    inputs[8] = 20_000
    thin = replace(thin, input_tokens=inputs)
    replica = toy.replica(slots=4, step_ms=10.0, token_us=200.0)
    fleet = Fleet(groups=(ReplicaGroup(replica=replica, replica_count=4),))
    own = own_way("own", ScalingPolicy(rules=(QueueRule(),), max_count=4))
    found = compare_scaling(thin, setting(fleet=fleet), [own])
    assert (found.slow_alone_minute_count, found.fixed_is_enough) == (1, True)
    assert [way.minutes.broken_count for way in found.ways] == [0, 0]
    assert found.ways[0].name == "fixed at 1"
    # Five of them at once are slow alone on these replicas, and for want of others on faster ones.
    inputs[8:13] = 20_000
    crowd = replace(thin, input_tokens=inputs, arrival_s=np.minimum(thin.arrival_s, 80.0 + 0.1 * np.arange(30)))
    assert compare_scaling(crowd, setting(fleet=fleet), [own]).slow_alone_minute_count == 1
    fast = toy.replica(slots=4, step_ms=10.0, token_us=80.0)
    fleet = Fleet(groups=(ReplicaGroup(replica=fast, replica_count=1),))
    small = compare_scaling(crowd, setting(fleet=fleet), [])
    assert (small.slow_alone_minute_count, small.fixed_is_enough) == (0, False)


def test_a_schedule_has_a_row_where_the_count_changes():
    quarter = 900.0
    steps = trace_at(lambda time_s: 2.0 if time_s < quarter or time_s >= 3 * quarter else 9.0, seconds=4 * quarter)
    rows = schedule_from(steps, 2.0, min_count=1, max_count=8)
    assert rows == ((0.0, 1), (900.0, 5), (2700.0, 1))
    late = schedule_from(steps, 2.0, min_count=1, max_count=8, offset_s=86_400.0 - quarter)
    assert late == ((0.0, 5), (1800.0, 1))
    assert schedule_from(steps, 2.0, min_count=2, max_count=3) == ((0.0, 2), (900.0, 3), (2700.0, 2))
