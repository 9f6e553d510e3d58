from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.replica import KvWindow
from tokenfleet.performance import memory_budget, sequences_at, smallest_fitting_layouts
from tokenfleet.performance.memory import kv_blocks
from unit.performance.shapes import (
    A100,
    A100_40,
    B200,
    DEEPSEEK_V3,
    ENCODER,
    GIB,
    GPT_OSS_120B,
    H100,
    H200,
    L40S,
    LLAMA_8B,
    LLAMA_70B,
    MIXTRAL,
    QWEN3_CODER_30B,
    QWEN_HYBRID_27B,
    RTX4090,
    STARCODER2_3B,
    deployment,
    engine,
)

MODELS = (
    LLAMA_8B,
    LLAMA_70B,
    MIXTRAL,
    QWEN3_CODER_30B,
    GPT_OSS_120B,
    DEEPSEEK_V3,
    QWEN_HYBRID_27B,
    STARCODER2_3B,
    ENCODER,
)
ENGINES = ("vllm-0.32", "vllm-0.16", "vllm-0.6", "sglang-0.5", "trtllm-1.2", "other-1.0")

cases = st.fixed_dictionaries(
    {
        "architecture": st.sampled_from(MODELS),
        "gpu": st.sampled_from((A100, A100_40, B200, H100, H200, L40S, RTX4090)),
        "tp": st.sampled_from((1, 2, 4, 8)),
        "precision": st.sampled_from(("bf16", "fp8", "int4", "fp4", "checkpoint")),
        "kv": st.sampled_from(("bf16", "fp8")),
        "name": st.sampled_from(ENGINES),
        "utilization": st.floats(0.5, 0.99),
        "tokens": st.sampled_from((512, 2048, 8192, 16384)),
    }
)


def asked(case, **changes):
    case = {**case, **changes}
    setup = engine(case["name"], memory_utilization_fraction=case["utilization"], max_batched_tokens=case["tokens"])
    return deployment(
        case["architecture"],
        case["gpu"],
        tp=case["tp"],
        precision=case["precision"],
        kv=case["kv"],
        settings=setup,
    )


def budget(case, **changes):
    return memory_budget(case["architecture"], case["gpu"], asked(case, **changes))


@given(cases)
@settings(max_examples=60, deadline=None)
def test_terms_add_up_to_the_total_when_it_fits(case):
    found = budget(case)
    assert all(size >= 0 for size in found.terms_bytes.values())
    assert found.kv_capacity_bytes == found.terms_bytes["kv_cache"]
    assert found.weights_bytes == found.terms_bytes["weights"]
    if found.fits:
        assert sum(found.terms_bytes.values()) == found.total_bytes
    else:
        assert found.reasons


@given(cases, st.integers(1, 200_000), st.integers(1, 200_000))
@settings(max_examples=60, deadline=None)
def test_more_context_never_more_sequences(case, one, other):
    found = budget(case)
    many, few = (sequences_at(found, asked(case), context) for context in sorted((one, other)))
    assert many >= few >= 0


@given(cases)
@settings(max_examples=50, deadline=None)
def test_more_ranks_never_more_weights_or_kv_on_a_gpu(case):
    narrow = budget(case, tp=1)
    for ranks in (2, 4, 8):
        wide = budget(case, tp=ranks)
        assert wide.weights_bytes <= narrow.weights_bytes
        assert wide.kv_bytes_per_token <= narrow.kv_bytes_per_token
        narrow = wide


@given(cases)
@settings(max_examples=50, deadline=None)
def test_fewer_bits_never_more_weights(case):
    sizes = [budget(case, precision=precision).weights_bytes for precision in ("bf16", "fp8", "fp4", "int4")]
    assert sizes[0] >= sizes[1] >= sizes[2] >= sizes[3]


@given(cases, st.floats(0.5, 0.99))
@settings(max_examples=50, deadline=None)
def test_a_larger_fraction_never_a_smaller_pool(case, utilization):
    lower, higher = sorted((case["utilization"], utilization))
    small, large = budget(case, utilization=lower), budget(case, utilization=higher)
    assert small.kv_capacity_bytes <= large.kv_capacity_bytes


def test_reserve_is_what_the_fraction_leaves_of_the_driver_total():
    found = memory_budget(LLAMA_8B, H100, deployment(LLAMA_8B, H100))
    assert found.terms_bytes["reserve"] == pytest.approx(0.08 * 79.2 * GIB, abs=2)


def test_what_does_not_fit_says_by_how_much():
    found = memory_budget(LLAMA_70B, H100, deployment(LLAMA_70B, H100))
    assert not found.fits
    assert found.reasons == ("Weights need 131.4 GiB of 79.2 GiB on each GPU",)
    assert sequences_at(found, deployment(LLAMA_70B, H100), 1) == 0


def test_a_pool_smaller_than_the_context_limit_does_not_fit():
    tight = deployment(LLAMA_8B, RTX4090, settings=engine(context_limit_tokens=131_072))
    found = memory_budget(LLAMA_8B, RTX4090, tight)
    assert not found.fits
    assert "131,072 tokens needs 16.00 GiB" in found.reasons[0]
    relaxed = memory_budget(LLAMA_8B, RTX4090, deployment(LLAMA_8B, RTX4090))
    assert relaxed.fits
    assert "the engine needs a context limit" in relaxed.reasons[0]


