"""Floors: what a request takes on a replica that has nothing else to do. No number of replicas goes below."""

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from tokenfleet.contract import conservative_rank, time_given_s
from tokenfleet.domain.plan import Reason
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.slo import Deadline, LatencyTarget, Slo
from tokenfleet.domain.trace import Floats, Trace, of_class
from tokenfleet.performance import chunk_attention_ps
from tokenfleet.planner import words
from tokenfleet.planner.traffic import fresh_tokens

CUT_PROMPTS: Final = "engine: {chunked_prefill: true}"
_PS = 1e-12
_ROUNDING = 1e-12
_PROFILE_TOKENS = (32_768, 8_192, 2_048, 512, 128)
_PROFILE_BATCHES = ((1, 0), (1, 32_768), (8, 8_192), (64, 2_048))
"""Sequences and context of each."""


def prefill_alone_s(replica: ReplicaPhysics, input_tokens: int) -> float:
    """Seconds from arrival to first token of one uncached prompt on an idle replica.

    Chunks of ``max_batched_tokens`` (the whole prompt at once where the engine does not chunk), each a step with
    prefill, and the front end's work once.
    """
    model = replica.step_time
    budget = min(replica.deployment.engine.max_batched_tokens, len(model.token_ps) - 1)
    start = np.arange(0, input_tokens, budget)
    chunk = np.minimum(budget, input_tokens - start)
    base = (model.token_ps[chunk] + chunk_attention_ps(model, start, chunk)).astype(np.float64)
    steps_ps = np.sqrt(np.hypot(base * base, float(model.eager_ps) ** 2))
    return (model.request_ps + float(steps_ps.sum())) * _PS


def prefill_profile(replica: ReplicaPhysics) -> tuple[float, ...]:
    """Seconds to the first token of lone prompts, the longest first, to hold replicas against each other."""
    return tuple(prefill_alone_s(replica, tokens) for tokens in _PROFILE_TOKENS)


def decode_profile(replica: ReplicaPhysics) -> tuple[float, ...]:
    """Seconds of a few batches that decode, to hold replicas against each other."""
    most = (len(replica.step_time.token_ps) - 1) // replica.deployment.engine.step_token_count
    return tuple(decode_step_s(replica, min(count, most), context) for count, context in _PROFILE_BATCHES)


def decode_step_s(replica: ReplicaPhysics, sequence_count: int, context_tokens: float) -> float:
    """Seconds of one step that decodes ``sequence_count`` sequences of ``context_tokens`` each, without prefill."""
    model = replica.step_time
    tokens = sequence_count * replica.deployment.engine.step_token_count
    windowed = min(context_tokens, model.window_tokens)
    per_sequence = model.sequence_ps + model.context_ps * context_tokens + model.window_ps * windowed
    draft_ps = 0.0 if model.draft_ps is None else float(model.draft_ps[sequence_count])
    return (float(model.token_ps[tokens]) + per_sequence * sequence_count + draft_ps) * _PS


def decode_token_s(replica: ReplicaPhysics, sequence_count: int, context_tokens: float) -> float:
    """Seconds per token of each sequence in such steps: less than a step where drafts are kept."""
    return decode_step_s(replica, sequence_count, context_tokens) / replica.deployment.engine.mean_step_tokens


def decode_alone_s(replica: ReplicaPhysics, output_tokens: int) -> float:
    """Least time from first to last token: alone, without context, every draft kept."""
    step_s = decode_step_s(replica, 1, 0.0)
    return (output_tokens - 1) * step_s / replica.deployment.engine.step_token_count


