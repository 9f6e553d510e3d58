"""Measured rows: a typed table of what somebody saw, in SI units.

The schema is that of the public files this project is checked against: one row per run, latency in
milliseconds, empty means not published. Any file with the same column names can be read; only a few columns
are required. The reader changes units and types, nothing else: what to believe is the business of the lint.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.records import dataclass

if TYPE_CHECKING:
    import polars as pl

REQUIRED = ("model", "gpu", "engine", "input_tokens", "output_tokens")
"""Columns without which a row cannot be predicted."""

TEXT = (
    *("source_id", "source_url", "model", "gpu", "engine", "engine_version", "precision", "kv_dtype"),
    *("mode", "workload", "request_rate", "measured_date", "quality", "notes"),
)
COUNTS = ("n_gpus", "tp", "pp", "ep", "dp", "max_num_seqs", "max_num_batched_tokens")
NUMBERS = (
    *("input_tokens", "output_tokens", "concurrency", "n_requests", "duration_s", "gpu_mem_util"),
    *("output_tok_s", "output_tok_s_per_gpu", "total_tok_s", "req_s"),
)
STATISTICS = ("mean", "unspec", "p50", "p90", "p95", "p99")
TIMED = ("ttft", "tpot", "itl", "e2e")
MILLISECONDS = tuple(f"{metric}_ms_{statistic}" for metric in TIMED for statistic in STATISTICS)
_LEFT_TO_THE_ENGINE = frozenset({"default", "auto"})
"""Words for a setting that nobody set."""
_ALL_RANKS = "tp*dp"
"""How some sources write expert parallelism over every rank."""
_CENTRAL = {"mean": "mean", "unspec": "mean", "p50": "p50"}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure of a row: seconds for latencies, tokens per second for rates."""

    metric: str
    """``ttft``, ``tpot``, ``e2e`` or ``output_rate``."""
    statistic: str
    """``mean`` or ``p50``; a source that does not say is read as a mean."""
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured run. ``None`` is not published, never 0."""

    row_id: str
    """``file:line``."""
    source: str
    model: str
    gpu: str
    engine: str
    engine_version: str | None
    precision: str | None
    kv_precision: str | None
    gpu_count: int | None
    tensor_parallel: int | None
    pipeline_parallel: int
    expert_parallel: int
    attention_data_parallel: int
    mode: str
    workload: str
    input_tokens: float | None
    output_tokens: float | None
    concurrency: int | None
    request_rate_per_s: float | None
    """``inf`` when all requests are queued at once."""
    request_count: int | None
    duration_s: float | None
    max_sequence_count: int | None
    max_batched_tokens: int | None
    memory_utilization_fraction: float | None
    measured_date: str
    quality: str
    notes: str
    measurements: tuple[Measurement, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)
    """``key=value`` pairs found in the notes."""

    def value(self, metric: str) -> float | None:
        """The central figure of a metric, mean before median; ``None`` when not published."""
        return next((seen.value for seen in self.measurements if seen.metric == metric), None)


def read_rows(paths: Iterable[str | Path]) -> tuple[Row, ...]:
    """Read measured rows from CSV files.

    Args:
        paths: files in the schema above; ``~`` is not expanded.

    Returns:
        Rows in file order.

    Raises:
        BadInput: a file is missing, lacks required columns or has values of the wrong type; all problems at once.
    """
    problems: list[Problem] = []
    rows: list[Row] = []
    for path in map(Path, paths):
        if not path.is_file():
            problems.append(Problem(str(path), "no such file", "give CSV files of measured rows"))
            continue
        frame = _frame(path, problems)
        if frame is not None:
            rows.extend(_rows(path, frame, problems))
    if problems:
        raise BadInput(problems)
    return tuple(rows)


def _frame(path: Path, problems: list[Problem]) -> "pl.DataFrame | None":
    import polars as pl

    try:
        frame = pl.read_csv(path, infer_schema=False)
    except pl.exceptions.PolarsError as error:
        problems.append(
            Problem(str(path), f"not a CSV table ({str(error).splitlines()[0]})", "one header line, commas")
        )
        return None
    missing = [name for name in REQUIRED if name not in frame.columns]
    if missing:
        problems.append(
            Problem(str(path), f"lacks the column(s) {', '.join(missing)}", f"required are {', '.join(REQUIRED)}")
        )
        return None
    return frame


def _rows(path: Path, frame: "pl.DataFrame", problems: list[Problem]) -> Sequence[Row]:
    rows = []
    for line, record in enumerate(frame.iter_rows(named=True), start=2):
        where = f"{path.name}:{line}"
        text = {name: (record.get(name) or "").strip() for name in TEXT}
        numbers: dict[str, float | None] = {}
        if record.get("ep") == _ALL_RANKS:
            record["ep"] = str(int(record.get("tp") or 1) * int(record.get("dp") or 1))
        for name in (*COUNTS, *NUMBERS, *MILLISECONDS):
            numbers[name] = _number(record.get(name), where, name, problems)
        rows.append(_row(where, path.stem, text, numbers))
    return rows


def _number(cell: str | None, where: str, name: str, problems: list[Problem]) -> float | None:
    if cell is None or not cell.strip() or cell.strip().lower() in _LEFT_TO_THE_ENGINE:
        return None
    try:
        value = float(cell)
    except ValueError:
        problems.append(Problem(where, f"{name} is {cell!r}, not a number", "leave it empty when it is not known"))
        return None
    if not math.isfinite(value) or value < 0:
        problems.append(Problem(where, f"{name} is {cell}", "a finite number, 0 or more; empty when not known"))
        return None
    return value


def _row(where: str, stem: str, text: dict[str, str], numbers: dict[str, float | None]) -> Row:
    def count(name: str) -> int | None:
        value = numbers[name]
        return None if value is None or value == 0 else round(value)

    def positive(name: str) -> float | None:
        return numbers[name] or None

    return Row(
        row_id=where,
        source=text["source_id"] or stem,
        model=text["model"],
        gpu=text["gpu"].lower(),
        engine=text["engine"].lower(),
        engine_version=text["engine_version"] or None,
        precision=text["precision"].lower() or None,
        kv_precision=text["kv_dtype"].lower() or None,
        gpu_count=count("n_gpus"),
        tensor_parallel=count("tp"),
        pipeline_parallel=count("pp") or 1,
        expert_parallel=count("ep") or 1,
        attention_data_parallel=count("dp") or 1,
        mode=text["mode"] or "agg",
        workload=text["workload"],
        input_tokens=positive("input_tokens"),
        output_tokens=positive("output_tokens"),
        concurrency=count("concurrency"),
        request_rate_per_s=_rate(text["request_rate"]),
        request_count=count("n_requests"),
        duration_s=positive("duration_s"),
        max_sequence_count=count("max_num_seqs"),
        max_batched_tokens=count("max_num_batched_tokens"),
        memory_utilization_fraction=positive("gpu_mem_util"),
        measured_date=text["measured_date"],
        quality=text["quality"] or "A",
        notes=text["notes"],
        measurements=_measurements(numbers),
        facts=_facts(text["notes"]),
    )


def _rate(cell: str) -> float | None:
    """Requests per second; several pooled stages (``5.0; 10.0``) are no single rate."""
    try:
        return float(cell) if cell else None
    except ValueError:
        return None


def _measurements(numbers: dict[str, float | None]) -> tuple[Measurement, ...]:
    seen = []
    for metric in ("ttft", "tpot", "e2e"):
        for column, statistic in _CENTRAL.items():
            value = numbers[f"{metric}_ms_{column}"]
            if value:
                seen.append(Measurement(metric, statistic, value / 1000))
                break
    if not any(one.metric == "tpot" for one in seen):
        gap = numbers["itl_ms_mean"]
        if gap:
            seen.append(Measurement("tpot", "mean", gap / 1000))
    rate = numbers["output_tok_s"]
    if not rate and numbers["output_tok_s_per_gpu"] and numbers["n_gpus"]:
        rate = numbers["output_tok_s_per_gpu"] * numbers["n_gpus"]
    if rate:
        seen.append(Measurement("output_rate", "mean", rate))
    return tuple(seen)


def _facts(notes: str) -> dict[str, str]:
    pairs = (part.split("=", 1) for part in notes.split(";") if "=" in part)
    return {key.strip(): value.strip() for key, value in pairs}
