"""From rows to a trace: every row is kept or dropped for a named reason, and nothing unknown becomes 0."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Ints, Observed, PrefixTree, Quality, Reject, Trace
from tokenfleet.workload.checks import look
from tokenfleet.workload.formats.rows import COLUMNS, Reading, ReadOptions
from tokenfleet.workload.prefixes import block_size_of, told_apart, tree_of_hashes
from tokenfleet.workload.tally import NS
from tokenfleet.workload.ticks import spread, tick_of
from tokenfleet.workload.unfinished import RETRIED, UNMET, imputed, retried

if TYPE_CHECKING:
    import polars as pl

_LONGEST_TOKENS = 50_000_000
"""Longer than any context: a cell of bytes or of a sum, not of one request."""

_ZERO = UNMET[3]
_MANY_SILENT = 0.1
"""Above this share of calls without output, failure is no likely reason: public traces show 2 to 8 %."""
_MOST_PRIORITIES = 128
"""As many as a replay tells apart."""
_MOST_REJECTS = 10_000
_FEWEST_ALIKE = 10
_DAY_NS = 86_400 * NS
FAR_NS = 2 * 366 * 86_400 * NS
"""No trace of requests is this long: a year that was mistyped, or a stamp of another clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What is kept."""

    zero_output: Literal["drop", "keep"] = "drop"
    """Rows with 0 output tokens: failed or cut calls, unless the service only reads (embedding, rerank)."""
    most_broken_fraction: float = 0.5
    """Above this share of rows without a record or a time, a file is refused: it is not what it was taken for."""
    unfinished: Literal["drop", "impute"] = "drop"
    """Calls that failed, were turned away or lost their counts: left out, or given the lengths of others."""
    spread_ticks: bool = True
    """Spread requests that share a coarse time stamp."""
    fold_retries: bool = True
    """Count a call that did not succeed and the one that did soon after as one: a part of a file cannot tell."""


def admit(readings: Sequence[Reading], options: ReadOptions, admission: Admission) -> tuple[Trace, Quality]:
    """Join rows of one or several files into one trace.

    Raises:
        BadInput: files whose clocks cannot be joined, no usable row, or a question only a person can answer.
    """
    import polars as pl

    _clocks_agree(readings)
    parts = [
        _complete(reading.rows).with_columns(file=pl.lit(place, pl.Int32)) for place, reading in enumerate(readings)
    ]
    rows = parts[0] if len(parts) == 1 else pl.concat(parts, how="vertical")
    rows_read = sum(reading.rows_read for reading in readings)
    dropped: dict[str, int] = {}
    for reading in readings:
        for reason, count in reading.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
    detected = _joined([reading.detected for reading in readings])
    warnings = [text for reading in readings for text in reading.warnings]
    rows = _cached_inside(rows, options, detected)
    warnings += _order_warnings(rows, readings)
    if not rows["arrival_ns"].is_sorted():
        rows = rows.sort("arrival_ns", maintain_order=True)
    kept, marked = _drop(rows, admission, dropped, detected)
    if kept.is_empty():
        raise nothing_left(_files(readings), rows_read, dropped, _rejects(marked, readings))
    mostly_whole(_files(readings), rows_read, dropped, admission.most_broken_fraction)
    warnings += _unmet_warnings(dropped, kept.height) + _twice_warnings(kept, readings)
    arrival_ns = kept["arrival_ns"].to_numpy().copy()
    tick_ns = tick_of(arrival_ns)
    if tick_ns is not None:
        detected["clock tick"] = f"{tick_ns / NS:g} s"
        warnings.append(_tick_text(arrival_ns, tick_ns, admission))
        if admission.spread_ticks:
            arrival_ns = spread(arrival_ns, tick_ns)
    trace = _trace(kept, arrival_ns, readings, detected, warnings)
    warnings += look(trace)
    quality = Quality(
        rows_read=rows_read,
        rows_kept=trace.request_count,
        rows_dropped=dropped,
        detected=detected,
        warnings=tuple(dict.fromkeys(warnings)),
        rejects=_rejects(marked, readings),
    )
    return trace, quality


def admit_rows(reading: Reading, options: ReadOptions, admission: Admission, dropped: dict[str, int]) -> "pl.DataFrame":
    """Rows of one reading that can be replayed, in order of time; ``dropped`` gets the others by reason."""
    rows = _cached_inside(_complete(reading.rows), options, dict(reading.detected))
    if not rows["arrival_ns"].is_sorted():
        rows = rows.sort("arrival_ns", maintain_order=True)
    return _drop(rows, admission, dropped, {})[0]


def _clocks_agree(readings: Sequence[Reading]) -> None:
    clocks = {reading.clock for reading in readings}
    if clocks == {"relative"} and len(readings) > 1:
        raise BadInput.at(
            "files",
            "each counts time from a start of its own",
            "give one file, or files with dates, to read them together",
        )
    if "relative" in clocks and len(clocks) > 1:
        raise BadInput.at("files", "some have dates and others count from a start of their own", "read them one by one")
    if clocks == {"naive", "utc"}:
        raise BadInput.at(
            "files",
            "some stamps have a time zone and others have none",
            "name the zone of those without: say zone: UTC, or Europe/Berlin",
        )


def _complete(rows: "pl.DataFrame") -> "pl.DataFrame":
    """All canonical columns, null where the file has none."""
    import polars as pl

    have = set(rows.columns)
    columns = [
        (pl.col(name) if name in have else pl.lit(None)).cast(getattr(pl, kind), strict=False).alias(name)
        for name, kind in COLUMNS.items()
    ]
    hashes = pl.col("hash_ids") if "hash_ids" in have else pl.lit(None).cast(pl.List(pl.Int64)).alias("hash_ids")
    return rows.select(*columns, hashes)


def _joined(parts: Sequence[dict[str, str]]) -> dict[str, str]:
    out: dict[str, str] = {}
    for part in parts:
        for key, value in part.items():
            if value not in out.get(key, "").split("; "):
                out[key] = f"{out[key]}; {value}" if key in out else value
    return out


def _cached_inside(rows: "pl.DataFrame", options: ReadOptions, detected: dict[str, str]) -> "pl.DataFrame":
    """Make input include cached tokens, by the person's word or by arithmetic."""
    import polars as pl

    if "cached inside input" in detected:
        return rows
    cached = rows["cached_tokens"]
    if not int((cached > 0).sum()):
        return rows
    above = int((cached > rows["input_tokens"]).sum())
    outside = options.cached == "outside" or (options.cached is None and above > 0)
    if outside:
        detected["cached inside input"] = "no: added" + (
            "" if options.cached else f" ({above} rows have more cached than input)"
        )
        return rows.with_columns(input_tokens=pl.col("input_tokens") + pl.col("cached_tokens").fill_null(0))
    detected["cached inside input"] = "yes" + (", as told" if options.cached else ", since it is never above input")
    return rows


