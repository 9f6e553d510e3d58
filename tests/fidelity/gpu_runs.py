"""1,200 requests that vLLM 0.19 served on one and two workstation cards, replayed with the shipped physics.

Source: LLMServingSim's measured runs, four times 300 ShareGPT requests at about ten per second, far above what
the cards carry. The engine's stamps are on a monotonic clock of their own; arrivals are on the wall clock. The
quickest way from one to the other is taken for the offset, so that the wait for the running step counts as part of
TTFT and the front end does not: the replay runs with no front end either.
"""

import json
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import polars as pl

from fidelity.errors import Measured, Run
from shared import SHARED
from tokenfleet import catalog
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.replica import Deployment, Layout, ReplicaPhysics
from tokenfleet.domain.trace import Trace
from tokenfleet.performance import replica_physics, scaled
from tokenfleet.simulator import replay

TRACES = SHARED / "data" / "traces"
RULES, VERSION = "vllm-0.16", "vllm-0.19"
"""The newest batching rules in the catalog that are not newer than what was measured; memory goes by the version."""
GPUS = {"RTXPRO6000": "rtx_pro_6000_server", "RTX4090": "rtx4090"}
MODELS = {
    "Llama-3.1-8B": "meta-llama/Meta-Llama-3.1-8B",
    "Qwen3-30B-A3B-Instruct-2507": "Qwen/Qwen3-30B-A3B",
    "Qwen3-32B": "Qwen/Qwen3-32B",
}
"""The instruction release of the 30B model has the shapes of the first one."""
RUNS = (
    ("RTXPRO6000", "Llama-3.1-8B"),
    ("RTXPRO6000", "Qwen3-30B-A3B-Instruct-2507"),
    ("RTXPRO6000", "Qwen3-32B"),
    ("RTX4090", "Llama-3.1-8B"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One run as its files tell it."""

    trace: Trace
    measured: Measured
    physics: ReplicaPhysics
    known_block_count: int | None
    """KV blocks the engine reported, without the one it keeps for itself."""


def physics_of(gpu_name: str, model_name: str, arguments: dict) -> ReplicaPhysics:
    """The replica those engine arguments start; limits are per rank, so data parallel ranks add up."""
    ranks = arguments["data_parallel_size"]
    gpu, model = catalog.gpu(GPUS[gpu_name]), catalog.model(MODELS[model_name])
    engine = replace(
        catalog.engine(RULES, gpu=gpu),
        name=VERSION,
        max_batched_tokens=arguments["max_num_batched_tokens"] * ranks,
        max_sequence_count=arguments["max_num_seqs"] * ranks,
        context_limit_tokens=arguments["max_model_len"],
    )
    layout = Layout(
        tensor_parallel=arguments["tensor_parallel_size"],
        attention_data_parallel=ranks,
        expert_parallel=ranks if arguments["enable_expert_parallel"] else 1,
    )
    deployment = Deployment(
        model=model.name, gpu=gpu.name, layout=layout, precision="bf16", kv_precision="bf16", engine=engine
    )
    physics = replica_physics(model, gpu, deployment)
    return replace(physics, step_time=replace(physics.step_time, request_ps=0))


@cache
def served(gpu_name: str, model_name: str) -> Served:
    """Trace, measured times and physics of one run."""
    meta = json.loads((TRACES / "llmservingsim_measured_meta.json").read_text())[f"{gpu_name} {model_name}"]
    frame = pl.read_csv(TRACES / "llmservingsim_measured_requests.csv.gz")
    frame = frame.filter((pl.col("gpu") == gpu_name) & (pl.col("model") == model_name)).sort("arrival_time")
    arrival_s = (frame["arrival_time"] - frame["arrival_time"][0]).to_numpy()
    start_s = frame["arrival_time"][0] + (frame["queued_ts"] - frame["arrival_time"]).min()
    first_s, last_s = (frame[name].to_numpy() - start_s for name in ("first_token_ts", "last_token_ts"))
    output_tokens = frame["output_toks"].to_numpy().astype(np.int32)
    return Served(
        trace=Trace(
            arrival_s=arrival_s,
            input_tokens=frame["input_toks"].to_numpy().astype(np.int32),
            output_tokens=output_tokens,
        ),
        measured=Measured(
            ttft_s=first_s - arrival_s, tpot_s=(last_s - first_s) / (output_tokens - 1), e2e_s=last_s - arrival_s
        ),
        physics=physics_of(gpu_name, model_name, meta["engine_kwargs"]),
        known_block_count=meta["kv_cache"]["num_gpu_blocks"] - 1 if meta["kv_cache"] else None,
    )


@cache
def run(gpu_name: str, model_name: str, *, known_pool: bool = False, step_time_factor: float = 1.0) -> Run:
    """Replay one run.

    ``known_pool`` takes the engine's KV blocks, where it told them, instead of the predicted ones;
    ``step_time_factor`` multiplies every duration of the shipped physics.
    """
    seen = served(gpu_name, model_name)
    known = known_pool and seen.known_block_count is not None
    physics = replace(
        seen.physics,
        step_time=scaled(seen.physics.step_time, step_time_factor),
        kv_block_count=seen.known_block_count if known else seen.physics.kv_block_count,
    )
    fleet = Fleet(groups=(ReplicaGroup(replica=physics, replica_count=1),))
    name = f"{gpu_name} {model_name}" + (", engine's own KV pool" if known else "")
    name += "" if step_time_factor == 1.0 else f", step time x {step_time_factor:.3f}"
    return Run(name=name, arrival_s=seen.trace.arrival_s, measured=seen.measured, predicted=replay(seen.trace, fleet))


def matched_run(gpu_name: str, model_name: str) -> Run:
    """The same with step time multiplied by the one number that makes the run end when it did.

    In sample: it shows what is left once the speed of the hardware is known, and predicts nothing.
    """
    factor = 1.0
    for _ in range(4):
        found = run(gpu_name, model_name, known_pool=True, step_time_factor=round(factor, 3))
        measured_s, predicted_s = found.makespans_s
        factor *= measured_s / predicted_s
    return found


def runs() -> list[Run]:
    """All four, and the one that ran out of KV once more with the pool it really had."""
    return [*(run(*names) for names in RUNS), run(*RUNS[-1], known_pool=True)]
