"""How many replicas the demand needs, by formula: where the search starts, never what it answers.

One replica is a queue of prompts before a batch that decodes. At ``r`` requests per second (``_BUSY`` of what the
formula says, since arrivals come in bursts) prompts need ``C`` steps of ``P`` seconds in all, and ``n`` sequences
decode. A step with a prompt carries the decoding ones as well, for what they add to it; the time that is left goes to
steps that only decode, so there are ::

    steps per second = r * C + (1 - r * (P + C * added(n))) / decode_step(n)

and by Little's law ``n = r * (output - 1) / steps per second``, solved for the least ``n``. The load is borne where
that ``n`` has sequence slots and KV blocks. Then each latency:

* ITL: ``decode_step(n)`` keeps the limit, and steps with a prompt that do not are as rare as the quantile asks.
* TPOT: the mean time between steps keeps the limit.
* TTFT: prompts wait as in M/G/1, with the exponential tail of heavy traffic: ``P(wait > t) = u * exp(-t / w)`` with
  ``w = E[S^2] / (2 E[S] (1 - u))`` for the work ``S`` of a prompt and the share ``u`` of time that prompts take. A
  router over ``m`` replicas lies between a queue at each and one for all: ``u`` to the power of, and ``w`` over, the
  square root of ``m``.
* E2E: the wait and the work of a prompt, then as many steps as its output at the quantile.

What replicas compute of a prompt depends on how many there are, see :mod:`tokenfleet.planner.prompts`. Against counts
found by replay for 200 candidates of eight demands the root mean square of the ratio is 1.4. Replay corrects it.
"""

import math

import numpy as np

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.slo import LatencyTarget, Slo
from tokenfleet.domain.trace import Floats
from tokenfleet.planner.floors import decode_step_s, decode_token_s, prefill_alone_s, sequences_in_step
from tokenfleet.planner.prompts import Chunks, Prompts
from tokenfleet.planner.traffic import Demand

_PS = 1e-12
_BUSY = 0.9
_ROUTED = 0.5
_ROUNDS = 40
_CLOSE = 0.02
_MOST = 1 << 20
"""On so many replicas nobody waits."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the formula says."""

    count: int
    """Replicas; at least 1."""
    doubtful: bool
    """No count keeps the latencies promised, by the formula: ``count`` bears the load alone."""


@dataclass(frozen=True, slots=True)
class _Flow:
    """One replica at some rate."""

    rate_per_s: float
    decode_s: float
    """A step that only decodes."""
    added_s: float
    """By decoding sequences to a step with a prompt."""
    steps_per_s: float


@dataclass(frozen=True, slots=True)
class _Timed:
    """The steps that prompts take, and how long each is without company."""

    chunks: Chunks
    chunk_s: Floats
    prompt_s: float
    """Of a mean prompt."""
    prompt_steps: float