def _drop(
    rows: "pl.DataFrame", admission: Admission, dropped: dict[str, int], detected: dict[str, str]
) -> "tuple[pl.DataFrame, pl.DataFrame]":
    """Rows that can be replayed, and the others with exactly one reason each."""
    import polars as pl

    rules = _rules(rows, admission)
    bad = rows.select(pl.any_horizontal([rule.fill_null(value=False) for _, rule in rules])).to_series()
    if not bad.any():
        return rows, rows.clear().with_columns(reason=pl.lit(None, pl.String))
    reason = pl.coalesce([pl.when(rule).then(pl.lit(name)) for name, rule in rules])
    marked = rows.with_columns(pl.when(bad).then(reason).alias("reason"))
    kept = marked.filter(pl.col("reason").is_null()).drop("reason")
    if admission.unfinished == "impute":
        given = imputed(marked, kept)
        if given.height:
            detected["imputed"] = f"lengths of {given.height} of {kept.height + given.height} requests"
            kept = pl.concat([kept, given]).sort("arrival_ns", maintain_order=True)
            marked = marked.filter(~pl.col("reason").is_in(UNMET))
    for name, count in marked["reason"].drop_nulls().value_counts().sort("reason").iter_rows():
        dropped[name] = dropped.get(name, 0) + count
    return kept, marked.filter(pl.col("reason").is_not_null())


