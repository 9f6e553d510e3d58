"""Floor 2: the physics of one replica: memory and step time, as pure functions of shapes and coefficients.

Promises: every formula states units, range and source; a question outside the range is refused or carries a
wider error band. Must not know queues, traffic, prices.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenfleet.performance.attention import chunk_attention_ps, mean_window_pairs
    from tokenfleet.performance.band import error_band
    from tokenfleet.performance.checkpoint import index_bytes, tensor_bytes
    from tokenfleet.performance.coefficients import Constant, constants
    from tokenfleet.performance.cold_start import STARTUP_MARGIN, ColdStart, StageTime, cold_start_s, startup_budget_s
    from tokenfleet.performance.kv import kv_bytes_per_token
    from tokenfleet.performance.memory import memory_budget, memory_convention, sequences_at, smallest_fitting_layouts
    from tokenfleet.performance.neighbours import SharedGpu, Tenant, pools_of_free, share_gpu
    from tokenfleet.performance.pipeline import PipelineMemory, pipeline_memory
    from tokenfleet.performance.replica import replica_physics, with_smaller_steps
    from tokenfleet.performance.residents import draft_facts, packed, prediction_layer
    from tokenfleet.performance.shard import Stage
    from tokenfleet.performance.slices import gpu_slice
    from tokenfleet.performance.step_time import step_parts, step_shares, step_time_model
    from tokenfleet.performance.stretching import scaled
    from tokenfleet.performance.support import missing_facts, short_steps, unsupported
    from tokenfleet.performance.tower import tower_budget, tower_physics, tower_s, with_tower
    from tokenfleet.performance.transfer import kv_bytes, kv_transfer_s, prefill_alone_s
    from tokenfleet.performance.workspace import worst_case_encoder_tokens

_HOME = {
    "ColdStart": "cold_start",
    "Constant": "coefficients",
    "PipelineMemory": "pipeline",
    "SharedGpu": "neighbours",
    "Stage": "shard",
    "STARTUP_MARGIN": "cold_start",
    "StageTime": "cold_start",
    "Tenant": "neighbours",
    "chunk_attention_ps": "attention",
    "cold_start_s": "cold_start",
    "constants": "coefficients",
    "draft_facts": "residents",
    "error_band": "band",
    "gpu_slice": "slices",
    "index_bytes": "checkpoint",
    "kv_bytes": "transfer",
    "kv_bytes_per_token": "kv",
    "kv_transfer_s": "transfer",
    "mean_window_pairs": "attention",
    "memory_budget": "memory",
    "memory_convention": "memory",
    "missing_facts": "support",
    "packed": "residents",
    "pipeline_memory": "pipeline",
    "pools_of_free": "neighbours",
    "prediction_layer": "residents",
    "prefill_alone_s": "transfer",
    "replica_physics": "replica",
    "scaled": "stretching",
    "sequences_at": "memory",
    "share_gpu": "neighbours",
    "smallest_fitting_layouts": "memory",
    "startup_budget_s": "cold_start",
    "step_parts": "step_time",
    "step_shares": "step_time",
    "step_time_model": "step_time",
    "tensor_bytes": "checkpoint",
    "tower_budget": "tower",
    "tower_physics": "tower",
    "tower_s": "tower",
    "short_steps": "support",
    "unsupported": "support",
    "with_smaller_steps": "replica",
    "with_tower": "tower",
    "worst_case_encoder_tokens": "workspace",
}
"""What is loaded on first use: a plan read from disk computes no physics."""

__all__ = [
    "STARTUP_MARGIN",
    "ColdStart",
    "Constant",
    "PipelineMemory",
    "SharedGpu",
    "Stage",
    "StageTime",
    "Tenant",
    "chunk_attention_ps",
    "cold_start_s",
    "constants",
    "draft_facts",
    "error_band",
    "gpu_slice",
    "index_bytes",
    "kv_bytes",
    "kv_bytes_per_token",
    "kv_transfer_s",
    "mean_window_pairs",
    "memory_budget",
    "memory_convention",
    "missing_facts",
    "packed",
    "pipeline_memory",
    "pools_of_free",
    "prediction_layer",
    "prefill_alone_s",
    "replica_physics",
    "scaled",
    "sequences_at",
    "share_gpu",
    "short_steps",
    "smallest_fitting_layouts",
    "startup_budget_s",
    "step_parts",
    "step_shares",
    "step_time_model",
    "tensor_bytes",
    "tower_budget",
    "tower_physics",
    "tower_s",
    "unsupported",
    "with_smaller_steps",
    "with_tower",
    "worst_case_encoder_tokens",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    """Load a part of the physics when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module 'tokenfleet.performance' has no attribute '{name}'")
    found = getattr(import_module(f"tokenfleet.performance.{_HOME[name]}"), name)
    globals()[name] = found  # some names are asked for thousands of times
    return found
