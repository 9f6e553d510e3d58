"""Logs of nested records: one JSON object per call, in lines or in a list."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tokenfleet.domain.errors import BadInput
from tokenfleet.workload.formats.clock import to_ns
from tokenfleet.workload.formats.frames import load_text
from tokenfleet.workload.formats.rows import COLUMNS, Reading, ReadOptions
from tokenfleet.workload.formats.source import Source

Record = dict[str, Any]
Row = dict[str, Any]
"""Canonical values of one call. ``arrival`` is a raw stamp; ``late_s`` is how long after the arrival it was taken."""


@dataclass(slots=True)
class Found:
    """Records of a file, and the lines that hold none."""

    records: list[tuple[int, Record]] = field(default_factory=list)
    """Line or place in the list, and the record."""
    broken: list[int] = field(default_factory=list)


def json_lines(source: Source) -> Found:
    """One object per line; other lines are counted, never fatal."""
    found = Found()
    for number, line in enumerate(source.content().decode("utf-8", errors="replace").splitlines(), start=1):
        if not line.strip():
            continue
        value = parsed(line)
        if isinstance(value, dict):
            found.records.append((number, value))
        else:
            found.broken.append(number)
    return found


def json_document(source: Source) -> Any:  # noqa: ANN401 - any JSON
    """The whole file as one JSON value.

    Raises:
        BadInput: not JSON, or cut short.
    """
    text = source.content().decode("utf-8", errors="replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput.at(source.where, f"is not whole JSON: {error}", "export it again") from error


def json_list(source: Source, *path: str) -> Found:
    """Objects of a list inside a JSON document; with no path the document is the list. JSON lines do as well."""
    if source.kind == "jsonl":
        return json_lines(source)
    value = json_document(source)
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    found = Found()
    for number, entry in enumerate(value if isinstance(value, list) else [], start=1):
        if isinstance(entry, dict):
            found.records.append((number, entry))
        else:
            found.broken.append(number)
    return found


def first_record(source: Source, *path: str) -> Record:
    """The first record of lines, of a list, or of a list inside a document."""
    if source.kind == "jsonl":
        return source.record
    if source.kind != "json":
        return {}
    for key in (*path, ""):
        entries = source.record.get(key)
        if isinstance(entries, list) and entries and isinstance(entries[0], dict):
            return entries[0]
    return {}


def csv_records(source: Source) -> Found:
    """Rows of a CSV file by column name, empty cells as ``None``; a row that cannot be parsed is counted."""
    loaded = load_text(source.content(), "csv", source.separator, None, where=source.where)
    rows = [{name: value or None for name, value in row.items()} for row in loaded.frame.iter_rows(named=True)]
    return Found(records=list(zip(loaded.lines, rows, strict=True)), broken=list(loaded.broken))


def reading_of(
    rows: Iterable[tuple[int, Row]],
    options: ReadOptions,
    *,
    where: str,
    name: str,
    broken: Sequence[int] = (),
    dropped: Mapping[str, int] | None = None,
    detected: Mapping[str, str] | None = None,
    warnings: Iterable[str] = (),
    unit: str | None = None,
    ordered: bool = True,
) -> Reading:
    """Rows of Python values as a reading.

    Args:
        rows: Line number and canonical values.
        options: A person's word on unit and zone.
        where: The file, for errors.
        name: Format, for the quality report.
        broken: Lines that hold no record.
        dropped: What the format left out on purpose, by reason.
        detected: What it found out.
        warnings: What a person should know.
        unit: Time unit that the format defines.
        ordered: Whether the file promises order of arrival.
    """
    import polars as pl

    numbered = list(rows)
    values = [row for _, row in numbered]
    facts = {"format": name, **(detected or {})}
    stamps = [row.get("arrival") for row in values]
    arrival, clock = to_ns(_stamps(stamps), options, where=f"{where}, time stamps", detected=facts, unit=unit)
    late = pl.Series([float(row.get("late_s") or 0.0) for row in values], dtype=pl.Float64)
    columns: dict[str, Any] = {"arrival_ns": arrival - (late * 1e9).round().cast(pl.Int64)}
    for column, kind in COLUMNS.items():
        if column not in ("arrival_ns", "line"):
            columns[column] = pl.Series([row.get(column) for row in values], dtype=getattr(pl, kind), strict=False)
    columns["line"] = pl.Series([number for number, _ in numbered], dtype=pl.Int64)
    gone = {reason: count for reason, count in (dropped or {}).items() if count}
    if broken:
        gone["not a record"] = len(broken)
    frame = pl.DataFrame(columns)
    return Reading(
        rows=frame,
        rows_read=frame.height + sum(gone.values()),
        clock=clock,
        detected=facts,
        dropped=gone,
        warnings=list(warnings),
        broken_lines=list(broken),
        ordered=ordered,
    )


def each(found: Found, extract: Callable[[Record], Row | None]) -> Iterator[tuple[int, Row]]:
    """Rows of all records that hold a call."""
    for number, record in found.records:
        row = extract(record)
        if row is not None:
            yield number, row


def at(record: Any, *path: str) -> Any:  # noqa: ANN401 - JSON is untyped
    """A value deep inside a record, ``None`` where the path breaks off."""
    for key in path:
        if not isinstance(record, dict):
            return None
        record = record.get(key)
    return record


def count(value: Any) -> int | None:  # noqa: ANN401 - JSON is untyped
    """A token count: a whole number, or one written as text; anything else is unknown."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < 2**53 else None
    if isinstance(value, float):
        return int(value) if value == value and abs(value) < 2**53 and value == int(value) else None
    if isinstance(value, str):
        try:
            return count(float(value)) if "." in value or "e" in value.lower() else count(int(value))
        except (ValueError, OverflowError):
            return None
    return None


