"""Bursts nobody foresaw: how much more than usual a fleet rides out at its peak, and how a larger one ends."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from tokenfleet import workload
from tokenfleet.contract import conservative_rank
from tokenfleet.control import Ladder
from tokenfleet.domain.plan import PlanQuestion, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.survival import Recovery
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import Admission, Clients, World
from tokenfleet.planner import words
from tokenfleet.planner.counting import largest_factor
from tokenfleet.planner.progress import Progress, Reporter
from tokenfleet.planner.recovery import settled
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.rungs import Bearer, RungRide, Shock, ridden, watched_fleet, watched_pools
from tokenfleet.planner.systems import Longs, System, seen_of
from tokenfleet.planner.traffic import Traffic, followed, stretch

BURST_LENGTHS_S = (10.0, 60.0, 300.0)
_MOST_REQUESTS = 10_000
_LARGEST_FACTOR = 32.0
_PRECISION = 1.05
_FACTOR_OF_TWICE = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """A burst at a door that turns away whoever finds the queue full. Nobody comes back."""

    queue_limit_count: int
    """Requests that may wait at one replica."""
    refused_fraction: float
    """Of those that arrive in the burst."""
    ttft_p99_s: float | None
    """Of the others that arrive in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """The largest burst of one length that a fleet rides out at its peak."""

    length_s: float
    carrying_factor: float
    """Demand against the usual, the spare replicas gone, to 5 %; 1 when it takes no more than the usual."""
    whole_factor: float
    """The same with all replicas."""
    at_least: bool
    """Nothing broke where the search stopped."""
    larger_factor: float
    """A burst with twice as much on top of the usual as the whole fleet rides out..."""
    larger_settled: Recovery
    """...and how long after its end the promise holds again."""
    bounded: Bounded | None
    """The larger burst with a bound on the queue; ``None`` where there is none."""
    rungs: tuple[RungRide, ...] = ()
    """How much each rung of the ladder adds; empty without one."""


def bursts(
    question: PlanQuestion,
    trace: Trace,
    sized: Sized,
    *,
    queue_limit_count: int | None = None,
    ladder: Ladder | None = None,
    progress: Progress | None = None,
) -> tuple[Burst, ...]:
    """Finds by replay how large a burst each length may have in the middle of the peak window.

    The promise is judged as for a plan: over the stretch around the peak, and over its busiest minute.

    Args:
        question: The promise and the router.
        trace: The usual demand.
        sized: The fleet planned for it.
        queue_limit_count: Requests that may wait at one replica, to see what a bounded queue makes of a larger burst.
        ladder: What is given up under pressure, to see what each rung adds. Requests of the class :data:`BATCH` are
            those that ``shed_batch`` refuses.
        progress: Told what is being tried.
    """
    return _bursts(_OneFleet(Replays.of(question), sized), question, trace, queue_limit_count, ladder, progress)


def bursts_of_pools(
    question: PlanQuestion,
    trace: Trace,
    pools: System,
    *,
    queue_limit_count: int | None = None,
    ladder: Ladder | None = None,
    progress: Progress | None = None,
) -> tuple[Burst, ...]:
    """The same of several pools: bursts of the whole demand, of which each pool has its part.

    Args:
        question: The promise and the router.
        trace: The usual demand.
        pools: Planned for it.
        queue_limit_count: Requests that may wait at one replica.
        ladder: What is given up under pressure, at one door in front of all pools.
        progress: Told what is being tried.
    """
    return _bursts(_Pools(Replays.of(question), pools), question, trace, queue_limit_count, ladder, progress)


def _bursts(
    bearer: "_Bearer",
    question: PlanQuestion,
    trace: Trace,
    queue_limit_count: int | None,
    ladder: Ladder | None,
    progress: Progress | None,
) -> tuple[Burst, ...]:
    traffic, longer = _parts(trace)
    reporter = Reporter(progress)
    found = []
    for length_s in BURST_LENGTHS_S:
        burst, surged = _burst(bearer, (traffic, longer), length_s, queue_limit_count, reporter)
        start_s = _start_s(traffic, length_s)
        shock = Shock(bearer, (start_s, start_s + length_s), surged, burst.larger_factor, longer)
        rides = () if ladder is None else tuple(ridden(shock, ladder, question.clients or Clients(), reporter))
        found.append(replace(burst, rungs=rides))
    return tuple(found)


def _parts(trace: Trace) -> tuple[Traffic, Traffic]:
    """The stretch around the peak on which bursts are sized, and the same with more of what follows."""
    whole = Traffic(trace, workload.peak_window(trace))
    return stretch(whole, _MOST_REQUESTS), followed(whole, _MOST_REQUESTS)


class _Bearer(Bearer, Protocol):
    """What has to bear a burst."""

    said: str
    has_spare: bool

    def follow(self, usual: Trace, made: Trace, rows: Longs) -> None:
        """Be told whose copies the requests of ``made`` are."""

    def keeps(self, traffic: Traffic, *, spare: bool) -> bool:
        """Whether the promise is kept, with the spare replicas there or gone."""

    def record(self, traffic: Traffic, world: World | None = None) -> RunRecord:
        """What becomes of everybody with all replicas."""


