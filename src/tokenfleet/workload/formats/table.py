"""Tables: CSV, JSON lines and Parquet with one row per request, by column name."""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tokenfleet.domain.errors import BadInput
from tokenfleet.workload.formats.clock import UNIT_NS, to_ns, unit_of_name
from tokenfleet.workload.formats.columns import map_columns
from tokenfleet.workload.formats.rows import Reading, ReadOptions
from tokenfleet.workload.formats.source import Source

if TYPE_CHECKING:
    import polars as pl

HASHES = "hash_ids"
_COUNTS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
_TEXTS = ("finish", "model", "tenant", "session", "label", "request_id")
_ABSENT = ("", "-", "null", "NULL", "None", "none", "nan", "NaN", "NA", "N/A")


def read_table(source: Source, options: ReadOptions, *, name: str, unit: str | None = None) -> Reading:
    """Read a table whose columns are found by name.

    Args:
        source: CSV, JSON lines or Parquet.
        options: A column mapping, unit and zone come first.
        name: Format, for the quality report.
        unit: Time unit that the format defines, when it does.

    Raises:
        BadInput: columns missing or open to doubt, a time unit nobody states, or a file that cannot be parsed.
    """
    mapped = map_columns(source.columns, options.columns, where=source.where)
    has_hashes = HASHES in source.columns and source.kind != "csv"
    frame = load_frame(source, list(dict.fromkeys([*mapped.values(), *([HASHES] if has_hashes else [])])))
    reading = canonical(frame, mapped, options, where=source.where, name=name, unit=unit)
    return with_hashes(reading, frame) if has_hashes else reading


def with_hashes(reading: Reading, frame: "pl.DataFrame") -> Reading:
    """Add block hashes to the rows, unchanged where they are lists of whole numbers, else not at all."""
    import polars as pl

    hashes = frame[HASHES]
    inner = hashes.dtype.inner if isinstance(hashes.dtype, pl.List) else None
    if inner is None or not inner.is_integer() or inner in (pl.Int128, pl.UInt128):
        reading.warnings.append("hash_ids are no lists of whole numbers: prefix sharing is unknown")
        return reading
    if inner == pl.UInt64:
        # Half of all hashes of 64 bits pass the largest signed number; only whether two are equal matters.
        signed = hashes.list.eval(pl.element().reinterpret(signed=True))
    else:
        signed = hashes.cast(pl.List(pl.Int64))
    return replace(reading, rows=reading.rows.with_columns(signed.alias(HASHES)))


def canonical(
    frame: "pl.DataFrame", mapped: dict[str, str], options: ReadOptions, *, where: str, name: str, unit: str | None
) -> Reading:
    """Rows under canonical names, from a frame and the column of each role."""
    import polars as pl

    detected = {"format": name, "columns": ", ".join(f"{role}={column}" for role, column in mapped.items())}
    stamp = mapped["arrival"]
    arrival, clock = to_ns(
        frame[stamp], options, where=f"{where}, column '{stamp}'", detected=detected, unit=unit or unit_of_name(stamp)
    )
    rows = {"arrival_ns": arrival, "line": pl.int_range(2, frame.height + 2, eager=True, dtype=pl.Int64)}
    for role in _COUNTS:
        if role in mapped:
            rows[role] = as_count(frame[mapped[role]])
    for role in _TEXTS:
        if role in mapped:
            rows[role] = as_text(frame[mapped[role]])
    for role in ("ttft", "e2e"):
        if role in mapped:
            spoken = unit_of_name(mapped[role])
            if spoken is not None:
                rows[role + "_s"] = _as_float(frame[mapped[role]]) * (UNIT_NS[spoken] / UNIT_NS["s"])
    if "streamed" in mapped:
        rows["streamed"] = _as_flag(frame[mapped["streamed"]])
    if "status" in mapped:
        rows["status"] = as_status(as_text(frame[mapped["status"]]))
    table = pl.DataFrame(rows)
    return Reading(rows=table, rows_read=table.height, clock=clock, detected=detected)


def load_frame(source: Source, columns: list[str]) -> "pl.DataFrame":
    """The named columns of a file; CSV cells stay text, so that a bad cell is a counted null and no crash."""
    import polars as pl

    data = b""
    try:
        if source.kind == "parquet":
            return pl.read_parquet(source.path, columns=columns)
        data = source.content()
        if source.kind == "csv":
            return _read_csv(data, columns)
        if source.kind == "jsonl":
            return pl.read_ndjson(io.BytesIO(data), infer_schema_length=None).select(columns)
        return pl.read_json(io.BytesIO(data)).select(columns)
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        raise _unreadable(source.where, source.kind, data) from error


def load_part(path: str, kind: str, start: int, stop: int, header: str, columns: list[str]) -> "pl.DataFrame":
    """The named columns of a stretch of a file: rows of Parquet, bytes of text that begin and end with lines.

    Raises:
        BadInput: the stretch cannot be parsed.
    """
    import polars as pl

    data = b""
    try:
        if kind == "parquet":
            return pl.scan_parquet(path).select(columns).slice(start, stop - start).collect()
        with Path(path).open("rb") as file:
            file.seek(start)
            data = file.read(stop - start)
        if kind == "csv":
            return _read_csv(header.encode() + b"\n" + data, columns)
        return pl.read_ndjson(io.BytesIO(data), infer_schema_length=None).select(columns)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, kind, data, lines_before=_lines_before(Path(path), start)) from error


