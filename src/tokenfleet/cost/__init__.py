"""Floor 2: money. What a fleet costs, and who of its tokens pays for what.

Promises: the lines of a bill add up to its total; a missing price stays missing. Must not choose a fleet.
"""

from tokenfleet.cost.bill import bill
from tokenfleet.cost.unit import usd_per_million

__all__ = ["bill", "usd_per_million"]
