"""From the decision to a ready replica, for everybody who must say it."""

from tokenfleet import catalog, performance
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """From the decision to a ready replica."""

    low_s: float
    typical_s: float
    high_s: float
    source: str
    prepared_high_s: float | None
    """The longest with a node, image, weights and compiled graphs that are there already; ``None``: not known."""
    startup_budget_s: float
    """What a start-up probe must allow before it gives a loading replica up."""
    startup_source: str
    """Which start that is a multiple of."""


def ready(cold_start_s: float | None, replica: ReplicaPhysics) -> Ready:
    """What the scenario says of a start, else what others measured of their own.

    Args:
        cold_start_s: ``cold_start`` of the scenario; ``None`` where it says nothing.
        replica: What starts.
    """
    if cold_start_s is not None:
        return Ready(
            low_s=cold_start_s,
            typical_s=cold_start_s,
            high_s=cold_start_s,
            source="cold_start of the scenario",
            prepared_high_s=None,
            startup_budget_s=performance.STARTUP_MARGIN * cold_start_s,
            startup_source="cold_start of the scenario",
        )
    gpus = replica.deployment.layout.gpu_count
    weights = float(replica.memory.weights_bytes) * gpus
    gpu = catalog.gpu(replica.deployment.gpu)
    start = performance.cold_start_s(weights, gpu, gpu_count=gpus)
    prepared = performance.cold_start_s(
        weights,
        gpu,
        gpu_count=gpus,
        storage="local_nvme",
        node_is_warm=True,
        image_is_cached=True,
        compiled_is_cached=True,
    )
    return Ready(
        low_s=start.low_s,
        typical_s=start.typical_s,
        high_s=start.high_s,
        source="starts that others measured, stage by stage; time your own",
        prepared_high_s=prepared.high_s,
        startup_budget_s=performance.startup_budget_s(start),
        startup_source="the longest start that others measured, once there is a node",
    )
