"""Traces on disk: one Parquet file that comes back as the same trace, byte for byte."""

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.trace import Observed, PrefixTree, Quality, Trace

if TYPE_CHECKING:
    import polars as pl

_KEY = "tokenfleet_trace"
_VERSION = 1


def write_trace(trace: Trace, path: str | Path) -> Path:
    """Write a trace as Parquet: a row per request, names and prefix tree in the file's metadata.

    The file appears whole or not at all.

    Args:
        trace: Any trace.
        path: Where to; its folder must exist.

    Raises:
        BadInput: the folder does not exist.
    """
    import polars as pl

    target = Path(path)
    if not target.parent.is_dir():
        raise BadInput.at(str(target), f"there is no folder {target.parent}", "make it first")
    columns: dict[str, Any] = {
        "arrival_s": trace.arrival_s,
        "input_tokens": trace.input_tokens,
        "output_tokens": trace.output_tokens,
    }
    for name in ("prefix_node", "session", "tenant", "priority"):
        if getattr(trace, name) is not None:
            columns[name] = getattr(trace, name)
    about: dict[str, Any] = {
        "version": _VERSION,
        "tenants": trace.tenants,
        "start_utc": trace.start_utc,
        "time_of_day_s": trace.time_of_day_s,
    }
    if trace.prefixes is not None:
        about["parent"] = trace.prefixes.parent.tolist()
        about["token_count"] = trace.prefixes.token_count.tolist()
    if trace.observed is not None:
        about["observed"] = {}
        for entry in fields(Observed):
            value = getattr(trace.observed, entry.name)
            if isinstance(value, np.ndarray):
                columns[f"observed.{entry.name}"] = value
            elif value is not None:
                about["observed"][entry.name] = value
    part = target.with_name(target.name + ".part")
    pl.DataFrame(columns).write_parquet(part, metadata={_KEY: json.dumps(about)})
    os.replace(part, target)
    return target


def is_own(path: Path) -> bool:
    """Whether :func:`write_trace` wrote this file."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        if file.read(4) != b"PAR1":
            return False
    return _KEY in _metadata(path)


def read_own(path: Path) -> tuple[Trace, Quality]:
    """Read what :func:`write_trace` wrote.

    Raises:
        BadInput: a version this program does not know.
    """
    import polars as pl

    about = json.loads(_metadata(path)[_KEY])
    if about.get("version") != _VERSION:
        raise BadInput.at(str(path), f"is a trace of version {about.get('version')}", "read it with a newer tokenfleet")
    frame = pl.read_parquet(path)
    tree = None
    if "parent" in about:
        tree = PrefixTree(
            parent=np.array(about["parent"], dtype=np.int32), token_count=np.array(about["token_count"], dtype=np.int32)
        )
    trace = Trace(
        arrival_s=frame["arrival_s"].to_numpy(),
        input_tokens=frame["input_tokens"].to_numpy(),
        output_tokens=frame["output_tokens"].to_numpy(),
        prefix_node=_column(frame, "prefix_node"),
        prefixes=tree,
        session=_column(frame, "session"),
        tenant=_column(frame, "tenant"),
        tenants=tuple(about["tenants"]),
        priority=_column(frame, "priority"),
        start_utc=about["start_utc"],
        time_of_day_s=float(about.get("time_of_day_s", 0.0)),
        observed=_observed(frame, about.get("observed")),
    )
    quality = Quality(
        rows_read=trace.request_count,
        rows_kept=trace.request_count,
        rows_dropped={},
        detected={"format": "tokenfleet trace"},
        warnings=(),
    )
    return trace, quality


def _observed(frame: "pl.DataFrame", about: dict[str, Any] | None) -> Observed | None:
    if about is None:
        return None
    values: dict[str, Any] = {name: tuple(value) for name, value in about.items()}
    for entry in fields(Observed):
        column = _column(frame, f"observed.{entry.name}")
        if column is not None:
            values[entry.name] = column
    return Observed(**values)


def _column(frame: "pl.DataFrame", name: str) -> Any:  # noqa: ANN401 - integer and float columns alike
    return frame[name].to_numpy() if name in frame.columns else None


def _metadata(path: Path) -> dict[str, str]:
    import polars as pl

    try:
        return pl.read_parquet_metadata(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BadInput.at(str(path), "is a broken Parquet file", "write it again") from error
