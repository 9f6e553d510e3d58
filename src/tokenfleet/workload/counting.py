"""One part of a large table: looked into, and counted. A part needs nothing but its own description."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import LengthCounts, Trace
from tokenfleet.workload.admit import FAR_NS, Admission, admit_rows, indexed
from tokenfleet.workload.client_tally import (
    WINDOW_NS,
    Clients,
    client_tables,
    client_tallies,
    clients_of_tables,
    square_sum,
)
from tokenfleet.workload.fact_tally import FACT_COLUMNS, NAMED_FACTS, FactTally, Named, fact_tally
from tokenfleet.workload.formats.frames import Loaded, chunks, load_rows, load_text
from tokenfleet.workload.formats.rows import Clock, Reading, ReadOptions
from tokenfleet.workload.formats.table import COUNT_ROLES, as_status, as_text, canonical, told_columns
from tokenfleet.workload.joint import BINS, fixed_edges
from tokenfleet.workload.session_tally import SessionRows, hashed_sessions, session_rows
from tokenfleet.workload.tally import NS, Tally, add, tally_of
from tokenfleet.workload.ticks import tick_of

if TYPE_CHECKING:
    import polars as pl

    from tokenfleet.workload.sweep import Tables

Longs = npt.NDArray[np.int64]

_MINUTE_NS = 60 * NS
_NAMED = ("tenant", "session", *NAMED_FACTS)
_BY_ROW = {"session", *FACT_COLUMNS} - {"status"}
"""Roles for which the rows kept are gone through again; few words say a status, so those are looked at by word."""
_MOST_TABLES = 64
"""Tenants of a part that are counted one by one in one go: each needs a table of its own."""


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
    separator: str = ","
    streamed: bool = False
    """Whether the file is packed or written in another encoding, so that it is read from its start to its end."""
    encoding: str | None = None
    options: ReadOptions
    admission: Admission
    origin_ns: int = 0
    """Second 0 of the clock that minutes are counted on."""
    first_of_file: bool = False
    head_only: bool = False
    """Whether the first piece of a streamed file is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What a part holds. Its minutes mean something only if no part holds an earlier request than ``origin_ns``."""

    tally: Tally | None
    first_ns: int | None
    """Stamp of the earliest row kept."""
    rows_read: int
    dropped: Mapping[str, int]
    clock: Clock | None
    """``None`` when no row has a time."""
    cached_above_input: bool
    """Whether a row has more cached tokens than input: then input cannot include them."""
    ticks: bool
    detected: Mapping[str, str]


def count_part(part: Part) -> Counted:
    """Count one part: compiled and in one go, or step by step where a table of that cannot hold what it finds."""
    return reduce(_together, (_count_piece(part, piece) for piece in _pieces(part)))


def _pieces(part: Part) -> Iterator[Loaded]:
    """The rows of a part: all at once, or piece by piece where a file cannot be entered in its middle."""
    wanted = list(dict.fromkeys(part.columns.values()))
    if part.kind == "parquet":
        yield load_rows(part.path, part.start, part.stop, wanted)
        return
    if not part.streamed:
        with Path(part.path).open("rb") as file:
            file.seek(part.start)
            data = file.read(part.stop - part.start)
        yield _of_text(part, data, wanted, headed=False)
        return
    for place, data in enumerate(chunks(Path(part.path), part.stop - part.start, part.encoding)):
        yield _of_text(part, data, wanted, headed=place == 0)
        if part.head_only:
            return


def _of_text(part: Part, data: bytes, wanted: list[str], *, headed: bool) -> Loaded:
    if part.kind == "csv" and not headed:
        data = part.header.encode() + b"\n" + data
    counts = [part.columns[role] for role in COUNT_ROLES if role in part.columns] if part.kind == "csv" else []
    return load_text(data, part.kind, part.separator, wanted, where=part.path, counts=counts)


def _count_piece(part: Part, loaded: Loaded) -> Counted:
    frame = loaded.frame
    # Names are few and rows are many: the compiled way looks at each name once, and not at each cell.
    reading = _reading(part, loaded, {role: name for role, name in part.columns.items() if role not in _NAMED})
    rows = reading.rows
    above = False
    if "cached_tokens" in rows.columns:
        above = bool((rows["cached_tokens"] > rows["input_tokens"]).any())
    dropped: dict[str, int] = dict(reading.dropped)
    found = _swept(part, rows, frame, dropped)
    if found is None:
        found = _stepped(part, _reading(part, loaded, part.columns), dropped)
    tally, first_ns, ticks = found
    known = rows["arrival_ns"].null_count() < rows.height
    return Counted(
        tally=tally,
        first_ns=first_ns,
        rows_read=reading.rows_read,
        dropped=dropped,
        clock=reading.clock if known else None,
        cached_above_input=above,
        ticks=ticks,
        detected={**reading.detected, "columns": told_columns(part.columns)},
    )


def _together(left: Counted, right: Counted) -> Counted:
    """Both counts as one."""
    tallies = [part.tally for part in (left, right) if part.tally is not None]
    first = [part.first_ns for part in (left, right) if part.first_ns is not None]
    dropped = dict(left.dropped)
    for reason, count in right.dropped.items():
        dropped[reason] = dropped.get(reason, 0) + count
    return Counted(
        tally=reduce(add, tallies) if tallies else None,
        first_ns=min(first) if first else None,
        rows_read=left.rows_read + right.rows_read,
        dropped=dropped,
        clock=left.clock or right.clock,
        cached_above_input=left.cached_above_input or right.cached_above_input,
        ticks=left.ticks or right.ticks,
        detected=left.detected,
    )


def _reading(part: Part, loaded: Loaded, columns: Mapping[str, str]) -> Reading:
    name = f"{part.kind} table, in parts"
    return canonical(loaded, dict(columns), part.options, where=part.path, name=name, unit=None)


_Found = tuple[Tally | None, int | None, bool]


def _stepped(part: Part, reading: Reading, dropped: dict[str, int]) -> _Found:
    kept = admit_rows(reading, part.options, part.admission, dropped)
    if kept.is_empty():
        return None, None, False
    arrival_ns = kept["arrival_ns"].to_numpy()
    tenant, tenants = indexed(kept["tenant"])
    session = kept["session"]
    rows = None
    if "session" in part.columns:
        hashes = np.where(session.is_null().to_numpy(), -1, hashed_sessions(session.fill_null("")))
        lengths = (kept[name].to_numpy() for name in ("input_tokens", "output_tokens"))
        rows = session_rows(hashes, arrival_ns - part.origin_ns, *lengths)
    trace = Trace(
        arrival_s=(arrival_ns - part.origin_ns) / NS,
        input_tokens=kept["input_tokens"].to_numpy().astype(np.int32),
        output_tokens=kept["output_tokens"].to_numpy().astype(np.int32),
        tenant=tenant,
        tenants=tenants,
    )
    told = {name for role, name in FACT_COLUMNS.items() if role in part.columns}
    named = {name: _named(kept[name]) for name in NAMED_FACTS if name in told}
    others = {name: kept[name] for name in told - named.keys()}
    tokens = kept["input_tokens"].to_numpy(), kept["output_tokens"].to_numpy()
    facts = fact_tally(tokens, named, others) if told else None
    tally = replace(tally_of(trace), sessions=rows, facts=facts)
    return tally, int(arrival_ns[0]), tick_of(arrival_ns) is not None


def _swept(part: Part, rows: "pl.DataFrame", frame: "pl.DataFrame", dropped: dict[str, int]) -> _Found | None:
    """The same, compiled; ``None`` when stamps lie years apart or lengths pass a million tokens."""
    from tokenfleet.workload import sweep

    arrival_ns = _known_or(rows["arrival_ns"])
    low, high = sweep.span(arrival_ns)
    if high - low > FAR_NS:
        return None
    low = min(low, high)
    first_minute = (low - part.origin_ns) // _MINUTE_NS
    tenant, names = _codes(part, frame, "tenant")
    status, words, kinds = _states(part, frame)
    columns = arrival_ns, _with_cached(rows, part.options), _known_or(rows["output_tokens"])
    longest = int(max(column.max(initial=0) for column in columns[1:]))
    start_ns = part.origin_ns + first_minute * _MINUTE_NS
    tables = _tables(rows.height, len(tenant), longest, high - start_ns, kinds)
    drop = part.admission.zero_output == "drop"
    kept, gaps = sweep.sweep(columns, status, tenant, start_ns, drop, tables)
    if kept < 0:
        return None
    counts = zip(sweep.REASONS, tables.reasons, strict=True)
    dropped.update((name, int(count)) for name, count in counts if count)
    if not kept:
        return None, None, False
    kept_ns = tables.kept_ns[:kept]
    clients = _clients(part, names, kept_ns, tables)
    by_row = not part.columns.keys().isdisjoint(_BY_ROW)
    places = sweep.kept_rows(columns, status, kinds, drop) if by_row else np.zeros(0, dtype=np.int64)
    facts = _facts(part, rows, frame, places, columns[1:])
    if "status" in part.columns:
        named = FactTally(request_count=kept, groups={}, parts={}, names={"status": _said(words, tables.said)})
        facts = named if facts is None else replace(facts, names={**facts.names, **named.names})
    squares = sweep.whole_squares(int(gaps.squares), float(gaps.about), kept - 1)
    if not gaps.in_order or squares is None:
        kept_ns.sort()
        squares = square_sum(np.diff(kept_ns))
    tally = replace(
        _tally(part, tables, kept_ns, int(first_minute)),
        gap_square_sum_ns2=squares,
        tenant_requests=_by_name(names, np.bincount(tables.kept_tenants[:kept], minlength=len(names))),
        clients=clients,
        sessions=_sessions(part, frame, places, columns),
        facts=facts,
    )
    return tally, int(kept_ns[0]), tick_of(kept_ns) is not None


def _tables(rows: int, tenants: int, longest: int, span_ns: int, states: npt.NDArray[np.uint8]) -> "Tables":
    """Room for what a sweep counts."""
    from tokenfleet.workload import sweep

    return sweep.Tables(
        bins=_bins(),
        bin_count=BINS,
        states=states,
        said=np.zeros(len(states), dtype=np.int64),
        kept_ns=np.empty(rows, dtype=np.int64),
        kept_cells=np.empty(rows, dtype=np.uint16),
        kept_tenants=np.empty(tenants, dtype=np.uint32),
        reasons=np.zeros(len(sweep.REASONS), dtype=np.int64),
        lengths=np.zeros((2, min(longest + 1, sweep.LONGEST_COUNTED)), dtype=np.int32),
        pairs=np.zeros(BINS * BINS, dtype=np.int32),
        minutes=np.zeros((3, span_ns // _MINUTE_NS + 1), dtype=np.int64),
    )


def _tally(part: Part, tables: "Tables", kept_ns: Longs, first_minute: int) -> Tally:
    used = np.flatnonzero(tables.minutes[0])
    requests, inputs, outputs = tables.minutes[:, used[0] : used[-1] + 1]
    return Tally(
        request_count=len(kept_ns),
        first_ns=int(kept_ns[0]) - part.origin_ns,
        last_ns=int(kept_ns[-1]) - part.origin_ns,
        gap_square_sum_ns2=None,
        input_counts=_counts(tables.lengths[0]),
        output_counts=_counts(tables.lengths[1]),
        pair_counts=tables.pairs.reshape(BINS, BINS).astype(np.int64),
        minute_requests=requests,
        minute_input_tokens=inputs,
        minute_output_tokens=outputs,
        first_minute=first_minute + int(used[0]),
    )


def _clients(part: Part, names: list[str], kept_ns: Longs, tables: "Tables") -> Clients | None:
    """How each tenant sends: in tables of their own, or step by step where they are many or their rows in disorder."""
    from tokenfleet.workload import sweep

    if not names:
        return {}
    tenant, cell = tables.kept_tenants[: len(kept_ns)], tables.kept_cells[: len(kept_ns)]
    if len(names) <= _MOST_TABLES:
        low, high = sweep.span(kept_ns)
        first_window = (low - part.origin_ns) // WINDOW_NS
        start_ns = part.origin_ns + first_window * WINDOW_NS
        filled = client_tables(len(names), (high - start_ns) // WINDOW_NS + 1)
        if sweep.by_tenant(kept_ns, tenant, cell, start_ns, filled):
            found = clients_of_tables(names, filled, first_window, part.origin_ns)
            if found is not None:
                return found
    order = np.argsort(kept_ns, kind="stable")
    return client_tallies(tenant[order].astype(np.int64), names, kept_ns[order] - part.origin_ns, cell[order])


def _sessions(
    part: Part, frame: "pl.DataFrame", kept: Longs, columns: tuple[Longs, Longs, Longs]
) -> SessionRows | None:
    """Requests of sessions among the rows kept; ``None`` when the file has no sessions."""
    import polars as pl

    if "session" not in part.columns:
        return None
    place, names = _codes(part, frame, "session")
    known = pl.Series(names or [""], dtype=pl.String)
    hashes = np.where((known == "").to_numpy(), -1, hashed_sessions(known))
    code = place[kept] if names else np.zeros(len(kept), dtype=np.uint32)
    arrival_ns, given, made = (column[kept] for column in columns)
    return session_rows(hashes[code], arrival_ns - part.origin_ns, given, made)


@cache
def _bins() -> npt.NDArray[np.uint8]:
    """Bin of each length that fits the tables."""
    from tokenfleet.workload.sweep import LONGEST_COUNTED

    return np.asarray(np.searchsorted(fixed_edges(), np.arange(LONGEST_COUNTED), side="right") - 1, dtype=np.uint8)


def _counts(dense: npt.NDArray[np.int32]) -> LengthCounts:
    values = np.flatnonzero(dense)
    return LengthCounts(values=values.astype(np.int64), counts=dense[values].astype(np.int64))


def _by_name(names: list[str], seen: Longs) -> dict[str, int]:
    """Counts of each name; empty when none has a name."""
    counts = {name: count for name, count in zip(names, seen.tolist(), strict=True) if count}
    return {} if set(counts) == {""} else counts


def _known_or(column: "pl.Series") -> Longs:
    """Values of a column, read-only whether or not they lie in one piece: each kind of array is compiled for anew."""
    from tokenfleet.workload.sweep import UNKNOWN

    values = column.fill_null(UNKNOWN).to_numpy()
    values.setflags(write=False)
    return values


def _with_cached(rows: "pl.DataFrame", options: ReadOptions) -> Longs:
    given = rows["input_tokens"]
    if options.cached == "outside" and "cached_tokens" in rows.columns:
        given = given + rows["cached_tokens"].fill_null(0)
    return _known_or(given)


def _states(
    part: Part, frame: "pl.DataFrame"
) -> tuple[npt.NDArray[np.uint32], list[str | None], npt.NDArray[np.uint8]]:
    """Place of each row's status, the words at those places, and what they mean for a row."""
    import polars as pl

    from tokenfleet.workload.sweep import FAILED, REJECTED

    place, names = _codes(part, frame, "status")
    words = as_status(pl.Series(names, dtype=pl.String)).to_list()
    kinds = [{"rejected": REJECTED, "error": FAILED}.get(word, 0) for word in words]
    return place, words, np.array(kinds, dtype=np.uint8)


