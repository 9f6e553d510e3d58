"""Defaults of engine versions by the memory of the gpu, and the A100 that counts as small."""

import pytest

from tokenfleet.catalog import engine, engine_names, gpu
from tokenfleet.catalog.tables import rows
from tokenfleet.domain.errors import BadInput


def budget(name, part):
    found = engine(name, gpu=gpu(part))
    return found.max_batched_tokens, found.max_sequence_count


@pytest.mark.parametrize(
    ("name", "part", "expected"),
    [
        ("vllm", "h100_sxm", (8192, 1024)),
        ("vllm", "a100_sxm_80gb", (2048, 256)),
        ("vllm", "a100_pcie_80gb", (2048, 256)),
        ("vllm", "l40s", (2048, 256)),
        ("vllm", "h200_sxm", (8192, 1024)),
        ("vllm", "b200_sxm", (16384, 1024)),
        ("vllm", "mi300x", (16384, 1024)),
        ("vllm-0.24", "b200_sxm", (8192, 1024)),
        ("vllm-0.11", "h100_sxm", (8192, 1024)),
        ("sglang", "t4", (2048, 2048)),
        ("sglang", "l4", (4096, 2048)),
        ("sglang", "h100_sxm", (8192, 2048)),
        ("sglang", "a100_sxm_80gb", (8192, 2048)),
        ("sglang", "b200_sxm", (16384, 2048)),
        ("trtllm", "h100_sxm", (8192, 2048)),
    ],
)
def test_budgets_follow_the_memory(name, part, expected):
    assert budget(name, part) == expected


def test_versions_differ_where_their_sources_do():
    h100 = gpu("h100_sxm")
    old, middle, newest = (engine(name, gpu=h100) for name in ("vllm-0.11", "vllm-0.16", "vllm"))
    assert newest.name == "vllm-0.32"
    assert [one.memory_utilization_fraction for one in (old, middle, newest)] == [0.90, 0.90, 0.92]
    assert [one.async_scheduling for one in (old, middle, newest)] == [False, True, True]
    assert [one.full_prompt_gate for one in (old, middle, newest)] == [False, False, True]
    assert newest.block_tokens == 16
    assert newest.watermark_fraction == 0.0


def test_sglang_keeps_aside_what_its_chunk_needs():
    h100 = gpu("h100_sxm")
    reserve = 0.5 + 1.5 * 8192 / 1024
    assert engine("sglang", gpu=h100).memory_utilization_fraction == pytest.approx(1 - reserve / 79.2, abs=0.001)
    rtx = gpu("rtx4090")
    assert engine("sglang", gpu=rtx).memory_utilization_fraction == pytest.approx(1 - 6.5 / 23.52, abs=0.001)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("vllm", "vllm-0.32"),
        ("vLLM 0.32.0", "vllm-0.32"),
        ("vllm==0.24.0", "vllm-0.24"),
        ("vllm-v0.11.2", "vllm-0.11"),
        ("SGLang", "sglang-0.5"),
        ("sglang-0.5.23", "sglang-0.5"),
        ("TensorRT-LLM", "trtllm-1.2"),
        ("tensorrt-llm 1.2", "trtllm-1.2"),
    ],
)
def test_spellings(written, name):
    assert engine(written, gpu=gpu("h100_sxm")).name == name


@pytest.mark.parametrize("name", ["vllm-0.19", "vllm-0.3", "tgi", "", "vllm-latest"])
def test_rules_that_nobody_read_are_refused_with_what_there_is(name):
    with pytest.raises(BadInput) as error:
        engine(name, gpu=gpu("h100_sxm"), where="engine")
    assert "vllm-0.32" in error.value.problems[0].mend


def test_every_engine_has_a_default_for_the_smallest_gpu_and_a_source():
    for name in engine_names():
        settings = engine(name, gpu=gpu("t4"))
        assert settings.name == name
        assert 0 < settings.memory_utilization_fraction < 1
    assert all(row["source"] and row["as_of"] for row in rows("engines"))
