"""What owning gpus costs, and how busy they must be before owning beats renting."""

import math
from dataclasses import fields

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.records import dataclass

_HOURS_PER_YEAR = 8760.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedPool:
    """One purchase of gpu servers and what keeps them running. Money in US dollars, shares 0 to 1."""

    gpu_count: int
    capital_usd: float
    """Servers, network, storage, spares, installation."""
    life_years: float
    residual_fraction: float = 0.0
    """Share of the capital that a sale at the end of the life brings."""
    cost_of_capital_fraction: float = 0.0
    """What money costs in a year."""
    average_power_kw: float = 0.0
    """Power of the equipment on average, without cooling."""
    pue: float = 1.0
    """Power of the building over power of the equipment, >= 1."""
    tariff_usd_per_kwh: float = 0.0
    """0 where colocation includes power: do not pay for it twice."""
    colocation_kw: float = 0.0
    colocation_usd_per_kw_month: float = 0.0
    network_usd_per_year: float = 0.0
    staff_usd_per_year: float = 0.0
    support_fraction_per_year: float = 0.0
    """Maintenance contracts, as a share of the capital."""
    software_usd_per_year: float = 0.0
    available_fraction: float = 1.0
    """Share of the hours in which a gpu works: not broken, not in maintenance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCost:
    """A year of an owned pool; the lines add up to the total."""

    capital_usd_per_year: float
    power_usd_per_year: float
    colocation_usd_per_year: float
    network_usd_per_year: float
    staff_usd_per_year: float
    support_usd_per_year: float
    software_usd_per_year: float
    power_kwh_per_year: float
    available_gpu_hours_per_year: float

    @property
    def lines(self) -> dict[str, float]:
        """Each line by name, in dollars a year."""
        names = [field.name for field in fields(self) if field.name.endswith("_usd_per_year")]
        return {name.removesuffix("_usd_per_year"): getattr(self, name) for name in names}

    @property
    def total_usd_per_year(self) -> float:
        """The whole year."""
        return math.fsum(self.lines.values())

    @property
    def usd_per_available_gpu_hour(self) -> float:
        """Price of an hour in which the gpu works, busy or not: what to compare with a reservation."""
        return self.total_usd_per_year / self.available_gpu_hours_per_year

    def usd_per_useful_gpu_hour(self, busy_fraction: float) -> float | None:
        """Price of an hour of work at a utilisation of 0 to 1: what to compare with rent by the hour of use.

        ``None`` when nothing is done: then no price per useful hour exists.
        """
        if not 0.0 <= busy_fraction <= 1.0:
            raise ValueError(f"busy fraction {busy_fraction}")
        return self.usd_per_available_gpu_hour / busy_fraction if busy_fraction else None


def annuity_usd_per_year(
    capital_usd: float, *, life_years: float, residual_usd: float = 0.0, cost_of_capital_fraction: float = 0.0
) -> float:
    """Equal yearly payments that buy a thing now and sell what is left at the end of its life.

    ``(C - R / (1 + w)^n) * w / (1 - (1 + w)^-n)``, and ``(C - R) / n`` where money costs nothing.

    Args:
        capital_usd: C, paid at the start.
        life_years: n, > 0.
        residual_usd: R, received after n years.
        cost_of_capital_fraction: w, what money costs in a year, >= 0.

    Raises:
        ValueError: a life or a cost of capital outside its range.
    """
    if life_years <= 0.0 or cost_of_capital_fraction < 0.0:
        raise ValueError(f"life of {life_years} years, cost of capital {cost_of_capital_fraction}")
    if cost_of_capital_fraction == 0.0:
        return (capital_usd - residual_usd) / life_years
    growth = math.log1p(cost_of_capital_fraction) * life_years
    # expm1 keeps the digits that 1 - (1 + w)^-n loses for a small w.
    return (capital_usd - residual_usd * math.exp(-growth)) * cost_of_capital_fraction / -math.expm1(-growth)


def own_cost(pool: OwnedPool) -> OwnCost:
    """A year of the pool, line by line.

    Power is ``average kW * PUE * 8760 h * tariff``, colocation ``kW * rate * 12``, support a share of the capital.

    Raises:
        BadInput: numbers outside their ranges, all of them at once.
    """
    problems = _problems(pool)
    if problems:
        raise BadInput(problems)
    energy_kwh = pool.average_power_kw * pool.pue * _HOURS_PER_YEAR
    return OwnCost(
        capital_usd_per_year=annuity_usd_per_year(
            pool.capital_usd,
            life_years=pool.life_years,
            residual_usd=pool.residual_fraction * pool.capital_usd,
            cost_of_capital_fraction=pool.cost_of_capital_fraction,
        ),
        power_usd_per_year=energy_kwh * pool.tariff_usd_per_kwh,
        colocation_usd_per_year=pool.colocation_kw * pool.colocation_usd_per_kw_month * 12.0,
        network_usd_per_year=pool.network_usd_per_year,
        staff_usd_per_year=pool.staff_usd_per_year,
        support_usd_per_year=pool.support_fraction_per_year * pool.capital_usd,
        software_usd_per_year=pool.software_usd_per_year,
        power_kwh_per_year=energy_kwh,
        available_gpu_hours_per_year=pool.gpu_count * _HOURS_PER_YEAR * pool.available_fraction,
    )


def break_even_utilization_fraction(own_usd_per_available_gpu_hour: float, rent_usd_per_gpu_hour: float) -> float:
    """How busy owned gpus must be before they cost less than renting the busy hours: ``own / rent``.

    Above 1 owning never wins. A reservation is paid for idle hours too, so against one compare the two prices
    themselves, not this share.

    Raises:
        ValueError: a rent of 0 or less.
    """
    if rent_usd_per_gpu_hour <= 0.0:
        raise ValueError(f"rent of {rent_usd_per_gpu_hour} dollars")
    return own_usd_per_available_gpu_hour / rent_usd_per_gpu_hour


def break_even_hours(capital_usd: float, own_usd_per_hour: float, rent_usd_per_hour: float) -> float | None:
    """Hours of use after which a purchase has paid for itself: ``capital / (rent - running cost)``.

    ``None`` when renting costs no more than running what one owns: then a purchase never pays.
    """
    saved = rent_usd_per_hour - own_usd_per_hour
    return capital_usd / saved if saved > 0.0 else None


def _problems(pool: OwnedPool) -> list[Problem]:
    shares = ("residual_fraction", "cost_of_capital_fraction", "support_fraction_per_year", "available_fraction")
    problems = [
        Problem(name, f"{getattr(pool, name):g}", "give a share, 0 to 1")
        for name in shares
        if not 0.0 <= getattr(pool, name) <= 1.0
    ]
    problems += [
        Problem(name, f"{getattr(pool, name):g}", "give a number of 0 or more")
        for name in (field.name for field in fields(pool))
        if name not in shares and not 0 <= getattr(pool, name) < math.inf
    ]
    if pool.gpu_count < 1 or pool.life_years <= 0.0 or pool.available_fraction <= 0.0:
        problems.append(
            Problem("gpu_count, life_years, available_fraction", "0", "a pool has gpus that work for some time")
        )
    if pool.pue < 1.0:
        problems.append(
            Problem("pue", f"{pool.pue:g}", "a building takes at least the power of its equipment: 1 or more")
        )
    return problems
