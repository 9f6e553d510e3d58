"""How to buy: how many gpus to commit to, to rent by the hour, and to take from spot.

A committed gpu (reserved or owned) costs the same every hour, used or not. So the k-th one is worth committing to
exactly when the rent it saves is worth more than its price: for rent at one price that is the quantile rule

    commit to the largest k with P(demand >= k) >= fixed price / rent.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.records import dataclass

Counts = npt.NDArray[np.int64]

HOURS_PER_MONTH = 730.0
_HOURS_PER_YEAR = 8760.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Commitment:
    """Gpus paid for every hour of a term, used or not."""

    name: str
    usd_per_gpu_hour: float
    term_h: float = _HOURS_PER_YEAR
    most_gpu_count: int | None = None
    """How many can be had on these terms; ``None`` is as many as wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rent:
    """What a gpu costs by the hour, and whether it can be had when it is needed."""

    on_demand_usd_per_gpu_hour: float
    obtainable_fraction: float = 1.0
    """Share of the wanted on-demand gpu-hours that the provider can give."""
    shortage_usd_per_gpu_hour: float | None = None
    """What an hour without a wanted gpu costs the business; needed where ``obtainable_fraction`` is below 1."""
    spot_usd_per_gpu_hour: float | None = None
    spot_lost_fraction: float = 0.0
    """Share of spot gpu-hours whose work is lost to reclaims and restarts, 0 to below 1."""

    @property
    def expected_usd_per_gpu_hour(self) -> float:
        """An hour of on-demand need: rented where it can be had, a shortage where not."""
        short = 1.0 - self.obtainable_fraction
        penalty = short * self.shortage_usd_per_gpu_hour if self.shortage_usd_per_gpu_hour is not None else 0.0
        return self.obtainable_fraction * self.on_demand_usd_per_gpu_hour + penalty

    @property
    def interruptible_usd_per_gpu_hour(self) -> float:
        """An hour of work that may be interrupted: on spot where that is cheaper, its lost work paid for twice."""
        if self.spot_usd_per_gpu_hour is None:
            return self.expected_usd_per_gpu_hour
        return min(self.spot_usd_per_gpu_hour / (1.0 - self.spot_lost_fraction), self.expected_usd_per_gpu_hour)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixLine:
    """One way of buying in a mix: how many gpus on average, and what that costs."""

    name: str
    mean_gpu_count: float
    usd_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PurchaseMix:
    """The cheapest way to cover a demand, per hour on average; the lines add up to the total."""

    lines: tuple[MixLine, ...]
    committed_gpu_count: int
    committed_used_fraction: float | None
    """Share of the committed gpu-hours that have work; ``None`` when nothing is committed."""
    rented_fraction: float
    """Share of the gpu-hours of demand that are not on committed gpus."""
    all_rented_usd_per_hour: float

    @property
    def total_usd_per_hour(self) -> float:
        """What an average hour costs."""
        return math.fsum(line.usd_per_hour for line in self.lines)

    def usd_per_hour(self, name: str) -> float:
        """The line of that name; 0 when the mix has none."""
        return math.fsum(line.usd_per_hour for line in self.lines if line.name == name)


def break_even_hours_per_month(fixed_usd_per_gpu_hour: float, rent_usd_per_gpu_hour: float) -> float | None:
    """Hours of use a month above which a committed gpu is cheaper than renting: ``fixed / rent * 730``.

    Args:
        fixed_usd_per_gpu_hour: price of the commitment for every hour, >= 0.
        rent_usd_per_gpu_hour: price of an hour of use, > 0.

    Returns:
        Hours in 0..730, or ``None`` when the commitment is dearer even if used all the time.
    """
    hours = fixed_usd_per_gpu_hour / rent_usd_per_gpu_hour * HOURS_PER_MONTH
    return hours if hours <= HOURS_PER_MONTH else None


