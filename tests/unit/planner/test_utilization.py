"""How full a fleet may be: a cap binds like a limit, and what a queue that never empties would allow."""

from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.app.full_words import utilization_lines
from tokenfleet.app.pooled_words import waiting
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.slo import Deadline, Slo
from tokenfleet.planner import filled, plan, plan_document
from tokenfleet.planner.limits import LimitSearch
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.traffic import Traffic
from tokenfleet.planner.utilization import saturated
from tokenfleet.workload import profile
from unit.planner import toy


def fleet(count, **settings):
    return Fleet(groups=(ReplicaGroup(replica=toy.replica(**settings), replica_count=count),))


def asked(cap=None, **rest):
    question = toy.question([toy.replica(slots=4)], [toy.price("h100_sxm", 2.0)], **rest)
    return replace(question, utilization_cap_fraction=cap)


def test_a_fleet_that_always_has_somebody_waiting_does_what_its_slots_do():
    # Four slots, each with one request after the other, whatever their arrivals.
    trace = replace(toy.trace(count=1000), output_tokens=np.full(1000, 50, dtype=np.int32))
    one, two = (saturated(trace, fleet(count, slots=4), toy.replay).rate_per_s for count in (1, 2))
    step_s = toy.replica(slots=4).step_time.token_ps[4] * 1e-12
    taken_s = 49 * step_s + np.mean([toy.prefill_s(toy.replica().step_time, int(n), 2048) for n in trace.input_tokens])
    assert one == pytest.approx(4 / taken_s, rel=0.03)
    assert two == pytest.approx(2 * one, rel=0.03)


@pytest.mark.parametrize("count", [7, 40, 200])
def test_many_replicas_are_as_full_as_few(count):
    """Of 200 replicas each would get five requests: what it then does is fill and run dry."""
    outputs = np.random.default_rng(5).integers(5, 96, 1000).astype(np.int32)
    trace = replace(toy.trace(count=1000), output_tokens=outputs)
    one, many = (saturated(trace, fleet(each, slots=16), toy.replay) for each in (1, count))
    assert many.rate_per_s / count == pytest.approx(one.rate_per_s, rel=0.05)
    assert many.work.input_s == pytest.approx(one.work.input_s, rel=0.05)
    assert many.work.output_s == pytest.approx(one.work.output_s, rel=0.05)


def test_so_few_requests_say_nothing():
    assert saturated(toy.trace(count=1), fleet(1), toy.replay) is None


def test_a_pool_is_as_full_as_its_peak_its_mean_and_its_spare_make_it():
    trace = toy.trace(count=800, rate=10.0)
    window_s = (10.0, 20.0)
    found = filled(trace, fleet(4, slots=4), toy.replay, carrying_count=3, window_s=window_s)
    peak = ((trace.arrival_s >= 10.0) & (trace.arrival_s < 20.0)).sum() / 10.0
    mean = trace.request_count / trace.duration_s
    assert found.spare_fraction == 0.25
    assert found.peak_fraction == pytest.approx(max(peak, mean) / found.saturated_rate_per_s)
    assert found.mean_fraction == pytest.approx(mean / found.saturated_rate_per_s)
    assert filled(toy.trace(count=0), fleet(1), toy.replay, carrying_count=1, window_s=window_s) is None


@pytest.mark.parametrize("cap", [0.9, 0.7, 0.5])
def test_a_cap_is_kept_and_one_replica_fewer_breaks_it(toy_world, cap):
    trace = toy.trace(count=600, rate=20.0)
    usual, capped = plan(asked(), trace), plan(asked(cap), trace)
    assert capped.chosen.carrying_count >= usual.chosen.carrying_count
    assert capped.utilization_carrying_fraction <= cap * (1 + 1e-9)
    assert capped.limits[0].rate_at_limit_per_s >= capped.peak_rate_per_s * (1 - 1e-9)
    traffic = Traffic(trace, (capped.peak_start_s, capped.peak_end_s))
    fewer = capped.chosen.carrying_count - 1
    if fewer < usual.chosen.carrying_count:
        return
    search = LimitSearch(Replays.of(asked()), traffic, toy.MODEL, fewer, Reporter(None), 1.01)
    sustained = search.of(toy.replica(slots=4)).sustained
    assert 1.0 / sustained.factor > cap * 0.97


