"""From a row to the batches its engine forms: which kind of load it is, replayed in step space."""

import math
from typing import Literal

from tokenfleet.calibration.measured import Row
from tokenfleet.calibration.recipes import is_dashboard, poll_every
from tokenfleet.calibration.step_space import LoopSettings, StepKinds, closed_loop, make_kinds
from tokenfleet.calibration.step_walk import MIXED, PREFILL_FIRST, RESERVING
from tokenfleet.calibration.subject import Refusal, Subject
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import Deployment
from tokenfleet.performance import memory_budget
from tokenfleet.performance.coefficients import engine_version

Load = Literal["closed_loop", "burst", "saturated", "decode_pool", "pool_of_unknown_size", "open_loop"]
_REQUESTS_PER_SLOT = 10
"""Requests of a closed-loop run for each one in flight, where the row does not say."""
_MOST_REQUESTS = 40_000
_LENGTH_FLOOR = 0.8
"""Clients of the dashboard draw lengths uniformly between this share of the nominal value and all of it."""
_FIXED_JITTER = 0.02
"""Runs of fixed lengths do not stay in lock step: engines behave as if lengths spread by about this much."""
_MIXED_SINCE = (0, 8)
_QUEUE_FRACTION = 0.02
"""A loop whose memory or slots keep requests out in more than this share of steps is not below saturation."""


_QUEUE_S = 4.0
"""A first token that took longer waited in a queue, whatever the settings that a row states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The step kinds of each figure of a row. ``None``: the row's load does not determine it."""

    load: Load
    ttft: StepKinds | None = None
    tpot: StepKinds | None = None
    total: StepKinds | None = None
    output_token_count: float = 0.0
    """Tokens that ``total`` produces, on one replica."""
    mean_output_tokens: float = 0.0
    queueing: bool = False
    """Memory or slots bind, or everything is queued at once: TTFT is a queue, not a latency."""


def load_of(row: Row) -> Load | None:
    """The kind of load a row describes, ``None`` when it is an open loop or not described."""
    if row.input_tokens is None or row.output_tokens is None:
        return None
    if row.mode == "disagg":
        if row.concurrency is None:
            return None
        return "decode_pool" if row.facts.get("decode_num_workers") else "pool_of_unknown_size"
    if row.concurrency:
        return "burst" if _is_batch(row) else "closed_loop"
    if row.request_rate_per_s == math.inf and row.request_count:
        return "burst"
    return "saturated" if "max throughput" in row.workload or "Offline" in row.workload else None


def _is_batch(row: Row) -> bool:
    words = row.workload.lower()
    return "batch" in words or "first-token" in words or row.request_count == row.concurrency


def schedule(row: Row, subject: Subject) -> Schedule | Refusal:
    """Batches of a row.

    Args:
        row: with lengths and load.
        subject: its resolved deployment.

    Returns:
        Step kinds, or why there are none.
    """
    load = load_of(row)
    if load is None:
        if row.input_tokens is None or row.output_tokens is None:
            return Refusal("lengths not published", row.row_id)
        return Refusal("open loop or load not described", row.row_id)
    if load in {"decode_pool", "pool_of_unknown_size"}:
        return _decode_pool(row, subject, load)
    capacity = kv_tokens(subject)
    if isinstance(capacity, Refusal):
        return capacity
    if load == "saturated":
        return _saturated(row, subject, capacity)
    return _loop(row, subject, load, capacity)


def kv_tokens(subject: Subject) -> int | Refusal:
    """Tokens of context that one replica holds, or that the memory model finds no room."""
    try:
        budget = memory_budget(subject.model, subject.gpu, subject.deployment)
    except BadInput as error:
        return Refusal("architecture incomplete", str(error))
    if budget.kv_capacity_tokens <= 0 and not budget.kv_fixed_bytes_per_sequence:
        return Refusal("memory model finds no room for KV", f"{subject.deployment.model} on {subject.gpu.name}")
    return budget.kv_capacity_tokens


def rule_of(deployment: Deployment) -> int:
    """Batching rule of an engine; vLLM before 0.8 prefilled first and did not split prompts."""
    name, version = engine_version(deployment.engine.name)
    if name == "vllm":
        return PREFILL_FIRST if version < _MIXED_SINCE else MIXED
    if name == "trtllm":
        return RESERVING
    return PREFILL_FIRST if name == "sglang" else MIXED


