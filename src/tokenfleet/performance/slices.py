"""A slice of a gpu (MIG) as a gpu of its own: memory, share of the multiprocessors, no links."""

from dataclasses import replace
from re import fullmatch

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.gpu import Gpu

_GIB = 2**30
_GB_PER_GIB = 1.01
"""The size in a profile's name, which is the marketing figure in GB, over what the driver counts in GiB."""
_COMPUTE_PARTS = {"a30": 4}
_MOST_PARTS = 7
_MEMORY_PARTS = {"a30": 4}
_MOST_MEMORY_PARTS = 8
_LISTED_GIB = {
    "a100_sxm_40gb": {1: 4.75, 2: 9.75, 4: 19.62},
    "a100_sxm_80gb": {1: 9.5, 2: 19.5, 4: 39.25},
    "h100_sxm": {1: 9.75, 2: 19.62, 4: 39.5},
    "h200_sxm": {1: 16.0},
}
"""What the driver lists for a slice, by parts of the memory (``nvidia-smi mig -lgip``, NVIDIA's guide), in GiB."""
_KEPT_FRACTION = 0.915
"""Part of an even share that a slice shows where nobody listed it: the least of the listed (H200, 16.0 of 17.5)."""


def gpu_slice(gpu: Gpu, profile: str, *, where: str = "gpu") -> Gpu:
    """One MIG slice as a gpu.

    Compute scales with the sevenths of the multiprocessors, bandwidth with the eighths of the memory, and the two
    differ: ``2g.35gb`` of an H200 has 2/7 of the compute and 1/4 of the memory. A slice has no link to others.
    Engines choose their batch defaults by the memory they see, so ask for them with the slice, not with its parent.

    Args:
        gpu: The whole part.
        profile: As the driver spells it: ``1g.18gb``, ``3g.40gb``; ``+me`` is ignored.
        where: Place of the name, for the error.

    Returns:
        The slice, named ``PARENT:PROFILE``; prices of the parent do not apply to it.

    Raises:
        BadInput: The name is not a profile, or asks for more than the part has.
    """
    match = fullmatch(r"(\d)g\.(\d+)gb(\+me(?:\.all)?)?", profile.strip().lower())
    if match is None:
        raise BadInput.at(where, f"{profile!r} is not a MIG profile", "write it like 1g.18gb")
    compute = int(match[1])
    whole = _COMPUTE_PARTS.get(gpu.name, _MOST_PARTS)
    memory_parts = _MEMORY_PARTS.get(gpu.name, _MOST_MEMORY_PARTS)
    total_gib = gpu.memory_bytes / _GIB
    memory = round(memory_parts * int(match[2]) / (total_gib * _GB_PER_GIB))
    if not 1 <= compute <= whole or not 1 <= memory <= memory_parts:
        raise BadInput.at(
            where,
            f"{gpu.title} has no slice {profile}",
            f"it has {whole} parts of compute and {memory_parts} of memory",
        )
    listed = _LISTED_GIB.get(gpu.name, {}).get(memory)
    even = total_gib * memory / memory_parts
    size_gib = total_gib if memory == memory_parts else listed or even * _KEPT_FRACTION
    return replace(
        gpu,
        name=f"{gpu.name}:{match[1]}g.{match[2]}gb",
        title=f"{gpu.title} slice {match[1]}g.{match[2]}gb",
        memory_bytes=round(size_gib * _GIB),
        memory_basis="driver listing" if listed else f"{_KEPT_FRACTION:g} of an even share",
        memory_bandwidth_bytes_per_s=_part(gpu.memory_bandwidth_bytes_per_s, memory / memory_parts),
        bf16_flop_per_s=_part(gpu.bf16_flop_per_s, compute / whole),
        fp8_flop_per_s=_part(gpu.fp8_flop_per_s, compute / whole),
        int8_flop_per_s=_part(gpu.int8_flop_per_s, compute / whole),
        fp4_flop_per_s=_part(gpu.fp4_flop_per_s, compute / whole),
        link_name="none",
        link_bytes_per_s=None,
        pcie_bytes_per_s=None,
        tdp_w=None,
        gpus_per_node_count=1,
        partition_count=1,
        note=f"{compute}/{whole} of the compute and {memory}/{memory_parts} of the memory of a {gpu.title}",
    )


def _part(rate: float | None, share: float) -> float | None:
    return None if rate is None else rate * share
