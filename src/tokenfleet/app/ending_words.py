"""How requests ended without an answer, as a person reads it."""

from typing import Final

import numpy as np
import numpy.typing as npt

from tokenfleet import contract

SAID: Final = {
    "rejected_count": "refused",
    "lost_count": "lost with a replica",
    "timed_out_count": "timed out",
    "cancelled_count": "left by their users",
}


def ending_counts(status: npt.NDArray[np.int8]) -> dict[str, int]:
    """Words -> requests, of the ways in which any ended; where all were answered, that none was refused."""
    counts = {words: contract.unanswered_counts(status)[name] for name, words in SAID.items()}
    return {words: count for words, count in counts.items() if count} or {SAID["rejected_count"]: 0}


def ending_words(status: npt.NDArray[np.int8]) -> str:
    """``12 refused, 3 timed out``."""
    return ", ".join(f"{count:,} {words}" for words, count in ending_counts(status).items())
