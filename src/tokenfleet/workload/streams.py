"""Named random streams: adding a column never shifts the numbers of another."""

import zlib

import numpy as np


def stream(seed: int, *names: str | int) -> np.random.Generator:
    """A generator of its own for each name under one seed.

    Args:
        seed: The trace's seed, not negative.
        names: What the numbers are for, such as ``"output lengths"`` or ``("tenant", 3)``.

    Returns:
        A PCG64 generator that depends on the seed and the names only. The bit generator is named, so that a
        change of numpy's default cannot change a trace.
    """
    key = tuple(name if isinstance(name, int) else zlib.crc32(name.encode()) for name in names)
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))
