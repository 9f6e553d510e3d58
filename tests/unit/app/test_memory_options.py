"""What lies on a gpu beside the model: said on the command line and in a scenario, counted by the memory model."""

import json
from dataclasses import replace

import pytest
from pydantic import ValidationError

from tokenfleet import catalog
from tokenfleet.app.cli import main
from tokenfleet.app.engine_settings import with_overrides
from tokenfleet.app.memory_spec import MemorySpec, with_memory
from tokenfleet.app.quantities import Unreadable, parse_bytes
from tokenfleet.app.scenario_types import EngineChoice
from tokenfleet.domain.replica import Deployment, Layout, Speculation
from tokenfleet.performance import memory_budget

MODEL = "meta-llama/Meta-Llama-3.1-8B"
DRAFT = "meta-llama/Llama-3.2-1B-Instruct"
GIB = 2**30


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([*arguments])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def terms(spec: MemorySpec, **layout: int) -> dict[str, int]:
    gpu, model = catalog.gpu("h100_sxm"), catalog.model(MODEL)
    asked = Deployment(
        model=model.name,
        gpu=gpu.name,
        layout=Layout(**layout),
        precision="bf16",
        kv_precision="bf16",
        engine=catalog.engine("vllm", gpu=gpu),
    )
    return dict(memory_budget(model, gpu, with_memory(asked, model, gpu, spec)).terms_bytes)


