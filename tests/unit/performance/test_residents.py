"""What lies in memory beside the model: images, adapters, drafts, neighbours, slices, measured checkpoints."""

from dataclasses import replace

import pytest

from tokenfleet import catalog
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.replica import MemoryFacts
from tokenfleet.performance import (
    Tenant,
    draft_facts,
    gpu_slice,
    index_bytes,
    memory_budget,
    memory_convention,
    packed,
    pools_of_free,
    prediction_layer,
    share_gpu,
    tensor_bytes,
    worst_case_encoder_tokens,
)
from tokenfleet.performance.neighbours import together_bytes
from tokenfleet.performance.workspace import (
    adapter_bytes,
    cuda_workspace_bytes,
    encoder_tokens,
    expert_workspace_bytes,
    sampler_bytes,
)
from unit.performance.shapes import (
    A100,
    DEEPSEEK_V3,
    GIB,
    H100,
    H200,
    LLAMA_8B,
    MIXTRAL,
    QWEN3_CODER_30B,
    QWEN_7B,
    RTX4090,
    dense,
    deployment,
    engine,
    part,
)

EYES = replace(QWEN_7B, name="qwen-vl", vision_parameter_count=600_000_000)
NAMED = {
    "weights",
    "kv_cache",
    "runtime",
    "cuda_workspace",
    "cuda_graphs",
    "activation_peak",
    "encoder_reserve",
    "fragmentation",
    "safety",
}


def with_facts(architecture, gpu, **facts):
    asked = replace(deployment(architecture, gpu), memory=MemoryFacts(**facts))
    return memory_budget(architecture, gpu, asked)


@pytest.mark.parametrize("name", ["vllm-0.32", "vllm-0.16", "vllm-0.6", "sglang-0.5", "trtllm-1.2", "other-1.0"])
def test_every_named_term_is_there_and_they_add_up(name):
    settings = engine(name, memory_utilization_fraction=0.85)
    found = memory_budget(LLAMA_8B, H100, deployment(LLAMA_8B, H100, settings=settings))
    assert set(found.terms_bytes) >= NAMED
    assert sum(found.terms_bytes.values()) == found.total_bytes
    assert found.terms_bytes["safety"] == found.terms_bytes["encoder_reserve"] == 0


def test_fragmentation_is_less_than_a_block():
    found = memory_budget(LLAMA_8B, H100, deployment(LLAMA_8B, H100))
    block = found.kv_block_tokens * found.kv_bytes_per_token
    assert 0 < found.terms_bytes["fragmentation"] < block
    assert found.kv_capacity_bytes % block == 0


@pytest.mark.parametrize(
    "facts",
    [
        {"safety_bytes": GIB},
        {"draft_weights_bytes": GIB},
        {"encoder_tokens": 32_768},
        {"adapter_count": 4, "adapter_rank_count": 64},
    ],
)
def test_what_is_added_comes_out_of_the_pool(facts):
    plain, more = with_facts(LLAMA_8B, H100), with_facts(LLAMA_8B, H100, **facts)
    assert more.kv_capacity_bytes < plain.kv_capacity_bytes - GIB // 8
    assert sum(more.terms_bytes.values()) == more.total_bytes


def test_m21_the_worst_prompt_uses_every_limit():
    largest = {"image": 16_384, "video": 16_384}
    assert worst_case_encoder_tokens({"image": 1, "video": 1}, largest) == 32_768
    assert worst_case_encoder_tokens({"image": 10, "video": 1}, largest) == 180_224


def test_m21_images_are_reserved_for_apart_from_kv():
    few = engine(max_sequence_count=64, max_batched_tokens=2048)
    asked = deployment(EYES, RTX4090, settings=few)
    one, eleven = (
        memory_budget(EYES, RTX4090, replace(asked, memory=MemoryFacts(encoder_tokens=tokens)))
        for tokens in (16_384, 180_224)
    )
    assert one.fits
    assert one.terms_bytes["encoder_reserve"] > GIB
    assert not eleven.fits
    # Nobody said: a step's worth, which is the least an engine's encoder budget can be.
    assert encoder_tokens(EYES, deployment(EYES, RTX4090)) == 8192
    assert encoder_tokens(QWEN_7B, deployment(QWEN_7B, RTX4090)) == 0


def test_adapters_are_a_low_rank_pair_for_each_matrix():
    asked = replace(deployment(LLAMA_8B, H100), memory=MemoryFacts(adapter_count=1, adapter_rank_count=16))
    pairs = (4096 + 4096) * 2 + (4096 + 1024) * 2 + (4096 + 14336) * 3
    assert adapter_bytes(LLAMA_8B, asked) == 32 * 16 * pairs * 2
    split = replace(asked, layout=replace(asked.layout, tensor_parallel=2))
    assert adapter_bytes(LLAMA_8B, asked) / 2 < adapter_bytes(LLAMA_8B, split) < adapter_bytes(LLAMA_8B, asked)


