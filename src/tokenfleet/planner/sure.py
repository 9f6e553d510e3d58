"""What it takes to be sure: the promise kept even if every step is as slow as the error band allows."""

from collections.abc import Sequence
from dataclasses import replace

from tokenfleet.domain.plan import PlanQuestion, Sized
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.planner import words
from tokenfleet.planner.candidates import Candidate, family
from tokenfleet.planner.counting import MOST_TIMES
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.prompts import AFFINE
from tokenfleet.planner.redundancy import asked, spare_surviving
from tokenfleet.planner.replays import Replays, with_step_factor
from tokenfleet.planner.riding import riding_count
from tokenfleet.planner.screen import screen
from tokenfleet.planner.search import Answer, Found, Search
from tokenfleet.planner.traffic import Traffic

_JUST_ABOVE = 3
"""So many counts beyond the planned one are asked, where the most that is worth asking says nothing of fewer."""


def slow_fleet(
    replays: Replays,
    traffic: Traffic,
    question: PlanQuestion,
    chosen: Answer,
    candidates: Sequence[Candidate],
) -> tuple[Sized | None, bool]:
    """The cheapest fleet of the chosen kind that keeps the promise with steps at the slow end of their band.

    Steps of other sizes are tried too: where the slow end breaks ITL, more replicas do not help and smaller steps do.

    Returns:
        The fleet, ``None`` when none does at four times the price of the chosen one; and whether it is sure: a first
        token may break its promise at the end of its own interval, which more replicas do not narrow.
    """
    kind = family(chosen.sized.replica)
    kin = {words.settled(one.replica.deployment): one.replica for one in candidates if family(one.replica) == kind}
    slow = tuple(with_step_factor(replica, replica.band.step_time_factor) for replica in kin.values())
    silent = Reporter(None)
    screened = screen(replace(question, candidates=slow, rejected=()), traffic, (), silent)
    ceiling = MOST_TIMES * chosen.sized.price_usd_per_hour
    search = Search(replays, traffic, question, silent, ceiling_usd_per_hour=ceiling)
    answers = search.over(screened.candidates).answers
    own = [one for one in screened.candidates if one.replica.deployment == chosen.sized.replica.deployment]
    if not answers and own and _spreads_hits(traffic, question, own[0]):
        _ask_just_above(search, question, own[0], chosen.sized.carrying_count)
    if not answers:
        return None, False
    best = answers[0].sized
    total = riding_count(replays, traffic, question, best, silent)
    if total is None:
        return None, False
    best = replace(best, spare_count=total - best.carrying_count)
    replica = kin[words.settled(best.replica.deployment)]
    return replace(best, replica=replica), _first_token_is_sure(replays, traffic, replica, best.carrying_count)


def _spreads_hits(traffic: Traffic, question: PlanQuestion, candidate: Candidate) -> bool:
    """Whether each replica more finds less in its prefix cache: far more of them may keep less than a few more."""
    caches = candidate.replica.deployment.engine.prefix_caching and traffic.trace.prefix_node is not None
    return caches and question.router not in AFFINE


def _ask_just_above(search: Search, question: PlanQuestion, candidate: Candidate, count: int) -> None:
    for more in range(count + 1, count + 1 + _JUST_ABOVE):
        if spare_surviving(asked(question), candidate.replica, more * question.stands_for_count) is None:
            return
        verdict = search.replay(candidate, more)
        if verdict.kept:
            search.answered(candidate, more, verdict)
            return


def prefer_sure(
    replays: Replays, traffic: Traffic, found: Found, candidates: Sequence[Candidate], sure: Sized | None
) -> None:
    """Puts a sure fleet before the best one where it costs no more: other steps, the same replicas.

    Args:
        replays: The door to the simulator.
        traffic: All of it: the fleet must keep the promise there.
        found: What the search found; changed in place.
        candidates: Those that were searched.
        sure: See :func:`slow_fleet`; ``None``: nobody is.
    """
    best = found.answers[0]
    if sure is None or sure.replica.deployment == best.sized.replica.deployment:
        return
    if sure.price_usd_per_hour > best.sized.price_usd_per_hour * (1 + 1e-12):
        return
    verdict = replays.verdict(traffic, sure.replica, sure.carrying_count)
    if verdict.kept:
        candidate = next(one for one in candidates if one.replica.deployment == sure.replica.deployment)
        sized = replace(sure, slo=verdict.peak)
        found.answers.insert(0, replace(best, candidate=candidate, sized=sized, verdict=verdict))


def _first_token_is_sure(replays: Replays, traffic: Traffic, replica: ReplicaPhysics, count: int) -> bool:
    """Whether first tokens keep their promise at the end of their own interval, which more replicas do not narrow."""
    verdict = replays.verdict(traffic, replica, count)
    wide = replica.band.first_token_factor
    for result, target in zip(verdict.peak, replays.slo.latency, strict=False):
        if target.metric == "ttft" and result.predicted is not None and result.predicted * wide > result.promised:
            return False
    return True
