"""Promises to classes in a plan: sized by them, floors and contradictions class by class, the smallest relaxation."""

from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.app.infeasible_words import broken_promises
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.run import Status
from tokenfleet.domain.slo import Deadline, LatencyTarget, RateTarget, Slo, TrafficClass
from tokenfleet.planner import plan
from tokenfleet.planner.drilling import flooded_peak
from tokenfleet.planner.floors import floors, shapes, too_long_fraction
from tokenfleet.planner.promises import contradictions, unbounded_wait
from tokenfleet.planner.recovery import recovery
from tokenfleet.planner.replays import Replays, who_waits
from tokenfleet.planner.traffic import Traffic
from unit.planner import toy

LONG = TrafficClass(name="long", takes="prompts over 1,000 tokens")


def two_kinds(*, count=400, rate=10.0, share=0.1):
    """A tenth of the prompts is long, and of a class of its own."""
    plain = toy.trace(count=count, rate=rate)
    long = np.random.default_rng(3).random(count) < share
    inputs = np.where(long, 4000, 300).astype(np.int32)
    return replace(plain, input_tokens=inputs, class_bits=long.astype(np.int32), classes=("long",))


def clause(metric, quantile, limit_s, traffic_class=None):
    return LatencyTarget(metric=metric, quantile=quantile, limit_s=limit_s, traffic_class=traffic_class)


def promise(*latency, error=0.001, **rest):
    return Slo(latency=latency, error_rate_fraction=error, classes=(LONG,), **rest)


def carrying(trace, slo, **replica):
    asked = toy.question([toy.replica(slots=4, **replica)], [toy.price("h100_sxm", 2.0)], promise=slo)
    return plan(asked, trace)


def test_a_promise_to_a_class_sizes_the_fleet(toy_world):
    trace = two_kinds()
    loose = clause("ttft", 0.5, 30.0)
    usual = carrying(trace, promise(loose)).chosen
    strict = carrying(trace, promise(loose, clause("ttft", 0.99, 0.2, "long"))).chosen
    assert usual.carrying_count < strict.carrying_count
    told = {result.name: result for result in strict.slo}["ttft_p99 of long"]
    assert told.kept
    assert told.sample_count < 100


def test_a_class_outside_of_the_stretch_judged_says_nothing_there(toy_world):
    trace = two_kinds()
    nobody = replace(trace, class_bits=np.where(trace.arrival_s > trace.arrival_s[-2], trace.class_bits | 1, 0))
    found = carrying(nobody, promise(clause("ttft", 0.9, 5.0), clause("ttft", 0.9, 5.0, "long")))
    assert found.chosen is not None


def test_floors_are_those_of_the_class(toy_world):
    trace, replica = two_kinds(), toy.replica()
    slo = promise(clause("ttft", 0.5, 1.0), clause("ttft", 0.5, 0.05, "long"))
    (reason,) = floors(replica, shapes(trace, slo, caching=False), slo)
    assert reason.kind == "ttft_floor"
    assert reason.relax.startswith("ttft_p50 of long >= ")
    assert "4,000 tokens" in reason.text


def test_only_clauses_below_their_own_floor_are_said_to_be_kept_by_nobody(toy_world):
    slo = promise(clause("ttft", 0.5, 1.0), clause("ttft", 0.5, 0.05, "long"))
    made = plan(toy.question([toy.replica()], [toy.price("h100_sxm", 3.0)], promise=slo), two_kinds())
    assert made.chosen is None
    assert broken_promises(made) == "ttft_p50 of long = 50ms"


def test_a_class_may_have_fewer_errors_than_all(toy_world):
    trace = two_kinds()
    rate = RateTarget(kind="error_rate", limit_fraction=0.01, traffic_class="long")
    slo = promise(clause("ttft", 0.5, 9.0), error=0.5, class_rates=(rate,))
    small = toy.replica(block_count=100)
    found = shapes(trace, slo, caching=False)
    assert too_long_fraction(small, found) < 0.5
    assert too_long_fraction(small, found, "long") == 1.0
    (reason,) = floors(small, found, slo)
    assert "100.00% of requests of long" in reason.text


def test_a_deadline_too_soon_for_one_request_alone_is_a_floor(toy_world):
    trace = replace(two_kinds(), time_of_day_s=6 * 3600.0 - two_kinds().arrival_s[-1] - 0.01)
    slo = promise(clause("ttft", 0.5, 9.0), deadlines=(Deadline(at_s=6 * 3600.0, traffic_class="long"),))
    told = floors(toy.replica(), shapes(trace, slo, caching=False), slo)
    assert [reason.relax for reason in told] in ([], ["an earlier cut_off"])
    soon = promise(clause("ttft", 0.5, 9.0), deadlines=(Deadline(within_s=0.01, traffic_class="long"),))
    (reason,) = floors(toy.replica(), shapes(trace, soon, caching=False), soon)
    assert reason.text.startswith("done_within_0.01s of long: a request has 10 ms")


def test_nobody_can_names_the_class_and_its_quantile(toy_world):
    slo = promise(clause("ttft", 0.5, 9.0), clause("tpot", 0.9, 0.01003, "long"))
    found = carrying(two_kinds(), slo)
    assert found.chosen is None
    assert "tpot_p90 of long" in found.reasons[0].text
    assert found.reasons[0].relax.startswith("tpot_p90 of long >= ")
    looser = float(found.reasons[0].relax.split(" >= ")[1].split(" ")[0])
    again = carrying(two_kinds(), promise(clause("ttft", 0.5, 9.0), clause("tpot", 0.9, looser, "long")))
    assert again.chosen is not None


