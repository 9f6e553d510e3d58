"""Promises, and how a run met them."""

from dataclasses import dataclass
from typing import Literal

Metric = Literal["ttft", "itl", "tpot", "e2e"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTarget:
    """``metric`` at ``quantile`` must not exceed ``limit_s``; written ``ttft_p99: 2s``."""

    metric: Metric
    quantile: float
    limit_s: float

    @property
    def name(self) -> str:
        """As a scenario writes it: ``ttft_p99``, ``itl_p99.9``."""
        return f"{self.metric}_p{self.quantile * 100:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """All promises of one service."""

    latency: tuple[LatencyTarget, ...]
    error_rate_fraction: float
    """Largest share of requests that may be refused or fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SloResult:
    """One promise against what a run did."""

    name: str
    unit: str
    """``s`` or ``fraction``."""
    promised: float
    predicted: float | None
    """``None`` where nothing can be said: no sample at all, or the quantile falls on requests that never finished."""
    predicted_low: float | None
    predicted_high: float | None
    """The 90 % interval from the error band of the step time, itself replayed."""
    sample_count: int
    """Requests, or token gaps for ITL. With fewer than ``1 / (1 - quantile)`` of them the slowest one is judged."""
    kept: bool
    """``False`` too where ``predicted`` is ``None``: no evidence is not a kept promise."""
