"""Requests of sessions, kept so that parts add up exactly and memory stays bounded.

A session may run through any number of parts, so its requests are kept whole until all parts are there. Where they are
too many, sessions are left out by a hash of their name: the same ones in every part, in whatever order parts are added.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import LengthCounts
from tokenfleet.workload.joint import add_values, bins_of, count_values

if TYPE_CHECKING:
    import polars as pl

Longs = npt.NDArray[np.int64]

MOST_ROWS = 4_000_000
"""Requests kept, at 32 bytes each: 128 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRows:
    """Requests of one in ``2 ** level`` sessions; of all at level 0."""

    level: int
    session: Longs
    """Hash of the name, not negative."""
    arrival_ns: Longs
    input_tokens: Longs
    output_tokens: Longs
    request_count: int
    """Requests in sessions, those left out included."""
    alone_input_bins: LengthCounts
    """Requests outside sessions by input bin."""


def hashed_sessions(names: "pl.Series") -> Longs:
    """A hash of each name that is the same wherever the name stands."""
    return np.asarray(names.hash(seed=0).to_numpy() >> np.uint64(1), dtype=np.int64)


def session_rows(
    session: Longs, arrival_ns: Longs, input_tokens: Longs, output_tokens: Longs, *, most_rows: int = MOST_ROWS
) -> SessionRows:
    """Requests of one part.

    Args:
        session: Hash of the session, -1 for none.
        arrival_ns: On the clock of the whole trace.
        input_tokens: Per request.
        output_tokens: Per request.
        most_rows: How many are kept.
    """
    inside = session >= 0
    rows = SessionRows(
        level=0,
        session=session[inside],
        arrival_ns=arrival_ns[inside],
        input_tokens=input_tokens[inside],
        output_tokens=output_tokens[inside],
        request_count=int(inside.sum()),
        alone_input_bins=count_values(bins_of(input_tokens[~inside])),
    )
    return _thinned(rows, 0, most_rows)


def add_sessions(
    left: SessionRows | None, right: SessionRows | None, *, most_rows: int = MOST_ROWS
) -> SessionRows | None:
    """Requests of both parts; ``None`` where neither knows sessions."""
    if left is None or right is None:
        return left or right
    level = max(left.level, right.level)
    one, two = (_thinned(rows, level, most_rows) for rows in (left, right))
    joined = SessionRows(
        level=level,
        session=np.concatenate((one.session, two.session)),
        arrival_ns=np.concatenate((one.arrival_ns, two.arrival_ns)),
        input_tokens=np.concatenate((one.input_tokens, two.input_tokens)),
        output_tokens=np.concatenate((one.output_tokens, two.output_tokens)),
        request_count=left.request_count + right.request_count,
        alone_input_bins=add_values(left.alone_input_bins, right.alone_input_bins),
    )
    return _thinned(joined, level, most_rows)


def _thinned(rows: SessionRows, level: int, most_rows: int) -> SessionRows:
    """At least at ``level``, and as far up from there as it takes to keep no more than ``most_rows``."""
    kept = np.flatnonzero(rows.session & ((1 << level) - 1) == 0)
    while len(kept) > most_rows:
        level += 1
        kept = kept[rows.session[kept] & ((1 << level) - 1) == 0]
    if level == rows.level:
        return rows
    return SessionRows(
        level=level,
        session=rows.session[kept],
        arrival_ns=rows.arrival_ns[kept],
        input_tokens=rows.input_tokens[kept],
        output_tokens=rows.output_tokens[kept],
        request_count=rows.request_count,
        alone_input_bins=rows.alone_input_bins,
    )
