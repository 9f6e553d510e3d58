"""Parts of run records made by hand, for tests that need few of their fields."""

import numpy as np

from tokenfleet.domain.run import Ledger, Telemetry, WorkDone


def telemetry_of(time_s, running, waiting, kv_used_fraction, **known) -> Telemetry:
    """Gauges of replicas of which nobody knows what they have done."""
    shape = running.shape
    none = np.zeros(shape, dtype=np.int64)
    counts = ("step_count", "prefill_step_count", "prefill_tokens", "decode_tokens", "context_tokens", "pair_count")
    counts += ("kept_draft_tokens", "preemption_count", "swap_count", "swapped_block_count", "recomputed_tokens")
    done = WorkDone(**({"busy_s": np.zeros(shape)} | dict.fromkeys(counts, none) | known))
    return Telemetry(
        time_s=time_s,
        running=running,
        waiting=waiting,
        kv_used_fraction=kv_used_fraction,
        active_tokens=none,
        done=done,
    )


def ledger_of(prefill_gpu_s, decode_gpu_s, cached_gpu_s=None) -> Ledger:
    """What requests took; each was scheduled at second 0."""
    prefill = np.asarray(prefill_gpu_s, dtype=float)
    return Ledger(
        scheduled_s=np.zeros(len(prefill)),
        prefill_gpu_s=prefill,
        cached_gpu_s=np.zeros(len(prefill)) if cached_gpu_s is None else np.asarray(cached_gpu_s, dtype=float),
        decode_gpu_s=np.asarray(decode_gpu_s, dtype=float),
        recomputed_tokens=np.zeros(len(prefill), dtype=np.int64),
        swap_count=np.zeros(len(prefill), dtype=np.int32),
    )
