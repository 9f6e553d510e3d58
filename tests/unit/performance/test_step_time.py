from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfleet.domain.errors import OutOfRange
from tokenfleet.domain.replica import Layout, StepTimeModel
from tokenfleet.performance import (
    chunk_attention_ps,
    constants,
    error_band,
    replica_physics,
    scaled,
    step_shares,
    step_time_model,
    unsupported,
    with_smaller_steps,
)
from tokenfleet.performance.coefficients import constant
from tokenfleet.performance.collectives import border, collective
from unit.performance.shapes import (
    A100,
    B200,
    DEEPSEEK_V3,
    DEEPSEEK_V4_FLASH,
    GPT_OSS_120B,
    H100,
    H200,
    L40S,
    LLAMA_8B,
    LLAMA_70B,
    MI300X,
    MIXTRAL,
    QWEN3_CODER_30B,
    QWEN_HYBRID_27B,
    RTX3090,
    STARCODER2_3B,
    T4,
    deployment,
    engine,
    latent,
)

MODELS = (LLAMA_8B, LLAMA_70B, MIXTRAL, GPT_OSS_120B, DEEPSEEK_V3, QWEN_HYBRID_27B, STARCODER2_3B)


def evaluate(model, *, tokens, sequences, context, window_context, pairs, window_pairs, prefill):
    """A step in picoseconds, as the domain type defines it."""
    base = (
        int(model.token_ps[tokens])
        + model.sequence_ps * sequences
        + model.context_ps * context
        + model.window_ps * window_context
        + model.pair_ps * pairs
        + model.window_pair_ps * window_pairs
    )
    if not prefill:
        return base
    return round(float(np.sqrt(np.sqrt(float(base) ** 4 + float(model.eager_ps) ** 4))))


