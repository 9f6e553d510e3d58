"""Memory that an engine reported at start-up, against the memory budget: the KV pool, row by row."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tokenfleet.calibration.measured import Measurement, Row
from tokenfleet.calibration.subject import Refusal, Subject, resolve
from tokenfleet.domain.errors import BadInput, OutOfRange
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import MemoryBudget
from tokenfleet.performance import memory_budget
from tokenfleet.performance.coefficients import engine_family, engine_version

GIB = 2**30
REQUIRED = ("case", "model", "gpu", "engine")
_UNSPLIT_TOKENS = 32_768
_SPLIT_BUDGET_TOKENS = 512
_CONTRADICTION = 1 / 3
_POOL_COLUMNS = ("available_kv_gib_per_gpu", "kv_tokens", "kv_blocks", "max_concurrency")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCase:
    """One start-up log."""

    row: Row
    """Model, gpu, engine and settings, as a row without load."""
    total_gib: float | None
    context_limit_tokens: int | None
    pool_gib: float | None
    """KV per gpu as printed."""
    pool_tokens: float | None
    """Tokens of one replica as printed; in hybrid models concurrency times limit, which is no capacity."""
    max_concurrency: float | None
    weights_gib: float | None = None
    """Weights per gpu as printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolScore:
    """A case predicted: measured and predicted pool in one unit, and the rule that sets the case apart."""

    subject: Subject
    measured: float
    predicted: float
    flag: str


MEMORY_RULES = {
    "utilisation-not-stated": "the share of memory that the engine was given is not stated, and people change it",
    "build-of-2023": "a build of 2023, whose memory profiling was being mended",
    "patched-build": "the notes say that the build or its allocator was patched",
    "unified-memory": "the memory is shared with the host, which takes what it likes",
    "weights-contradict": "the printed weights differ by a third or more from what the stated layout gives",
}
"""Written rules that set start-up logs apart; none looks at the pool."""


