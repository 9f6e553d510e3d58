"""Quantiles that never promise more than the samples show."""

import math

import numpy as np

from tokenfleet.domain.run import GapHistogram
from tokenfleet.domain.trace import Floats


def conservative_rank(count: int, quantile: float) -> int:
    """1-based rank of the order statistic that stands for ``quantile`` of ``count`` samples: ``ceil(q * n)``.

    No interpolation: the answer is a value that happened. With fewer than ``1 / (1 - q)`` samples it is the
    slowest one, so a p99 of 30 requests is their maximum, never a guess between them.
    """
    # 0.99 * 100 is 99.00000000000001 in float64; the product is snapped before rounding up.
    return min(count, max(1, math.ceil(round(count * quantile, 9))))


def order_statistic(values: Floats, quantile: float) -> float | None:
    """The ``ceil(q * n)``-th smallest of ``values``; what never happened is ``inf``.

    Returns:
        ``None`` without values, or when the rank falls on an ``inf``.
    """
    if len(values) == 0:
        return None
    rank = conservative_rank(len(values), quantile)
    value = float(np.partition(values, rank - 1)[rank - 1])
    return value if math.isfinite(value) else None


def histogram_quantile(gaps: GapHistogram, quantile: float) -> float | None:
    """Upper edge, in seconds, of the bin that holds the ``ceil(q * n)``-th smallest gap.

    The true order statistic lies below it by at most one bin width (2.2 %).

    Returns:
        ``None`` without gaps, or when the bin has no upper edge.
    """
    total = int(gaps.count.sum(dtype=np.int64))
    if total == 0:
        return None
    rank = conservative_rank(total, quantile)
    position = int(np.searchsorted(np.cumsum(gaps.count, dtype=np.int64), rank))
    edge = float(gaps.lower_s[position + 1])
    return edge if math.isfinite(edge) else None