def purchase_mix(
    critical_gpu_count: Sequence[int] | Counts,
    *,
    rent: Rent,
    commitments: Sequence[Commitment] = (),
    interruptible_gpu_count: Sequence[int] | Counts | None = None,
    horizon_h: float | None = None,
    step_gpu_count: int = 1,
) -> PurchaseMix:
    """The cheapest mix of commitments, on-demand rent and spot for a demand, hour by hour.

    Critical work (online traffic with a promise) runs on committed gpus, then on demand, never on spot. Work that may
    be interrupted takes what committed gpus are free, then the cheaper of spot and on demand. The k-th committed gpu
    therefore saves ``rent * P(critical >= k) + interruptible rent * (P(all >= k) - P(critical >= k))`` an hour, which
    falls with k, so commitments are added, cheapest first, while they save more than they cost. With critical work
    alone this is the quantile rule.

    Args:
        critical_gpu_count: gpus that critical work needs in each hour of a representative time, or forecast samples.
        rent: prices by the hour.
        commitments: what can be committed to.
        interruptible_gpu_count: gpus that other work needs in the same hours.
        horizon_h: hours for which the demand is believed. A longer commitment is paid to its end, so its price counts
            ``term / horizon`` times. ``None``: believed for every term.
        step_gpu_count: gpus of one replica; demand is met in whole replicas.

    Raises:
        BadInput: no demand, lengths that differ, negative numbers, shares outside their range, or a shortage without
            a price.
    """
    critical = np.asarray(critical_gpu_count, dtype=np.int64)
    other = (
        np.zeros_like(critical) if interruptible_gpu_count is None else np.asarray(interruptible_gpu_count, np.int64)
    )
    _check(critical, other, rent, commitments, horizon_h, step_gpu_count)
    critical = _whole_steps(critical, step_gpu_count)
    everything = critical + _whole_steps(other, step_gpu_count)
    chosen = _commit(critical, everything, rent, commitments, horizon_h, step_gpu_count)
    return _mix(critical, everything, rent, chosen)


