"""A closed loop replayed in step space: which batches an engine forms, whatever a step takes.

With a fixed number of requests in flight, arrivals happen at completions, so the sequence of batches follows
from concurrency, lengths and policy alone. One replay therefore serves every gpu and every set of
coefficients: mean TTFT, TPOT and throughput are sums of step times with weights that are known beforehand.

The walk adds each step to a few bins of like steps; per bin it keeps the weight and the weighted means of what a
step time depends on.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tokenfleet.calibration.step_walk import BINS, Rules, walk
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Floats

_TTFT, _TPOT, _ALL = 0, 1, 2


@dataclass(frozen=True, slots=True)
class StepKinds:
    """Weighted steps. ``weight`` adds up so that ``sum(weight * step_s)`` is the metric in seconds.

    Arrays have one entry per kind. Tokens, sequences and contexts are the replica's; pairs too, but
    at least what they were if every data-parallel rank had the longest chunk, because the others wait for that rank.
    """

    weight: Floats
    token_count: Floats
    sequence_count: Floats
    context_tokens: Floats
    pair_count: Floats
    prefill: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """What a closed loop does, apart from how long a step takes."""

    ttft: StepKinds
    tpot: StepKinds
    total: StepKinds
    """All steps: the duration of the run."""
    output_token_count: int
    request_count: int
    blocked_fraction: float
    """Share of steps in which memory or slots kept a waiting request out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """What shapes the batches of a closed loop."""

    rule: int
    concurrency: int
    request_count: int
    input_low_tokens: int
    input_high_tokens: int
    output_low_tokens: int
    output_high_tokens: int
    max_sequence_count: int
    max_batched_tokens: int
    kv_tokens: int
    """Tokens of context the replica holds, all ranks together."""
    lag_steps: int = 0
    """Steps an arrival waits while the next batch is already scheduled."""
    rank_count: int = 1
    """Data-parallel attention ranks that step together."""
    poll_steps: int = 1
    """Decode steps between two looks at the door; a step with prefill is always followed by one."""


@lru_cache(maxsize=4096)
def closed_loop(settings: LoopSettings) -> ClosedLoop:
    """Replay a closed loop; equal settings are replayed once.

    Lengths are uniform between their bounds and come from a fixed seed.

    Args:
        settings: concurrency, lengths and the engine's batching limits.

    Returns:
        Weighted step kinds for mean TTFT, mean TPOT and the whole run.
    """
    generator = np.random.default_rng(20260101)
    count = settings.request_count
    inputs = generator.integers(settings.input_low_tokens, settings.input_high_tokens, count, endpoint=True)
    outputs = generator.integers(settings.output_low_tokens, settings.output_high_tokens, count, endpoint=True)
    sums, blocked, steps = walk(
        inputs.astype(np.int64),
        outputs.astype(np.int64),
        Rules(
            rule=settings.rule,
            concurrency=settings.concurrency,
            max_sequences=settings.max_sequence_count,
            budget=settings.max_batched_tokens,
            capacity=max(settings.kv_tokens, int((inputs + outputs).max()) + 1),
            lag=settings.lag_steps,
            ranks=settings.rank_count,
            poll=settings.poll_steps,
        ),
    )
    return ClosedLoop(
        ttft=_kinds(sums[_TTFT]),
        tpot=_kinds(sums[_TPOT]),
        total=_kinds(sums[_ALL]),
        output_token_count=int(outputs.sum()),
        request_count=count,
        blocked_fraction=blocked / max(steps, 1),
    )


def _kinds(sums: Floats) -> StepKinds:
    used = np.flatnonzero(sums[:, 0] > 0)
    weight = sums[used, 0]
    mean = sums[used, 1:] / weight[:, None]
    return StepKinds(weight, mean[:, 0], mean[:, 1], mean[:, 2], mean[:, 3], used >= BINS)


def make_kinds(rows: list[tuple[float, float, float, float, float, bool]]) -> StepKinds:
    """Step kinds written out: weight, tokens, sequences, context tokens, pairs, prefill."""
    table = np.array([row[:5] for row in rows], dtype=np.float64).reshape(-1, 5)
    flags = np.array([row[5] for row in rows], dtype=np.bool_)
    return StepKinds(table[:, 0], table[:, 1], table[:, 2], table[:, 3], table[:, 4], flags)
