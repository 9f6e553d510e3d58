"""Memory questions that people really asked, with the right answers. The names are those of the case collection."""

from dataclasses import replace

import pytest

from tokenfleet.domain.model import CheckpointQuantization
from tokenfleet.domain.replica import Layout
from tokenfleet.performance import kv_bytes_per_token, memory_budget, sequences_at
from tokenfleet.performance.kv import held_tokens
from tokenfleet.performance.memory import kv_blocks
from tokenfleet.performance.shard import weight_groups
from unit.performance.shapes import (
    A100,
    A100_40,
    B200,
    DEEPSEEK_V3,
    DEEPSEEK_V4_FLASH,
    GIB,
    GPT_OSS_120B,
    H100,
    LLAMA2_70B,
    LLAMA_8B,
    LLAMA_70B,
    LLAMA_405B_FP8,
    MIXTRAL,
    QWEN3_32B,
    QWEN3_CODER_30B,
    QWEN_7B,
    QWEN_14B,
    QWEN_HYBRID_27B,
    RTX3090,
    RTX4090,
    STARCODER2_3B,
    YI_34B,
    dense,
    deployment,
    engine,
)


def test_s01_kv_of_a_user_is_not_the_paper_formula():
    per_token = kv_bytes_per_token(QWEN_7B, Layout(), "bf16")
    assert per_token == 57_344
    per_user = per_token * 3072
    assert per_user / GIB == pytest.approx(0.164, rel=0.02)
    for total_gb, users in ((13.0, 20), (18.1, 50)):
        assert 5 + (total_gb - 10.6) * 1e9 / per_user == pytest.approx(users, abs=3)


def test_s03_20k_fits_29k_does_not_35k_fits_again():
    # That engine profiled one prompt of the whole context limit, and above 32k chunks of 512 tokens. The third peak,
    # 0.06 GiB, has no room for the sampling of many sequences.
    verdicts = {}
    pools = {}
    for limit, budget_tokens, slots in ((20_000, 20_000, 256), (29_000, 29_000, 256), (35_000, 512, 8)):
        settings = engine(
            "vllm-0.6",
            max_batched_tokens=budget_tokens,
            max_sequence_count=slots,
            memory_utilization_fraction=0.9,
            context_limit_tokens=limit,
        )
        budget = memory_budget(LLAMA_8B, RTX3090, deployment(LLAMA_8B, RTX3090, settings=settings))
        verdicts[limit], pools[limit] = budget.fits, budget.kv_capacity_tokens
    assert verdicts == {20_000: True, 29_000: False, 35_000: True}
    assert pools[20_000] == pytest.approx(31_232, rel=0.02)
    assert pools[29_000] == pytest.approx(23_648, rel=0.02)
    assert pools[35_000] == pytest.approx(47_700, rel=0.02)


def test_s03_measured_peaks_give_the_printed_pools():
    per_token = kv_bytes_per_token(LLAMA_8B, Layout(), "bf16")
    for peak_gib, tokens in ((17.06, 31_232), (17.98, 23_648), (15.05, 47_700)):
        pool = (0.9 * 23.58 - peak_gib - 0.35) * GIB
        assert pool // per_token // 16 * 16 == pytest.approx(tokens, rel=0.02)


def test_s04_fp8_checkpoint_keeps_attention_in_16_bit():
    asked = deployment(LLAMA_405B_FP8, H100, tp=8, precision="checkpoint")
    budget = memory_budget(LLAMA_405B_FP8, H100, asked)
    assert budget.weights_bytes * 8 / 1e9 == pytest.approx(496, rel=0.05)
    assert budget.kv_bytes_per_token == 64_512
    measured = replace(budget, kv_capacity_bytes=round(4.77 * GIB))
    assert sequences_at(measured, asked, 79_300) == 1
    assert sequences_at(measured, asked, 131_072) == 0
    halved = replace(measured, kv_bytes_per_token=kv_bytes_per_token(LLAMA_405B_FP8, asked.layout, "fp8"))
    assert sequences_at(halved, asked, 131_072) == 1


