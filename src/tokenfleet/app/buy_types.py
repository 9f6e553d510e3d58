"""When the fleet is needed and on which terms GPUs can be had, as a strict type."""

from typing import Annotated

from pydantic import Field, model_validator

from tokenfleet.app.scenario_words import Count, Dollars, Fraction, GpuName, Strict, problem
from tokenfleet.domain.buying import Buying
from tokenfleet.domain.gpu import Term
from tokenfleet.domain.slo import DAY_S

_DAY_H, _WORKDAYS, _WEEKEND_DAYS = 24, 5, 2


class BuySpec(Strict):
    """How to buy the fleet if it follows the demand: the shape of a day, and the terms on offer."""

    day: Annotated[list[Fraction], Field(min_length=_DAY_H, max_length=_DAY_H)] | None = None
    """Demand in each of the 24 hours of a day over that of the busiest, such as ``[10%, 5%, ...]``; one of them is
    100 %. Left out, the trace shows it where it is a day or longer."""
    busy_hours: Annotated[Count, Field(ge=1, le=_DAY_H)] | None = None
    """Instead of ``day``: hours a day that are as busy as the busiest."""
    quiet: Fraction | None = None
    """Demand in the other hours, over that of the busiest; with ``busy_hours``."""
    weekend: Fraction = 1.0
    """Demand of Saturday and Sunday over that of the same hour on a workday; with ``day`` or ``busy_hours``."""
    obtainable: Annotated[Fraction, Field(ge=0.0)] = 1.0
    """Share of the on-demand GPU hours you want that you will get when you want them."""
    usd_per_missing_gpu_hour: Dollars | None = None
    """What an hour without a GPU that the demand needs costs you; needed where not all can be had."""
    interruptible: Fraction = 0.0
    """Share of the carrying replicas whose work may be interrupted. Spot never carries the rest, nor spare replicas."""
    spot_lost: Annotated[Fraction, Field(lt=1.0)] | None = None
    """Share of spot GPU hours whose work is lost to reclaims and done again; needed with ``interruptible``."""
    believed_days: Count | None = None
    """For how long you believe in this demand: a longer commitment is paid to its end. Left out, for every term."""
    spot: dict[GpuName, Dollars] = Field(default_factory=dict)
    """Your own price per GPU and hour on spot."""
    reserved_1y: dict[GpuName, Dollars] = Field(default_factory=dict)
    """Your own price per GPU and hour, reserved for one year; every hour is paid."""
    reserved_3y: dict[GpuName, Dollars] = Field(default_factory=dict)
    """Your own price per GPU and hour, reserved for three years; every hour is paid."""

    @model_validator(mode="after")
    def _one_shape(self) -> "BuySpec":
        if self.day is not None and (self.busy_hours is not None or self.quiet is not None):
            raise problem("has day and busy_hours", "give one of them")
        if (self.busy_hours is None) != (self.quiet is None):
            raise problem("busy_hours and quiet go together", "write busy_hours: 10 and quiet: 30%")
        if self.weekend < 1.0 and self.day is None and self.busy_hours is None:
            raise problem("weekend without the shape of a day", "give busy_hours and quiet, or day")
        if self.day is not None and max(self.day) < 1.0:
            raise problem(f"no hour of day is the busiest, the highest is {max(self.day):.0%}", "give one of them 100%")
        return self

    @model_validator(mode="after")
    def _what_is_missing_has_a_price(self) -> "BuySpec":
        if self.obtainable < 1.0 and self.usd_per_missing_gpu_hour is None:
            what = "not all GPUs can be had, and nobody says what one that is missing costs"
            raise problem(what, "give usd_per_missing_gpu_hour")
        if self.interruptible > 0.0 and self.spot_lost is None:
            raise problem("work may be interrupted, and nobody says how much is lost", "give spot_lost, such as 5%")
        return self

    def facts(self, provider: str | None) -> Buying:
        """As the planner reckons with it, on the terms of one provider or of the market."""
        terms: dict[Term, dict[str, float]] = {
            "spot": self.spot,
            "reserved_1y": self.reserved_1y,
            "reserved_3y": self.reserved_3y,
        }
        return Buying(
            hour_fraction=self._week(),
            provider=provider,
            obtainable_fraction=self.obtainable,
            shortage_usd_per_gpu_hour=self.usd_per_missing_gpu_hour,
            interruptible_fraction=self.interruptible,
            spot_lost_fraction=self.spot_lost or 0.0,
            believed_s=None if self.believed_days is None else self.believed_days * DAY_S,
            usd_per_gpu_hour={term: prices for term, prices in terms.items() if prices},
        )

    def _week(self) -> tuple[float, ...]:
        """The hours of a day, or of a week where its end differs; empty where nobody describes them."""
        day = self.day
        if self.busy_hours is not None and self.quiet is not None:
            day = [1.0] * self.busy_hours + [self.quiet] * (_DAY_H - self.busy_hours)
        if day is None:
            return ()
        if self.weekend == 1.0:
            return tuple(day)
        return tuple(day * _WORKDAYS) + tuple(hour * self.weekend for hour in day * _WEEKEND_DAYS)