def is_memory_table(path: str | Path) -> bool:
    """Whether a file holds start-up logs rather than runs."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            columns = file.readline().strip().split(",")
    except (OSError, UnicodeDecodeError):
        return False
    return all(name in columns for name in REQUIRED) and any(name in columns for name in _POOL_COLUMNS)


def read_memory_cases(path: str | Path) -> tuple[MemoryCase, ...]:
    """Read start-up logs: one case per line, memory in GiB per gpu, tokens per replica.

    Raises:
        BadInput: the file is missing or lacks a required column.
    """
    import polars as pl

    path = Path(path)
    if not path.is_file():
        raise BadInput.at(str(path), "no such file", "give a CSV file of start-up logs")
    frame = pl.read_csv(path, infer_schema=False)
    missing = [name for name in REQUIRED if name not in frame.columns]
    if missing:
        raise BadInput.at(str(path), f"lacks the column(s) {', '.join(missing)}", f"required are {', '.join(REQUIRED)}")
    return tuple(
        _case(f"{path.name}:{line}", path.stem, record)
        for line, record in enumerate(frame.iter_rows(named=True), start=2)
    )


def _case(where: str, source: str, record: dict[str, str | None]) -> MemoryCase:
    def text(name: str) -> str:
        return (record.get(name) or "").strip()

    def number(name: str) -> float | None:
        try:
            value = float(text(name))
        except ValueError:
            return None
        return value if value > 0 else None

    def count(name: str) -> int | None:
        value = number(name)
        return None if value is None else round(value)

    blocks, block = number("kv_blocks"), number("block_size")
    tokens = blocks * block if blocks and block else number("kv_tokens")
    pool = number("available_kv_gib_per_gpu")
    row = Row(
        row_id=where,
        source=source,
        model=re.sub(r"\s*\(.*\)", "", text("model")),
        gpu=re.sub(r"\s*\(.*\)", "", text("gpu")).lower(),
        engine=text("engine").lower(),
        engine_version=_version(text("engine").lower(), text("engine_version")),
        precision=text("weight_precision").lower() or None,
        kv_precision=text("kv_dtype").lower() or None,
        gpu_count=count("n_gpus"),
        tensor_parallel=count("tp"),
        pipeline_parallel=count("pp") or 1,
        expert_parallel=1,
        attention_data_parallel=1,
        mode="agg",
        workload="start-up",
        input_tokens=None,
        output_tokens=None,
        concurrency=None,
        request_rate_per_s=None,
        request_count=None,
        duration_s=None,
        max_sequence_count=count("max_num_seqs"),
        max_batched_tokens=count("max_num_batched_tokens"),
        memory_utilization_fraction=number("gpu_mem_util"),
        measured_date="",
        quality=text("quality") or "A",
        notes=text("notes"),
        measurements=tuple(Measurement("kv_pool", "exact", value) for value in (pool or tokens,) if value),
    )
    return MemoryCase(
        row=row,
        total_gib=number("gpu_total_gib"),
        context_limit_tokens=count("max_model_len"),
        pool_gib=pool,
        pool_tokens=tokens,
        max_concurrency=number("max_concurrency"),
        weights_gib=number("weights_gib_per_gpu"),
    )


_RELEASED = (
    *(("2023-09", "0.2"), ("2024-01", "0.3"), ("2024-03", "0.4"), ("2024-06", "0.5"), ("2024-09", "0.6")),
    *(("2025-01", "0.7"), ("2025-03", "0.8"), ("2025-05", "0.9"), ("2025-07", "0.10"), ("2025-10", "0.11")),
)
"""Months in which minor versions of vLLM came out."""
_LAST_KNOWN = "2025-11"


def _version(engine: str, stated: str) -> str | None:
    """The version as stated; the newest of its month where only a date of a release known here is given."""
    dated = re.match(r"(20\d\d-\d\d)", stated)
    if engine == "vllm" and dated and dated[1] <= _LAST_KNOWN:
        known = [version for month, version in _RELEASED if month <= dated[1]]
        return known[-1] if known else None
    return stated or None


def _flag(case: MemoryCase, subject: Subject, budget: MemoryBudget) -> str:
    row, gpu = case.row, subject.gpu
    if row.engine == "vllm" and (
        engine_version(subject.deployment.engine.name)[1] < (0, 3) or (row.engine_version or "").startswith("PR")
    ):
        return "build-of-2023"
    if "patch" in row.notes.lower():
        return "patched-build"
    if "unified memory" in gpu.note:
        return "unified-memory"
    printed = case.weights_gib
    if printed is not None and abs(printed * GIB / budget.weights_bytes - 1) > _CONTRADICTION:
        return "weights-contradict"
    return "" if row.memory_utilization_fraction is not None else "utilisation-not-stated"


def predict_memory(case: MemoryCase) -> PoolScore | Refusal:
    """The pool of a case.

    Tokens where ranks share a cache that grows alone, because the smallest rank sets them; else GiB per gpu where
    printed; else sequences at the context limit for models with windows or state, whose token figure is no capacity.

    Args:
        case: a start-up log.

    Returns:
        The score, or why there is no prediction.
    """
    subject = resolve(case.row)
    if isinstance(subject, Refusal):
        return subject
    gpu = subject.gpu
    if case.total_gib is not None:
        gpu = replace(gpu, memory_bytes=round(case.total_gib * GIB))
    engine = replace(subject.deployment.engine, context_limit_tokens=case.context_limit_tokens)
    if engine_family(engine.name) == "vllm_v0" and case.context_limit_tokens and case.row.max_batched_tokens is None:
        # That generation profiled one whole prompt, and split prompts by itself beyond 32k.
        limit = case.context_limit_tokens
        engine = replace(engine, max_batched_tokens=limit if limit <= _UNSPLIT_TOKENS else _SPLIT_BUDGET_TOKENS)
    deployment = replace(subject.deployment, engine=engine)
    try:
        budget = memory_budget(subject.model, gpu, deployment)
    except (BadInput, OutOfRange) as error:
        return Refusal("memory not known", str(error))
    pair = _comparable(case, budget, deployment.layout.tensor_parallel)
    if pair is None:
        return Refusal("no pool figure that can be compared", case.row.row_id)
    return PoolScore(subject=subject, measured=pair[0], predicted=pair[1], flag=_flag(case, subject, budget))


def _comparable(case: MemoryCase, budget: MemoryBudget, ranks: int) -> tuple[float, float] | None:
    if ranks > 1 and case.pool_tokens is not None and budget.kv_fixed_bytes_per_sequence == 0:
        return case.pool_tokens, float(budget.kv_capacity_tokens)
    if case.pool_gib is not None:
        return case.pool_gib, budget.kv_capacity_bytes / GIB
    if budget.kv_fixed_bytes_per_sequence == 0:
        return None if case.pool_tokens is None else (case.pool_tokens, float(budget.kv_capacity_tokens))
    if case.max_concurrency is None or case.context_limit_tokens is None:
        return None
    each = budget.kv_bytes_per_token * case.context_limit_tokens + budget.kv_fixed_bytes_per_sequence
    return case.max_concurrency, budget.kv_capacity_bytes / each


def scored_cases(cases: Sequence[MemoryCase]) -> list[tuple[MemoryCase, PoolScore | Refusal]]:
    """Every case that is not context only, with its answer."""
    return [(case, predict_memory(case)) for case in cases if case.row.quality != "C"]
