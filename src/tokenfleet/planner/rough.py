"""Rules of thumb, worked out beside the replay: they say what order of fleet to expect, and why it differs."""

import math
from collections.abc import Iterator

import numpy as np

from tokenfleet import performance
from tokenfleet.domain.plan import Limit, Plan
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.rough import Rough, RoughFigure
from tokenfleet.planner import words
from tokenfleet.planner.estimate import best_batch
from tokenfleet.planner.floors import decode_token_s, prefill_alone_s, sequences_in_step
from tokenfleet.planner.traffic import Demand, Traffic, demand, fresh_tokens

_SPIKE_S = 10.0
_NEAR = 1.25
_BECAUSE: dict[Limit, str] = {
    "prefill_compute": "prompts that arrive together wait for each other's prefill",
    "decode_bandwidth": "each sequence more makes every step longer, and the gap between tokens is promised",
    "kv_memory": "contexts fill the KV memory before arithmetic runs out",
    "sequence_slots": "the engine's sequence slots are full before the gpu is",
    "communication": "the ranks of a replica wait for each other in every step",
    "overhead": "each step has its launches and scheduling, whatever it computes",
    "utilization_cap": "the scenario wants it no fuller",
    "single_request": "one request alone comes close to the promise",
}


def rough(plan: Plan, traffic: Traffic) -> Rough | None:
    """Each rule for the replica of ``plan`` and the peak of ``traffic``, and one sentence on where they disagree.

    Returns:
        ``None`` without a fleet.
    """
    chosen = plan.chosen
    if chosen is None:
        return None
    replica, parts = chosen.replica, plan.question.stands_for_count
    wanted = demand(traffic, caching=replica.deployment.engine.prefix_caching)
    batch = best_batch(replica, wanted, plan.question.slo)
    figures = (
        _tokens(replica, wanted, parts),
        *_concurrency(replica, wanted, batch, parts),
        _spike(replica, traffic, parts),
    )
    limit = plan.limits[0].limit if plan.limits else None
    return Rough(
        figures=figures,
        replayed_count=chosen.carrying_count,
        why=_why(figures, chosen.carrying_count, limit),
    )


def _tokens(replica: ReplicaPhysics, wanted: Demand, parts: int) -> RoughFigure:
    """Demand over what a replica does when it is as full as it gets, as load tests without a promise report it."""
    inputs, outputs = float(wanted.input_tokens.mean()), wanted.mean_output_tokens
    per_request_s = _seconds_of(replica, wanted, _slots(replica, wanted))
    demanded = wanted.rate_per_s * (inputs + outputs) * parts
    stable = (inputs + outputs) / per_request_s
    return RoughFigure(
        name="tokens per second",
        formula=f"{demanded:,.0f} tokens/s at the peak / {stable:,.0f} of a full replica",
        replica_count=demanded / stable,
        leaves_out="the promise: a full replica is slow",
    )


def _concurrency(replica: ReplicaPhysics, wanted: Demand, batch: int, parts: int) -> Iterator[RoughFigure]:
    """Requests in the system by Little's law, over the sequences that a replica runs or holds."""
    context = wanted.mean_context_tokens + wanted.mean_output_tokens / 2
    stay_s = _prefill_s(replica, wanted) + max(0.0, wanted.mean_output_tokens - 1.0) * decode_token_s(
        replica, batch, context
    )
    inside = wanted.rate_per_s * stay_s * parts
    yield RoughFigure(
        name="Little's law",
        formula=f"{wanted.rate_per_s * parts:.3g} requests/s x {words.seconds(stay_s)} / {batch:,} sequences a replica",
        replica_count=inside / batch,
        leaves_out="waiting, and prompts that share steps with decoding",
    )
    for percent in (50, 95):
        tokens = math.ceil(float(np.quantile(wanted.context_tokens + wanted.output_tokens, percent / 100)))
        fit = performance.sequences_at(replica.memory, replica.deployment, max(1, tokens))
        if fit:
            yield RoughFigure(
                name=f"KV at p{percent} context",
                formula=f"{inside:.3g} requests inside / {fit:,} sequences of {words.tokens(tokens)}",
                replica_count=inside / fit,
                leaves_out="time: it asks for memory alone",
            )