def test_a_draft_layer_adds_one_layer_of_kv():
    asked = deployment(LLAMA_8B, H100)
    facts = draft_facts(prediction_layer(LLAMA_8B), H100, asked)
    found = memory_budget(LLAMA_8B, H100, replace(asked, memory=facts))
    # A start-up log with one draft layer printed 135,168 bytes per token.
    assert found.kv_bytes_per_token == 135_168
    assert facts.draft_weights_bytes == pytest.approx(0.47 * GIB, rel=0.05)


def test_m15_the_first_to_start_takes_its_fraction_of_the_most():
    assert pools_of_free(640, (1, 100), (0.5, 0.5)) == (319.5, 109.75)
    assert pools_of_free(640, (100, 1), (0.5, 0.5)) == (270, 134.5)


def test_m15_engines_mean_different_things_by_a_fraction():
    conventions = {"vllm-0.32": "total", "sglang-0.5": "before_load", "trtllm-1.2": "after_load", "ollama-0.7": "slots"}
    assert {name: memory_convention(name) for name in conventions} == conventions
    held = {}
    for name in ("vllm-0.32", "sglang-0.5", "trtllm-1.2"):
        settings = engine(name, memory_utilization_fraction=0.5)
        asked = deployment(QWEN_7B, H100, settings=settings)
        beside = replace(asked, memory=MemoryFacts(neighbour_bytes=20 * GIB))
        alone, shared = (memory_budget(QWEN_7B, H100, each).kv_capacity_bytes for each in (asked, beside))
        held[name] = (alone - shared) / GIB
    assert held == pytest.approx({"vllm-0.32": 0, "sglang-0.5": 10, "trtllm-1.2": 10}, abs=0.01)


def test_m13_slots_take_their_whole_context_whether_used_or_not():
    settings = engine("ollama-0.7", max_sequence_count=20, context_limit_tokens=32_768)
    granite = dense("granite3.3-2b", 40, 2048, 32, 8, 64, 8192, 49152)
    asked = deployment(granite, A100, precision="int4", settings=settings)
    found = memory_budget(granite, A100, asked)
    assert found.kv_bytes_per_token == 81_920
    assert found.terms_bytes["kv_cache"] == 51_200 * 2**20
    fewer = replace(asked, engine=replace(settings, max_sequence_count=1))
    assert memory_budget(granite, A100, fewer).terms_bytes["kv_cache"] == 2560 * 2**20
    more = replace(asked, engine=replace(settings, max_sequence_count=40))
    refused = memory_budget(granite, A100, more)
    assert not refused.fits
    assert "40 slots of a whole context each" in refused.reasons[0]


RTX5090 = part("rtx_5090", 31.4, 1792e9, 210e12, 419e12, pcie=64e9)


def tenants(first, second):
    small = engine(max_batched_tokens=2048, max_sequence_count=16, context_limit_tokens=4096)
    return [
        Tenant(
            name=name,
            model=QWEN_7B,
            deployment=deployment(
                QWEN_7B, RTX5090, precision="int4", settings=replace(small, memory_utilization_fraction=share)
            ),
        )
        for name, share in (("first", first), ("second", second))
    ]


def test_m24_sharing_gives_absolute_bytes_and_an_order():
    shared = share_gpu(RTX5090, tenants(0.35, 0.25))
    assert sorted(shared.order) == ["first", "second"]
    assert shared.fits
    assert all(size > 0 for size in shared.kv_bytes)
    assert all(worst < alone for worst, alone in zip(shared.together_kv_bytes, shared.kv_bytes, strict=True))
    assert not share_gpu(RTX5090, tenants(0.7, 0.4)).fits
    with pytest.raises(BadInput, match="cannot be ordered"):
        share_gpu(RTX5090, [])


def test_m24_engines_that_profile_together_are_charged_for_each_other():
    # 32 GB card at 0.35 and 0.20: 4.72 and 2.82 GiB of KV one after the other, 1.84 and -3.21 together.
    loaded = (0.35 * 31.4 - 4.72, 0.20 * 31.4 - 2.82)
    first, second = together_bytes([round(4.72 * GIB), round(2.82 * GIB)], [round(size * GIB) for size in loaded])
    assert first / GIB == pytest.approx(1.84, abs=0.6)
    assert second / GIB == pytest.approx(-3.21, abs=0.3)


def test_m16_a_slice_is_planned_as_what_it_is():
    whole = catalog.gpu("h200_sxm")
    small, quarter = gpu_slice(whole, "1g.18gb"), gpu_slice(whole, "2g.35gb")
    assert 16e9 <= small.memory_bytes <= 17.2e9
    defaults = catalog.engine("vllm", gpu=small)
    assert (defaults.max_batched_tokens, defaults.max_sequence_count) == (2048, 256)
    assert quarter.bf16_flop_per_s / whole.bf16_flop_per_s == pytest.approx(2 / 7)
    assert quarter.memory_bandwidth_bytes_per_s / whole.memory_bandwidth_bytes_per_s == pytest.approx(1 / 4)
    assert 0.2 < quarter.memory_bytes / whole.memory_bytes < 0.25
    assert "2/7 of the compute and 2/8 of the memory" in quarter.note
    for wrong in ("9g.18gb", "1g.300gb", "half"):
        with pytest.raises(BadInput):
            gpu_slice(whole, wrong)


