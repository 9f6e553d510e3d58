"""Smaller steps: the engine setting that trades TTFT for ITL.

A step that carries a prefill chunk makes every decoding sequence wait for it. With an engine's default of thousands
of tokens per step such a step takes longer than many ITL promises allow, and the only way out would be replicas so
idle that chunks are rare. Cutting the step to what fits into the promise is the cheaper way more often than not.
"""

from dataclasses import replace
from functools import partial
from itertools import groupby

from tokenfleet import catalog, performance
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.plan import PlanQuestion
from tokenfleet.domain.replica import Deployment, ReplicaPhysics, StepTimeModel
from tokenfleet.domain.slo import Slo
from tokenfleet.planner.recalling import Recall, anew

_SHARES_OF_PROMISE = (0.9, 0.65, 0.4)
"""How much of the promised gap a full step may take; what is left is for the contexts of those that decode."""
_SIZES_PER_DOUBLING = 4
_GRAIN_TOKENS = 64


def step_variants(question: PlanQuestion, recall: Recall = anew) -> tuple[ReplicaPhysics, ...]:
    """Each candidate whose full step is longer than the tightest ITL or TPOT promise, with smaller steps.

    Sequence slots are cut with the step, as every running sequence needs a token of it. Memory and step times are
    worked out anew: a smaller step needs less room for activations.
    """
    if not question.vary_step_tokens:
        return ()
    limit_s = _tightest_s(question.slo)
    if limit_s is None:
        return ()
    sizes = [(candidate, sizes) for candidate in question.candidates if (sizes := _sizes(candidate, limit_s))]
    variants: list[ReplicaPhysics] = []
    for _, same in groupby(sizes, key=lambda pair: pair[0].deployment.gpu):
        # Gpu by gpu, as a promise a little different moves the steps of a few only.
        of_gpu = tuple(same)
        variants += recall("smaller steps", (question.model, of_gpu), partial(_physics, question.model, of_gpu))
    return tuple(variants)


def _sizes(candidate: ReplicaPhysics, limit_s: float) -> tuple[int, ...]:
    """Sizes of smaller steps worth trying, the smallest first."""
    engine = candidate.deployment.engine
    if not engine.chunked_prefill:
        return ()
    sizes = {round_size(largest_step(candidate.step_time, limit_s * share)) for share in _SHARES_OF_PROMISE}
    least = max(_GRAIN_TOKENS, engine.step_token_count)
    return tuple(sorted(size for size in sizes if least <= size < engine.max_batched_tokens))


def _physics(
    model: ModelArchitecture, sizes: tuple[tuple[ReplicaPhysics, tuple[int, ...]], ...]
) -> tuple[ReplicaPhysics, ...]:
    return tuple(
        performance.with_smaller_steps(
            model, catalog.gpu(candidate.deployment.gpu), candidate, _with_step(candidate.deployment, size)
        )
        for candidate, of_it in sizes
        for size in of_it
    )


def _tightest_s(slo: Slo) -> float | None:
    return min((target.limit_s for target in slo.latency if target.metric in {"itl", "tpot"}), default=None)


def round_size(tokens: int) -> int:
    """The largest round size that is no more, of four in each doubling, in whole grains.

    A promise a little different then asks about the same sizes again.
    """
    grain = max(_GRAIN_TOKENS, (1 << tokens.bit_length()) // (2 * _SIZES_PER_DOUBLING))
    return tokens // grain * grain


def largest_step(model: StepTimeModel, limit_s: float) -> int:
    """Most tokens, in whole grains, of a step that takes at most ``limit_s`` without any context."""
    most = (len(model.token_ps) - 1) // _GRAIN_TOKENS * _GRAIN_TOKENS
    low, high = 0, most
    while low < high:
        middle = (low + high + _GRAIN_TOKENS) // 2 // _GRAIN_TOKENS * _GRAIN_TOKENS
        if int(model.token_ps[middle]) * 1e-12 <= limit_s:
            low = middle
        else:
            high = middle - _GRAIN_TOKENS
    return low


def _with_step(deployment: Deployment, size: int) -> Deployment:
    engine = replace(
        deployment.engine,
        max_batched_tokens=size,
        max_sequence_count=min(size // deployment.engine.step_token_count, deployment.engine.max_sequence_count),
    )
    return replace(deployment, engine=engine)
