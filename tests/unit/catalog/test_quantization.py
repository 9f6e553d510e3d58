"""Quantization blocks of configs, and endings of checkpoint names."""

import pytest

from tokenfleet.catalog import model, read_config

DENSE = {
    "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16,
    "intermediate_size": 4096, "vocab_size": 1000, "max_position_embeddings": 4096, "hidden_act": "silu",
}  # fmt: skip
MIXTURE = {**DENSE, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
LINEAR = ("attention", "feed_forward", "experts")


def quantized(block, config=DENSE):
    return read_config({**config, "quantization_config": block}, name="m", source="config.json")


def group(bits, kind, *, activations=None, targets=("Linear",), size=None, **more):
    weights = {"num_bits": bits, "type": kind, "group_size": size, "symmetric": True, **more}
    return {"targets": list(targets), "weights": weights, "input_activations": activations}


def tensors(*groups, ignore=("lm_head",)):
    named = {f"group_{number}": one for number, one in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named, "ignore": list(ignore)}


EIGHT = {"num_bits": 8, "type": "float"}


@pytest.mark.parametrize(
    ("block", "number_format", "bits", "weight_only"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", 8 + 32 / 128**2, False),
        ({"quant_method": "fbgemm_fp8"}, "fp8", 8.0, False),
        (tensors(group(8, "float", activations=EIGHT)), "fp8", 8.0, False),
        (tensors(group(8, "int", activations=EIGHT)), "int8", 8.0, False),
        (tensors(group(4, "int", size=128)), "int4", 4 + 16 / 128, True),
        (tensors(group(4, "float", activations=EIGHT, size=16)), "nvfp4", 4.5, False),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4", 4 + 20 / 128, True),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "int8", 8 + 24 / 128, True),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "int4", 4.0, True),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, "int4", 4 + 20 / 64, True),
        ({"quant_method": "intel/auto-round", "bits": 4, "group_size": 128}, "int4", 4 + 20 / 128, True),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4", 4.5, False),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, "fp8", 8.0, False),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", 4.5, True),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            "int4", 4.127, True,
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 8.0, True),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}}, "mxfp4", 4.25, False),
    ],
)  # fmt: skip
def test_methods_that_engines_write(block, number_format, bits, weight_only):
    found = quantized(block).quantization
    assert found.number_format == number_format
    assert found.bits_per_weight == pytest.approx(bits)
    assert found.weight_only is weight_only
    assert found.quantized_parts == LINEAR


def test_mxfp4_covers_experts_alone():
    found = quantized({"quant_method": "mxfp4"}, MIXTURE).quantization
    assert (found.quantized_parts, found.bits_per_weight, found.weight_only) == (("experts",), 4.25, True)


@pytest.mark.parametrize(
    ("ignore", "parts"),
    [
        (["lm_head"], LINEAR),
        ([], (*LINEAR, "head")),
        (["lm_head", "re:.*self_attn.*"], ("feed_forward", "experts")),
        (["lm_head", "*self_attn*"], ("feed_forward", "experts")),
        (["lm_head", "model.layers.*.self_attn"], ("feed_forward", "experts")),
        (["lm_head", "re:.*self_attn.*", "re:.*shared_expert.*", "re:.*gate$"], ("experts",)),
        (["lm_head", *(f"model.layers.{layer}.self_attn.q_proj" for layer in (0, 11))], LINEAR),
        (["lm_head", *(f"model.layers.{layer}.mlp.experts" for layer in range(12))], ("attention", "feed_forward")),
    ],
)
def test_exceptions_take_out_whole_parts(ignore, parts):
    found = quantized(tensors(group(8, "float", activations=EIGHT), ignore=ignore), MIXTURE).quantization
    assert found.quantized_parts == parts
    assert found.unquantized == tuple(ignore)


