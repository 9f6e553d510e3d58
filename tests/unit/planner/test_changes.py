"""What is offered where no fleet keeps a promise: each change, or several together, with which one does."""

from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.domain.plan import PlanQuestion
from tokenfleet.domain.slo import Deadline, LatencyTarget, Slo
from tokenfleet.domain.survival import Redundancy, Zone
from tokenfleet.planner import plan
from tokenfleet.planner.relax import _Reached
from unit.planner import toy

pytestmark = pytest.mark.usefixtures("toy_world")

PRICES = [toy.price("h100_sxm", 3.0)]
LAME = (Zone(name="a", weights=False), Zone(name="b"))


def question(**how: object) -> PlanQuestion:
    return toy.question([toy.replica(slots=16)], PRICES, **how)


def offers(asked: PlanQuestion, trace) -> list[str]:
    """What each reason offers, without the fleet."""
    made = plan(asked, trace)
    assert made.chosen is None
    (relax,) = {reason.relax for reason in made.reasons}
    return [offer.split(" (")[0] for offer in relax.split("   or   ") if offer]


def test_clauses_that_cannot_be_judged_are_left_out_together():
    silent = replace(toy.trace(), output_tokens=np.ones(400, dtype=np.int32))
    clauses = [LatencyTarget(metric=metric, quantile=0.99, limit_s=0.1) for metric in ("itl", "tpot")]
    wait = LatencyTarget(metric="ttft", quantile=0.99, limit_s=2.0)
    asked = question(promise=Slo(latency=(wait, *clauses), error_rate_fraction=0.001))
    assert offers(asked, silent) == ["leave itl_p99 and tpot_p99 out of the promise"]
    assert plan(replace(asked, slo=replace(asked.slo, latency=(wait,))), silent).chosen is not None


def test_a_missing_price_and_too_few_zones_are_mended_together():
    lost = replace(question(), prices=(), redundancy=Redundancy(zone_count=1, zones=LAME))
    assert offers(lost, toy.trace()) == ["give your own price for h100_sxm and weights and ingress in 2 zones"]
    assert offers(replace(lost, prices=tuple(PRICES)), toy.trace()) == [
        "weights and ingress in 2 zones",
        "redundancy: {zones: none}",
    ]
    assert offers(replace(lost, redundancy=Redundancy()), toy.trace()) == ["give your own price for h100_sxm"]


def test_room_is_offered_beside_weights_where_zones_hold_too_little_of_both():
    tight = tuple(replace(zone, gpu_limit_count=1) for zone in LAME)
    asked = replace(question(), redundancy=Redundancy(zone_count=1, zones=tight))
    able, none = offers(asked, toy.trace(rate=60.0))
    assert able.startswith("weights and ingress in 2 zones and gpu_limit: ")
    assert none.startswith("redundancy: {zones: none} and gpu_limit: ")
    limit = int(able.split("gpu_limit: ")[1].split(" ")[0])
    for count in (limit, limit - 1):
        wide = tuple(replace(zone, weights=True, gpu_limit_count=count) for zone in LAME)
        made = plan(replace(asked, redundancy=Redundancy(zone_count=1, zones=wide)), toy.trace(rate=60.0))
        assert (made.chosen is not None) == (count == limit)


def test_a_promise_is_loosened_beside_what_else_stands_in_the_way():
    asked = replace(question(promise=toy.slo(ttft=0.015)), redundancy=Redundancy(zone_count=1, zones=LAME))
    both, *_ = offers(asked, toy.trace())
    assert both.startswith("weights and ingress in 2 zones and ttft_p99 >= ")
    limit = float(both.split(" >= ")[1].split(" ")[0])
    able = Redundancy(zone_count=1, zones=tuple(replace(zone, weights=True) for zone in LAME))
    assert plan(replace(asked, slo=toy.slo(ttft=limit), redundancy=able), toy.trace()).chosen is not None
    assert plan(replace(asked, redundancy=able), toy.trace()).chosen is None


def test_requests_that_no_replica_holds_are_capped_as_far_as_one_does():
    small = toy.replica(slots=16, block_count=32)
    asked = toy.question([small], PRICES)
    offered = offers(asked, toy.trace())
    assert "cap prompt plus output at 512 tokens" in offered
    trace = toy.trace()
    shorter = replace(trace, input_tokens=np.minimum(trace.input_tokens, 512 - trace.output_tokens))
    assert plan(asked, shorter).chosen is not None