def _spike(replica: ReplicaPhysics, traffic: Traffic, parts: int) -> RoughFigure:
    """The prompts of the busiest ten seconds, computed in that time and nothing else."""
    trace = traffic.trace
    fresh = fresh_tokens(trace, caching=replica.deployment.engine.prefix_caching)
    before = np.concatenate([[0.0], np.cumsum(fresh)])
    ends = np.searchsorted(trace.arrival_s, trace.arrival_s + _SPIKE_S)
    tokens = float((before[ends] - before[:-1]).max()) * parts
    per_s = _prefill_tokens_per_s(replica)
    return RoughFigure(
        name="spike",
        formula=f"{words.tokens(tokens)} of prompts in the busiest {_SPIKE_S:g} s / {per_s:,.0f} tokens/s of prefill",
        replica_count=tokens / _SPIKE_S / per_s,
        leaves_out="decoding, which shares the same steps",
    )


def _prefill_tokens_per_s(replica: ReplicaPhysics) -> float:
    """Of steps that are full of prompts and nothing else."""
    step = replica.deployment.engine.max_batched_tokens
    return step / (prefill_alone_s(replica, step) - replica.step_time.request_ps * 1e-12)


def _slots(replica: ReplicaPhysics, wanted: Demand) -> int:
    context = max(1, round(wanted.mean_context_tokens + wanted.mean_output_tokens / 2))
    return max(1, performance.sequences_at(replica.memory, replica.deployment, context))


def _seconds_of(replica: ReplicaPhysics, wanted: Demand, batch: int) -> float:
    context = wanted.mean_context_tokens + wanted.mean_output_tokens / 2
    batch = min(batch, sequences_in_step(replica))
    decode_s = max(0.0, wanted.mean_output_tokens - 1.0) * decode_token_s(replica, batch, context) / batch
    return _full_prefill_s(replica, wanted) + decode_s


def _full_prefill_s(replica: ReplicaPhysics, wanted: Demand) -> float:
    """A mean prompt's part of steps that are full of prompts, however many it shares them with."""
    return float(wanted.input_tokens.mean()) / _prefill_tokens_per_s(replica)


def _prefill_s(replica: ReplicaPhysics, wanted: Demand) -> float:
    return prefill_alone_s(replica, max(1, round(float(wanted.input_tokens.mean()))))


def _why(figures: tuple[RoughFigure, ...], replayed: int, limit: Limit | None) -> str:
    most = max(figures, key=lambda figure: figure.replica_count)
    because = f": {_BECAUSE[limit]}" if limit is not None else ""
    asked = f"{most.name} asks for most, {most.replica_count:.1f}"
    if replayed > _NEAR * math.ceil(most.replica_count):
        return f"Replay needs {replayed:,}, more than any formula ({asked}){because}. {_left_out(most)}"
    if replayed * _NEAR < most.replica_count:
        return f"Replay needs {replayed:,}, fewer than {most.name} says ({most.replica_count:.1f}). {_left_out(most)}"
    low = min(figures, key=lambda figure: figure.replica_count)
    if math.ceil(low.replica_count * _NEAR) >= replayed:
        return f"Replay needs {replayed:,}, and the formulas agree."
    return (
        f"Replay needs {replayed:,}; {asked}, comes near, and {low.name} ({low.replica_count:.1f}) does not{because}. "
        f"{_left_out(low)}"
    )


def _left_out(figure: RoughFigure) -> str:
    return f"{figure.name[0].upper()}{figure.name[1:]} leaves out {figure.leaves_out}."
