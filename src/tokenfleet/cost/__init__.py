"""Floor 2: money. What a fleet costs, how to buy it, and who of its tokens pays for what.

Promises: the lines of a bill add up to its total; a missing price stays missing. Must not choose a fleet.
"""

from tokenfleet.cost.bill import bill
from tokenfleet.cost.owning import (
    OwnCost,
    OwnedPool,
    annuity_usd_per_year,
    break_even_hours,
    break_even_utilization_fraction,
    own_cost,
)
from tokenfleet.cost.purchase import (
    Commitment,
    MixLine,
    PurchaseMix,
    Rent,
    break_even_hours_per_month,
    purchase_mix,
)
from tokenfleet.cost.supply import SupplyOption, compare_supply
from tokenfleet.cost.unit import usd_per_million

__all__ = [
    "Commitment",
    "MixLine",
    "OwnCost",
    "OwnedPool",
    "PurchaseMix",
    "Rent",
    "SupplyOption",
    "annuity_usd_per_year",
    "bill",
    "break_even_hours",
    "break_even_hours_per_month",
    "break_even_utilization_fraction",
    "compare_supply",
    "own_cost",
    "purchase_mix",
    "usd_per_million",
]
