"""What a plan is made from, and what is asked of a fleet once it is sized: what it may lose, and what binds it."""

from tokenfleet.domain.plan import Does, Plan, PlanQuestion, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.survival import LossCase, Moment, Placement
from tokenfleet.domain.ways import RouterTrial
from tokenfleet.planner import words
from tokenfleet.planner.capped import at_cap, keeps_cap
from tokenfleet.planner.limits import Limits, LimitSearch
from tokenfleet.planner.losses import Survived, losses
from tokenfleet.planner.moment import loss_moment
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.traffic import Traffic, followed, stretch
from tokenfleet.planner.verdict import Verdict

SEARCH_REQUESTS = 10_000
"""Longer traces are searched on their busiest stretch."""
DETAIL_REQUESTS = 4_000
FIRST_LOOK_REQUESTS = 2_800
"""Limits and curves replay denser traffic many times, on less of it."""
LOAD_PRECISION = 1.03
FIRST_LOOK_LOAD_PRECISION = 1.08
"""How finely the load at a limit is found."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a plan is made from."""

    question: PlanQuestion
    traffic: Traffic
    searched: Traffic
    replays: Replays
    counted: Replays
    """Behind the router of the question, where everything is counted."""
    routers: tuple[RouterTrial, ...] = ()


def without_fleet(question: PlanQuestion, traffic: Traffic) -> Plan:
    """A plan that has nothing yet but its question and its peak."""
    return Plan(
        question=question,
        chosen=None,
        runners_up=(),
        rejected=(),
        reasons=(),
        fleet=None,
        record=None,
        degraded=None,
        slo_whole=(),
        slo_degraded=(),
        limits=(),
        curve=(),
        bill=None,
        peak_start_s=traffic.window_s[0],
        peak_end_s=traffic.window_s[1],
        replayed_count=0,
        assumptions=(),
        peak_rate_per_s=traffic.peak_rate_per_s,
    )


def survived_losses(work: Work, sized: Sized, known: dict[int, Verdict], reporter: Reporter) -> Survived:
    """Each loss, on the whole trace; counts that were judged are not replayed again."""
    verdicts = dict(known)

    def judged(count: int) -> Verdict:
        if count not in verdicts:
            reporter.say("verifying", f"{words.fleet(sized.replica, count)} left", 0.65)
            verdicts[count] = work.replays.verdict(work.traffic, sized.replica, count)
        return verdicts[count]

    longer = None if work.searched is work.traffic else followed(work.traffic, SEARCH_REQUESTS)

    def moment(case: LossCase, placement: Placement) -> Moment | None:
        # A part of the demand runs on as small a part of the fleet, which has no nodes of its own.
        if work.question.first_look or work.question.stands_for_count > 1:
            return None
        reporter.say("verifying", f"{words.fleet(sized.replica, sized.replica_count)}, {case.lost}", 0.66)
        question, replica = work.question, sized.replica
        told = question.redundancy.zones, question.clients, question.admission, question.rollout
        return work.replays.recalled(
            "moment",
            (work.searched, longer, replica, case, placement, told),
            lambda: loss_moment(work.replays, work.searched, longer, question, replica, case, placement),
        )

    return losses(work.question, sized, judged, moment)


def detail_of(work: Work, sized: Sized, request_limit: int) -> Traffic:
    """The shortest part around the peak in which the carrying replicas keep what they keep on the whole.

    On too short a part caches start empty just before the peak, and a fleet that is fine would seem to break; or to be
    fuller than a cap allows, where there is one.
    """
    replays, replica, count = work.replays, sized.replica, sized.carrying_count
    kept: Traffic | None = None
    for part in (stretch(work.searched, request_limit), work.searched):
        if replays.quick(part, replica, count, peak_only=True).kept:
            if keeps_cap(replays, at_cap(part, work.question), replica, count):
                return part
            kept = kept or part
    return kept or work.traffic


def limits_of(
    work: Work,
    detail: Traffic,
    sized: Sized,
    reporter: Reporter,
    does: Does = "answers",
    calls: Traffic | None = None,
) -> Limits:
    """What binds a fleet, or a pool that does a part of the work, and what binds next.

    ``calls`` are what the pool is asked, where that is not a part of what users ask.
    """
    precision, cap = load_precision(work.question), work.question.utilization_cap_fraction
    model, count = work.question.model, sized.carrying_count
    denser = at_cap(detail, work.question)
    # A load that was asked for as such is not one of those that limits are sought at.
    known = 1.0 / cap if cap and keeps_cap(work.replays, denser, sized.replica, count) else 0.0
    search = LimitSearch(work.replays, detail, model, count, reporter, precision, does, calls, known)
    asked = detail, model, count, sized.replica, precision, does, calls, known
    return work.replays.recalled("limits", asked, lambda: search.of(sized.replica))


def load_precision(question: PlanQuestion) -> float:
    """How finely the load at a limit is found."""
    return FIRST_LOOK_LOAD_PRECISION if question.first_look else LOAD_PRECISION
