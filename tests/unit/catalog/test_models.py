"""Names of models: exact, other checkpoints of one shape, files; and names nobody knows."""

import csv
import json

import pytest

from shared import SHARED, needs_shared
from tokenfleet.catalog import model, model_names
from tokenfleet.catalog.tables import rows
from tokenfleet.domain.errors import BadInput


@pytest.mark.parametrize(
    ("written", "name", "shape"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"),
        ("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"),
        ("Llama-3.3-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"),
        ("META-LLAMA/LLAMA-3.3-70B-INSTRUCT", "meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"),
        ("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Meta-Llama-3.1-70B"),
        ("deepseek-r1", "deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-R1"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-R1"),
        ("deepseek-r1-distill-qwen-14b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "Qwen/Qwen2.5-14B-Instruct"),
        ("Mixtral-8x7B-Instruct-v0.1", "mistralai/Mixtral-8x7B-v0.1", "mistralai/Mixtral-8x7B-v0.1"),
        ("gpt-oss-120b", "openai/gpt-oss-120b", "openai/gpt-oss-120b"),
        ("gemma-3-27b", "google/gemma-3-27b-it", "google/gemma-3-27b-it"),
        ("GPT-J 6B", "EleutherAI/gpt-j-6b", "EleutherAI/gpt-j-6b"),
        ("llama_3.1_8b_instruct", "meta-llama/Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B"),
    ],
)
def test_names_that_people_write(written, name, shape):
    found, same = model(written), model(shape)
    assert found.name == name
    assert (found.attention, found.feed_forward) == (same.attention, same.feed_forward)
    assert found.parameter_count == same.parameter_count


def test_another_checkpoint_of_a_shape_is_said_and_may_read_further():
    found = model("Qwen3-30B-A3B-Instruct-2507")
    assert found.name == "Qwen/Qwen3-30B-A3B-Instruct-2507"
    assert found.notes[-1].endswith("shape of Qwen/Qwen3-30B-A3B")
    assert not found.notes[-1].startswith(found.name), "where several models are named, the name stands before it"
    assert (found.max_context_tokens, model("Qwen/Qwen3-30B-A3B").max_context_tokens) == (262144, 40960)


def test_every_alias_leads_somewhere_and_hides_nothing():
    names = {name.lower() for name in model_names()}
    for row in rows("model_aliases"):
        assert row["model"] in model_names()
        assert row["written"].lower() not in names
        assert model(row["written"]).attention == model(row["model"]).attention


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("Llama-3.3-71B", "meta-llama/Llama-3.3-70B-Instruct"),
        ("qwen3-coder", "Qwen/Qwen3-Coder-480B-A35B-Instruct"),
        ("Qwen3-31B-FP8", "Qwen/Qwen3-32B"),
        ("mistral-large", "mistralai/Mistral-Large-Instruct-2411"),
        ("Llama-3.1-8B-Instrct", "nearest: Llama-3.1-8B-Instruct, meta-llama/Meta-Llama-3.1-70B"),
        ("meta-lama/Llama-3.1-8B-Instrct-FP8", "nearest: meta-llama/Llama-3.1-8B-Instruct-FP8"),
        ("comand-r", "nearest: command-r;"),
        ("nemotron-3-nanno", "nearest: nemotron-3-nano"),
    ],
)
def test_an_unknown_name_fails_with_the_nearest_and_is_never_guessed(name, nearest):
    with pytest.raises(BadInput) as error:
        model(name, where="plan.yaml:3: model")
    (problem,) = error.value.problems
    assert problem.where == "plan.yaml:3: model"
    assert nearest in problem.mend
    assert "config.json" in problem.mend
    for each in problem.mend.removeprefix("nearest: ").split("; ")[0].split(", "):
        assert model(each).layer_count, "what is offered can be written"


def test_a_name_like_nothing_asks_for_the_config():
    with pytest.raises(BadInput, match="give the path of the model's config"):
        model("zzzz")


def written(folder, **changes):
    config = {
        "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16,
        "intermediate_size": 4096, "vocab_size": 1000, "max_position_embeddings": 4096, "hidden_act": "silu",
    }  # fmt: skip
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def test_a_folder_and_its_config_file_are_the_same_model(tmp_path):
    folder = written(tmp_path / "my-llama")
    from_folder, from_file = model(str(folder)), model(str(folder / "config.json"))
    assert from_folder == from_file
    assert from_folder.name == "my-llama"
    assert from_folder.layer_count == 8


def test_a_quantization_file_beside_the_config_is_read(tmp_path):
    folder = written(tmp_path / "my-llama", _name_or_path="org/my-llama")
    (folder / "hf_quant_config.json").write_text(
        json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "exclude_modules": []}})
    )
    found = model(str(folder))
    assert found.name == "org/my-llama"
    assert found.quantization.number_format == "nvfp4"


def test_a_file_that_cannot_be_used_says_why(tmp_path):
    broken = tmp_path / "config.json"
    for text, what in (("{", "is not JSON"), ("[1]", "holds no JSON object"), ("{}", "model_type: config")):
        broken.write_text(text)
        with pytest.raises(BadInput, match=what.split(":", maxsplit=1)[0]):
            model(str(broken))
    with pytest.raises(BadInput, match="cannot read"):
        model(str(tmp_path / "absent.json"))


def test_a_folder_named_like_a_model_but_without_config_is_not_a_model(tmp_path, monkeypatch):
    (tmp_path / "gpt-oss-20b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert model("gpt-oss-20b").name == "openai/gpt-oss-20b"


UNKNOWN = {
    "Llama-3.2-11B-Vision",
    "gemma-4-12b",
    "gemma-4-E2B",
    "gemma-4-e4b-it",
    "stepfun-ai/Step-3.5-Flash",
    "tencent/Hy3",
    "DeepSeek-R1 (wide EP, disaggregated)",
    "DeepSeek-R1/V3 (wide EP)",
    "DeepSeek-V4-Flash preview",
    "DeepSeek-V4-Flash-0731 + draft",
    "Llama-3.1-8B (inferred from 128 KiB per token)",
    "Llama-3.1-8B + EAGLE draft",
    "Qwen2.5-0.5B 4-bit (inferred)",
}
"""Names of the measured data whose shape nobody here knows, or that carry a remark."""


@needs_shared
@pytest.mark.shared
def test_models_that_were_measured_resolve():
    names = set()
    for path in sorted((SHARED / "data/measured").rglob("*.csv")):
        with path.open(newline="") as lines:
            names |= {row["model"] for row in csv.DictReader(lines) if row.get("model")}
    assert len(names) > 100
    for name in sorted(names - UNKNOWN):
        assert model(name).layer_count > 0
    for name in UNKNOWN:
        with pytest.raises(BadInput):
            model(name)