def test_prompts_that_no_step_takes_whole_are_to_be_cut():
    replica = toy.replica(slots=16, budget=512)
    engine = replace(replica.deployment.engine, name="trtllm-1.2", chunked_prefill=False)
    whole = replace(replica, deployment=replace(replica.deployment, engine=engine))
    trace = toy.trace(count=600, rate=40.0, inputs=400)
    inputs = trace.input_tokens.copy()
    inputs[:30] = 600
    longer = replace(trace, input_tokens=inputs)
    asked = toy.question([whole], PRICES)
    assert plan(asked, trace).chosen is not None
    made = plan(asked, longer)
    assert made.chosen is None
    assert made.reasons[0].text.startswith("5.00% of requests have prompts longer than the 512 tokens of a step")
    assert "engine: {chunked_prefill: true}" in offers(asked, longer)
    # Where some candidate cuts them, nothing stands in the way.
    assert plan(replace(asked, candidates=(whole, replica)), longer).chosen.replica == replica


def test_an_earlier_cut_off_is_named_by_its_clock():
    six_s = 6 * 3600.0
    trace = toy.trace()
    late = replace(trace, time_of_day_s=six_s - trace.duration_s - 0.01)
    promise = Slo(latency=(), error_rate_fraction=0.001, deadlines=(Deadline(at_s=six_s),))
    asked = question(promise=promise)
    assert offers(asked, late)[0] == "cut_off: 05:55"
    earlier = replace(promise, deadlines=(Deadline(at_s=six_s, cut_off_s=six_s - 300.0),))
    assert plan(replace(asked, slo=earlier), late).chosen is not None


def test_a_deadline_too_soon_names_the_fastest_and_the_seconds_it_needs():
    slow, fast = toy.replica(gpu="a100_sxm_80gb", step_ms=30.0), toy.replica()
    promise = Slo(latency=(), error_rate_fraction=0.001, deadlines=(Deadline(within_s=0.5),))
    asked = toy.question([slow, fast], [*PRICES, toy.price("a100_sxm_80gb", 1.0)], promise=promise)
    made = plan(asked, toy.trace())
    assert made.reasons[0].text.startswith("done_within_0.5s: a request has 500 ms")
    assert "the fastest candidate (1 x h100_sxm, bf16)" in made.reasons[0].text
    looser = offers(asked, toy.trace())[0]
    assert looser.startswith("done_within >= ")
    within_s = float(looser.split()[2])
    later = replace(promise, deadlines=(Deadline(within_s=within_s),))
    assert plan(replace(asked, slo=later), toy.trace()).chosen is not None


@pytest.mark.parametrize(
    ("within_s", "name"), [(5.0, "5s"), (90.0, "90s"), (300.0, "5min"), (14_400.0, "4h"), (5_400.0, "90min")]
)
def test_a_deadline_is_named_in_whole_units(within_s: float, name: str):
    assert Deadline(within_s=within_s).name == f"done_within_{name}"


def test_a_demand_without_dates_says_where_its_clock_begins():
    asked = question(promise=Slo(latency=(), error_rate_fraction=0.001, deadlines=(Deadline(at_s=6 * 3600.0),)))
    said = "its second 0 is taken for midnight, where done_by_06:00 goes by the clock."
    trace = toy.trace()
    assert any(line.endswith(said) for line in plan(asked, trace).assumptions)
    dated = replace(trace, time_of_day_s=3600.0)
    assert not any(said in line for line in plan(asked, dated).assumptions)


def test_a_share_of_errors_is_loosened_up_to_all_and_no_further():
    """Steps of 3 % from 99.5 % on would ask for 103 %: the last of them is all."""
    nearly = _Reached(0.995, 0.001, "fraction")
    assert [nearly.at(step) for step in (1, 0, -1, -8)] == [pytest.approx(0.97), 1.0, 1.0, 1.0]
    assert _Reached(0.995, 0.001, "s").at(-1) > 1.0
    # Nearly nobody is answered in time, whatever the fleet.
    long = replace(toy.trace(), input_tokens=np.where(np.arange(400) < 398, 30_000, 500).astype(np.int32))
    asked = toy.question(
        [toy.replica(slots=16, block_count=100)], PRICES, promise=Slo(latency=(), error_rate_fraction=0.001)
    )
    assert offers(asked, long)[0] == "error_rate >= 100 %"
