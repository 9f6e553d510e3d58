"""Bursts nobody foresaw: how much more than usual a fleet rides out at its peak, and how a larger one ends."""

from dataclasses import replace

import numpy as np

from tokenfleet import workload
from tokenfleet.contract import conservative_rank
from tokenfleet.control import Ladder
from tokenfleet.domain.plan import PlanQuestion, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import Status
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import Admission, Clients, World
from tokenfleet.planner import words
from tokenfleet.planner.counting import largest_factor
from tokenfleet.planner.progress import Progress, Reporter
from tokenfleet.planner.recovery import recovery_s
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.rungs import RungRide, Shock, ridden
from tokenfleet.planner.traffic import Traffic, stretch

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
    larger_settled_s: float | None
    """...and how long after its end the promise holds again; ``None``: not in this trace."""
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
    replays = Replays.of(question)
    traffic = stretch(Traffic(trace, workload.peak_window(trace)), _MOST_REQUESTS)
    reporter = Reporter(progress)
    found = []
    for length_s in BURST_LENGTHS_S:
        burst, shock = _burst(replays, traffic, sized, length_s, queue_limit_count, reporter)
        rides = () if ladder is None else tuple(ridden(shock, ladder, question.clients or Clients(), reporter))
        found.append(replace(burst, rungs=rides))
    return tuple(found)


def _burst(
    replays: Replays,
    traffic: Traffic,
    sized: Sized,
    length_s: float,
    queue_limit_count: int | None,
    reporter: Reporter,
) -> tuple[Burst, Shock]:
    start_s = _start_s(traffic, length_s)

    def surged(factor: float) -> Traffic:
        if factor <= 1.0:
            return traffic
        trace = workload.surge(traffic.trace, start_s=start_s, length_s=length_s, factor=factor)
        return Traffic(trace, workload.peak_window(trace))

    def keeps(count: int, factor: float) -> bool:
        burst = f"{factor:.3g} times the usual for {words.seconds(length_s)}"
        reporter.say("sizing", f"{burst} on {words.fleet(sized.replica, count)}", 0.5)
        return replays.verdict(surged(factor), sized.replica, count).kept

    def largest(count: int) -> float:
        return largest_factor(lambda factor: keeps(count, factor), most=_LARGEST_FACTOR, precision=_PRECISION)

    carrying = largest(sized.carrying_count)
    whole = carrying if not sized.spare_count else largest(sized.replica_count)
    larger = min(1.0 + _FACTOR_OF_TWICE * max(whole - 1.0, _PRECISION - 1.0), 2.0 * _LARGEST_FACTOR)
    record = replays.run(surged(larger), sized.replica, sized.replica_count)
    shock = Shock(replays, sized, (start_s, start_s + length_s), surged, larger)
    burst = Burst(
        length_s=length_s,
        carrying_factor=carrying,
        whole_factor=whole,
        at_least=whole >= _LARGEST_FACTOR,
        larger_factor=larger,
        larger_settled_s=recovery_s(record, replays.slo, start_s + length_s, window_s=traffic.window_length_s),
        bounded=None
        if queue_limit_count is None
        else _bounded(replays, surged(larger), sized, (start_s, start_s + length_s), queue_limit_count),
    )
    return burst, shock


def _bounded(
    replays: Replays, traffic: Traffic, sized: Sized, burst_s: tuple[float, float], queue_limit_count: int
) -> Bounded:
    world = World(admission=Admission(queue_limit_count=queue_limit_count))
    record = replays.run(traffic, sized.replica, sized.replica_count, world=world)
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
