"""The reader against configs as publishers write them: nested, with defaults left out, with nulls."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfleet.catalog import model, model_names, read_config
from tokenfleet.domain.errors import BadInput

CONFIGS = Path(__file__).parent / "configs"
CATALOG = Path(__file__).resolve().parents[3] / "src" / "tokenfleet" / "catalog" / "data" / "models"

PLAIN = {
    "model_type": "llama",
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
}


def written(name):
    return json.loads((CONFIGS / f"{name}.json").read_text())


def read(config, **changes):
    return read_config({**config, **changes}, name="m", source="config.json")


def kinds(model):
    return {shape.kind: shape.layer_count for shape in model.attention}


def refused(config, **changes):
    with pytest.raises(BadInput) as error:
        read(config, **changes)
    return [(problem.where, problem.what) for problem in error.value.problems]


def test_a_nested_gemma_takes_what_its_class_assumes_and_says_so():
    gemma = read(written("gemma3_4b_nested"))
    assert kinds(gemma) == {"sliding": 29, "full": 5}
    assert gemma.kv_elements_per_token * 2 == 20480
    assert gemma.tied_embeddings
    assert gemma.parameter_count == pytest.approx(3.88e9, rel=0.01)
    assert any("num_attention_heads is not in the file: 8" in note for note in gemma.notes)
    assert gemma.vision_parameter_count == pytest.approx(0.41e9, rel=0.05)


def test_nested_llama4_equals_the_flat_facts_of_the_catalog():
    nested, flat = read(written("llama4_scout_nested")), model("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    assert nested.attention == flat.attention
    assert nested.feed_forward == flat.feed_forward
    assert nested.parameter_count == flat.parameter_count
    assert nested.max_context_tokens == 10485760


def test_first_mistral_has_its_window_in_every_layer():
    mistral = read(written("mistral_7b_v01"))
    assert kinds(mistral) == {"sliding": 32}
    assert mistral.kv_elements_per_token == 0
    assert mistral.window_elements_per_sequence * 2 == 536870912


def test_a_window_switched_off_is_off_and_yarn_stretches_the_context():
    qwen = read(written("qwen25_7b"))
    assert kinds(qwen) == {"full": 28}
    assert qwen.max_context_tokens == 131072
    asked = read(written("qwen25_7b"), use_sliding_window=True, sliding_window=4096, max_window_layers=20)
    assert kinds(asked) == {"full": 20, "sliding": 8}


def test_blocks_without_attention_or_replaced_by_one_matrix():
    nas = read(written("nemotron_nas_blocks"))
    assert [(shape.kind, shape.kv_head_count, shape.weight_count) for shape in nas.attention] == [
        ("full", 8, 2 * 8192 * 128 * 72),
        ("none", 0, 0),
        ("none", 0, 8192 * 8192),
        ("full", 4, 2 * 8192 * 128 * 68),
    ]
    assert [(block.intermediate_size, block.weight_count) for block in nas.feed_forward] == [
        (28672, 3 * 8192 * 28672),
        (14336, 3 * 8192 * 14336),
        (0, 0),
        (8192, 8192 * 8192),
    ]


def test_a_mamba_hybrid_keeps_a_state_and_experts_beside_a_shared_block():
    granite = read(written("granite4_hybrid"))
    assert kinds(granite) == {"recurrent": 3, "full": 1}
    width, channels = 48 * 64, 48 * 64 + 2 * 128
    assert granite.state_bytes_per_sequence == 3 * (width * 128 * 4 + channels * 4 * 2)
    (block,) = granite.feed_forward
    assert (block.expert_count, block.experts_per_token_count, block.shared_intermediate_size) == (64, 6, 1024)


JAMBA = {
    "model_type": "jamba", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 65536, "max_position_embeddings": 262144,
    "hidden_act": "silu", "tie_word_embeddings": False, "attn_layer_period": 8, "attn_layer_offset": 4,
    "expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 16, "num_experts_per_tok": 2,
    "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 256, "mamba_inner_layernorms": True,
    "mamba_conv_bias": True, "mamba_proj_bias": False,
}  # fmt: skip
MODERNBERT = {
    "model_type": "modernbert", "hidden_size": 768, "num_hidden_layers": 22, "num_attention_heads": 12,
    "intermediate_size": 1152, "vocab_size": 50368, "max_position_embeddings": 8192, "global_attn_every_n_layers": 3,
    "local_attention": 128,
}  # fmt: skip
FALCON = {
    "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
    "num_kv_heads": 71, "multi_query": True, "new_decoder_architecture": False, "vocab_size": 65024,
    "max_position_embeddings": 2048,
}  # fmt: skip
CHATGLM = {
    "model_type": "chatglm", "hidden_size": 4096, "num_layers": 40, "num_attention_heads": 32, "kv_channels": 128,
    "multi_query_attention": True, "multi_query_group_num": 2, "ffn_hidden_size": 13696, "padded_vocab_size": 151552,
    "seq_length": 131072, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "published_b", "kv_elements"),
    [
        (JAMBA, 51.6, 4 * 2 * 8 * 128),
        (MODERNBERT, 0.149, 0),
        (FALCON, 6.92, 32 * 2 * 64),
        (CHATGLM, 9.4, 40 * 2 * 2 * 128),
    ],
    ids=["jamba", "modernbert", "falcon-7b", "glm-4-9b"],
)
def test_families_outside_the_catalog_add_up_to_what_their_vendors_say(config, published_b, kv_elements):
    found = read(config)
    assert found.parameter_count / 1e9 == pytest.approx(published_b, rel=0.03)
    assert found.kv_elements_per_token == kv_elements


def test_head_counts_listed_layer_by_layer():
    laguna = read(written("laguna_heads_per_layer"))
    assert [(shape.kind, shape.query_head_count, shape.layer_count) for shape in laguna.attention] == [
        ("full", 48, 1),
        ("sliding", 72, 3),
    ]
    assert [(block.expert_count, block.layer_count) for block in laguna.feed_forward] == [(0, 1), (256, 3)]
    assert any("laguna is new here" in note for note in laguna.notes)
    assert laguna.quantization.quantized_parts == ("experts",)


def test_heads_and_sizes_that_a_config_may_leave_out():
    (plain,) = read(PLAIN, head_dim=None, num_key_value_heads=None).attention
    assert (plain.head_size, plain.kv_head_count) == (64, 16)
    (stated,) = read(PLAIN, head_dim=128, num_key_value_heads=2).attention
    assert (stated.head_size, stated.kv_head_count) == (128, 2)
    assert stated.weight_count == 1024 * 128 * (16 + 2 + 2 + 16)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"first_k_dense_replace": 3}, [(0, 3), (4, 5)]),
        ({"decoder_sparse_step": 2}, [(0, 4), (4, 4)]),
        ({"mlp_only_layers": [0, 1]}, [(0, 2), (4, 6)]),
        ({"moe_layer_freq": [0, 1, 1, 1, 1, 1, 1, 0]}, [(0, 2), (4, 6)]),
        ({"moe_layers_enum": "2,3,4"}, [(0, 5), (4, 3)]),
        ({"expert_layer_period": 2, "expert_layer_offset": 1}, [(0, 4), (4, 4)]),
        ({"moe_layer_interval": 1, "moe_layer_start_index": 1}, [(0, 1), (4, 7)]),
        ({}, [(4, 8)]),
    ],
)
def test_which_layers_have_experts(changes, expected):
    mixture = read(PLAIN, model_type="mixtral", num_local_experts=4, num_experts_per_tok=2, **changes)
    assert [(block.expert_count, block.layer_count) for block in mixture.feed_forward] == expected
    assert sum(block.layer_count for block in mixture.feed_forward) == 8


def test_shared_experts_add_up():
    deepseek = read(
        PLAIN, model_type="deepseek_v2", n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=256,
        n_shared_experts=2, kv_lora_rank=64, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32,
    )  # fmt: skip
    (block,) = deepseek.feed_forward
    assert block.shared_intermediate_size == 512
    assert block.active_weight_count == 3 * 1024 * 512 + 1024 * 8 + 2 * 3 * 1024 * 256
    assert deepseek.kv_elements_per_token == 8 * (64 + 16)


def test_every_missing_key_is_named_with_its_file_at_once():
    problems = refused({"model_type": "llama", "num_hidden_layers": 8})
    assert [where for where, _ in problems] == [
        "config.json: hidden_size",
        "config.json: num_attention_heads",
        "config.json: vocab_size",
    ]
    assert [where for where, _ in refused(PLAIN, intermediate_size=None)] == ["config.json: intermediate_size"]
    assert refused(PLAIN, hidden_size="wide")[0] == (
        "config.json: hidden_size", "expected a whole number, found 'wide'",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"model_type": "brandnew", "hidden_act": "gelu"}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"cross_attention_layers": [3]}, "cross_attention_layers"),
        ({"attn_type_list": [0, 1] * 4}, "attn_type_list"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers"),
        ({"ssm_cfg": {"layer": "Mamba2"}}, "ssm_cfg"),
        ({"layer_types": ["full_attention", "conv"] * 4}, "layer_types"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 8}, "sliding_window"),
        ({"sliding_window": 1024}, "sliding_window"),
        ({"num_attention_heads": 48}, "head_dim"),
        ({"num_local_experts": 8}, "num_experts_per_tok"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim"),
        ({"hybrid_override_pattern": "MX*-MX*-"}, "hybrid_override_pattern"),
        ({"block_configs": [{"attention": {"no_op": True}, "ffn": {"no_op": True}}]}, "block_configs"),
        ({"full_attention_interval": 4}, "linear_conv_kernel_dim"),
        ({"compress_ratios": [4] * 8}, "head_dim"),
        ({"intermediate_size_per_layer": [1] * 8}, "intermediate_size_per_layer"),
    ],
)
def test_what_cannot_be_read_is_named_and_refused(changes, where):
    assert refused(PLAIN, **changes)[0][0] == f"config.json: {where}"


def test_an_unknown_family_is_read_only_when_its_config_says_everything():
    new = read(PLAIN, model_type="brandnew")
    assert new.attention == read(PLAIN).attention
    assert "brandnew is new here" in new.notes[0]


def test_partial_facts_load_with_what_is_missing_named():
    partial = model("mistralai/Ministral-3-14B-Instruct-2512")
    assert partial.missing == ("vocab_size", "intermediate_size")
    assert partial.parameter_count is None
    assert partial.active_parameter_count is None
    assert any("unknown" in note for note in partial.notes)


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 300), st.floats(allow_nan=False), st.text(max_size=5),
    st.lists(st.one_of(st.integers(-1, 9), st.text(max_size=3)), max_size=4),
    st.dictionaries(st.sampled_from(["num_heads", "quantization", "attention"]), st.integers(0, 9), max_size=2),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_damaged_config_is_read_or_refused_but_never_crashes(data):
    read_damaged(data)


@pytest.mark.long
@settings(max_examples=20_000, deadline=None)
@given(data=st.data())
def test_many_damaged_configs(data):
    read_damaged(data)


def read_damaged(data):
    name = data.draw(st.sampled_from(model_names()))
    facts = json.loads((CATALOG / f"{name.replace('/', '--', 1)}.json").read_text())["architecture"]
    keys = sorted({*facts, "quantization_config", "rope_scaling", "sliding_window", "layer_types", "num_experts"})
    damaged = {**facts, **data.draw(st.dictionaries(st.sampled_from(keys), JUNK, max_size=3))}
    try:
        found = read_config(damaged, name=name, source="config.json")
    except BadInput as error:
        wheres = [problem.where for problem in error.problems]
    else:
        wheres = []
        assert sum(shape.layer_count for shape in found.attention) == found.layer_count
        assert found.parameter_count > 0
    assert all(where.startswith("config.json: ") for where in wheres)
