"""What somebody says of when a fleet is needed and on which terms its gpus can be had."""

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
