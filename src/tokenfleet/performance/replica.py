"""All physics of one replica at once, as the simulator takes it."""

from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.replica import Deployment, ReplicaPhysics
from tokenfleet.performance.band import error_band
from tokenfleet.performance.memory import kv_blocks, memory_budget
from tokenfleet.performance.step_time import step_time_model


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
    memory = memory_budget(model, gpu, deployment)
    block_count, block_tokens, fixed_count = kv_blocks(memory)
    return ReplicaPhysics(
        deployment=deployment,
        memory=memory,
        step_time=step_time_model(model, gpu, deployment),
        band=error_band(model, gpu, deployment),
        kv_block_count=block_count if memory.fits else 0,
        kv_block_tokens=block_tokens,
        kv_fixed_block_count=fixed_count,
    )
