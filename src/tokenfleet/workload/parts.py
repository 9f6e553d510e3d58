"""Profiles of files too large for memory: cut into parts, counted part by part, added up exactly.

Two passes: the first finds the earliest request, since minutes count from it, and whether cached tokens lie inside the
input; the second counts. A part needs nothing but its own description, so parts may be counted anywhere.
"""

import codecs
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.trace import Quality, Trace, Workload
from tokenfleet.workload.admit import Admission, admit_rows, indexed
from tokenfleet.workload.checks import look_at_minutes
from tokenfleet.workload.formats.columns import map_columns
from tokenfleet.workload.formats.rows import Clock, Reading, ReadOptions
from tokenfleet.workload.formats.source import Source, open_source
from tokenfleet.workload.formats.table import canonical, load_part
from tokenfleet.workload.profile import describe
from tokenfleet.workload.tally import NS, Tally, add, interarrival_cv, tally_of
from tokenfleet.workload.ticks import tick_of

ROWS_PER_PART = 4_000_000
BYTES_PER_PART = 128 * 1024 * 1024
_ROLES = ("arrival", "input_tokens", "output_tokens", "cached_tokens", "tenant", "status")

Mapper = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""Like the built-in ``map``: applies a function to every part, here or on other machines, and keeps their order."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A stretch of one file. Plain data: it can be sent to another process."""

    path: str
    kind: Literal["parquet", "csv", "jsonl"]
    start: int
    """First row of Parquet, first byte of text."""
    stop: int
    columns: Mapping[str, str]
    """Role -> column."""
    header: str
    """First line of a CSV file."""
    options: ReadOptions
    admission: Admission
    origin_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the first pass finds in a part."""

    earliest_ns: int | None
    cached_above_input: bool
    clock: Clock
    detected: Mapping[str, str]
    ticks: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What the second pass finds in a part."""

    tally: Tally | None
    rows_read: int
    dropped: Mapping[str, int]


def profile_files(
    paths: str | Path | Sequence[str | Path],
    *,
    columns: Mapping[str, str] | None = None,
    zone: str | None = None,
    time_unit: Literal["s", "ms", "us", "ns"] | None = None,
    cached: Literal["inside", "outside"] | None = None,
    zero_output: Literal["drop", "keep"] = "drop",
    mapper: Mapper = map,
    rows_per_part: int = ROWS_PER_PART,
    bytes_per_part: int = BYTES_PER_PART,
    progress: Progress | None = None,
) -> Workload:
    """Profile tables of any size in bounded memory.

    The result equals ``profile(read_trace(...))`` in everything that can be counted in parts: lengths and their joint
    shape, minutes, peaks, gaps, tenants. Sessions, prefixes, duplicates and spread clock ticks need whole files; parts
    that overlap in time leave the variation of gaps unknown.

    Args:
        paths: CSV, JSON lines or Parquet tables.
        columns: Role -> column.
        zone: Time zone of stamps without one.
        time_unit: Unit of stamps that are numbers.
        cached: Whether input counts contain cached tokens.
        zero_output: What to do with rows of 0 output tokens.
        mapper: Applies a function to all parts; the built-in ``map`` counts here, one after the other.
        rows_per_part: Rows of Parquet held in memory at once.
        bytes_per_part: Bytes of text held in memory at once.
        progress: Told how many parts are done.

    Raises:
        BadInput: files that are no tables, columns missing, clocks that differ, or no usable row.
    """
    files = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    options = ReadOptions(columns=dict(columns or {}), zone=zone, time_unit=time_unit, cached=cached)
    parts = _cut(files, options, Admission(zero_output=zero_output), rows_per_part, bytes_per_part)
    seen: list[Seen] = []
    for place, found in enumerate(mapper(look_into, parts)):
        seen.append(found)
        _tell(progress, "looking for the first request", place + 1, len(parts))
    ready = _informed(parts, seen, options)
    counted: list[Counted] = []
    for place, part in enumerate(mapper(count_part, ready)):
        counted.append(part)
        _tell(progress, "counting", place + 1, len(parts))
    return _workload(seen, counted, ready[0].origin_ns or 0)


def look_into(part: Part) -> Seen:
    """First pass over one part."""
    reading = _reading(part)
    arrival = reading.rows["arrival_ns"].drop_nulls()
    above = False
    if "cached_tokens" in reading.rows.columns:
        above = bool((reading.rows["cached_tokens"] > reading.rows["input_tokens"]).any())
    head = arrival.head(100_000).sort().to_numpy()
    return Seen(
        earliest_ns=None if arrival.is_empty() else int(arrival.min()),  # type: ignore[arg-type]
        cached_above_input=above,
        clock=reading.clock,
        detected=reading.detected,
        ticks=tick_of(head) is not None,
    )


def count_part(part: Part) -> Counted:
    """Second pass over one part."""
    reading = _reading(part)
    dropped: dict[str, int] = {}
    kept = admit_rows(reading, part.options, part.admission, dropped)
    if kept.is_empty():
        return Counted(tally=None, rows_read=reading.rows_read, dropped=dropped)
    tenant, tenants = indexed(kept["tenant"])
    trace = Trace(
        arrival_s=(kept["arrival_ns"].to_numpy() - (part.origin_ns or 0)) / NS,
        input_tokens=kept["input_tokens"].to_numpy().astype(np.int32),
        output_tokens=kept["output_tokens"].to_numpy().astype(np.int32),
        tenant=tenant,
        tenants=tenants,
    )
    return Counted(tally=tally_of(trace), rows_read=reading.rows_read, dropped=dropped)


