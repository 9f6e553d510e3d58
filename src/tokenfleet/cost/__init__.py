"""Floor 2: money. What a fleet costs, how to buy it, and who of its tokens pays for what.

Promises: the lines of a bill add up to its total; a missing price stays missing. Must not choose a fleet.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenfleet.cost.billing import Work, bill, span_of, together, work_span_s
    from tokenfleet.cost.counted import KINDS, Counted, bill_of_counters
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
    from tokenfleet.cost.market_price import TYPICAL_OF_ON_DEMAND, Market, market
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
        counted_usd_per_gpu_hour,
        purchase_mix,
    )
    from tokenfleet.cost.rounding import in_cents
    from tokenfleet.cost.sharing import (
        Invoice,
        InvoiceLine,
        Part,
        TokenCounts,
        invoice,
        name_of_nobody,
        reserved_peak,
        usage_by_key,
    )
    from tokenfleet.cost.sheet import USUAL_LINES, CostLine, CostSheet, cost_sheet, rerank_line
    from tokenfleet.cost.steps import compute_bound_fraction, counter_weights, split_step
    from tokenfleet.cost.supply import ServerMix, SupplyOption, compare_supply, whole_servers
    from tokenfleet.cost.unit import usd_per_million
    from tokenfleet.cost.work import RequestWork, TokenWork, request_work, token_work

_HOME = {
    "KINDS": "counted",
    "TYPICAL_OF_ON_DEMAND": "market_price",
    "USUAL_LINES": "sheet",
    "Commitment": "purchase",
    "CostLine": "sheet",
    "CostSheet": "sheet",
    "Counted": "counted",
    "FocusAccount": "focus",
    "FocusRow": "focus",
    "FocusVersion": "focus",
    "HostOrBuy": "external",
    "Invoice": "sharing",
    "InvoiceLine": "sharing",
    "Market": "market_price",
    "MixLine": "purchase",
    "OwnCost": "owning",
    "OwnedPool": "owning",
    "Part": "sharing",
    "PurchaseMix": "purchase",
    "Rent": "purchase",
    "RequestWork": "work",
    "ServerMix": "supply",
    "SupplyOption": "supply",
    "TaskCost": "denominators",
    "TokenCounts": "sharing",
    "TokenMix": "external",
    "TokenUsage": "external",
    "TokenWork": "work",
    "Work": "billing",
    "UnitCost": "denominators",
    "annuity_usd_per_year": "owning",
    "api_charge_usd": "external",
    "bill": "billing",
    "bill_of_counters": "counted",
    "blended_usd_per_million_tokens": "external",
    "break_even_hours": "owning",
    "break_even_hours_per_month": "purchase",
    "counted_usd_per_gpu_hour": "purchase",
    "break_even_utilization_fraction": "owning",
    "compare_supply": "supply",
    "compute_bound_fraction": "steps",
    "cost_sheet": "sheet",
    "counter_weights": "steps",
    "focus_csv": "focus",
    "focus_problems": "focus",
    "focus_rows": "focus",
    "host_or_buy": "external",
    "in_cents": "rounding",
    "invoice": "sharing",
    "market": "market_price",
    "name_of_nobody": "sharing",
    "own_cost": "owning",
    "price_of": "external",
    "purchase_mix": "purchase",
    "request_work": "work",
    "rerank_line": "sheet",
    "reserved_peak": "sharing",
    "split_step": "steps",
    "task_cost": "denominators",
    "span_of": "billing",
    "together": "billing",
    "token_work": "work",
    "unit_costs": "denominators",
    "units_of": "denominators",
    "usage_by_key": "sharing",
    "usd_per_million": "unit",
    "work_span_s": "billing",
    "usd_per_million_of_token_price": "external",
    "whole_servers": "supply",
}
"""What is loaded on first use: a bill needs no ownership, no export and no invoice."""

__all__ = [
    "KINDS",
    "TYPICAL_OF_ON_DEMAND",
    "USUAL_LINES",
    "Commitment",
    "CostLine",
    "CostSheet",
    "Counted",
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
    "Part",
    "PurchaseMix",
    "Rent",
    "RequestWork",
    "ServerMix",
    "SupplyOption",
    "TaskCost",
    "TokenCounts",
    "TokenMix",
    "TokenUsage",
    "TokenWork",
    "UnitCost",
    "Work",
    "annuity_usd_per_year",
    "api_charge_usd",
    "bill",
    "bill_of_counters",
    "blended_usd_per_million_tokens",
    "break_even_hours",
    "break_even_hours_per_month",
    "break_even_utilization_fraction",
    "compare_supply",
    "compute_bound_fraction",
    "cost_sheet",
    "counted_usd_per_gpu_hour",
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
    "span_of",
    "split_step",
    "task_cost",
    "together",
    "token_work",
    "unit_costs",
    "units_of",
    "usage_by_key",
    "usd_per_million",
    "usd_per_million_of_token_price",
    "whole_servers",
    "work_span_s",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    """Load a part when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module 'tokenfleet.cost' has no attribute '{name}'")
    return getattr(import_module(f"tokenfleet.cost.{_HOME[name]}"), name)