@pytest.mark.parametrize(("limit", "close"), [(20_000, False), (90_000, True), (100_000, True), (120_000, False)])
def test_near_the_line_is_too_close_to_call(limit, close):
    # The pool is about 11.6 GiB, 95,200 tokens.
    near = deployment(LLAMA_8B, RTX4090, precision="fp8", kv="bf16", settings=engine(context_limit_tokens=limit))
    found = memory_budget(LLAMA_8B, RTX4090, near)
    assert found.too_close_to_call == close
    assert any("Too close" in reason for reason in found.reasons) == close


def test_a_partial_architecture_is_refused_by_name():
    partial = replace(LLAMA_8B, feed_forward=(), vocab_size=None)
    with pytest.raises(BadInput, match="intermediate_size is unknown") as caught:
        memory_budget(partial, H100, deployment(partial, H100))
    assert len(caught.value.problems) == 2


def test_an_encoder_keeps_nothing():
    found = memory_budget(ENCODER, H100, asked_for := deployment(ENCODER, H100))
    assert found.fits
    assert found.kv_capacity_bytes == found.kv_bytes_per_token == found.kv_capacity_tokens == 0
    assert sequences_at(found, asked_for, 8192) == asked_for.engine.max_sequence_count
    blocks = kv_blocks(found)
    assert blocks.block_count >= asked_for.engine.max_sequence_count
    assert blocks.block_tokens >= ENCODER.max_context_tokens
    assert blocks.fixed_block_count == 0


def test_slots_cap_the_sequences():
    few = deployment(LLAMA_8B, H200, settings=engine(max_sequence_count=7))
    assert sequences_at(memory_budget(LLAMA_8B, H200, few), few, 100) == 7


def test_layers_with_windows_share_the_pool_in_whole_blocks():
    mixed = memory_budget(GPT_OSS_120B, H100, deployment(GPT_OSS_120B, H100, tp=2, precision="checkpoint"))
    blocks = kv_blocks(mixed)
    # 18 window layers of the same width as the 18 that keep everything.
    assert (blocks.growth_block_count, blocks.window_block_count, blocks.window_tokens) == (1, 1, 128)
    assert (blocks.block_tokens, blocks.fixed_block_count) == (16, 0)
    assert blocks.block_count == mixed.kv_capacity_bytes // (16 * mixed.kv_bytes_per_token)
    sliding = memory_budget(STARCODER2_3B, H100, deployment(STARCODER2_3B, H100))
    blocks = kv_blocks(sliding)
    assert (blocks.growth_block_count, blocks.window_block_count, blocks.window_tokens) == (0, 1, 4096)
    assert blocks.block_count == sliding.kv_capacity_bytes // (16 * sliding.kv_windows[0].bytes_per_token)


@pytest.mark.parametrize(
    ("growth", "windowed", "parts"), [(5, 26, (5, 26)), (2, 11, (2, 11)), (5725, 44788, (32, 251))]
)
def test_blocks_divide_both_kinds_of_layers_or_nearly(growth, windowed, parts):
    window = KvWindow(window_tokens=128, held_tokens=4096, bytes_per_token=windowed * 1000)
    found = memory_budget(LLAMA_8B, H200, deployment(LLAMA_8B, H200))
    found = replace(found, kv_bytes_per_token=growth * 1000, kv_windows=(window,), kv_capacity_bytes=10**9)
    blocks = kv_blocks(found)
    assert (blocks.growth_block_count, blocks.window_block_count) == parts
    assert blocks.growth_block_count * blocks.block_bytes == 16 * growth * 1000
    charged = blocks.window_block_count * blocks.block_bytes / (16 * windowed * 1000)
    assert 1 <= charged < 1.01
    assert blocks.block_count == int(10**9 / blocks.block_bytes)


def test_short_contexts_hold_less_than_a_window():
    found = memory_budget(STARCODER2_3B, H100, case := deployment(STARCODER2_3B, H100))
    measured = replace(found, kv_capacity_bytes=100 * 1024 * found.kv_windows[0].bytes_per_token)
    assert sequences_at(measured, case, 1024) == 100
    assert sequences_at(measured, case, 2048) == 50


def test_the_smallest_layout_that_fits_answers_for_each_gpu():
    answer = smallest_fitting_layouts(LLAMA_70B, (L40S, H100, H200, B200), deployment(LLAMA_70B, H100))
    assert [(gpu.name, layout.tensor_parallel) for gpu, layout in answer] == [
        ("l40s", 4),
        ("h100_sxm", 2),
        ("h200_sxm", 2),
        ("b200_sxm", 1),
    ]


def test_weights_of_an_uneven_expert_split_count_the_fullest_rank():
    odd = replace(
        MIXTRAL, feed_forward=(replace(MIXTRAL.feed_forward[0], expert_count=9, every_token_weight_count=9 * 4096),)
    )
    even = memory_budget(odd, H100, deployment(odd, H100, tp=4))
    whole = memory_budget(odd, H100, deployment(odd, H100, tp=4, ep=4))
    expert = 32 * 3 * 4096 * 14336 * 2
    assert whole.weights_bytes - even.weights_bytes == pytest.approx(expert * (3 - 9 / 4), abs=2)
