"""Writes what a simulation leaves behind, whole or not at all."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tokenfleet.app.plan_files import check_folder, whole_or_nothing
from tokenfleet.app.scaling_words import decisions_document
from tokenfleet.app.simulate_document import (
    Column,
    fleet_columns,
    gaps_document,
    request_columns,
    telemetry_columns,
    waits_columns,
)
from tokenfleet.app.simulate_run import Simulated
from tokenfleet.domain.errors import BadInput

DECISIONS = "decisions.json"
"""Written too where somebody watches the fleet."""
FILES = (
    "fleet.parquet",
    "gaps.json",
    "requests.parquet",
    "summary.json",
    "telemetry.parquet",
    "timeline.html",
    "waits.parquet",
)


def check_target(folder: Path) -> None:
    """Make sure, before any work, that ``folder`` can be written.

    Raises:
        BadInput: it is a file, or nobody may write there.
    """
    if folder.exists() and not folder.is_dir():
        raise BadInput.at(str(folder), "is a file; a simulation needs a folder", "give another one with -o")
    check_folder(folder)


def write_simulation(run: Simulated, document: Mapping[str, object], page: str, folder: Path) -> tuple[str, ...]:
    """Write :data:`FILES` to ``folder``.

    Raises:
        BadInput: the folder cannot be written; then nothing is.
    """
    with whole_or_nothing(folder) as draft:
        write_json(document, draft / "summary.json")
        write_json(gaps_document(run.record), draft / "gaps.json")
        if not run.around.is_quiet:
            write_json(decisions_document(run), draft / DECISIONS)
        write_parquet(request_columns(run.record, run.trace), draft / "requests.parquet")
        gauges = run.record.telemetry
        if gauges is None:
            raise ValueError("the run sampled no gauges")
        write_parquet(telemetry_columns(run.record, gauges, run.intervals), draft / "telemetry.parquet")
        write_parquet(waits_columns(run.waits), draft / "waits.parquet")
        write_parquet(fleet_columns(gauges, run.fleet_intervals, run.intervals), draft / "fleet.parquet")
        (draft / "timeline.html").write_text(page, encoding="utf-8")
        return tuple(sorted(entry.name for entry in draft.iterdir()))


def write_json(document: Mapping[str, object], path: Path) -> None:
    """Write a document for machines."""
    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def write_parquet(columns: Mapping[str, tuple[Column, npt.NDArray[np.bool_] | None]], path: Path) -> None:
    """Write columns; a value that is not known is null."""
    import polars as pl

    series = []
    for name, (values, known) in columns.items():
        whole = pl.Series(name, values)
        series.append(whole if known is None else whole.set(pl.Series(~known), None))
    pl.DataFrame(series).write_parquet(path)
