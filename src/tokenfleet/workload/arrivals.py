"""When requests come: bursty gaps inside minutes whose counts are decided first.

Two scales are kept apart. The shape says how many requests each minute carries, so that the busiest minute is what was
asked for and not an accident of the draw; the renewal process says how they bunch inside it.
"""

import math

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.trace import Floats

Longs = npt.NDArray[np.int64]

MINUTE_S = 60.0
_DAY_S = 86_400.0
_MEMORY_MINUTES = 12.0
"""Correlation time of the load from minute to minute. A peak has shoulders, as in the public traces."""


def gamma_gaps(random: np.random.Generator, count: int, cv: float) -> Floats:
    """Gaps of mean 1 with coefficient of variation ``cv``, gamma distributed (1 is Poisson)."""
    if cv <= 0:
        return np.ones(count)
    shape = 1.0 / cv**2
    return random.standard_gamma(shape, count) / shape


def weibull_gaps(random: np.random.Generator, count: int, shape: float) -> Floats:
    """Gaps of mean 1, Weibull distributed with the given shape (below 1 is bursty)."""
    return random.weibull(shape, count) / math.gamma(1.0 + 1.0 / shape)


def weibull_shape(cv: float) -> float:
    """Weibull shape whose coefficient of variation is ``cv``, by bisection."""
    low, high = 0.08, 20.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        first, second = math.lgamma(1 + 1 / middle), math.lgamma(1 + 2 / middle)
        low, high = (middle, high) if math.exp(second - 2 * first) - 1 > cv**2 else (low, middle)
    return high


