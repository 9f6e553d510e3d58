"""A cap on utilization: replicas that sustain so much more than the peak that it takes no more than the cap of it."""

from tokenfleet.domain.plan import PlanQuestion
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.traffic import Traffic, at_load


def at_cap(traffic: Traffic, question: PlanQuestion) -> Traffic | None:
    """The traffic whose peak the replicas must carry for the real one to stay below the cap.

    Returns:
        ``None`` where nobody set one.
    """
    cap = question.utilization_cap_fraction
    return None if cap is None else at_load(traffic, 1.0 / cap)


def keeps_cap(replays: Replays, denser: Traffic | None, replica: ReplicaPhysics, count: int) -> bool:
    """Whether ``count`` replicas keep the promise at the peak of :func:`at_cap`; ``None`` is no cap, and kept."""
    return denser is None or replays.quick(denser, replica, count, peak_only=True).kept_in_peak
