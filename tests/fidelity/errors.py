"""Predicted against measured, statistic by statistic."""

from dataclasses import dataclass

import numpy as np

from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.trace import Floats

METRICS = ("ttft", "tpot", "e2e")
STATISTICS = ("mean", "p50", "p95", "p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds of each request, in the order of its trace; TPOT is NaN for a single output token."""

    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    preemption_count: int | None = None
    """Of the whole run, where the engine's counter was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run and its replay."""

    name: str
    arrival_s: Floats
    measured: Measured
    predicted: RunRecord

    def figures_s(self, metric: str) -> tuple[Floats, Floats]:
        """Mean, p50, p95 and p99 in seconds: measured, predicted."""
        name = f"{metric}_s"
        return statistics(getattr(self.measured, name)), statistics(getattr(self.predicted, name))

    def errors(self, metric: str) -> dict[str, float]:
        """Predicted over measured less one, by statistic."""
        measured, predicted = self.figures_s(metric)
        return dict(zip(STATISTICS, (predicted / measured - 1.0).tolist(), strict=True))

    @property
    def makespans_s(self) -> tuple[float, float]:
        """From second 0 to the last token: measured, predicted."""
        return float(np.max(self.arrival_s + self.measured.e2e_s)), self.predicted.end_s

    @property
    def makespan_error(self) -> float:
        """Predicted over measured less one."""
        measured, predicted = self.makespans_s
        return predicted / measured - 1.0


def statistics(seconds: Floats) -> Floats:
    """Mean, p50, p95 and p99 of what is known."""
    known = seconds[~np.isnan(seconds)]
    return np.array([known.mean(), *np.percentile(known, [50, 95, 99])])
