"""Replays that will be asked for soon, run beside the one that is awaited.

A replay is a pure function, so running one early changes no answer: the search decides in its own order, and finds
some of its replays done. What was run and never asked for is lost work, not a different plan.
"""

from collections.abc import Callable
from functools import cache
from typing import Protocol, TypeVar

from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import World
from tokenfleet.planner.early import Hopeless
from tokenfleet.planner.recalling import Recall, anew
from tokenfleet.planner.verdict import Verdicts

T = TypeVar("T")

_MOST_WAITING = 64


class Replay(Protocol):
    """Runs one replay, as :func:`tokenfleet.simulator.replay` does."""

    def __call__(
        self,
        trace: Trace,
        fleet: Fleet,
        *,
        peak_window_s: tuple[float, float] | None = None,
        telemetry_interval_s: float | None = None,
        hopeless: Hopeless | None = None,
        world: World | None = None,
    ) -> RunRecord:
        """Replays ``trace`` on ``fleet``."""


class Pending(Protocol):
    """A replay under way."""

    def result(self) -> RunRecord:
        """Waits for it."""


Key = tuple[object, ...]
Submit = Callable[[Trace, Fleet, tuple[float, float], Hopeless | None], Pending]
"""Starts a replay somewhere: trace, fleet, peak window, when to give up."""


class Start(Protocol):
    """Starts work at once."""

    def __call__(self, work: Callable[[], T], /) -> Callable[[], T]:
        """What is returned waits for the answer, and raises what the work raised."""


class Recalling:
    """A :class:`Replay` beside which answers are kept."""

    recall: Recall
    """What earlier plans worked out."""


def recall_of(replay: object) -> Recall:
    """What is kept beside a replay, where anything is."""
    return replay.recall if isinstance(replay, Recalling) else anew


def unkept(replay: Replay) -> Replay:
    """Runs what nobody will ask for again, as what it comes to is kept."""
    return replay.unkept if isinstance(replay, Spread) else replay


class Spread(Recalling):
    """A :class:`Replay` that may be told what comes next."""

    def __init__(
        self,
        replay: Replay,
        submit: Submit,
        width: int,
        verdicts: Verdicts | None = None,
        recall: Recall = anew,
        *,
        unkept: Replay | None = None,
        start: Start | None = None,
    ) -> None:
        """Put workers beside a replay.

        Args:
            replay: Runs what nobody foresaw.
            submit: Hands a replay to a worker.
            width: How many to foresee: those that workers can run meanwhile.
            verdicts: What earlier plans decided.
            recall: What else they worked out.
            unkept: Runs what nobody will ask for again, as what it comes to is kept; ``replay`` where nothing is.
            start: Starts work beside the search, where there is a core for it.
        """
        self._replay = replay
        self.unkept: Replay = unkept or replay
        self._submit = submit
        self.width = width
        self.verdicts = verdicts
        self.recall = recall
        self._start = start
        # Traces and replicas are kept beside their numbers, so that nobody else gets them.
        self._waiting: dict[Key, tuple[Trace, Fleet, Hopeless | None, Pending]] = {}

    @property
    def runs_beside(self) -> bool:
        """Whether :meth:`beside` starts work at once, on a worker that replays run ahead on, too."""
        return self._start is not None

    def ahead(self, trace: Trace, fleet: Fleet, window_s: tuple[float, float], hopeless: Hopeless | None) -> None:
        """Start a replay that will be asked for, unless it runs already."""
        key = _key(trace, fleet, window_s, hopeless)
        if key in self._waiting:
            return
        if len(self._waiting) >= _MOST_WAITING:
            # Work beside takes its own away meanwhile, so the oldest is read off a copy and may be gone.
            self._waiting.pop(next(iter(tuple(self._waiting)), key), None)
        self._waiting[key] = trace, fleet, hopeless, self._submit(trace, fleet, window_s, hopeless)

    def beside(self, work: Callable[[], T]) -> Callable[[], T]:
        """Starts ``work`` on a core of its own, or leaves it until it is asked for; see :class:`Replays`."""
        return cache(work) if self._start is None else self._start(work)

    def __call__(
        self,
        trace: Trace,
        fleet: Fleet,
        *,
        peak_window_s: tuple[float, float] | None = None,
        telemetry_interval_s: float | None = None,
        hopeless: Hopeless | None = None,
        world: World | None = None,
    ) -> RunRecord:
        """The record of a replay that runs already, or of one run now."""
        if telemetry_interval_s is None and world is None and peak_window_s is not None:
            waiting = self._waiting.pop(_key(trace, fleet, peak_window_s, hopeless), None)
            if waiting is not None:
                return _awaited(waiting[2], waiting[3], hopeless)
        return self._replay(
            trace,
            fleet,
            peak_window_s=peak_window_s,
            telemetry_interval_s=telemetry_interval_s,
            hopeless=hopeless,
            world=world,
        )


def _awaited(asked_ahead: Hopeless | None, pending: Pending, hopeless: Hopeless | None) -> RunRecord:
    """What was seen on the way is handed to whoever asks now."""
    record = pending.result()
    if hopeless is not None and asked_ahead is not None:
        hopeless.looks.extend(asked_ahead.looks)
    return record


def _key(trace: Trace, fleet: Fleet, window_s: tuple[float, float], hopeless: Hopeless | None) -> Key:
    groups = tuple((id(group.replica), group.replica_count) for group in fleet.groups)
    return id(trace), groups, fleet.router, window_s, hopeless