def _rejects(marked: "pl.DataFrame", readings: Sequence[Reading]) -> tuple[Reject, ...]:
    """The first rows that were left out, in order of file and line."""
    found = [
        Reject(where=f"{reading.where}:{line}", reason="not a record")
        for reading in readings
        for line in reading.broken_lines[:_MOST_REJECTS]
    ]
    shown = marked.select("file", "line", "reason").drop_nulls().sort("file", "line").head(_MOST_REJECTS)
    found += [Reject(where=f"{readings[file].where}:{line}", reason=reason) for file, line, reason in shown.iter_rows()]
    return tuple(found[:_MOST_REJECTS])


def _rules(rows: "pl.DataFrame", admission: Admission) -> "list[tuple[str, pl.Expr]]":
    """Reasons to leave a row out, the first that holds counts; those that no row can meet are not asked."""
    import polars as pl

    known = {name for name in rows.columns if rows[name].null_count() < rows.height}
    far = (pl.col("arrival_ns") - pl.col("arrival_ns").median()).abs() > FAR_NS
    rules = [("time unknown", pl.col("arrival_ns").is_null()), ("time more than two years from the median", far)]
    if "request_id" in known:
        first = pl.col("request_id").is_null() | pl.struct("request_id", "arrival_ns").is_first_distinct()
        rules.append(("duplicate request id", ~first))
    if "status" in known:
        if "session" in known and admission.fold_retries:
            rules.append((RETRIED, retried()))
        failed = (pl.col("status") == "error") & (pl.col("output_tokens").fill_null(0) <= 0)
        rules += [("rejected, unmet demand", pl.col("status") == "rejected"), ("failed", failed)]
    rules += [
        ("input tokens unknown", pl.col("input_tokens").is_null()),
        ("input tokens below 1", pl.col("input_tokens") < 1),
        ("output tokens unknown", pl.col("output_tokens").is_null()),
        ("output tokens below 0", pl.col("output_tokens") < 0),
        ("tokens above 50 million", pl.max_horizontal("input_tokens", "output_tokens") > _LONGEST_TOKENS),
    ]
    if admission.zero_output == "drop":
        rules.append((_ZERO, pl.col("output_tokens") == 0))
    return rules


def mostly_whole(where: str, rows_read: int, dropped: dict[str, int], most_broken_fraction: float = 0.5) -> None:
    """Refuse files of which too many rows have no record or no time: they are not what they were taken for."""
    broken = sum(dropped.get(reason, 0) for reason in ("not a record", "time unknown"))
    if broken > most_broken_fraction * rows_read:
        raise BadInput.at(
            where,
            f"{broken} of {rows_read} rows have no record or no time that can be read",
            "check the format, the column mapping and the time stamps",
        )


def nothing_left(where: str, rows_read: int, dropped: dict[str, int], rejects: Sequence[Reject] = ()) -> BadInput:
    """The error of files without a single row that can be replayed: every reason, and where the first row is."""
    if not rows_read:
        return BadInput.at(where, "has no rows", "export the log again, with its rows")
    mend = "check the export or the column mapping"
    if 2 * dropped.get(_ZERO, 0) >= rows_read:
        mend = "embedding or rerank traffic? then say zero_output: keep; else map another column"
    reasons = ", ".join(f"{count} x {reason}" for reason, count in dropped.items())
    first = f"; the first at {rejects[0].where}" if rejects else ""
    return BadInput.at(where, f"none of its rows can be used ({reasons}{first})", mend)


def _files(readings: Sequence[Reading]) -> str:
    return files_named([reading.where for reading in readings])