def test_experts_in_another_format_than_the_rest():
    attention = group(8, "float", activations=EIGHT, targets=["re:.*self_attn.*"])
    experts = group(4, "float", activations=EIGHT, targets=["re:.*mlp.*"], size=16)
    found = quantized(tensors(attention, experts, ignore=["lm_head"]), MIXTURE).quantization
    assert (found.number_format, found.bits_per_weight, found.expert_bits_per_weight) == ("fp8", 8.0, 4.5)
    assert set(found.quantized_parts) == set(LINEAR)


def test_layers_listed_one_by_one():
    layers = {f"model.layers.{layer}.mlp.experts": {"quant_algo": "NVFP4"} for layer in range(12)}
    block = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    assert quantized(block, MIXTURE).quantization.quantized_parts == ("experts",)
    layers["model.layers.0.mlp.experts"] = {"quant_algo": "FP8"}
    assert quantized(block, MIXTURE).quantization.bits_per_weight is None


def test_a_method_nobody_knows_has_unknown_bits_and_says_so():
    found = quantized({"quant_method": "brandnew"})
    assert found.quantization.bits_per_weight is None
    assert "does not say how many bits" in found.notes[-1]
    assert read_config(DENSE, name="m", source="config.json").quantization is None


@pytest.mark.parametrize(
    ("name", "base", "number_format", "bits"),
    [
        ("Qwen2.5-7B-Instruct-GPTQ-Int8", "Qwen/Qwen2.5-7B-Instruct", "int8", 8.1875),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "Qwen/Qwen2.5-7B-Instruct", "int4", 4.15625),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "meta-llama/Meta-Llama-3.1-8B", "fp8", 8.0),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "meta-llama/Meta-Llama-3.1-8B", "int8", 8.0),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "meta-llama/Meta-Llama-3.1-8B", "int4", 4.15625),
        ("Qwen/Qwen3-32B-AWQ", "Qwen/Qwen3-32B", "int4", 4.15625),
        ("nvidia/Qwen3-32B-NVFP4", "Qwen/Qwen3-32B", "nvfp4", 4.5),
        ("unsloth/phi-4-bnb-4bit", "microsoft/phi-4", "int4", 4.5),
        ("amd/Llama-3.3-70B-Instruct-MXFP4", "meta-llama/Llama-3.3-70B-Instruct", "mxfp4", 4.25),
    ],
)
def test_endings_of_names(name, base, number_format, bits):
    found, plain = model(name), model(base)
    assert found.attention == plain.attention
    assert found.feed_forward == plain.feed_forward
    assert (found.quantization.number_format, found.quantization.bits_per_weight) == (number_format, bits)
    assert "read from the name" in found.notes[-1]


def test_an_ending_that_says_what_the_checkpoint_is_keeps_what_its_config_says():
    assert model("deepseek-ai/DeepSeek-R1-FP8").quantization == model("deepseek-ai/DeepSeek-R1").quantization
    assert model("unsloth/DeepSeek-R1-BF16").quantization is None
    assert model("nvidia/DeepSeek-R1-NVFP4").quantization.number_format == "nvfp4"


def test_meta_keeps_attention_of_405b_in_16_bit_and_others_do_not():
    meta = model("meta-llama/Llama-3.1-405B-Instruct-FP8").quantization
    assert meta.quantized_parts == ("feed_forward",)
    assert model("Llama-3.1-405B-FP8").quantization == meta
    assert model("RedHatAI/Meta-Llama-3.1-405B-Instruct-FP8").quantization.quantized_parts == LINEAR


def test_the_checkpoints_of_the_catalog():
    assert model("openai/gpt-oss-120b").quantization.quantized_parts == ("experts",)
    assert model("moonshotai/Kimi-K2.5").quantization.quantized_parts == ("experts",)
    assert model("moonshotai/Kimi-K3").quantization.bits_per_weight is None
    flash = model("deepseek-ai/DeepSeek-V4-Flash").quantization
    assert (flash.number_format, flash.expert_bits_per_weight) == ("fp8", 4.25)
