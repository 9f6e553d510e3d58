"""From the words of a row to a model, a gpu and a deployment, or a sentence why not."""

import re
from dataclasses import replace
from functools import lru_cache

from tokenfleet.calibration.measured import Row
from tokenfleet.calibration.recipes import with_recipe
from tokenfleet.catalog import engine, engine_names, gpu, model
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import Deployment, EngineSettings, KvPrecision, Layout, Precision
from tokenfleet.performance import memory_budget, unsupported

_PRECISIONS: dict[str, Precision] = {
    "bf16": "bf16",
    "fp16": "bf16",
    "fp16/bf16": "bf16",
    "bfloat16": "bf16",
    "float16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "fp8_e4m3": "fp8",
    "int8": "int8",
    "w8a8": "int8",
    "fp4": "fp4",
    "nvfp4": "fp4",
    "mxfp4": "mxfp4",
    "int4": "int4",
    "uint4": "int4",
    "awq": "int4",
    "awq-int4": "int4",
    "gptq": "int4",
    "gptq-int4": "int4",
}
_NOT_STATED = frozenset({"unset", "n/a", "default"})
"""How sources write a precision that nobody stated."""
_PUBLISHED_AS = {"fp8": "fp8", "fp4": "nvfp4", "mxfp4": "mxfp4", "int4": "int4", "int8": "int8"}
_SPELLINGS = {"nim-trtllm": "trtllm", "tensorrt-llm": "trtllm", "lmdeploy-turbomind": "lmdeploy", "vllm-ascend": "vllm"}
_SOURCE_VERSIONS = {("argonne_llm_bench", "vllm"): "0.5", ("argonne_llm_bench", "trtllm"): "0.11"}
"""Versions that a source states for all its rows together: its runs are of mid 2024."""
_CHECKPOINT_FP8_KV = frozenset({"fp8", "fp4"})
"""Quantised checkpoints that TensorRT-LLM serves with an FP8 cache unless told otherwise."""
_SPLITS_LAYERS = frozenset({"llama.cpp"})
"""Engines whose several gpus hold different layers, whatever a benchmark calls its gpu count."""
_UNKNOWN_ENGINE = "vllm-0.11"
"""Settings of an engine that the catalog does not know; its constants are those of no engine in particular."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a row measured, resolved."""

    model: ModelArchitecture
    gpu: Gpu
    deployment: Deployment
    replica_count: int
    """Equal replicas that share the load of the row."""
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a row is not predicted."""

    reason: str
    """A short sentence that many rows can share."""
    detail: str = ""


def model_kind(architecture: ModelArchitecture) -> str:
    """``dense``, ``moe``, ``hybrid`` or ``latent_moe``: what a scoreboard groups by."""
    kinds = {entry.kind for entry in architecture.attention}
    experts = any(block.expert_count for block in architecture.feed_forward)
    if "recurrent" in kinds or "compressed" in kinds:
        return "hybrid_moe" if experts else "hybrid"
    if "latent" in kinds:
        return "latent_moe" if experts else "latent"
    return "moe" if experts else "dense"


def resolve(row: Row) -> Subject | Refusal:
    """Names looked up, layout completed, engine settings filled in.

    Args:
        row: after the lint.

    Returns:
        The subject, or a refusal whose reason is shared by rows of the same fate.
    """
    row = with_recipe(row)
    if row.mode == "disagg":
        row = _decode_side(row)
    part = _gpu(row.gpu) or _gpu(row.facts.get("accel", row.gpu))
    if part is None:
        return Refusal("gpu not in the catalog", row.gpu)
    architecture = _model(row.model)
    if architecture is None:
        return Refusal("model not in the catalog", row.model)
    if not row.engine:
        return Refusal("engine not stated", row.source)
    precision = _precision(row, architecture)
    if precision is None:
        return Refusal("precision not known to the catalog", str(row.precision))
    assumptions: list[str] = []
    layout = _layout(row, architecture, assumptions)
    if layout is None and row.gpu_count is not None:
        layout = _smallest(row, architecture, part, precision, assumptions)
    if layout is None:
        return Refusal("layout not published", row.source)
    deployment = _deployment(row, architecture, part, precision, layout)
    reasons = unsupported(architecture, part, deployment)
    if reasons:
        return Refusal(_general(reasons[0]), f"{row.model} on {row.gpu}: {reasons[0]}")
    gpus = row.gpu_count or layout.gpu_count
    return Subject(
        model=architecture,
        gpu=part,
        deployment=deployment,
        replica_count=max(gpus // layout.gpu_count, 1),
        assumptions=tuple(assumptions),
    )


def _deployment(
    row: Row, architecture: ModelArchitecture, part: Gpu, precision: Precision, layout: Layout
) -> Deployment:
    settings = _settings(row, part, layout)
    return Deployment(
        model=architecture.name,
        gpu=part.name,
        layout=layout,
        precision=precision,
        kv_precision=_kv_precision(row, settings.name, precision),
        engine=settings,
    )


def _smallest(
    row: Row, architecture: ModelArchitecture, part: Gpu, precision: Precision, assumptions: list[str]
) -> Layout | None:
    """For a row of whole systems: replicas of the fewest ranks that hold the model with as much KV as weights / 4."""
    ranks = 1
    while ranks <= (row.gpu_count or 0):
        deployment = _deployment(row, architecture, part, precision, Layout(tensor_parallel=ranks))
        if not unsupported(architecture, part, deployment):
            budget = memory_budget(architecture, part, deployment)
            if budget.fits and budget.kv_capacity_bytes >= budget.weights_bytes / 4:
                assumptions.append(f"layout not published: replicas of {ranks} ranks, the fewest with room")
                return deployment.layout
        ranks *= 2
    return None


def _decode_side(row: Row) -> Row:
    """The decode pool of a disaggregated deployment as a row of its own; one worker unless the notes count them."""

    def fact(name: str) -> int | None:
        text = row.facts.get(f"decode_{name}", "")
        return int(float(text)) if text.replace(".", "", 1).isdigit() and float(text) > 0 else None

    tp, dp = fact("tp_size"), fact("attention_dp_size") or 1
    return replace(
        row,
        tensor_parallel=tp,
        pipeline_parallel=fact("pp_size") or 1,
        attention_data_parallel=dp,
        expert_parallel=fact("moe_ep_size") or 1,
        gpu_count=None if tp is None else (fact("num_workers") or 1) * tp * dp,
    )


def _general(reason: str) -> str:
    """A reason without its numbers and names, so that rows of one fate are counted together."""
    text = re.sub(r"^[^:]+: ", "", reason)
    return re.sub(r"\d[\d,.]*", "N", text)


@lru_cache(maxsize=512)
def _gpu(name: str) -> Gpu | None:
    try:
        return gpu(name)
    except BadInput:
        return None


@lru_cache(maxsize=1024)
def _model(name: str) -> ModelArchitecture | None:
    try:
        return model(name)
    except BadInput:
        return None


def _precision(row: Row, architecture: ModelArchitecture) -> Precision | None:
    published = architecture.quantization
    if row.precision is None or row.precision in _NOT_STATED:
        return "checkpoint" if published is not None else "bf16"
    precision = _PRECISIONS.get(row.precision)
    if published is not None and precision is not None:
        same = _PUBLISHED_AS.get(precision) == published.number_format
        four_bit = precision == "fp4" and published.number_format == "mxfp4"
        if same or four_bit:
            return "checkpoint"
    return precision


def _kv_precision(row: Row, engine_name: str, precision: Precision) -> KvPrecision:
    if row.kv_precision and row.kv_precision.startswith("fp8"):
        return "fp8"
    stated = row.kv_precision not in {None, "auto"}
    quantised = row.precision in _CHECKPOINT_FP8_KV or precision in _CHECKPOINT_FP8_KV
    return "fp8" if engine_name.startswith("trtllm") and quantised and not stated else "bf16"


def _layout(row: Row, architecture: ModelArchitecture, assumptions: list[str]) -> Layout | None:
    """The layout of one replica; dense models run data parallel as replicas of their own."""
    tp = row.tensor_parallel
    if tp is None:
        if row.gpu_count != 1:
            return None
        tp = 1
        assumptions.append("one gpu, so one rank")
    if row.engine in _SPLITS_LAYERS:
        assumptions.append(f"{row.engine} spreads layers, not matrices, over its gpus")
        return Layout(pipeline_parallel=tp * row.pipeline_parallel)
    experts = any(block.expert_count for block in architecture.feed_forward)
    if experts and _spread_attention(architecture, tp):
        assumptions.append(f"{tp} ranks do not divide the heads: attention is data parallel, experts over all ranks")
        return Layout(pipeline_parallel=row.pipeline_parallel, attention_data_parallel=tp, expert_parallel=tp)
    dp = row.attention_data_parallel if experts else 1
    if dp > 1 and row.gpu_count is not None and tp * dp > row.gpu_count and row.gpu_count == tp and tp % dp == 0:
        assumptions.append("tensor parallel counts the ranks of data-parallel attention, as its engine's flag does")
        tp //= dp
    ep = row.expert_parallel if experts and (tp * dp) % row.expert_parallel == 0 else 1
    return Layout(
        tensor_parallel=tp, pipeline_parallel=row.pipeline_parallel, attention_data_parallel=dp, expert_parallel=ep
    )


def _spread_attention(architecture: ModelArchitecture, ranks: int) -> bool:
    """Whether a rank count can only be meant for the experts: no engine splits attention heads unevenly."""
    heads = [entry.query_head_count for entry in architecture.attention if entry.query_head_count]
    return any(count % ranks for count in heads)


def _settings(row: Row, part: Gpu, layout: Layout) -> EngineSettings:
    """Defaults of the nearest version not newer, named after the version that ran; stated settings win."""
    name = _SPELLINGS.get(row.engine, row.engine)
    version = _version(row)
    known = [one for one in engine_names() if one.rsplit("-", 1)[0] == name]
    chosen = _nearest(known, version) if known else _UNKNOWN_ENGINE
    base = engine(chosen, gpu=part)
    ranks = layout.attention_data_parallel
    budget = row.max_batched_tokens or base.max_batched_tokens
    if name == "trtllm":
        budget = max(budget, round((row.input_tokens or 0) + 1))
    if name != "sglang":
        budget *= ranks
    return replace(
        base,
        name=f"{name}-{version}" if version else (chosen if known else name),
        max_batched_tokens=budget,
        max_sequence_count=(row.max_sequence_count or base.max_sequence_count) * ranks,
        memory_utilization_fraction=row.memory_utilization_fraction or base.memory_utilization_fraction,
    )


def _version(row: Row) -> str | None:
    """``0.6.3`` of ``0.6.3-0.6.4``; disaggregated rows carry the version of the router, not of the engine."""
    stated = _SOURCE_VERSIONS.get((row.source, _SPELLINGS.get(row.engine, row.engine)))
    if row.mode == "disagg":
        return stated
    found = re.search(r"\d+\.\d+(?:\.\d+)?", row.engine_version or "")
    return found[0] if found and row.engine != "nim-trtllm" else stated


def _nearest(known: list[str], version: str | None) -> str:
    if version is None:
        return known[-1]
    wanted = tuple(int(part) for part in version.split("."))
    older = [one for one in known if tuple(int(part) for part in one.rsplit("-", 1)[1].split(".")) <= wanted]
    return older[-1] if older else known[0]
