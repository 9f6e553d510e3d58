"""How many replicas the demand needs, by formula: where the search starts, never what it answers.

Seconds of one replica that a request takes when ``n`` sequences share each step::

    prefill(input) + (output - 1) * decode_step(n, context) / n

``n`` is limited by the sequence slots, by the KV blocks that a mean request holds (half its output on average: by
Little's law the pool holds ``rate * time in system`` such requests), and by the ITL or TPOT promise. Prefill is
counted as steps of its own, as if nothing decoded beside it: too dear by the weights it reads with others. Replicas
are kept at 85 % of that rate, since arrivals come in bursts. Where a single prefill chunk takes longer than the ITL
promise, such steps must be as rare as its quantile allows, which is often the smaller rate. Replay corrects all of it.
"""

import math

from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.slo import Slo
from tokenfleet.planner.floors import decode_step_s, decode_token_s, prefill_alone_s, sequences_in_step
from tokenfleet.planner.traffic import Demand

_UTILIZATION_FRACTION = 0.85


def sustainable_rate_per_s(replica: ReplicaPhysics, demand: Demand, slo: Slo) -> float:
    """Requests per second that one replica can take by the formula above; > 0."""
    rate = _best(replica, demand, slo)[0]
    return min(rate * _UTILIZATION_FRACTION, _rate_of_rare_chunks_per_s(replica, demand, slo))


def best_batch(replica: ReplicaPhysics, demand: Demand, slo: Slo) -> int:
    """Sequences that share a step where the formula's rate is highest."""
    return _best(replica, demand, slo)[1]


def _best(replica: ReplicaPhysics, demand: Demand, slo: Slo) -> tuple[float, int]:
    outputs = demand.mean_output_tokens
    context = demand.mean_context_tokens + outputs / 2
    prefill_s = _mean_prefill_s(replica, demand)
    best = 0.0, 1
    count, most = 1, _most_sequences(replica, context)
    while count <= most:
        if count > 1 and not keeps_pace(replica, count, context, slo):
            break
        token_s = decode_token_s(replica, count, context)
        rate = 1.0 / (prefill_s + max(0.0, outputs - 1.0) * token_s / count)
        best = max(best, (rate, count), key=lambda one: one[0])
        count += max(1, count // 8)
    return best


def keeps_pace(replica: ReplicaPhysics, sequence_count: int, context_tokens: float, slo: Slo) -> bool:
    """Whether steps of so many decoding sequences are short enough for the ITL and TPOT promises."""
    step_s = decode_step_s(replica, sequence_count, context_tokens)
    takes_s = {"itl": step_s, "tpot": step_s / replica.deployment.engine.mean_step_tokens}
    return all(takes_s.get(target.metric, 0.0) <= target.limit_s for target in slo.latency)


def _rate_of_rare_chunks_per_s(replica: ReplicaPhysics, demand: Demand, slo: Slo) -> float:
    """Rate at which steps with a prefill chunk are as rare as an ITL promise needs, if each of them breaks it."""
    budget = replica.deployment.engine.max_batched_tokens
    prompt = max(1.0, float(demand.input_tokens.mean()))
    chunk_count = math.ceil(prompt / budget)
    context = demand.mean_context_tokens
    chunk = max(1, min(budget, round(prompt)) - 1)
    decode_s = decode_step_s(replica, 1, context)
    chunk_s = prefill_alone_s(replica, chunk) - replica.step_time.request_ps * 1e-12
    rates = [
        (1.0 - target.quantile) / (chunk_count * decode_s)
        for target in slo.latency
        if target.metric == "itl" and target.limit_s < chunk_s
    ]
    return min(rates, default=math.inf)


def replica_estimate(replica: ReplicaPhysics, demand: Demand, slo: Slo) -> int:
    """Replicas the peak window needs by the formula; at least 1."""
    return max(1, math.ceil(demand.rate_per_s / sustainable_rate_per_s(replica, demand, slo)))


def _most_sequences(replica: ReplicaPhysics, context_tokens: float) -> int:
    held = replica.kv_block_count // max(1, replica.sequence_blocks(context_tokens))
    return max(1, min(held, sequences_in_step(replica)))


def _mean_prefill_s(replica: ReplicaPhysics, demand: Demand) -> float:
    lengths = demand.likely_input_tokens
    return math.fsum(prefill_alone_s(replica, length) for length in lengths) / len(lengths)
