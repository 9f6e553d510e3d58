"""The fleet of a plan beside other ways to get the same work done, and what one unit of that work costs."""

from tokenfleet.domain.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One way: the plan's own rent, owning, a mix of both, an external API."""

    name: str
    """``rented``, ``owned``, ``hybrid``, ``api PROVIDER MODEL``."""
    usd_per_month: float | None
    """``None`` where a price it needs is unknown."""
    break_even_utilization_fraction: float | None
    """Owned: how busy its gpus must be to cost less than renting busy hours. API: the share of what the fleet sustains
    at which hosting costs the same; above 1 hosting never wins. ``None`` where there is no such share."""
    break_even_tokens_per_month: float | None
    """API: tokens of a month at which both cost the same."""
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCost:
    """The whole bill, headroom, idle and spare included, over one denominator."""

    name: str
    """``per successful task``, ``per user and month``."""
    cost_usd: float
    formula: str
    """With its numbers, for a person."""
    busy_usd: float | None = None
    """The same of the time with work alone: what one more would cost while there is room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLine:
    """One thing that a service pays for in a month."""

    name: str
    """``gpus``, ``storage``, ``engineers``..."""
    usd_per_month: float | None
    """In whole cents where the total is known; ``None``: nobody knows its price."""
    share_fraction: float | None
    """Of the total; ``None`` without one."""
    stays_with_an_api: bool
    """It is paid whoever generates the tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A month of the fleet and of everything beside it; the lines are the total, to the cent."""

    lines: tuple[ServiceLine, ...]
    total_usd_per_month: float | None
    """``None`` while a price is unknown: a sum with a hole in it is no total."""
    known_usd_per_month: float
    """The lines whose price is known."""
    unknown: tuple[str, ...]
    """Lines whose price is not known."""
    unsaid: tuple[str, ...]
    """What a service usually pays for, and nobody mentioned."""
    usd_per_request: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternatives:
    """All of them. A month has 730 hours."""

    ways: tuple[Alternative, ...]
    """The plan's own first."""
    units: tuple[UnitCost, ...]
    service: Service | None = None
    """``None`` where nobody said what stands beside the fleet."""
