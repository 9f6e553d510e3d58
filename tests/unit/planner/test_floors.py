from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.domain.replica import Speculation
from tokenfleet.domain.slo import Deadline, LatencyTarget, Slo
from tokenfleet.domain.trace import PrefixTree, Trace
from tokenfleet.planner.floors import (
    decode_profile,
    decode_step_s,
    decode_token_s,
    floors,
    holds_too_few,
    latency_floor_s,
    pool_tokens,
    prefill_alone_s,
    sequences_in_step,
    shapes,
    takes_too_few,
)
from tokenfleet.planner.traffic import fresh_tokens
from unit.planner import toy


def trace(inputs, outputs, **more):
    return Trace(
        arrival_s=np.arange(len(inputs), dtype=float),
        input_tokens=np.array(inputs, dtype=np.int32),
        output_tokens=np.array(outputs, dtype=np.int32),
        **more,
    )


def promise(metric, limit_s, quantile=0.99, errors=0.0):
    target = LatencyTarget(metric=metric, quantile=quantile, limit_s=limit_s)
    return Slo(latency=(target,), error_rate_fraction=errors)


def test_prefill_is_the_sum_of_its_chunks_and_the_front_end():
    replica = toy.replica(step_ms=10.0, token_us=20.0, budget=100)
    chunk_s = 10e-3 + 99 * 20e-6
    pairs_s = (250 * 251 // 2) * 1e-12
    expected = 1e-3 + 2 * chunk_s + (10e-3 + 49 * 20e-6) + pairs_s
    assert prefill_alone_s(replica, 250) == pytest.approx(expected, rel=1e-12)


def test_launches_bound_a_short_prefill_from_below():
    replica = toy.replica(step_ms=1.0, token_us=0.0)
    slow = replace(replica, step_time=replace(replica.step_time, eager_ps=30_000_000_000))
    assert prefill_alone_s(slow, 10) == pytest.approx(1e-3 + (1e-3**4 + 30e-3**4) ** 0.25, rel=1e-6)


def test_context_costs_a_decode_step_and_a_window_bounds_it():
    replica = toy.replica(step_ms=10.0, token_us=100.0, context_ns=2.0)
    assert decode_step_s(replica, 3, 1000) == pytest.approx(10e-3 + 2 * 100e-6 + 3 * 1000 * 2e-9)
    windowed = replace(replica, step_time=replace(replica.step_time, context_ps=0, window_ps=2000, window_tokens=100))
    assert decode_step_s(windowed, 3, 1000) == pytest.approx(10e-3 + 2 * 100e-6 + 3 * 100 * 2e-9)


def test_drafts_make_tokens_cheaper_than_steps_and_no_bound_tighter_than_luck():
    plain = toy.replica(step_ms=10.0, token_us=100.0)
    engine = replace(
        plain.deployment.engine,
        speculation=Speculation(draft_token_count=3, acceptance_fraction=0.5),
        max_sequence_count=8,
    )
    model = replace(plain.step_time, draft_ps=np.full(len(plain.step_time.token_ps) // 4 + 1, 2_000_000_000))
    drafting = replace(plain, deployment=replace(plain.deployment, engine=engine), step_time=model)
    step_s = decode_step_s(drafting, 2, 0)
    assert step_s == pytest.approx(10e-3 + 7 * 100e-6 + 2e-3)
    assert decode_token_s(drafting, 2, 0) == pytest.approx(step_s / (1 + 0.5 + 0.25 + 0.125))
    assert sequences_in_step(drafting) == 8
    found = {
        metric: latency_floor_s(drafting, shapes(trace([10], [101]), promise(metric, 1.0), caching=False), target)
        for metric in ("itl", "tpot", "e2e")
        for target in promise(metric, 1.0).latency
    }
    assert found["tpot"] == pytest.approx(found["itl"] / 4)
    assert found["e2e"] == pytest.approx(100 * decode_step_s(drafting, 1, 0) / 4)
    assert len(decode_profile(drafting)) == len(decode_profile(plain))


def test_a_ttft_nobody_can_keep_says_so_with_numbers():
    replica = toy.replica(step_ms=10.0, token_us=100.0, budget=8192, band=1.5)
    slo = promise("ttft", 0.3)
    (reason,) = floors(replica, shapes(trace([7303] * 100, [10] * 100), slo, caching=False), slo)
    assert reason.kind == "ttft_floor"
    assert reason.text == (
        "Prefill of the p99 input (7,303 tokens) alone takes 741 ms (494 ms to 1.11 s) on 1 x h100_sxm, bf16."
    )
    assert reason.relax == "ttft_p99 >= 741 ms, more under load"


def test_the_quantile_decides_whose_prompt_counts():
    slo = promise("ttft", 0.3, quantile=0.9)
    found = shapes(trace([100] * 90 + [9000] * 10, [1] * 100), slo, caching=False)
    assert found.fresh_input_tokens == {"ttft_p90": 100}


def test_itl_floor_weighs_contexts_by_their_gaps():
    slo = promise("itl", 0.1, quantile=0.5)
    found = shapes(trace([100, 5000], [101, 11]), slo, caching=False)
    assert found.context_tokens == {"itl_p50": 100}
    found = shapes(trace([100, 5000], [11, 101]), slo, caching=False)
    assert found.context_tokens == {"itl_p50": 5000}


def test_a_promise_about_nothing_is_found():
    slo = promise("itl", 0.1)
    (reason,) = floors(toy.replica(), shapes(trace([10, 20], [1, 0]), slo, caching=False), slo)
    assert reason.kind == "no_samples"
    assert "itl_p99" in reason.relax


def test_e2e_floor_is_the_larger_of_its_parts():
    replica = toy.replica(step_ms=10.0, token_us=0.0)
    slo = promise("e2e", 0.5)
    found = shapes(trace([10] * 10, [101] * 10), slo, caching=False)
    assert latency_floor_s(replica, found, slo.latency[0]) == pytest.approx(100 * 10e-3)


def test_requests_longer_than_the_pool_count_as_errors():
    replica = toy.replica(block_count=100)
    assert pool_tokens(replica) == 1600
    made = trace([1500] * 98 + [1500, 3000], [101] * 98 + [102, 10])
    slo = promise("ttft", 10.0, errors=0.01)
    (reason,) = floors(replica, shapes(made, slo, caching=False), slo)
    assert reason.kind == "context"
    assert "2.00% of requests" in reason.text
    assert "3,009 tokens" in reason.text
    assert reason.relax == "cap prompt plus output at 1,600 tokens (workload.max_request: 1600)"
    # Whoever has no first token is late: a p99 bears a hundredth of them, whatever errors are allowed.
    bears = replace(slo, error_rate_fraction=0.02)
    (reason,) = floors(replica, shapes(made, bears, caching=False), bears)
    assert reason.text.endswith("the longest has 3,009 tokens); ttft_p99 bears 1.00% without an answer.")
    slower = promise("ttft", 10.0, quantile=0.98, errors=0.02)
    assert floors(replica, shapes(made, slower, caching=False), slower) == ()


def test_requests_longer_than_the_pool_count_in_the_peak_window_too():
    replica = toy.replica(block_count=100)
    made = trace([1000] * 90 + [1500, 3000] + [1000] * 8, [101] * 90 + [101] * 10)
    window_s = float(made.arrival_s[80]), float(made.arrival_s[95]) + 1e-6
    slo = promise("ttft", 10.0, quantile=0.5, errors=0.02)
    assert floors(replica, shapes(made, slo, caching=False), slo) == ()
    found = shapes(made, slo, caching=False, window_s=window_s)
    (reason,) = floors(replica, found, slo)
    assert reason.text.startswith("6.25% of requests in the peak window are longer than the 1,600 tokens")
    assert holds_too_few(replica, found, slo)
    assert not holds_too_few(replica, found, replace(slo, error_rate_fraction=0.0625))


def uncut(replica, name):
    engine = replace(replica.deployment.engine, name=name, chunked_prefill=False)
    return replace(replica, deployment=replace(replica.deployment, engine=engine))


def test_prompts_that_no_step_takes_whole_count_as_errors():
    cut = toy.replica(block_count=1000, budget=2000)
    made = trace([1500] * 98 + [2000, 2001], [600] * 100)
    slo = promise("ttft", 100.0, quantile=0.5, errors=0.005)
    found = shapes(made, slo, caching=False)
    assert floors(cut, found, slo) == ()
    # TensorRT-LLM never computes an output again, so its prompts alone must fit.
    (reason,) = floors(uncut(cut, "trtllm-1.2"), found, slo)
    assert reason.kind == "context"
    assert reason.text.startswith("1.00% of requests have prompts longer than the 2,000 tokens of a step")
    assert "the longest has 2,001 tokens" in reason.text
    assert reason.relax == "engine: {chunked_prefill: true}, or cap input at 2,000 tokens (workload.max_input: 2000)"
    assert takes_too_few(uncut(cut, "trtllm-1.2"), found, slo)
    assert not takes_too_few(uncut(cut, "trtllm-1.2"), found, replace(slo, error_rate_fraction=0.01))
    # SGLang may have to: prompt and output.
    assert pool_tokens(uncut(cut, "sglang-0.5")) == 2000
    (reason,) = floors(uncut(cut, "sglang-0.5"), found, slo)
    assert reason.text.startswith("100.00% of requests are longer than the 2,000 tokens that one replica holds")


def test_a_context_limit_is_shorter_than_the_pool():
    replica = toy.replica(block_count=100)
    engine = replace(replica.deployment.engine, context_limit_tokens=512)
    limited = replace(replica, deployment=replace(replica.deployment, engine=engine))
    assert pool_tokens(limited) == 512


def test_cached_prefixes_are_not_prefilled_but_the_last_token_is():
    tree = PrefixTree(parent=np.array([-1, 0], dtype=np.int32), token_count=np.array([100, 50], dtype=np.int32))
    nodes = np.array([0, 1, 1, -1], dtype=np.int32)
    made = trace([400, 150, 150, 90], [1, 1, 1, 1], prefix_node=nodes, prefixes=tree)
    # The first brings the root, the second the run below it, the third finds both.
    assert fresh_tokens(made, caching=True).tolist() == [400, 50, 1, 90]
    assert fresh_tokens(made, caching=False).tolist() == [400, 150, 150, 90]


def test_a_deadline_of_a_class_that_nobody_here_is_in_says_nothing():
    trace = replace(toy.trace(count=5), classes=("nightly",), class_bits=np.zeros(5, dtype=np.uint32))
    promise = replace(toy.slo(), deadlines=(Deadline(within_s=0.001, traffic_class="nightly"),))
    found = shapes(trace, promise, caching=False)
    assert found.most_urgent == {promise.deadlines[0].name: None}
    assert floors(toy.replica(), found, promise) == ()
    everybody = replace(trace, class_bits=np.ones(5, dtype=np.uint32))
    (reason,) = floors(toy.replica(), shapes(everybody, promise, caching=False), promise)
    assert "of nightly" in reason.text
