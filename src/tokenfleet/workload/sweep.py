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
from typing import Any, TypeVar, cast

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


@_compiled
def sweep(
    columns: tuple[Longs, Longs, Longs],
    status: npt.NDArray[np.uint8],
    tenant: npt.NDArray[np.uint32],
    zero_ns: int,
    drop_zero: bool,
    bins: Longs,
    kept_ns: Longs,
    reasons: Longs,
    lengths: Longs,
    pairs: Longs,
    minutes: Longs,
    tenants: Longs,
) -> bool:
    """Count every row once, into tables that come in as zeros.

    Args:
        columns: Stamps in nanoseconds, input tokens, output tokens; :data:`UNKNOWN` where null.
        status: One of :data:`OK`, :data:`REJECTED`, :data:`FAILED` per row, or empty.
        tenant: Place of the tenant per row, or empty.
        zero_ns: Stamp of the start of the first minute in ``minutes``.
        drop_zero: Whether rows of 0 output tokens are left out.
        bins: Bin of each length below :data:`LONGEST_COUNTED`.
        kept_ns: Room for the stamp of every row; filled with those of the rows kept, in order of the file.
        reasons: Rows by reason, and those kept at the end.
        lengths: Rows by input tokens and by output tokens.
        pairs: Rows by bin of input and bin of output.
        minutes: Requests, input tokens and output tokens of each minute.
        tenants: Rows kept by tenant.

    Returns:
        Whether every length fitted its table; when not, the tables mean nothing.
    """
    arrival, given, made = columns
    count = 0
    for row in range(len(arrival)):
        state = status[row] if len(status) else OK
        reason = _reason(arrival[row], state, given[row], made[row], drop_zero)
        into, out = given[row], made[row]
        # Lengths that no request has are a reason of their own, before that of no output.
        if reason >= _SILENT and (into >= LONGEST_COUNTED or out >= LONGEST_COUNTED):
            return False
        reasons[reason] += 1
        if reason != KEPT:
            continue
        minute = (arrival[row] - zero_ns) // _MINUTE_NS
        kept_ns[count] = arrival[row]
        count += 1
        lengths[0, into] += 1
        lengths[1, out] += 1
        pairs[bins[into], bins[out]] += 1
        minutes[0, minute] += 1
        minutes[1, minute] += into
        minutes[2, minute] += out
        if len(tenant):
            tenants[tenant[row]] += 1
    return True


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