def _said(words: list[str | None], counts: Longs) -> dict[str, int]:
    """Rows kept by status; those that say nothing are left out."""
    found: dict[str, int] = {}
    for word, count in zip(words, counts.tolist(), strict=True):
        if word is not None and count:
            found[word] = found.get(word, 0) + count
    return found


def _facts(
    part: Part, rows: "pl.DataFrame", frame: "pl.DataFrame", kept: Longs, tokens: tuple[Longs, Longs]
) -> FactTally | None:
    """What the kept rows say, their status aside; ``None`` when the file has no such columns."""
    named: dict[str, Named] = {}
    for role in NAMED_FACTS:
        if role in part.columns and role != "status":
            place, names = _codes(part, frame, role)
            named[role] = (place[kept], names) if names else (np.zeros(len(kept), dtype=np.uint32), [""])
    told = [name for role, name in FACT_COLUMNS.items() if role in part.columns and name in rows.columns]
    if not named and not told:
        return None
    columns = {name: rows[name] if len(kept) == rows.height else rows[name].gather(kept) for name in told}
    return fact_tally((tokens[0][kept], tokens[1][kept]), named, columns)


def _named(column: "pl.Series") -> Named:
    """Place of each row's name and the names, with one for unknown at the end."""
    place, names = indexed(column)
    known = np.full(len(column), -1, dtype=np.int32) if place is None else place
    return np.where(known < 0, len(names), known), (*names, "")


def _codes(part: Part, frame: "pl.DataFrame", role: str) -> tuple[npt.NDArray[np.uint32], list[str]]:
    """Place of each row's name and the names, '' for unknown; both empty when no row has one."""
    import polars as pl

    from tokenfleet.workload.sweep import numbered

    if role not in part.columns:
        return np.zeros(0, dtype=np.uint32), []
    column = frame[part.columns[role]]
    if column.null_count() == len(column):
        return np.zeros(0, dtype=np.uint32), []
    if not (column.dtype == pl.String or column.dtype.is_integer()):
        column = column.cast(pl.String, strict=False)
    # Names are few and rows are many: hashes tell which rows are alike, and one row of each is looked at.
    codes, first = numbered(column.hash().to_numpy())
    names = as_text(column.gather(first).cast(pl.String)).fill_null("").to_list()
    distinct = list(dict.fromkeys(names))
    if len(distinct) == len(names):
        return codes, names
    # Several spellings of one name are one.
    moved = {name: place for place, name in enumerate(distinct)}
    return np.array([moved[name] for name in names], dtype=np.uint32)[codes], distinct
