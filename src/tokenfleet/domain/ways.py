"""Other ways to lay out a fleet than one pool behind the router named."""

from typing import Literal

from tokenfleet.domain.fleet import Router
from tokenfleet.domain.records import dataclass

RouterOfEquals = Literal[
    "round_robin", "least_in_flight", "least_loaded", "power_of_two", "prefix_affinity", "least_waiting", "least_kv"
]
"""Routers that choose among equal replicas; the others send some requests to groups of their own."""
SplitBy = Literal["length", "task", "tier"]
"""What decides which pool serves a request: its prompt, the task or log type that the log names, or its priority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Takes:
    """Which requests a pool of a plan answers; what is ``None`` does not matter."""

    input_over_tokens: int | None = None
    input_up_to_tokens: int | None = None
    label: str | None = None
    """Task or log type, as the log names it."""
    priority: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterTrial:
    """One router in front of the best fleet found."""

    router: Router
    carrying_count: int | None
    """Replicas of that kind that keep the promise behind it; ``None`` where it was out before it was sized."""
    why: str
    """What came of it, in words."""
