"""KV pools and fit verdicts that engines printed at start-up, against the memory model."""

import csv
from dataclasses import dataclass, replace

import numpy as np
import pytest

from shared import SHARED, needs_shared
from tokenfleet import catalog
from tokenfleet.domain.replica import Deployment, EngineSettings, Layout, MemoryFacts
from tokenfleet.performance import Stage, memory_budget

pytestmark = [pytest.mark.shared, needs_shared]

GIB = 2**30
NOTHING_ELSE = MemoryFacts()
LLAMA_8B = "Meta-Llama-3.1-8B"
QWEN_235B = "Qwen3-235B-A22B-FP8"


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a row leaves to the defaults of its engine, and names as the catalog spells them."""

    engine: str
    tokens: int = 2048
    slots: int = 256
    model: str = ""
    gpu: str = ""
    precision: str = ""
    kv: str = "bf16"
    tp: int = 0
    ep: int = 1
    stage: Stage | None = None
    facts: MemoryFacts = NOTHING_ELSE
    flaw: str = ""
    """Why the row is not scored, by what it says of itself."""


UNSTATED = "utilisation not stated"
OLD = "builds of 2023, whose profiling was being mended"
BIG = {"tokens": 8192, "slots": 1024}
RUNS = {
    "vllm-2031-b": Run(engine="vllm-0.2", tokens=4096, model="Llama-2-7b-hf", flaw=OLD),
    "vllm-2031-d": Run(engine="vllm-0.2", tokens=4096, model="Llama-2-70b-hf", flaw=OLD),
    # That engine profiled one prompt of the whole context limit.
    "vllm-10517-a": Run(engine="vllm-0.6", tokens=20000, model=LLAMA_8B),
    "vllm-10517-b": Run(engine="vllm-0.6", tokens=29000, model=LLAMA_8B),
    "vllm-13061": Run(engine="vllm-0.7"),
    "idx-55875904831": Run(engine="vllm-0.7", tokens=32768),
    "idx-6934259882": Run(engine="vllm-0.7", model="phi-4-bnb-4bit", gpu="h100_sxm"),
    "idx-33122952765": Run(engine="vllm-0.8", model="Qwen2.5-0.5B-Instruct", gpu="l40s", precision="int4"),
    "blis-17": Run(engine="vllm-0.11"),
    "blis-60": Run(engine="vllm-0.11"),
    "blis-61": Run(engine="vllm-0.11"),
    "blis-62": Run(engine="vllm-0.11"),
    "blis-63": Run(engine="vllm-0.11"),
    "blis-65": Run(engine="vllm-0.11"),
    "llmservingsim-4090": Run(engine="vllm-0.19", model=LLAMA_8B),
    "idx-70682754770": Run(engine="vllm-0.32", model=LLAMA_8B, **BIG),
    "idx-57428438798": Run(engine="vllm-0.20", gpu="rtx4090"),
    "vllm-21348-a": Run(engine="vllm-0.10", **BIG),
    "vllm-21348-b": Run(engine="sglang-0.5", tokens=8192, slots=2048),
    # 27.72 GiB of weights are those of eight ranks, not of four.
    "idx-38962983769": Run(engine="vllm-0.10", model=QWEN_235B, tp=8, ep=8),
    # It started with 819,200 tokens in 51 GiB, which 16-bit entries would need 71 for: the checkpoint asks for FP8.
    "idx-61511710941": Run(engine="vllm-0.32", tokens=16384, slots=1024, ep=4, kv="fp8"),
    "idx-61370435018": Run(engine="vllm-0.20", tokens=8192, model="Qwen3-VL-30B-A3B-Instruct-FP8"),
    "aisimulate-263": Run(engine="sglang-0.5", slots=2048),
    "vllm-34076": Run(engine="vllm-0.15", gpu="rtx5070ti", stage=Stage(layer_count=16, last=False)),
    "vllm-44376": Run(engine="vllm-0.22", kv="fp8", **BIG),
    "idx-56932817574": Run(
        engine="vllm-0.9",
        model=LLAMA_8B,
        facts=MemoryFacts(draft_weights_bytes=GIB // 2, draft_kv_bytes_per_token=4096),
        flaw=UNSTATED,
        **BIG,
    ),
    "recipes-k2t-tp8": Run(engine="vllm-0.11", flaw=UNSTATED, **BIG),
    "vllm-15928": Run(engine="vllm-0.8", tokens=8192, flaw=UNSTATED),
    "idx-54924313720": Run(engine="vllm-0.24", gpu="h100_sxm", flaw="gpu and version not named", **BIG),
    "idx-53530895476-c": Run(engine="vllm-0.20", gpu="jetson_thor", flaw="memory shared with the host"),
    "sglang-18263": Run(engine="sglang-0.5", gpu="mi355x", tokens=8192, slots=2048, flaw="patched allocator"),
}
PARTS = {
    "h100_80gb": "h100_sxm",
    "h200": "h200_sxm",
    "b200 (184 GiB)": "b200_sxm",
    "rtx_pro_6000": "rtx_pro_6000_server",
}


@pytest.fixture(scope="module")
def rows():
    with (SHARED / "data" / "measured" / "kv_capacity.csv").open() as file:
        return {row["case"]: row for row in csv.DictReader(file)}


def resolved(row, run, **settings):
    model = catalog.model(run.model or row["model"])
    gpu = catalog.gpu(run.gpu or PARTS.get(row["gpu"], row["gpu"]))
    if row["gpu_total_gib"]:
        gpu = replace(gpu, memory_bytes=round(float(row["gpu_total_gib"]) * GIB))
    engine = EngineSettings(
        name=run.engine,
        max_batched_tokens=int(row["max_num_batched_tokens"] or run.tokens),
        max_sequence_count=int(row["max_num_seqs"] or run.slots),
        block_tokens=int(row["block_size"] or 16),
        memory_utilization_fraction=float(row["gpu_mem_util"] or 0.9),
        prefix_caching=True,
        chunked_prefill=True,
        full_prompt_gate=False,
        async_scheduling=False,
        **settings,
    )
    deployment = Deployment(
        model=model.name,
        gpu=gpu.name,
        layout=Layout(tensor_parallel=run.tp or int(row["tp"]), expert_parallel=run.ep),
        precision=run.precision or ("checkpoint" if model.quantization else "bf16"),
        kv_precision=run.kv,
        engine=engine,
        memory=run.facts,
    )
    return model, gpu, deployment


def printed_bytes(row, budget):
    """The pool of one gpu. Where ranks differ the token count tells of the smallest; one row prints another rank's."""
    if row["available_kv_gib_per_gpu"] and row["case"] != "vllm-13061":
        return float(row["available_kv_gib_per_gpu"]) * GIB
    return float(row["kv_tokens"]) * budget.kv_bytes_per_token


