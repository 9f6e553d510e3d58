from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.domain.slo import LatencyTarget, Slo
from tokenfleet.planner import plan, plan_document
from tokenfleet.planner.assumed import assumptions
from tokenfleet.planner.promises import contradictions, unbounded_wait
from tokenfleet.planner.traffic import Traffic
from tokenfleet.workload import profile
from unit.planner import toy


def promise(**limits):
    latency = []
    for name, limit_s in limits.items():
        metric, _, percent = name.partition("_p")
        latency.append(LatencyTarget(metric=metric, quantile=float(percent) / 100, limit_s=limit_s))
    return Slo(latency=tuple(latency), error_rate_fraction=0.001)


def outputs(count):
    trace = toy.trace(count=100)
    return replace(trace, output_tokens=np.full(100, count, dtype=np.int32))


def test_ttft_and_gaps_that_cannot_fit_the_whole():
    (found,) = contradictions(promise(ttft_p99=0.6, tpot_p99=0.04, e2e_p99=4.0), outputs(200))
    assert found.kind == "contradiction"
    assert "600 ms + 199 x tpot_p99 40 ms" in found.text
    assert "8.56 s" in found.text
    assert found.relax == "e2e_p99 >= 8.56 s, or tpot_p99 <= 17.1 ms"


@pytest.mark.parametrize(
    "fits",
    [
        {"ttft_p99": 0.6, "tpot_p99": 0.04, "e2e_p99": 8.56},
        {"ttft_p50": 0.6, "tpot_p99": 0.04, "e2e_p99": 4.0},
        {"tpot_p99": 0.04, "e2e_p99": 4.0},
        {"ttft_p50": 0.5, "ttft_p99": 2.0},
    ],
    ids=str,
)
def test_what_fits_or_speaks_of_other_requests_is_no_contradiction(fits):
    assert contradictions(promise(**fits), outputs(200)) == ()


def test_the_tail_may_not_fit_where_the_mean_does():
    trace = outputs(50)
    trace.output_tokens[:5] = 1000
    (found,) = contradictions(promise(ttft_p99=1.0, itl_p99=0.04, e2e_p99=10.0), trace)
    assert "the p99 output is 1,000 tokens" in found.text


@pytest.mark.parametrize(
    ("clauses", "idle"),
    [({"ttft_p50": 2.0, "ttft_p99": 1.0}, "ttft_p50"), ({"ttft_p99": 20.0, "e2e_p99": 10.0}, "ttft_p99")],
)
def test_a_clause_that_another_implies(clauses, idle):
    (found,) = contradictions(promise(**clauses), outputs(2))
    assert found.text.startswith(idle)
    assert "says nothing" in found.text


def test_a_promise_that_lets_requests_wait_for_ever():
    assert "endless queue" in unbounded_wait(promise(tpot_p99=0.05, itl_p99=0.05))
    assert unbounded_wait(promise(tpot_p99=0.05, e2e_p99=9.0)) is None


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_trace_of_a_few_requests_has_a_plan_without_nan(toy_world, count):
    trace = toy.trace(count=count)
    asked = replace(toy.question([toy.replica(slots=16)], [toy.price("h100_sxm", 3.0)]), slo=promise(itl_p99=0.1))
    made = plan(asked, trace)
    document = plan_document(made, profile(trace), {})
    assert document["workload"]["interarrival_cv"] is None or count > 2
    assert document["feasible"]
    assert any("a p99 is the slowest of them" in line for line in made.assumptions)
    assert any("endless queue" in line for line in made.assumptions)
    assert sum(line.startswith("Work in the bill") for line in made.assumptions) == 1
    loads = [point.load_fraction for point in made.curve]
    assert 1.0 in loads


def test_the_plan_carries_the_warning_whether_or_not_there_is_a_fleet(toy_world):
    odd = promise(ttft_p99=0.6, tpot_p99=0.04, e2e_p99=1.0)
    asked = toy.question([toy.replica(slots=16)], [toy.price("h100_sxm", 3.0)], promise=odd)
    for made in (plan(asked, toy.trace(outputs=50)), plan(replace(asked, prices=()), toy.trace(outputs=50))):
        (told,) = plan_document(made, profile(toy.trace()), {})["warnings"]
        assert told["kind"] == "contradiction"


@pytest.mark.parametrize(("usd", "side"), [(1.5, "below"), (9.0, "above"), (3.0, None)])
def test_a_reference_outside_of_the_offers_says_so(usd, side):
    price = replace(
        toy.price("h100_sxm", usd, evidence="reference"), low_usd_per_gpu_hour=2.0, high_usd_per_gpu_hour=4.0
    )
    trace = toy.trace()
    asked = toy.question([toy.replica(slots=16)], [price])
    from tokenfleet.domain.plan import Sized

    sized = Sized(
        replica=asked.candidates[0],
        carrying_count=1,
        spare_count=1,
        price=price,
        price_low_usd_per_gpu_hour=2.0,
        price_high_usd_per_gpu_hour=4.0,
        slo=(),
    )
    traffic = Traffic(trace, (0.0, 10.0))
    text = " ".join(assumptions(asked, traffic, traffic, sized))
    assert (f"{side} every offer found" in text) if side else ("every offer found" not in text)
