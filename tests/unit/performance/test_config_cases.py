"""Questions about configs, asked of the two rooms together: the reader and the memory model."""

import pytest

from tokenfleet import catalog
from tokenfleet.domain.replica import Layout
from tokenfleet.performance import kv_bytes_per_token
from tokenfleet.performance.shard import weight_groups
from unit.performance.shapes import H100

BASE = {"model_type": "llama", "vocab_size": 32000, "intermediate_size": 14336}


def read(config):
    return catalog.read_config(config, name="asked", source="written by hand")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param(
            {
                **BASE,
                "num_hidden_layers": 56,
                "hidden_size": 6144,
                "num_attention_heads": 48,
                "num_key_value_heads": 8,
                "head_dim": None,
            },
            229_376,
            id="i08-head-size-null",
        ),
        pytest.param(
            {
                **BASE,
                "text_config": {
                    "model_type": "llama",
                    "hidden_size": 5120,
                    "num_hidden_layers": 40,
                    "num_attention_heads": 40,
                },
            },
            819_200,
            id="i10-nested-and-no-kv-heads",
        ),
        pytest.param(
            {
                "model_type": "deepseek_v3",
                "vision_config": {},
                "text_config": {
                    "model_type": "deepseek_v3",
                    "hidden_size": 7168,
                    "vocab_size": 129280,
                    "num_attention_heads": 128,
                    "num_hidden_layers": 61,
                    "kv_lora_rank": 512,
                    "qk_rope_head_dim": 64,
                    "qk_nope_head_dim": 128,
                    "v_head_dim": 128,
                    "intermediate_size": 18432,
                },
            },
            70_272,
            id="i10-nested-latent",
        ),
        pytest.param(
            {
                **BASE,
                "max_position_embeddings": 32768,
                "sliding_window": 131072,
                "use_sliding_window": False,
                "max_window_layers": 28,
                "num_hidden_layers": 32,
                "num_key_value_heads": 32,
                "num_attention_heads": 32,
                "hidden_size": 4096,
            },
            524_288,
            id="i12-window-switched-off",
        ),
    ],
)
def test_kv_of_a_config(config, expected):
    assert kv_bytes_per_token(read(config), Layout(), "bf16") == expected


def test_i14_a_config_with_experts_weighs_what_they_weigh():
    config = {
        "model_type": "mixtral",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 32000,
        "tie_word_embeddings": False,
    }
    groups = weight_groups(read(config), H100, Layout(), "bf16")
    assert sum(group.stored_bytes for group in groups) / 1e9 == pytest.approx(93.4, rel=0.01)
    assert sum(group.stored_count * (1 - group.miss_fraction) for group in groups) / 1e9 == pytest.approx(
        12.9, rel=0.01
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("deepseek-ai/DeepSeek-V3", 70_272),
        ("Qwen/Qwen2.5-72B-Instruct", 327_680),
        ("meta-llama/Meta-Llama-3.1-405B", 516_096),
        ("meta-llama/Llama-3-8B-Instruct", 131_072),
    ],
)
def test_published_kv_figures_are_exact(name, expected):
    assert kv_bytes_per_token(catalog.model(name), Layout(), "bf16") == expected


def test_every_complete_model_of_the_catalog_weighs_its_parameters():
    for name in catalog.model_names():
        model = catalog.model(name)
        if model.parameter_count is None:
            continue
        groups = weight_groups(model, H100, Layout(), "bf16")
        weighed = sum(group.stored_count for group in groups if group.name != "vision")
        assert weighed == pytest.approx(model.parameter_count, rel=0.005), name
