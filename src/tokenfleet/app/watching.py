"""Waits for somebody to save a file."""

import time
from collections.abc import Iterable
from pathlib import Path

_LOOK_EVERY_S = 0.05

Stamps = dict[Path, tuple[int, int, int] | None]
"""What the disk says of each file; ``None`` of one that is not there."""


def stamps(paths: Iterable[Path]) -> Stamps:
    """Looks at each file now."""
    found: Stamps = {}
    for path in paths:
        try:
            told = path.stat()
        except OSError:
            found[path] = None
        else:
            found[path] = told.st_mtime_ns, told.st_size, told.st_ino
    return found


def wait_for_change(before: Stamps) -> Stamps:
    """Returns once a file differs from what :func:`stamps` said before, and nobody is writing it any more.

    Editors put a new file in place of the old one, so a file that is missing is about to be saved: it is waited for.

    Returns:
        What the disk says now.
    """
    last = before
    while True:
        now = stamps(before)
        there = all(now[path] is not None for path, stamp in before.items() if stamp is not None)
        if now == last != before and there:
            return now
        last = now
        time.sleep(_LOOK_EVERY_S)
