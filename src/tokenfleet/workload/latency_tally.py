"""Latencies as logged, counted so that parts add up exactly and memory stays bounded: to four digits each."""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import LengthCounts
from tokenfleet.workload.joint import add_values, count_values, summary

if TYPE_CHECKING:
    import polars as pl

Longs = npt.NDArray[np.int64]

_US = 1_000_000
_EXACT_US = 10_000
"""Below 10 ms every microsecond is told apart; above it four digits are."""
_STEPS = _EXACT_US - _EXACT_US // 10
_LONGEST_S = 1e8
"""Three years: no call takes longer, and sums stay whole numbers."""
_POWERS = 10 ** np.arange(4, 15, dtype=np.int64)
_SCALES = 10.0 ** np.arange(12)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTally:
    """Counts over the requests whose latency is known."""

    total_us: int
    longest_us: int
    steps: LengthCounts
    """Requests by :func:`step_of` their latency."""


def step_of(us: Longs) -> Longs:
    """Number of the four-digit value nearest to each latency: rises with it, one number per value.

    Args:
        us: Microseconds, from 0 on.
    """
    power = np.searchsorted(_POWERS, us, side="right")
    return np.asarray(power * _STEPS + np.rint(us / _SCALES[power]).astype(np.int64), dtype=np.int64)


def us_of(step: Longs) -> Longs:
    """Microseconds that a step stands for."""
    power = np.maximum((step - _EXACT_US // 10) // _STEPS, 0)
    return np.asarray((step - power * _STEPS) * 10**power, dtype=np.int64)


def latency_tally(seconds: "pl.Series") -> LatencyTally:
    """Count one column; cells that no call can have taken are unknown."""
    known = seconds.filter(seconds.is_between(0, _LONGEST_S)).to_numpy()
    us = np.rint(known * _US).astype(np.int64)
    return LatencyTally(total_us=int(us.sum()), longest_us=int(us.max(initial=0)), steps=count_values(step_of(us)))


def add_latencies(left: LatencyTally, right: LatencyTally) -> LatencyTally:
    """Counts of both parts together."""
    return LatencyTally(
        total_us=left.total_us + right.total_us,
        longest_us=max(left.longest_us, right.longest_us),
        steps=add_values(left.steps, right.steps),
    )


def latency_facts(tally: LatencyTally) -> dict[str, float]:
    """Quantiles to four digits, and the exact largest and mean, in seconds; empty when none is known."""
    count = int(tally.steps.counts.sum())
    if not count:
        return {}
    found = summary(LengthCounts(values=us_of(tally.steps.values), counts=tally.steps.counts))
    quantiles = {name: getattr(found, name) / _US for name in ("p50", "p90", "p95", "p99")}
    return {**quantiles, "max": tally.longest_us / _US, "mean": tally.total_us / count / _US}
