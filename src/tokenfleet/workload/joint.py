"""The joint shape of input and output lengths: how it is kept, merged and drawn from."""

from functools import cache

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.trace import Floats, Ints, LengthCounts, LengthSummary, Workload
from tokenfleet.workload.streams import stream

_EXACT = 16
_STEPS_PER_OCTAVE = 8
_OCTAVES = 18
_DENSE = 1 << 19


def fixed_edges() -> Floats:
    """Edges of the length bins, the same for every profile, so that profiles add up.

    One bin for each length from 0 to 15 tokens, then eight per doubling up to 4 million tokens: a bin is an eighth of
    its length wide, or less. Bin ``i`` holds lengths from ``edges[i]``, that one excluded from bin ``i + 1``.
    """
    steps = np.arange(1, _OCTAVES * _STEPS_PER_OCTAVE + 1)
    wide = np.unique(np.ceil(_EXACT * 2.0 ** (steps / _STEPS_PER_OCTAVE)))
    return np.concatenate((np.arange(_EXACT + 1, dtype=np.float64), wide))


BINS = len(fixed_edges()) - 1
"""Length bins on either side."""


@cache
def _edges() -> Floats:
    return fixed_edges()


def bins_of(tokens: Ints | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Bin of each length; what is longer than the last edge counts into the last bin."""
    edges = _edges()
    return np.minimum(np.searchsorted(edges, tokens, side="right") - 1, len(edges) - 2).astype(np.int64)


def count_values(tokens: Ints | npt.NDArray[np.int64]) -> LengthCounts:
    """How often each length occurs: exact, and small, since lengths are whole tokens."""
    if not len(tokens):
        return LengthCounts(values=np.zeros(0, dtype=np.int64), counts=np.zeros(0, dtype=np.int64))
    if int(tokens.max()) < 4_000_000:
        dense = np.bincount(tokens)
        values = np.flatnonzero(dense)
        return LengthCounts(values=values.astype(np.int64), counts=dense[values].astype(np.int64))
    values, counts = np.unique(tokens, return_counts=True)
    return LengthCounts(values=values.astype(np.int64), counts=counts.astype(np.int64))


def add_values(left: LengthCounts, right: LengthCounts) -> LengthCounts:
    """Counts of both together, exactly; no count is 0."""
    top = max(int(left.values.max(initial=0)), int(right.values.max(initial=0)))
    if top < _DENSE and min(left.values.min(initial=0), right.values.min(initial=0)) >= 0:
        # A count for every value up to the largest takes less time than sorting the values of both.
        dense = np.zeros(top + 1, dtype=np.int64)
        dense[left.values] = left.counts
        dense[right.values] += right.counts
        values = np.flatnonzero(dense)
        return LengthCounts(values=values.astype(np.int64), counts=dense[values])
    values, position = np.unique(np.concatenate((left.values, right.values)), return_inverse=True)
    counts = np.zeros(len(values), dtype=np.int64)
    np.add.at(counts, position, np.concatenate((left.counts, right.counts)))
    return LengthCounts(values=values.astype(np.int64), counts=counts)


def summary(lengths: LengthCounts) -> LengthSummary:
    """Quantiles of counted lengths, linear between ranks as numpy's default."""
    upto = np.cumsum(lengths.counts)
    return LengthSummary(
        p50=_quantile(lengths.values, upto, 0.50),
        p90=_quantile(lengths.values, upto, 0.90),
        p95=_quantile(lengths.values, upto, 0.95),
        p99=_quantile(lengths.values, upto, 0.99),
        max=float(lengths.values[-1]),
        mean=float(np.dot(lengths.values, lengths.counts) / upto[-1]),
    )


def quantile(lengths: LengthCounts, fraction: float) -> float:
    """Any quantile of counted lengths, linear between ranks.

    Args:
        lengths: At least one.
        fraction: 0 to 1.
    """
    return _quantile(lengths.values, np.cumsum(lengths.counts), fraction)


def _quantile(values: npt.NDArray[np.int64], upto: npt.NDArray[np.int64], fraction: float) -> float:
    place = fraction * (int(upto[-1]) - 1)
    below = int(place)
    share = place - below
    low = values[np.searchsorted(upto, below, side="right")]
    high = values[np.searchsorted(upto, min(below + 1, int(upto[-1]) - 1), side="right")]
    return float(low + (high - low) * share)


def count_pairs(input_tokens: Ints, output_tokens: Ints, edges: Floats) -> npt.NDArray[np.int64]:
    """Requests by (input bin, output bin)."""
    size = len(edges) - 1
    # One lookup table turns lengths into bins without a search per request.
    longest = int(max(input_tokens.max(initial=0), output_tokens.max(initial=0)))
    table = np.searchsorted(edges, np.arange(min(longest, int(edges[-1])) + 1), side="right") - 1
    table = np.minimum(table, size - 1)
    cap = len(table) - 1
    cell = table[np.minimum(input_tokens, cap)] * size + table[np.minimum(output_tokens, cap)]
    return np.bincount(cell, minlength=size * size).reshape(size, size).astype(np.int64)


def draw_joint(workload: Workload, seed: int, count: int) -> tuple[Ints, Ints]:
    """Draw lengths that keep both exact marginals and, bin by bin, how they go together.

    Raises:
        BadInput: the profile holds no requests.
    """
    used = np.flatnonzero(workload.joint_counts.ravel())
    cells = LengthCounts(values=used.astype(np.int64), counts=workload.joint_counts.ravel()[used].astype(np.int64))
    return draw_cells(workload, cells, seed, count)


def draw_cells(workload: Workload, cells: LengthCounts, seed: int, count: int, name: str = "") -> tuple[Ints, Ints]:
    """Draw lengths of some cells of the joint table.

    A cell is drawn first, then a length from the recorded ones inside each of its two bins.

    Args:
        workload: Holds the recorded lengths.
        cells: Requests by cell.
        seed: Same seed, same lengths.
        count: How many.
        name: Tells random numbers of several draws apart.

    Raises:
        BadInput: the profile holds no requests.
    """
    total = int(cells.counts.sum())
    if total == 0 or workload.input_counts is None or workload.output_counts is None:
        raise BadInput.at("profile", "holds no lengths to draw from", "profile a trace with requests in it")
    random = stream(seed, "length cells", name)
    # Every cell gets its share of the draws, not a random number near it: tails and modes come out as recorded.
    place = (random.permutation(count) + random.random(count)) / count * total
    cell = cells.values[np.searchsorted(np.cumsum(cells.counts), place, side="right")]
    rows, columns = np.divmod(cell, workload.joint_counts.shape[1])
    inside_input = stream(seed, "input tokens", name).random(count)
    inside_output = stream(seed, "output tokens", name).random(count)
    return (
        _inside(workload.input_counts, workload.input_edges, rows, inside_input),
        _inside(workload.output_counts, workload.output_edges, columns, inside_output),
    )


def _inside(lengths: LengthCounts, edges: Floats, bins: npt.NDArray[np.int64], share: Floats) -> Ints:
    upto = np.concatenate(([0], np.cumsum(lengths.counts)))
    border = upto[np.searchsorted(lengths.values, edges)]
    border[-1] = upto[-1]
    place = border[bins] + share * (border[bins + 1] - border[bins])
    index = np.searchsorted(upto, place, side="right") - 1
    return np.asarray(lengths.values[np.minimum(index, len(lengths.values) - 1)], dtype=np.int32)
