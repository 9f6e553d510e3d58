"""Closed loops through several pools: who comes when, once it is known when others have ended."""

from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.world import BY_CLOCK, NEXT_IN_LINE, ClosedLoop

Buffer = npt.NDArray[np.int64]


def arrivals_ps(loop: ClosedLoop | None, clock_ps: Buffer, ends_ps: Buffer) -> Buffer:
    """When each request arrives; -1 for those whose cause has not ended yet.

    Args:
        loop: Who waits for whom; ``None``: all come by the clock.
        clock_ps: Arrivals by the clock.
        ends_ps: When each request ended, well or not; -1 where that is not known.
    """
    if loop is None:
        return clock_ps
    after = np.asarray(loop.after)
    delay_ps = np.maximum(1, np.rint(np.asarray(loop.delay_s) * 1e12)).astype(np.int64)
    found = np.where(after == BY_CLOCK, clock_ps, -1)
    followers = np.flatnonzero(after >= 0)
    causes_ps = ends_ps[after[followers]]
    found[followers] = np.where(causes_ps >= 0, causes_ps + delay_ps[followers], -1)
    is_free = ends_ps >= 0
    is_free[after[followers]] = False
    in_line = after == NEXT_IN_LINE
    free = [(int(ends_ps[row]), int(row)) for row in np.flatnonzero(is_free & ~in_line)]
    heapify(free)
    for row in np.flatnonzero(in_line).tolist():
        if not free:
            break
        end_ps, _ = heappop(free)
        found[row] = end_ps + delay_ps[row]
        # Its own end makes room for those behind it, if it is one that can follow.
        if is_free[row] and ends_ps[row] >= found[row]:
            heappush(free, (int(ends_ps[row]), row))
    return found
