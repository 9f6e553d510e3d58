"""Layers with a window, told by hand: blocks of 4 tokens, a window of 10, steps of 10 ms that compute 8 tokens."""

from dataclasses import replace

import numpy as np
import pytest

from reference.fleets import engine, fleet, physics, trace
from tokenfleet import catalog, performance
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.replica import Deployment, Layout
from tokenfleet.simulator import replay

ALL, HALF = (0, 1, 10), (1, 1, 10)
"""Every layer has the window; as many layers keep everything."""


def windowed(windows, *, blocks=100, **settings):
    return physics(settings=engine(**({"max_batched_tokens": 8} | settings)), blocks=blocks, windows=windows)


def used(windows, requests, **settings) -> list[int]:
    """Blocks in use while each step runs."""
    replica = windowed(windows, **settings)
    seen = replay(trace(requests), fleet(replica), telemetry_interval_s=0.01).telemetry.kv_used_fraction[:, 0]
    return np.rint(seen * replica.kv_block_count).astype(int).tolist()


def test_a_prompt_holds_the_window_and_the_chunk_and_a_decode_the_window() -> None:
    """20 tokens in, chunks of 8, 8 and 4: the 4th token is the first that the 13th does not see."""
    held = used(ALL, [(0, 20, 12)])
    whole = used((1, 0, 0), [(0, 20, 12)])
    #      after chunk 2, chunk 3, then decodes of tokens 21, 22...; block k holds tokens 4k to 4k + 3
    assert whole[:11] == [4, 5, 6, 6, 6, 6, 7, 7, 7, 7, 8]
    behind = [max(0, computed - 9) // 4 for computed in (8, 16, 20, 21, 22, 23, 24, 25, 26, 27, 28)]
    assert held[:11] == [taken - given for taken, given in zip(whole[:11], behind, strict=True)]
    assert used(HALF, [(0, 20, 12)])[:11] == [a + b for a, b in zip(whole[:11], held[:11], strict=True)]


def test_with_async_scheduling_what_the_step_in_flight_reads_is_held() -> None:
    """The step that is fixed at 20 ms computes tokens 16 to 19 while the one of 8 to 15 runs."""
    later = used(ALL, [(0, 20, 12)], async_scheduling=True)
    assert later[1] == 5, "all but the block behind the window of token 8"
    assert max(later) == 5
    assert max(used(ALL, [(0, 20, 12)])) == 4


def test_a_window_lets_more_run_at_once_and_nobody_is_preempted() -> None:
    """Eight sequences of 60 tokens hold 15 blocks each, with the window 4 at most beside a chunk."""
    rows = [(0, 4, 56)] * 8
    plain = replay(trace(rows), fleet(windowed((1, 0, 0), blocks=40, max_batched_tokens=16)))
    window = replay(trace(rows), fleet(windowed(ALL, blocks=40, max_batched_tokens=16)))
    assert plain.preemption_count.sum() > 5
    assert window.preemption_count.sum() == 0
    assert window.finish_s.max() == pytest.approx(0.58), "three steps with prompts, 55 without"


def test_who_waits_for_blocks_comes_as_soon_as_a_window_gives_some_back() -> None:
    """In every fourth step the first holds 4 of 6 blocks, else 3; the second comes before such a step and needs 3."""
    run = replay(trace([(0, 8, 40), (85, 12, 1)]), fleet(windowed(ALL, blocks=6)))
    assert run.first_token_s[1] == pytest.approx(0.12), "two steps from 100 ms on"
    assert run.finish_s[0] == pytest.approx(0.4)


def test_no_request_is_too_long_for_windows() -> None:
    rows = trace([(0, 4000, 2)])
    assert replay(rows, fleet(windowed(ALL, blocks=6))).status.tolist() == [0]
    assert replay(rows, fleet(windowed(ALL, blocks=5))).status.tolist() == [1]
    assert replay(rows, fleet(windowed((1, 0, 0)))).status.tolist() == [1]


def test_physics_and_replay_name_the_same_bounds() -> None:
    replica = windowed(HALF, blocks=40)
    assert replica.kv_window_stretch_count == 6
    assert replica.sequence_blocks(30) == 8 + 4
    assert replica.longest_sequence_tokens == (40 - 6) * 4
    assert replica.kv_pool_tokens == 160
    longest = replica.longest_sequence_tokens
    assert replay(trace([(0, longest, 1)]), fleet(replica)).status.tolist() == [0]
    assert replay(trace([(0, longest + 1, 1)]), fleet(replica)).status.tolist() == [1]


@pytest.mark.parametrize("windows", [(2, 0, 0), (0, 2, 5), (0, 0, 0), (1, -1, 5), (1, 1, 0)])
def test_windows_that_make_no_sense_are_refused(windows) -> None:
    with pytest.raises(BadInput, match="kv_"):
        replay(trace([(0, 4, 2)]), fleet(windowed(windows)))


def test_a_long_prompt_of_mistral_holds_its_window_only() -> None:
    """20,000 tokens in, 2,000 out: the first version keeps 4,096 and what is in flight, the third everything."""
    gpu, held = catalog.gpu("h100_sxm"), {}
    for name in ("mistralai/Mistral-7B-v0.1", "mistralai/Mistral-7B-Instruct-v0.3"):
        assert catalog.model(name).max_context_tokens == 32_768, "more than its window"
        settings = replace(catalog.engine("vllm-0.32", gpu=gpu), context_limit_tokens=32_768)
        asked = Deployment(
            model=name, gpu=gpu.name, layout=Layout(), precision="bf16", kv_precision="bf16", engine=settings
        )
        replica = performance.replica_physics(catalog.model(name), gpu, asked)
        run = replay(trace([(0, 20_000, 2_000)]), fleet(replica), telemetry_interval_s=0.05)
        held[name] = np.rint(run.telemetry.kv_used_fraction[:, 0] * replica.kv_block_count)
        assert settings.max_batched_tokens == 8192
    first, third = held.values()
    assert third.max() == pytest.approx(22_000 / 16, abs=1)
    assert first.max() == 2 * 8192 / 16, "two chunks in flight, before anything is behind a window"
    assert set(first[len(first) // 2 : -2]) <= {4096 / 16, 4096 / 16 + 1}, "while it decodes"
