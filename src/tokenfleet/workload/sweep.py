"""Counting the rows of a part in one go, compiled: reasons to leave rows out, lengths, pairs, minutes, tenants, gaps.

Every compiled function stands in this file, and the folder of their machine code carries a digest of it and of the
versions that compile it: an edit starts a new folder, so that yesterday's code never answers.
"""

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

Function = TypeVar("Function", bound=Callable[..., object])
Longs = npt.NDArray[np.int64]

UNKNOWN = -(2**62)
"""Stands for null in columns of counts and stamps: below every count and every time."""
LONGEST_COUNTED = 1 << 20
"""Lengths from here on do not fit the table of :func:`sweep`; a part that has them is counted the slow way."""

OK, REJECTED, FAILED = 0, 1, 2
"""What a status means for a row; what is unknown counts as fine."""
REASONS = (
    "time unknown",
    "rejected, unmet demand",
    "failed",
    "input tokens unknown",
    "input tokens below 1",
    "output tokens unknown",
    "output tokens below 0",
    "output tokens 0: failed or cut",
)
"""Why a row is left out, in the order in which they are asked: the first that holds counts."""
_SILENT, KEPT = len(REASONS) - 1, len(REASONS)

_MINUTE_NS = 60_000_000_000
_WINDOW_NS = 600_000_000_000
_LIMB_BITS = 31
_LIMB_MASK = (1 << _LIMB_BITS) - 1


def source_digest(source: bytes) -> str:
    """Digest of the compiled source and of what compiles it: 16 hexadecimal digits."""
    versions = f"{sys.version} {numba.__version__} {np.__version__}".encode()
    return hashlib.sha256(versions + b"\0" + source).hexdigest()[:16]


def cache_directory() -> Path:
    """Folder of the machine code: ``NUMBA_CACHE_DIR`` wins, then ``XDG_CACHE_HOME``, then ``~/.cache``.

    Where that cannot be written, a temporary folder serves this process: compiling takes seconds.
    """
    told = os.environ.get("NUMBA_CACHE_DIR")
    base = Path(told) if told else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenfleet"
    folder = base / f"intake-{source_digest(Path(__file__).read_bytes())}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        return Path(tempfile.mkdtemp(prefix="tokenfleet-intake-"))
    return folder


def _compiled(function: Function) -> Function:
    """Compile on first call, keep the machine code on disk, and let other threads run meanwhile."""
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(cache_directory())
    try:
        return cast("Function", numba.njit(function, cache=True, nogil=True))
    finally:
        config.CACHE_DIR = before


@numba.njit(nogil=True)
def _reason(arrival: int, status: int, given: int, made: int, drop_zero: bool) -> int:
    """Place of the first of :data:`REASONS` that holds for a row, :data:`KEPT` when none does."""
    if arrival == UNKNOWN:
        return 0
    if status == REJECTED:
        return 1
    if status == FAILED and made <= 0:
        return 2
    if given < 1:
        return 3 if given == UNKNOWN else 4
    if made < 0:
        return 5 if made == UNKNOWN else 6
    return _SILENT if made == 0 and drop_zero else KEPT


@_compiled
def span(arrival_ns: Longs) -> tuple[int, int]:
    """Earliest and latest known stamp; the first above the second when none is known."""
    low, high = 2**62, UNKNOWN
    for stamp in arrival_ns:
        if stamp != UNKNOWN:
            low, high = min(low, stamp), max(high, stamp)
    return low, high


class Tables(NamedTuple):
    """What :func:`sweep` fills; counts come in as zeros. Tables by tenant are empty where none are wanted."""

    bins: Longs
    """Bin of each length below :data:`LONGEST_COUNTED`; is read."""
    states: npt.NDArray[np.uint8]
    """What each status means, :data:`OK`, :data:`REJECTED` or :data:`FAILED`; is read."""
    said: Longs
    """Rows kept by status."""
    kept_ns: Longs
    """Stamp of every row kept, in order of the file."""
    kept_rows: npt.NDArray[np.int32]
    """Place of every row kept; may be empty."""
    reasons: Longs
    """Rows by reason, and those kept at the end."""
    lengths: Longs
    """Rows by input tokens and by output tokens."""
    pairs: Longs
    """Rows by bin of input and bin of output."""
    minutes: Longs
    """Requests, input tokens and output tokens of each minute."""
    tenants: Longs
    """Rows kept by tenant."""
    stamps: Longs
    """First and last stamp of each tenant; :data:`UNKNOWN` comes in."""
    squares: Longs
    """Sum of each tenant's squared gaps in three limbs, see :func:`gap_squares`."""
    octaves: Longs
    """Each tenant's gaps by the whole part of their binary logarithm."""
    windows: Longs
    """Each tenant's requests by ten minutes."""
    cells: npt.NDArray[np.int32]
    """Each tenant's requests by cell of ``pairs``."""


