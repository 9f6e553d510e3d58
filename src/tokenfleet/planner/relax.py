"""When no fleet keeps the promise: why, and the smallest change after which one does, found by replay."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from tokenfleet import workload
from tokenfleet.domain.plan import Reason, Rejected, Sized
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.slo import Slo
from tokenfleet.planner import words
from tokenfleet.planner.candidates import Failure, family
from tokenfleet.planner.changes import Case, Change, Obstacle, in_part, obstacles
from tokenfleet.planner.multiples import whole_of
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.riding import ride_through
from tokenfleet.planner.screen import Floored, Screened, screen
from tokenfleet.planner.search import Found, Search, capacity_reasons
from tokenfleet.planner.steps import step_variants
from tokenfleet.planner.traffic import Traffic, with_hits, with_inputs_capped

_GENEROUS = 4
_MOST_TRIED = 8
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


def changes_that_work(
    replays: Replays, case: Case, failures: Sequence[Failure], nearest: Failure | None
) -> tuple[str, ...]:
    """Changes after which a search finds a fleet, each with that fleet: ``ttft_p99 >= 0.62 s (3 replicas of ...)``.

    Args:
        replays: The door to the simulator.
        case: What no fleet answers, and the traffic that the promise is judged on.
        failures: Candidates that were replayed up to their largest count.
        nearest: Who comes closest, with more than enough replicas where there is memory for so many.

    Returns:
        Those that are enough alone; where none is, several joined by ``and``, of which none can be left out. Empty
        where nothing that is known to help does.
    """
    known = failures if nearest is None else (*failures, nearest)
    part = _part(replays, case, [one for one in known if one.untried and not one.zones_full])
    hindrances = obstacles(case)
    alone = [found for steps in hindrances if (found := _enough(replays, case, steps)) is not None]
    # What too few replicas reach is not the smallest change where more would do.
    stopped = nearest is not None and nearest.untried and bool(part or (nearest.zones_full and alone))
    promises = () if stopped else _promises(replays, case, nearest)
    looser = [found for one in promises if (found := _works(replays, case, (one,))) is not None]
    offered = tuple(one.text for one in (part, *looser, *alone) if one is not None)
    return offered or _together(replays, case, hindrances)


@dataclass(frozen=True, slots=True)
class _Working:
    """Changes that are enough, and how to say so."""

    changes: tuple[Change, ...]
    sized: Sized
    """The cheapest fleet then, spare replicas included."""
    text: str


def _part(replays: Replays, case: Case, stopped: Sequence[Failure]) -> _Working | None:
    """A part of the demand planned for, where memory stopped somebody short of what its plan needs.

    A plan of no more replicas than were shown to be too few for the whole is luck with fewer requests.
    """
    found = _works(replays, case, (in_part(),)) if stopped else None
    if found is None:
        return None
    kind, parts = family(found.sized.replica), case.question.stands_for_count
    shown = max((one.count * parts for one in stopped if family(one.replica) == kind), default=0)
    return found if found.sized.carrying_count > shown else None


def _enough(replays: Replays, case: Case, steps: Obstacle, beside: tuple[Change, ...] = ()) -> _Working | None:
    """The first of some steps that is enough, made along with what stands ``beside`` it."""
    return next((found for step in steps if (found := _works(replays, case, (*beside, step)))), None)


def _works(replays: Replays, case: Case, changes: tuple[Change, ...]) -> _Working | None:
    changed = _after(case, changes)
    _, found = _sought(replays, changed)
    if not found.answers:
        return None
    sized = whole_of(found.answers[0].sized, changed.question)
    text = " and ".join(change.said(sized) for change in changes)
    return _Working(changes, sized, f"{text} ({words.fleet(sized.replica, sized.replica_count)})")


def _after(case: Case, changes: Iterable[Change]) -> Case:
    for change in changes:
        case = change.made(case)
    return case


def _sought(replays: Replays, case: Case) -> tuple[Screened, Found]:
    silent = Reporter(None)
    question, traffic = case.question, case.traffic
    judged = Replays.of(question, replays.replay)
    screened = screen(question, traffic, step_variants(question), silent)
    found = Search(judged, traffic, question, silent).over(screened.candidates)
    ride_through(judged, traffic, question, found, silent)
    replays.count += judged.count
    return screened, found


def _together(replays: Replays, case: Case, hindrances: Sequence[Obstacle]) -> tuple[str, ...]:
    """All that stands in the way cleared at once, and promises loosened beside it where that is not enough."""
    every = tuple(one[-1] for one in hindrances)
    if not every:
        return ()
    if len(every) > 1 and (found := _works(replays, case, every)) is not None:
        return (_fewest(replays, case, hindrances, found).text,)
    cleared = _after(case, every)
    screened, missed = _sought(replays, cleared)
    judged = Replays.of(cleared.question, replays.replay)
    part = cleared.question.stands_for_count
    nearest = nearest_failure(judged, cleared.traffic, missed.failures, screened.floored, part)
    replays.count += judged.count
    offered = []
    for promise in _promises(judged, cleared, nearest):
        found = _works(replays, case, (*every, promise))
        if found is not None:
            offered.append(_fewest(replays, case, hindrances, found).text)
    return tuple(offered)


def _fewest(replays: Replays, case: Case, hindrances: Sequence[Obstacle], found: _Working) -> _Working:
    """The same without what can be left out, and with the smallest steps of the rest."""
    for change in reversed(found.changes):
        fewer = tuple(one for one in found.changes if one is not change)
        found = (fewer and _works(replays, case, fewer)) or found
    for steps in hindrances:
        if steps[-1] in found.changes and len(steps) > 1:
            beside = tuple(one for one in found.changes if one is not steps[-1])
            found = _enough(replays, case, steps, beside) or found
    return found


def _promises(replays: Replays, case: Case, nearest: Failure | None) -> tuple[Change, ...]:
    """A looser promise, which the nearest failure keeps; shorter prompts or more cache hits, with which it keeps this.

    ``ttft_p99 of premium >= 0.62 s``: what it reaches, rounded up; ``cap input at 1,400 tokens``; and ``serve 45 % of
    prompt tokens from the prefix cache``.
    """
    if nearest is None:
        return ()
    traffic = case.traffic
    changes = [_looser(replays.slo, nearest)]
    cap = _input_cap(replays, traffic, nearest)
    if cap is not None:
        shorter = f"cap input at {words.tokens(cap)}"
        changes.append(_change(shorter, lambda now: replace(now, traffic=with_inputs_capped(now.traffic, cap))))
    hits = _cache_hits(replays, traffic, nearest)
    if hits is not None:
        changes.append(_change(f"serve {hits:.0%} of prompt tokens from the prefix cache", partial(_hitting, hits)))
    return tuple(changes)


def _hitting(fraction: float, case: Case) -> Case:
    cached = replace(case.question, candidates=tuple(map(_with_cache, case.question.candidates)))
    return Case(cached, with_hits(case.traffic, fraction))


def _change(text: str, made: Callable[[Case], Case]) -> Change:
    return Change(lambda _: text, made)


def _looser(slo: Slo, offer: Failure) -> Change:
    """The promise that the offer keeps; a deadline by the clock stays as it is, see its cut-off."""
    reached: dict[str, tuple[float, str]] = {}
    given_s = {each.name: each.within_s for each in slo.deadlines}
    broken = {result.name for result in offer.verdict.broken}
    for result in (*offer.verdict.peak, *offer.verdict.overall):
        if result.name in broken and result.predicted is not None:
            within_s, value, unit = given_s.get(result.name, 1.0), result.predicted, result.unit
            if within_s is None:
                continue
            if result.name in given_s:
                value, unit = value * within_s, "s"
            worst = max(value, reached.get(result.name, (0.0, ""))[0])
            reached[result.name] = _rounded_up(worst), unit
    clauses = [_clause(name, value, unit) for name, (value, unit) in reached.items()]
    limits = {name: value for name, (value, _) in reached.items()}

    def made(case: Case) -> Case:
        return replace(case, question=replace(case.question, slo=_with_limits(case.question.slo, limits)))

    return _change(" and ".join(clauses), made)


def _clause(name: str, value: float, unit: str) -> str:
    number = {"s": f"{value:g} s", "count": f"{value:g}"}.get(unit, f"{value * 100:g} %")
    clause, of, traffic_class = name.partition(" of ")
    kind = "done_within" if clause.startswith("done_within_") else clause
    return f"{kind}{of}{traffic_class} >= {number}"


def _with_limits(slo: Slo, reached: Mapping[str, float]) -> Slo:
    """The promise with other limits, by the names of clauses; that of a deadline is how long after the arrival."""
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
        deadlines=tuple(replace(each, within_s=reached.get(each.name, each.within_s)) for each in slo.deadlines),
    )


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


def reasons(
    rejected: Sequence[Rejected], changes: Sequence[str] | None, nearest: Sequence[Reason]
) -> tuple[Reason, ...]:
    """Why nobody can, for a person.

    Args:
        rejected: Every candidate, with its reasons.
        changes: What helps, from :func:`changes_that_work`; ``None`` where nothing could be tried.
        nearest: Reasons of the candidate that came closest; empty when none ever reached a floor or a replay.

    Returns:
        The nearest miss; without one, the first reason of each kind. Each with all the changes that help: what a
        reason says of its own candidate was not tried.
    """
    told = dict.fromkeys(nearest)
    if not nearest:
        first: dict[str, Reason] = {}
        for candidate in rejected:
            for reason in candidate.reasons:
                first.setdefault(reason.kind, reason)
        told = dict.fromkeys(first.values())
    if changes is None:
        return tuple(told)
    return tuple(replace(reason, relax="   or   ".join(changes)) for reason in told)
