"""A closed loop in step space: conservation, Little's law, and timelines small enough to check by hand."""

from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.calibration.step_space import LoopSettings, StepKinds, closed_loop
from tokenfleet.calibration.step_walk import MIXED, PREFILL_FIRST, RESERVING

SETTINGS = LoopSettings(
    rule=MIXED,
    concurrency=8,
    request_count=80,
    input_low_tokens=80,
    input_high_tokens=100,
    output_low_tokens=40,
    output_high_tokens=50,
    max_sequence_count=256,
    max_batched_tokens=512,
    kv_tokens=1_000_000,
)


def seconds(kinds: StepKinds) -> float:
    return float((kinds.weight * (0.01 + 2e-5 * kinds.token_count + 1e-7 * kinds.context_tokens)).sum())


def one(**changes: object) -> LoopSettings:
    fixed = {"input_low_tokens": 10, "input_high_tokens": 10, "output_low_tokens": 4, "output_high_tokens": 4}
    return replace(SETTINGS, concurrency=1, request_count=1, **{**fixed, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", [MIXED, PREFILL_FIRST, RESERVING])
def test_tokens_are_conserved(rule: int) -> None:
    loop = closed_loop(replace(SETTINGS, rule=rule))
    total = loop.total
    tokens = float((total.weight * total.token_count).sum())
    generator = np.random.default_rng(20260101)
    inputs = generator.integers(80, 100, 80, endpoint=True)
    assert tokens == pytest.approx(inputs.sum() + loop.output_token_count - 80)


@pytest.mark.parametrize("rule", [MIXED, PREFILL_FIRST, RESERVING])
@pytest.mark.parametrize("kv_tokens", [1_000_000, 500])
def test_the_loop_keeps_littles_law(rule: int, kv_tokens: int) -> None:
    loop = closed_loop(replace(SETTINGS, rule=rule, request_count=800, kv_tokens=kv_tokens))
    mean_output = loop.output_token_count / loop.request_count
    latency = seconds(loop.ttft) + seconds(loop.tpot) * (mean_output - 1)
    in_flight = loop.request_count / seconds(loop.total) * latency
    assert in_flight == pytest.approx(8, rel=0.03)


def test_one_request_is_a_prefill_and_its_decodes() -> None:
    loop = closed_loop(one())
    assert loop.ttft.token_count.tolist() == [10]
    assert loop.ttft.pair_count.tolist() == [10 * 11 / 2]
    assert loop.ttft.weight.tolist() == [1]
    assert loop.total.weight.sum() == 4
    assert float((loop.tpot.weight * loop.tpot.token_count).sum()) == pytest.approx(1.0)
    assert float(loop.total.weight @ loop.total.context_tokens) == 12 + 13 + 14


def test_a_prompt_beyond_the_budget_takes_several_steps() -> None:
    loop = closed_loop(one(max_batched_tokens=4))
    assert loop.ttft.weight.sum() == 3
    whole = closed_loop(one(max_batched_tokens=4, rule=RESERVING))
    assert whole.ttft.weight.sum() == 1


def test_prefill_pauses_decode_and_the_pause_counts_in_tpot() -> None:
    paused = closed_loop(replace(SETTINGS, rule=PREFILL_FIRST))
    assert not np.any(paused.total.sequence_count[paused.total.prefill])
    assert paused.tpot.weight[paused.tpot.prefill].sum() > 0
    mixed = closed_loop(SETTINGS)
    assert np.any(mixed.total.sequence_count[mixed.total.prefill] > 0)


def test_scarce_memory_blocks_and_reserving_never_preempts() -> None:
    assert closed_loop(SETTINGS).blocked_fraction == 0
    scarce = {rule: closed_loop(replace(SETTINGS, rule=rule, kv_tokens=400)) for rule in (MIXED, RESERVING)}
    assert all(loop.blocked_fraction > 0.1 for loop in scarce.values())
    generator = np.random.default_rng(20260101)
    inputs = generator.integers(80, 100, 80, endpoint=True).sum()
    computed = {rule: float(loop.total.weight @ loop.total.token_count) for rule, loop in scarce.items()}
    assert computed[RESERVING] == pytest.approx(inputs + scarce[RESERVING].output_token_count - 80)
    assert computed[MIXED] > computed[RESERVING]


def test_a_rare_look_at_the_door_makes_arrivals_wait() -> None:
    often = closed_loop(replace(SETTINGS, rule=PREFILL_FIRST))
    rarely = closed_loop(replace(SETTINGS, rule=PREFILL_FIRST, poll_steps=20))
    assert seconds(rarely.ttft) > 1.5 * seconds(often.ttft)


def test_lag_delays_arrivals_by_a_step() -> None:
    plain, lagging = closed_loop(SETTINGS), closed_loop(replace(SETTINGS, lag_steps=1))
    assert lagging.ttft.weight.sum() > plain.ttft.weight.sum()


def test_ranks_share_sequences_but_one_prompt_stays_whole() -> None:
    shared = closed_loop(one(rank_count=4))
    alone = closed_loop(one())
    assert shared.ttft.token_count.tolist() == alone.ttft.token_count.tolist() == [10]
    assert shared.ttft.pair_count == pytest.approx(4 * alone.ttft.pair_count)
    many = closed_loop(replace(SETTINGS, rank_count=4))
    assert many.total.sequence_count.max() == pytest.approx(8)
