"""What any plan must obey, by replay of the real engine rules on small spaces."""

from dataclasses import replace

import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from tokenfleet import workload
from tokenfleet.planner import plan
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.traffic import Traffic
from unit.planner import toy

# A plan takes a tenth of a second: shrinking a failure would take minutes, its seed says enough.
LEAN = settings(deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate))
MOST = 64
"""Replicas beyond which a law does not look."""
GPUS = ("h100_sxm", "h200_sxm", "a100_sxm_80gb", "l40s")
PRICES = [toy.price(gpu, usd) for gpu, usd in zip(GPUS, (3.0, 6.0, 1.5, 0.9), strict=True)]

candidates = st.builds(
    toy.replica,
    gpu=st.sampled_from(GPUS),
    tensor_parallel=st.sampled_from([1, 2]),
    precision=st.sampled_from(["bf16", "fp8"]),
    step_ms=st.sampled_from([5.0, 12.0, 25.0]),
    token_us=st.sampled_from([10.0, 40.0]),
    slots=st.sampled_from([8, 32]),
    block_count=st.sampled_from([400, 4000]),
)
spaces = st.lists(candidates, min_size=1, max_size=4, unique_by=lambda one: one.deployment)
promises = st.builds(
    toy.slo,
    ttft=st.sampled_from([0.1, 0.3, 1.0, 3.0]),
    itl=st.sampled_from([0.03, 0.06, 0.2]),
    quantile=st.sampled_from([0.5, 0.9, 0.99]),
)
traces = st.builds(
    toy.trace,
    count=st.just(250),
    rate=st.sampled_from([5.0, 20.0, 60.0]),
    inputs=st.sampled_from([100, 600]),
    outputs=st.sampled_from([5, 40]),
    seed=st.integers(1, 50),
)


def cost(made):
    return made.chosen.price_usd_per_hour if made.chosen else float("inf")


@settings(LEAN, max_examples=8)
@given(space=spaces, more=candidates, promise=promises, trace=traces)
def test_one_more_candidate_never_makes_the_plan_dearer(space, more, promise, trace):
    space = [one for one in space if one.deployment != more.deployment]
    assume(space)
    few = plan(toy.question(space, PRICES, promise=promise), trace)
    many = plan(toy.question([*space, more], PRICES, promise=promise), trace)
    assert cost(many) <= cost(few)


@settings(LEAN, max_examples=8)
@given(space=spaces, promise=promises, trace=traces, factor=st.sampled_from([0.5, 0.8]))
def test_a_stricter_promise_is_never_cheaper(space, promise, trace, factor):
    stricter = replace(
        promise, latency=tuple(replace(target, limit_s=target.limit_s * factor) for target in promise.latency)
    )
    assert cost(plan(toy.question(space, PRICES, promise=stricter), trace)) >= cost(
        plan(toy.question(space, PRICES, promise=promise), trace)
    )


@settings(LEAN, max_examples=8)
@given(space=spaces, promise=promises, trace=traces)
def test_no_cheaper_fleet_keeps_the_promise_with_all_that_are_larger(space, promise, trace):
    """Fewer may keep it by luck, where one more breaks it again: a search ends at one of several such borders."""
    made = plan(toy.question(space, PRICES, promise=promise), trace)
    traffic = Traffic(trace, workload.peak_window(trace))
    replays = Replays(promise, "least_in_flight")
    usd = {price.gpu: price.price_usd_per_gpu_hour for price in PRICES}
    for replica in space:
        usd_per_replica = replica.deployment.layout.gpu_count * usd[replica.deployment.gpu]
        cheaper = [count for count in range(1, MOST + 1) if (count + 1) * usd_per_replica < cost(made) - 1e-9]
        larger = range(cheaper[-1], MOST + 1) if cheaper else ()
        assert not cheaper or any(not replays.verdict(traffic, replica, count).kept for count in larger)


@settings(LEAN, max_examples=8)
@given(space=spaces, promise=promises, trace=traces)
def test_what_is_planned_is_kept_and_one_fewer_is_not(space, promise, trace):
    made = plan(toy.question(space, PRICES, promise=promise), trace)
    if made.chosen is None:
        assert made.reasons
        return
    replays = Replays(promise, "least_in_flight")
    traffic = Traffic(trace, (made.peak_start_s, made.peak_end_s))
    count = made.chosen.carrying_count
    assert replays.verdict(traffic, made.chosen.replica, count).kept
    if count > 1:
        assert not replays.verdict(traffic, made.chosen.replica, count - 1).kept
    bill = made.bill
    assert (
        bill.input_usd_per_hour
        + bill.cached_usd_per_hour
        + bill.output_usd_per_hour
        + bill.headroom_usd_per_hour
        + bill.idle_usd_per_hour
        + bill.spare_usd_per_hour
    ) == bill.total_usd_per_hour
    assert bill.total_usd_per_hour == pytest.approx(made.chosen.price_usd_per_hour)
    assert made.sustained_rate_per_s is None or made.limits[0].used_fraction <= 1.0