def _reading(part: Part) -> Reading:
    wanted = list(dict.fromkeys(part.columns.values()))
    frame = load_part(part.path, part.kind, part.start, part.stop, part.header, wanted)
    name = f"{part.kind} table, in parts"
    return canonical(frame, dict(part.columns), part.options, where=part.path, name=name, unit=None)


def _cut(
    files: Sequence[Path], options: ReadOptions, admission: Admission, rows_per_part: int, bytes_per_part: int
) -> list[Part]:
    parts: list[Part] = []
    problems: list[Problem] = []
    for path in files:
        try:
            source = open_source(path)
            parts += _cut_one(source, options, admission, rows_per_part, bytes_per_part)
        except BadInput as error:
            problems += error.problems
    if problems:
        raise BadInput(problems)
    if not parts:
        raise BadInput.at("files", "none given", "name at least one log file")
    return parts


def _cut_one(
    source: Source, options: ReadOptions, admission: Admission, rows_per_part: int, bytes_per_part: int
) -> list[Part]:
    kind = source.kind
    if kind not in ("parquet", "csv", "jsonl"):
        raise BadInput.at(source.where, f"is {kind}, not a table", "parts are cut from CSV, JSON lines or Parquet")
    if source.packed:
        raise BadInput.at(source.where, "is gzip, which cannot be cut into parts", "unpack it, or write Parquet")
    mapped = map_columns(source.columns, options.columns, where=source.where)
    roles = {role: column for role, column in mapped.items() if role in _ROLES}
    header = source.head.split("\n", 1)[0] if kind == "csv" else ""
    if kind == "parquet":
        bounds = _row_bounds(source.path, rows_per_part)
    else:
        # A line break inside quotes would be taken for the end of a row: such files stay in one piece.
        whole = kind == "csv" and '"' in source.head
        skipped = len(header.encode()) + 1 if kind == "csv" else 0
        bounds = _byte_bounds(source.path, skipped, bytes_per_part, whole=whole)
    return [
        Part(
            path=str(source.path),
            kind=kind,
            start=start,
            stop=stop,
            columns=roles,
            header=header,
            options=replace(options, columns={}),
            admission=admission,
        )
        for start, stop in bounds
    ]


def _row_bounds(path: Path, rows_per_part: int) -> list[tuple[int, int]]:
    import polars as pl

    rows = int(pl.scan_parquet(path).select(pl.len()).collect().item())
    return [(start, min(start + rows_per_part, rows)) for start in range(0, rows, rows_per_part)]


def _byte_bounds(path: Path, skipped: int, bytes_per_part: int, *, whole: bool) -> list[tuple[int, int]]:
    end = path.stat().st_size
    with path.open("rb") as file:
        mark = len(codecs.BOM_UTF8) if file.read(3) == codecs.BOM_UTF8 else 0
        cuts = [mark + skipped]
        while not whole and cuts[-1] + bytes_per_part < end:
            file.seek(cuts[-1] + bytes_per_part)
            file.readline()
            cuts.append(file.tell())
    if cuts[-1] < end:
        cuts.append(end)
    return [(start, stop) for start, stop in itertools.pairwise(cuts) if stop > start]


def _informed(parts: list[Part], seen: list[Seen], options: ReadOptions) -> list[Part]:
    """Parts that know second 0 and how cached tokens are counted."""
    known = [part.earliest_ns for part in seen if part.earliest_ns is not None]
    if not known:
        raise BadInput.at("rows", "none has a time that can be read", "check the export or the column mapping")
    clocks = {part.clock for part, _ in zip(seen, parts, strict=True) if part.earliest_ns is not None}
    if len(clocks) > 1 or (clocks == {"relative"} and len({part.path for part in parts}) > 1):
        raise BadInput.at("files", "do not share one clock", "name the zone, or profile them one by one")
    outside = options.cached == "outside" or (options.cached is None and any(part.cached_above_input for part in seen))
    told = replace(parts[0].options, cached="outside" if outside else "inside")
    return [replace(part, origin_ns=min(known), options=told) for part in parts]


def _workload(seen: list[Seen], counted: list[Counted], origin_ns: int) -> Workload:
    tallies = [part.tally for part in counted if part.tally is not None]
    if not tallies:
        raise BadInput.at("rows", "none can be used", "check the export or the column mapping")
    whole = reduce(add, sorted(tallies, key=lambda tally: tally.first_ns))
    dropped: dict[str, int] = {}
    for part in counted:
        for reason, count in part.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
    warnings = look_at_minutes(whole.minute_requests)
    if np.isnan(interarrival_cv(whole)) and whole.request_count > 2:
        warnings.append("parts overlap in time: the variation of gaps is unknown; sort the file by time")
    if any(part.ticks for part in seen):
        warnings.append("time stamps are coarse and left as they are: bursts within a tick are false")
    quality = Quality(
        rows_read=sum(part.rows_read for part in counted),
        rows_kept=whole.request_count,
        rows_dropped=dropped,
        detected={**seen[0].detected, "parts": str(len(counted))},
        warnings=tuple(warnings),
    )
    start = None
    if seen[0].clock == "utc":
        stamp = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=origin_ns // 1000)
        start = stamp.isoformat().replace("+00:00", "Z")
    return describe(whole, quality, start_utc=start)


def _tell(progress: Progress | None, what: str, done: int, total: int) -> None:
    if progress is not None:
        progress(what, done, total)