def sequences_in_step(replica: ReplicaPhysics) -> int:
    """Decoding sequences that a step has room for, whatever the memory."""
    engine = replica.deployment.engine
    return min(engine.max_sequence_count, (len(replica.step_time.token_ps) - 1) // engine.step_token_count)


@dataclass(frozen=True, slots=True)
class Shapes:
    """The lengths that floors hang on, read off a trace once. ``None`` where no request has such a thing."""

    fresh_input_tokens: dict[str, int | None]
    """By target: uncached prompt tokens at its quantile (``ttft``, ``e2e``)."""
    context_tokens: dict[str, int | None]
    """By target: prompt length at its quantile, over gaps (``itl``) or over requests of two tokens (``tpot``)."""
    output_tokens: dict[str, int | None]
    """By target: output length at its quantile (``e2e``)."""
    need_tokens: dict[str | None, npt.NDArray[np.int64]]
    """By traffic class with a limit on errors, or on a first or last token: KV tokens each request holds at its end,
    sorted."""
    peak_need_tokens: dict[str | None, npt.NDArray[np.int64]]
    """The same of those that arrive in the peak window; empty where none is told."""
    prompt_tokens: dict[str | None, npt.NDArray[np.int64]]
    """By the same classes: tokens of each prompt, sorted."""
    peak_prompt_tokens: dict[str | None, npt.NDArray[np.int64]]
    """The same of those that arrive in the peak window."""
    most_urgent: dict[str, tuple[int, int, float] | None]
    """By deadline: fresh prompt and output of the request with the least time, and that time in seconds; ``None`` where
    nobody has the deadline."""


def shapes(trace: Trace, slo: Slo, *, caching: bool, window_s: tuple[float, float] | None = None) -> Shapes:
    """Reads the lengths that ``slo`` hangs on from ``trace``, whose peak window is ``window_s``."""
    fresh = fresh_tokens(trace, caching=caching)
    outputs = trace.output_tokens.astype(np.int64)
    inputs = trace.input_tokens.astype(np.float64)
    need = inputs.astype(np.int64) + np.maximum(outputs - 1, 0)
    limited = {each.traffic_class for each in _unserved_limits(slo)}
    since_s, until_s = window_s or (0.0, 0.0)
    peak = (trace.arrival_s >= since_s) & (trace.arrival_s < until_s)
    needs, at_peak = ({name: np.sort(need[of_class(trace, name) & rows]) for name in limited} for rows in (True, peak))
    whole = inputs.astype(np.int64)
    prompts, then = ({name: np.sort(whole[of_class(trace, name) & rows]) for name in limited} for rows in (True, peak))
    result = Shapes({}, {}, {}, needs, at_peak, prompts, then, {})
    for each in slo.deadlines:
        result.most_urgent[each.name] = _most_urgent(trace, each, fresh)
    for target in slo.latency:
        mine = of_class(trace, target.traffic_class)
        several = mine & (outputs > 1)
        if target.metric in {"ttft", "e2e"}:
            result.fresh_input_tokens[target.name] = _at(fresh[mine], target.quantile)
        if target.metric == "e2e":
            result.output_tokens[target.name] = _at(outputs[mine].astype(np.float64), target.quantile)
        if target.metric == "itl":
            result.context_tokens[target.name] = _weighted(inputs[several], outputs[several] - 1, target.quantile)
        if target.metric == "tpot":
            result.context_tokens[target.name] = _at(inputs[several], target.quantile)
    return result


def _most_urgent(trace: Trace, deadline: Deadline, fresh: Floats) -> tuple[int, int, float] | None:
    """Of the requests that may not be late, the one with the least time: the longest answer, where all have as much."""
    mine = np.flatnonzero(of_class(trace, deadline.traffic_class))
    if not len(mine):
        return None
    given_s = time_given_s(deadline, trace.arrival_s[mine] + trace.time_of_day_s)
    order = np.lexsort((-trace.output_tokens[mine], given_s))
    may_fail = len(mine) - conservative_rank(len(mine), deadline.quantile)
    row = order[may_fail]
    return int(fresh[mine[row]]), int(trace.output_tokens[mine[row]]), float(given_s[row])


def _at(values: Floats, quantile: float) -> int | None:
    if len(values) == 0:
        return None
    rank = conservative_rank(len(values), quantile)
    return int(np.partition(values, rank - 1)[rank - 1])


def _weighted(values: Floats, weights: npt.NDArray[np.int64], quantile: float) -> int | None:
    if len(values) == 0:
        return None
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    rank = conservative_rank(int(reached[-1]), quantile)
    return int(values[order][np.searchsorted(reached, rank)])


def latency_floor_s(replica: ReplicaPhysics, found: Shapes, target: LatencyTarget) -> float | None:
    """Least time that ``target`` can come out at on this replica; ``None`` when the trace has no sample for it.

    Each is a lower bound: waiting, company in the batch and growth of the context only add to it. TTFT: prefill of
    the uncached prompt at the quantile. ITL and TPOT: a decode step alone, context no longer than the prompt, of which
    every draft is kept. E2E: the larger of its prefill and its decode part.
    """
    if target.metric in {"itl", "tpot"}:
        context = found.context_tokens[target.name]
        if context is None:
            return None
        luckiest = replica.deployment.engine.step_token_count if target.metric == "tpot" else 1
        return decode_step_s(replica, 1, context) / luckiest
    fresh = found.fresh_input_tokens[target.name]
    if fresh is None:
        return None
    prefill_s = prefill_alone_s(replica, fresh)
    if target.metric == "ttft":
        return prefill_s
    outputs = found.output_tokens[target.name] or 0
    return max(prefill_s, decode_alone_s(replica, outputs))


def pool_tokens(replica: ReplicaPhysics) -> int:
    """Longest request one replica can hold, prompt and output, in tokens."""
    engine = replica.deployment.engine
    longest = replica.longest_sequence_tokens
    if engine.chunked_prefill or _cuts_no_prompt(replica):
        return longest
    # Whoever loses its KV memory is computed again with its output, at once.
    return min(longest, engine.max_batched_tokens)


def whole_prompt_tokens(replica: ReplicaPhysics) -> int | None:
    """Longest prompt that a step takes, where only prompts must fit into one; ``None`` where no step bounds them."""
    return replica.deployment.engine.max_batched_tokens if _cuts_no_prompt(replica) else None


def _cuts_no_prompt(replica: ReplicaPhysics) -> bool:
    """Never takes KV memory from a request that runs, so that what it cannot cut are prompts alone."""
    engine = replica.deployment.engine
    return not engine.chunked_prefill and engine.name.startswith("trtllm")


def too_long_fraction(
    replica: ReplicaPhysics, found: Shapes, traffic_class: str | None = None, *, at_peak: bool = False
) -> float:
    """Share of the requests of a class that one replica can never hold, of all or of those in the peak window."""
    need = (found.peak_need_tokens if at_peak else found.need_tokens)[traffic_class]
    return _longer_fraction(need, pool_tokens(replica))


def too_whole_fraction(
    replica: ReplicaPhysics, found: Shapes, traffic_class: str | None = None, *, at_peak: bool = False
) -> float:
    """Share of the requests of a class whose prompts no step takes whole, of all or of those in the peak window."""
    most = whole_prompt_tokens(replica)
    prompts = (found.peak_prompt_tokens if at_peak else found.prompt_tokens)[traffic_class]
    return 0.0 if most is None else _longer_fraction(prompts, most)


def _longer_fraction(tokens: npt.NDArray[np.int64], most: int) -> float:
    count = len(tokens)
    return (count - int(np.searchsorted(tokens, most, side="right"))) / count if count else 0.0


@dataclass(frozen=True, slots=True)
class _Unserved:
    """How many requests a clause bears that never get an answer."""

    traffic_class: str | None
    limit_fraction: float
    allows: str
    """In words."""


def _unserved_limits(slo: Slo) -> tuple[_Unserved, ...]:
    rates = [
        _Unserved(rate.traffic_class, rate.limit_fraction, f"the promise allows {rate.limit_fraction:.2%} errors")
        for rate in slo.rates
        if rate.kind == "error_rate"
    ]
    # Whoever has no first token is later than any that has: a quantile bears no more of them than lie above it.
    late = [
        _Unserved(
            each.traffic_class, 1.0 - each.quantile, f"{each.name} bears {1.0 - each.quantile:.2%} without an answer"
        )
        for each in slo.latency
        if each.metric in {"ttft", "e2e"}
    ]
    return (*rates, *late)


class _Fraction(Protocol):
    def __call__(self, replica: ReplicaPhysics, found: Shapes, traffic_class: str | None, /, *, at_peak: bool) -> float:
        """Share of the requests of a class, of all or of those in the peak window."""


def _held_too_few(
    replica: ReplicaPhysics, found: Shapes, limits: Iterable[_Unserved], fraction: _Fraction
) -> Iterator[tuple[_Unserved, float, str]]:
    """Clauses that requests too long for a replica break by themselves, with their share, and of which requests."""
    for each in limits:
        for at_peak, where in ((False, ""), (True, " in the peak window")):
            share = fraction(replica, found, each.traffic_class, at_peak=at_peak)
            if share > each.limit_fraction + _ROUNDING:
                yield each, share, where
                break


def holds_too_few(replica: ReplicaPhysics, found: Shapes, slo: Slo) -> bool:
    """Whether more requests than the promise bears are too long for this replica."""
    return any(True for _ in _held_too_few(replica, found, _unserved_limits(slo), too_long_fraction))


def takes_too_few(replica: ReplicaPhysics, found: Shapes, slo: Slo) -> bool:
    """Whether more prompts than the promise bears are too long for one step of this replica."""
    return any(True for _ in _held_too_few(replica, found, _unserved_limits(slo), too_whole_fraction))


def floors(replica: ReplicaPhysics, found: Shapes, slo: Slo, *, fastest: bool = False) -> tuple[Reason, ...]:
    """Why this replica cannot keep the promise at any count; empty when nothing speaks against it yet.

    ``fastest`` says so of the replica, where no other candidate comes nearer.
    """
    where = words.layout(replica.deployment)
    if fastest:
        where = f"the fastest candidate ({where})"
    found_out = [_latency_reason(replica, found, target, where) for target in slo.latency]
    reasons = [reason for reason in found_out if reason is not None]
    reasons += [reason for each in slo.deadlines if (reason := _deadline_reason(replica, found, each, where))]
    reasons += [_context_reason(replica, found, *each) for each in _unserved(replica, found, slo, too_long_fraction)]
    reasons += [_prompt_reason(replica, found, *each) for each in _unserved(replica, found, slo, too_whole_fraction)]
    return tuple(reasons)


def _unserved(
    replica: ReplicaPhysics, found: Shapes, slo: Slo, fraction: _Fraction
) -> list[tuple[_Unserved, float, str]]:
    # Errors say it best; the quantile of a wait only where they are within their limit.
    rate_count = sum(rate.kind == "error_rate" for rate in slo.rates)
    limits = _unserved_limits(slo)
    broken = [*_held_too_few(replica, found, limits[:rate_count], fraction)]
    return broken or [*_held_too_few(replica, found, limits[rate_count:], fraction)][:1]


def _deadline_reason(replica: ReplicaPhysics, found: Shapes, deadline: Deadline, where: str) -> Reason | None:
    """Why the request with the least time is late even alone; ``None`` where it is not, or there is none."""
    urgent = found.most_urgent[deadline.name]
    if urgent is None:
        return None
    given_s, alone_s = urgent[-1], _urgent_alone_s(replica, urgent)
    if alone_s <= given_s:
        return None
    mend = "an earlier cut_off" if deadline.at_s is not None else f"done_within {words.seconds(alone_s)} or more"
    return Reason(
        kind="e2e_floor",
        text=(
            f"{deadline.name}: a request has {words.seconds(given_s)} and takes at least {words.seconds(alone_s)} "
            f"alone on {where}."
        ),
        relax=mend,
    )


def _urgent_alone_s(replica: ReplicaPhysics, urgent: tuple[int, int, float]) -> float:
    fresh, outputs, _ = urgent
    return max(prefill_alone_s(replica, fresh), decode_alone_s(replica, outputs))


def floor_excess(replica: ReplicaPhysics, found: Shapes, slo: Slo) -> float:
    """Largest ratio of a floor to its limit, deadlines included; 0 where nothing promised has a sample."""
    ratios = [
        floor_s / target.limit_s
        for target in slo.latency
        if (floor_s := latency_floor_s(replica, found, target)) is not None
    ]
    urgent = [one for each in slo.deadlines if (one := found.most_urgent[each.name]) is not None]
    ratios += [_urgent_alone_s(replica, one) / one[-1] for one in urgent]
    return max(ratios, default=0.0)


def _latency_reason(replica: ReplicaPhysics, found: Shapes, target: LatencyTarget, where: str) -> Reason | None:
    floor_s = latency_floor_s(replica, found, target)
    if floor_s is None:
        return Reason(
            kind="no_samples",
            text=f"{target.name} cannot be judged: no request of the trace has such a time.",
            relax=f"leave {target.name} out of the promise",
        )
    if floor_s <= target.limit_s:
        return None
    factor = replica.band.step_time_factor
    band = f"{words.seconds(floor_s)} ({words.seconds(floor_s / factor)} to {words.seconds(floor_s * factor)})"
    relax = f"{target.name} >= {words.seconds(floor_s)}, more under load"
    percent = f"p{target.quantile * 100:g}"
    if target.metric == "ttft":
        fresh = found.fresh_input_tokens[target.name] or 0
        text = f"Prefill of the {percent} input ({words.tokens(fresh)}) alone takes {band} on {where}."
        return Reason(kind="ttft_floor", text=text, relax=relax, clause=target.name)
    if target.metric == "e2e":
        text = f"The {percent} request alone takes at least {band} from arrival to its last token on {where}."
        return Reason(kind="e2e_floor", text=text, relax=relax, clause=target.name)
    context = found.context_tokens[target.name] or 0
    text = f"One decode step of a single sequence ({words.tokens(context)} of context) takes {band} on {where}."
    return Reason(kind="itl_floor", text=text, relax=relax, clause=target.name)


def _context_reason(replica: ReplicaPhysics, found: Shapes, limit: _Unserved, share: float, where: str) -> Reason:
    longest = int(found.need_tokens[limit.traffic_class][-1])
    room = pool_tokens(replica)
    of = "" if limit.traffic_class is None else f" of {limit.traffic_class}"
    return Reason(
        kind="context",
        text=(
            f"{share:.2%} of requests{of}{where} are longer than the {words.tokens(room)} that one replica holds "
            f"({words.layout(replica.deployment)}; the longest has {words.tokens(longest)}); {limit.allows}."
        ),
        relax=f"cap prompt plus output at {words.tokens(room)} (workload.max_request: {room})",
    )


def _prompt_reason(replica: ReplicaPhysics, found: Shapes, limit: _Unserved, share: float, where: str) -> Reason:
    longest = int(found.prompt_tokens[limit.traffic_class][-1])
    most = replica.deployment.engine.max_batched_tokens
    of = "" if limit.traffic_class is None else f" of {limit.traffic_class}"
    return Reason(
        kind="context",
        text=(
            f"{share:.2%} of requests{of}{where} have prompts longer than the {words.tokens(most)} of a step "
            f"({words.layout(replica.deployment)}; the longest has {words.tokens(longest)}), and without chunked "
            f"prefill none is cut; {limit.allows}."
        ),
        relax=f"{CUT_PROMPTS}, or cap input at {words.tokens(most)} (workload.max_input: {most})",
    )
