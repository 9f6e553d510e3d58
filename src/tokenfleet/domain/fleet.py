"""Replicas side by side, and the router in front of them."""

from dataclasses import dataclass
from typing import Literal

from tokenfleet.domain.replica import ReplicaPhysics

Router = Literal["round_robin", "least_in_flight", "prefix_affinity"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroup:
    """Equal replicas."""

    replica: ReplicaPhysics
    replica_count: int

    @property
    def gpu_count(self) -> int:
        """GPUs of the whole group."""
        return self.replica_count * self.replica.deployment.layout.gpu_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Replica groups behind one router."""

    groups: tuple[ReplicaGroup, ...]
    router: Router = "least_in_flight"

    @property
    def gpu_count(self) -> int:
        """GPUs of the fleet."""
        return sum(group.gpu_count for group in self.groups)
