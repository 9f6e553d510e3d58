"""The last few replays, for whoever asks for the same again at once.

Of pools that requests take one after the other, those before the one that changes are asked the same again and again.
What they are asked is another trace each time, of equal calls: so columns are compared, not traces.
"""

from collections import deque
from threading import Lock

import numpy as np

from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.trace import COLUMNS, Trace
from tokenfleet.domain.world import World
from tokenfleet.planner import Hopeless, Replay

_SAID_ONCE = ("tenants", "classes", "start_utc", "time_of_day_s")
"""Fields of a trace that are no columns. What a log observed, no replay reads."""
_MOST_REQUESTS = 1 << 20
"""Of all that is known together: about a hundred megabytes."""


@dataclass(frozen=True, slots=True)
class _Run:
    trace: Trace
    fleet: Fleet
    window_s: tuple[float, float] | None
    interval_s: float | None
    record: RunRecord

    def answers(
        self, trace: Trace, fleet: Fleet, window_s: tuple[float, float] | None, interval_s: float | None
    ) -> bool:
        """Whether this is the replay of exactly that."""
        times_alike = (self.window_s, self.interval_s) == (window_s, interval_s)
        return times_alike and _fleets_alike(self.fleet, fleet) and _traces_alike(self.trace, trace)


class Lately:
    """A :class:`tokenfleet.planner.Replay` that knows the last replays of quiet times."""

    def __init__(self, replay: Replay) -> None:
        """Put a memory before a replay."""
        self._replay = replay
        self._one_at_a_time = Lock()
        self._known: deque[_Run] = deque()
        self._request_count = 0

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
        """As the replay behind it."""
        is_quiet = hopeless is None and world is None
        known = self._found(trace, fleet, peak_window_s, telemetry_interval_s) if is_quiet else None
        if known is not None:
            return known
        record = self._replay(
            trace,
            fleet,
            peak_window_s=peak_window_s,
            telemetry_interval_s=telemetry_interval_s,
            hopeless=hopeless,
            world=world,
        )
        if is_quiet:
            self._keep(_Run(trace, fleet, peak_window_s, telemetry_interval_s, record))
        return record

    def _found(
        self, trace: Trace, fleet: Fleet, window_s: tuple[float, float] | None, interval_s: float | None
    ) -> RunRecord | None:
        with self._one_at_a_time:
            for place, run in enumerate(self._known):
                if run.answers(trace, fleet, window_s, interval_s):
                    del self._known[place]
                    self._known.appendleft(run)
                    return run.record
        return None

    def _keep(self, run: _Run) -> None:
        with self._one_at_a_time:
            self._known.appendleft(run)
            self._request_count += run.trace.request_count
            while self._request_count > _MOST_REQUESTS:
                self._request_count -= self._known.pop().trace.request_count


def _fleets_alike(one: Fleet, other: Fleet) -> bool:
    if (one.router, one.scrape_s, len(one.groups)) != (other.router, other.scrape_s, len(other.groups)):
        return False
    return all(map(_groups_alike, one.groups, other.groups))


def _groups_alike(one: ReplicaGroup, other: ReplicaGroup) -> bool:
    """Of the very same replica: to compare two takes as long as to replay some hundred calls."""
    apart = (name for name in ReplicaGroup.__slots__ if name != "replica")
    return one.replica is other.replica and all(getattr(one, name) == getattr(other, name) for name in apart)


def _traces_alike(one: Trace, other: Trace) -> bool:
    if one is other:
        return True
    if one.request_count != other.request_count or one.prefixes is not other.prefixes:
        return False
    if any(getattr(one, name) != getattr(other, name) for name in _SAID_ONCE):
        return False
    pairs = ((getattr(one, name), getattr(other, name)) for name in COLUMNS)
    return all(
        mine is its or (mine is not None and its is not None and np.array_equal(mine, its)) for mine, its in pairs
    )
