"""One part of a large table: looked into, and counted. A part needs nothing but its own description."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.trace import LengthCounts, Trace
from tokenfleet.workload.admit import FAR_NS, Admission, admit_rows, indexed
from tokenfleet.workload.client_tally import OCTAVES, WINDOW_NS, Clients, client_tallies, clients_of_tables
from tokenfleet.workload.fact_tally import FACT_ROLES, FactTally, fact_tally
from tokenfleet.workload.formats.frames import Loaded, chunks, load_rows, load_text
from tokenfleet.workload.formats.rows import Clock, Reading, ReadOptions
from tokenfleet.workload.formats.table import as_status, as_text, canonical
from tokenfleet.workload.joint import BINS, fixed_edges
from tokenfleet.workload.session_tally import SessionRows, hashed_sessions, session_rows
from tokenfleet.workload.tally import NS, Tally, add, tally_of
from tokenfleet.workload.ticks import tick_of

if TYPE_CHECKING:
    import polars as pl

    from tokenfleet.workload.sweep import Tables

Longs = npt.NDArray[np.int64]

_MINUTE_NS = 60 * NS
_NAMED = ("tenant", "status", "session")
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
    return load_text(data, part.kind, part.separator, wanted, where=part.path)


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
        detected=reading.detected,
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
    told = [role for role in FACT_ROLES if role in part.columns]
    facts = fact_tally(kept.select(*told, "input_tokens", "output_tokens")) if told else None
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
    given, made = _with_cached(rows, part.options), _known_or(rows["output_tokens"])
    first_window = (low - part.origin_ns) // WINDOW_NS
    starts = part.origin_ns + first_minute * _MINUTE_NS, part.origin_ns + first_window * WINDOW_NS
    longest = int(max(given.max(initial=0), made.max(initial=0)))
    spans = (high - starts[0], high - starts[1])
    named = len(names) > 0 or not part.columns.keys().isdisjoint(("session", *FACT_ROLES))
    status, words, kinds = _states(part, frame)
    tables = _tables((rows.height if named else 0, rows.height), len(names), longest, spans, kinds)
    drop = part.admission.zero_output == "drop"
    fits, in_order = sweep.sweep((arrival_ns, given, made), status, tenant, starts, drop, tables)
    if not fits:
        return None
    counts = zip(sweep.REASONS, tables.reasons, strict=False)
    dropped.update((name, int(count)) for name, count in counts if count)
    kept = int(tables.reasons[sweep.KEPT])
    if not kept:
        return None, None, False
    kept_ns, kept_rows = tables.kept_ns[:kept], tables.kept_rows[:kept]
    sessions = _sessions(part, frame, kept_rows, (kept_ns, given, made))
    clients: Clients | None = clients_of_tables(names, tables, first_window, part.origin_ns)
    if not in_order or len(names) > _MOST_TABLES:
        clients = _clients(names, tenant[kept_rows], kept_ns - part.origin_ns, given[kept_rows], made[kept_rows])
    if sweep.falls(kept_ns):
        kept_ns.sort()
    tally = _tally(part, tables, kept_ns, int(first_minute), names)
    facts = _facts(part, rows, kept_rows, given, _said(words, tables.said))
    tally = replace(tally, clients=clients, sessions=sessions, facts=facts)
    return tally, int(kept_ns[0]), tick_of(kept_ns) is not None


def _tables(
    rooms: tuple[int, int], names: int, longest: int, spans_ns: tuple[int, int], states: npt.NDArray[np.uint8]
) -> "Tables":
    """Room for what a sweep counts; none by tenant when there are none, or too many."""
    from tokenfleet.workload import sweep

    size = names if names <= _MOST_TABLES else 0
    return sweep.Tables(
        bins=_bins(),
        states=states,
        said=np.zeros(len(states), dtype=np.int64),
        kept_ns=np.empty(rooms[1], dtype=np.int64),
        kept_rows=np.empty(rooms[0], dtype=np.int32),
        reasons=np.zeros(sweep.KEPT + 1, dtype=np.int64),
        lengths=np.zeros((2, min(longest + 1, sweep.LONGEST_COUNTED)), dtype=np.int64),
        pairs=np.zeros((BINS, BINS), dtype=np.int64),
        minutes=np.zeros((3, spans_ns[0] // _MINUTE_NS + 1), dtype=np.int64),
        tenants=np.zeros(names, dtype=np.int64),
        stamps=np.full((size, 2), sweep.UNKNOWN, dtype=np.int64),
        squares=np.zeros((size, 3), dtype=np.int64),
        octaves=np.zeros((size, OCTAVES), dtype=np.int64),
        windows=np.zeros((size, spans_ns[1] // WINDOW_NS + 1), dtype=np.int64),
        cells=np.zeros((size, BINS * BINS), dtype=np.int32),
    )


def _tally(part: Part, tables: "Tables", kept_ns: Longs, first_minute: int, names: list[str]) -> Tally:
    used = np.flatnonzero(tables.minutes[0])
    requests, inputs, outputs = tables.minutes[:, used[0] : used[-1] + 1]
    return Tally(
        request_count=len(kept_ns),
        first_ns=int(kept_ns[0]) - part.origin_ns,
        last_ns=int(kept_ns[-1]) - part.origin_ns,
        gap_square_sum_ns2=_gap_squares(kept_ns),
        input_counts=_counts(tables.lengths[0]),
        output_counts=_counts(tables.lengths[1]),
        pair_counts=tables.pairs,
        minute_requests=requests,
        minute_input_tokens=inputs,
        minute_output_tokens=outputs,
        tenant_requests=_by_name(names, tables.tenants),
        first_minute=first_minute + int(used[0]),
    )


def _clients(
    names: list[str], code: npt.NDArray[np.uint32], arrival_ns: Longs, given: Longs, made: Longs
) -> Clients | None:
    """Tenants whose rows are not in order, or too many for tables."""
    order = np.argsort(arrival_ns, kind="stable")
    cell = (_bins()[given] * BINS + _bins()[made])[order]
    return client_tallies(code[order].astype(np.int64), names, arrival_ns[order], cell)


def _sessions(
    part: Part, frame: "pl.DataFrame", kept: npt.NDArray[np.int32], columns: tuple[Longs, Longs, Longs]
) -> SessionRows | None:
    """Requests of sessions among the rows kept; ``None`` when the file has no sessions."""
    import polars as pl

    if "session" not in part.columns:
        return None
    place, names = _codes(part, frame, "session")
    known = pl.Series(names or [""], dtype=pl.String)
    hashes = np.where((known == "").to_numpy(), -1, hashed_sessions(known))
    code = place[kept] if names else np.zeros(len(kept), dtype=np.uint32)
    kept_ns, given, made = columns
    return session_rows(hashes[code], kept_ns - part.origin_ns, given[kept], made[kept])


def _gap_squares(arrival_ns: Longs) -> int:
    from tokenfleet.workload.sweep import gap_squares

    top, middle, low = gap_squares(arrival_ns)
    return (top << 62) + (middle << 31) + low


@cache
def _bins() -> Longs:
    """Bin of each length that fits the tables."""
    from tokenfleet.workload.sweep import LONGEST_COUNTED

    return np.asarray(np.searchsorted(fixed_edges(), np.arange(LONGEST_COUNTED), side="right") - 1, dtype=np.int64)


def _counts(dense: Longs) -> LengthCounts:
    values = np.flatnonzero(dense)
    return LengthCounts(values=values.astype(np.int64), counts=dense[values])


def _by_name(names: list[str], seen: Longs) -> dict[str, int]:
    """Counts of each name; empty when none has a name."""
    counts = {name: count for name, count in zip(names, seen.tolist(), strict=True) if count}
    return {} if set(counts) == {""} else counts


def _known_or(column: "pl.Series") -> Longs:
    from tokenfleet.workload.sweep import UNKNOWN

    return column.fill_null(UNKNOWN).to_numpy()


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
    part: Part, rows: "pl.DataFrame", kept: npt.NDArray[np.int32], given: Longs, statuses: dict[str, int]
) -> FactTally | None:
    """What the kept rows say; status was looked at by name already, because rows are many and names are few."""
    told = [role for role in FACT_ROLES if role in part.columns and role != "status"]
    if not told and "status" not in part.columns:
        return None
    facts = FactTally(request_count=len(kept), groups={}, parts={}, names={})
    if told:
        facts = fact_tally(rows.select(*told, "output_tokens").with_columns(input_tokens=given)[kept])
    names = {"status": statuses} if "status" in part.columns else {}
    return replace(facts, names={**facts.names, **names})


def _codes(part: Part, frame: "pl.DataFrame", role: str) -> tuple[npt.NDArray[np.uint32], list[str]]:
    """Place of each row's name and the names, '' for unknown; both empty when no row has one."""
    import polars as pl

    if role not in part.columns:
        return np.zeros(0, dtype=np.uint32), []
    # Names of a part are kept apart from those of all others, so that they are forgotten with it.
    column = frame[part.columns[role]].cast(pl.String, strict=False).cast(pl.Categorical(pl.Categories.random()))
    known = column.unique().drop_nulls()
    if known.is_empty():
        return np.zeros(0, dtype=np.uint32), []
    places = known.to_physical().cast(pl.UInt32).to_numpy()
    cleaned = as_text(known.cast(pl.String)).fill_null("").to_list()
    names = [""] * (int(places.max()) + 2)
    for place, name in zip(places.tolist(), cleaned, strict=True):
        names[place] = name
    codes = column.to_physical().cast(pl.UInt32).fill_null(len(names) - 1).to_numpy()
    distinct = list(dict.fromkeys(names))
    if len(distinct) == len(names):
        return codes, names
    # Several spellings of one name are one.
    moved = {name: place for place, name in enumerate(distinct)}
    return np.array([moved[name] for name in names], dtype=np.uint32)[codes], distinct
