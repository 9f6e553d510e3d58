"""A cap on utilization: replicas that sustain so much more than the peak that it takes no more than the cap of it."""

from typing import Final

from tokenfleet.domain.plan import Limit, LimitUse, PlanQuestion
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.planner.limits import Limits
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.traffic import Traffic, at_load

UTILIZATION_CAP: Final[Limit] = "utilization_cap"


def at_cap(traffic: Traffic, question: PlanQuestion) -> Traffic | None:
    """The traffic whose peak the replicas must carry for the real one to stay below the cap.

    Returns:
        ``None`` where nobody set one.
    """
    cap = question.utilization_cap_fraction
    return None if cap is None else at_load(traffic, 1.0 / cap)


def keeps_cap(replays: Replays, denser: Traffic | None, replica: ReplicaPhysics, count: int) -> bool:
    """Whether ``count`` replicas keep the promise at the peak of :func:`at_cap`; ``None`` is no cap, and kept."""
    return denser is None or replays.quick(denser, replica, count, peak_only=True).kept


def cap_uses(question: PlanQuestion, limits: Limits, peak_rate_per_s: float) -> tuple[LimitUse, ...]:
    """The cap somebody set as the limit that it is: reached before the fleet is full."""
    cap = question.utilization_cap_fraction
    if cap is None or limits.sustained is None:
        return ()
    sustained = limits.sustained
    rate = cap * sustained.factor * peak_rate_per_s
    used = LimitUse(
        limit=UTILIZATION_CAP,
        used_fraction=peak_rate_per_s / rate,
        rate_at_limit_per_s=rate,
        at_least=sustained.at_least,
    )
    return (used,)