def test_every_option_has_a_term_that_the_pool_pays() -> None:
    plain = terms(MemorySpec())
    for spec, name, least in (
        (MemorySpec(adapters=8, adapter_rank=64), "adapters", GIB // 2),
        (MemorySpec(draft=DRAFT), "draft", 2 * GIB),
        (MemorySpec(draft="mtp"), "draft", GIB // 4),
        (MemorySpec.model_validate({"safety": "2GiB"}), "safety", 2 * GIB),
    ):
        found = terms(spec)
        assert found[name] >= least
        assert found["kv_cache"] <= plain["kv_cache"] - least + GIB // 100
        assert sum(found.values()) == sum(plain.values())


def test_a_draft_follows_the_layout() -> None:
    alone, shared = (terms(MemorySpec(draft=DRAFT), tensor_parallel=ranks)["draft"] for ranks in (1, 4))
    assert alone / 4.5 < shared < alone / 3.5


def test_the_command_counts_them(run) -> None:
    arguments = ["memory", "--model", MODEL, "--gpu", "h100_sxm", "--json"]
    code, out, _ = run(*arguments, "--adapters", "8", "--adapter-rank", "64", "--safety", "2GiB")
    found = json.loads(out)["terms_bytes"]
    assert (code, found["safety"]) == (0, 2 * GIB)
    assert found["adapters"] > GIB // 2
    vision = ["memory", "--model", "Qwen/Qwen2.5-VL-7B-Instruct", "--gpu", "h100_sxm", "--json"]
    few, many = (
        json.loads(run(*vision, "--image-tokens", tokens)[1])["terms_bytes"]["encoder_reserve"]
        for tokens in ("16384", "65536")
    )
    assert few < many


def test_what_is_wrong_is_said_by_option(run) -> None:
    arguments = ["memory", "--model", MODEL, "--gpu", "h100_sxm"]
    code, _, said = run(*arguments, "--draft", "no-such-model", "--safety", "4")
    assert code == 2
    assert "--draft: unknown model 'no-such-model'" in said
    assert '--safety: "4" is not a size; write 10GiB, 500MiB or 10GB' in said
    code, _, said = run(*arguments, "--adapters", "4")
    assert code == 2
    assert "give adapters and adapter_rank" in said


def test_what_does_not_fit_beside_others_says_what_would(run) -> None:
    arguments = ["memory", "--model", MODEL, "--gpu", "h100_sxm", "--json"]
    # The engine takes its share of the whole, whoever else is there: the neighbour must fit into what it leaves.
    crowded = json.loads(run(*arguments, "--neighbours", "10GiB")[1])
    assert crowded["fits"] is False
    assert "Neighbours" in crowded["reasons"][0]
    drafted = json.loads(run(*arguments, "--draft", "meta-llama/Meta-Llama-3.1-70B")[1])
    assert drafted["fits"] is False
    assert drafted["smallest_that_fits"]


@pytest.mark.parametrize(
    ("written", "size"), [("10GiB", 10 * GIB), ("500MiB", 500 * 2**20), ("10GB", 10**10), ("1.5 GiB", 3 * GIB // 2)]
)
def test_sizes(written: str, size: int) -> None:
    assert parse_bytes(written) == size


@pytest.mark.parametrize("written", ["10", 10, "10G", "0GiB", None, "-1GiB"])
def test_no_sizes(written: object) -> None:
    with pytest.raises(Unreadable):
        parse_bytes(written)


def test_speculation_is_drafted_by_the_draft_of_the_memory() -> None:
    gpu, model = catalog.gpu("h100_sxm"), catalog.model(MODEL)
    choice = EngineChoice.model_validate({"speculation": {"tokens": 3, "acceptance": "70%"}})
    engine = with_overrides(catalog.engine("vllm", gpu=gpu), choice, model)
    asked = Deployment(
        model=model.name, gpu=gpu.name, layout=Layout(), precision="bf16", kv_precision="bf16", engine=engine
    )
    assert engine.speculation == Speculation(draft_token_count=3, acceptance_fraction=0.7)
    drafted = with_memory(asked, model, gpu, MemorySpec(draft=DRAFT)).engine.speculation
    assert drafted == replace(engine.speculation, drafter=DRAFT)
    assert with_memory(asked, model, gpu, MemorySpec()).engine.speculation == engine.speculation


def test_speculation_goes_with_priorities_and_limits_on_long_prompts() -> None:
    choice = EngineChoice.model_validate(
        {"speculation": {"tokens": 2, "acceptance": "50%"}, "scheduling": "priority", "long_prefill_tokens": 500}
    )
    assert choice.scheduling == "priority"


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({"prefill_decode_interval": 4}, "is a setting of sglang"),
        ({"receive_interval": 10}, "is a setting of sglang"),
        (
            {"speculation": {"tokens": 2, "acceptance": "50%"}, "preemption": "swap", "swap_space": "4GB"},
            "is not replayed with swap",
        ),
        ({"speculation": {"tokens": 2}}, "acceptance"),
        ({"speculation": {"tokens": -1, "acceptance": "50%"}}, "tokens"),
    ],
)
def test_what_an_engine_cannot_be_set_to(engine, says) -> None:
    with pytest.raises(ValidationError, match=says):
        EngineChoice.model_validate(engine)


def test_capacity_reads_what_lies_beside_the_model(run) -> None:
    def row(*options):
        code, out, _ = run(
            *("capacity", "--model", "Qwen/Qwen3-8B", "--gpu", "h100_sxm", "--tp", "1", "--precision", "fp8"),
            *("--json", *options),
        )
        assert code == 0
        return json.loads(out)["rows"][0]

    plain, laden = row(), row("--adapters", "8", "--adapter-rank", "64", "--draft", "mtp", "--safety", "4GiB")
    held = laden["memory"]["terms_bytes"]
    assert held["safety"] == 4 * GIB
    assert {"adapters", "draft"} <= set(held)
    assert sum(held.values()) == laden["memory"]["total_bytes"]
    assert laden["memory"]["kv_capacity_tokens"] < plain["memory"]["kv_capacity_tokens"]
    drafting = row("--draft", "mtp", "--drafted", "3", "--acceptance", "70%")
    assert drafting["cells"]["stream_tokens_per_s"]["value"] > 1.3 * plain["cells"]["stream_tokens_per_s"]["value"]
    gain = drafting["cells"]["decode_tokens_per_s"]["value"] / plain["cells"]["decode_tokens_per_s"]["value"]
    assert gain < 1.1


def test_capacity_names_the_option_that_is_wrong(run) -> None:
    code, _, err = run("capacity", "--model", "Qwen/Qwen3-8B", "--drafted", "3")
    assert code == 2
    assert "--acceptance: is missing" in err
    code, _, err = run("capacity", "--model", "Qwen/Qwen3-8B", "--adapters", "3")
    assert code == 2
    assert "--adapters" in err