@given(
    st.sampled_from(MODELS),
    st.sampled_from((A100, B200, H100, L40S)),
    st.sampled_from((1, 2, 4)),
    st.sampled_from(("bf16", "fp8", "int4", "checkpoint")),
    st.integers(0, 512),
    st.integers(0, 7000),
    st.integers(1, 100_000),
)
@settings(max_examples=60, deadline=None)
def test_table_and_terms_agree(architecture, gpu, tp, precision, sequences, chunk, mean_context):
    asked = deployment(architecture, gpu, tp=tp, precision=precision)
    if unsupported(architecture, gpu, asked) or sequences + chunk == 0:
        return
    table = step_time_model(architecture, gpu, asked)
    shares = step_shares(
        architecture,
        gpu,
        asked,
        token_count=sequences + chunk,
        sequence_count=sequences,
        context_tokens=sequences * mean_context,
        pair_count=chunk * (chunk + 1) // 2,
        prefill=chunk > 0,
    )
    step_ps = evaluate(
        table,
        tokens=sequences + chunk,
        sequences=sequences,
        context=sequences * mean_context,
        window_context=sequences * min(mean_context, table.window_tokens),
        pairs=chunk * (chunk + 1) // 2,
        window_pairs=min(chunk * (chunk + 1) // 2, chunk * table.window_tokens),
        prefill=chunk > 0,
    )
    parts = (shares.compute_s, shares.bandwidth_s, shares.communication_s, shares.overhead_s)
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(shares.step_s, rel=1e-9)
    # Slopes are whole picoseconds, so a step may differ by half of one for each unit.
    units = sequences * (1 + 2 * mean_context) + chunk * (chunk + 1)
    assert step_ps / 1e12 == pytest.approx(shares.step_s, rel=1e-9, abs=(units + 2) * 0.5e-12)


@pytest.mark.parametrize("budget", [512, 4096, 20_000])
def test_a_prompt_in_long_windows_pays_for_the_keys_that_it_sees(budget):
    """Pair by pair: each query sees its own key and those before it, in a window of 4,096 no more than so many."""
    table = replace(step_time_model(STARCODER2_3B, H100, deployment(STARCODER2_3B, H100)), pair_ps=3)
    assert table.window_tokens == 4096
    assert table.window_pair_ps > 0
    seen = np.arange(1, 20_001)
    starts = np.arange(0, 20_000, budget)
    chunks = np.minimum(20_000 - starts, budget)
    took_ps = chunk_attention_ps(table, starts, chunks)
    assert took_ps.sum() == 3 * seen.sum() + table.window_pair_ps * np.minimum(seen, 4096).sum()
    assert chunk_attention_ps(table, 100, 50) == (3 + table.window_pair_ps) * seen[100:150].sum()


@given(st.sampled_from(MODELS), st.sampled_from((A100, H100, B200)), st.sampled_from((1, 2, 4)))
@settings(max_examples=60, deadline=None)
def test_more_tokens_never_a_shorter_step(architecture, gpu, tp):
    table = step_time_model(architecture, gpu, deployment(architecture, gpu, tp=tp))
    assert table.token_ps[0] > 0
    assert (np.diff(table.token_ps) >= 0).all()
    for slope in (table.sequence_ps, table.context_ps, table.window_ps, table.pair_ps, table.eager_ps):
        assert slope >= 0
    assert table.token_ps.dtype == np.int64
    assert len(table.token_ps) == 8193


def test_the_table_covers_the_slots():
    asked = deployment(LLAMA_8B, H100, settings=engine(max_batched_tokens=512, max_sequence_count=700))
    assert len(step_time_model(LLAMA_8B, H100, asked).token_ps) == 701


def decode_rate(architecture, gpu, *, sequences=1, context=1000, **options):
    """Output tokens per second of one sequence."""
    shares = step_shares(
        architecture,
        gpu,
        deployment(architecture, gpu, **options),
        token_count=sequences,
        sequence_count=sequences,
        context_tokens=sequences * context,
    )
    return 1 / shares.step_s


def test_single_stream_decode_is_where_people_measure_it():
    assert 35 < decode_rate(LLAMA_70B, H100, tp=2, precision="fp8") < 62
    assert 120 < decode_rate(LLAMA_8B, H100) < 165


def test_decode_of_one_stream_is_bound_by_bandwidth_and_a_long_prompt_by_compute():
    asked = deployment(LLAMA_70B, H100, tp=4)
    one = step_shares(LLAMA_70B, H100, asked, token_count=1, sequence_count=1, context_tokens=1000)
    assert one.bandwidth_s > 0.5 * one.step_s
    many = step_shares(
        LLAMA_70B,
        H100,
        asked,
        token_count=8192,
        sequence_count=0,
        context_tokens=0,
        pair_count=8192 * 8193 // 2,
        prefill=True,
    )
    assert many.compute_s > 0.5 * many.step_s


def test_quantised_weights_decode_faster_and_only_real_units_prefill_faster():
    assert decode_rate(LLAMA_8B, A100, precision="fp8") > 1.2 * decode_rate(LLAMA_8B, A100)
    on_a100 = [
        step_time_model(LLAMA_8B, A100, deployment(LLAMA_8B, A100, precision=precision)).token_ps[8192]
        for precision in ("bf16", "fp8")
    ]
    on_h100 = [
        step_time_model(LLAMA_8B, H100, deployment(LLAMA_8B, H100, precision=precision)).token_ps[8192]
        for precision in ("bf16", "fp8")
    ]
    assert on_a100[1] == pytest.approx(on_a100[0], rel=0.05)
    assert on_h100[1] < 0.75 * on_h100[0]


def test_m18_fp8_kv_does_not_double_speed_off_the_kv_limit():
    ratio = decode_rate(LLAMA_8B, A100, sequences=8, context=4096, kv="fp8") / decode_rate(
        LLAMA_8B, A100, sequences=8, context=4096
    )
    assert 0.95 <= ratio <= 1.06


def test_p01_over_pcie_two_replicas_serve_more_than_one_of_two_cards():
    rates = {
        (tp, load): decode_rate(LLAMA_8B, RTX3090, sequences=load, context=400, precision="int4", tp=tp)
        for tp in (1, 2)
        for load in (1, 64)
    }
    assert rates[2, 64] < 0.85 * 2 * rates[1, 64]
    assert 1.1 < rates[2, 1] / rates[1, 1] < 1.5


def test_p03_the_link_matters_for_prefill_not_for_one_stream():
    linked = replace(RTX3090, link_bytes_per_s=56e9, link_name="NVLink3 bridge (pairs)")
    decode = decode_rate(LLAMA_8B, linked, tp=2) / decode_rate(LLAMA_8B, RTX3090, tp=2)
    assert 1.0 < decode < 1.12
    tables = [step_time_model(LLAMA_8B, gpu, deployment(LLAMA_8B, gpu, tp=2)) for gpu in (linked, RTX3090)]
    assert tables[1].token_ps[8192] > 1.02 * tables[0].token_ps[8192]
    assert tables[1].token_ps[8192] - tables[1].token_ps[1] > tables[0].token_ps[8192] - tables[0].token_ps[1]


def test_pcie_carries_less_the_more_ranks_share_it():
    seconds = [
        step_shares(
            LLAMA_8B,
            L40S,
            deployment(LLAMA_8B, L40S, tp=tp),
            token_count=4096,
            sequence_count=0,
            context_tokens=0,
            prefill=True,
        ).communication_s
        for tp in (1, 2, 4, 8)
    ]
    assert seconds[0] == 0
    # Twice the traffic per rank at most, the rest is the shared bus.
    assert seconds[2] > 1.6 * seconds[1]
    assert seconds[3] > 1.2 * seconds[2]
    wide = error_band(LLAMA_8B, L40S, deployment(LLAMA_8B, L40S, tp=4))
    assert "PCIe" in wide.evidence
    assert wide.step_time_factor > error_band(LLAMA_8B, L40S, deployment(LLAMA_8B, L40S)).step_time_factor


def test_experts_are_read_as_they_are_touched():
    table = step_time_model(QWEN3_CODER_30B, H100, deployment(QWEN3_CODER_30B, H100)).token_ps
    first, later = table[2] - table[1], table[2001] - table[2000]
    assert first > 5 * later
    dense_like = replace(QWEN3_CODER_30B.feed_forward[0], experts_per_token_count=128)
    every = step_time_model(
        full := replace(QWEN3_CODER_30B, feed_forward=(dense_like,)), H100, deployment(full, H100)
    ).token_ps
    assert table[1] < 0.5 * every[1]


def test_windows_stop_growing():
    table = step_time_model(GPT_OSS_120B, H100, deployment(GPT_OSS_120B, H100, precision="checkpoint"))
    assert table.window_tokens == 128
    assert table.window_ps == pytest.approx(table.context_ps, abs=1)


def test_sparse_attention_reads_its_choice_and_all_index_keys():
    sparse = replace(DEEPSEEK_V3, name="sparse", attention=(latent(61, index_size=128, index_top_k_tokens=2048),))
    asked = deployment(sparse, H200, tp=8, precision="checkpoint")
    whole = step_time_model(DEEPSEEK_V3, H200, deployment(DEEPSEEK_V3, H200, tp=8, precision="checkpoint"))
    table = step_time_model(sparse, H200, asked)
    assert table.window_tokens == 2048
    assert 0 < table.context_ps < 0.25 * whole.context_ps
    assert table.window_ps == pytest.approx(whole.context_ps, abs=1)


def test_state_costs_a_sequence_whatever_its_context():
    table = step_time_model(QWEN_HYBRID_27B, H100, deployment(QWEN_HYBRID_27B, H100))
    plain = step_time_model(LLAMA_8B, H100, deployment(LLAMA_8B, H100))
    assert table.sequence_ps > 3 * plain.sequence_ps


def test_data_parallel_attention_spreads_context_and_tokens():
    tensor = step_time_model(DEEPSEEK_V3, H200, deployment(DEEPSEEK_V3, H200, tp=8, precision="checkpoint"))
    data = step_time_model(DEEPSEEK_V3, H200, deployment(DEEPSEEK_V3, H200, dp=8, ep=8, precision="checkpoint"))
    assert data.context_ps < tensor.context_ps
    assert data.sequence_ps == pytest.approx(tensor.sequence_ps / 8, abs=1)


def test_a_vendor_is_slower_by_its_factors_not_by_its_sheet():
    twin = replace(MI300X, vendor="NVIDIA")
    share = decode_rate(LLAMA_8B, MI300X) / decode_rate(LLAMA_8B, twin)
    read = constants()["vendor_bandwidth_factor.amd"].value
    assert 0.8 * read < share <= 1.05 * read
    other = replace(MI300X, vendor="Intel")
    assert decode_rate(LLAMA_8B, other) == decode_rate(LLAMA_8B, twin)


@given(st.floats(0.2, 5))
@settings(max_examples=30, deadline=None)
def test_scaled_scales_everything(factor):
    table = step_time_model(LLAMA_8B, H100, deployment(LLAMA_8B, H100))
    other = scaled(table, factor)
    assert np.abs(other.token_ps - table.token_ps * factor).max() <= 0.5 + 1e-3
    for name in ("sequence_ps", "context_ps", "window_ps", "pair_ps", "window_pair_ps", "eager_ps", "request_ps"):
        assert getattr(other, name) == pytest.approx(getattr(table, name) * factor, abs=0.51)
    assert other.window_tokens == table.window_tokens


@pytest.mark.parametrize(
    ("architecture", "gpu", "options", "words"),
    [
        (LLAMA_8B, H100, {"tp": 3}, "TP3 does not divide 32 attention heads"),
        (LLAMA_8B, H100, {"pp": 64}, "more stages than the 32 layers"),
        (LLAMA_8B, H100, {"dp": 2}, "needs a model with experts"),
        (LLAMA_8B, L40S, {"tp": 16}, "more than one node"),
        (LLAMA_8B, T4, {"precision": "fp8"}, "without BF16"),
        (LLAMA_8B, T4, {"kv": "fp8"}, "FP8 KV cache"),
        (LLAMA_8B, MI300X, {"precision": "fp4"}, "no nvfp4 units"),
        (LLAMA_8B, replace(L40S, pcie_bytes_per_s=None), {"tp": 2}, "no known link rate"),
        (LLAMA_8B, replace(H100, memory_bandwidth_bytes_per_s=None), {}, "memory_bandwidth_bytes_per_s is unknown"),
        (LLAMA_8B, replace(H100, int8_flop_per_s=None), {"precision": "int8"}, "INT8"),
        (replace(LLAMA_8B, vocab_size=None), H100, {}, "vocab_size is unknown"),
        (MIXTRAL, H100, {"ep": 3, "tp": 4}, "EP3 does not divide 4 ranks"),
    ],
)
def test_what_engines_cannot_do_is_refused_with_a_reason(architecture, gpu, options, words):
    asked = deployment(architecture, gpu, **options)
    assert any(words in reason for reason in unsupported(architecture, gpu, asked))
    with pytest.raises(OutOfRange, match="on"):
        step_time_model(architecture, gpu, asked)


def test_block_fp8_experts_must_split_into_whole_blocks():
    narrow = replace(
        DEEPSEEK_V3,
        feed_forward=tuple(
            replace(block, intermediate_size=1536) if block.expert_count else block
            for block in DEEPSEEK_V3.feed_forward
        ),
    )
    assert any(
        "FP8 blocks" in text for text in unsupported(narrow, H200, deployment(narrow, H200, tp=8, precision="fp8"))
    )
    assert not unsupported(narrow, H200, deployment(narrow, H200, tp=8, ep=8, precision="fp8"))


def test_bands_widen_with_what_is_new():
    known = error_band(LLAMA_70B, H100, deployment(LLAMA_70B, H100, tp=2))
    new_kind = error_band(DEEPSEEK_V4_FLASH, H100, deployment(DEEPSEEK_V4_FLASH, H100, tp=4))
    new_format = error_band(LLAMA_8B, H100, deployment(LLAMA_8B, H100, precision="int4"))
    new_part = error_band(LLAMA_8B, RTX3090, deployment(LLAMA_8B, RTX3090))
    new_vendor = error_band(LLAMA_8B, MI300X, deployment(LLAMA_8B, MI300X))
    assert new_format.step_time_factor == new_kind.step_time_factor
    factors = [band.step_time_factor for band in (known, new_kind, new_part, new_vendor)]
    assert factors == sorted(set(factors))
    assert 1.3 < factors[0] < 1.55
    assert "AMD" in new_vendor.evidence
    assert "RTX_3090" in new_part.evidence


def test_replica_physics_gathers_everything():
    asked = deployment(LLAMA_70B, H100, tp=2, precision="fp8")
    physics = replica_physics(LLAMA_70B, H100, asked)
    assert physics.memory.fits
    assert physics.kv_block_tokens == 16
    assert physics.kv_block_count == physics.memory.kv_capacity_tokens // 16
    assert physics.kv_fixed_block_count == 0
    assert replica_physics(LLAMA_70B, H100, deployment(LLAMA_70B, H100)).kv_block_count == 0


def test_ranks_beyond_a_node_pay_the_network() -> None:
    near, far, farther = (deployment(LLAMA_8B, H100, tp=ranks) for ranks in (8, 16, 32))
    inside, two, four = (collective(H100, ranks) for ranks in (8, 16, 32))
    assert unsupported(LLAMA_8B, H100, far) == ()
    assert inside.latency_s < two.latency_s < four.latency_s
    assert inside.reduce_s_per_byte < two.reduce_s_per_byte < four.reduce_s_per_byte
    assert inside.spread_s_per_byte < two.spread_s_per_byte < four.spread_s_per_byte
    # Reduced inside the node first, only an eighth of the vector leaves each gpu; a dispatch has no such short cut.
    assert two.spread_s_per_byte - inside.spread_s_per_byte > 3 * (two.reduce_s_per_byte - inside.reduce_s_per_byte)
    shares = [
        step_shares(LLAMA_8B, H100, one, token_count=1, sequence_count=1, context_tokens=1000).communication_s
        for one in (near, far, farther)
    ]
    assert shares == sorted(shares)
    assert error_band(LLAMA_8B, H100, far).step_time_factor > error_band(LLAMA_8B, H100, near).step_time_factor
    assert "more than one node" in error_band(LLAMA_8B, H100, far).evidence


def test_stages_in_other_nodes_talk_over_the_network() -> None:
    near, far = Layout(tensor_parallel=4, pipeline_parallel=2), Layout(tensor_parallel=8, pipeline_parallel=2)
    assert border(H100, far, "vllm")[0] > 5 * border(H100, near, "vllm")[0]
    assert border(H100, near, "vllm")[0] == pytest.approx(1 / (constant("link_fraction") * 450e9))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("gpu", [H100, MI300X, L40S])
def test_smaller_steps_are_the_physics_worked_out_anew(model, gpu):
    for settings_ in (engine(), engine("sglang-0.5", max_batched_tokens=16384)):
        large = deployment(model, gpu, tp=4, precision="fp8", settings=settings_)
        if reasons := unsupported(model, gpu, large):
            pytest.skip(reasons[0])
        known = replica_physics(model, gpu, large)
        for size in (64, 448, 1536):
            fewer = min(size, settings_.max_sequence_count)
            small = replace(large, engine=replace(settings_, max_batched_tokens=size, max_sequence_count=fewer))
            found, anew = with_smaller_steps(model, gpu, known, small), replica_physics(model, gpu, small)
            assert replace(found, step_time=anew.step_time) == anew
            for name in StepTimeModel.__dataclass_fields__:
                assert np.array_equal(getattr(found.step_time, name), getattr(anew.step_time, name)), name
