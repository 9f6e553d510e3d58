"""Profiles of files too large for memory: cut into parts, counted part by part, added up exactly.

A part needs nothing but its own description, so parts may be counted anywhere.
"""

import codecs
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.trace import Quality, Workload
from tokenfleet.workload.admit import Admission, files_named, mostly_whole, nothing_left
from tokenfleet.workload.checks import look_at_minutes
from tokenfleet.workload.counting import Counted, Part, count_part
from tokenfleet.workload.fact_tally import FACT_COLUMNS, facts_of
from tokenfleet.workload.formats.columns import map_columns
from tokenfleet.workload.formats.rows import ReadOptions
from tokenfleet.workload.formats.source import Source, open_source
from tokenfleet.workload.profiling import describe
from tokenfleet.workload.read import FORMATS_IN_PARTS, format_of
from tokenfleet.workload.request_facts import buckets
from tokenfleet.workload.session_shape import described_rows
from tokenfleet.workload.session_tally import SessionRows, add_sessions
from tokenfleet.workload.tally import Tally, add, from_the_start, interarrival_cv

ROWS_PER_PART = 2_000_000
BYTES_PER_PART = 64 * 1024 * 1024
HEAD_ROWS = 50_000
HEAD_BYTES = 512 * 1024
_ROLES = ("arrival", "input_tokens", "output_tokens", "tenant", "session", *FACT_COLUMNS)