def minute_shape(random: np.random.Generator, duration_s: float, peak_to_mean: float, where: str) -> Floats:
    """Relative load of each minute: mean 1 over the whole minutes, the largest of them ``peak_to_mean``.

    A correlated log-normal walk, with a daily swing when the trace is longer than six hours. The last, broken minute
    carries its share of the mean.

    Args:
        random: Stream of the shape alone.
        duration_s: Length of the trace.
        peak_to_mean: Busiest whole minute over the mean one, 1 or more.
        where: Name of the option, for the error.

    Raises:
        BadInput: a ratio below 1, or above what so few minutes can show.
    """
    minutes = max(1, int(duration_s // MINUTE_S))
    if peak_to_mean < 1:
        raise BadInput.at(
            where, f"peak to mean is {peak_to_mean:g}", "the busiest minute is at least the mean one: 1 or more"
        )
    if minutes > 1 and peak_to_mean > 0.9 * minutes:
        raise BadInput.at(
            where,
            f"{minutes} minutes cannot have a minute {peak_to_mean:g} times the mean",
            f"make the trace at least {int(np.ceil(peak_to_mean / 0.9)) + 1} minutes long",
        )
    walk = _walk(random, minutes, duration_s)
    if minutes == 1 or peak_to_mean == 1:
        return np.ones(minutes)
    return _steepened(walk, peak_to_mean) * minutes


def _walk(random: np.random.Generator, minutes: int, duration_s: float) -> Floats:
    noise = random.standard_normal(minutes)
    keep = np.exp(-1.0 / _MEMORY_MINUTES)
    fresh = np.sqrt(1.0 - keep**2)
    walk = np.empty(minutes)
    level = noise[0]
    for index in range(minutes):
        level = keep * level + fresh * noise[index]
        walk[index] = level
    if duration_s >= _DAY_S / 4:
        clock = np.arange(minutes) * MINUTE_S / _DAY_S
        walk = walk * 0.5 - np.cos(2 * np.pi * clock)
    # A walk with its largest value alone at the top lets any ratio be reached by steepening it.
    walk[int(np.argmax(walk))] += 0.05
    return np.asarray(walk - walk.max(), dtype=np.float64)


def peaked_counts(load: Floats, total: int, peak_count: float, duration_s: float) -> Longs:
    """Whole requests per minute whose sum and busiest minute are exactly those asked for.

    The load is raised to the power that gives its busiest minute the right height over the mean; rounding leaves the
    busiest minute alone.

    Args:
        load: Relative load of each minute, the broken last one left out; any scale.
        total: Requests in the whole trace.
        peak_count: Requests in the busiest whole minute.
        duration_s: Length of the trace.

    Returns:
        Requests of each whole minute and, where there is one, of the broken last minute.
    """
    whole = int(duration_s // MINUTE_S)
    if whole == 0:
        return np.array([total], dtype=np.int64)
    broken = duration_s / MINUTE_S - whole
    tail = round(total * broken / (whole + broken))
    inside = total - tail
    top = max(round(peak_count), -(-inside // whole))
    # Half a request in each minute keeps empty ones reachable and the power finite.
    level = load[:whole] / max(float(load[:whole].mean()), 1e-12)
    base = np.log(level + 0.5 / max(inside / whole, 1.0))
    peak = int(np.argmax(base))
    base = base - base[peak]
    base[np.arange(whole) != peak] -= 0.01
    wanted = _steepened(base, top * whole / max(inside, 1)) * inside
    wanted = np.minimum(wanted, top)
    counts = np.floor(wanted).astype(np.int64)
    counts[peak] = min(top, inside)
    missing = inside - int(counts.sum())
    order = np.argsort(-(wanted - np.floor(wanted)), kind="stable")
    order = order[order != peak]
    while missing != 0:
        step = 1 if missing > 0 else -1
        open_ = order[(counts[order] < top) if step > 0 else (counts[order] > 0)][: abs(missing)]
        if not len(open_):
            counts[peak] += missing
            break
        counts[open_] += step
        missing -= step * len(open_)
    return np.append(counts, tail) if broken > 0 else counts


def _steepened(base: Floats, ratio: float) -> Floats:
    """Shares of the minutes, ``exp(power * base)`` with the power that makes the largest ``ratio`` times the mean."""
    low, high = 0.0, 1.0
    while _ratio_of(base, high) < ratio and high < 1e6:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _ratio_of(base, middle) < ratio else (low, middle)
    share = np.exp(high * base)
    return np.asarray(share / share.sum(), dtype=np.float64)


def _ratio_of(base: Floats, power: float) -> float:
    share = np.exp(power * base)
    return float(share.max() / share.mean())


def fit_into_minutes(times: Floats, counts: Longs, duration_s: float) -> Floats:
    """Warp sorted times so that minute ``k`` of the result holds ``counts[k]`` of them.

    The order and the bunching inside each minute stay; only the clock is stretched. A border between two minutes
    falls in the middle of the gap it cuts, or cuts it into equal parts where empty minutes share one gap.

    Args:
        times: Sorted raw times, any unit; exactly ``counts.sum()`` of them.
        counts: Requests per minute; the last minute may be a broken one.
        duration_s: End of the last minute.

    Returns:
        Arrival in seconds, not falling, each in its minute.
    """
    ends = np.cumsum(counts)
    inner = ends[:-1]
    padded = np.concatenate(([times[0]], times, [times[-1]]))
    gap = padded[1:] - padded[:-1]
    span = max(float(times[-1] - times[0]), 1e-9)
    # The stretch before the first and after the last request has no gap of its own: give each a mean one.
    lone = span / max(len(times), 1)
    gap[0] = gap[-1] = lone
    start = padded[:-1].copy()
    start[0] = times[0] - lone
    rank, size = _rank_in_gap(inner)
    borders = start[inner] + gap[inner] * (rank + 1.0) / (size + 1.0)
    raw = np.concatenate(([times[0] - lone / 2], borders, [times[-1] + lone / 2]))
    raw = np.maximum.accumulate(raw)
    wall = np.append(np.arange(len(counts)) * MINUTE_S, duration_s)
    minute = np.repeat(np.arange(len(counts)), counts)
    width = raw[minute + 1] - raw[minute]
    share = np.divide(times - raw[minute], width, out=np.full(len(times), 0.5), where=width > 0)
    # The last instant of a minute belongs to it: the float below its end.
    arrival = wall[minute] + np.clip(share, 0.0, 1.0) * (wall[minute + 1] - wall[minute])
    arrival = np.minimum(arrival, np.nextafter(wall[minute + 1], 0.0))
    return np.asarray(np.maximum.accumulate(arrival), dtype=np.float64)


def _rank_in_gap(inner: Longs) -> tuple[Floats, Floats]:
    """For borders that fall into the same gap: which of them, and how many they are."""
    if not len(inner):
        return np.zeros(0), np.zeros(0)
    first = np.concatenate(([0], np.flatnonzero(np.diff(inner)) + 1))
    size = np.diff(np.append(first, len(inner)))
    rank = np.arange(len(inner)) - np.repeat(first, size)
    return rank.astype(np.float64), np.repeat(size, size).astype(np.float64)


def renewal_cv_for(interarrival_cv: float, shape: Floats) -> float:
    """Coefficient of variation of gaps inside a minute that gives ``interarrival_cv`` over the whole trace.

    Gaps in a minute of relative load ``f`` have mean ``1/f``; weighting by arrivals, the squared coefficient of
    variation of the mixture plus one is that of the renewal process plus one, times the mean of ``1/f``.
    """
    mixture = float(np.mean(1.0 / np.maximum(shape, 1e-6)))
    inside = (1.0 + interarrival_cv**2) / mixture - 1.0
    return float(np.sqrt(max(inside, 0.05)))
