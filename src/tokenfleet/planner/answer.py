"""One question, one fleet: floors, search, proof, then what a person wants to know about the winner."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar, get_args

from tokenfleet import cost, workload
from tokenfleet.domain.apart import ApartAnswer
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.fleet import Router
from tokenfleet.domain.outlook import Confidence, CurvePoint
from tokenfleet.domain.plan import Bill, Plan, PlanQuestion, Reason, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.rough import Rough
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.trace import Trace
from tokenfleet.planner import words
from tokenfleet.planner.assumed import assumptions, few_requests, search_notes, sure_note
from tokenfleet.planner.buying import purchase, purchase_missing
from tokenfleet.planner.candidates import Failure
from tokenfleet.planner.capped import cap_uses
from tokenfleet.planner.changes import Case
from tokenfleet.planner.curve import frontier, load_curve, odd_loads
from tokenfleet.planner.limits import Limits
from tokenfleet.planner.money import billed_span_s, invoices, tenant_invoice
from tokenfleet.planner.multiples import multiplied, whole_of
from tokenfleet.planner.progress import Progress, Reporter
from tokenfleet.planner.promises import contradictions
from tokenfleet.planner.relax import changes_that_work, crowded_out, nearest_failure, reasons
from tokenfleet.planner.relax_in_room import changes_in_room, is_in_room_asked
from tokenfleet.planner.relaxing import Sought, Trials
from tokenfleet.planner.replays import Replays, with_step_factor
from tokenfleet.planner.riding import ride_through
from tokenfleet.planner.rough import rough
from tokenfleet.planner.routers import best_router
from tokenfleet.planner.screen import Screened, screen
from tokenfleet.planner.search import Answer, Found, Search
from tokenfleet.planner.sensitivity import confidence, sensitivity
from tokenfleet.planner.spread import Replay, recall_of
from tokenfleet.planner.steps import step_variants
from tokenfleet.planner.sure import prefer_sure, slow_fleet
from tokenfleet.planner.traffic import Traffic, stretch
from tokenfleet.planner.utilization import Saturated, full_replicas
from tokenfleet.planner.verdict import Verdict
from tokenfleet.planner.work import (
    DETAIL_REQUESTS,
    FIRST_LOOK_REQUESTS,
    SEARCH_REQUESTS,
    Work,
    detail_of,
    limits_of,
    load_precision,
    survived_losses,
    without_fleet,
)

T = TypeVar("T")

_TELEMETRY_SAMPLES = 1_000


def one_fleet(
    question: PlanQuestion, trace: Trace, *, progress: Progress | None = None, replay: Replay | None = None
) -> Plan:
    """Finds the cheapest fleet of equal replicas that keeps the promise with its spare replicas gone.

    The carrying count of a candidate is one that replay shows to keep the promise, over all requests and over
    those of the peak window, where one replica fewer breaks it. The same question and trace give the same plan.

    Args:
        question: Candidates, prices, promise, spare count.
        trace: The demand, planned for as it is.
        progress: Told what is being tried.
        replay: Runs replays instead of the simulator, such as a cache in front of it.

    Returns:
        The plan; ``chosen`` is ``None`` with reasons when no candidate keeps the promise.

    Raises:
        BadInput: an empty trace, or a router nobody knows.
    """
    return looked_for(question, trace, progress=progress, replay=replay).told()


@dataclass(frozen=True, slots=True)
class LookedFor:
    """A plan of one fleet."""

    plan: Plan
    """Where no fleet keeps the promise, without the changes that would help."""
    told: Callable[[], Plan]
    """The same with those changes, which takes some searches more."""


def looked_for(
    question: PlanQuestion, trace: Trace, *, progress: Progress | None = None, replay: Replay | None = None
) -> LookedFor:
    """What :func:`one_fleet` finds, for whoever may do without its changes; arguments and errors as there."""
    _has_requests(trace)
    return _answer(question, _traffic(trace, replay), Reporter(progress), replay)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cheapest:
    """The fleet of a plan without everything else a person wants to know of it."""

    sized: Sized | None
    """With ``slo`` judged in the peak window, the spare gone; ``None`` when no fleet keeps the promise."""
    reasons: tuple[Reason, ...]
    """Why there is none: what the nearest candidate lacks. Which changes would help, only a plan looks for."""
    replayed_count: int
    router: Router = "least_in_flight"
    """Behind which the fleet serves: that of the question, or the best of those it lets be tried."""


def cheapest(
    question: PlanQuestion, trace: Trace, *, progress: Progress | None = None, replay: Replay | None = None
) -> Cheapest:
    """The fleet that :func:`one_fleet` would choose, at a fraction of the replays; arguments and errors as there.

    Of equal fleets whose steps differ in size, a plan takes the one that is sure; nobody asks here who is.
    """
    _has_requests(trace)
    traffic = _traffic(trace, replay)
    work, screened, found, _ = _sought(question, traffic, Reporter(progress), replay)
    if found.answers:
        best = found.answers[0].sized
        if work.searched is not traffic:
            # The stretch searched does not say what becomes of all the demand, such as of work that may wait.
            best = replace(best, slo=work.replays.quick(traffic, best.replica, best.carrying_count).peak)
        sized = whole_of(best, question)
        router = work.replays.router
        return Cheapest(sized=sized, reasons=(), replayed_count=work.counted.count, router=router)
    told = reasons((*screened.rejected, *found.rejected), (), _told(screened, _nearest(work, screened, found)))
    return Cheapest(sized=None, reasons=told, replayed_count=work.counted.count)


def _traffic(trace: Trace, replay: Replay | None) -> Traffic:
    return Traffic(trace, recall_of(replay)("peak window", trace, lambda: workload.peak_window(trace)))


def _has_requests(trace: Trace) -> None:
    if trace.request_count == 0:
        raise BadInput.at("workload", "the trace has no requests", "give one that has")


def _answer(question: PlanQuestion, traffic: Traffic, reporter: Reporter, replay: Replay | None) -> LookedFor:
    work, screened, found, variant_count = _sought(
        question, traffic, reporter, replay, with_second=not question.first_look
    )
    made = _feasible(work, screened, found, reporter) if found.answers else _infeasible(work, screened, found)
    made = multiplied(made)
    plan = replace(
        made,
        invoice=tenant_invoice(made, traffic),
        invoices=invoices(made, traffic),
        purchase=purchase(made, traffic.trace),
        purchase_missing=purchase_missing(made, traffic.trace),
        rough=_rough(work, made),
        tried_count=len(question.rejected) + len(question.candidates) + variant_count,
        warnings=(*contradictions(question.slo, traffic.trace), *_few(traffic)),
        apart=None if question.apart is None else _apart(work, question, reporter),
        routers=work.routers,
    )
    return LookedFor(plan, lambda: plan if found.answers else _with_changes(plan, work, screened, found, reporter))


def _rough(work: Work, made: Plan) -> Rough | None:
    if made.chosen is None:
        return None
    limit = made.limits[0].limit if made.limits else None
    asked = work.traffic, made.question.slo, made.question.stands_for_count, made.chosen.replica
    return work.replays.recall("rough", (*asked, made.chosen.carrying_count, limit), lambda: rough(made, work.traffic))


def _apart(work: Work, question: PlanQuestion, reporter: Reporter) -> ApartAnswer | None:
    from tokenfleet.planner.disaggregated import sought_apart

    return sought_apart(question, work.traffic, work.searched, work.replays, reporter)


def _few(traffic: Traffic) -> tuple[Reason, ...]:
    few = few_requests(traffic)
    return (Reason(kind="no_samples", text=few, relax="plan with a longer trace"),) if few else ()


def _sought(
    question: PlanQuestion, traffic: Traffic, reporter: Reporter, replay: Replay | None, *, with_second: bool = False
) -> "tuple[Work, Screened, Found, int]":
    """What the search found, proved on the whole trace, and how many variants it had."""
    _know_router(question)
    replays = Replays.of(question, replay)
    work = Work(question, traffic, stretch(traffic, SEARCH_REQUESTS), replays, replays)
    variants = step_variants(question, replays.recall)
    screened = screen(question, traffic, variants, reporter, replays.recall)
    search = Search(work.replays, work.searched, question, reporter)
    search.over(screened.candidates, with_second=with_second)
    _verify(work, search)
    if question.routers and search.found.answers:
        work, search = _routed(work, search, screened, reporter, with_second=with_second)
    found = search.found
    ride_through(work.replays, work.searched, work.question, found, reporter)
    return work, screened, found, len(variants)


def _routed(
    work: Work, search: Search, screened: Screened, reporter: Reporter, *, with_second: bool
) -> tuple[Work, Search]:
    """The search again behind another router, where one lets the best fleet do with fewer replicas."""
    best = search.found.answers[0]
    tried = best_router(work.question, work.replays, work.traffic, search.cheaper_than_best(), reporter)
    known = replace(work, routers=tried.trials)
    if tried.router == work.replays.router:
        return known, search
    question, replays = replace(work.question, router=tried.router), work.replays.behind(tried.router)
    other = replace(known, question=question, replays=replays)
    again = Search(replays, work.searched, question, reporter)
    again.over(screened.candidates, with_second=with_second)
    _verify(other, again)
    answers = again.found.answers
    return (other, again) if answers and answers[0].rank <= best.rank else (known, search)


def _know_router(question: PlanQuestion) -> None:
    if question.router not in get_args(Router):
        raise BadInput.at("router", f"unknown router {question.router!r}", f"one of {', '.join(get_args(Router))}")


def _verify(work: Work, search: Search) -> None:
    """Replays the winner on the whole trace, and gives it more replicas if the busiest stretch said too little."""
    if work.searched is work.traffic:
        return
    answers = search.found.answers
    verified: set[str] = set()
    while answers and answers[0].candidate.name not in verified:
        winner = answers.pop(0)
        verified.add(winner.candidate.name)
        count = winner.sized.carrying_count
        room = work.replays.most(work.traffic, winner.sized.replica)
        if count <= room and search.replay(winner.candidate, count, work.traffic).kept:
            answers.insert(0, winner)
        else:
            search.size(winner.candidate, count + 1, whole=work.traffic)


@dataclass(frozen=True, slots=True)
class _Proof:
    """The chosen fleet on the whole trace."""

    record: RunRecord
    verdict: Verdict


def _proof(work: Work, sized: Sized, count: int, reporter: Reporter) -> _Proof:
    """Replays with telemetry, and with all steps longer and shorter by the error band."""
    replica = sized.replica
    reporter.say("verifying", words.fleet(replica, count), 0.6)
    interval_s = max(1.0, work.traffic.trace.duration_s / _TELEMETRY_SAMPLES)
    record = work.replays.run(work.traffic, replica, count, telemetry_interval_s=interval_s)

    def judged() -> Verdict:
        band = replica.band
        low = work.replays.run(work.traffic, with_step_factor(replica, 1.0 / band.step_time_factor), count)
        high = work.replays.run(work.traffic, with_step_factor(replica, band.step_time_factor), count)
        return work.replays.judged(work.traffic, record, low=low, high=high, first_token_factor=band.first_token_factor)

    return _Proof(record, work.replays.recalled("proof", (work.traffic, replica, count, interval_s), judged))


@dataclass(frozen=True, slots=True)
class _Begun:
    """What takes longest to find out of a fleet: it is under way while one asks what it takes to be sure."""

    answer: Answer
    detail: Traffic
    limits: Callable[[], Limits]
    proofs: Callable[[], tuple[_Proof, _Proof]]
    """With the spare gone, and with all replicas."""


def _begin(work: Work, chosen: Answer, reporter: Reporter) -> _Begun:
    sized = chosen.sized
    detail = detail_of(work, sized, FIRST_LOOK_REQUESTS if work.question.first_look else DETAIL_REQUESTS)

    def proofs(work: Work) -> tuple[_Proof, _Proof]:
        # One after the other: a long trace has no room for two.
        degraded = _proof(work, sized, sized.carrying_count, reporter)
        return degraded, _proof(work, sized, sized.replica_count, reporter) if sized.spare_count else degraded

    return _Begun(
        answer=chosen,
        detail=detail,
        limits=_started(work, lambda apart: limits_of(apart, detail, sized, reporter)),
        proofs=_started(work, proofs),
    )


def _started(work: Work, make: Callable[[Work], T]) -> Callable[[], T]:
    """Starts a part of the answer that no other part changes."""
    return work.replays.started(lambda apart: make(replace(work, replays=apart)))


def _curve(replays: Replays, begun: _Begun, reporter: Reporter) -> tuple[CurvePoint, ...]:
    detail, chosen = begun.detail, begun.answer
    carrying = detail, chosen.sized.replica, chosen.sized.carrying_count
    return replays.recalled("curve", carrying, lambda: load_curve(replays, detail, chosen, reporter))


def _likely(work: Work, sized: Sized, reporter: Reporter) -> Confidence | None:
    """Of a handful of requests no share of cases can be told."""
    return None if few_requests(work.traffic) else confidence(work.replays, work.searched, sized, reporter)


def _feasible(work: Work, screened: Screened, found: Found, reporter: Reporter) -> Plan:
    question, replays, look = work.question, work.replays, work.question.first_look
    begun = _begin(work, found.answers[0], reporter)
    slow, is_sure = (None, False) if look else _slow(work, found.answers[0], screened)
    sure = slow if is_sure else None
    prefer_sure(replays, work.traffic, found, screened.candidates, sure)
    if found.answers[0] is not begun.answer:
        begun = _begin(work, found.answers[0], reporter)
    sized, families = begun.answer.sized, found.best_of_families()
    cases = _started(
        work,
        lambda apart: () if look else sensitivity(apart.replays, work.searched, question, sized, slow, reporter),
    )
    drawn = _started(work, lambda apart: () if look else _curve(apart.replays, begun, reporter))
    likely = _started(work, lambda apart: None if look else _likely(apart, sized, reporter))
    edges = _started(
        work, lambda apart: () if look else frontier(apart.replays, work.searched, question, families, reporter)
    )
    filled = _started(work, lambda apart: full_replicas(apart.replays, begun.detail, sized))
    degraded, whole = begun.proofs()
    known = {sized.replica_count: whole.verdict, sized.carrying_count: degraded.verdict}
    survived = survived_losses(work, sized, known, reporter)
    limits, curve, full, edge, wrong, confident = begun.limits(), drawn(), filled(), edges(), cases(), likely()
    reporter.say("done", words.fleet(sized.replica, sized.replica_count), 1.0)
    return Plan(
        question=question,
        chosen=sized,
        runners_up=tuple(answer.sized for answer in families[1:]),
        rejected=(*screened.rejected, *found.rejected),
        reasons=(),
        fleet=replays.fleet(sized.replica, sized.replica_count),
        record=whole.record,
        degraded=degraded.record,
        slo_whole=whole.verdict.peak,
        slo_degraded=degraded.verdict.peak,
        limits=(*cap_uses(question, limits, work.traffic.peak_rate_per_s), *limits.uses),
        curve=curve,
        bill=_bill(work, sized, degraded.record, full),
        peak_start_s=work.traffic.window_s[0],
        peak_end_s=work.traffic.window_s[1],
        replayed_count=work.counted.count,
        assumptions=(*_assumed(work, sized, slow, is_sure=is_sure), *search_notes(found, curve)),
        slo_whole_overall=whole.verdict.overall,
        slo_degraded_overall=degraded.verdict.overall,
        peak_rate_per_s=work.traffic.peak_rate_per_s,
        saturated_rate_per_s=None if look or full is None else full.rate_per_s,
        mean_rate_per_s=work.traffic.mean_rate_per_s,
        sustained_rate_per_s=limits.sustained_rate_per_s(work.traffic.peak_rate_per_s),
        found_within_fraction=load_precision(question) - 1.0,
        kv_peak_fraction=limits.peak.kv_fraction,
        sequence_peak_count=limits.peak.running_count,
        frontier=edge,
        outpriced=found.outpriced,
        sure=sure,
        sensitivity=wrong,
        confidence=confident,
        anomalies=(*found.anomalies, *odd_loads(curve)),
        placement=survived.placement,
        losses=survived.cases,
    )


def _slow(work: Work, chosen: Answer, screened: Screened) -> tuple[Sized | None, bool]:
    asked = replace(work.question, candidates=(), rejected=())
    kin = tuple(one.replica for one in screened.candidates if one.family == chosen.candidate.family)
    apart = work.replays.counted_apart()
    found, is_sure = apart.recalled(
        "slow",
        (work.searched, asked, chosen.sized, kin),
        lambda: slow_fleet(apart, work.searched, work.question, chosen, screened.candidates),
    )
    work.replays.count += apart.count
    # What was read again has a replica of its own, equal to the one that is known here.
    known = () if found is None else tuple(one for one in kin if one.deployment == found.replica.deployment)
    return (None if found is None else replace(found, replica=known[0])), is_sure


def _bill(work: Work, sized: Sized, record: RunRecord, full: Saturated | None) -> Bill:
    work_of_full = None if full is None else full.work
    return cost.bill(
        record,
        usd_per_gpu_hour=sized.price.price_usd_per_gpu_hour,
        gpus_per_replica_count=sized.replica.deployment.layout.gpu_count,
        spare_count=sized.spare_count,
        span_s=billed_span_s(work.question, work.traffic, [(record, work_of_full)]),
        peak_window_s=work.traffic.window_s,
        full=work_of_full,
    )


def _assumed(work: Work, sized: Sized, slow: Sized | None, *, is_sure: bool) -> tuple[str, ...]:
    """A first look does not ask what it takes to be sure."""
    question = work.question
    known = assumptions(question, work.traffic, work.searched, sized)
    if question.first_look:
        return known
    slow = None if slow is None else whole_of(slow, question)
    return (*known, sure_note(whole_of(sized, question), slow, is_sure=is_sure))


def _infeasible(work: Work, screened: Screened, found: Found) -> Plan:
    rejected = (*screened.rejected, *found.rejected)
    return replace(
        without_fleet(work.question, work.traffic),
        rejected=rejected,
        reasons=reasons(rejected, None, _told(screened, _nearest(work, screened, found))),
        replayed_count=work.counted.count,
        assumptions=search_notes(found),
        anomalies=tuple(found.anomalies),
    )


def _with_changes(plan: Plan, work: Work, screened: Screened, found: Found, reporter: Reporter) -> Plan:
    """A plan without a fleet, with the smallest changes after which there is one."""
    if not work.question.candidates:
        return plan
    before = work.counted.count
    nearest = _nearest(work, screened, found)

    def seek(question: PlanQuestion, traffic: Traffic, told: Reporter) -> Sought:
        other, sorted_out, sought, _ = _sought(question, traffic, told, work.replays.replay)
        return Sought(sorted_out, sought, other.counted.count)

    case = Case(work.question, work.traffic)
    trials = Trials(case, seek, lambda demand: stretch(demand, SEARCH_REQUESTS), reporter)
    tried = changes_that_work(work.replays, trials, found.failures, nearest)
    told = crowded_out(found.failures, tried) or _told(screened, nearest)
    if is_in_room_asked(work.question, tried):
        tried += changes_in_room(work.replays, trials)
    return replace(
        plan,
        reasons=reasons(plan.rejected, [one.text for one in tried], told),
        replayed_count=plan.replayed_count + work.counted.count - before + trials.replayed_count,
    )


def _nearest(work: Work, screened: Screened, found: Found) -> Failure | None:
    part = work.question.stands_for_count
    return nearest_failure(work.replays, work.searched, found.failures, screened.floored, part)


def _told(screened: Screened, nearest: Failure | None) -> tuple[Reason, ...]:
    # Where every candidate is below a floor, the fastest says most: the nearest is as fast but for its queue.
    if nearest is not None and (screened.candidates or not screened.floored):
        return nearest.reasons
    return screened.floored[0].reasons if screened.floored else ()
