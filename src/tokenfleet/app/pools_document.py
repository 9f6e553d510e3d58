"""A simulation of several pools as a document and as tables for machines. The names here are a promise."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Final

import numpy as np

from tokenfleet import contract
from tokenfleet.app.lane_words import lane_document
from tokenfleet.app.plan_files import whole_or_nothing
from tokenfleet.app.pools_found import stretch_document
from tokenfleet.app.pools_run import PoolRow, SimulatedPools, stage_words
from tokenfleet.app.scaling_words import minutes_document, scaler_document
from tokenfleet.app.simulate_document import (
    Column,
    Columns,
    fleet_columns,
    gaps_document,
    group_document,
    latency_document,
    replica_rows,
    request_columns,
    telemetry_columns,
    totals_document,
    waits_columns,
)
from tokenfleet.app.simulate_files import DECISIONS, write_json, write_parquet
from tokenfleet.app.world_words import reading_document, world_document
from tokenfleet.domain.run import RunRecord, Telemetry
from tokenfleet.domain.trace import Bools

FILES: Final = (
    "calls.parquet",
    "fleet.parquet",
    "gaps.json",
    "requests.parquet",
    "summary.json",
    "telemetry.parquet",
    "timeline.html",
    "waits.parquet",
)


def pools_document(run: SimulatedPools) -> dict[str, object]:
    """Everything a simulation of several pools found, ready for JSON; ``null`` is unknown, never 0."""
    record = run.record
    start_s, end_s = run.peak_window_s
    return {
        "name": run.name,
        "model": run.model,
        "stages": stage_words(run.pools),
        "pools": [_pool(row, run) for row in run.rows],
        "gpu_count": run.pools.gpu_count,
        **totals_document(record, run.trace, run.at_max_output_count),
        "busy_fraction": contract.busy_fraction(record),
        **latency_document(record, run.slo, run.waited_for, run.batch),
        "outside_mean_s": run.wait_mean_s,
        "transfer_mean_s": run.transfer_mean_s,
        "world": world_document(run.record.turmoil),
        "reading": reading_document(record, run.reads_tokens_per_s, None),
        "batch": lane_document(record, run.batch),
        "fairness": None if run.fairness is None else asdict(run.fairness),
        "scaling": _scaling(run),
        "whole": stretch_document(run.found_in_all, run.whole, run.limits),
        "peak": {"start_s": start_s, "end_s": end_s, **stretch_document(run.found_at_peak, run.peak, run.limits)},
        "diagnosis_limits": asdict(run.limits),
        "telemetry_interval_s": run.interval_s,
        "assumptions": list(run.assumptions),
        "resolved": run.resolved,
    }


def _scaling(run: SimulatedPools) -> dict[str, object] | None:
    """How each pool was scaled, and the minutes in which the promise broke; ``None`` where none is scaled."""
    if not run.scalers:
        return None
    pools = {name: scaler_document(scaler.policy, scaler) for name, scaler in run.scalers.items()}
    return {**minutes_document(run.minutes), "pools": pools}


def _pool(row: PoolRow, run: SimulatedPools) -> dict[str, object]:
    named = row.named
    figures = {field.name: getattr(row, field.name) for field in fields(row) if field.name != "named"}
    return {
        "name": named.name,
        "does": named.does,
        "beside": named.beside,
        "model": named.model.name,
        "fleet": [group_document(group) for group in named.fleet.groups],
        "router": named.fleet.router,
        **figures,
        "replicas": [asdict(each) for each in replica_rows(run.staged.pools[named.name].record, named.fleet)],
    }


def write_pools(run: SimulatedPools, document: Mapping[str, object], page: str, folder: Path) -> tuple[str, ...]:
    """Write :data:`FILES` to ``folder``.

    Raises:
        BadInput: the folder cannot be written; then nothing is.
    """
    with whole_or_nothing(folder) as draft:
        write_json(document, draft / "summary.json")
        write_json(gaps_document(run.record), draft / "gaps.json")
        write_parquet(request_columns(run.record, run.trace), draft / "requests.parquet")
        write_parquet(_stacked(_calls(run)), draft / "calls.parquet")
        write_parquet(_stacked(_gauges(run)), draft / "telemetry.parquet")
        write_parquet(_stacked(_waits(run)), draft / "waits.parquet")
        write_parquet(_stacked(_fleets(run)), draft / "fleet.parquet")
        if run.keeps_log:
            write_json(_decisions(run), draft / DECISIONS)
        (draft / "timeline.html").write_text(page, encoding="utf-8")
        return tuple(sorted(entry.name for entry in draft.iterdir()))


def _decisions(run: SimulatedPools) -> dict[str, dict[str, object]]:
    """Everything that was decided and that became of replicas, pool by pool; replicas count from 0 in each."""
    found: dict[str, dict[str, object]] = {
        name: {
            "scaling": [asdict(step) for step in run.scalers[name].steps] if name in run.scalers else None,
            "ladder": None,
            "replicas": []
            if pool.record.turmoil is None
            else [asdict(decision) for decision in pool.record.turmoil.decisions],
        }
        for name, pool in run.staged.pools.items()
    }
    for name, climber in run.climbers.items():
        found.setdefault(name, {})["ladder"] = [asdict(step) for step in climber.ladder_steps]
    return found


def _calls(run: SimulatedPools) -> list[Columns]:
    """One row per call, pool by pool; ``request`` is the row of ``requests.parquet`` behind it."""
    tables = []
    for name, pool in run.staged.pools.items():
        columns = dict(request_columns(pool.record, pool.trace))
        columns = {key: value for key, value in columns.items() if key not in ("session", "tenant")}
        columns["request"] = (pool.caller, None)
        tables.append({"pool": (np.full(len(pool.caller), name), None), **columns})
    return tables


def _gauges(run: SimulatedPools) -> list[Columns]:
    """Gauges pool by pool; replicas count from 0 in each."""
    return [
        _in_pool(name, telemetry_columns(pool.record, _sampled(pool.record), run.intervals.pools[name].done))
        for name, pool in run.staged.pools.items()
    ]


def _waits(run: SimulatedPools) -> list[Columns]:
    """Waits in the queues, pool by pool."""
    return [_in_pool(name, waits_columns(each.waits)) for name, each in run.intervals.pools.items()]


def _fleets(run: SimulatedPools) -> list[Columns]:
    """Pools by interval, and last all of them together, with ``pool`` not known."""
    tables = [
        _in_pool(
            name, fleet_columns(_sampled(pool.record), run.intervals.pools[name].fleet, run.intervals.pools[name].done)
        )
        for name, pool in run.staged.pools.items()
    ]
    whole = fleet_columns(_sampled(run.record), run.intervals.fleet, run.intervals.done)
    return [*tables, _in_pool(None, whole)]


def _sampled(record: RunRecord) -> Telemetry:
    if record.telemetry is None:
        raise ValueError("the run sampled no gauges")
    return record.telemetry


def _in_pool(name: str | None, columns: Columns) -> Columns:
    """The columns, with the pool in front."""
    count = len(columns["time_s"][0])
    return {"pool": (np.full(count, name or ""), np.full(count, name is not None)), **columns}


def _stacked(tables: list[Columns]) -> Columns:
    """Tables one behind the other; what a table has no column for is not known there."""
    stacked: Columns = {}
    for name in dict.fromkeys(name for table in tables for name in table):
        kind = next(table[name][0] for table in tables if name in table)
        parts = [_part(table, name, kind) for table in tables]
        stacked[name] = (np.concatenate([values for values, _ in parts]), np.concatenate([known for _, known in parts]))
    return stacked


def _part(table: Columns, name: str, kind: Column) -> tuple[Column, Bools]:
    """A column of a table and where it is known; of the same kind as ``kind`` where the table has none."""
    count = len(next(iter(table.values()))[0])
    if name not in table:
        return np.zeros(count, dtype=kind.dtype), np.zeros(count, dtype=np.bool_)
    values, known = table[name]
    return values, np.ones(count, dtype=np.bool_) if known is None else known