class _Formula:
    """One candidate against one demand."""

    def __init__(self, replica: ReplicaPhysics, demand: Demand, prompts: Prompts, slo: Slo) -> None:
        self._replica = replica
        self._demand = demand
        self._prompts = prompts
        self._slo = slo
        model, engine = replica.step_time, replica.deployment.engine
        self._budget = min(engine.max_batched_tokens, len(model.token_ps) - 1)
        self._steps = max(0.0, demand.mean_output_tokens - 1.0) / engine.mean_step_tokens
        self._context = demand.mean_context_tokens + demand.mean_output_tokens / 2
        self._most = _most_sequences(replica, self._context)
        self._timed: dict[int, _Timed] = {}

    def estimate(self) -> Estimate:
        """The fewest replicas that bear the load and keep the promise; those that bear it, where none do."""
        doubtful = not self._keeps(_MOST, judged=True)
        low, high = 0, 1
        while high < _MOST and not self._keeps(high, judged=not doubtful):
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._keeps(middle, judged=not doubtful) else (middle, high)
        return Estimate(high, doubtful)

    def _keeps(self, count: int, *, judged: bool) -> bool:
        timed = self._chunks(count)
        flow = self._flow(self._demand.rate_per_s / count / _BUSY, timed)
        if flow is None:
            return False
        return not judged or all(
            self._keeps_target(target, flow, timed.chunks, timed.chunk_s, count) for target in self._slo.latency
        )

    def _chunks(self, count: int) -> _Timed:
        """The steps that prompts take where there are so many replicas."""
        chunks = self._prompts.chunks(self._budget, count)
        key = id(chunks)
        if key not in self._timed:
            model = self._replica.step_time
            base = model.token_ps[chunks.tokens] + float(model.pair_ps) * chunks.pairs
            chunk_s = np.sqrt(np.hypot(base * base, float(model.eager_ps) ** 2)) * _PS
            prompt_s, steps = float((chunks.share * chunk_s).sum()), float(chunks.share.sum())
            self._timed[key] = _Timed(chunks, chunk_s, prompt_s, steps)
        return self._timed[key]

    def _flow(self, rate_per_s: float, timed: _Timed) -> _Flow | None:
        """The steps of a second; ``None`` where the replica cannot bear the rate."""
        prompt_s, prompt_steps = timed.prompt_s, timed.prompt_steps
        running = 1.0
        for _ in range(_ROUNDS):
            sequences = max(1, math.ceil(running))
            if sequences > self._most:
                return None
            decode_s = decode_step_s(self._replica, sequences, self._context)
            alone = sequences * self._replica.deployment.engine.step_token_count
            added_s = decode_s - float(self._replica.step_time.token_ps[alone]) * _PS
            left = 1.0 - rate_per_s * (prompt_s + prompt_steps * added_s)
            if left <= 0.0:
                return None
            steps_per_s = rate_per_s * prompt_steps + left / decode_s
            before, running = running, rate_per_s * self._steps / steps_per_s
            if running <= before * (1.0 + _CLOSE):
                return _Flow(rate_per_s, decode_s, added_s, steps_per_s)
        return None

    def _keeps_target(self, target: LatencyTarget, flow: _Flow, chunks: Chunks, chunk_s: Floats, count: int) -> bool:
        if target.metric == "itl":
            slow = float(chunks.share[chunk_s + flow.added_s > target.limit_s].sum())
            rare = flow.rate_per_s * slow / flow.steps_per_s <= 1.0 - target.quantile
            return rare and flow.decode_s <= target.limit_s
        token_s = 1.0 / (flow.steps_per_s * self._replica.deployment.engine.mean_step_tokens)
        if target.metric == "tpot":
            return token_s <= target.limit_s
        limit_s = target.limit_s
        if target.metric == "e2e":
            limit_s -= token_s * float(np.quantile(self._demand.output_tokens, target.quantile))
        late = self._late(limit_s - self._replica.step_time.request_ps * _PS, flow, chunks, chunk_s, count)
        return late <= 1.0 - target.quantile

    def _late(self, limit_s: float, flow: _Flow, chunks: Chunks, chunk_s: Floats, count: int) -> float:
        """Share of prompts that wait and are computed for longer than a limit."""
        work_s = chunks.per_prompt(chunk_s) + chunks.count * flow.added_s
        mean_s = float((chunks.prompt_share * work_s).sum())
        busy = flow.rate_per_s * mean_s
        if busy >= 1.0:
            return 1.0
        routed = count**_ROUTED
        wait_s = float((chunks.prompt_share * work_s * work_s).sum()) / (2.0 * mean_s * (1.0 - busy)) / routed
        left_s = limit_s - work_s
        waits = busy**routed * np.exp(-np.maximum(left_s, 0.0) / wait_s)
        return float((chunks.prompt_share * np.where(left_s < 0.0, 1.0, waits)).sum())


def replica_estimate(replica: ReplicaPhysics, demand: Demand, prompts: Prompts, slo: Slo) -> Estimate:
    """Replicas the peak window needs by the formula."""
    return _Formula(replica, demand, prompts, slo).estimate()


def best_batch(replica: ReplicaPhysics, demand: Demand, slo: Slo) -> int:
    """Sequences that share a step where a replica does most requests, as many as slots, KV and ITL allow.

    Seconds of a replica that a request takes: ``prefill + (output - 1) * decode_step(n) / n``.
    """
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
    return best[1]


def keeps_pace(replica: ReplicaPhysics, sequence_count: int, context_tokens: float, slo: Slo) -> bool:
    """Whether steps of so many decoding sequences are short enough for the ITL and TPOT promises."""
    step_s = decode_step_s(replica, sequence_count, context_tokens)
    takes_s = {"itl": step_s, "tpot": step_s / replica.deployment.engine.mean_step_tokens}
    return all(takes_s.get(target.metric, 0.0) <= target.limit_s for target in slo.latency)


def _most_sequences(replica: ReplicaPhysics, context_tokens: float) -> int:
    held = replica.kv_block_count // max(1, replica.sequence_blocks(context_tokens))
    return max(1, min(held, sequences_in_step(replica)))


def _mean_prefill_s(replica: ReplicaPhysics, demand: Demand) -> float:
    lengths = demand.likely_input_tokens
    return math.fsum(prefill_alone_s(replica, length) for length in lengths) / len(lengths)
