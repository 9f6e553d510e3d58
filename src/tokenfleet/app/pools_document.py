"""A simulation of several pools as a document and as tables for machines. The names here are a promise."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Final

import numpy as np

from tokenfleet.app.intervals import intervals_of
from tokenfleet.app.plan_files import whole_or_nothing
from tokenfleet.app.pools_run import PoolRow, SimulatedPools, stage_words
from tokenfleet.app.simulate_document import (
    Columns,
    gaps_document,
    group_document,
    latencies,
    request_columns,
    telemetry_columns,
)
from tokenfleet.app.simulate_files import DECISIONS, write_json, write_parquet
from tokenfleet.app.simulate_run import goodput
from tokenfleet.app.world_words import world_document
from tokenfleet.domain.run import Status

FILES: Final = (
    "calls.parquet",
    "gaps.json",
    "requests.parquet",
    "summary.json",
    "telemetry.parquet",
    "timeline.html",
)


def pools_document(run: SimulatedPools) -> dict[str, object]:
    """Everything a simulation of several pools found, ready for JSON; ``null`` is unknown, never 0."""
    record = run.record
    finished = record.status == Status.FINISHED
    good = goodput(record, run.slo)
    start_s, end_s = run.peak_window_s
    return {
        "name": run.name,
        "model": run.model,
        "stages": stage_words(run.pools),
        "pools": [_pool(row) for row in run.rows],
        "gpu_count": run.pools.gpu_count,
        "request_count": len(record.arrival_s),
        "finished_count": int(finished.sum()),
        "rejected_count": int((~finished).sum()),
        "duration_s": record.end_s - float(record.arrival_s[0]) if len(record.arrival_s) else 0.0,
        "latency_s": latencies(record),
        "goodput": asdict(good) | {"clauses": list(good.clauses)},
        "outside_mean_s": run.wait_mean_s,
        "transfer_mean_s": run.transfer_mean_s,
        "world": world_document(run.record.turmoil),
        "whole": {"slo": [asdict(result) for result in run.whole]},
        "peak": {"start_s": start_s, "end_s": end_s, "slo": [asdict(result) for result in run.peak]},
        "telemetry_interval_s": run.interval_s,
        "assumptions": list(run.assumptions),
        "resolved": run.resolved,
    }


def _pool(row: PoolRow) -> dict[str, object]:
    named = row.named
    figures = {field.name: getattr(row, field.name) for field in fields(row) if field.name != "named"}
    return {
        "name": named.name,
        "does": named.does,
        "model": named.model.name,
        "fleet": [group_document(group) for group in named.fleet.groups],
        "router": named.fleet.router,
        **figures,
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
        if run.record.turmoil is not None:
            write_json(_decisions(run), draft / DECISIONS)
        (draft / "timeline.html").write_text(page, encoding="utf-8")
        return tuple(sorted(entry.name for entry in draft.iterdir()))


def _decisions(run: SimulatedPools) -> dict[str, object]:
    """Everything that was decided and that became of replicas, pool by pool; replicas count from 0 in each."""
    return {
        name: {
            "scaling": [asdict(step) for step in run.scalers[name].steps] if name in run.scalers else None,
            "replicas": []
            if pool.record.turmoil is None
            else [asdict(decision) for decision in pool.record.turmoil.decisions],
        }
        for name, pool in run.staged.pools.items()
    }


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
    tables = []
    for name, pool in run.staged.pools.items():
        if pool.record.telemetry is None:
            raise ValueError("the run sampled no gauges")
        fleet = run.pools.fleets[name]
        model = next(row.named.model for row in run.rows if row.named.name == name)
        done = intervals_of(pool.record, run.interval_s, fleet, [model] * len(fleet.groups))
        columns = telemetry_columns(pool.record, pool.record.telemetry, done)
        tables.append({"pool": (np.full(len(columns["replica"][0]), name), None), **columns})
    return tables


def _stacked(tables: list[Columns]) -> Columns:
    """Tables with the same columns, one behind the other."""
    stacked: Columns = {}
    for name in tables[0]:
        values = np.concatenate([table[name][0] for table in tables])
        known = [
            np.ones(len(table[name][0]), dtype=np.bool_) if (mask := table[name][1]) is None else mask
            for table in tables
        ]
        stacked[name] = (values, np.concatenate(known))
    return stacked
