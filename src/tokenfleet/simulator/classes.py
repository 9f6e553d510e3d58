"""Classes of requests whose token gaps are counted apart: by traffic class and by priority.

A request may be of several traffic classes, so the kernel counts each combination that occurs, and what a class saw is
the sum of those it is in.
"""

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Trace

MOST_CLASSES = 16
"""Combinations that are told apart; four bits of a request name its own."""
Buffer = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Combinations:
    """What occurs together, and under which names."""

    of: Buffer
    """Number of the combination of each request."""
    names: dict[str, Buffer]
    """Numbers of the combinations of each class; empty where nothing is told apart."""
    count: int


def combinations(trace: Trace) -> Combinations:
    """Traffic classes and priorities of a trace as combinations; one for all where there are too many of them."""
    nothing = np.zeros(trace.request_count, dtype=np.int64)
    if not trace.classes and trace.priority is None:
        return Combinations(nothing, {}, 1)
    bits = nothing if trace.class_bits is None else trace.class_bits.astype(np.int64)
    priority = nothing if trace.priority is None else trace.priority.astype(np.int64)
    pairs, of = np.unique(np.stack([bits, priority]), axis=1, return_inverse=True)
    names = {name: np.flatnonzero(pairs[0] >> index & 1) for index, name in enumerate(trace.classes)}
    levels = np.unique(priority)
    if len(levels) > 1:
        names |= {f"priority {level}": np.flatnonzero(pairs[1] == level) for level in levels}
    if not names or pairs.shape[1] > MOST_CLASSES:
        return Combinations(nothing, {}, 1)
    return Combinations(of.reshape(-1).astype(np.int64), names, pairs.shape[1])