@numba.njit(nogil=True)
def _client(tables: Tables, name: int, stamp: int, window: int, cell: int) -> bool:
    """Count a row of a tenant; whether it came no earlier than the one before."""
    before = tables.stamps[name, 1]
    if before != UNKNOWN:
        gap = stamp - before
        if gap < 0:
            return False
        high, rest = gap >> _LIMB_BITS, gap & _LIMB_MASK
        low = tables.squares[name, 2] + rest * rest
        middle = tables.squares[name, 1] + 2 * high * rest + (low >> _LIMB_BITS)
        tables.squares[name, 2] = low & _LIMB_MASK
        tables.squares[name, 0] += high * high + (middle >> _LIMB_BITS)
        tables.squares[name, 1] = middle & _LIMB_MASK
        # The exponent in the bits of a float is the whole part of the logarithm, and sooner found than by frexp.
        tables.octaves[name, (np.float64(max(gap, 1)).view(np.int64) >> 52) - 1023] += 1
    else:
        tables.stamps[name, 0] = stamp
    tables.stamps[name, 1] = stamp
    tables.windows[name, window] += 1
    tables.cells[name, cell] += 1
    return True


@_compiled
def sweep(
    columns: tuple[Longs, Longs, Longs],
    status: npt.NDArray[np.uint32],
    tenant: npt.NDArray[np.uint32],
    starts_ns: tuple[int, int],
    drop_zero: bool,
    tables: Tables,
) -> tuple[bool, bool]:
    """Count every row once.

    Args:
        columns: Stamps in nanoseconds, input tokens, output tokens; :data:`UNKNOWN` where null.
        status: Place in ``tables.states`` per row, or empty.
        tenant: Place of the tenant per row, or empty.
        starts_ns: Stamps of the start of the first minute and of the first ten minutes in ``tables``.
        drop_zero: Whether rows of 0 output tokens are left out.
        tables: Filled.

    Returns:
        Whether every length fitted its table, and whether the rows of every tenant were in order; when not, the first
        time all tables mean nothing, the second time those by tenant from ``stamps`` on.
    """
    arrival, given, made = columns
    count, in_order = 0, True
    begin, minute, window, window_ns = 0, -1, 0, starts_ns[1]
    for row in range(len(arrival)):
        state = tables.states[status[row]] if len(status) else OK
        reason = _reason(arrival[row], state, given[row], made[row], drop_zero)
        into, out = given[row], made[row]
        # Lengths that no request has are a reason of their own, before that of no output.
        if reason >= _SILENT and (into >= LONGEST_COUNTED or out >= LONGEST_COUNTED):
            return False, False
        tables.reasons[reason] += 1
        if reason != KEPT:
            continue
        # Most rows fall into the minute of the row before: dividing takes longer than looking.
        if minute < 0 or not 0 <= arrival[row] - begin < _MINUTE_NS:
            minute = (arrival[row] - starts_ns[0]) // _MINUTE_NS
            begin = starts_ns[0] + minute * _MINUTE_NS
        tables.kept_ns[count] = arrival[row]
        if len(tables.kept_rows):
            tables.kept_rows[count] = row
        count += 1
        tables.lengths[0, into] += 1
        tables.lengths[1, out] += 1
        tables.pairs[tables.bins[into], tables.bins[out]] += 1
        tables.minutes[0, minute] += 1
        tables.minutes[1, minute] += into
        tables.minutes[2, minute] += out
        if len(status):
            tables.said[status[row]] += 1
        if len(tenant):
            tables.tenants[tenant[row]] += 1
        if in_order and len(tables.stamps):
            cell = tables.bins[into] * len(tables.pairs) + tables.bins[out]
            if not window_ns <= arrival[row] < window_ns + _WINDOW_NS:
                window = (arrival[row] - starts_ns[1]) // _WINDOW_NS
                window_ns = starts_ns[1] + window * _WINDOW_NS
            in_order = _client(tables, tenant[row], arrival[row], window, cell)
    return True, in_order


@_compiled
def falls(arrival_ns: Longs) -> bool:
    """Whether a stamp lies before the one in front of it."""
    for place in range(1, len(arrival_ns)):  # noqa: SIM110 - compiled code knows loops, not generators
        if arrival_ns[place] < arrival_ns[place - 1]:
            return True
    return False


@_compiled
def gap_squares(arrival_ns: Longs) -> tuple[int, int, int]:
    """Sum of the squared gaps between sorted stamps, in three limbs: ``a * 2**62 + b * 2**31 + c``.

    Each gap is cut into a high part and a low one of 31 bits, and what a limb cannot hold is carried over row by row:
    right up to 2**55 ns from the first stamp to the last, which is more than a year.
    """
    top, middle, low = 0, 0, 0
    for place in range(1, len(arrival_ns)):
        gap = arrival_ns[place] - arrival_ns[place - 1]
        high, rest = gap >> _LIMB_BITS, gap & _LIMB_MASK
        low += rest * rest
        middle += 2 * high * rest + (low >> _LIMB_BITS)
        low &= _LIMB_MASK
        top += high * high + (middle >> _LIMB_BITS)
        middle &= _LIMB_MASK
    return top, middle, low