class _OneFleet:
    def __init__(self, replays: Replays, sized: Sized) -> None:
        self.replays, self._sized = replays, sized
        self.said = words.fleet(sized.replica, sized.replica_count)
        self.has_spare = sized.spare_count > 0

    def follow(self, usual: Trace, made: Trace, rows: Longs) -> None:
        """All replicas are alike: nothing hangs on it."""

    def keeps(self, traffic: Traffic, *, spare: bool) -> bool:
        count = self._sized.replica_count if spare else self._sized.carrying_count
        return self.replays.verdict(traffic, self._sized.replica, count).kept

    def record(self, traffic: Traffic, world: World | None = None) -> RunRecord:
        return self.replays.run(traffic, self._sized.replica, self._sized.replica_count, world=world)

    def watched(self, traffic: Traffic, ladder: Ladder, clients: Clients) -> tuple[RunRecord, int]:
        return watched_fleet(self.replays, self._sized, traffic, ladder, clients)


class _Pools:
    def __init__(self, replays: Replays, system: System) -> None:
        self.replays, self._system = replays, system
        self.said = f"{len(system.parts)} pools"
        self.has_spare = any(part.sized.spare_count for part in system.parts)

    def follow(self, usual: Trace, made: Trace, rows: Longs) -> None:
        way = self._system.way
        if way is not None:
            self._system = replace(self._system, way=way.of_copies(usual, made, rows))

    def keeps(self, traffic: Traffic, *, spare: bool) -> bool:
        return self._system.judged(self.replays, traffic, spare=spare).kept

    def record(self, traffic: Traffic, world: World | None = None) -> RunRecord:
        worlds = None if world is None else {part.name: world for part in self._system.parts}
        run = self._system.replayed(self.replays, traffic, spare=True, worlds=worlds)
        return seen_of(self._system.way, traffic, run)

    def watched(self, traffic: Traffic, ladder: Ladder, clients: Clients) -> tuple[RunRecord, int]:
        return watched_pools(self.replays, self._system, traffic, ladder, clients)


def _burst(
    bearer: _Bearer,
    demand: tuple[Traffic, Traffic],
    length_s: float,
    queue_limit_count: int | None,
    reporter: Reporter,
) -> tuple[Burst, Callable[..., Traffic]]:
    traffic, longer = demand
    start_s = _start_s(traffic, length_s)

    def surged(factor: float, part: Traffic = traffic) -> Traffic:
        if factor <= 1.0:
            return part
        trace, rows = workload.surge_with_rows(part.trace, start_s=start_s, length_s=length_s, factor=factor)
        bearer.follow(part.trace, trace, rows)
        return Traffic(trace, workload.peak_window(trace))

    def largest(*, spare: bool) -> float:
        def keeps(factor: float) -> bool:
            burst = f"{factor:.3g} times the usual for {words.seconds(length_s)}"
            reporter.say("sizing", f"{burst} on {bearer.said}{'' if spare else ', the spare gone'}", 0.5)
            return bearer.keeps(surged(factor), spare=spare)

        return largest_factor(keeps, most=_LARGEST_FACTOR, precision=_PRECISION)

    carrying = largest(spare=False)
    whole = largest(spare=True) if bearer.has_spare else carrying
    larger = min(1.0 + _FACTOR_OF_TWICE * max(whole - 1.0, _PRECISION - 1.0), 2.0 * _LARGEST_FACTOR)
    burst_s = start_s, start_s + length_s
    record = bearer.record(surged(larger))
    burst = Burst(
        length_s=length_s,
        carrying_factor=carrying,
        whole_factor=whole,
        at_least=whole >= _LARGEST_FACTOR,
        larger_factor=larger,
        larger_settled=settled(
            record,
            bearer.replays.slo,
            burst_s[1],
            window_s=traffic.window_length_s,
            longer=lambda: bearer.record(surged(larger, longer)),
        ),
        bounded=None if queue_limit_count is None else _bounded(bearer, surged(larger), burst_s, queue_limit_count),
    )
    return burst, surged


def _bounded(bearer: _Bearer, traffic: Traffic, burst_s: tuple[float, float], queue_limit_count: int) -> Bounded:
    record = bearer.record(traffic, World(admission=Admission(queue_limit_count=queue_limit_count)))
    inside = (record.arrival_s >= burst_s[0]) & (record.arrival_s < burst_s[1])
    refused = inside & (record.status == Status.REJECTED_QUEUE_FULL)
    served = np.sort(record.ttft_s[inside & np.isfinite(record.ttft_s)])
    return Bounded(
        queue_limit_count=queue_limit_count,
        refused_fraction=float(refused.sum() / max(1, inside.sum())),
        ttft_p99_s=float(served[conservative_rank(len(served), 0.99) - 1]) if len(served) else None,
    )


def _start_s(traffic: Traffic, length_s: float) -> float:
    """In the middle of the peak window, where somebody arrives."""
    trace = traffic.trace
    middle_s = (traffic.window_s[0] + traffic.window_s[1] - length_s) / 2.0
    middle_s = max(0.0, min(middle_s, trace.duration_s - length_s))
    following = int(np.searchsorted(trace.arrival_s, middle_s))
    # In thin traffic a short burst could begin where nobody is: it waits for the next arrival.
    next_s = float(trace.arrival_s[min(following, trace.request_count - 1)])
    return middle_s if next_s < middle_s + length_s else next_s
