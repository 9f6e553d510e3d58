"""When a fleet is needed, on which terms its gpus can be had, and how to buy it then."""

from collections.abc import Mapping
from dataclasses import field

from tokenfleet.domain.gpu import Term
from tokenfleet.domain.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Buying:
    """Facts for the purchase mix that no trace tells."""

    hour_fraction: tuple[float, ...] = ()
    """Demand in each hour of a day or a week over that of the busiest hour, which is the one planned for; empty: as the
    trace shows it, where it shows a day."""
    provider: str | None = None
    """Whose terms count; ``None``: the market's."""
    obtainable_fraction: float = 1.0
    """Share of the wanted on-demand gpu-hours that can be had when they are wanted."""
    shortage_usd_per_gpu_hour: float | None = None
    """What an hour without a wanted gpu costs."""
    interruptible_fraction: float = 0.0
    """Share of the carrying replicas whose work may be interrupted, so that spot may carry it."""
    spot_lost_fraction: float = 0.0
    """Share of spot gpu-hours whose work is lost to reclaims."""
    believed_s: float | None = None
    """For how long the demand is believed; ``None``: for every term."""
    usd_per_gpu_hour: Mapping[Term, Mapping[str, float]] = field(default_factory=dict)
    """Somebody's own prices by term and gpu."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PurchaseLine:
    """One way of buying."""

    name: str
    """``reserved_1y``, ``on_demand``..."""
    mean_gpu_count: float
    usd_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TermPrice:
    """What a gpu-hour costs on one term."""

    term: Term
    gpu: str
    usd_per_gpu_hour: float
    """What was reckoned with."""
    low_usd_per_gpu_hour: float | None
    """Published prices; ``None`` of somebody's own."""
    high_usd_per_gpu_hour: float | None
    as_of: str
    """Date of the price; empty where nobody says."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """How to buy the fleet if it follows the demand hour by hour; the lines add up to the total."""

    hour_count: int
    """Hours that this rests on."""
    described: bool
    """They are those that somebody described, not those of the trace."""
    lines: tuple[PurchaseLine, ...]
    total_usd_per_hour: float
    all_on_demand_usd_per_hour: float
    """Every gpu rented in the hours it is needed."""
    committed_gpu_count: int
    commit_from_fraction: float | None
    """The quantile rule: a gpu is worth the cheapest commitment when it is needed for this share of the hours; ``None``
    without a price to commit at."""
    unknown_terms: tuple[str, ...]
    """Terms that nobody publishes a price for; of pools on gpus of several models ``reserved_1y of l4``."""
    terms: tuple[TermPrice, ...] = ()
    """Every term that was weighed, with its range and date."""
    dearer_terms: tuple[str, ...] = ()
    """Terms among them whose gpu-hour costs more than one on demand: taken only where GPUs that cannot be had on demand
    cost more yet (``usd_per_missing_gpu_hour``)."""
    spot_promised: tuple[str, ...] = ()
    """Latency clauses of requests that stand on spot: more of the demand has such a promise than the share of work that
    may be interrupted, as somebody said, leaves."""
