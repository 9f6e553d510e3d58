"""Changes made to a question that no fleet answers, each with the plan of the whole demand that follows."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

from tokenfleet import workload
from tokenfleet.domain.plan import PlanQuestion, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.planner import words
from tokenfleet.planner.changes import Case, Change, Graded, Obstacle
from tokenfleet.planner.counting import smallest_enough
from tokenfleet.planner.multiples import whole_of
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.screen import Screened
from tokenfleet.planner.search import Found
from tokenfleet.planner.traffic import Traffic

_DONE_FRACTION = 0.8


@dataclass(frozen=True, slots=True)
class Sought:
    """What a search came to."""

    screened: Screened
    found: Found
    replayed_count: int


Seek = Callable[[PlanQuestion, Traffic, Reporter], Sought]
"""The search of a plan, with all that a plan asks of its winner before it is bought."""


@dataclass(frozen=True, slots=True)
class Working:
    """Changes that are enough, and how to say so."""

    changes: tuple[Change, ...]
    sized: Sized
    """The cheapest fleet then, spare replicas included."""
    text: str


class Trials:
    """One question with one thing or another changed."""

    def __init__(self, case: Case, seek: Seek, cut: Callable[[Traffic], Traffic], reporter: Reporter) -> None:
        """Begin with what no fleet answers.

        Args:
            case: The question and the demand.
            seek: Searches.
            cut: The busiest stretch of a demand, which a search can afford.
            reporter: Told what is tried.
        """
        self.case, self.cut = case, cut
        self._seek, self._reporter = seek, reporter
        self.replayed_count = 0

    def after(self, changes: Iterable[Change]) -> Case:
        """The question and the demand with the changes made."""
        case = self.case
        for change in changes:
            case = change.made(case)
        trace = case.traffic.trace
        # A plan of other requests looks for their own peak.
        other = trace is not self.case.traffic.trace
        return replace(case, traffic=Traffic(trace, workload.peak_window(trace))) if other else case

    def sought(self, changes: tuple[Change, ...]) -> Sought:
        """What a search comes to then."""
        case, said = self.after(changes), " and ".join(change.trying for change in changes)
        found = self._seek(case.question, case.traffic, self._reporter.within("relaxing", said, _DONE_FRACTION))
        self.replayed_count += found.replayed_count
        return found

    def works(self, changes: tuple[Change, ...]) -> Working | None:
        """The changes with the fleet that a plan buys then; ``None`` where it finds none."""
        answers = self.sought(changes).found.answers
        if not answers:
            return None
        sized = whole_of(answers[0].sized, self.after(changes).question)
        text = " and ".join(change.said(sized) for change in changes)
        return Working(changes, sized, f"{text} ({words.fleet(sized.replica, sized.replica_count)})")

    def first(self, steps: Obstacle, beside: tuple[Change, ...] = ()) -> Working | None:
        """The first of some steps that is enough, made along with what stands ``beside`` it."""
        return next((found for step in steps if (found := self.works((*beside, step))) is not None), None)

    def smallest(self, graded: Graded, beside: tuple[Change, ...] = ()) -> Working | None:
        """The smallest step that is enough, made along with what stands ``beside`` it."""
        usual = graded.smaller_count + 1

        @cache
        def made(size: int) -> Working | None:
            return self.works((*beside, graded.at(usual - size)))

        size = smallest_enough(lambda size: made(size) is not None, usual, usual + graded.larger_count, stride=1)
        return None if size is None else made(size)