def test_a_cap_binds_like_any_limit(toy_world):
    trace = toy.trace(count=600, rate=20.0)
    found = plan(asked(0.5), trace)
    first = found.limits[0]
    assert first.limit == "utilization_cap"
    assert first.rate_at_limit_per_s == pytest.approx(0.5 * found.sustained_rate_per_s)
    assert first.used_fraction == pytest.approx(found.utilization_carrying_fraction / 0.5)
    document = plan_document(found, profile(trace), {"scenario": {}})
    assert document["binding_limit"] == "utilization_cap"
    assert document["peak"]["utilization_cap_fraction"] == 0.5


def test_what_breaks_first_beyond_the_sustained_rate_is_named(toy_world):
    found = plan(asked(), toy.trace(count=600, rate=20.0))
    assert found.limits[0].broken == ("ttft_p99",)


def test_the_shares_of_a_plan_multiply(toy_world):
    found = plan(asked(spare=1), toy.trace(count=600, rate=20.0))
    left = found.sustained_rate_per_s / found.saturated_rate_per_s
    assert found.promise_leaves_fraction == pytest.approx(min(1.0, left))
    whole = found.utilization_carrying_fraction * found.chosen.carrying_count / found.chosen.replica_count
    assert found.utilization_fraction == pytest.approx(whole)
    usual = found.utilization_fraction * found.mean_rate_per_s / found.peak_rate_per_s
    assert found.utilization_mean_fraction == pytest.approx(usual)
    assert found.peak_to_saturated_ratio == pytest.approx(found.utilization_fraction * left)


def surge(count=600):
    """Ten requests a second for ten seconds, and then one."""
    usual = toy.trace(count=count)
    gaps_s = np.where(np.arange(count) < 100, 0.1, 1.0)
    return replace(usual, arrival_s=np.cumsum(gaps_s) - gaps_s[0])


def test_work_that_may_wait_is_left_all_and_no_more_than_all(toy_world):
    """Sustained is a peak of which most is done later; a share of what full replicas do is at most all of it."""
    calm = Slo(latency=(), deadlines=(Deadline(within_s=20.0),), error_rate_fraction=0.001)
    replicas = [toy.replica(slots=1)]
    found = plan(toy.question(replicas, [toy.price("h100_sxm", 2.0)], promise=calm, spare=0), surge(300))
    assert found.sustained_rate_per_s > found.saturated_rate_per_s
    assert found.promise_leaves_fraction == 1.0
    assert found.peak_to_saturated_ratio == pytest.approx(found.peak_rate_per_s / found.saturated_rate_per_s)
    assert found.peak_rate_per_s > found.saturated_rate_per_s
    (line,) = (line for line in utilization_lines(found) if "the promise leaves" in line)
    assert line.startswith("the promise leaves all of the ")
    assert line.endswith(" that a queue that never empties allows; more comes at the peak, and waits")


def test_what_no_load_broke_leaves_an_unknown_share(toy_world):
    found = plan(asked(), toy.trace(count=600, rate=20.0))
    open_ended = (replace(found.limits[0], at_least=True), *found.limits[1:])
    emptier = replace(found, limits=open_ended, sustained_rate_per_s=0.5 * found.saturated_rate_per_s)
    assert emptier.promise_leaves_fraction is None
    fuller = replace(found, limits=open_ended, sustained_rate_per_s=2.0 * found.saturated_rate_per_s)
    assert fuller.promise_leaves_fraction == 1.0


def test_a_pool_asked_for_more_than_it_does_is_full_and_no_fuller():
    window_s = (0.0, 10.0)
    found = filled(surge(), fleet(1, slots=1), toy.replay, carrying_count=1, window_s=window_s)
    assert found.peak_fraction == 1.0
    assert found.peak_to_saturated_ratio == pytest.approx(10.0 / found.saturated_rate_per_s)
    assert found.peak_to_saturated_ratio > 1.5
    assert waiting(found.peak_to_saturated_ratio).startswith(" (asked for ")
    assert waiting(1.0) == ""


@pytest.mark.parametrize("ttft_s", [2.0, 10.0])
def test_what_is_sustained_lasts_longer_than_the_peak_window(toy_world, ttft_s):
    """Of an even demand the window is any minute: the queue that begins there breaks the promise later."""
    count = 4000
    trace = replace(
        toy.trace(count=count), arrival_s=np.arange(count) * 0.1, output_tokens=np.full(count, 50, dtype=np.int32)
    )
    made = plan(asked(promise=toy.slo(ttft=ttft_s)), trace)
    assert made.sustained_rate_per_s <= made.saturated_rate_per_s * 1.05
    kept = [point.load_fraction for point in made.curve if point.kept]
    assert max(kept) * made.peak_rate_per_s <= made.saturated_rate_per_s * 1.05