def test_s06_the_smallest_rank_sets_the_pool():
    settings = engine("vllm-0.7", memory_utilization_fraction=0.98, context_limit_tokens=131_072)
    asked = deployment(QWEN_14B, RTX4090, tp=2, settings=settings)
    budget = memory_budget(QWEN_14B, RTX4090, asked)
    assert budget.kv_bytes_per_token == 98_304
    assert budget.weights_bytes / GIB == pytest.approx(13.95, rel=0.02)
    assert not budget.fits
    assert any("12.00 GiB" in reason for reason in budget.reasons)
    pools = (round(8.69 * GIB), round(7.465 * GIB))
    assert min(pools) // (98_304 * 16) * 16 == pytest.approx(81_536, abs=16)


def test_s07_preallocated_sequences_of_a_70b_on_40_gb_cards():
    per_token = kv_bytes_per_token(LLAMA2_70B, Layout(), "bf16")
    assert 48 * 4096 * per_token / GIB == 60
    assert 12 * 4096 * per_token / GIB == 15
    asked = deployment(LLAMA2_70B, A100_40, tp=4, settings=engine("vllm-0.7", max_batched_tokens=4096))
    budget = memory_budget(LLAMA2_70B, A100_40, asked)
    assert sequences_at(budget, asked, 4096) < 48
    assert budget.too_close_to_call


def test_s09_kv_tokens_cap_the_requests_in_flight():
    budget = memory_budget(QWEN_7B, RTX3090, asked := deployment(QWEN_7B, RTX3090))
    measured = replace(budget, kv_capacity_bytes=77_088 * budget.kv_bytes_per_token)
    assert 66 <= sequences_at(measured, asked, 1050) <= 77


def test_s12_bytes_per_token_follow_the_recipe():
    everything = replace(GPT_OSS_120B.quantization, quantized_parts=("attention", "feed_forward", "experts", "head"))
    for quantization, expected_gb in ((everything, 2.72), (GPT_OSS_120B.quantization, 4.97)):
        architecture = replace(GPT_OSS_120B, quantization=quantization)
        groups = weight_groups(architecture, B200, Layout(), "checkpoint")
        read = sum(
            group.stored_bytes * (1 - group.miss_fraction)
            for group in groups
            if group.streamed and group.name not in {"router", "norms"}
        )
        assert read / 1e9 == pytest.approx(expected_gb, rel=0.03)


def test_m01_head_size_is_stated_not_derived():
    assert kv_bytes_per_token(QWEN3_32B, Layout(), "bf16") == 262_144


def test_m03_latent_attention_keeps_one_latent():
    assert kv_bytes_per_token(DEEPSEEK_V3, Layout(), "bf16") == 70_272
    assert kv_bytes_per_token(DEEPSEEK_V3, Layout(), "fp8") == 35_136


def test_m04_data_parallel_attention_multiplies_a_latent_cache():
    flash = DEEPSEEK_V4_FLASH
    settings = engine(memory_utilization_fraction=0.95)
    layouts = {"tp": 8}, {"dp": 8}
    asked = [
        deployment(flash, B200, ep=8, precision="checkpoint", kv="fp8", settings=settings, **ranks) for ranks in layouts
    ]
    tensor, data = (memory_budget(flash, B200, each).kv_capacity_tokens for each in asked)
    assert 7.0 <= data / tensor <= 8.0
    assert kv_bytes_per_token(flash, asked[0].layout, "fp8") == kv_bytes_per_token(flash, asked[1].layout, "fp8")


def test_m06_a_stage_stores_its_own_layers_only():
    per_token = kv_bytes_per_token(QWEN3_CODER_30B, Layout(pipeline_parallel=2), "bf16", stage_layer_count=16)
    assert per_token == 32_768
    assert 262_144 * per_token / GIB == 8.0
    assert 3.18 * GIB / per_token == pytest.approx(104_200, rel=0.02)


def test_m07_a_window_holds_a_chunk_of_prefill_too():
    settings = engine(max_batched_tokens=8192, context_limit_tokens=16_384)
    assert held_tokens(STARCODER2_3B.attention[0], settings, 16_384) == 12_304
    asked = deployment(STARCODER2_3B, H100, settings=settings)
    budget = memory_budget(STARCODER2_3B, H100, asked)
    per_token = budget.kv_windows[0].bytes_per_token
    assert budget.kv_fixed_bytes_per_sequence == 12_304 * per_token
    measured = replace(budget, kv_capacity_bytes=2_198_512 * per_token)
    assert measured.kv_capacity_bytes / measured.kv_fixed_bytes_per_sequence == pytest.approx(178.68, abs=0.005)
    # 178 is what the engine vouches for; while one computes a chunk, the others hold their window alone.
    assert sequences_at(measured, asked, 16_384) == (2_198_512 - 8192) // (4096 + 16)


