"""Floor 2: the physics of one replica: memory and step time, as pure functions of shapes and coefficients.

Promises: every formula states units, range and source; a question outside the range is refused or carries a
wider error band. Must not know queues, traffic, prices.
"""

from tokenfleet.performance.band import error_band
from tokenfleet.performance.coefficients import Constant, constants
from tokenfleet.performance.kv import kv_bytes_per_token
from tokenfleet.performance.memory import memory_budget, sequences_at, smallest_fitting_layouts
from tokenfleet.performance.replica import replica_physics
from tokenfleet.performance.shard import Stage
from tokenfleet.performance.step_time import scaled, step_shares, step_time_model
from tokenfleet.performance.support import missing_facts, unsupported

__all__ = [
    "Constant",
    "Stage",
    "constants",
    "error_band",
    "kv_bytes_per_token",
    "memory_budget",
    "missing_facts",
    "replica_physics",
    "scaled",
    "sequences_at",
    "smallest_fitting_layouts",
    "step_shares",
    "step_time_model",
    "unsupported",
]
