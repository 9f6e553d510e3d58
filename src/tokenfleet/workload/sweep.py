"""Counting the rows of a part in one go, compiled: reasons to leave rows out, lengths, pairs, minutes, tenants, gaps.

Names are numbered and stamps that are all written alike are read here too. Every compiled function stands in this file,
and the folder of their machine code carries a digest of it and of the versions that compile it: an edit starts a new
folder, so that yesterday's code never answers.
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
Counts = npt.NDArray[np.int32]

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
_SILENT, KEPT, _TOO_LONG = len(REASONS) - 1, len(REASONS), -1

_MINUTE_NS = 60_000_000_000
_WINDOW_NS = 600_000_000_000
_FEWEST_VALUES = 512
_LAST_YEAR = 2254


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
    """Place of the first of :data:`REASONS` that holds for a row, :data:`KEPT` when none does.

    :data:`_TOO_LONG` comes before that of no output: lengths that no request has are a reason of their own.
    """
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
    if given >= LONGEST_COUNTED or made >= LONGEST_COUNTED:
        return _TOO_LONG
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
    """What :func:`sweep` fills; counts come in as zeros."""

    bins: npt.NDArray[np.uint8]
    """Bin of each length below :data:`LONGEST_COUNTED`; is read."""
    bin_count: int
    states: npt.NDArray[np.uint8]
    """What each status means, :data:`OK`, :data:`REJECTED` or :data:`FAILED`; is read."""
    said: Longs
    """Rows kept by status."""
    kept_ns: Longs
    """Stamp of every row kept, in order of the file."""
    kept_cells: npt.NDArray[np.uint16]
    """Cell of ``pairs`` of every row kept."""
    kept_tenants: npt.NDArray[np.uint32]
    """Tenant of every row kept; may be empty."""
    reasons: Longs
    """Rows by reason; those kept are not counted."""
    lengths: Counts
    """Rows by input tokens and by output tokens."""
    pairs: Counts
    """Rows by cell, row by row: bin of input, bin of output."""
    minutes: Longs
    """Requests, input tokens and output tokens of each minute."""


class Clients(NamedTuple):
    """What :func:`by_tenant` fills, a row per tenant; counts come in as zeros."""

    requests: Longs
    stamps: Longs
    """First and last stamp; :data:`UNKNOWN` comes in."""
    squares: npt.NDArray[np.uint64]
    """Sum of squared gaps modulo ``2 ** 64``, see :func:`whole_squares`."""
    about: npt.NDArray[np.float64]
    """The same sum as a float."""
    octaves: Counts
    """Gaps by the whole part of their binary logarithm."""
    windows: Longs
    """Requests by ten minutes."""
    cells: Counts
    """Requests by cell."""


class Gaps(NamedTuple):
    """What the gaps between the rows kept add up to, in order of the file."""

    in_order: bool
    """Whether no stamp lies before the one in front of it; if not, the sums mean nothing."""
    squares: np.uint64
    """Sum of the squares modulo ``2 ** 64``."""
    about: float
    """The same sum as a float."""


def whole_squares(squares: int, about: float, count: int) -> int | None:
    """Sum of squared gaps, exactly, from its last 64 bits and from what floats add up to.

    The float is off by less than ``(count + 2) / 2**53`` of the sum. While that is less than half of ``2**64``, only
    one whole number lies near it and has these last bits.

    Args:
        squares: The sum modulo ``2**64``.
        about: The sum in floats.
        count: How many gaps.

    Returns:
        ``None`` where the float is too far off to tell: gaps of years.
    """
    if about * (count + 2) >= 2.0**115:
        return None
    return squares + (((int(about) - squares + 2**63) >> 64) << 64)


@_compiled
def kept_rows(
    columns: tuple[Longs, Longs, Longs], status: npt.NDArray[np.uint32], states: npt.NDArray[np.uint8], drop_zero: bool
) -> Longs:
    """Place of every row that :func:`sweep` keeps."""
    arrival, given, made = columns
    found, count = np.empty(len(arrival), dtype=np.int64), 0
    for row in range(len(arrival)):
        state = states[status[row]] if len(status) else OK
        if _reason(arrival[row], state, given[row], made[row], drop_zero) == KEPT:
            found[count] = row
            count += 1
    return found[:count]


@_compiled
def number_rows(
    hashes: npt.NDArray[np.uint64], number: npt.NDArray[np.uint32], first: Longs, slots: npt.NDArray[np.uint64]
) -> int:
    """Number different values in the order in which they come.

    Args:
        hashes: The values.
        number: Gets the number of each row's value.
        first: Gets the first row of each value; zeros come in.
        slots: Four times as many zeros, a power of two: two slots of two words for each value.

    Returns:
        How many values there are, -1 when ``first`` has no room for them.
    """
    count, mask = 0, np.uint64(len(slots) // 2 - 1)
    for row in range(len(hashes)):
        value = hashes[row]
        slot = value & mask
        # Two words per slot: the value, and its number from 1 on.
        while slots[2 * slot + 1] and slots[2 * slot] != value:
            slot = (slot + np.uint64(1)) & mask
        if not slots[2 * slot + 1]:
            if 4 * count == len(slots):
                return -1
            first[count] = row
            count += 1
            slots[2 * slot], slots[2 * slot + 1] = value, count
        number[row] = slots[2 * slot + 1] - np.uint64(1)
    return count


def numbered(hashes: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint32], Longs]:
    """Number different values in the order in which they come.

    Returns:
        The number of each row's value, and the first row of each value.
    """
    number, room = np.empty(len(hashes), dtype=np.uint32), _FEWEST_VALUES
    while True:
        first = np.zeros(room, dtype=np.int64)
        count = number_rows(hashes, number, first, np.zeros(4 * room, dtype=np.uint64))
        if count >= 0:
            return number, first[:count]
        room *= 16


@_compiled
def sweep(
    columns: tuple[Longs, Longs, Longs],
    status: npt.NDArray[np.uint32],
    tenant: npt.NDArray[np.uint32],
    start_ns: int,
    drop_zero: bool,
    tables: Tables,
) -> tuple[int, Gaps]:
    """Count every row once.

    Args:
        columns: Stamps in nanoseconds, input tokens, output tokens; :data:`UNKNOWN` where null.
        status: Place in ``tables.states`` per row, or empty.
        tenant: Place of the tenant per row, or empty.
        start_ns: Stamp of the start of the first minute in ``tables``.
        drop_zero: Whether rows of 0 output tokens are left out.
        tables: Filled.

    Returns:
        How many rows are kept, -1 where a length does not fit its table: then nothing else means anything. The gaps.
    """
    arrival, given, made = columns
    # Named once: looking a table up in the loop counts its references anew for each row.
    bins, bin_count, states, said, kept_ns, kept_cells, kept_tenants, reasons, lengths, pairs, minutes = tables
    count, minute, minute_ns, last_ns = 0, 0, UNKNOWN, UNKNOWN
    rises, squares, about = True, np.uint64(0), 0.0
    for row in range(len(arrival)):
        stamp, into, out = arrival[row], given[row], made[row]
        state = states[status[row]] if len(status) else OK
        if state != OK or stamp == UNKNOWN or not 1 <= into < LONGEST_COUNTED or not 1 <= out < LONGEST_COUNTED:
            reason = _reason(stamp, state, into, out, drop_zero)
            if reason == _TOO_LONG:
                return -1, Gaps(False, np.uint64(0), 0.0)
            if reason != KEPT:
                reasons[reason] += 1
                continue
        # Most rows fall into the minute of the row before: dividing takes longer than looking.
        if not 0 <= stamp - minute_ns < _MINUTE_NS:
            minute = (stamp - start_ns) // _MINUTE_NS
            minute_ns = start_ns + minute * _MINUTE_NS
        gap = stamp - last_ns if count else 0
        rises, last_ns = rises and gap >= 0, stamp
        squares += np.uint64(gap) * np.uint64(gap)
        about += np.float64(gap) * np.float64(gap)
        # Numbers without a sign: a negative place would count from the end, and asking for that takes time.
        given_tokens, made_tokens = np.uint64(into), np.uint64(out)
        cell = bins[given_tokens] * bin_count + bins[made_tokens]
        lengths[0, given_tokens] += 1
        lengths[1, made_tokens] += 1
        pairs[cell] += 1
        minutes[0, minute] += 1
        minutes[1, minute] += into
        minutes[2, minute] += out
        kept_ns[count], kept_cells[count] = stamp, cell
        if len(status):
            said[status[row]] += 1
        if len(kept_tenants):
            kept_tenants[count] = tenant[row]
        count += 1
    return count, Gaps(rises, squares, about)


@_compiled
def by_tenant(
    kept_ns: Longs, tenant: npt.NDArray[np.uint32], cell: npt.NDArray[np.uint16], start_ns: int, tables: Clients
) -> bool:
    """Count the rows kept by tenant.

    Args:
        kept_ns: Stamp per row.
        tenant: Place of the tenant per row.
        cell: Cell of the lengths per row.
        start_ns: Stamp of the start of the first ten minutes in ``tables``.
        tables: Filled.

    Returns:
        Whether the rows of every tenant were in order; when not, the tables mean nothing.
    """
    requests, stamps, squares, about, octaves, windows, cells = tables
    counted = np.zeros(len(requests), dtype=np.int64)
    window, window_ns = 0, start_ns
    for row in range(len(kept_ns)):
        stamp, name = kept_ns[row], tenant[row]
        if not 0 <= stamp - window_ns < _WINDOW_NS:
            for each in range(len(counted)):
                windows[each, window] += requests[each] - counted[each]
                counted[each] = requests[each]
            window = (stamp - start_ns) // _WINDOW_NS
            window_ns = start_ns + window * _WINDOW_NS
        before = stamps[name, 1]
        if before == UNKNOWN:
            stamps[name, 0] = stamp
        else:
            gap = stamp - before
            if gap < 0:
                return False
            squares[name] += np.uint64(gap) * np.uint64(gap)
            about[name] += np.float64(gap) * np.float64(gap)
            # The exponent in the bits of a float is the whole part of the logarithm, and sooner found than by frexp.
            octave = (np.float64(max(gap, 1)).view(np.int64) >> 52) - 1023
            octaves[name, np.uint64(octave)] += 1
        stamps[name, 1] = stamp
        requests[name] += 1
        cells[name, cell[row]] += 1
    for each in range(len(counted)):
        windows[each, window] += requests[each] - counted[each]
    return True


@numba.njit(nogil=True)
def _number(text: npt.NDArray[np.uint8], begin: int, end: int) -> int:
    """The whole number that digits write; far below 0 where one of them is none."""
    value = 0
    for place in range(begin, end):
        digit = int(text[place]) - 48
        value = value * 10 + digit if 0 <= digit <= 9 else -1_000_000_000
    return value


@numba.njit(nogil=True)
def _day(year: int, month: int, day: int) -> int:
    """Days from 1970 to a date of the Gregorian calendar, -1 where nanoseconds have no such date."""
    lengths = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if (
        not 1970 <= year <= _LAST_YEAR
        or not 1 <= month <= 12
        or not 1 <= day <= lengths[month - 1] + (leap and month == 2)
    ):
        return -1
    before = year - 1
    days = before * 365 + before // 4 - before // 100 + before // 400 - 719_162 + day - 1
    for each in range(month - 1):
        days += lengths[each]
    return days + (leap and month > 2)


@_compiled
def stamps_alike(text: npt.NDArray[np.uint8], digits: int, ns: Longs) -> bool:
    """Read stamps like ``2026-03-29T00:58:15.938Z`` that differ in nothing but their digits.

    Args:
        text: A row of bytes per stamp; the first row is such a stamp.
        digits: Digits of a second's fraction.
        ns: Gets the nanoseconds since 1970 on the clock that the stamps show.

    Returns:
        Whether all rows could be read; if not, ``ns`` means nothing.
    """
    rows, width = text.shape
    scale, end, day, day_ns = 10 ** (9 - digits), 20 + digits, 0, 0
    marks = np.array([place for place in range(width) if place in (4, 7, 10, 13, 16, 19) or place >= end])
    for row in range(rows):
        stamp = text[row]
        for place in marks:
            if stamp[place] != text[0, place]:
                return False
        date = _number(stamp, 0, 4) * 10_000 + _number(stamp, 5, 7) * 100 + _number(stamp, 8, 10)
        if date != day:
            found = _day(date // 10_000, date // 100 % 100, date % 100)
            if found < 0:
                return False
            day, day_ns = date, found * 86_400_000_000_000
        hour, minute, second = _number(stamp, 11, 13), _number(stamp, 14, 16), _number(stamp, 17, 19)
        if not (0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60):
            return False
        rest = _number(stamp, 20, end) if digits else 0
        if rest < 0:
            return False
        ns[row] = day_ns + (hour * 3600 + minute * 60 + second) * 1_000_000_000 + rest * scale
    return True
