"""What the minutes say: busiest hour, bursts, the shape of the day and the week, trend, change of regime."""

from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

HOUR_MINUTES, DAY_MINUTES = 60, 1440
REGIME_RATIO = 8.0
"""Load that changes by more than this from one stretch to the next is no daily swing: those reach 2 to 5."""

_LONGEST_BURST_LIST = 10


def time_facts(requests: Longs, tokens: Longs, start_utc: str | None) -> dict[str, Any]:
    """Facts about load over time, from counts per minute.

    Args:
        requests: Requests of each whole minute.
        tokens: Input plus output tokens of each whole minute.
        start_utc: Time of minute 0, when known; hours and weekdays need it.

    Returns:
        Plain data; what the trace is too short for is left out.
    """
    facts: dict[str, Any] = {
        "minute_tokens_p99_over_mean": _over_mean(np.quantile(tokens, 0.99), tokens),
        "minute_requests_p99_over_mean": _over_mean(np.quantile(requests, 0.99), requests),
        "empty_minute_fraction": float(np.mean(requests == 0)),
    }
    if len(tokens) >= HOUR_MINUTES:
        hours = np.convolve(tokens.astype(np.float64), np.ones(HOUR_MINUTES), mode="valid")
        facts["busiest_hour_start_s"] = int(np.argmax(hours)) * 60
        facts["busiest_hour_tokens_over_mean"] = float(hours.max() / max(tokens.mean() * HOUR_MINUTES, 1e-12))
    facts["bursts"] = bursts(tokens)
    if len(tokens) >= DAY_MINUTES:
        facts["hour_of_day_tokens"] = _by_hour(tokens, start_utc)
    if len(tokens) >= 7 * DAY_MINUTES:
        facts["day_of_week_tokens"] = _by_weekday(tokens, start_utc)
    if len(tokens) >= 2 * DAY_MINUTES:
        facts["trend_fraction_per_day"] = _trend(tokens)
    change = regime(requests)
    if change is not None:
        facts["non_stationary"] = {"ratio": change[0], "change_s": change[1] * 60}
    return facts


def bursts(tokens: Longs) -> list[dict[str, float]]:
    """Stretches of minutes above twice the mean, the heaviest first, at most ten."""
    mean = float(tokens.mean())
    above = np.concatenate(([False], tokens > 2 * mean, [False]))
    edges = np.flatnonzero(np.diff(above.astype(np.int8)))
    upto = np.concatenate(([0], np.cumsum(tokens)))
    found = [
        {
            "start_s": float(begin * 60),
            "duration_s": float((end - begin) * 60),
            "tokens": float(upto[end] - upto[begin]),
            "peak_over_mean": float(tokens[begin:end].max() / max(mean, 1e-12)),
        }
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    ]
    return sorted(found, key=lambda burst: -burst["tokens"])[:_LONGEST_BURST_LIST]


def regime(counts: Longs) -> tuple[float, int] | None:
    """The one change of level that explains the counts best, when it is too large for a daily swing.

    The split is the one of greatest Poisson likelihood that leaves a twentieth of the bins on either side.

    Args:
        counts: Requests per bin of any equal length.

    Returns:
        Higher over lower mean, and the bin where the level changes; ``None`` when load is steady enough, or there are
        fewer than 40 bins or 200 requests.
    """
    size, total = len(counts), int(counts.sum())
    if size < 40 or total < 200:
        return None
    upto = np.cumsum(counts).astype(np.float64)
    edge = max(2, size // 20)
    split = np.arange(edge, size - edge)
    before, after = upto[split - 1], total - upto[split - 1]
    score = _fit(before, split.astype(np.float64)) + _fit(after, (size - split).astype(np.float64))
    at = int(np.argmax(score))
    means = float(before[at] / split[at]), float(after[at] / (size - split[at]))
    low, high = min(means), max(means)
    # An empty side cannot have been at less than one request in its bins.
    ratio = high / max(low, 1.0 / size)
    return (ratio, int(split[at])) if ratio >= REGIME_RATIO else None


def _fit(total: Floats, bins: Floats) -> Floats:
    return total * np.log(np.maximum(total, 1e-12) / bins)


def _over_mean(value: float, series: Longs) -> float:
    return float(value / max(float(series.mean()), 1e-12))


def _by_hour(tokens: Longs, start_utc: str | None) -> list[float] | None:
    """Mean tokens per minute of each hour of the day, over the mean; unknown without a clock."""
    if start_utc is None:
        return None
    start = datetime.fromisoformat(start_utc)
    hour = (start.hour + (start.minute + np.arange(len(tokens))) // HOUR_MINUTES) % 24
    return _shares(tokens, hour, 24)


def _by_weekday(tokens: Longs, start_utc: str | None) -> list[float] | None:
    """The same for days of the week, Monday first."""
    if start_utc is None:
        return None
    start = datetime.fromisoformat(start_utc)
    day = (start.weekday() + (start.hour * 60 + start.minute + np.arange(len(tokens))) // DAY_MINUTES) % 7
    return _shares(tokens, day, 7)


def _shares(tokens: Longs, group: Longs, size: int) -> list[float]:
    sums = np.bincount(group, weights=tokens.astype(np.float64), minlength=size)
    minutes = np.bincount(group, minlength=size)
    return [float(value) for value in sums / np.maximum(minutes, 1) / max(float(tokens.mean()), 1e-12)]


def _trend(tokens: Longs) -> float:
    """Change per day of a straight line through whole days, over the mean."""
    days = len(tokens) // DAY_MINUTES
    daily = tokens[: days * DAY_MINUTES].reshape(days, DAY_MINUTES).sum(axis=1).astype(np.float64)
    slope = float(np.polyfit(np.arange(days), daily, 1)[0])
    return slope / max(float(daily.mean()), 1e-12)
