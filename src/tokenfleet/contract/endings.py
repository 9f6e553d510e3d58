"""How requests ended that got no whole answer, each way under a word of its own."""

from typing import Final

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.run import Status
from tokenfleet.domain.trace import Bools

REFUSED: Final = tuple(status for status in Status if status.name.startswith("REJECTED"))
"""Endings without service: turned away at a door, or longer than any replica takes."""
UNANSWERED: Final = {
    "rejected": REFUSED,
    "lost": (Status.LOST,),
    "timed_out": (Status.TIMED_OUT,),
    "cancelled": (Status.CANCELLED,),
}
"""Word -> the endings it means; together with :attr:`Status.FINISHED` every request is in one of them."""


def unanswered(status: npt.NDArray[np.int8]) -> dict[str, Bools]:
    """Which requests ended in each way of :data:`UNANSWERED`.

    Args:
        status: :class:`Status` of each request.
    """
    return {word: np.isin(status, statuses) for word, statuses in UNANSWERED.items()}


def refused_by(status: npt.NDArray[np.int8]) -> dict[str, int]:
    """Requests that nobody served, by reason: a name of :class:`Status` in small letters; only those that occur."""
    counts = np.bincount(status, minlength=len(Status))
    return {each.name.lower(): int(counts[each]) for each in REFUSED if counts[each]}


def unanswered_counts(status: npt.NDArray[np.int8]) -> dict[str, int]:
    """How many requests ended in each way, as ``rejected_count``, ``lost_count``..."""
    return {f"{word}_count": int(which.sum()) for word, which in unanswered(status).items()}
