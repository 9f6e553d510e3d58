"""Cloud, own or hybrid: one demand bought in three ways, beside each other."""

import math
from collections.abc import Sequence

import numpy as np

from tokenfleet.cost.owning import break_even_utilization_fraction
from tokenfleet.cost.purchase import Commitment, Counts, PurchaseMix, Rent, purchase_mix
from tokenfleet.domain.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SupplyOption:
    """One fixed price (owned or reserved) against renting everything by the hour."""

    name: str
    fixed_usd_per_gpu_hour: float
    break_even_utilization_fraction: float
    """Busy share above which a fixed gpu is cheaper than renting; above 1 it never is."""
    all_rented_usd_per_hour: float
    fixed_at_peak_usd_per_hour: float
    """Fixed gpus for the stated quantile of demand, what exceeds it rented."""
    fixed_at_peak_gpu_count: int
    hybrid: PurchaseMix
    """The best mix of the fixed price and rent."""

    @property
    def best(self) -> str:
        """The cheapest of ``cloud``, ``own`` (or reserved) and ``hybrid``; the simpler one where they tie."""
        costs = {
            "cloud": self.all_rented_usd_per_hour,
            "own": self.fixed_at_peak_usd_per_hour,
            "hybrid": self.hybrid.total_usd_per_hour,
        }
        return min(costs, key=lambda name: round(costs[name], 9))


def compare_supply(
    demand_gpu_count: Sequence[int] | Counts,
    *,
    rent: Rent,
    fixed: Sequence[Commitment],
    peak_quantile_fraction: float = 0.99,
) -> tuple[SupplyOption, ...]:
    """Each fixed price against the rent, for one demand.

    Args:
        demand_gpu_count: gpus needed in each hour of a representative time, or forecast samples.
        rent: prices by the hour.
        fixed: owned pools (at their price per available gpu-hour) and reservations.
        peak_quantile_fraction: share of the hours that the fixed gpus alone must cover when all are fixed.

    Returns:
        One row per fixed price, in the order given.

    Raises:
        BadInput: as :func:`tokenfleet.cost.purchase_mix`.
    """
    demand = np.asarray(demand_gpu_count, dtype=np.int64)
    rows = []
    for option in fixed:
        hybrid = purchase_mix(demand, rent=rent, commitments=[option])
        peak = int(np.quantile(demand, peak_quantile_fraction, method="inverted_cdf"))
        overflow = float(np.mean(np.maximum(demand - peak, 0)))
        rows.append(
            SupplyOption(
                name=option.name,
                fixed_usd_per_gpu_hour=option.usd_per_gpu_hour,
                break_even_utilization_fraction=break_even_utilization_fraction(
                    option.usd_per_gpu_hour, rent.expected_usd_per_gpu_hour
                ),
                all_rented_usd_per_hour=hybrid.all_rented_usd_per_hour,
                fixed_at_peak_usd_per_hour=peak * option.usd_per_gpu_hour + overflow * rent.expected_usd_per_gpu_hour,
                fixed_at_peak_gpu_count=peak,
                hybrid=hybrid,
            )
        )
    return tuple(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMix:
    """Whole servers owned, and the hours above them rented."""

    server_count: int
    usd_per_hour: float
    """Of both, on average."""


def whole_servers(
    demand_gpu_count: Sequence[int] | Counts,
    *,
    gpus_per_server_count: int,
    usd_per_server_hour: float,
    rent_usd_per_gpu_hour: float,
    available_fraction: float = 1.0,
) -> ServerMix:
    """The cheapest number of servers to own, where nobody sells a part of one; of equals the fewest.

    Args:
        demand_gpu_count: gpus needed in each hour of a representative time.
        gpus_per_server_count: gpus of one.
        usd_per_server_hour: one server, busy or not.
        rent_usd_per_gpu_hour: of the hours that servers do not cover.
        available_fraction: share of the hours in which an owned gpu works.
    """
    demand = np.asarray(demand_gpu_count, dtype=np.float64)
    each = gpus_per_server_count * available_fraction
    most = math.ceil(float(demand.max(initial=0.0)) / each)
    costs = [
        owned * usd_per_server_hour + rent_usd_per_gpu_hour * float(np.maximum(demand - owned * each, 0.0).mean())
        for owned in range(most + 1)
    ]
    best = min(range(most + 1), key=lambda owned: round(costs[owned], 9))
    return ServerMix(server_count=best, usd_per_hour=costs[best])
