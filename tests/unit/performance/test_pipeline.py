"""Pipeline stages: memory by stage, the one that binds, and the time of a round."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfleet.domain.errors import BadInput
from tokenfleet.performance import error_band, memory_budget, pipeline_memory, step_shares, step_time_model
from tokenfleet.performance.pipeline import even_split
from unit.performance.shapes import (
    GIB,
    H100,
    LLAMA_8B,
    LLAMA_70B,
    MIXTRAL,
    QWEN3_CODER_30B,
    deployment,
    engine,
    part,
)

SMALL = part("rtx_5070_ti", 15.7, 896e9, 88e12, 176e12)
LARGE = part("rtx_5090_d", 31.4, 1792e9, 210e12, 419e12)


def test_m06_the_stage_with_the_least_memory_per_layer_binds():
    running = engine("vllm-0.15", max_batched_tokens=2048, max_sequence_count=256, memory_utilization_fraction=0.9)
    asked = deployment(QWEN3_CODER_30B, SMALL, precision="fp8", settings=running)
    found = pipeline_memory(QWEN3_CODER_30B, (SMALL, LARGE), asked, layer_counts=(16, 32))
    assert [stage.kv_bytes_per_token for stage in found.stages] == [32_768, 65_536]
    # The engine found 3.18 GiB on the first stage, room for 104,202 tokens, and told its owner 34,736.
    assert found.stages[0].kv_capacity_bytes / GIB == pytest.approx(3.18, rel=0.15)
    assert found.kv_capacity_tokens == min(stage.kv_capacity_tokens for stage in found.stages)
    assert found.kv_capacity_tokens == pytest.approx(104_200, rel=0.15)
    lopsided = pipeline_memory(QWEN3_CODER_30B, (SMALL, LARGE), asked, layer_counts=(18, 30))
    assert lopsided.binding_stage == 0
    wanted = replace(asked, engine=replace(running, context_limit_tokens=262_144))
    assert not pipeline_memory(QWEN3_CODER_30B, (SMALL, LARGE), wanted, layer_counts=(16, 32)).fits


def test_stages_hold_the_whole_model_once():
    asked = deployment(LLAMA_70B, H100)
    found = pipeline_memory(LLAMA_70B, (H100, H100, H100), asked)
    assert sum(stage.weights_bytes for stage in found.stages) == pytest.approx(
        memory_budget(LLAMA_70B, H100, asked).weights_bytes, rel=0.001
    )
    assert sum(stage.kv_bytes_per_token for stage in found.stages) == 327_680
    # Only the last stage turns hidden states into tokens.
    assert found.stages[2].terms_bytes["activation_peak"] > found.stages[0].terms_bytes["activation_peak"]


@given(st.integers(1, 130), st.integers(1, 16))
def test_an_even_split_is_even_and_whole(layers, stages):
    if stages > layers:
        return
    split = even_split(layers, stages)
    assert sum(split) == layers
    assert max(split) - min(split) <= 1


def test_stages_and_gpus_must_match():
    with pytest.raises(BadInput, match="80 layers in all"):
        pipeline_memory(LLAMA_70B, (H100, H100), deployment(LLAMA_70B, H100), layer_counts=(40, 41))


@given(st.sampled_from((LLAMA_8B, LLAMA_70B, MIXTRAL)), st.sampled_from((2, 4, 8)), st.integers(1, 1024))
@settings(max_examples=30, deadline=None)
def test_a_full_pipeline_trades_the_time_of_one_for_the_rate_of_many(architecture, stages, sequences):
    one = deployment(architecture, H100)
    many = deployment(architecture, H100, pp=stages)

    def step_s(asked, count):
        load = {"token_count": count, "sequence_count": count, "context_tokens": 1000 * count}
        return step_shares(architecture, H100, asked, **load).step_s

    # A round of p batches lasts longer than one of the batches alone and no longer than all of them one by one.
    batch = max(sequences // stages, 1)
    assert step_s(many, batch * stages) > step_s(one, batch)
    assert step_s(many, batch * stages) < stages * step_s(one, batch) + stages * 2e-3


def test_a_pipeline_carries_a_wider_band_that_says_why():
    plain, staged = (error_band(LLAMA_70B, H100, deployment(LLAMA_70B, H100, tp=2, pp=pp)) for pp in (1, 2))
    assert staged.step_time_factor > plain.step_time_factor
    assert "lone prompt" in staged.evidence
    table = step_time_model(LLAMA_70B, H100, deployment(LLAMA_70B, H100, tp=2, pp=2))
    assert (table.token_ps[1:] >= table.token_ps[:-1]).all()