def errors(rows, wanted):
    found = {}
    for case, run in RUNS.items():
        model, gpu, deployment = resolved(rows[case], run)
        experts = any(block.expert_count for block in model.feed_forward)
        if wanted(run, experts):
            budget = memory_budget(model, gpu, deployment, stage=run.stage)
            found[case] = budget.kv_capacity_bytes / printed_bytes(rows[case], budget) - 1
    return found


def test_dense_pools(rows):
    error = np.abs(list(errors(rows, lambda run, experts: not run.flaw and not experts).values()))
    assert len(error) == 14
    assert np.median(error) < 0.01
    assert np.quantile(error, 0.9) < 0.04


def test_all_pools(rows):
    # The worst: a compressed cache, a model with images whose utilisation was assumed, a small stage, a checkpoint
    # whose quantised parts nobody published.
    error = np.abs(list(errors(rows, lambda run, _experts: not run.flaw).values()))
    assert len(error) == 23
    assert np.median(error) < 0.025
    assert np.quantile(error, 0.9) < 0.13


def test_no_row_excluded(rows):
    error = np.abs(list(errors(rows, lambda _run, _experts: True).values()))
    assert len(error) == len(RUNS)
    assert np.median(error) < 0.035


@pytest.mark.parametrize(
    ("case", "tolerance"),
    [
        ("blis-60", 0.005),
        ("blis-61", 0.005),
        ("blis-62", 0.005),
        ("blis-63", 0.005),
        ("blis-65", 0.01),
        ("vllm-10517-a", 0.01),
        ("vllm-10517-b", 0.01),
        ("llmservingsim-4090", 0.02),
        ("idx-70682754770", 0.025),
    ],
)
def test_ordinary_pools_one_by_one(rows, case, tolerance):
    assert abs(errors(rows, lambda run, _experts: run is RUNS[case])[case]) < tolerance


@pytest.mark.parametrize(
    ("case", "limit", "started"),
    [
        ("vllm-10517-a", 20_000, True),
        ("vllm-10517-b", 29_000, False),
        ("vllm-13061", 131_072, False),
        ("vllm-34076", 262_144, False),
        ("vllm-44376", 30_000, False),
        ("idx-55875904831", 32_768, True),
        ("idx-6934259882", 512, True),
        ("idx-57428438798", 32_768, True),
        ("idx-70682754770", 131_072, True),
        ("llmservingsim-4090", 32_768, True),
        ("idx-38962983769", 32_768, True),
        ("idx-61370435018", 32_768, True),
        ("idx-61511710941", 819_200, True),
        ("blis-60", None, True),
        ("blis-17", None, True),
        ("vllm-21348-a", None, True),
        ("vllm-21348-b", None, True),
        ("aisimulate-263", None, True),
    ],
)
def test_verdicts_are_right_or_too_close_to_call(rows, case, limit, started):
    run = RUNS[case]
    model, gpu, deployment = resolved(rows[case], run, context_limit_tokens=limit)
    budget = memory_budget(model, gpu, deployment, stage=run.stage)
    assert budget.fits == started or budget.too_close_to_call


@pytest.mark.parametrize(("fraction", "starts"), [(0.88, False), (0.9335, True)])
def test_the_smallest_fraction_that_started(rows, fraction, starts):
    row = {**rows["inferencex-2128"], "gpu_mem_util": str(fraction)}
    model, gpu, deployment = resolved(row, Run(engine="sglang-0.5", tokens=8192, slots=2048))
    whole = round(float(row["weights_gib_per_gpu"]) * 8 * GIB)
    measured = replace(deployment, memory=MemoryFacts(checkpoint_bytes=whole))
    budget = memory_budget(model, gpu, measured)
    assert budget.fits == starts or budget.too_close_to_call
