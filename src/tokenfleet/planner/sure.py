"""What it takes to be sure: the promise kept even if every step is as slow as the error band allows."""

from collections.abc import Sequence
from dataclasses import replace

from tokenfleet.domain.plan import PlanQuestion, Sized
from tokenfleet.planner import words
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.replays import Replays, with_step_factor
from tokenfleet.planner.screen import screen
from tokenfleet.planner.search import Answer, Candidate, Search, family
from tokenfleet.planner.traffic import Traffic


def sure_fleet(
    replays: Replays,
    traffic: Traffic,
    question: PlanQuestion,
    chosen: Answer,
    candidates: Sequence[Candidate],
) -> Sized | None:
    """The cheapest fleet of the chosen kind that keeps the promise with steps at the slow end of their band.

    Steps of other sizes are tried too: where the slow end breaks ITL, more replicas do not help and smaller steps do.

    Returns:
        ``None`` when no count of any of them does.
    """
    kind = family(chosen.sized.replica)
    kin = {words.settled(one.replica.deployment): one.replica for one in candidates if family(one.replica) == kind}
    slow = tuple(with_step_factor(replica, replica.band.step_time_factor) for replica in kin.values())
    silent = Reporter(None)
    screened = screen(replace(question, candidates=slow, rejected=()), traffic, (), silent)
    answers = Search(replays, traffic, question, silent).over(screened.candidates).answers
    if not answers:
        return None
    best = answers[0].sized
    return replace(best, replica=kin[words.settled(best.replica.deployment)])
