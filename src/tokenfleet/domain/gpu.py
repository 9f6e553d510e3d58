"""Accelerators and what renting one costs. On every face they are called *gpu*, of any make."""

from typing import Final, Literal

from tokenfleet.domain.records import dataclass

Term = Literal["on_demand", "spot", "reserved_1y", "reserved_3y", "capacity_block", "rental_3y", "own_tco"]
Evidence = Literal["quote", "secondary", "index", "range", "reference"]
"""What a price is: a provider's own figure, one that others report of a provider, a market index, the middle of a
published range, or computed from those so that gpus compare like for like (nobody's offer)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Facts of one accelerator. Rates are dense peaks; links are one way, per gpu; ``None`` is unknown, never 0."""

    name: str
    vendor: str
    title: str
    memory_bytes: int
    """Total memory as an engine sees it, which is less than the marketing figure."""
    memory_bandwidth_bytes_per_s: float | None
    bf16_flop_per_s: float | None
    """Peak of 16-bit matrix work (FP16 where the part has no BF16 units, see ``note``)."""
    fp8_flop_per_s: float | None
    int8_flop_per_s: float | None
    fp4_flop_per_s: float | None
    link_name: str
    link_bytes_per_s: float | None
    pcie_bytes_per_s: float | None
    tdp_w: float | None
    gpus_per_node_count: int
    partition_count: int
    confidence: str
    source: str
    note: str
    memory_basis: str = ""
    """Where ``memory_bytes`` comes from: an engine log, a vendor page, or ``derived`` from the marketing figure."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Facts that a step time needs and no source here gives."""
        needed = {
            "memory_bandwidth_bytes_per_s": self.memory_bandwidth_bytes_per_s,
            "bf16_flop_per_s": self.bf16_flop_per_s,
        }
        return tuple(name for name, value in needed.items() if value is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What KV crosses between two replicas, as one gpu sees it."""

    name: str
    line_bytes_per_s: float
    """Line rate of one gpu's port, one way."""
    efficiency_fraction: float
    """Share of it that large transfers reach."""
    latency_s: float
    """Start-up of one transfer: software and wire."""
    title: str = ""
    confidence: str = ""
    source: str = ""
    note: str = ""

    @property
    def bytes_per_s(self) -> float:
        """What one gpu gets through."""
        return self.line_bytes_per_s * self.efficiency_fraction


RESERVED_H: Final[dict[Term, float]] = {"reserved_1y": 8_760.0, "reserved_3y": 26_280.0}
"""Hours that a reservation is paid for, used or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPrice:
    """One published rental price of one gpu for one hour."""

    gpu: str
    provider: str
    provider_class: str
    region: str
    term: Term
    price_usd_per_gpu_hour: float
    as_of: str
    source: str
    note: str
    evidence: Evidence = "quote"
    low_usd_per_gpu_hour: float | None = None
    """Ends of the range, where the source published one."""
    high_usd_per_gpu_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPriceRange:
    """The price to reckon with for one gpu and term, and how far the published ones spread."""

    price: GpuPrice
    """What to reckon with: a figure comparable between gpus (``reference``), or a quote where one provider counts."""
    low_usd_per_gpu_hour: float
    high_usd_per_gpu_hour: float
    published_count: int
    """Published prices behind low and high, secondary ones included."""
    basis: str = ""
    """For a person: how ``price`` was made, and the real quotes around it."""
