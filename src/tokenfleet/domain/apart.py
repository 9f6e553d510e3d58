"""A fleet whose prefill and decode have pools of their own: asked for, and found."""

from collections.abc import Mapping
from typing import Literal

from tokenfleet.domain.gpu import GpuPrice, Link
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.slo import SloResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ApartQuestion:
    """What a plan is told of prefill and decode apart, where it is to be tried."""

    links: Mapping[str, Link]
    """What KV crosses, by the gpu that sends; a gpu without one cannot prefill for another."""
    first_token: Literal["prefill", "decode"]
    """See :class:`tokenfleet.domain.stages.Handover`."""
    overlap: bool
    """KV is sent layer by layer while prefill computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApartPool:
    """One of the two pools."""

    replica: ReplicaPhysics
    carrying_count: int
    spare_count: int
    price: GpuPrice

    @property
    def replica_count(self) -> int:
        """Carrying and spare replicas together."""
        return self.carrying_count + self.spare_count

    @property
    def gpu_count(self) -> int:
        """GPUs of the pool."""
        return self.replica_count * self.replica.deployment.layout.gpu_count

    @property
    def price_usd_per_hour(self) -> float:
        """What the pool costs for one hour."""
        return self.gpu_count * self.price.price_usd_per_gpu_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """The cheapest pair of pools tried that keeps the promise with the spare replicas of both gone."""

    prefill: ApartPool
    decode: ApartPool
    link: str
    transfer_mean_s: float
    """Of the requests of the searched stretch, waits for the link included."""
    slo: tuple[SloResult, ...]
    """In the peak window, the spare gone; every entry kept."""

    @property
    def gpu_count(self) -> int:
        """GPUs of both pools."""
        return self.prefill.gpu_count + self.decode.gpu_count

    @property
    def price_usd_per_hour(self) -> float:
        """What both cost for one hour."""
        return self.prefill.price_usd_per_hour + self.decode.price_usd_per_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class ApartAnswer:
    """What came of trying."""

    found: Apart | None
    reason: str
    """Why there is none; empty when there is."""
    pair_count: int
    """Pairs of replicas sized by replay."""
    replayed_count: int
