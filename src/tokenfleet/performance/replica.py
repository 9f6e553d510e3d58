"""All physics of one replica at once, as the simulator takes it."""

from collections.abc import Callable

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.replica import (
    Deployment,
    EngineSettings,
    ErrorBand,
    MemoryBudget,
    ReplicaPhysics,
    StepTimeModel,
)
from tokenfleet.performance.band import error_band
from tokenfleet.performance.memory import kv_blocks, memory_budget
from tokenfleet.performance.step_time import shortened, step_time_model


def replica_physics(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> ReplicaPhysics:
    """Memory, step time, error band and KV blocks of one replica.

    Args:
        model: A complete architecture.
        gpu: The part.
        deployment: Layout, precisions, engine settings. Step budget and sequence slots are the whole replica's.

    Returns:
        The physics; a replica that does not fit has no KV blocks, and says why in ``memory.reasons``.

    Raises:
        BadInput: The architecture is partial.
        OutOfRange: The deployment is not supported.
    """
    return _physics(
        model,
        gpu,
        deployment,
        step_time=lambda: step_time_model(model, gpu, deployment),
        band=lambda: error_band(model, gpu, deployment),
    )


def with_smaller_steps(
    model: ModelArchitecture, gpu: Gpu, replica: ReplicaPhysics, deployment: Deployment
) -> ReplicaPhysics:
    """What :func:`replica_physics` says of a deployment that differs from a known one in smaller steps and fewer slots.

    Step times are those of the larger steps as far as they go; memory is worked out anew, as a smaller step takes less.

    Args:
        model: A complete architecture.
        gpu: The part.
        replica: The known one.
        deployment: The same but for ``max_batched_tokens`` and ``max_sequence_count``, neither of them larger.
    """
    return _physics(
        model, gpu, deployment, step_time=lambda: shortened(replica.step_time, deployment), band=lambda: replica.band
    )


def _physics(
    model: ModelArchitecture,
    gpu: Gpu,
    deployment: Deployment,
    *,
    step_time: Callable[[], StepTimeModel],
    band: Callable[[], ErrorBand],
) -> ReplicaPhysics:
    memory = memory_budget(model, gpu, deployment)
    blocks = kv_blocks(memory)
    swap_count, swap_ps = swap_space(memory, gpu, deployment.engine)
    return ReplicaPhysics(
        deployment=deployment,
        memory=memory,
        step_time=step_time(),
        band=band(),
        kv_block_count=blocks.block_count if memory.fits else 0,
        kv_block_tokens=blocks.block_tokens,
        kv_fixed_block_count=blocks.fixed_block_count,
        kv_growth_block_count=blocks.growth_block_count,
        kv_window_block_count=blocks.window_block_count,
        kv_window_tokens=blocks.window_tokens,
        swap_block_count=swap_count,
        swap_block_ps=swap_ps,
        swap_block_bytes=round(blocks.block_bytes) if swap_count else 0,
        model_context_tokens=model.max_context_tokens,
    )


def swap_space(memory: MemoryBudget, gpu: Gpu, engine: EngineSettings) -> tuple[int, int]:
    """Room for preempted sequences in host memory.

    Every gpu has its part of a block and a way of its own to the host, so the fullest one decides; recurrent state,
    which is moved too, is not counted.

    Args:
        memory: Of the replica.
        gpu: The part.
        engine: Whether it swaps, and the host memory for each gpu.

    Returns:
        KV blocks that fit, and the time to move one of them in picoseconds; nothing where the engine recomputes
        or the model keeps no KV.

    Raises:
        BadInput: the catalog does not know how fast this gpu's way to the host is.
    """
    if engine.preemption == "recompute":
        return 0, 0
    if gpu.pcie_bytes_per_s is None:
        what = f"swap, and the catalog does not know the way of {gpu.name} to its host"
        raise BadInput.at("engine.preemption", what, "take recompute, or a gpu with a known PCIe rate")
    block_bytes = kv_blocks(memory).block_bytes
    if block_bytes == 0:
        return 0, 0
    return int(engine.swap_bytes // block_bytes), round(block_bytes / gpu.pcie_bytes_per_s * 1e12)
