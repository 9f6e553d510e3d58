"""When no fleet keeps the promise: why, and the smallest change after which one does, found by replay."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tokenfleet import workload
from tokenfleet.domain.plan import PlanQuestion, Reason, Rejected
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.slo import Slo
from tokenfleet.planner import words
from tokenfleet.planner.candidates import Failure, family
from tokenfleet.planner.changes import Case, Change, Graded, Obstacle, in_part, obstacles, plain
from tokenfleet.planner.redundancy import largest, spare_of_a_part
from tokenfleet.planner.relaxing import Trials, Working
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.screen import Floored
from tokenfleet.planner.search import capacity_reasons
from tokenfleet.planner.traffic import Traffic, with_hits, with_inputs_capped
from tokenfleet.planner.verdict import Verdict

_GENEROUS = 4
_MOST_TRIED = 8
_SMALLEST_CAP_TOKENS = 64
_CAP_STEP = 1.05
_HIT_STEP = 0.05
_MOST_HIT_STEPS = 19
"""95 %: the last tokens of a prompt are its own."""
_LIMIT_STEP = 1.03
_ROUNDING = 1.02
_LARGER = 8
"""Steps beyond what the nearest failure needs on the busiest stretch, for a whole demand that is harder."""
_BEYOND = 3.0
"""Of a promise of 0 any other is endlessly many times as much: so many times as much as is reached are gone through."""


def nearest_failure(
    replays: Replays,
    traffic: Traffic,
    failures: Sequence[Failure],
    floored: Sequence[Floored],
    stands_for_count: int = 1,
    *,
    room: PlanQuestion | None = None,
) -> Failure | None:
    """Who comes closest to the promise when there are more than enough replicas.

    Args:
        replays: The door to the simulator.
        traffic: What the promise is judged on.
        failures: Candidates that were replayed up to their largest count; those that miss least are replayed in full.
        floored: Candidates whose floor breaks the promise, the nearest first; the first few are replayed.
        stands_for_count: Replicas of the whole demand that each of these stands for.
        room: No more replicas than the zones and the quota of this question hold; ``None``: any number.

    Returns:
        The failure with the smallest ratio of what happens to what is promised; ``None`` without candidates, or when
        none of them has a value for every clause.
    """
    replayed = sorted(failures, key=lambda one: (one.inferred, one.verdict.excess))[:_MOST_TRIED]
    tried = [_whole(replays, traffic, one, stands_for_count) for one in replayed if not one.inferred]
    for one in floored[:_MOST_TRIED]:
        wanted = one.estimate * _GENEROUS
        count = _in_room(room, one.replica, min(wanted, replays.most(traffic, one.replica)))
        if not count:
            continue
        verdict = replays.verdict(traffic, one.replica, count)
        tried.append(Failure(one.replica, count, verdict, one.reasons, untried=count < wanted))
    known = [failure for failure in tried if math.isfinite(failure.verdict.excess) and failure.verdict.broken]
    return min(known, key=lambda one: (one.verdict.excess, words.settled(one.replica.deployment)), default=None)


def _in_room(room: PlanQuestion | None, replica: ReplicaPhysics, most: int) -> int:
    if room is None:
        return most
    return largest(lambda count: spare_of_a_part(room, replica, count) is not None, most)


def _whole(replays: Replays, traffic: Traffic, failure: Failure, stands_for_count: int) -> Failure:
    """The same failure with its replay run to the end."""
    if not failure.verdict.cut:
        return failure
    verdict = replays.verdict(traffic, failure.replica, failure.count)
    reasons = capacity_reasons(failure.replica, failure.count * stands_for_count, verdict)
    beyond = failure.reasons[:1] if failure.untried else ()
    return replace(failure, verdict=verdict, reasons=(*beyond, *reasons))


def changes_that_work(
    replays: Replays, trials: Trials, failures: Sequence[Failure], nearest: Failure | None
) -> tuple[Working, ...]:
    """Changes after which a plan finds a fleet, each with that fleet: ``ttft_p99 >= 0.62 s (3 replicas of ...)``.

    Args:
        replays: The door to the simulator.
        trials: What no fleet answers, to be tried with changes.
        failures: Candidates that were replayed up to their largest count.
        nearest: Who comes closest, with more than enough replicas where there is memory for so many.

    Returns:
        Those that are enough alone, as small as they can be; where none is, several joined by ``and``, of which none
        can be left out. Empty where nothing that is known to help does.
    """
    known = failures if nearest is None else (*failures, nearest)
    part = _part(trials, [one for one in known if one.untried and not one.zones_full])
    hindrances = obstacles(trials.case)
    alone = [found for steps in hindrances if (found := trials.first(steps)) is not None]
    # What too few replicas reach is not the smallest change where more would do.
    stopped = nearest is not None and nearest.untried and bool(part or (nearest.zones_full and alone))
    graded = () if stopped else promises(replays, trials, (), nearest)
    looser = [found for one in graded if (found := trials.smallest(one)) is not None]
    offered = tuple(one for one in (part, *looser, *alone) if one is not None)
    return offered or _together(replays, trials, hindrances)


def _part(trials: Trials, stopped: Sequence[Failure]) -> Working | None:
    """A part of the demand planned for, where memory stopped somebody short of what its plan needs.

    A plan of no more replicas than were shown to be too few for the whole is luck with fewer requests.
    """
    found = trials.works((in_part(),)) if stopped else None
    if found is None:
        return None
    kind, parts = family(found.sized.replica), trials.case.question.stands_for_count
    shown = max((one.count * parts for one in stopped if family(one.replica) == kind), default=0)
    return found if found.sized.carrying_count > shown else None


def _together(replays: Replays, trials: Trials, hindrances: Sequence[Obstacle]) -> tuple[Working, ...]:
    """All that stands in the way cleared at once, and promises loosened beside it where that is not enough."""
    every = tuple(one[-1] for one in hindrances)
    if not every:
        return ()
    if len(every) > 1 and (found := trials.works(every)) is not None:
        return (fewest(trials, hindrances, found),)
    cleared, missed = trials.after(every), trials.sought(every)
    traffic = trials.cut(cleared.traffic)
    judged = Replays.of(cleared.question, replays.replay)
    part = cleared.question.stands_for_count
    nearest = nearest_failure(judged, traffic, missed.found.failures, missed.screened.floored, part)
    graded = promises(judged, trials, every, nearest)
    replays.count += judged.count
    looser = (trials.smallest(one, every) for one in graded)
    return tuple(fewest(trials, hindrances, found) for found in looser if found is not None)


def fewest(trials: Trials, hindrances: Sequence[Obstacle], found: Working) -> Working:
    """Changes that are enough, beside what clears some hindrances.

    Returns:
        The same without what can be left out, and with the smallest steps of the rest.
    """
    for change in reversed(found.changes):
        fewer = tuple(one for one in found.changes if one is not change)
        found = (fewer and trials.works(fewer)) or found
    for steps in hindrances:
        if steps[-1] in found.changes and len(steps) > 1:
            beside = tuple(one for one in found.changes if one is not steps[-1])
            found = trials.first(steps, beside) or found
    return found


def promises(replays: Replays, trials: Trials, made: tuple[Change, ...], nearest: Failure | None) -> tuple[Graded, ...]:
    """A looser promise, which the nearest failure keeps; shorter prompts or more cache hits, with which it keeps this.

    ``ttft_p99 of premium >= 0.62 s``: what it reaches, rounded up; ``cap input at 1,400 tokens``; and ``serve 45 % of
    prompt tokens from the prefix cache``.
    """
    if nearest is None:
        return ()
    whole = trials.after(made).traffic
    traffic = trials.cut(whole)
    verdicts = [nearest.verdict]
    if traffic is not whole:
        count = min(nearest.count, replays.most(whole, nearest.replica))
        verdicts.append(replays.verdict(whole, nearest.replica, count))
    changes = [_looser(replays.slo, verdicts)]
    cap = _input_cap(replays, traffic, nearest)
    if cap is not None:
        changes.append(_shorter(cap, int(traffic.trace.input_tokens.max())))
    hits = _cache_hits(replays, traffic, nearest)
    if hits is not None:
        changes.append(_more_hits(*hits))
    return tuple(changes)


def _shorter(cap_tokens: int, longest_tokens: int) -> Graded:
    def at(step: int) -> Change:
        cap = round(cap_tokens * _CAP_STEP**step)
        text = f"cap input at {words.tokens(cap)} (workload.max_input: {cap})"
        return plain(text, lambda now: replace(now, traffic=with_inputs_capped(now.traffic, cap)))

    larger = min(_LARGER, _steps(cap_tokens / _SMALLEST_CAP_TOKENS, _CAP_STEP))
    return Graded(at, _steps(longest_tokens / cap_tokens, _CAP_STEP), larger)


def _more_hits(hit_steps: int, shared_steps: int) -> Graded:
    def at(step: int) -> Change:
        hits = (hit_steps - step) * _HIT_STEP
        return plain(f"serve {hits:.0%} of prompt tokens from the prefix cache", partial(_hitting, hits))

    return Graded(at, hit_steps - shared_steps - 1, min(_LARGER, _MOST_HIT_STEPS - hit_steps))


def _hitting(fraction: float, case: Case) -> Case:
    cached = replace(case.question, candidates=tuple(map(_with_cache, case.question.candidates)))
    return Case(cached, with_hits(case.traffic, fraction))


def _steps(ratio: float, step: float) -> int:
    """Whole steps below a ratio, which itself is none of them."""
    return max(0, math.ceil(math.log(ratio) / math.log(step)) - 1)


@dataclass(frozen=True, slots=True)
class _Reached:
    """A clause that the nearest failure breaks."""

    value: float
    given: float
    unit: str

    def at(self, step: int) -> float:
        """What it may be, so many steps below what is reached: nothing below what was given, no share above all."""
        value = max(self.given, _rounded_up(self.value / _LIMIT_STEP**step))
        return min(1.0, value) if self.unit == "fraction" else value


def _looser(slo: Slo, verdicts: Sequence[Verdict]) -> Graded:
    """The promise that was kept; a deadline by the clock stays as it is, see its cut-off."""
    reached = _reached(slo, verdicts)

    def at(step: int) -> Change:
        limits = {name: one.at(step) for name, one in reached.items() if one.at(step) > one.given}
        said = " and ".join(_clause(name, limit, reached[name].unit) for name, limit in limits.items())

        def made(case: Case) -> Case:
            return replace(case, question=replace(case.question, slo=_with_limits(case.question.slo, limits)))

        return plain(said, made)

    ratios = (one.value / one.given if one.given else _BEYOND for one in reached.values())
    return Graded(at, _steps(max(ratios, default=1.0), _LIMIT_STEP), _LARGER)


def _reached(slo: Slo, verdicts: Sequence[Verdict]) -> dict[str, _Reached]:
    """The worst of each clause that is broken, in the peak window or over all."""
    reached: dict[str, _Reached] = {}
    given_s = {each.name: each.within_s for each in slo.deadlines}
    broken = {result.name for verdict in verdicts for result in verdict.broken}
    for result in (result for verdict in verdicts for result in (*verdict.peak, *verdict.overall)):
        name = result.name
        within_s = given_s.get(name, 1.0)
        if name not in broken or result.predicted is None or within_s is None:
            continue
        worst = max(result.predicted * within_s, reached[name].value if name in reached else 0.0)
        unit = "s" if name in given_s else result.unit
        reached[name] = _Reached(worst, result.promised * within_s, unit)
    return reached


def reached(slo: Slo, verdict: Verdict) -> str:
    """The promise that was kept instead: ``ttft_p99 >= 0.62 s and itl_p99 >= 0.04 s``.

    Empty where some clause that is broken has no value.
    """
    found = _reached(slo, [verdict])
    if any(result.name not in found for result in verdict.broken):
        return ""
    return " and ".join(_clause(name, one.at(0), one.unit) for name, one in found.items())


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
    """Two digits, or three where two would be more than 2 % too many; never below the value."""
    if value <= 0.0:
        return 0.0
    scales = (10.0 ** (digits - math.floor(math.log10(value))) for digits in (1, 2))
    coarse, fine = (math.ceil(value * scale - 1e-9) / scale for scale in scales)
    return coarse if coarse <= value * _ROUNDING else fine


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


def _cache_hits(replays: Replays, traffic: Traffic, offer: Failure) -> tuple[int, int] | None:
    """Smallest share of prompt tokens, in steps of 5 %, whose service from the cache makes the same fleet enough.

    Returns:
        That share and the one that is shared already, in steps; ``None`` when not even 95 % do, or when as much is
        shared already.
    """
    trace = traffic.trace
    shared = float(workload.shared_input_tokens(trace).sum()) / float(trace.input_tokens.sum(dtype=np.int64))
    replica = _with_cache(offer.replica)

    def keeps(steps: int) -> bool:
        hitting = with_hits(traffic, steps * _HIT_STEP)
        # What prompts share takes room of its own at every replica.
        return replays.quick(hitting, replica, min(offer.count, replays.most(hitting, replica))).kept

    known = low = int(shared / _HIT_STEP)
    high = _MOST_HIT_STEPS
    if low >= high or not keeps(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if keeps(middle):
            high = middle
        else:
            low = middle
    return high, known


def _with_cache(replica: ReplicaPhysics) -> ReplicaPhysics:
    engine = replace(replica.deployment.engine, prefix_caching=True)
    return replace(replica, deployment=replace(replica.deployment, engine=engine))


def crowded_out(failures: Sequence[Failure], offered: Sequence[Working]) -> tuple[Reason, ...]:
    """What stands in the way where more room is enough: the room, of the fleet that is found with more of it.

    Returns:
        Empty where more room alone is not enough, or its fleet was stopped by something else.
    """
    roomier = [one for one in offered if all(change.widens for change in one.changes)]
    found = {family(one.sized.replica) for one in roomier}
    stopped = [one for one in failures if one.zones_full and family(one.replica) in found]
    return min(stopped, key=lambda one: one.verdict.excess).reasons if stopped else ()


def reasons(
    rejected: Sequence[Rejected], changes: Sequence[str] | None, nearest: Sequence[Reason]
) -> tuple[Reason, ...]:
    """Why nobody can, for a person.

    Args:
        rejected: Every candidate, with its reasons.
        changes: What helps, in words; ``None`` where nothing could be tried.
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
