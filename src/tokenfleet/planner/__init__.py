"""Floor 4: the search for the cheapest fleet that keeps the promise, with a replica gone.

Promises: replay decides, formulas only rank; infeasible is an answer with typed reasons. Must not read files or
talk to people.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenfleet.planner.answer import Cheapest, cheapest
    from tokenfleet.planner.assumed import FEW_REQUESTS
    from tokenfleet.planner.bursting import Bounded, Burst, bursts, bursts_of_pools
    from tokenfleet.planner.buying import described_gpus
    from tokenfleet.planner.counting import smallest_enough
    from tokenfleet.planner.document import plan_document, why_it_lost
    from tokenfleet.planner.drilling import DRILLS, DrillPlan, drills
    from tokenfleet.planner.early import Hopeless, Look
    from tokenfleet.planner.equal_gpus import EqualGpus, at_equal_gpus
    from tokenfleet.planner.failover import room_for_failover, what_holds_failover
    from tokenfleet.planner.letting_go import LetGo
    from tokenfleet.planner.money import gpus_by_slot
    from tokenfleet.planner.named import NamedPart, missed_by_named, plan_of_named, system_of_named, without_pools
    from tokenfleet.planner.packing import PackedNode, Packing, Pool, Quota, Shelf, ZoneLoss, pack, pack_all
    from tokenfleet.planner.packing_choice import Option, nodes_usd_per_hour, pack_together, shelves_of
    from tokenfleet.planner.packing_conflict import Conflict, TooFewGpus, conflict
    from tokenfleet.planner.pool_counts import cheapest_counts, least_count, plenty_of
    from tokenfleet.planner.pooled import plan
    from tokenfleet.planner.pools_drilling import DrilledPool, drills_of_pools
    from tokenfleet.planner.pools_spike import PoolNeeds, PoolsSpike, spike_of_pools
    from tokenfleet.planner.pools_tiering import PoolTiers, tiers_of_pools, tiers_of_system
    from tokenfleet.planner.priced import PricedPools, priced_pools
    from tokenfleet.planner.progress import PlanProgress, Progress
    from tokenfleet.planner.quotes import quote
    from tokenfleet.planner.recalling import Recall, anew
    from tokenfleet.planner.redundancy import (
        more_left,
        spare_replicas,
        spare_surviving,
        too_few_zones,
        zones_without_replicas,
    )
    from tokenfleet.planner.rungs import BATCH, RungRide
    from tokenfleet.planner.spike import Endured, Event, KnownSpike, TokenBudget, known_spike
    from tokenfleet.planner.splits import question_to, split_trials
    from tokenfleet.planner.spread import Pending, Replay, Spread, recall_of, unkept
    from tokenfleet.planner.systems import System, in_place, pools_of, requests_of_pool, system_of
    from tokenfleet.planner.tiering import TierOption, tiers
    from tokenfleet.planner.trading import balanced, excess_of, sizes_between
    from tokenfleet.planner.utilization import Filled, filled
    from tokenfleet.planner.verdict import UNSEEN, Asked, Latencies, Verdict, Verdicts
    from tokenfleet.planner.warming import FirstMinute, HotPrefix, Warmed

_HOME = {
    "Asked": "verdict",
    "BATCH": "rungs",
    "Bounded": "bursting",
    "Burst": "bursting",
    "Cheapest": "answer",
    "Conflict": "packing_conflict",
    "DRILLS": "drilling",
    "DrillPlan": "drilling",
    "DrilledPool": "pools_drilling",
    "Endured": "spike",
    "EqualGpus": "equal_gpus",
    "Event": "spike",
    "FEW_REQUESTS": "assumed",
    "Filled": "utilization",
    "FirstMinute": "warming",
    "Hopeless": "early",
    "HotPrefix": "warming",
    "KnownSpike": "spike",
    "Latencies": "verdict",
    "LetGo": "letting_go",
    "Look": "early",
    "NamedPart": "named",
    "Option": "packing_choice",
    "PackedNode": "packing",
    "Packing": "packing",
    "Pending": "spread",
    "PlanProgress": "progress",
    "Pool": "packing",
    "PoolNeeds": "pools_spike",
    "PoolTiers": "pools_tiering",
    "PoolsSpike": "pools_spike",
    "PricedPools": "priced",
    "Progress": "progress",
    "Quota": "packing",
    "Recall": "recalling",
    "Replay": "spread",
    "RungRide": "rungs",
    "Shelf": "packing",
    "Spread": "spread",
    "System": "systems",
    "TierOption": "tiering",
    "TokenBudget": "spike",
    "TooFewGpus": "packing_conflict",
    "UNSEEN": "verdict",
    "Verdict": "verdict",
    "Verdicts": "verdict",
    "Warmed": "warming",
    "ZoneLoss": "packing",
    "anew": "recalling",
    "at_equal_gpus": "equal_gpus",
    "balanced": "trading",
    "bursts": "bursting",
    "bursts_of_pools": "bursting",
    "cheapest": "answer",
    "cheapest_counts": "pool_counts",
    "conflict": "packing_conflict",
    "described_gpus": "buying",
    "drills": "drilling",
    "drills_of_pools": "pools_drilling",
    "excess_of": "trading",
    "filled": "utilization",
    "gpus_by_slot": "money",
    "in_place": "systems",
    "known_spike": "spike",
    "least_count": "pool_counts",
    "missed_by_named": "named",
    "more_left": "redundancy",
    "nodes_usd_per_hour": "packing_choice",
    "pack": "packing",
    "pack_all": "packing",
    "pack_together": "packing_choice",
    "plan": "pooled",
    "plan_document": "document",
    "plan_of_named": "named",
    "plenty_of": "pool_counts",
    "pools_of": "systems",
    "priced_pools": "priced",
    "question_to": "splits",
    "quote": "quotes",
    "recall_of": "spread",
    "requests_of_pool": "systems",
    "room_for_failover": "failover",
    "shelves_of": "packing_choice",
    "sizes_between": "trading",
    "smallest_enough": "counting",
    "spare_replicas": "redundancy",
    "spare_surviving": "redundancy",
    "spike_of_pools": "pools_spike",
    "split_trials": "splits",
    "system_of": "systems",
    "system_of_named": "named",
    "tiers": "tiering",
    "tiers_of_pools": "pools_tiering",
    "tiers_of_system": "pools_tiering",
    "too_few_zones": "redundancy",
    "unkept": "spread",
    "what_holds_failover": "failover",
    "why_it_lost": "document",
    "without_pools": "named",
    "zones_without_replicas": "redundancy",
}
"""What is loaded on first use: a plan needs no drills, no events and no packing."""

__all__ = [
    "BATCH",
    "DRILLS",
    "FEW_REQUESTS",
    "UNSEEN",
    "Asked",
    "Bounded",
    "Burst",
    "Cheapest",
    "Conflict",
    "DrillPlan",
    "DrilledPool",
    "Endured",
    "EqualGpus",
    "Event",
    "Filled",
    "FirstMinute",
    "Hopeless",
    "HotPrefix",
    "KnownSpike",
    "Latencies",
    "LetGo",
    "Look",
    "NamedPart",
    "Option",
    "PackedNode",
    "Packing",
    "Pending",
    "PlanProgress",
    "Pool",
    "PoolNeeds",
    "PoolTiers",
    "PoolsSpike",
    "PricedPools",
    "Progress",
    "Quota",
    "Recall",
    "Replay",
    "RungRide",
    "Shelf",
    "Spread",
    "System",
    "TierOption",
    "TokenBudget",
    "TooFewGpus",
    "Verdict",
    "Verdicts",
    "Warmed",
    "ZoneLoss",
    "anew",
    "at_equal_gpus",
    "balanced",
    "bursts",
    "bursts_of_pools",
    "cheapest",
    "cheapest_counts",
    "conflict",
    "described_gpus",
    "drills",
    "drills_of_pools",
    "excess_of",
    "filled",
    "gpus_by_slot",
    "in_place",
    "known_spike",
    "least_count",
    "missed_by_named",
    "more_left",
    "nodes_usd_per_hour",
    "pack",
    "pack_all",
    "pack_together",
    "plan",
    "plan_document",
    "plan_of_named",
    "plenty_of",
    "pools_of",
    "priced_pools",
    "question_to",
    "quote",
    "recall_of",
    "requests_of_pool",
    "room_for_failover",
    "shelves_of",
    "sizes_between",
    "smallest_enough",
    "spare_replicas",
    "spare_surviving",
    "spike_of_pools",
    "split_trials",
    "system_of",
    "system_of_named",
    "tiers",
    "tiers_of_pools",
    "tiers_of_system",
    "too_few_zones",
    "unkept",
    "what_holds_failover",
    "why_it_lost",
    "without_pools",
    "zones_without_replicas",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    """Load a part of the planner when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module 'tokenfleet.planner' has no attribute '{name}'")
    return getattr(import_module(f"tokenfleet.planner.{_HOME[name]}"), name)
