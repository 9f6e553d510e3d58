"""What a cloud takes away and withholds, and when: while everybody has a peak, ours included.

Both generators draw from a Poisson process whose rate follows the demand of the trace: at twice the mean demand an
event is twice as likely, with ``peak_power`` 1. The same seed gives the same events.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.trace import Floats
from tokenfleet.domain.world import Happening

_BIN_S: Final = 300.0
_HOUR_S: Final = 3600.0
_TOGETHER_S: Final = 180.0
"""Of replicas reclaimed together, 92 % go within three minutes of each other: 2,635 interruptions of AWS and Azure
spot machines (Spot-and-Scoot: Peeking Into Spot Instance Availability)."""


def spot_reclaims(
    arrival_s: Floats,
    replicas: Sequence[int],
    *,
    per_hour: float,
    notice_s: float,
    taken_fraction: float = 0.5,
    peak_power: float = 1.0,
    seed: int,
) -> tuple[Happening, ...]:
    """Spot replicas that are taken back.

    Args:
        arrival_s: Arrivals of the trace, seconds, not falling.
        replicas: Numbers of the replicas on spot machines.
        per_hour: Events per hour at mean demand, for all of them; one event takes several at once.
        notice_s: Between the notice, when a replica drains, and its end, when what it still holds is lost.
        taken_fraction: Part of the spot replicas that an event takes, at least one.
        peak_power: How strongly events follow demand; 0: not at all.
        seed: Of the draw.

    Returns:
        A ``drain`` and a ``fail`` for each replica of each event, in order of time.

    Raises:
        BadInput: a rate, a time or a share that makes no sense.
    """
    _check({"per_hour": per_hour, "notice_s": notice_s, "peak_power": peak_power}, taken_fraction)
    if not replicas:
        return ()
    random = np.random.default_rng(seed)
    size = max(round(taken_fraction * len(replicas)), 1)
    happenings = []
    for event_s in _moments(arrival_s, per_hour, peak_power, random):
        for replica in sorted(random.choice(np.asarray(replicas), size=size, replace=False).tolist()):
            notice_at_s = event_s + float(random.uniform(0.0, _TOGETHER_S))
            said = Happening(time_s=notice_at_s, kind="drain", replicas=(replica,), reason="spot machine called back")
            gone = Happening(
                time_s=notice_at_s + notice_s, kind="fail", replicas=(replica,), reason="spot machine taken back"
            )
            happenings += [said, gone]
    return tuple(sorted(happenings, key=lambda each: each.time_s))


def stock_outs(
    arrival_s: Floats, *, per_hour: float, mean_s: float, peak_power: float = 1.0, seed: int
) -> tuple[tuple[float, float], ...]:
    """Spans in which no new machine of our kind is to be had.

    Args:
        arrival_s: Arrivals of the trace, seconds, not falling.
        per_hour: Spans per hour at mean demand.
        mean_s: Mean length of one, exponential.
        peak_power: How strongly they follow demand; 0: not at all.
        seed: Of the draw.

    Returns:
        Start and end of each span, in order and apart: those that touch are one.

    Raises:
        BadInput: a rate or a time that makes no sense.
    """
    _check({"per_hour": per_hour, "mean_s": mean_s, "peak_power": peak_power}, 1.0)
    random = np.random.default_rng(seed)
    spans: list[tuple[float, float]] = []
    for start_s in _moments(arrival_s, per_hour, peak_power, random):
        end_s = start_s + float(random.exponential(mean_s))
        if spans and start_s <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end_s))
        else:
            spans.append((start_s, end_s))
    return tuple(spans)


def obtained_s(asked_s: float, spans: Sequence[tuple[float, float]]) -> float:
    """When a machine asked for at a moment is to be had: at once, or when the stock-out ends."""
    return next((end_s for start_s, end_s in spans if start_s <= asked_s < end_s), asked_s)


def _moments(arrival_s: Floats, per_hour: float, peak_power: float, random: np.random.Generator) -> list[float]:
    """Moments of a Poisson process whose rate follows the arrivals, in order."""
    if not len(arrival_s):
        return []
    bin_count = int(float(arrival_s[-1]) // _BIN_S) + 1
    arrived = np.bincount((arrival_s // _BIN_S).astype(np.int64), minlength=bin_count)
    # The last bin is cut by the end of the trace; its rate is over what it lasts.
    lasts_s = np.full(bin_count, _BIN_S)
    lasts_s[-1] = max(float(arrival_s[-1]) - _BIN_S * (bin_count - 1), 1.0)
    demand = arrived / lasts_s / (arrived.sum() / lasts_s.sum())
    counts = random.poisson(per_hour / _HOUR_S * lasts_s * demand**peak_power)
    inside = random.uniform(0.0, 1.0, int(counts.sum()))
    starts_s = np.repeat(np.arange(bin_count) * _BIN_S, counts)
    return sorted((starts_s + inside * np.repeat(lasts_s, counts)).tolist())


def _check(not_negative: dict[str, float], taken_fraction: float) -> None:
    problems = [
        Problem(name, f"{value:g} is below 0", "write a number from 0 on")
        for name, value in not_negative.items()
        if not value >= 0.0
    ]
    if not 0.0 < taken_fraction <= 1.0:
        problems.append(Problem("taken_fraction", f"{taken_fraction:g} is no share", "above 0, at most 1"))
    if problems:
        raise BadInput(problems)
