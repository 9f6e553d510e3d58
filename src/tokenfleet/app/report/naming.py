"""How the report names a candidate."""

from collections.abc import Mapping

from tokenfleet.app.report.words import plural
from tokenfleet.domain.plan import Limit, Sized
from tokenfleet.domain.replica import Deployment, Layout

LIMITS: Mapping[Limit, tuple[str, str]] = {
    "prefill_compute": ("Prefill compute", "reading prompts: arithmetic of the GPUs"),
    "decode_bandwidth": ("Decode bandwidth", "writing tokens: memory bandwidth of the GPUs"),
    "kv_memory": ("KV memory", "memory for the contexts of running requests"),
    "sequence_slots": ("Sequence slots", "requests the engine lets run at once"),
    "communication": ("Communication", "links between the GPUs of a replica"),
    "overhead": ("Overhead", "launches, scheduling and the front end"),
    "utilization_cap": ("Utilization cap", "no fuller than the scenario wants the fleet to be"),
    "single_request": ("Single request", "one request alone comes close to the promise, at any load"),
}
"""Name of each limit, and what it is."""


def layout_name(layout: Layout) -> str:
    """``TP2``, ``TP8 PP2``; one gpu is ``TP1``."""
    parts = [f"TP{layout.tensor_parallel}"]
    for prefix, count in (
        ("PP", layout.pipeline_parallel),
        ("DP", layout.attention_data_parallel),
        ("EP", layout.expert_parallel),
    ):
        if count > 1:
            parts.append(f"{prefix}{count}")
    return " ".join(parts)


def replica_name(deployment: Deployment) -> str:
    """``2 x h100_sxm (TP2, fp8)``, ``l40s (fp8)``."""
    layout = deployment.layout
    gpus = f"{layout.gpu_count} x {deployment.gpu}" if layout.gpu_count > 1 else deployment.gpu
    parts = [layout_name(layout)] if layout.gpu_count > 1 else []
    parts.append("the checkpoint's precision" if deployment.precision == "checkpoint" else deployment.precision)
    if deployment.kv_precision != "bf16":
        parts.append(f"KV {deployment.kv_precision}")
    return f"{gpus} ({', '.join(parts)})"


def fleet_name(sized: Sized) -> str:
    """``5 replicas of 2 x h100_sxm (TP2, fp8)``."""
    return f"{plural(sized.replica_count, 'replica')} of {replica_name(sized.replica.deployment)}"
