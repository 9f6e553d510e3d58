"""Floor 4: the search for the cheapest fleet that keeps the promise, with a replica gone.

Promises: replay decides, formulas only rank; infeasible is an answer with typed reasons. Must not read files or
talk to people.
"""

from tokenfleet.planner.answer import Cheapest, cheapest, plan
from tokenfleet.planner.assumed import FEW_REQUESTS
from tokenfleet.planner.document import plan_document, why_it_lost
from tokenfleet.planner.progress import PlanProgress, Progress

__all__ = ["FEW_REQUESTS", "Cheapest", "PlanProgress", "Progress", "cheapest", "plan", "plan_document", "why_it_lost"]
