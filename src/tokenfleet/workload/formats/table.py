"""Tables: CSV, JSON lines and Parquet with one row per request, by column name."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tokenfleet.domain.errors import BadInput
from tokenfleet.workload.formats.clock import UNIT_NS, to_ns, unit_of_name
from tokenfleet.workload.formats.columns import map_columns
from tokenfleet.workload.formats.frames import Loaded, load
from tokenfleet.workload.formats.rows import Reading, ReadOptions
from tokenfleet.workload.formats.source import Source

if TYPE_CHECKING:
    import polars as pl

HASHES = "hash_ids"
COUNT_ROLES = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")
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
    loaded = None
    columns = source.leaves
    if source.kind in ("json", "jsonl"):
        # Any record may bring a key that no record before it had.
        loaded = load(source)
        columns = tuple(loaded.frame.columns)
    mapped = map_columns(columns, options.columns, where=source.where)
    has_hashes = HASHES in columns and source.kind != "csv"
    if loaded is None:
        loaded = load(source, list(dict.fromkeys([*mapped.values(), *([HASHES] if has_hashes else [])])))
    reading = canonical(loaded, mapped, options, where=source.where, name=name, unit=unit)
    return with_hashes(reading, loaded.frame) if has_hashes else reading


def is_table(source: Source) -> bool:
    """A row per request: CSV, JSON lines, Parquet, or the list of a JSON document whose entries say so themselves."""
    if source.kind != "json":
        return source.kind in ("csv", "jsonl", "parquet")
    try:
        return bool(map_columns(source.leaves, {}, where=source.where))
    except BadInput:
        return False


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
    loaded: Loaded, mapped: dict[str, str], options: ReadOptions, *, where: str, name: str, unit: str | None
) -> Reading:
    """Rows under canonical names, from a table and the column of each role."""
    import polars as pl

    frame = loaded.frame
    detected = {"format": name, "columns": told_columns(mapped)}
    stamp = mapped["arrival"]
    arrival, clock = to_ns(
        frame[stamp], options, where=f"{where}, column '{stamp}'", detected=detected, unit=unit or unit_of_name(stamp)
    )
    rows = {"arrival_ns": arrival, "line": _lines(loaded.lines)}
    for role in (*COUNT_ROLES, "priority"):
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
    broken = len(loaded.broken)
    return Reading(
        rows=table,
        rows_read=table.height + broken,
        clock=clock,
        detected=detected,
        dropped={"not a record": broken} if broken else {},
        broken_lines=list(loaded.broken),
        warnings=_no_priorities(table, options),
    )


def _no_priorities(rows: "pl.DataFrame", options: ReadOptions) -> list[str]:
    """What to say where a person named a column of priorities and it holds none."""
    column = options.columns.get("priority")
    if column is None or rows["priority"].null_count() < rows.height:
        return []
    return [f"column '{column}' holds no whole numbers: priorities are unknown"]


def told_columns(mapped: Mapping[str, str]) -> str:
    """Which column is read as what, for the quality report."""
    return ", ".join(f"{role}={column}" for role, column in mapped.items())


def _lines(lines: Sequence[int]) -> "pl.Series":
    import polars as pl

    if isinstance(lines, range):
        return pl.int_range(lines.start, lines.stop, eager=True, dtype=pl.Int64)
    return pl.Series(lines, dtype=pl.Int64)


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
        # Spreadsheets group digits; any other comma makes no whole number.
        grouped = column.str.contains(r"^\s*\d{1,3}(?:,\d{3})+\s*$")
        column = pl.select(pl.when(grouped).then(column.str.replace_all(",", "")).otherwise(column)).to_series()
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
