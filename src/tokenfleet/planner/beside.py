"""Two things that need nothing of each other, worked out at the same time."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def beside(work: Callable[[], T], width: int) -> Iterator[Callable[[], T]]:
    """Works beside the body of a ``with``; what is entered waits for the answer, and raises what the work raised.

    Args:
        work: Neither changes nor reads what the body changes.
        width: How many replays may run at once; of 0 the work is done when it is asked for.
    """
    if not width:
        yield cache(work)
        return
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work).result