def test_contradictions_are_found_class_by_class():
    trace = replace(two_kinds(), output_tokens=np.full(400, 200, dtype=np.int32))
    fits = (clause("ttft", 0.99, 0.6), clause("e2e", 0.99, 4.0, "long"))
    assert contradictions(promise(*fits), trace) == ()
    broken = promise(*fits, clause("ttft", 0.99, 0.6, "long"), clause("tpot", 0.99, 0.04, "long"))
    found = contradictions(broken, trace)[0]
    assert found.text.startswith("ttft_p99 of long 600 ms + 199 x tpot_p99 of long 40 ms")


@pytest.mark.parametrize(("quantile", "implied"), [(0.9, True), (0.99, False)])
def test_what_all_are_promised_may_imply_what_a_class_is(quantile, implied):
    # 1 % of all may be late: of a class with a tenth of the requests a tenth.
    trace = two_kinds(count=2000, share=0.12)
    slo = promise(clause("ttft", 0.99, 1.0), clause("ttft", quantile, 2.0, "long"))
    assert bool(contradictions(slo, trace)) == implied


def test_the_time_to_be_done_may_imply_the_limit_of_the_last_token():
    slo = promise(clause("e2e", 0.99, 7200.0, "long"), deadlines=(Deadline(within_s=3600.0, traffic_class="long"),))
    (found,) = contradictions(slo, two_kinds())
    assert "e2e_p99 of long" in found.text
    assert "done_within_1h of long" in found.text


def test_who_is_outside_of_the_classes_may_wait_for_ever():
    slo = promise(clause("ttft", 0.99, 1.0, "long"))
    assert unbounded_wait(slo) is None
    assert "outside of long" in unbounded_wait(slo, two_kinds())
    everybody = replace(two_kinds(), class_bits=np.ones(400, dtype=np.int32))
    assert unbounded_wait(slo, everybody) is None


def test_recovery_is_that_of_the_class_that_is_late():
    trace = two_kinds(count=1000)
    record = toy.replay(trace, Fleet(groups=(ReplicaGroup(replica=toy.replica(), replica_count=4),)))
    shocked = (trace.class_bits == 1) & (trace.arrival_s < 40.0)
    late = np.where(shocked, 5.0, 0.0)
    slower = replace(record, first_token_s=record.first_token_s + late, finish_s=record.finish_s + late)
    assert recovery(slower, promise(clause("ttft", 0.5, 2.0)), 10.0, window_s=20.0).after_s == 0.0
    last_s = trace.arrival_s[np.flatnonzero(shocked)[-1]]
    found = recovery(slower, promise(clause("ttft", 0.99, 2.0, "long")), 10.0, window_s=20.0)
    assert found.after_s == pytest.approx(last_s - 10.0, abs=1.0)


def test_whoever_left_is_no_error_to_recover_from():
    trace = two_kinds(count=400)
    record = toy.replay(trace, Fleet(groups=(ReplicaGroup(replica=toy.replica(), replica_count=4),)))
    gone = np.arange(400) % 5 == 0
    for status, at_once in ((Status.CANCELLED, True), (Status.LOST, False)):
        left = replace(
            record,
            status=np.where(gone, status, record.status).astype(np.int8),
            first_token_s=np.where(gone, np.nan, record.first_token_s),
            finish_s=np.where(gone, np.nan, record.finish_s),
        )
        found = recovery(left, promise(clause("ttft", 0.5, 2.0)), 10.0, window_s=20.0)
        assert (found.after_s == 0.0) == at_once


def test_a_flooding_tenant_is_of_no_class():
    trace = two_kinds()
    flooded, others = flooded_peak(Traffic(trace, (10.0, 20.0)), 0.2)
    assert not flooded.trace.class_bits[~others].any()
    assert np.array_equal(flooded.trace.class_bits[others], trace.class_bits)


def test_what_a_person_looks_at_is_the_first_token_of_those_promised_one(toy_world):
    mine = promise(clause("ttft", 0.99, 2.0, "long"), clause("itl", 0.99, 0.5))
    assert who_waits(mine) == ("long",)
    assert who_waits(toy.slo()) == who_waits(promise()) == (None,)
    assert who_waits(promise(clause("e2e", 0.99, 20.0, "long"))) == ("long",)
    trace, replica = two_kinds(), toy.replica(slots=8)
    traffic = Traffic(trace, (0.0, trace.duration_s + 1.0))
    of_all = Replays(toy.slo(), "least_in_flight").verdict(traffic, replica, 1).seen
    of_long = Replays(mine, "least_in_flight").verdict(traffic, replica, 1).seen
    assert of_long.ttft_p50_s > of_all.ttft_p50_s
    assert of_long.itl_p99_s == of_all.itl_p99_s
    nobody = Traffic(replace(trace, class_bits=np.zeros_like(trace.class_bits)), traffic.window_s)
    assert Replays(mine, "least_in_flight").verdict(nobody, replica, 1).seen.ttft_p99_s is None
