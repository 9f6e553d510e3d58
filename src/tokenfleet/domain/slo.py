"""Promises, and how a run met them."""

from collections.abc import Collection
from dataclasses import replace
from typing import Literal

from tokenfleet.domain.records import dataclass

Metric = Literal["ttft", "itl", "tpot", "e2e"]
RateName = Literal["error_rate", "rejection_rate"]
DAY_S = 86_400.0


def clause_name(what: str, traffic_class: str | None) -> str:
    """The name of a clause, with the class it is about: ``ttft_p99``, ``ttft_p99 of premium``."""
    return what if traffic_class is None else f"{what} of {traffic_class}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTarget:
    """``metric`` at ``quantile`` must not exceed ``limit_s``; written ``ttft_p99: 2s``."""

    metric: Metric
    quantile: float
    limit_s: float
    traffic_class: str | None = None
    """Judged on the requests of this class alone; ``None``: on all."""

    @property
    def name(self) -> str:
        """As a scenario writes it: ``ttft_p99``, ``itl_p99.9``; with its class, ``ttft_p99 of premium``."""
        return clause_name(f"{self.metric}_p{self.quantile * 100:g}", self.traffic_class)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateTarget:
    """Largest share of requests that may end one way; written ``rejection_rate: 1%``."""

    kind: RateName
    limit_fraction: float
    traffic_class: str | None = None

    @property
    def name(self) -> str:
        """``rejection_rate``, ``error_rate of premium``."""
        return clause_name(self.kind, self.traffic_class)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """When requests must be done: so long after they arrive, or at the next moment of a daily clock.

    Judged is the share of its time that a request takes, at the quantile beyond which requests may fail.
    """

    within_s: float | None = None
    """From the arrival; ``None``: by the clock."""
    at_s: float | None = None
    """Time of day; ``None``: ``within_s`` says when."""
    cut_off_s: float | None = None
    """Time of day from which on arrivals are due on the following day; ``None``: at ``at_s`` itself."""
    quantile: float = 1.0
    """The share of requests that must be done in time: all but those that may fail."""
    traffic_class: str | None = None
    stretch_factor: float = 1.0
    """Times the time there is that a request may take: above 1 where a promise is relaxed."""

    @property
    def name(self) -> str:
        """``done_within_4h``, ``done_within_5s``, ``done_by_06:00 of nightly``."""
        if self.at_s is not None:
            return clause_name(f"done_by_{clock(self.at_s)}", self.traffic_class)
        return clause_name(f"done_within_{_span(self.within_s or 0.0)}", self.traffic_class)


def _span(time_s: float) -> str:
    """``4h``, ``5min``, ``90s``: in the largest unit that it is a whole number of, else in seconds."""
    for unit, unit_s in (("h", 3600.0), ("min", 60.0)):
        if time_s and time_s % unit_s == 0.0:
            return f"{time_s / unit_s:g}{unit}"
    return f"{time_s:g}s"


def clock(time_of_day_s: float) -> str:
    """``06:00``."""
    minutes = round(time_of_day_s / 60.0)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficClass:
    """Some of the requests, to which promises of their own are made."""

    name: str
    takes: str
    """Which ones, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """All promises of one service."""

    latency: tuple[LatencyTarget, ...]
    error_rate_fraction: float
    """Largest share of requests that may be refused or fail; refusals count apart where they have a limit of their
    own."""
    rejection_rate_fraction: float | None = None
    """Largest share of requests that may be turned away at the door; ``None``: they count as errors."""
    queue_limit_count: int | None = None
    """Most requests that may wait at one replica for their first token."""
    class_rates: tuple[RateTarget, ...] = ()
    """Limits of single classes."""
    deadlines: tuple[Deadline, ...] = ()
    classes: tuple[TrafficClass, ...] = ()
    """Those that clauses name."""

    @property
    def gaps_apart(self) -> bool:
        """Whether the gaps of a class are promised, so that a replay must count them class by class."""
        return any(target.metric == "itl" and target.traffic_class is not None for target in self.latency)

    def gaps_apart_in(self, *, has_lane: bool) -> bool:
        """The same where batch may have a lane: then a promise on gaps is about those of the others."""
        return self.gaps_apart or (has_lane and any(target.metric == "itl" for target in self.latency))

    @property
    def rates(self) -> tuple[RateTarget, ...]:
        """All limits on how requests end, that on errors of all first."""
        limits: list[RateTarget] = [RateTarget(kind="error_rate", limit_fraction=self.error_rate_fraction)]
        if self.rejection_rate_fraction is not None:
            limits.append(RateTarget(kind="rejection_rate", limit_fraction=self.rejection_rate_fraction))
        return (*limits, *self.class_rates)

    def to(self, present: Collection[str]) -> "Slo":
        """What is promised where nobody is of another class than these."""

        def meant(traffic_class: str | None) -> bool:
            return traffic_class is None or traffic_class in present

        return replace(
            self,
            latency=tuple(each for each in self.latency if meant(each.traffic_class)),
            class_rates=tuple(each for each in self.class_rates if meant(each.traffic_class)),
            deadlines=tuple(each for each in self.deadlines if meant(each.traffic_class)),
            classes=tuple(each for each in self.classes if each.name in present),
        )

    def counts_rejections(self, traffic_class: str | None) -> bool:
        """Whether refusals of a class have a limit of their own, so that they are no errors."""
        return any(rate.kind == "rejection_rate" and rate.traffic_class == traffic_class for rate in self.rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class SloResult:
    """One promise against what a run did."""

    name: str
    unit: str
    """``s``, ``fraction`` or ``count``."""
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
    traffic_class: str | None = None
    """Whose requests; ``None``: all."""

    @property
    def late_at_worst(self) -> bool:
        """Whether the slow end of the range breaks it; an end without a value is one where too few had an answer."""
        if self.predicted_high is None:
            return self.predicted_low is not None
        return self.predicted_high > self.promised

    @property
    def says_nothing(self) -> bool:
        """Nobody of its class is in the stretch that was judged."""
        return not self.sample_count and self.traffic_class is not None