def test_m09_hybrid_models_take_blocks_of_one_state():
    settings = engine(context_limit_tokens=262_144)
    asked = deployment(QWEN_HYBRID_27B, RTX3090, tp=2, precision="fp8", kv="fp8", settings=settings)
    budget = memory_budget(QWEN_HYBRID_27B, RTX3090, asked)
    assert 2 * budget.kv_bytes_per_token == 32_768
    assert budget.kv_block_tokens == 1568
    measured = replace(budget, fits=True, kv_capacity_bytes=round(9.98 * GIB / 2))
    blocks = kv_blocks(measured)
    assert (blocks.block_count, blocks.block_tokens, blocks.fixed_block_count) == (208, 1568, 6)
    assert blocks.block_count / (168 + blocks.fixed_block_count) == pytest.approx(1.195, rel=0.02)
    assert sequences_at(measured, asked, 262_144) == 1


def test_m11_graphs_outside_the_fraction_make_it_unsafe():
    settings = engine("vllm-0.5", memory_utilization_fraction=0.9, max_batched_tokens=4096)
    budget = memory_budget(YI_34B, RTX4090, deployment(YI_34B, RTX4090, tp=4, settings=settings))
    assert 500 <= budget.terms_bytes["cuda_graphs"] / 2**20 <= 3500
    assert budget.too_close_to_call
    newer = replace(settings, name="vllm-0.24")
    inside = memory_budget(YI_34B, RTX4090, deployment(YI_34B, RTX4090, tp=4, settings=newer))
    assert inside.terms_bytes["reserve"] > budget.terms_bytes["reserve"]


def test_m13_slots_multiply_the_context():
    granite = dense("granite3.3-2b", 40, 2048, 32, 8, 64, 8192, 49152)
    per_token = kv_bytes_per_token(granite, Layout(), "bf16")
    assert per_token == 81_920
    assert 20 * 32_768 * per_token / 2**20 == 51_200


def test_m18_fp8_kv_doubles_the_pool():
    plain, halved = (
        memory_budget(QWEN_7B, A100, deployment(QWEN_7B, A100, kv=kv)).kv_capacity_tokens for kv in ("bf16", "fp8")
    )
    assert halved / plain == pytest.approx(2.0, abs=0.001)


def test_m19_bits_of_a_packed_checkpoint_count_as_published():
    # 80 layers, 8,192 wide, 22,016 in the feed-forward block, 32,000 tokens: 65.3 billion parameters.
    for size_gib, bits in ((25.57, 3.364), (36.65, 4.822), (49.88, 6.563)):
        packed = CheckpointQuantization(
            method="gguf", bits_per_weight=bits, quantized_parts=("attention", "feed_forward", "head")
        )
        architecture = dense("llama-65b", 80, 8192, 64, 64, 128, 22016, 32000, quantization=packed)
        groups = weight_groups(architecture, H100, Layout(), "checkpoint")
        packed_bytes = sum(group.stored_bytes for group in groups if group.storage.bits == bits)
        parameters = sum(group.stored_count for group in groups if group.storage.bits == bits)
        assert packed_bytes / parameters * 65.286e9 / GIB == pytest.approx(size_gib, rel=0.01)


def test_m23_more_ranks_than_kv_heads_replicate():
    assert kv_bytes_per_token(LLAMA_70B, Layout(tensor_parallel=32), "bf16") == 40_960
    assert kv_bytes_per_token(LLAMA_70B, Layout(tensor_parallel=8), "bf16") == 40_960


def test_i14_experts_are_stored_whole_and_read_in_part():
    groups = weight_groups(MIXTRAL, H100, Layout(), "bf16")
    assert sum(group.stored_count for group in groups) / 1e9 == pytest.approx(46.7, rel=0.01)
    active = sum(group.stored_count * (1 - group.miss_fraction) for group in groups)
    assert active / 1e9 == pytest.approx(12.9, rel=0.01)


def test_compressed_layers_keep_a_latent_every_few_tokens():
    assert kv_bytes_per_token(DEEPSEEK_V4_FLASH, Layout(), "bf16") == 21 * 512 * 2 // 4 + 22 * 512 * 2 // 128
