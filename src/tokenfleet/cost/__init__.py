"""Floor 2: money. What a fleet costs, how to buy it, and who of its tokens pays for what.

Promises: the lines of a bill add up to its total; a missing price stays missing. Must not choose a fleet.
"""

from tokenfleet.cost.bill import bill
from tokenfleet.cost.denominators import TaskCost, UnitCost, task_cost, unit_costs, units_of
from tokenfleet.cost.external import (
    HostOrBuy,
    TokenMix,
    TokenUsage,
    api_charge_usd,
    blended_usd_per_million_tokens,
    host_or_buy,
    price_of,
    usd_per_million_of_token_price,
)
from tokenfleet.cost.focus import FocusAccount, FocusRow, FocusVersion, focus_csv, focus_problems, focus_rows
from tokenfleet.cost.market import TYPICAL_OF_ON_DEMAND, Market, market
from tokenfleet.cost.owning import (
    OwnCost,
    OwnedPool,
    annuity_usd_per_year,
    break_even_hours,
    break_even_utilization_fraction,
    own_cost,
)
from tokenfleet.cost.purchase import Commitment, MixLine, PurchaseMix, Rent, break_even_hours_per_month, purchase_mix
from tokenfleet.cost.rounding import in_cents
from tokenfleet.cost.sharing import (
    Invoice,
    InvoiceLine,
    TokenCounts,
    invoice,
    name_of_nobody,
    reserved_peak,
    usage_by_key,
)
from tokenfleet.cost.sheet import USUAL_LINES, CostLine, CostSheet, cost_sheet, rerank_line
from tokenfleet.cost.steps import compute_bound_fraction, counter_weights, split_step
from tokenfleet.cost.supply import SupplyOption, compare_supply
from tokenfleet.cost.unit import usd_per_million
from tokenfleet.cost.work import RequestWork, request_work

__all__ = [
    "TYPICAL_OF_ON_DEMAND",
    "USUAL_LINES",
    "Commitment",
    "CostLine",
    "CostSheet",
    "FocusAccount",
    "FocusRow",
    "FocusVersion",
    "HostOrBuy",
    "Invoice",
    "InvoiceLine",
    "Market",
    "MixLine",
    "OwnCost",
    "OwnedPool",
    "PurchaseMix",
    "Rent",
    "RequestWork",
    "SupplyOption",
    "TaskCost",
    "TokenCounts",
    "TokenMix",
    "TokenUsage",
    "UnitCost",
    "annuity_usd_per_year",
    "api_charge_usd",
    "bill",
    "blended_usd_per_million_tokens",
    "break_even_hours",
    "break_even_hours_per_month",
    "break_even_utilization_fraction",
    "compare_supply",
    "compute_bound_fraction",
    "cost_sheet",
    "counter_weights",
    "focus_csv",
    "focus_problems",
    "focus_rows",
    "host_or_buy",
    "in_cents",
    "invoice",
    "market",
    "name_of_nobody",
    "own_cost",
    "price_of",
    "purchase_mix",
    "request_work",
    "rerank_line",
    "reserved_peak",
    "split_step",
    "task_cost",
    "unit_costs",
    "units_of",
    "usage_by_key",
    "usd_per_million",
    "usd_per_million_of_token_price",
]
