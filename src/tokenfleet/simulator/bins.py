"""The bins of the token gap histogram: logarithmic, and found without a logarithm."""

from functools import cache

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.run import GAP_BINS_PER_OCTAVE

FLOOR_OCTAVE = 10
"""Bin 0 holds every gap below 2**10 ps, a nanosecond."""
OCTAVES = 50
"""The last bin ends at 2**60 ps, 13 days, and holds what is longer too."""
GAP_BINS = 1 + OCTAVES * GAP_BINS_PER_OCTAVE
GUESSES = 64
"""Linear pieces of an octave; each touches two bins at most."""


@cache
def gap_bounds_ps() -> npt.NDArray[np.int64]:
    """Lower edge of each bin in picoseconds, and the upper edge of the last."""
    exponent = FLOOR_OCTAVE + np.arange(GAP_BINS) / GAP_BINS_PER_OCTAVE
    bounds = np.zeros(GAP_BINS + 1, dtype=np.int64)
    bounds[1:] = np.ceil(np.exp2(exponent))
    bounds.flags.writeable = False
    return bounds


@cache
def gap_guesses() -> npt.NDArray[np.int64]:
    """For each linear piece of an octave, the bin in which it starts."""
    start = 1.0 + np.arange(GUESSES) / GUESSES
    guesses = np.zeros(GUESSES, dtype=np.int64)
    guesses[:] = np.floor(np.log2(start) * GAP_BINS_PER_OCTAVE)
    guesses.flags.writeable = False
    return guesses
