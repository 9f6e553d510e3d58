"""Long tables a stretch at a time, on all cores.

The rows of a long trace are many times larger than a cache, so a pass for each field would have all of them come by as
often. A stretch stays near while all its fields are read or written.
"""

import os
from collections.abc import Callable

STRETCH = 1 << 13
"""Rows at a time; those of requests take half a megabyte."""
MANY = 1 << 20
"""Rows from which on threads are worth their start."""


def in_stretches(count: int, do: Callable[[slice], None]) -> None:
    """Have something done to every stretch of so many rows, in any order, and of many rows to several at once.

    Args:
        count: Rows.
        do: Called with the rows of one stretch; what it does must not depend on others.
    """
    stretches = [slice(start, min(start + STRETCH, count)) for start in range(0, count, STRETCH)]
    if count < MANY:
        for stretch in stretches:
            do(stretch)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for _ in threads.map(do, stretches):
            pass
