"""Which router lets the best fleet do with fewer replicas: by successive halving, on more and more of the traffic."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenfleet.domain.fleet import Router
from tokenfleet.domain.plan import PlanQuestion
from tokenfleet.domain.ways import RouterTrial
from tokenfleet.planner import words
from tokenfleet.planner.counting import smallest_enough
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.search import Answer
from tokenfleet.planner.traffic import Traffic, stretch

_RUNGS = (1_000, 4_000)
"""Requests that all routers, then the better half, are held against; who is left is sized on the whole stretch."""


@dataclass(frozen=True, slots=True)
class Routed:
    """The router to plan with, and what came of each."""

    router: Router
    trials: tuple[RouterTrial, ...]


def best_router(question: PlanQuestion, replays: Replays, traffic: Traffic, best: Answer, reporter: Reporter) -> Routed:
    """Tries every router of the question in front of the best fleet with one replica fewer.

    Args:
        question: With ``routers`` to try beside ``router``.
        replays: Counts and judges, behind the router of the question.
        traffic: What the fleet was sized on.
        best: The cheapest answer behind the router of the question.
        reporter: Told what is being tried.

    Returns:
        The router with which the fewest replicas of that kind keep the promise; that of the question where none does
        with fewer. No trials where none is asked for.
    """
    others = [router for router in question.routers if router != replays.router]
    carrying = best.sized.carrying_count
    if not others:
        return Routed(replays.router, ())
    if carrying == 1:
        alone = "one replica carries the peak, so nobody does with fewer"
        found = [RouterTrial(router=router, carrying_count=None, why=alone) for router in others]
        return Routed(replays.router, (_carried(replays.router, best, carrying), *found))
    trials: list[RouterTrial] = []
    for limit in _RUNGS:
        part = stretch(traffic, limit)
        if part is traffic:
            break
        kept = _better_half(replays, part, best, others, reporter)
        said = f"among the worse half with {words.replicas(carrying - 1)}, on {part.trace.request_count:,} requests"
        trials += [RouterTrial(router=router, carrying_count=None, why=said) for router in others if router not in kept]
        others = kept
    trials += [_sized(replays, traffic, best, router, reporter) for router in others]
    winner = min(
        (trial for trial in trials if trial.carrying_count is not None and trial.carrying_count < carrying),
        key=lambda trial: (trial.carrying_count or carrying, question.routers.index(trial.router)),
        default=None,
    )
    if winner is None:
        return Routed(replays.router, (_carried(replays.router, best, carrying), *reversed(trials)))
    rest = [trial for trial in reversed(trials) if trial is not winner]
    return Routed(winner.router, (winner, _carried(replays.router, best, carrying), *rest))


def _carried(router: Router, best: Answer, count: int) -> RouterTrial:
    fleet = words.fleet(best.sized.replica, count)
    why = f"{fleet} {'carries' if count == 1 else 'carry'} the peak behind it"
    return RouterTrial(router=router, carrying_count=count, why=why)


def _better_half(
    replays: Replays, part: Traffic, best: Answer, routers: Sequence[Router], reporter: Reporter
) -> list[Router]:
    """Whoever misses the promise least with one replica fewer; of those that keep it, whoever has most to spare."""
    count = best.sized.carrying_count - 1

    def miss(router: Router) -> tuple[float, float]:
        reporter.say("sizing", f"{words.fleet(best.sized.replica, count)}, {router}", 0.55)
        verdict = replays.behind(router).verdict(part, best.sized.replica, count)
        return verdict.excess, verdict.tightness

    misses = {router: miss(router) for router in routers}
    kept = sorted(routers, key=lambda router: misses[router])[: (len(routers) + 1) // 2]
    return [router for router in routers if router in kept]


def _sized(replays: Replays, traffic: Traffic, best: Answer, router: Router, reporter: Reporter) -> RouterTrial:
    """The smallest count behind this router, up to that of the router of the question."""
    carrying, replica = best.sized.carrying_count, best.sized.replica
    behind = replays.behind(router)

    def keeps(count: int) -> bool:
        reporter.say("sizing", f"{words.fleet(replica, count)}, {router}", 0.56)
        return behind.quick(traffic, replica, count).kept

    count = smallest_enough(keeps, carrying - 1, carrying)
    if count is None:
        return RouterTrial(router=router, carrying_count=None, why=f"{words.replicas(carrying)} are too few behind it")
    return _carried(router, best, count)
