"""Pools behind each other where theory knows the answer: tandem queues, and the limits of prefill and decode apart."""

import numpy as np
import pytest
import scipy

from reference.fleets import engine, fleet, physics, step_time
from tokenfleet.domain.gpu import Link
from tokenfleet.domain.stages import Call, Handover, Pools
from tokenfleet.domain.trace import Trace
from tokenfleet.simulator import apart, replay, replay_stages

STEP_S = 0.001
RUNS, REQUESTS = 16, 12_000
AT_ONCE = Handover(
    link=Link(name="at once", line_bytes_per_s=1e30, efficiency_fraction=1.0, latency_s=0.0), first_token="prefill"
)


def server():
    """One sequence at a time, a step for each token: a single server whose service time is the output length."""
    rules = engine(max_batched_tokens=1, max_sequence_count=1)
    return fleet(physics(settings=rules, time=step_time(token_ps=[10**9, 10**9]), blocks=10_000_000))


def test_two_queues_in_a_row_are_two_queues() -> None:
    """Burke: what leaves M/M/1 is Poisson, so each queue of a tandem is M/M/1 on its own; steps round it to Geo/Geo/1.

    The mean stay of a discrete M/Geo/1 is Pollaczek and Khinchine's; the second queue's differs from it by less than
    its interval once a service takes many steps.
    """
    rate_per_s, mean_tokens = 25.0, 24.0
    stays = []
    for seed in range(RUNS):
        draw = np.random.default_rng(seed)
        lengths = draw.geometric(1.0 / mean_tokens, (2, REQUESTS)).astype(np.int32)
        rows = Trace(
            arrival_s=np.cumsum(draw.exponential(1.0 / rate_per_s, REQUESTS)),
            input_tokens=np.ones(REQUESTS, dtype=np.int32),
            output_tokens=lengths.sum(axis=0).astype(np.int32),
        )
        everybody = np.ones(REQUESTS, dtype=np.bool_)
        calls = tuple(
            Call(pool=name, takes=everybody, input_tokens=rows.input_tokens, output_tokens=tokens)
            for name, tokens in zip("ab", lengths, strict=True)
        )
        run = replay_stages(rows, Pools(fleets={"a": server(), "b": server()}, stages=calls))
        stays.append(float(run.record.e2e_s[REQUESTS // 10 :].mean()))
    half = scipy.stats.t.ppf(0.9995, RUNS - 1) * np.std(stays, ddof=1) / np.sqrt(RUNS)
    mean_s = mean_tokens * STEP_S
    square_s2 = (2.0 * mean_tokens**2 - mean_tokens) * STEP_S**2
    one_s = mean_s + rate_per_s * square_s2 / (2.0 * (1.0 - rate_per_s * mean_s))
    assert np.mean(stays) == pytest.approx(2.0 * one_s, abs=half + 0.02 * one_s)


def poisson(rate_per_s: float, inputs: int, outputs: int, count: int, seed: int = 7) -> Trace:
    draw = np.random.default_rng(seed)
    return Trace(
        arrival_s=np.cumsum(draw.exponential(1.0 / rate_per_s, count)),
        input_tokens=np.full(count, inputs, dtype=np.int32),
        output_tokens=np.full(count, outputs, dtype=np.int32),
    )


def test_where_steps_cost_the_same_whatever_is_in_them_apart_is_together() -> None:
    """With room for all and a link that takes no time, the two differ by a wait for the step under way, or two."""
    rules = engine(max_batched_tokens=8192, max_sequence_count=512)
    roomy = fleet(physics(settings=rules, time=step_time(tokens=8192), blocks=1_000_000))
    rows = poisson(5.0, 100, 40, 3000)
    run = replay_stages(rows, apart(rows, roomy, roomy, AT_ONCE))
    together = replay(rows, roomy)
    extra_s = run.record.e2e_s - together.e2e_s
    assert (np.abs(extra_s) <= 0.0201).all()
    assert run.record.tpot_s.mean() == pytest.approx(0.010, rel=0.05)


def test_prefill_apart_is_a_queue_with_equal_services() -> None:
    """M/D/1 of whole prompts: a budget of one prompt a step. Decode does not touch it, whatever its pool does."""
    rules = engine(max_batched_tokens=100, max_sequence_count=100)
    one = fleet(physics(settings=rules, time=step_time(tokens=100), blocks=1_000_000))
    waits = []
    for seed in range(RUNS):
        rows = poisson(70.0, 100, 20, REQUESTS, seed)
        run = replay_stages(rows, apart(rows, one, one, AT_ONCE))
        waits.append(float(run.record.ttft_s[REQUESTS // 10 :].mean()))
    half = scipy.stats.t.ppf(0.9995, RUNS - 1) * np.std(waits, ddof=1) / np.sqrt(RUNS)
    expected_s = 0.010 + 70.0 * 0.010**2 / (2.0 * (1.0 - 0.7))
    assert np.mean(waits) == pytest.approx(expected_s, abs=half)


def test_little_law_holds_in_each_pool() -> None:
    """Mean of those running and waiting is rate times stay, in the decode pool as in any queue."""
    rules = engine(max_batched_tokens=8192, max_sequence_count=512)
    roomy = fleet(physics(settings=rules, time=step_time(tokens=8192), blocks=1_000_000))
    rows = poisson(20.0, 100, 50, 6000)
    run = replay_stages(rows, apart(rows, roomy, roomy, AT_ONCE), telemetry_interval_s=0.0137)
    decode = run.pools["decode"].record
    gauges = decode.telemetry
    middle = (gauges.time_s > 30) & (gauges.time_s < 270)
    held = (gauges.running + gauges.waiting)[middle].mean()
    inside = (decode.arrival_s > 30) & (decode.arrival_s < 270)
    stay_s = decode.e2e_s[inside].mean()
    assert held == pytest.approx(inside.sum() / 240.0 * stay_s, rel=0.03)
