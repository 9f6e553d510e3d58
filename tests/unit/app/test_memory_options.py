"""What lies on a gpu beside the model: said on the command line and in a scenario, counted by the memory model."""

import json

import pytest

from tokenfleet import catalog
from tokenfleet.app.cli import main
from tokenfleet.app.memory_spec import MemorySpec, with_memory
from tokenfleet.app.quantities import Unreadable, parse_bytes
from tokenfleet.domain.replica import Deployment, Layout
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
