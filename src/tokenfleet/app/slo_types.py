"""What is promised, as strict types: to all requests, and to classes of them."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Final, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tokenfleet.app.quantities import Unreadable, parse_duration_s
from tokenfleet.app.scenario_words import Count, Duration, Fraction, problem, read_by
from tokenfleet.app.takes_types import ClockTime, TakesSpec
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.slo import Deadline, LatencyTarget, Metric, RateTarget, Slo, TrafficClass, clock

SLO_KEY: Final = re.compile(rf"({'|'.join(get_args(Metric))})_p(?!0+(?:\.0+)?$)(\d{{1,2}}(?:\.\d{{1,6}})?)")
"""Above p0 and below p100: no request is the slowest of none, or of endlessly many."""
MOST_CLASSES: Final = 30
"""As many as there are bits for, and one for the batch of a ladder."""


@dataclass(frozen=True, slots=True)
class _UnknownPromise:
    """Stands where the limit of a promise stood whose name nobody knows, so that every promise is checked."""

    key: str


def _latency_limit(value: object) -> float:
    if not isinstance(value, _UnknownPromise):
        return parse_duration_s(value)
    usual = [f"{metric}_p{quantile}" for metric in get_args(Metric) for quantile in ("50", "90", "95", "99", "99.9")]
    near = get_close_matches(value.key, ["error_rate", "rejection_rate", "done_by", "done_within", *usual], n=2)
    mend = f"nearest: {', '.join(near)}" if near else "write METRIC_pPERCENTILE; metrics: ttft, itl, tpot, e2e"
    raise Unreadable(f'unknown promise "{value.key}"', mend)


LatencyLimit = Annotated[float, read_by(_latency_limit)]
ClassName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")]


class PromiseSpec(BaseModel):
    """Limits on latency at any percentile, and what is promised beside them."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, defer_build=True)
    __pydantic_extra__: dict[str, LatencyLimit]

    rejection_rate: Fraction | None = None
    """Largest share of requests that may be turned away at the door; left out, they count as errors."""
    done_within: Duration | None = None
    """Every request is done so long after it arrives, such as ``4h``; all but the share that may fail."""
    done_by: ClockTime | None = None
    """Every request is done by the next time of this clock, such as ``"06:00"``."""
    cut_off: ClockTime | None = None
    """With ``done_by``: who arrives later is due on the following day."""

    @model_validator(mode="before")
    @classmethod
    def _keys_are_promises(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {
            key: limit if key in cls.model_fields or SLO_KEY.fullmatch(str(key)) else _UnknownPromise(str(key))
            for key, limit in value.items()
        }

    @model_validator(mode="after")
    def _cut_off_has_a_deadline(self) -> "PromiseSpec":
        if self.cut_off is not None and self.done_by is None:
            raise problem("cut_off without done_by", "say by when they must be done, such as done_by: 06:00")
        return self

    def latency_of(self, traffic_class: str | None) -> tuple[LatencyTarget, ...]:
        """The limits on latency, in the order written."""
        targets = []
        for key, limit_s in (self.__pydantic_extra__ or {}).items():
            found = SLO_KEY.fullmatch(key)
            if found is not None:
                metric = next(name for name in get_args(Metric) if name == found.group(1))
                quantile = round(float(found.group(2)) / 100.0, 12)
                targets.append(
                    LatencyTarget(metric=metric, quantile=quantile, limit_s=limit_s, traffic_class=traffic_class)
                )
        return tuple(targets)

    def deadlines_of(self, traffic_class: str | None, *, error_rate: float) -> tuple[Deadline, ...]:
        """When requests must be done; ``error_rate`` of them may fail."""
        quantile = round(1.0 - error_rate, 12)
        found = []
        if self.done_within is not None:
            found.append(Deadline(within_s=self.done_within, quantile=quantile, traffic_class=traffic_class))
        if self.done_by is not None:
            found.append(
                Deadline(at_s=self.done_by, cut_off_s=self.cut_off, quantile=quantile, traffic_class=traffic_class)
            )
        return tuple(found)


class ClassSpec(PromiseSpec):
    """Promises to some of the requests, such as ``ttft_p99`` or ``done_by``, beside those to all."""

    takes: TakesSpec
    """Which requests; one may be of several classes."""
    error_rate: Fraction | None = None
    """Largest share of these requests that may be refused or fail."""
    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    """Smaller is served first, with ``engine: {scheduling: priority}``, or on replicas of its own, with the router
    ``by_tier``; 0 for those that name none."""

    @model_validator(mode="after")
    def _promises_something(self) -> "ClassSpec":
        said = (self.rejection_rate, self.done_within, self.done_by, self.error_rate)
        if not self.__pydantic_extra__ and all(each is None for each in said):
            raise problem("promises nothing", "give at least one, such as ttft_p99: 500ms or done_by: 06:00")
        return self

    def rates_of(self, name: str) -> tuple[RateTarget, ...]:
        """Limits on how these requests end."""
        found = []
        if self.error_rate is not None:
            found.append(RateTarget(kind="error_rate", limit_fraction=self.error_rate, traffic_class=name))
        if self.rejection_rate is not None:
            found.append(RateTarget(kind="rejection_rate", limit_fraction=self.rejection_rate, traffic_class=name))
        return tuple(found)


class SloSpec(PromiseSpec):
    """Promises: ``ttft_p99``, ``itl_p99``, ``tpot_p50``, ``e2e_p95``... at any percentile, and what else must hold."""

    error_rate: Fraction = 0.001
    """Largest share of requests that may be refused or fail, such as ``0.1%``."""
    queue_limit: Annotated[Count, Field(ge=1)] | None = None
    """Most requests that may wait at one replica for their first token."""
    classes: Annotated[dict[ClassName, ClassSpec], Field(max_length=MOST_CLASSES)] = Field(default={})
    """Promises to classes of requests, by names of your own."""

    @model_validator(mode="after")
    def _bounds_some_time(self) -> "SloSpec":
        slo = self.targets()
        if not slo.latency and not slo.deadlines:
            raise problem("promises no latency", "give at least one, such as ttft_p99: 2s or itl_p99: 100ms")
        return self

    def targets(self) -> Slo:
        """The promises as the domain knows them, in the order written."""
        latency = [*self.latency_of(None)]
        deadlines = [*self.deadlines_of(None, error_rate=self.error_rate)]
        rates: list[RateTarget] = []
        for name, each in self.classes.items():
            allowed = self.error_rate if each.error_rate is None else each.error_rate
            latency += each.latency_of(name)
            deadlines += each.deadlines_of(name, error_rate=allowed)
            rates += each.rates_of(name)
        return Slo(
            latency=tuple(latency),
            error_rate_fraction=self.error_rate,
            rejection_rate_fraction=self.rejection_rate,
            queue_limit_count=self.queue_limit,
            class_rates=tuple(rates),
            deadlines=tuple(deadlines),
            classes=tuple(
                TrafficClass(name=name, takes=takes_in_words(each.takes)) for name, each in self.classes.items()
            ),
        )


def takes_in_words(takes: TakesSpec) -> str:
    """``tenants a, b; prompts over 8,000 tokens; 20 % at random``."""
    named = (("models", takes.models), ("labels", takes.labels), ("tenants", takes.tenants))
    said = [f"{what} {', '.join(names)}" for what, names in named if names is not None]
    lengths = (
        ("prompts up to", takes.input_up_to),
        ("prompts over", takes.input_over),
        ("answers up to", takes.output_up_to),
        ("answers over", takes.output_over),
    )
    said += [f"{what} {count:,} tokens" for what, count in lengths if count is not None]
    if takes.arrives_from is not None or takes.arrives_until is not None:
        said.append(f"arrivals {clock(takes.arrives_from or 0.0)} to {clock(takes.arrives_until or 0.0)}")
    if takes.share is not None:
        said.append(f"{takes.share * 100:g} % at random")
    return "; ".join(said) or "all"
