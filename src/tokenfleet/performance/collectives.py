"""What ranks tell each other in a step: over the link of a node, over PCIe, over the network between nodes."""

from math import ceil, log2

from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import Layout
from tokenfleet.performance.coefficients import constant, constants
from tokenfleet.performance.support import has_link, known, link_reach

_ELEMENT_BYTES = 2
_NO_PEERS = "GeForce"
"""Cards whose driver has no peer-to-peer over PCIe: every byte goes through host memory, twice over the bus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective between ranks."""

    reduce_s_per_byte: float
    """Seconds to sum one byte of a vector that every rank holds, and to give all of them the sum."""
    spread_s_per_byte: float
    """Seconds to hand one byte of a vector to any of the ranks."""
    latency_s: float
    """Seconds of a collective of no bytes."""


def collective(gpu: Gpu, rank_count: int, family: str = "vllm") -> Collective:
    """What collectives between ranks cost.

    Within a node a reduction moves ``2 (n - 1) / n`` of the vector over every link, a dispatch ``(n - 1) / n``. Bridges
    join 2 (or 4) cards; beyond that, and without a link, traffic goes over PCIe, whose all-reduce rate collapses with
    the rank count and halves where cards reach each other only through host memory. Between ``m`` nodes of ``g``
    linked ranks a reduction is done inside the nodes first, so that each gpu's own port carries ``2 (m - 1) / m`` of
    its ``1 / g``; a dispatch goes over it with ``(m - 1) / m``. Latency grows by a tenth per doubling of the ranks.

    Args:
        gpu: Its link and PCIe rates, one way, in bytes/s.
        rank_count: At least 2.
        family: Engine family of the constants.

    Returns:
        Costs in seconds. Source: kernel tables of A100, H100, H200, B200 and L40S; the network is a port of 400 Gb/s
        for each gpu, as in the vendors' reference nodes, and not measured here.
    """
    growth = 1 + 0.1 * log2(rank_count)
    growth *= constant("collective_factor", family) if f"collective_factor.{family}" in constants() else 1.0
    if has_link(gpu):
        reach = link_reach(gpu)
        if rank_count <= reach:
            return _within(constant("link_fraction") * known(gpu.link_bytes_per_s), rank_count, "link", growth)
        if reach >= gpu.gpus_per_node_count:
            return _between(gpu, reach, rank_count, growth)
    bucket = "2" if rank_count == 2 else "4" if rank_count <= 4 else "8"
    rate = known(gpu.link_bytes_per_s if gpu.pcie_bytes_per_s is None else gpu.pcie_bytes_per_s)
    if gpu.title.startswith(_NO_PEERS):
        rate /= 2
    return _within(constant("pcie_fraction", bucket) * rate, rank_count, "pcie", growth)


def border(gpu: Gpu, layout: Layout, family: str) -> tuple[float, float]:
    """Handing hidden vectors from one pipeline stage to the next.

    Args:
        gpu: The part.
        layout: Its stages; those that do not fit a node together talk over the network.
        family: Engine family of the constants.

    Returns:
        Seconds per byte, and seconds of a message of no bytes.
    """
    stages = layout.pipeline_parallel
    if has_link(gpu) and layout.gpu_count > link_reach(gpu) >= gpu.gpus_per_node_count:
        rate = constant("link_fraction") * constant("network_bytes_per_s")
        return 1 / rate, constant("collective_s", "network")
    one = collective(gpu, stages, family)
    return one.spread_s_per_byte * stages / (stages - 1), one.latency_s


def _within(rate_bytes_per_s: float, rank_count: int, way: str, growth: float) -> Collective:
    moved = (rank_count - 1) / rank_count / rate_bytes_per_s
    return Collective(
        reduce_s_per_byte=2 * moved,
        spread_s_per_byte=moved,
        latency_s=constant("collective_s", way) * growth,
    )


def _between(gpu: Gpu, reach: int, rank_count: int, growth: float) -> Collective:
    share = constant("link_fraction")
    inside = (reach - 1) / reach / (share * known(gpu.link_bytes_per_s))
    nodes = ceil(rank_count / reach)
    outside = (nodes - 1) / nodes / (share * constant("network_bytes_per_s"))
    return Collective(
        reduce_s_per_byte=2 * (inside + outside / reach),
        spread_s_per_byte=inside + outside,
        latency_s=constant("collective_s", "network") * growth,
    )


def collectives(model: ModelArchitecture, gpu: Gpu, layout: Layout, family: str) -> tuple[float, float]:
    """Seconds per token and latency per step of all collectives.

    Tensor parallelism reduces a hidden vector per token twice per layer. Data-parallel attention adds a dispatch and
    a combine around each expert layer, over all ranks.

    Args:
        model: Its layers and hidden size, 16 bit per element.
        gpu: The part.
        layout: Ranks of one replica.
        family: Engine family of the constants.

    Returns:
        Seconds per token of the replica, and seconds per step.
    """
    tp, dp = layout.tensor_parallel, layout.attention_data_parallel
    vector = model.hidden_size * _ELEMENT_BYTES
    message_s = latency_s = 0.0
    if tp > 1:
        one = collective(gpu, tp, family)
        message_s += 2 * model.layer_count * vector * one.reduce_s_per_byte / dp
        latency_s += 2 * model.layer_count * one.latency_s
    if dp > 1:
        one = collective(gpu, tp * dp, family)
        layers = sum(block.layer_count for block in model.feed_forward if block.expert_count)
        message_s += 2 * layers * vector * one.spread_s_per_byte
        latency_s += 2 * layers * one.latency_s
    return message_s, latency_s
