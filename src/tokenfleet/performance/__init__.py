"""Floor 2: the physics of one replica: memory and step time, as pure functions of shapes and coefficients.

Promises: every formula states units, range and source; a question outside the range is refused or carries a
wider error band. Must not know queues, traffic, prices.
"""

from tokenfleet.performance.band import error_band
from tokenfleet.performance.checkpoint import index_bytes, tensor_bytes
from tokenfleet.performance.coefficients import Constant, constants
from tokenfleet.performance.cold_start import ColdStart, StageTime, cold_start_s, startup_budget_s
from tokenfleet.performance.kv import kv_bytes_per_token
from tokenfleet.performance.memory import memory_budget, memory_convention, sequences_at, smallest_fitting_layouts
from tokenfleet.performance.neighbours import SharedGpu, Tenant, pools_of_free, share_gpu
from tokenfleet.performance.pipeline import PipelineMemory, pipeline_memory
from tokenfleet.performance.replica import replica_physics
from tokenfleet.performance.residents import draft_facts, packed, prediction_layer
from tokenfleet.performance.shard import Stage
from tokenfleet.performance.slices import gpu_slice
from tokenfleet.performance.step_time import scaled, step_parts, step_shares, step_time_model
from tokenfleet.performance.support import missing_facts, unsupported
from tokenfleet.performance.tower import tower_physics, tower_s, with_tower
from tokenfleet.performance.transfer import kv_bytes, kv_transfer_s, prefill_alone_s
from tokenfleet.performance.workspace import worst_case_encoder_tokens

__all__ = [
    "ColdStart",
    "Constant",
    "PipelineMemory",
    "SharedGpu",
    "Stage",
    "StageTime",
    "Tenant",
    "cold_start_s",
    "constants",
    "draft_facts",
    "error_band",
    "gpu_slice",
    "index_bytes",
    "kv_bytes",
    "kv_bytes_per_token",
    "kv_transfer_s",
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
    "smallest_fitting_layouts",
    "startup_budget_s",
    "step_parts",
    "step_shares",
    "step_time_model",
    "tensor_bytes",
    "tower_physics",
    "tower_s",
    "unsupported",
    "with_tower",
    "worst_case_encoder_tokens",
]