def _loop(row: Row, subject: Subject, load: Load, capacity: int) -> Schedule:
    low, high = length_spread(row, load)
    queued = row.concurrency or row.request_count or 1
    concurrency = max(round(queued / subject.replica_count), 1)
    requests = concurrency
    if load == "closed_loop":
        requests = max((row.request_count or _REQUESTS_PER_SLOT * queued) // subject.replica_count, concurrency)
        requests = max(min(requests, _MOST_REQUESTS), concurrency)
    engine = subject.deployment.engine
    inputs, outputs = row.input_tokens or 1, row.output_tokens or 1
    result = closed_loop(
        LoopSettings(
            rule=rule_of(subject.deployment),
            concurrency=concurrency,
            request_count=requests,
            input_low_tokens=max(round(low * inputs), 1),
            input_high_tokens=max(round(high * inputs), 1),
            output_low_tokens=max(round(low * outputs), 1),
            output_high_tokens=max(round(high * outputs), 1),
            max_sequence_count=engine.max_sequence_count,
            max_batched_tokens=engine.max_batched_tokens,
            kv_tokens=capacity,
            lag_steps=int(engine.async_scheduling and rule_of(subject.deployment) == MIXED),
            poll_steps=poll_every(row),
            rank_count=subject.deployment.layout.attention_data_parallel,
        )
    )
    return Schedule(
        load=load,
        ttft=result.ttft,
        tpot=result.tpot if outputs > 1 else None,
        total=result.total,
        output_token_count=result.output_token_count,
        mean_output_tokens=result.output_token_count / result.request_count,
        queueing=(
            result.blocked_fraction > _QUEUE_FRACTION
            or (load == "burst" and concurrency > 1)
            or (row.value("ttft") or 0.0) > _QUEUE_S
        ),
    )


def length_spread(row: Row, load: Load) -> tuple[float, float]:
    """Bounds of lengths as shares of the nominal value."""
    if is_dashboard(row):
        return _LENGTH_FLOOR, 1.0
    if load == "burst" and _is_batch(row):
        return 1.0, 1.0
    if row.engine == "sglang":
        return 1.0, 1.0
    return 1 - _FIXED_JITTER, 1 + _FIXED_JITTER


def _saturated(row: Row, subject: Subject, capacity: int) -> Schedule:
    """Steady state with everything queued: ``S = min(slots, KV / (in + out), budget / (1 + in / out))``."""
    engine = subject.deployment.engine
    inputs, outputs = float(row.input_tokens or 1), float(row.output_tokens or 1)
    slots = min(
        float(engine.max_sequence_count),
        capacity / (inputs + outputs),
        engine.max_batched_tokens / (1 + inputs / outputs),
    )
    running = max(slots, 1.0)
    context = running * (inputs + outputs / 2)
    arriving = running / outputs
    if rule_of(subject.deployment) == RESERVING and arriving < 1:
        # Prompts come whole: one step in every 1 / arriving carries a prompt.
        kinds = make_kinds(
            [
                (1 - arriving, running, running, context, 0.0, False),
                (arriving, running + inputs, running, context, inputs * inputs / 2, True),
            ]
        )
    else:
        tokens = running + arriving * inputs
        kinds = make_kinds([(1.0, tokens, running, context, arriving * inputs * inputs / 2, True)])
    return Schedule(load="saturated", total=kinds, output_token_count=running, mean_output_tokens=outputs)


def _decode_pool(row: Row, subject: Subject, load: Load) -> Schedule:
    """Decode workers of a disaggregated deployment: no prefill in the step, load shared evenly.

    Without a count of workers the batch of one lies between one sequence per rank and the whole load; the middle
    of the two in logarithms is taken, and no interval is stated.
    """
    low, high = length_spread(row, "decode_pool")
    share = (low + high) / 2
    workers = subject.replica_count
    running = max((row.concurrency or 1) / workers, 1.0)
    if load == "pool_of_unknown_size":
        fewest = min(running, float(subject.deployment.layout.attention_data_parallel))
        running = math.sqrt(running * fewest)
    inputs, outputs = share * float(row.input_tokens or 1), share * float(row.output_tokens or 1)
    kinds = make_kinds([(1.0, running, running, running * (inputs + outputs / 2), 0.0, False)])
    return Schedule(load=load, tpot=kinds, mean_output_tokens=outputs)
