"""Accelerators and what renting one costs. On every face they are called *gpu*, of any make."""

from dataclasses import dataclass
from typing import Literal

Term = Literal["on_demand", "spot", "reserved_1y", "reserved_3y", "capacity_block", "rental_3y", "own_tco"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Facts of one accelerator. Rates are dense peaks; links are one way, per gpu; ``None`` is unknown, never 0."""

    name: str
    vendor: str
    title: str
    memory_bytes: int
    """Total memory as the driver reports it, which is less than the marketing figure."""
    memory_bandwidth_bytes_per_s: float
    bf16_flop_per_s: float
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