def number(value: Any) -> float | None:  # noqa: ANN401 - JSON is untyped
    """A finite number, or one written as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if abs(found) < 1e300 else None


def text(value: Any) -> str | None:  # noqa: ANN401 - JSON is untyped
    """A label: text or a number; empty and ``-`` are unknown."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    found = str(value).strip()
    return found if found not in ("", "-", "null", "None") else None


def scaled(value: Any, factor: float) -> float | None:  # noqa: ANN401 - JSON is untyped
    """A number times ``factor``, such as milliseconds to seconds."""
    found = number(value)
    return None if found is None else found * factor


def between_s(begin: Any, end: Any) -> float | None:  # noqa: ANN401 - JSON is untyped
    """Seconds from one ISO stamp to another; ``None`` when either cannot be read, or only one has a zone."""
    if not isinstance(begin, str) or not isinstance(end, str):
        return None
    try:
        return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
    except (ValueError, TypeError):
        return None


def status_of(code: Any) -> str | None:  # noqa: ANN401 - JSON is untyped
    """What an HTTP status, or a word for it, says: ``ok``, ``rejected``, ``cancelled``, ``error``."""
    found = count(code)
    if found is None:
        return None
    if 200 <= found < 300:
        return "ok"
    if found == 429:
        return "rejected"
    return "cancelled" if found in (0, 499, -3) else "error"


def tier_priority(word: Any) -> int | None:  # noqa: ANN401 - JSON is untyped
    """The priority of a service tier as OpenAI and Anthropic name them: smaller is served first, 0 is the usual one."""
    return {"priority": -1, "default": 0, "standard": 0, "scale": 0, "auto": 0, "flex": 1, "batch": 1}.get(str(word))


def first_known(*values: int | None) -> int | None:
    """The first of some counts that is known."""
    return next((value for value in values if value is not None), None)


def reconcile(
    input_: int | None,
    output: int | None,
    total: int | None,
    *,
    cached: int | None = None,
    reasoning: int | None = None,
    cached_inside: bool = True,
    reasoning_inside: bool = True,
) -> tuple[int | None, int | None]:
    """Input with cached and output with reasoning, by the arithmetic of the row where it has a total.

    Vendors differ, and so do exporters of the same vendor: of the four ways to count, the one that adds up to the
    total is taken. Where none or several do, the habit of the format decides; a cached count above the input can only
    lie outside it, and so for reasoning.
    """
    if input_ is None or output is None:
        return input_, output
    more_in, more_out = cached or 0, reasoning or 0
    habit = (cached_inside and more_in <= input_, reasoning_inside and more_out <= output)
    ways = [habit, (not habit[0], habit[1]), (habit[0], not habit[1]), (not habit[0], not habit[1])]
    ways = [way for way in ways if not (way[0] and more_in > input_) and not (way[1] and more_out > output)]
    for cached_in, reasoning_in in ways if total else ():
        whole_in = input_ if cached_in else input_ + more_in
        whole_out = output if reasoning_in else output + more_out
        if whole_in + whole_out == total:
            return whole_in, whole_out
    return (input_ if habit[0] else input_ + more_in), (output if habit[1] else output + more_out)


def parsed(content: str) -> Any:  # noqa: ANN401 - any JSON
    """What JSON text holds; ``None`` where it is no JSON."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _stamps(stamps: list[Any]) -> Any:  # noqa: ANN401 - a polars series
    import polars as pl

    if any(isinstance(stamp, str) for stamp in stamps):
        return pl.Series([None if stamp is None else str(stamp) for stamp in stamps], dtype=pl.String)
    if any(isinstance(stamp, float) for stamp in stamps):
        return pl.Series([number(stamp) for stamp in stamps], dtype=pl.Float64)
    whole = [stamp if isinstance(stamp, int) and abs(stamp) < 2**63 else None for stamp in stamps]
    return pl.Series(whole, dtype=pl.Int64)
