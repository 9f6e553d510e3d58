"""Long series made short without losing the worst of them.

A week of minutes or a replay of a million requests is more than a screen shows and a file should carry. Each
bucket keeps its maximum and its mean, so a spike of one sample stays as tall as it was; the page says so.
"""

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Floats

MAX_POINTS = 1440
"""A day of minutes is drawn as it is."""
TIME_BUCKETS = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """A series in buckets of ``width_count`` samples (1: untouched); ``start`` is the first sample of each."""

    width_count: int
    start: npt.NDArray[np.int64]
    highest: Floats
    mean: Floats

    def note(self, what: str) -> str:
        """A sentence on what was joined, or nothing."""
        if self.width_count == 1:
            return ""
        return f"Each point joins {self.width_count} {what}: the highest of them is drawn, so no peak is lost."


def in_buckets(values: npt.NDArray[np.generic], points: int = MAX_POINTS) -> Buckets:
    """``values`` in at most ``points`` buckets of equal width; the last may be shorter."""
    series = np.asarray(values, dtype=np.float64)
    width = max(1, -(-len(series) // points))
    start = np.arange(0, len(series), width, dtype=np.int64)
    if not len(series):
        return Buckets(width_count=1, start=start, highest=series, mean=series)
    sizes = np.diff(np.append(start, len(series)))
    return Buckets(
        width_count=width,
        start=start,
        highest=np.maximum.reduceat(series, start),
        mean=np.add.reduceat(series, start) / sizes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OverTime:
    """Values of requests by when they arrived; buckets without any hold NaN."""

    width_s: float
    start_s: Floats
    median: Floats
    highest: Floats


def over_time(arrival_s: Floats, values: Floats, buckets: int = TIME_BUCKETS) -> OverTime:
    """Median and maximum of ``values`` in equal spans of arrival time; NaN values are left out."""
    known = np.isfinite(values)
    arrival, kept = arrival_s[known], values[known]
    if not len(kept):
        empty = np.empty(0)
        return OverTime(width_s=0.0, start_s=empty, median=empty, highest=empty)
    first, last = float(arrival_s.min()), float(arrival_s.max())
    width_s = max(last - first, 1e-9) / buckets
    index = np.minimum(((arrival - first) / width_s).astype(np.int64), buckets - 1)
    order = np.lexsort((kept, index))
    kept, index = kept[order], index[order]
    low = np.searchsorted(index, np.arange(buckets), side="left")
    high = np.searchsorted(index, np.arange(buckets), side="right")
    some = high > low
    median = np.full(buckets, np.nan)
    highest = np.full(buckets, np.nan)
    # Sorted inside each bucket: the last is the highest, the middle two give the median.
    highest[some] = kept[high[some] - 1]
    size = high[some] - low[some]
    median[some] = (kept[low[some] + (size - 1) // 2] + kept[low[some] + size // 2]) / 2
    return OverTime(
        width_s=width_s,
        start_s=np.asarray(first + width_s * np.arange(buckets), dtype=np.float64),
        median=median,
        highest=highest,
    )