def files_named(names: Sequence[str]) -> str:
    """The first three of several files, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _unmet_warnings(dropped: dict[str, int], kept: int) -> list[str]:
    unmet = sum(dropped.get(reason, 0) for reason in UNMET)
    if unmet < 0.001 * kept:
        return []
    share = unmet / (unmet + kept)
    found = [
        f"calls that failed, were turned away or lost their counts: {unmet:,}, {share:.1%} of all; the log shows what "
        "was served, and demand was higher; they can be kept with imputed lengths"
    ]
    silent = dropped.get(_ZERO, 0)
    if silent > _MANY_SILENT * (silent + kept):
        found.append(
            f"{silent} calls have 0 output tokens, {silent / (silent + kept):.0%} of those with a length: so many are "
            "rarely failures; calls of tools without text, embeddings and reranks are requests and can be kept"
        )
    return found


def _twice_warnings(kept: "pl.DataFrame", readings: Sequence[Reading]) -> list[str]:
    """Calls without ids that two files hold alike: exports that overlap, more likely than chance."""
    import polars as pl

    if len(readings) < 2:
        return []
    same = ("arrival_ns", "input_tokens", "output_tokens", "model", "tenant")
    files = pl.col("file").n_unique().over(same)
    twice = kept.filter(pl.col("request_id").is_null()).filter(files > 1)
    smallest = int(kept.group_by("file").len()["len"].min() or 0)  # type: ignore[arg-type]
    if twice.height < max(_FEWEST_ALIKE, smallest):
        return []
    return [
        f"{twice.height} rows stand alike in two files, which carry no ids to tell: exports that overlap count twice; "
        "give each stretch of time once"
    ]


def _order_warnings(rows: "pl.DataFrame", readings: Sequence[Reading]) -> list[str]:
    if len(readings) > 1 or not readings[0].ordered:
        return []
    steps = rows["arrival_ns"].drop_nulls().diff().drop_nulls()
    back = steps.filter(steps < 0)
    if not len(back):
        return []
    hour = int((back <= -3_000 * NS).sum())
    text = f"{len(back)} rows are earlier than the row before them: sorted"
    if hour and hour == len(back):
        text += "; the clock steps back an hour, as local time does in autumn: name the zone"
    return [text]


def _tick_text(arrival_ns: npt.NDArray[np.int64], tick_ns: int, admission: Admission) -> str:
    edges = np.flatnonzero(np.concatenate(([True], np.diff(arrival_ns) > 0)))
    counts = np.diff(np.append(edges, len(arrival_ns)))
    done = (
        "spread at random inside each tick"
        if admission.spread_ticks
        else "left as they are: bursts within a tick are false"
    )
    return (
        f"time stamps tick every {tick_ns / NS:g} s ({len(counts)} different stamps for {len(arrival_ns)} requests, "
        f"up to {int(counts.max())} share one): {done}"
    )


def _trace(
    rows: "pl.DataFrame",
    arrival_ns: npt.NDArray[np.int64],
    readings: Sequence[Reading],
    detected: dict[str, str],
    warnings: list[str],
) -> Trace:
    tenant, tenants = indexed(rows["tenant"])
    session, _ = indexed(rows["session"])
    tree, node = _prefixes(rows, session, detected, warnings)
    start = None
    if readings[0].clock == "utc":
        stamp = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(arrival_ns[0]) // 1000)
        start = stamp.isoformat().replace("+00:00", "Z")
    # Stamps without a zone have no instant, and a time of day all the same.
    has_clock = readings[0].clock == "naive"
    return Trace(
        arrival_s=(arrival_ns - arrival_ns[0]) / NS,
        input_tokens=rows["input_tokens"].to_numpy().astype(np.int32),
        output_tokens=rows["output_tokens"].to_numpy().astype(np.int32),
        prefix_node=node,
        prefixes=tree,
        session=session,
        tenant=tenant,
        tenants=tenants,
        priority=_priority(rows, detected, warnings),
        start_utc=start,
        time_of_day_s=float(int(arrival_ns[0]) % _DAY_NS) / NS if has_clock else 0.0,
        observed=_observed(rows),
    )


def _priority(rows: "pl.DataFrame", detected: dict[str, str], warnings: list[str]) -> Ints | None:
    """Priorities, 0 where none is written, as engines take it; ``None`` where the files tell no two apart."""
    import polars as pl

    told = rows["priority"].cast(pl.Int32, strict=False)
    if told.null_count() == len(told):
        return None
    priority = told.fill_null(0).to_numpy().astype(np.int32)
    levels = np.unique(priority)
    if len(levels) == 1:
        return None
    if len(levels) > _MOST_PRIORITIES:
        warnings.append(f"{len(levels)} different priorities, more than {_MOST_PRIORITIES}: none is used, group them")
        return None
    if told.null_count():
        warnings.append(f"{told.null_count()} requests have no priority: 0, as engines take it")
    detected["priority"] = f"{levels[0]} to {levels[-1]}, smaller first"
    return priority


def _prefixes(
    rows: "pl.DataFrame", session: Ints | None, detected: dict[str, str], warnings: list[str]
) -> tuple[PrefixTree | None, Ints | None]:
    hashes = rows["hash_ids"]
    if hashes.null_count() == len(hashes):
        return None, None
    counts = hashes.list.len().fill_null(0).to_numpy().astype(np.int64)
    tokens = rows["input_tokens"].to_numpy()
    size = block_size_of(tokens, counts)
    if size is None:
        warnings.append("hash_ids do not fit input_length at any usual block size: prefix sharing is unknown")
        return None, None
    flat = hashes.explode().drop_nulls().to_numpy().astype(np.int64)
    apart = told_apart(flat, counts, session)
    found = tree_of_hashes(flat if apart is None else apart, counts, tokens, size[0])
    if found is None:
        warnings.append("hash_ids are no chains (one block follows different blocks): prefix sharing is unknown")
        return None, None
    detected["prefix blocks"] = f"{size[0]} tokens" + ("" if apart is None else ", numbered anew in each session")
    return found


def indexed(column: "pl.Series") -> tuple[Ints | None, tuple[str, ...]]:
    """Names as indices in order of first appearance, -1 for unknown; ``None`` when the file has none."""
    import polars as pl

    if column.null_count() == len(column):
        return None, ()
    names = column.unique(maintain_order=True).drop_nulls()
    index = column.cast(pl.Enum(names)).to_physical().cast(pl.Int32)
    return index.fill_null(-1).to_numpy().astype(np.int32), tuple(names.to_list())


def _observed(rows: "pl.DataFrame") -> Observed | None:
    names = ("model", "label", "cached_tokens", "reasoning_tokens", "ttft_s", "e2e_s", "streamed", "finish", "status")
    if all(rows[name].null_count() == rows.height for name in names):
        return None
    model, models = indexed(rows["model"])
    label, labels = indexed(rows["label"])
    finish, finishes = indexed(rows["finish"])
    status, statuses = indexed(rows["status"])
    return Observed(
        model=model,
        models=models,
        label=label,
        labels=labels,
        cached_input_tokens=_whole(rows["cached_tokens"]),
        reasoning_tokens=_whole(rows["reasoning_tokens"]),
        ttft_s=_seconds(rows["ttft_s"]),
        e2e_s=_seconds(rows["e2e_s"]),
        streamed=_whole(rows["streamed"]),
        finish=finish,
        finishes=finishes,
        status=status,
        statuses=statuses,
    )


def _whole(column: "pl.Series") -> Ints | None:
    import polars as pl

    if column.null_count() == len(column):
        return None
    return column.cast(pl.Int32, strict=False).fill_null(-1).to_numpy().astype(np.int32)


def _seconds(column: "pl.Series") -> npt.NDArray[np.float64] | None:
    if column.null_count() == len(column):
        return None
    seconds = column.fill_null(float("nan")).to_numpy().astype(np.float64)
    # No call took for ever, or ended before it began: such a cell is unknown.
    return np.where(np.isfinite(seconds) & (seconds >= 0), seconds, np.nan)
