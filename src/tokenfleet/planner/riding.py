"""Fleets that ride through the moment of a loss: spare replicas added until the promise holds while all comes back."""

from dataclasses import replace

from tokenfleet.domain.plan import PlanQuestion, Reason, Sized
from tokenfleet.domain.survival import LossKind
from tokenfleet.planner import words
from tokenfleet.planner.candidates import Failure
from tokenfleet.planner.counting import first_enough
from tokenfleet.planner.moment import failed, scene_of
from tokenfleet.planner.placement import LOSSES, placed
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.redundancy import asked
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.search import Answer, Found
from tokenfleet.planner.traffic import Traffic

_MOST_TIMES = 3
"""More than so many times the fleet that carries without the loss is another fleet's business."""


def ride_through(replays: Replays, traffic: Traffic, question: PlanQuestion, found: Found, reporter: Reporter) -> None:
    """Adds spare replicas to the winner until it rides through every loss asked for; it must win with them.

    Args:
        replays: The door to the simulator.
        traffic: The stretch that candidates were sized on.
        question: What may be lost. A part of the demand has no nodes of its own, so nothing is done for one.
        found: What the search found; changed in place.
        reporter: Told what is tried.
    """
    if not _asked_for(question):
        return
    ridden: set[str] = set()
    while found.answers and found.answers[0].candidate.name not in ridden:
        winner = found.answers.pop(0)
        ridden.add(winner.candidate.name)
        total = riding_count(replays, traffic, question, winner.sized, reporter)
        if total is None:
            found.failures.append(_failure(winner))
            continue
        sized = replace(winner.sized, spare_count=total - winner.sized.carrying_count)
        found.answers.append(replace(winner, sized=sized))
        found.answers.sort(key=lambda one: one.rank)


def _asked_for(question: PlanQuestion) -> list[LossKind]:
    """The losses to ride through; none where nobody asked, or where a part of the demand has no nodes of its own."""
    kinds = [kind for kind in LOSSES if asked(question).count_of(kind)]
    return kinds if question.redundancy.ride_through and question.stands_for_count == 1 else []


def riding_count(
    replays: Replays, traffic: Traffic, question: PlanQuestion, sized: Sized, reporter: Reporter
) -> int | None:
    """The smallest fleet, from ``sized`` up, that rides through each loss where that is asked for.

    Args:
        replays: The door to the simulator.
        traffic: The stretch that candidates were sized on.
        question: What may be lost.
        sized: A fleet that carries the peak after each loss.
        reporter: Told what is tried.

    Returns:
        ``None`` when none tried does.
    """
    kinds = _asked_for(question)
    replica, least = sized.replica, sized.replica_count
    if not kinds:
        return least

    def rides(more: int) -> bool:
        total = least + more - 1
        placement = placed(total, replica, asked(question))
        if placement is None:
            return False
        reporter.say("verifying", f"{words.fleet(replica, total)} in the moment of a loss", 0.59)
        scene = scene_of(question, replays, traffic, replica, placement)
        moments = (failed(scene, kind, asked(question).count_of(kind)) for kind in kinds)
        return all(moment is not None and moment.kept for moment in moments)

    cap = min(_MOST_TIMES * least, replays.most(traffic, replica)) - least + 1
    more = first_enough(rides, cap) if cap >= 1 else None
    return None if more is None else least + more - 1


def _failure(winner: Answer) -> Failure:
    count = _MOST_TIMES * winner.sized.replica_count
    reason = Reason(
        kind="redundancy",
        text=f"Even {words.fleet(winner.sized.replica, count)} break the promise while what was lost comes back.",
        relax="redundancy: {ride_through: false}",
    )
    return Failure(winner.sized.replica, count, winner.verdict, (reason,))