def _whole_steps(gpus: Counts, step: int) -> Counts:
    return -(-gpus // step) * step


def _commit(
    critical: Counts,
    everything: Counts,
    rent: Rent,
    commitments: Sequence[Commitment],
    horizon_h: float | None,
    step: int,
) -> list[tuple[str, int, float]]:
    """(name, gpus, counted price) of each commitment taken, cheapest first."""
    offers = sorted((counted_usd_per_gpu_hour(each, horizon_h), each.name, each.most_gpu_count) for each in commitments)
    taken: list[tuple[str, int, float]] = []
    held = 0
    for price, name, most in offers:
        room = math.inf if most is None else most // step * step
        gpus = 0
        # The saving of one more replica is constant over its gpus: demand comes in whole steps.
        while gpus + step <= room and _saving(held + step, critical, everything, rent) > price:
            gpus += step
            held += step
        if gpus:
            taken.append((name, gpus, price))
    return taken


def counted_usd_per_gpu_hour(commitment: Commitment, horizon_h: float | None) -> float:
    """What a commitment costs in each hour in which it is of use: a term longer than the demand is paid to its end.

    A shorter one need not be renewed when the demand is believed for part of another term: the rest can be rented.
    """
    if horizon_h is None:
        return commitment.usd_per_gpu_hour
    return commitment.usd_per_gpu_hour * max(1.0, commitment.term_h / horizon_h)


def _saving(gpus: int, critical: Counts, everything: Counts, rent: Rent) -> float:
    """Dollars an hour that the gpu number ``gpus`` saves when the ones before it are there."""
    online = float(np.mean(critical >= gpus))
    busy = float(np.mean(everything >= gpus))
    return rent.expected_usd_per_gpu_hour * online + rent.interruptible_usd_per_gpu_hour * (busy - online)


def _mix(critical: Counts, everything: Counts, rent: Rent, chosen: list[tuple[str, int, float]]) -> PurchaseMix:
    held = sum(gpus for _, gpus, _ in chosen)
    online = float(np.mean(np.maximum(critical - held, 0)))
    overflow = float(np.mean(np.maximum(everything - held, 0)))
    interruptible = overflow - online
    on_spot = (
        interruptible
        if rent.spot_usd_per_gpu_hour is not None
        and rent.interruptible_usd_per_gpu_hour < rent.expected_usd_per_gpu_hour
        else 0.0
    )
    wanted = online + interruptible - on_spot
    got = wanted * rent.obtainable_fraction
    lines = [MixLine(name=name, mean_gpu_count=gpus, usd_per_hour=gpus * price) for name, gpus, price in chosen]
    lines.append(
        MixLine(name="on_demand", mean_gpu_count=got, usd_per_hour=got * rent.on_demand_usd_per_gpu_hour),
    )
    if on_spot:
        paid = on_spot * rent.interruptible_usd_per_gpu_hour
        lines.append(MixLine(name="spot", mean_gpu_count=on_spot / (1.0 - rent.spot_lost_fraction), usd_per_hour=paid))
    if rent.shortage_usd_per_gpu_hour is not None and got < wanted:
        short = wanted - got
        lines.append(
            MixLine(name="shortage", mean_gpu_count=short, usd_per_hour=short * rent.shortage_usd_per_gpu_hour)
        )
    mean_online, mean_all = float(np.mean(critical)), float(np.mean(everything))
    return PurchaseMix(
        lines=tuple(lines),
        committed_gpu_count=held,
        committed_used_fraction=(mean_all - overflow) / held if held else None,
        rented_fraction=overflow / mean_all if mean_all else 0.0,
        all_rented_usd_per_hour=mean_online * rent.expected_usd_per_gpu_hour
        + (mean_all - mean_online) * rent.interruptible_usd_per_gpu_hour,
    )


def _check(
    critical: Counts,
    other: Counts,
    rent: Rent,
    commitments: Sequence[Commitment],
    horizon_h: float | None,
    step: int,
) -> None:
    problems = [*_demand_problems(critical, other, step), *_rent_problems(rent)]
    problems += [
        Problem(f"commitments.{each.name}", "a price, limit or term that cannot be", "give numbers of 0 or more")
        for each in commitments
        if not 0.0 <= each.usd_per_gpu_hour < math.inf or not each.term_h > 0.0 or (each.most_gpu_count or 0) < 0
    ]
    if horizon_h is not None and not horizon_h > 0.0:
        problems.append(Problem("horizon_h", f"{horizon_h:g} hours", "give the hours for which the demand is believed"))
    if problems:
        raise BadInput(problems)


def _demand_problems(critical: Counts, other: Counts, step: int) -> list[Problem]:
    problems = []
    if critical.size == 0:
        problems.append(Problem("critical_gpu_count", "no demand given", "give the gpus needed in at least one hour"))
    if critical.shape != other.shape:
        problems.append(
            Problem("interruptible_gpu_count", f"{other.size} hours beside {critical.size}", "give the same hours")
        )
    if (critical.size and critical.min() < 0) or (other.size and other.min() < 0):
        problems.append(Problem("demand", "fewer than 0 gpus in some hour", "give counts of 0 or more"))
    if step < 1:
        problems.append(Problem("step_gpu_count", f"{step} gpus", "a replica has at least 1"))
    return problems


def _rent_problems(rent: Rent) -> list[Problem]:
    problems = []
    prices = (rent.on_demand_usd_per_gpu_hour, rent.spot_usd_per_gpu_hour, rent.shortage_usd_per_gpu_hour)
    if any(price is not None and not 0.0 <= price < math.inf for price in prices):
        problems.append(Problem("rent", "a price that is negative or no number", "give prices of 0 or more"))
    if not 0.0 <= rent.obtainable_fraction <= 1.0:
        problems.append(Problem("rent.obtainable_fraction", f"{rent.obtainable_fraction:g}", "give a share, 0 to 1"))
    elif rent.obtainable_fraction < 1.0 and rent.shortage_usd_per_gpu_hour is None:
        problems.append(
            Problem(
                "rent.shortage_usd_per_gpu_hour",
                "unknown, while not all on-demand gpus can be had",
                "say what an hour without a needed gpu costs",
            )
        )
    if not 0.0 <= rent.spot_lost_fraction < 1.0:
        problems.append(Problem("rent.spot_lost_fraction", f"{rent.spot_lost_fraction:g}", "give a share below 1"))
    return problems