def _unreadable(where: str, kind: str, data: bytes, *, lines_before: int = 0) -> BadInput:
    """One line on the first line that cannot be read.

    What the library says is for programmers, and it quotes cells: prompts may stand in them.
    """
    if kind == "csv":
        line = _open_quote(data)
        if line is not None:
            mend = 'close it, and write a quote inside a cell twice: ""'
            return BadInput.at(f"{where}:{lines_before + line}", "a quote is not closed", mend)
    if kind == "jsonl":
        line = _not_json(data)
        if line is not None:
            return BadInput.at(f"{where}:{lines_before + line}", "the line is no JSON record", "export the log again")
    shown = {"csv": "CSV", "jsonl": "JSON lines", "json": "JSON", "parquet": "Parquet"}[kind]
    return BadInput.at(where, f"cannot be read as {shown}", "check the export, or write it again")


def _lines_before(path: Path, start: int) -> int:
    count = 0
    with path.open("rb") as file:
        while start > 0 and (block := file.read(min(start, 1 << 20))):
            count += block.count(b"\n")
            start -= len(block)
    return count


def _open_quote(data: bytes) -> int | None:
    """Line on which the first row with a bare or unclosed quote begins, counted from 1."""
    quotes = 0

    def lines() -> Iterator[str]:
        nonlocal quotes
        for line in io.StringIO(data.decode("utf-8", errors="replace"), newline=""):
            quotes += line.count('"')
            yield line

    rows = csv.reader(lines(), strict=True)
    first = 1
    try:
        for _ in rows:
            if quotes % 2:
                return first
            first, quotes = rows.line_num + 1, 0
    except csv.Error:
        return first
    return None


def _not_json(data: bytes) -> int | None:
    """The first line that holds no JSON record, counted from 1."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        try:
            if line.strip() and not isinstance(json.loads(line), dict):
                return number
        except (ValueError, RecursionError):
            return number
    return None


def _read_csv(data: bytes, columns: list[str]) -> "pl.DataFrame":
    import polars as pl

    frame = pl.read_csv(
        data,
        infer_schema=False,
        truncate_ragged_lines=True,
        encoding="utf8-lossy",
        raise_if_empty=False,
    )
    return frame.rename({name: name.strip() for name in frame.columns if name != name.strip()}).select(columns)


def as_count(column: "pl.Series") -> "pl.Series":
    """Token counts as integers; null where the cell holds none. ``12.0`` is a count, ``12.5`` is not."""
    import polars as pl

    if column.dtype.is_integer():
        return column.cast(pl.Int64, strict=False)
    if column.dtype == pl.Boolean:
        return pl.Series([None] * len(column), dtype=pl.Int64)
    if column.dtype == pl.String:
        # Most columns hold bare whole numbers: one look tells, and nothing has to be stripped.
        bare = column.cast(pl.Int64, strict=False)
        if bare.null_count() == column.null_count():
            return bare
    text = column.str.strip_chars() if column.dtype == pl.String else column
    whole = (
        text.cast(pl.Int64, strict=False)
        if column.dtype == pl.String
        else pl.Series([None] * len(text), dtype=pl.Int64)
    )
    if whole.null_count() == column.null_count():
        return whole
    number = text.cast(pl.Float64, strict=False)
    exact = pl.select(pl.when((number == number.floor()) & (number.abs() < 2**53)).then(number)).to_series()
    return pl.select(pl.coalesce(whole, exact.cast(pl.Int64, strict=False))).to_series()


def _as_float(column: "pl.Series") -> "pl.Series":
    import polars as pl

    text = column.str.strip_chars() if column.dtype == pl.String else column
    return text.cast(pl.Float64, strict=False)


def as_text(column: "pl.Series") -> "pl.Series":
    """Names without blanks around them; null where the cell says that there is none."""
    import polars as pl

    text = column.cast(pl.String, strict=False)
    names = text.unique().drop_nulls()
    # Labels are few and rows are many: where no label needs mending, none is touched.
    if not (names.is_in(_ABSENT) | (names != names.str.strip_chars())).any():
        return text
    text = text.str.strip_chars()
    return pl.select(pl.when(text.is_in(_ABSENT)).then(None).otherwise(text)).to_series()


def _as_flag(column: "pl.Series") -> "pl.Series":
    import polars as pl

    if column.dtype == pl.Boolean:
        return column
    text = column.cast(pl.String, strict=False).str.to_lowercase().str.strip_chars()
    yes, no = text.is_in(["true", "1", "yes", "t"]), text.is_in(["false", "0", "no", "f"])
    return pl.select(pl.when(yes).then(True).when(no).then(False)).to_series()


def as_status(text: "pl.Series") -> "pl.Series":
    """``ok``, ``error``, ``rejected`` or ``cancelled``, from words or HTTP codes; null where neither is known."""
    import polars as pl

    word = text.str.to_lowercase()
    code = word.cast(pl.Int64, strict=False)
    ok = word.is_in(["ok", "success", "succeeded", "successful", "completed", "true"]) | code.is_between(200, 299)
    rejected = word.is_in(["rejected", "throttled", "rate_limited"]) | (code == 429)
    cancelled = word.is_in(["cancelled", "canceled", "aborted", "abort"]) | code.is_in([499, 0, -3])
    failed = word.is_in(["error", "failure", "failed", "errored", "false"]) | (code >= 400)
    choice = pl.when(ok).then(pl.lit("ok")).when(rejected).then(pl.lit("rejected"))
    choice = choice.when(cancelled).then(pl.lit("cancelled")).when(failed).then(pl.lit("error"))
    return pl.select(choice).to_series()