def test_m19_gguf_files_weigh_what_was_published():
    architecture = packed(LLAMA_8B, "Q4_K_M")
    found = memory_budget(architecture, H100, deployment(architecture, H100, precision="checkpoint"))
    table = 128_256 * 4096
    assert found.weights_bytes == pytest.approx((8.03e9 - table) * 4.822 / 8 + table * 2, rel=0.01)
    with pytest.raises(BadInput, match="Q4_K_M"):
        packed(LLAMA_8B, "Q9_X")


def test_measured_weights_replace_the_formula_and_say_so():
    measured = round(17.0 * GIB)
    found = with_facts(LLAMA_8B, H100, checkpoint_bytes=measured)
    assert found.weights_bytes == pytest.approx(measured, rel=1e-6)
    assert any("1.137 times the formula" in reason for reason in found.reasons)
    requantised = replace(deployment(LLAMA_8B, H100, precision="fp8"), memory=MemoryFacts(checkpoint_bytes=measured))
    other = memory_budget(LLAMA_8B, H100, requantised)
    assert other.weights_bytes < measured / 1.8
    assert any("not what fp8 weights take" in reason for reason in other.reasons)


def test_bytes_of_a_checkpoint_from_index_and_headers():
    assert index_bytes({"metadata": {"total_size": 16_060_522_496}}, where="index") == 16_060_522_496
    with pytest.raises(BadInput, match="total_size"):
        index_bytes({"weight_map": {}}, where="index")
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64]},
        "b": {"dtype": "F4", "shape": [3, 3]},
    }
    assert tensor_bytes([header], where="folder") == {"a": 64, "b": 5}
    with pytest.raises(BadInput, match="X9"):
        tensor_bytes([{"c": {"dtype": "X9", "shape": [1]}}], where="folder")


def test_sampling_costs_slots_times_vocabulary_until_a_kernel_cuts_the_logits():
    layout = deployment(LLAMA_8B, H100).layout
    logits = 1024 * 128_256 * 4
    old, new = (sampler_bytes(LLAMA_8B, layout, engine(name)) for name in ("vllm-0.11", "vllm-0.32"))
    assert old == pytest.approx(12 * logits, rel=0.05)
    assert new == pytest.approx(3.5 * logits, rel=0.15)
    assert sampler_bytes(LLAMA_8B, layout, engine("sglang-0.5")) == 0


def test_experts_work_in_two_buffers_of_all_visits():
    asked = deployment(MIXTRAL, H100)
    rows = 8192 * 2
    assert expert_workspace_bytes(MIXTRAL, H100, asked) == rows * (2 * 14336 + 14336) * 2
    split = replace(asked, layout=replace(asked.layout, tensor_parallel=8))
    assert expert_workspace_bytes(MIXTRAL, H100, split) == rows * (4096 + 4096) * 2
    whole = replace(split, layout=replace(split.layout, expert_parallel=8))
    assert expert_workspace_bytes(MIXTRAL, H100, whole) == rows * (2 * 14336 + 14336) * 2
    padded = deployment(DEEPSEEK_V3, H200, tp=8, precision="checkpoint")
    assert expert_workspace_bytes(DEEPSEEK_V3, H200, padded) == (8192 * 8 + 256 * 127) * (7168 + 7168) * 2
    assert expert_workspace_bytes(LLAMA_8B, H100, deployment(LLAMA_8B, H100)) == 0
    gathered = deployment(QWEN3_CODER_30B, H100, dp=8, ep=8, settings=engine(max_batched_tokens=8 * 8192))
    assert expert_workspace_bytes(QWEN3_CODER_30B, H100, gathered) == 16_384 * 8 * (2048 + 2048) * 2


def test_expert_buffers_stay_in_newer_versions_only():
    terms = {}
    for name in ("vllm-0.11", "vllm-0.16"):
        asked = deployment(QWEN3_CODER_30B, H100, settings=engine(name))
        terms[name] = memory_budget(QWEN3_CODER_30B, H100, asked).terms_bytes
    assert "expert_workspace" not in terms["vllm-0.11"]
    assert terms["vllm-0.16"]["expert_workspace"] == 8192 * 8 * (2048 + 2048) * 2


def test_latent_attention_gathers_its_context():
    assert cuda_workspace_bytes(DEEPSEEK_V3, engine()) - cuda_workspace_bytes(LLAMA_8B, engine()) == 65_536 * 576 * 2
