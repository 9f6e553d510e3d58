"""Replicas side by side, and the router in front of them."""

from typing import Literal

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics

Router = Literal[
    "round_robin",
    "least_in_flight",
    "least_loaded",
    "power_of_two",
    "prefix_affinity",
    "least_waiting",
    "least_kv",
    "by_length",
    "by_tier",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroup:
    """Equal replicas."""

    replica: ReplicaPhysics
    replica_count: int
    weight_ratio: float = 1.0
    """For the router ``least_loaded``: a replica of weight 2 gets twice the requests of one of weight 1."""
    up_to: int | None = None
    """For the routers ``by_length`` and ``by_tier``: the longest prompt, or the least urgent priority, that it serves;
    ``None``: any."""
    is_smaller_model: bool = False
    """It serves a smaller model: requests that the door sends there, and no others."""
    pool: int = 0
    """Number of the pool that it belongs to: the groups that serve one model. Those of a pool follow each other."""
    berth: int | None = None
    """Number of the berth of its first replica, those of the others follow: the gpus that a replica stands on. Replicas
    with the same number share them, one step at a time; ``None``: they have them to themselves."""

    @property
    def gpu_count(self) -> int:
        """GPUs of the whole group."""
        return self.replica_count * self.replica.deployment.layout.gpu_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Replica groups behind one router; those of the smaller model come last."""

    groups: tuple[ReplicaGroup, ...]
    router: Router = "least_in_flight"
    scrape_s: float = 5.0
    """Time between two looks into the replicas, for the routers that look: all those by waiting requests, KV memory,
    length or tier."""

    @property
    def gpu_count(self) -> int:
        """GPUs of the fleet, those that replicas share counted once."""
        apart = sum(group.gpu_count for group in self.groups if group.berth is None)
        sizes = {
            group.berth + number: group.replica.deployment.layout.gpu_count
            for group in self.groups
            if group.berth is not None
            for number in range(group.replica_count)
        }
        return apart + sum(sizes.values())
