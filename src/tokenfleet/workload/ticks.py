"""Clocks that only tick now and then: found, and mended by spreading requests inside each tick."""

import numpy as np

from tokenfleet.workload.streams import stream
from tokenfleet.workload.tally import NS, Longs

SMALLEST_TICK_NS = NS // 2
"""Coarser stamps than half a second bend queueing; finer ones do not matter at the scale of a prefill."""

_LOOSE = 0.01
_HEAD = 4096
"""A clock that ticks does so from the start: a look at the first stamps spares the others."""


def tick_of(arrival_ns: Longs) -> int | None:
    """The clock's tick in nanoseconds when stamps are coarse and requests share them, else ``None``.

    Two patterns are known: every stamp a whole minute or second, or nearly all gaps between different stamps within 1 %
    of one length (the public Mooncake trace ticks every 2,997 to 3,003 ms).

    Args:
        arrival_ns: Sorted stamps.
    """
    if len(arrival_ns) < 4:
        return None
    head = np.diff(arrival_ns[:_HEAD])
    if int(((head > 0) & (head < SMALLEST_TICK_NS // 2)).sum()) * 5 > len(head):
        return None
    steps = np.diff(arrival_ns)
    gaps = steps[steps > 0]
    if len(gaps) == len(steps) or not len(gaps):
        return None
    middle = int(np.median(gaps))
    steady = np.mean(np.abs(gaps - middle) <= _LOOSE * middle)
    if middle >= SMALLEST_TICK_NS and steady >= 0.9 and len(gaps) >= 10:
        return int(round(middle / 1e6) * 1_000_000)
    return next((tick_ns for tick_ns in (60 * NS, NS) if np.all(gaps % tick_ns == 0)), None)


def spread(arrival_ns: Longs, tick_ns: int) -> Longs:
    """Move each request to a random place inside its tick, keeping the order of the file.

    Stamps are taken as rounded down. Uniform places are what a Poisson stream leaves when only the counts are known;
    the draw depends on nothing but the number of rows.
    """
    random = stream(0, "ticks").random(len(arrival_ns))
    fresh = np.concatenate(([True], np.diff(arrival_ns) > 0))
    distinct, position = arrival_ns[fresh], np.cumsum(fresh) - 1
    room = np.minimum(np.diff(np.append(distinct, distinct[-1] + tick_ns)), tick_ns)
    # Sorting by (tick, place) keeps rows of a tick in file order while their places rise.
    order = np.lexsort((random, position))
    place = random[order]
    return np.asarray(arrival_ns + (place * room[position]).astype(np.int64), dtype=np.int64)
