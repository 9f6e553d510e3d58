"""Pools that somebody named, whose counts were sized, as a plan: spare replicas, losses, what binds, price, outlook."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from tokenfleet import simulator
from tokenfleet.domain.fleet import Router
from tokenfleet.domain.plan import Does, Plan, PlannedPool, PlanQuestion, Reason, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.slo import SloResult
from tokenfleet.planner.assumed import few_requests
from tokenfleet.planner.housing import no_room
from tokenfleet.planner.lodging import in_zones, lodgers
from tokenfleet.planner.progress import Progress, Reporter
from tokenfleet.planner.promises import contradictions
from tokenfleet.planner.quotes import quote
from tokenfleet.planner.redundancy import asked, too_few_zones
from tokenfleet.planner.relax import reached
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.spread import Replay
from tokenfleet.planner.systems import Proof, SizedPool, System, Way, housed_in
from tokenfleet.planner.together import Planned, Together
from tokenfleet.planner.traffic import Traffic
from tokenfleet.planner.verdict import UNSEEN, Verdict
from tokenfleet.planner.within import Within
from tokenfleet.planner.work import without_fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedPart:
    """One pool that was named, with the replicas that carry its part of the demand."""

    name: str
    who: str
    """Whom it serves, in words."""
    does: Does
    question: PlanQuestion
    """What is asked of it: its model, behind its router."""
    router: Router
    replica: ReplicaPhysics
    carrying_count: int
    request_fraction: float
    """Share of all requests that come to it."""
    beside: str | None = None
    """The pool on whose GPUs it stands."""


def system_of_named(
    question: PlanQuestion, parts: Sequence[NamedPart], way: Way
) -> tuple[System | None, tuple[Reason, ...]]:
    """The pools with their spare replicas, as they are bought; or why nobody can buy them.

    Args:
        question: What is asked of all of them.
        parts: The pools, in the order of their stages.
        way: How requests go through them.
    """
    alone = (SizedPool(part.name, None, _with_price(part), part.router) for part in parts)
    system = System(tuple(alone), None, way)
    found = housed_in(system, question)
    if found is not None:
        return found[0], ()
    short = too_few_zones(asked(question))
    if short is not None:
        return None, (short,)
    why, mend = no_room(lodgers((part.sized for part in system.own), question), asked(question))
    return None, (Reason(kind="redundancy", text=f"The pools have no room: {why}.", relax=mend),)


def plan_of_named(
    question: PlanQuestion,
    traffic: Traffic,
    system: System,
    parts: Sequence[NamedPart],
    *,
    progress: Progress | None = None,
    replay: Replay | None = None,
) -> Plan:
    """The plan of pools whose carrying replicas were sized on the whole demand.

    Args:
        question: What is asked of all of them.
        traffic: The demand, as users send it.
        system: The pools with their spare replicas; see :func:`system_of_named`.
        parts: The same pools, in the order of their stages.
        progress: Told what is being tried.
        replay: Runs replays of one pool instead of the simulator.

    Raises:
        ValueError: the carrying replicas break the promise.
    """
    run = replay or simulator.replay
    together = Together(question, traffic, Replays.of(question, run), run, progress)
    degraded, whole = together.proofs(system)
    if whole is None:
        raise ValueError("counts that were sized on the whole demand break the promise on it")
    reporter = Reporter(progress)
    found = housed_in(system, question)
    if found is None:
        raise ValueError("pools are planned that have no room")
    here = [replace(part, question=in_zones(part.question, found[1][part.name])) for part in parts]
    begun = [together.started(partial(_planned, part, system, traffic, run, degraded, reporter)) for part in here]
    planned = Planned(tuple(each() for each in begun), None, system.way)
    return together.plan(_bare(question, traffic), planned, degraded, whole)


def without_pools(question: PlanQuestion, traffic: Traffic, reasons: Sequence[Reason]) -> Plan:
    """The answer that these pools do not do."""
    return replace(_bare(question, traffic), reasons=tuple(reasons))


def missed_by_named(
    question: PlanQuestion, peak: tuple[SloResult, ...], whole: tuple[SloResult, ...]
) -> Iterator[Reason]:
    """Why no counts of the pools keep the promise: what the largest tried break, and what they would keep.

    Args:
        question: What is promised.
        peak: The promise at the peak, on the largest counts.
        whole: The same over all requests.
    """
    verdict = Verdict(peak, whole, UNSEEN)
    looser = reached(question.slo, verdict)
    for result in verdict.broken:
        text = f"With more than enough replicas in every pool {verdict.said(result)}."
        yield Reason(kind="capacity", text=text, relax=looser, clause=result.name)


def _planned(
    part: NamedPart, system: System, traffic: Traffic, replay: Replay, degraded: Proof, reporter: Reporter
) -> PlannedPool:
    within = Within(part.question, traffic, system, part.name, replay, degraded.run, degraded.verdict)
    return PlannedPool(
        name=part.name,
        who=part.who,
        does=part.does,
        takes=None,
        request_fraction=part.request_fraction,
        plan=within.planned(part.does, reporter),
    )


def _with_price(part: NamedPart) -> Sized:
    """Those that carry, without spare ones."""
    known = quote(part.question.prices, part.replica.deployment.gpu)
    if known is None:
        raise ValueError(f"no price of {part.replica.deployment.gpu} is known, and {part.name} is planned on it")
    return Sized(
        replica=part.replica,
        carrying_count=part.carrying_count,
        spare_count=0,
        price=known.price,
        price_low_usd_per_gpu_hour=known.low_usd_per_gpu_hour,
        price_high_usd_per_gpu_hour=known.high_usd_per_gpu_hour,
        slo=(),
        beside=part.beside,
    )


def _bare(question: PlanQuestion, traffic: Traffic) -> Plan:
    """A plan that has nothing yet but its question, and what is odd about that."""
    few = few_requests(traffic)
    thin = (Reason(kind="no_samples", text=few, relax="plan with a longer trace"),) if few else ()
    return replace(
        without_fleet(question, traffic),
        mean_rate_per_s=traffic.mean_rate_per_s,
        tried_count=len(question.candidates),
        warnings=(*contradictions(question.slo, traffic.trace), *thin),
    )