Mapper = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""Like the built-in ``map``: applies a function to every part, here or on other machines, and keeps their order."""

Progress = Callable[[str, int, int], None]


def profile_files(
    paths: str | Path | Sequence[str | Path],
    *,
    format: str | None = None,  # noqa: A002 - the name every user of a reader expects
    columns: Mapping[str, str] | None = None,
    zone: str | None = None,
    time_unit: Literal["s", "ms", "us", "ns"] | None = None,
    cached: Literal["inside", "outside"] | None = None,
    zero_output: Literal["drop", "keep"] = "drop",
    mapper: Mapper | None = None,
    rows_per_part: int = ROWS_PER_PART,
    bytes_per_part: int = BYTES_PER_PART,
    progress: Progress | None = None,
) -> Workload:
    """Profile tables of any size in bounded memory.

    The result equals ``profile(read_trace(...))`` in everything that can be counted in parts: lengths and their joint
    shape, minutes, peaks, gaps, tenants and how each of them sends, sessions, models, cached and reasoning tokens,
    endings, and latencies to four digits. Of more than four million requests in sessions a sample of whole sessions is
    looked at, the same however the files are cut. Prefixes, lengths by tenant, the time from an answer to the next
    call, duplicates, retries and spread clock ticks need whole files; parts that overlap in time leave the variation of
    gaps unknown.

    Args:
        paths: CSV, JSON lines or Parquet tables.
        format: ``table`` overrules what the content shows.
        columns: Role -> column.
        zone: Time zone of stamps without one.
        time_unit: Unit of stamps that are numbers.
        cached: Whether input counts contain cached tokens.
        zero_output: What to do with rows of 0 output tokens.
        mapper: Applies a function to all parts; without one, threads of this process do.
        rows_per_part: Rows of Parquet held in memory at once.
        bytes_per_part: Bytes of text held in memory at once.
        progress: Told how many parts are done.

    Raises:
        BadInput: files that are no tables, columns missing, clocks that differ, or no usable row.
    """
    files = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    options = ReadOptions(format=format, columns=dict(columns or {}), zone=zone, time_unit=time_unit, cached=cached)
    parts = _cut(files, options, Admission(zero_output=zero_output, fold_retries=False), rows_per_part, bytes_per_part)
    parts, counted, sessions = _counted(parts, mapper, progress)
    where = files_named([str(path) for path in files])
    _must_share_a_clock(parts, counted, where)
    return _workload(counted, sessions, parts[0].origin_ns, where)


def _counted(
    parts: list[Part], mapper: Mapper | None, progress: Progress | None
) -> tuple[list[Part], list[Counted], SessionRows | None]:
    """Count all parts, under what the heads of the files say and again if a part shows that they were wrong.

    Minutes count from the earliest request, and whether cached tokens lie inside the input is known only when every row
    was seen. The heads of files are right about both as a rule, so that files are read once and not twice. Requests of
    sessions are added up as they come: those of all parts side by side would fill the memory.
    """
    apply = mapper or in_threads
    heads = list(apply(count_part, [_head(part) for part in parts if part.first_of_file]))
    what = "counting"
    while True:
        parts = _informed(parts, heads)
        found: list[Counted] = []
        sessions: SessionRows | None = None
        for place, counted in enumerate(apply(count_part, parts)):
            if counted.tally is None:
                found.append(counted)
            else:
                sessions = add_sessions(sessions, counted.tally.sessions)
                found.append(replace(counted, tally=replace(counted.tally, sessions=None)))
            if progress is not None:
                progress(what, place + 1, len(parts))
        if _settled(parts, found):
            return parts, found, sessions
        heads, what = found, "counting again, with what the first count found"


def in_threads(function: Callable[[Any], Any], parts: Iterable[Any]) -> Iterator[Any]:
    """Like ``map``, on a thread per core, at most four: what counts leaves the interpreter free."""
    pool = ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1))
    try:
        yield from pool.map(function, parts)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _head(part: Part) -> Part:
    if part.streamed:
        return replace(part, stop=part.start + HEAD_BYTES, head_only=True)
    length = HEAD_ROWS if part.kind == "parquet" else HEAD_BYTES
    if part.stop - part.start <= length:
        return part
    stop = part.start + length
    return replace(part, stop=stop if part.kind == "parquet" else _line_end(Path(part.path), stop))


def _informed(parts: list[Part], seen: Sequence[Counted]) -> list[Part]:
    """Parts that know second 0 and how cached tokens are counted."""
    first = [part.first_ns for part in seen if part.first_ns is not None]
    told = parts[0].options
    if told.cached is None and any(part.cached_above_input for part in seen):
        told = replace(told, cached="outside")
    origin_ns = min(first) if first else parts[0].origin_ns
    return [replace(part, origin_ns=origin_ns, options=told) for part in parts]


def _settled(parts: list[Part], found: Sequence[Counted]) -> bool:
    first = [part.first_ns for part in found if part.first_ns is not None]
    above = parts[0].options.cached is None and any(part.cached_above_input for part in found)
    return not above and (not first or min(first) == parts[0].origin_ns)


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
        raise BadInput(dict.fromkeys(problems))
    if not files:
        raise BadInput.at("files", "none given", "name at least one log file")
    if not parts:
        raise nothing_left(files_named([str(path) for path in files]), 0, {})
    return parts


def _cut_one(
    source: Source, options: ReadOptions, admission: Admission, rows_per_part: int, bytes_per_part: int
) -> list[Part]:
    kind = source.kind
    if kind not in ("parquet", "csv", "jsonl"):
        raise BadInput.at(source.where, f"is {kind}, not a table", "parts are cut from CSV, JSON lines or Parquet")
    name = options.format or ("table" if options.columns else format_of(source.path))
    if name not in (*FORMATS_IN_PARTS, None):
        raise BadInput.at(source.where, f"is of format {name}, which needs whole files", "read it in one piece")
    mapped = map_columns(source.leaves, options.columns, where=source.where)
    roles = {role: column for role, column in mapped.items() if role in _ROLES}
    header = source.head.split("\n", 1)[0] if kind == "csv" else ""
    streamed = source.packed or source.encoding is not None
    if kind == "parquet":
        bounds = _row_bounds(source.path, rows_per_part)
    elif streamed:
        bounds = [(0, bytes_per_part)]
    else:
        # A line break inside quotes would be taken for the end of a row: such files stay in one piece.
        whole = kind == "csv" and any(line.count('"') % 2 for line in source.head.split("\n")[:-1])
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
            separator=source.separator,
            streamed=streamed,
            encoding=source.encoding,
            options=replace(options, columns={}),
            admission=admission,
            first_of_file=place == 0,
        )
        for place, (start, stop) in enumerate(bounds)
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
            cuts.append(_line_end(path, cuts[-1] + bytes_per_part))
    if cuts[-1] < end:
        cuts.append(end)
    return [(start, stop) for start, stop in itertools.pairwise(cuts) if stop > start]


def _line_end(path: Path, place: int) -> int:
    """End of the line that holds a byte."""
    with path.open("rb") as file:
        file.seek(place)
        file.readline()
        return file.tell()


def _must_share_a_clock(parts: list[Part], found: Sequence[Counted], where: str) -> None:
    clocks = {part.clock for part in found if part.clock is not None}
    if not clocks:
        if not any(part.rows_read for part in found):
            raise nothing_left(where, 0, {})
        raise BadInput.at(where, "no row has a time that can be read", "check the export or the column mapping")
    if len(clocks) > 1 or (clocks == {"relative"} and len({part.path for part in parts}) > 1):
        raise BadInput.at("files", "do not share one clock", "name the zone, or profile them one by one")


def _workload(counted: list[Counted], sessions: SessionRows | None, origin_ns: int, where: str) -> Workload:
    tallies = [part.tally for part in counted if part.tally is not None]
    dropped: dict[str, int] = {}
    for part in counted:
        for reason, count in part.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
    if not tallies:
        raise nothing_left(where, sum(part.rows_read for part in counted), dropped)
    mostly_whole(where, sum(part.rows_read for part in counted), dropped)
    whole = _all_named(from_the_start(reduce(add, sorted(tallies, key=lambda tally: tally.first_ns))))
    warnings = look_at_minutes(whole.minute_requests)
    if np.isnan(interarrival_cv(whole)) and whole.request_count > 2:
        warnings.append("parts overlap in time: the variation of gaps is unknown; sort the file by time")
    if any(part.ticks for part in counted):
        warnings.append("time stamps are coarse and left as they are: bursts within a tick are false")
    quality = Quality(
        rows_read=sum(part.rows_read for part in counted),
        rows_kept=whole.request_count,
        rows_dropped=dropped,
        detected={**counted[0].detected, "parts": str(len(counted))},
        warnings=tuple(warnings),
    )
    start = None
    if {part.clock for part in counted} - {None} == {"utc"}:
        stamp = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=origin_ns // 1000)
        start = stamp.isoformat().replace("+00:00", "Z")
    shape, facts = None, None
    if sessions is not None and sessions.request_count:
        shape, facts = described_rows(sessions)
    return describe(
        whole,
        quality,
        sessions=None if facts is None else facts["count"],
        shapes=(shape, None),
        start_utc=start,
        extra=_extra(whole) | ({} if facts is None else {"sessions": facts}),
    )


def _extra(whole: Tally) -> dict[str, Any]:
    found: dict[str, Any] = {"length_buckets": buckets(whole.pair_counts)}
    sizes = sorted((count for name, count in whole.tenant_requests.items() if name), reverse=True)
    if sizes:
        found["top_10_tenant_fraction"] = sum(sizes[:10]) / sum(sizes)
    return found | ({} if whole.facts is None else facts_of(whole.facts))


def _all_named(tally: Tally) -> Tally:
    """Requests without a tenant are counted where others have one: a part in which nobody has one cannot know."""
    known = sum(count for name, count in tally.tenant_requests.items() if name)
    nobody = {"": tally.request_count - known} if 0 < known < tally.request_count else {}
    return replace(
        tally, tenant_requests={name: count for name, count in tally.tenant_requests.items() if name} | nobody
    )
