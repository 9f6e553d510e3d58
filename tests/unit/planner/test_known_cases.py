"""Questions people asked in public, with the answers that hold."""

from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.domain.slo import LatencyTarget, Slo
from tokenfleet.domain.trace import Trace
from tokenfleet.planner import plan
from tokenfleet.planner.floors import prefill_alone_s
from tokenfleet.planner.steps import largest_step
from unit.planner import toy

pytestmark = pytest.mark.usefixtures("toy_world")


def steady(rate, *, seconds, inputs, outputs):
    count = round(rate * seconds)
    return Trace(
        arrival_s=np.arange(count) / rate,
        input_tokens=np.full(count, inputs, dtype=np.int32),
        output_tokens=np.full(count, outputs, dtype=np.int32),
    )


def only(metric, limit_s):
    return Slo(latency=(LatencyTarget(metric=metric, quantile=0.99, limit_s=limit_s),), error_rate_fraction=0.0)


def test_two_full_replicas_are_not_one_and_a_spare():
    # One replica serves five requests a second within the promise; nine arrive, so two carry and a third may fail.
    one_at_a_time = toy.replica(slots=1, step_ms=10.0, token_us=0.0)
    took = prefill_alone_s(one_at_a_time, 100)
    outputs = 1 + round((0.2 - took) / 10e-3)
    made = plan(
        toy.question([one_at_a_time], [toy.price("h100_sxm", 3.0)], promise=only("ttft", 1.0)),
        steady(9.0, seconds=60, inputs=100, outputs=outputs),
    )
    assert (made.chosen.carrying_count, made.chosen.replica_count) == (2, 3)
    survivor = plan(
        toy.question([one_at_a_time], [toy.price("h100_sxm", 3.0)], promise=only("ttft", 1.0), spare=0),
        steady(9.0, seconds=60, inputs=100, outputs=outputs),
    )
    assert survivor.chosen.replica_count == 2


def test_replicas_do_not_help_a_prompt_that_is_slow_alone():
    # 1,050 ms of prefill against 1,000 ms promised, and next to no demand.
    slow = toy.replica(step_ms=1049.0, token_us=0.0, budget=4096)
    made = plan(
        toy.question([slow], [toy.price("h100_sxm", 3.0)], promise=only("ttft", 1.0)),
        steady(0.01, seconds=1000, inputs=2000, outputs=2),
    )
    assert made.chosen is None
    assert made.reasons[0].kind == "ttft_floor"
    assert "1.05 s" in made.reasons[0].text


@pytest.mark.parametrize(("limit_s", "low", "high"), [(0.1, 150, 240), (0.5, 1100, 1200)])
def test_a_chunk_must_fit_into_the_promised_gap(limit_s, low, high):
    # 2,400 prompt tokens a second and 36 ms for a decode step: chunks of 8,192 stall everyone for 3.4 s.
    replica = toy.replica(step_ms=36.0, token_us=1e6 / 2400, budget=8192)
    assert prefill_alone_s(replica, 8192) == pytest.approx(3.45, abs=0.05)
    assert low - 64 < largest_step(replica.step_time, limit_s) <= high


def test_two_cards_apart_beat_two_together_for_throughput():
    # Measured with 64 sequences: one card 1,035 tokens/s, two in parallel over PCIe 917; alone 46 and 60 tokens/s.
    apart, together = (
        toy.replica(gpu="rtx_3090", tensor_parallel=size, slots=64, step_ms=1e3 / alone, token_us=grow, context_ns=0.0)
        for size, alone, grow in (
            (1, 46.0, (64e6 / 1035 - 1e6 / 46) / 63),
            (2, 60.1, (64e6 / 917 - 1e6 / 60.1) / 63),
        )
    )
    trace = steady(3.5, seconds=120, inputs=128, outputs=512)
    question = toy.question([apart, together], [toy.price("rtx_3090", 0.3)], promise=only("ttft", 10.0), spare=0)
    made = plan(question, trace)
    assert (made.chosen.replica.deployment.layout.tensor_parallel, made.chosen.replica_count) == (1, 2)
    # A single stream that must be faster than one card can is what two together are for.
    alone = [
        replace(one, deployment=replace(one.deployment, engine=replace(one.deployment.engine, max_sequence_count=1)))
        for one in (apart, together)
    ]
    quick = replace(question, candidates=tuple(alone), slo=only("tpot", 0.02))
    made = plan(quick, steady(0.05, seconds=400, inputs=128, outputs=64))
    assert made.chosen.replica.deployment.layout.tensor_parallel == 2
    assert made.rejected[0].reasons[0].kind == "itl_floor"
