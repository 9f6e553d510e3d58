"""When no fleet keeps the promise: why, and the smallest change after which one does, found by replay."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tokenfleet import workload
from tokenfleet.domain.plan import PlanQuestion, Reason, Rejected
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.slo import Deadline, Slo
from tokenfleet.planner import words
from tokenfleet.planner.candidates import Failure
from tokenfleet.planner.counting import smallest_enough
from tokenfleet.planner.multiples import whole_of
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.redundancy import limits_wanted
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.screen import Floored, screen
from tokenfleet.planner.search import Search, capacity_reasons
from tokenfleet.planner.steps import step_variants
from tokenfleet.planner.traffic import Traffic, with_hits, with_inputs_capped

_GENEROUS = 4
_MOST_TRIED = 8
_ROOMIER = 16
"""More than room for so many times the replicas that find it is not asked about."""
_SMALLEST_CAP_TOKENS = 64
_CAP_STEP = 1.05
_HIT_STEP = 0.05
_MOST_HIT_STEPS = 19
"""95 %: the last tokens of a prompt are its own."""


def nearest_failure(
    replays: Replays,
    traffic: Traffic,
    failures: Sequence[Failure],
    floored: Sequence[Floored],
    stands_for_count: int = 1,
) -> Failure | None:
    """Who comes closest to the promise when there are more than enough replicas.

    Args:
        replays: The door to the simulator.
        traffic: What the promise is judged on.
        failures: Candidates that were replayed up to their largest count; those that miss least are replayed in full.
        floored: Candidates whose floor breaks the promise, the nearest first; the first few are replayed.
        stands_for_count: Replicas of the whole demand that each of these stands for.

    Returns:
        The failure with the smallest ratio of what happens to what is promised; ``None`` without candidates, or when
        none of them has a value for every clause.
    """
    replayed = sorted(failures, key=lambda one: (one.inferred, one.verdict.excess))[:_MOST_TRIED]
    tried = [_whole(replays, traffic, one, stands_for_count) for one in replayed if not one.inferred]
    for one in floored[:_MOST_TRIED]:
        wanted = one.estimate * _GENEROUS
        count = min(wanted, replays.most(traffic, one.replica))
        verdict = replays.verdict(traffic, one.replica, count)
        tried.append(Failure(one.replica, count, verdict, one.reasons, untried=count < wanted))
    known = [failure for failure in tried if math.isfinite(failure.verdict.excess) and failure.verdict.broken]
    return min(known, key=lambda one: (one.verdict.excess, words.settled(one.replica.deployment)), default=None)


def _whole(replays: Replays, traffic: Traffic, failure: Failure, stands_for_count: int) -> Failure:
    """The same failure with its replay run to the end."""
    if not failure.verdict.cut:
        return failure
    verdict = replays.verdict(traffic, failure.replica, failure.count)
    reasons = capacity_reasons(failure.replica, failure.count * stands_for_count, verdict)
    beyond = failure.reasons[:1] if failure.untried else ()
    return replace(failure, verdict=verdict, reasons=(*beyond, *reasons))


def relaxations(replays: Replays, traffic: Traffic, nearest: Failure, question: PlanQuestion) -> tuple[str, ...]:
    """Changes that make the question answerable, each replayed.

    Args:
        replays: The door to the simulator.
        traffic: What the promise is judged on.
        nearest: Who comes closest, with more than enough replicas.
        question: Everything that stays as it is.

    Returns:
        ``ttft_p99 of premium >= 0.62 s``: what the nearest failure reaches, rounded up; ``cap input at 1,400 tokens``
        when cutting prompts alone is enough for it; and ``serve 45 % of prompt tokens from the prefix cache`` where
        that is. Each with the fleet that a search of the changed question finds.
    """
    text, looser = _looser(replays.slo, nearest)
    changes = [_with_fleet(text, replays, replace(question, slo=looser), traffic)]
    cap = _input_cap(replays, traffic, nearest)
    if cap is not None:
        shorter = with_inputs_capped(traffic, cap)
        changes.append(_with_fleet(f"cap input at {words.tokens(cap)}", replays, question, shorter))
    hits = _cache_hits(replays, traffic, nearest)
    if hits is not None:
        text = f"serve {hits:.0%} of prompt tokens from the prefix cache"
        cached = replace(question, candidates=tuple(map(_with_cache, question.candidates)))
        changes.append(_with_fleet(text, replays, cached, with_hits(traffic, hits)))
    return tuple(changes)


def roomier_zones(
    replays: Replays, traffic: Traffic, failures: Sequence[Failure], question: PlanQuestion
) -> tuple[str, ...]:
    """Limits of zones with which as many replicas find room as keep the promise by replay.

    Args:
        replays: The door to the simulator.
        traffic: What the promise is judged on.
        failures: Candidates that were replayed up to their largest count.
        question: What may be lost, and the zones.

    Returns:
        ``gpu_limit: 2 in zone b``, of the candidate that takes the fewest GPUs; nothing where none was stopped by a
        zone, or no count tried is enough, whatever the room.
    """
    full = sorted((one for one in failures if one.zones_full), key=lambda one: one.verdict.excess)
    fewest_gpus: int | None = None
    text = ""
    for one in full[:_MOST_TRIED]:
        size = one.replica.deployment.layout.gpu_count
        most = min(_ROOMIER * (one.count + 1), replays.most(traffic, one.replica))
        if fewest_gpus is not None:
            most = min(most, (fewest_gpus - 1) // size)
        count = _enough_beyond(replays, traffic, one, most)
        if count is not None:
            fewest_gpus, text = count * size, _limits_for(one.replica, count * question.stands_for_count, question)
    return (text,) if text else ()


def _enough_beyond(replays: Replays, traffic: Traffic, failure: Failure, most: int) -> int | None:
    """The smallest count above that of a failure, up to ``most``, that keeps the promise."""
    first = failure.count
    if most <= first:
        return None
    more = smallest_enough(lambda beyond: replays.quick(traffic, failure.replica, first + beyond).kept, 1, most - first)
    return None if more is None else first + more


def _limits_for(replica: ReplicaPhysics, carrying_count: int, question: PlanQuestion) -> str:
    limits = limits_wanted(question, replica, carrying_count)
    zones = " and ".join(f"gpu_limit: {limit} in zone {name}" for name, limit in limits.items())
    return f"{zones}, so that {words.fleet(replica, carrying_count)} are left"


def _with_fleet(change: str, replays: Replays, question: PlanQuestion, traffic: Traffic) -> str:
    """The change, and the cheapest fleet for ``question``, spare replicas included, where a search finds one."""
    silent = Reporter(None)
    judged = Replays.of(question, replays.replay)
    screened = screen(question, traffic, step_variants(question), silent)
    answers = Search(judged, traffic, question, silent).over(screened.candidates).answers
    replays.count += judged.count
    if not answers:
        return change
    sized = whole_of(answers[0].sized, question)
    return f"{change} ({words.fleet(sized.replica, sized.replica_count)})"


def _looser(slo: Slo, offer: Failure) -> tuple[str, Slo]:
    """The promise that the offer keeps, in words and as one."""
    reached: dict[str, tuple[float, str]] = {}
    broken = {result.name for result in offer.verdict.broken}
    for result in (*offer.verdict.peak, *offer.verdict.overall):
        if result.name in broken and result.predicted is not None:
            worst = max(result.predicted, reached.get(result.name, (0.0, ""))[0])
            reached[result.name] = _rounded_up(worst), result.unit
    clauses = [_clause(name, value, unit) for name, (value, unit) in reached.items()]
    return " and ".join(clauses), _with_limits(slo, {name: value for name, (value, _) in reached.items()})


def _clause(name: str, value: float, unit: str) -> str:
    if name.startswith("done_"):
        return f"{value:.3g} times the time of {name}"
    number = {"s": f"{value:g} s", "count": f"{value:g}"}.get(unit, f"{value * 100:g} %")
    return f"{name} >= {number}"


def _with_limits(slo: Slo, reached: Mapping[str, float]) -> Slo:
    """The promise with other limits, by the names of clauses; what a deadline reaches is in shares of its time."""
    count = reached.get("queue_limit")
    return replace(
        slo,
        latency=tuple(replace(each, limit_s=reached.get(each.name, each.limit_s)) for each in slo.latency),
        error_rate_fraction=reached.get("error_rate", slo.error_rate_fraction),
        rejection_rate_fraction=reached.get("rejection_rate", slo.rejection_rate_fraction),
        queue_limit_count=slo.queue_limit_count if count is None else math.ceil(count),
        class_rates=tuple(
            replace(each, limit_fraction=reached.get(each.name, each.limit_fraction)) for each in slo.class_rates
        ),
        deadlines=tuple(_later(each, reached.get(each.name, 1.0)) for each in slo.deadlines),
    )


def _later(deadline: Deadline, share: float) -> Deadline:
    if deadline.within_s is None:
        return replace(deadline, stretch_factor=max(1.0, share))
    return replace(deadline, within_s=deadline.within_s * max(1.0, share))


def _rounded_up(value: float) -> float:
    """Two digits, never below the value, so that the relaxed promise is the one replay kept."""
    digits = 1 - math.floor(math.log10(value)) if value > 0.0 else 0
    scale = 10.0**digits
    return math.ceil(value * scale - 1e-9) / scale


def _input_cap(replays: Replays, traffic: Traffic, offer: Failure) -> int | None:
    """Longest prompt, to 5 %, with which the same fleet keeps everything; ``None`` when short ones do not help."""

    def keeps(cap_tokens: int) -> bool:
        return replays.quick(with_inputs_capped(traffic, cap_tokens), offer.replica, offer.count).kept

    low, high = _SMALLEST_CAP_TOKENS, int(traffic.trace.input_tokens.max())
    if high <= low or not keeps(low):
        return None
    while high / low > _CAP_STEP:
        middle = int(math.sqrt(low * high))
        if keeps(middle):
            low = middle
        else:
            high = middle
    return low


def _cache_hits(replays: Replays, traffic: Traffic, offer: Failure) -> float | None:
    """Smallest share of prompt tokens, in steps of 5 %, whose service from the cache makes the same fleet enough.

    Returns:
        ``None`` when not even 95 % do, or when as much is shared already.
    """
    trace = traffic.trace
    shared = float(workload.shared_input_tokens(trace).sum()) / float(trace.input_tokens.sum(dtype=np.int64))
    replica = _with_cache(offer.replica)

    def keeps(steps: int) -> bool:
        return replays.quick(with_hits(traffic, steps * _HIT_STEP), replica, offer.count).kept

    low, high = int(shared / _HIT_STEP), _MOST_HIT_STEPS
    if low >= high or not keeps(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if keeps(middle):
            high = middle
        else:
            low = middle
    return high * _HIT_STEP


def _with_cache(replica: ReplicaPhysics) -> ReplicaPhysics:
    engine = replace(replica.deployment.engine, prefix_caching=True)
    return replace(replica, deployment=replace(replica.deployment, engine=engine))


def reasons(rejected: Sequence[Rejected], changes: Sequence[str], nearest: Sequence[Reason]) -> tuple[Reason, ...]:
    """Why nobody can, for a person.

    Args:
        rejected: Every candidate, with its reasons.
        changes: What would help, from :func:`relaxations`.
        nearest: Reasons of the candidate that came closest; empty when none ever reached a floor or a replay.

    Returns:
        The nearest miss with the changes that help; without one, the first reason of each kind.
    """
    if nearest:
        relax = "   or   ".join(changes)
        return tuple(replace(reason, relax=relax or reason.relax) for reason in nearest)
    first: dict[str, Reason] = {}
    for candidate in rejected:
        for reason in candidate.reasons:
            first.setdefault(reason.kind, reason)
    return tuple(first.values())
