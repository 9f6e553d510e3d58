"""The way into the compiled kernel."""

import numpy as np
import numpy.typing as npt

from tokenfleet.simulator.layout import WINDOWED
from tokenfleet.simulator.machine_code import EntryPoint

KERNEL = "tokenfleet.simulator.kernel"
plain = EntryPoint(KERNEL, "advance", integer_count=1, known="WITHOUT_WINDOWS")
"""For fleets in which no model has a window: what these would cost is not even compiled."""
windowed = EntryPoint(KERNEL, "advance", integer_count=1)


def advance(memory: npt.NDArray[np.int64], until_ps: int) -> int:
    """See :func:`tokenfleet.simulator.kernel.advance`."""
    return (windowed if memory[WINDOWED] else plain)(memory, until_ps)
