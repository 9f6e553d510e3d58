"""The capacity table for machines: one document, and one flat line for each deployment."""

from collections.abc import Iterator
from typing import Final

from tokenfleet.app.capacity_question import Capacity
from tokenfleet.app.capacity_table import LOADS, Cell, Row
from tokenfleet.domain.records import dataclass

CELLS: Final = (
    "max_stable_sequence_count",
    "prefill_tokens_per_s",
    "decode_tokens_per_s",
    "stream_tokens_per_s",
    "idle_ttft_s",
    "output_tokens_per_s",
    "usd_per_hour",
    "usd_per_million_output_tokens",
    "usd_per_million_tokens",
)
_FACTS: Final = (
    *("model", "gpu", "gpu_count", "tensor_parallel", "pipeline_parallel", "attention_data_parallel"),
    *("precision", "kv_dtype", "engine", "fits"),
)


def capacity_document(found: Capacity) -> dict[str, object]:
    """Everything of the table. Bytes are per gpu, rates and counts per replica; ``null`` is unknown."""
    lengths = found.lengths
    return {
        "model": found.model.name,
        "lengths": {
            "input": lengths.input_text,
            "output": lengths.output_text,
            "context_p50_tokens": lengths.context_tokens,
        },
        "rows": [_row(row) for row in found.rows],
        "same_gpus": [_ways(group) for group in ways(found)],
    }


def _facts(row: Row) -> dict[str, object]:
    deployment = row.deployment
    return {
        "model": deployment.model,
        "gpu": deployment.gpu,
        "gpu_count": deployment.layout.gpu_count,
        "tensor_parallel": deployment.layout.tensor_parallel,
        "pipeline_parallel": deployment.layout.pipeline_parallel,
        "attention_data_parallel": deployment.layout.attention_data_parallel,
        "precision": deployment.precision,
        "kv_dtype": deployment.kv_precision,
        "engine": deployment.engine.name,
        "fits": bool(row.cells),
    }


def _row(row: Row) -> dict[str, object]:
    budget = row.budget
    return {
        **_facts(row),
        "too_close_to_call": budget.too_close_to_call if budget else None,
        "reasons": list(row.reasons),
        "memory": {
            "total_bytes": row.gpu.memory_bytes,
            "terms_bytes": dict(budget.terms_bytes) if budget else None,
            "kv_capacity_tokens": budget.kv_capacity_tokens if budget else None,
            "kind": "predicted",
        },
        "cells": {name: _cell(row.cells[name]) for name in CELLS if name in row.cells},
        "loads": [
            {
                "load_fraction": point.load_fraction,
                "rate_per_s": point.rate_per_s,
                "ttft_p50_s": _cell(point.ttft_p50_s),
                "ttft_p99_s": _cell(point.ttft_p99_s),
            }
            for point in row.loads
        ],
        "evidence": row.evidence or None,
    }


def _cell(cell: Cell) -> dict[str, object]:
    return {
        "value": cell.value,
        "low": cell.low,
        "high": cell.high,
        "kind": cell.kind,
        "evidence": cell.evidence,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to use a number of equal gpus: replicas of so many ranks."""

    row: Row
    replica_count: int

    @property
    def output_tokens_per_s(self) -> float | None:
        """Of all replicas at full load."""
        each = self.row.cells["output_tokens_per_s"].value
        return None if each is None else each * self.replica_count


def ways(found: Capacity) -> tuple[tuple[Way, ...], ...]:
    """More tensor-parallel ranks against more replicas, on the same number of equal gpus.

    Returns:
        For each gpu, engine and precision with more than one layout that runs: the ways to use as many gpus as the
        widest of them has, narrowest ranks first.
    """
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in found.rows:
        deployment = row.deployment
        if row.cells:
            key = (deployment.gpu, deployment.engine.name, deployment.precision, deployment.kv_precision)
            groups.setdefault(key, []).append(row)
    answer = []
    for rows in groups.values():
        widest = max(row.deployment.layout.gpu_count for row in rows)
        counts = ((row, divmod(widest, row.deployment.layout.gpu_count)) for row in rows)
        group = tuple(Way(row=row, replica_count=count) for row, (count, rest) in counts if rest == 0)
        if len(group) > 1:
            answer.append(group)
    return tuple(answer)


def _ways(group: tuple[Way, ...]) -> dict[str, object]:
    first = group[0]
    facts = _facts(first.row)
    return {
        **{name: facts[name] for name in ("gpu", "precision", "kv_dtype", "engine")},
        "gpu_count": first.replica_count * first.row.deployment.layout.gpu_count,
        "ways": [
            {
                "tensor_parallel": way.row.deployment.layout.tensor_parallel,
                "pipeline_parallel": way.row.deployment.layout.pipeline_parallel,
                "attention_data_parallel": way.row.deployment.layout.attention_data_parallel,
                "replica_count": way.replica_count,
                "output_tokens_per_s": way.output_tokens_per_s,
                "stream_tokens_per_s": way.row.cells["stream_tokens_per_s"].value,
                "idle_ttft_s": way.row.cells["idle_ttft_s"].value,
                "usd_per_million_output_tokens": way.row.cells["usd_per_million_output_tokens"].value,
                "kind": way.row.cells["output_tokens_per_s"].kind,
            }
            for way in group
        ],
    }


def csv_header() -> list[str]:
    """Columns of the flat table: facts, memory, then value, low, high and kind of each figure."""
    figures = [f"{name}{part}" for name in (*CELLS, *_load_names()) for part in ("", "_low", "_high", "_kind")]
    return [*_FACTS, "weights_bytes", "kv_cache_bytes", "kv_capacity_tokens", *figures, "evidence", "reasons"]


def _load_names() -> list[str]:
    return [f"ttft_{quantile}_at_{load:.0%}_load_s".replace("%", "") for load in LOADS for quantile in ("p50", "p99")]


def csv_lines(found: Capacity) -> Iterator[list[object]]:
    """One line for each row, in the order of :func:`csv_header`; unknown is empty."""
    for row in found.rows:
        budget = row.budget
        cells = [row.cells.get(name) for name in CELLS]
        cells += [cell for point in row.loads for cell in (point.ttft_p50_s, point.ttft_p99_s)]
        cells += [None] * (len(CELLS) + len(_load_names()) - len(cells))
        yield [
            *_facts(row).values(),
            budget.terms_bytes["weights"] if budget else "",
            budget.terms_bytes["kv_cache"] if budget else "",
            budget.kv_capacity_tokens if budget else "",
            *(part for cell in cells for part in _flat(cell)),
            row.evidence,
            "; ".join(row.reasons),
        ]


def _flat(cell: Cell | None) -> tuple[object, ...]:
    if cell is None:
        return ("", "", "", "")
    numbers = ("" if number is None else number for number in (cell.value, cell.low, cell.high))
    return (*numbers, cell.kind)
