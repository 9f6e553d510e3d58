"""How single tenants send, counted so that parts add up exactly: load over time, gaps, joint lengths."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import ClientShape, Floats, LengthCounts
from tokenfleet.workload.arrivals import gamma_gaps, weibull_gaps, weibull_shape
from tokenfleet.workload.joint import BINS, add_values
from tokenfleet.workload.streams import stream

if TYPE_CHECKING:
    from tokenfleet.workload.sweep import Clients as Tables

Longs = npt.NDArray[np.int64]

WINDOW_S = 600.0
WINDOW_NS = 600 * 10**9
MOST_CLIENTS = 4096
"""With more names than this tenants are users, and are described together."""
_MOST_SHAPES = 50
_FEWEST_REQUESTS = 100
OCTAVES = 63
_SAMPLE = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTally:
    """Counts over the requests of one tenant."""

    request_count: int
    first_ns: int
    last_ns: int
    gap_square_sum_ns2: int | None
    """``None`` once parts that overlap in time were added."""
    gap_octaves: Longs
    """Gaps by the whole part of their binary logarithm in nanoseconds."""
    windows: LengthCounts
    """Requests by stretch of ten minutes."""
    cells: LengthCounts
    """Requests by cell of the joint length table."""


Clients = Mapping[str, ClientTally]


def client_tallies(
    code: Longs, names: Sequence[str], arrival_ns: Longs, cell: npt.NDArray[np.integer[Any]]
) -> Clients | None:
    """Count every tenant; ``None`` when there are too many of them.

    Args:
        code: Place of the tenant of each request.
        names: Tenants; ``""`` is nobody.
        arrival_ns: Sorted.
        cell: Cell of the joint length table of each request.
    """
    if len(names) > MOST_CLIENTS:
        return None
    client = code.astype(np.uint16)
    order = np.argsort(client, kind="stable")
    edges = np.searchsorted(client[order], np.arange(len(names) + 1))
    found = {}
    for place, name in enumerate(names):
        rows = order[edges[place] : edges[place + 1]]
        if len(rows) and name:
            found[name] = _tally_of(arrival_ns[rows], cell[rows])
    return found


def _tally_of(arrival_ns: Longs, cell: npt.NDArray[np.integer[Any]]) -> ClientTally:
    gaps = np.diff(arrival_ns)
    return ClientTally(
        request_count=len(arrival_ns),
        first_ns=int(arrival_ns[0]),
        last_ns=int(arrival_ns[-1]),
        gap_square_sum_ns2=square_sum(gaps),
        gap_octaves=np.bincount(_octave(gaps), minlength=OCTAVES),
        windows=_counted(arrival_ns // WINDOW_NS),
        cells=_counted(cell),
    )


def client_tables(tenants: int, windows: int) -> "Tables":
    """Room for what a compiled sweep counts by tenant."""
    from tokenfleet.workload import sweep

    return sweep.Clients(
        requests=np.zeros(tenants, dtype=np.int64),
        stamps=np.full((tenants, 2), sweep.UNKNOWN, dtype=np.int64),
        squares=np.zeros(tenants, dtype=np.uint64),
        about=np.zeros(tenants, dtype=np.float64),
        octaves=np.zeros((tenants, OCTAVES), dtype=np.int32),
        windows=np.zeros((tenants, windows), dtype=np.int64),
        cells=np.zeros((tenants, BINS * BINS), dtype=np.int32),
    )


def clients_of_tables(names: Sequence[str], tables: "Tables", first_window: int, zero_ns: int) -> Clients | None:
    """Tenants as a compiled sweep counted them; ``None`` where their gaps cannot be added up exactly.

    Args:
        names: Tenants; ``""`` is nobody.
        tables: What the sweep filled.
        first_window: Number of the first window.
        zero_ns: Stamp of second 0.
    """
    from tokenfleet.workload.sweep import whole_squares

    found = {}
    for place, name in enumerate(names):
        count = int(tables.requests[place])
        if not count or not name:
            continue
        squares = whole_squares(int(tables.squares[place]), float(tables.about[place]), count - 1)
        if squares is None:
            return None
        found[name] = ClientTally(
            request_count=count,
            first_ns=int(tables.stamps[place, 0]) - zero_ns,
            last_ns=int(tables.stamps[place, 1]) - zero_ns,
            gap_square_sum_ns2=squares,
            gap_octaves=tables.octaves[place].astype(np.int64),
            windows=_of_dense(tables.windows[place], first_window),
            cells=_of_dense(tables.cells[place], 0),
        )
    return found


def _of_dense(counts: npt.NDArray[np.integer[Any]], first: int) -> LengthCounts:
    used = np.flatnonzero(counts)
    return LengthCounts(values=used + first, counts=counts[used].astype(np.int64))


def square_sum(gaps: Longs) -> int:
    """Sum of squares without overflow, by limbs of 15 bits: each partial sum fits 63 bits up to 2**33 gaps."""
    top, middle, low = gaps >> 30, (gaps >> 15) & 0x7FFF, gaps & 0x7FFF
    total = int(np.dot(top, top)) << 60
    total += (int(np.dot(top, middle)) << 46) + (int(np.dot(top, low)) << 31)
    total += (int(np.dot(middle, middle)) << 30) + (int(np.dot(middle, low)) << 16)
    return total + int(np.dot(low, low))


def _octave(gaps: Longs) -> Longs:
    return np.asarray(np.frexp(np.maximum(gaps, 1).astype(np.float64))[1] - 1, dtype=np.int64)


def _counted(values: npt.NDArray[np.integer[Any]]) -> LengthCounts:
    found, counts = np.unique(values, return_counts=True)
    return LengthCounts(values=found.astype(np.int64), counts=counts.astype(np.int64))


def add_clients(left: Clients | None, right: Clients | None) -> Clients | None:
    """Counts of both parts together."""
    if left is None or right is None:
        return None
    found = dict(left)
    for name, tally in right.items():
        found[name] = _add(found[name], tally) if name in found else tally
    return found if len(found) <= MOST_CLIENTS else None


def _add(left: ClientTally, right: ClientTally) -> ClientTally:
    early, late = (left, right) if left.first_ns <= right.first_ns else (right, left)
    squares: int | None = None
    if early.gap_square_sum_ns2 is not None and late.gap_square_sum_ns2 is not None and early.last_ns <= late.first_ns:
        squares = early.gap_square_sum_ns2 + late.gap_square_sum_ns2 + (late.first_ns - early.last_ns) ** 2
    octaves = left.gap_octaves + right.gap_octaves
    if squares is not None:
        octaves[_octave(np.array([late.first_ns - early.last_ns]))] += 1
    return ClientTally(
        request_count=left.request_count + right.request_count,
        first_ns=early.first_ns,
        last_ns=max(left.last_ns, right.last_ns),
        gap_square_sum_ns2=squares,
        gap_octaves=octaves,
        windows=add_values(left.windows, right.windows),
        cells=add_values(left.cells, right.cells),
    )


def client_shapes(clients: Clients | None) -> tuple[ClientShape, ...]:
    """The largest tenants; none when there is only one, or when there are too many to tell them apart."""
    if clients is None or len(clients) < 2:
        return ()
    largest = sorted(clients.items(), key=lambda entry: (-entry[1].request_count, entry[0]))[:_MOST_SHAPES]
    return tuple(_shape(name, tally) for name, tally in largest if tally.request_count >= _FEWEST_REQUESTS)


def _shape(name: str, tally: ClientTally) -> ClientShape:
    cv = gap_variation(tally.request_count, tally.last_ns - tally.first_ns, tally.gap_square_sum_ns2)
    return ClientShape(
        name=name,
        request_count=tally.request_count,
        gap_cv=cv,
        weibull=_like_weibull(tally, cv),
        window_requests=dense(tally.windows),
        cells=tally.cells,
    )


def gap_variation(count: int, span_ns: int, square_sum_ns2: int | None) -> float:
    """Standard deviation over mean of the gaps of ``count`` arrivals; NaN when unknown."""
    gaps = count - 1
    if gaps < 2 or span_ns == 0 or square_sum_ns2 is None:
        return float("nan")
    # Whole numbers up to the last division: the variance of nearly equal gaps must not drown in rounding.
    spread = square_sum_ns2 * gaps - span_ns * span_ns
    return float(np.sqrt(max(spread, 0) / (span_ns * span_ns)))


def dense(counts: LengthCounts) -> Longs:
    """Counts by value from 0 on."""
    out = np.zeros(int(counts.values.max(initial=-1)) + 1, dtype=np.int64)
    out[counts.values] = counts.counts
    return out


def _like_weibull(tally: ClientTally, cv: float) -> bool:
    """Whether the share of short gaps is nearer to that of a Weibull than of a gamma process of the same variation."""
    if math.isnan(cv) or cv <= 1:
        return False
    mean_ns = (tally.last_ns - tally.first_ns) / (tally.request_count - 1)
    edge = max(int(math.log2(mean_ns)) - 3, 1)
    seen = float(tally.gap_octaves[:edge].sum() / tally.gap_octaves.sum())
    below = 2.0**edge / mean_ns
    shares = [
        _share_below(gaps, below)
        for gaps in (
            gamma_gaps(stream(0, "gamma"), _SAMPLE, cv),
            weibull_gaps(stream(0, "weibull"), _SAMPLE, weibull_shape(cv)),
        )
    ]
    return abs(shares[1] - seen) < abs(shares[0] - seen)


def _share_below(gaps: Floats, edge: float) -> float:
    return float(np.mean(gaps < edge))
