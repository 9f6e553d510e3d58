"""A replica with one of its limits lifted, to ask by replay what that limit costs."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.plan import Does, Limit
from tokenfleet.domain.replica import ReplicaPhysics, StepShares, StepTimeModel

LIFT = 16
"""How far a limit is lifted: far enough that it cannot be the one that stops the fleet."""

_SAMPLES = 48

SharesOfStep = Callable[[int], StepShares]
"""What the step of so many tokens, without context, is made of."""


def applicable(replica: ReplicaPhysics, does: Does = "answers") -> tuple[Limit, ...]:
    """Limits this replica has: one gpu has nobody to talk to, who only reads holds nobody, images are computed."""
    if does == "sees":
        return ("prefill_compute",)
    limits: tuple[Limit, ...] = ("prefill_compute", "decode_bandwidth", "overhead")
    if does != "reads":
        limits = ("prefill_compute", "decode_bandwidth", "kv_memory", "sequence_slots", "overhead")
    return (*limits, "communication") if replica.deployment.layout.gpu_count > 1 else limits


def lifted(replica: ReplicaPhysics, limit: Limit, shares: SharesOfStep) -> ReplicaPhysics:
    """The same replica with ``LIFT`` times as much of one resource.

    KV memory and slots are counts. Time is taken off the step: the share of each step's matrices, experts,
    collectives and launches that ``shares`` gives to the resource; query-key pairs belong to compute, reading the
    context to bandwidth, launches and the front end to overhead.
    """
    if limit == "kv_memory":
        return replace(replica, kv_block_count=replica.kv_block_count * LIFT)
    if limit == "sequence_slots":
        return _with_slots(replica)
    return replace(replica, step_time=_with_time(replica.step_time, limit, shares))


def _with_slots(replica: ReplicaPhysics) -> ReplicaPhysics:
    deployment = replica.deployment
    engine = deployment.engine
    # A step cannot hold more decoding sequences than tokens, so more slots than that lift nothing.
    slots = min(engine.max_sequence_count * LIFT, (len(replica.step_time.token_ps) - 1) // engine.step_token_count)
    slots = max(slots, engine.max_sequence_count)
    wider = replace(engine, max_sequence_count=slots)
    return replace(replica, deployment=replace(deployment, engine=wider))


def _with_time(model: StepTimeModel, limit: Limit, shares: SharesOfStep) -> StepTimeModel:
    kept = 1.0 - _fraction_by_token_count(model, limit, shares) * (1.0 - 1.0 / LIFT)
    token_ps = np.maximum(1, np.rint(model.token_ps * kept)).astype(np.int64)
    token_ps[0] = min(int(model.token_ps[0]), int(token_ps[0]))
    faster = replace(model, token_ps=token_ps)
    if limit == "prefill_compute":
        return replace(faster, pair_ps=_less(model.pair_ps), window_pair_ps=_less(model.window_pair_ps))
    if limit == "decode_bandwidth":
        return replace(faster, context_ps=_less(model.context_ps), window_ps=_less(model.window_ps))
    if limit == "overhead":
        return replace(
            faster,
            sequence_ps=_less(model.sequence_ps),
            eager_ps=_less(model.eager_ps),
            request_ps=_less(model.request_ps),
        )
    return faster


def _less(duration_ps: int) -> int:
    return duration_ps // LIFT


def _fraction_by_token_count(model: StepTimeModel, limit: Limit, shares: SharesOfStep) -> npt.NDArray[np.float64]:
    """Share of ``token_ps`` that the resource takes, from samples spread evenly in the logarithm."""
    largest = len(model.token_ps) - 1
    counts = np.unique(np.geomspace(1, max(1, largest), _SAMPLES).round().astype(np.int64))
    fractions = [_fraction(shares(int(count)), limit) for count in counts]
    every = np.arange(largest + 1)
    return np.interp(np.log(np.maximum(1, every)), np.log(counts), fractions)


def _fraction(shares: StepShares, limit: Limit) -> float:
    return share_s(shares, limit) / shares.step_s if shares.step_s > 0.0 else 0.0


def share_s(shares: StepShares, limit: Limit) -> float:
    """Seconds of a step that one resource takes; 0 for those that take room, not time."""
    parts: dict[Limit, float] = {
        "prefill_compute": shares.compute_s,
        "decode_bandwidth": shares.bandwidth_s,
        "communication": shares.communication_s,
        "overhead": shares.overhead_s,
    }
    return parts.get(limit, 0.0)
