"""Which router lets the best fleet do with fewer replicas: by successive halving, on more and more of the traffic."""

from collections.abc import Sequence

from tokenfleet.domain.fleet import Router
from tokenfleet.domain.plan import PlanQuestion
from tokenfleet.domain.records import dataclass
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


@dataclass(frozen=True, slots=True)
class _Way:
    """A router in front of some replicas that would be cheaper than the best fleet."""

    router: Router
    answer: Answer
    count: int

    @property
    def fleet(self) -> str:
        return words.fleet(self.answer.sized.replica, self.count)


def best_router(
    question: PlanQuestion,
    replays: Replays,
    traffic: Traffic,
    families: Sequence[tuple[Answer, int]],
    reporter: Reporter,
) -> Routed:
    """Tries every router of the question in front of every kind of fleet found, at a count that would be cheaper.

    Args:
        question: With ``routers`` to try beside ``router``.
        replays: Counts and judges, behind the router of the question.
        traffic: What the fleet was sized on.
        families: The answer of each family behind the router of the question, the best first, and the most of its
            carrying replicas that cost less than the best fleet.
        reporter: Told what is being tried.

    Returns:
        The router behind which the cheapest of them keeps the promise; that of the question where none does. No trials
        where no other is asked for.
    """
    others = [router for router in question.routers if router != replays.router]
    if not others:
        return Routed(replays.router, ())
    best = families[0][0]
    mine = RouterTrial(
        router=replays.router,
        carrying_count=best.sized.carrying_count,
        why=_carry(words.fleet(best.sized.replica, best.sized.carrying_count), best.sized.carrying_count),
    )
    ways = [_Way(router, answer, count) for router in others for answer, count in families if count]
    if not ways:
        alone = "one replica carries the peak, so nobody does with fewer"
        return Routed(
            replays.router, (mine, *(RouterTrial(router=each, carrying_count=None, why=alone) for each in others))
        )
    told: dict[Router, RouterTrial] = {}
    for limit in _RUNGS:
        part = stretch(traffic, limit)
        if part is traffic:
            break
        kept = _better_half(replays, part, ways, reporter)
        left = {way.router for way in kept}
        for way in ways:
            if way.router not in left and way.router not in told:
                why = f"among the worse half with {way.fleet}, on {part.trace.request_count:,} requests"
                told[way.router] = RouterTrial(router=way.router, carrying_count=None, why=why)
        ways = kept
    sized = [(_sized(replays, traffic, way, reporter), way) for way in ways]
    kept_by = [(trial, way) for trial, way in sized if trial.carrying_count is not None]
    winner = min(kept_by, key=lambda pair: _usd_per_hour(*pair), default=(None, None))[0]
    told |= {trial.router: trial for trial, _ in reversed(sized)}
    rest = [told[router] for router in others if winner is None or router != winner.router]
    if winner is None:
        return Routed(replays.router, (mine, *rest))
    return Routed(winner.router, (winner, mine, *rest))


def _usd_per_hour(trial: RouterTrial, way: _Way) -> float:
    return (trial.carrying_count or 0) * way.answer.candidate.usd_per_replica_hour


def _carry(fleet: str, count: int) -> str:
    return f"{fleet} {'carries' if count == 1 else 'carry'} the peak behind it"


def _better_half(replays: Replays, part: Traffic, ways: Sequence[_Way], reporter: Reporter) -> list[_Way]:
    """Whoever misses the promise least; of those that keep it, whoever has most to spare."""

    def miss(way: _Way) -> tuple[float, float]:
        reporter.say("sizing", f"{way.fleet}, {way.router}", 0.55)
        verdict = replays.behind(way.router).verdict(part, way.answer.sized.replica, way.count)
        return verdict.excess, verdict.tightness

    misses = [miss(way) for way in ways]
    kept = sorted(range(len(ways)), key=lambda place: misses[place])[: (len(ways) + 1) // 2]
    return [way for place, way in enumerate(ways) if place in kept]


def _sized(replays: Replays, traffic: Traffic, way: _Way, reporter: Reporter) -> RouterTrial:
    """The smallest count behind this router, up to what would be cheaper than the best fleet."""
    replica = way.answer.sized.replica
    behind = replays.behind(way.router)

    def keeps(count: int) -> bool:
        reporter.say("sizing", f"{words.fleet(replica, count)}, {way.router}", 0.56)
        return behind.quick(traffic, replica, count).kept

    count = smallest_enough(keeps, way.count, way.count)
    if count is None:
        return RouterTrial(router=way.router, carrying_count=None, why=f"{way.fleet} cannot carry the peak")
    return RouterTrial(router=way.router, carrying_count=count, why=_carry(words.fleet(replica, count), count))
