"""Which rung of the degradation ladder rides out how large a burst, and how soon it is over.

The bound of the queue alone comes first, then it with the first rung, with the first two, and so on: the ladder climbs
in the replay as it would in life, at its ticks, by its marks. Who is refused is refused; the promise is held against
all others, who must be served as promised. Beside the largest burst for which that is so stands one burst, the same for
all rungs, so that they can be told apart.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np

from tokenfleet.control import Ladder
from tokenfleet.domain.plan import Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord, requests_of
from tokenfleet.domain.slo import Slo
from tokenfleet.domain.stages import Gate
from tokenfleet.domain.survival import Recovery
from tokenfleet.domain.trace import Bools, of_class
from tokenfleet.domain.world import Admission, Clients, World
from tokenfleet.planner.counting import largest_factor
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.recovery import settled
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.systems import System
from tokenfleet.planner.traffic import Traffic
from tokenfleet.simulator.controlling import Controller

BATCH = "ladder.batch"
"""Class of the requests that ``shed_batch`` refuses."""
MOST_FACTOR = 16.0
_PRECISION = 1.1
_WINDOW_S = 60.0
"""Arrivals that are judged together, to say when it is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RungRide:
    """A burst with so much of the ladder in force."""

    kinds: tuple[str, ...]
    """Rungs that may be climbed; none: the bound of the queue alone."""
    factor: float
    """Demand against the usual with which those served are served as promised, on all replicas, to 10 %; 1 where no
    more than the usual is."""
    at_least: bool
    """Nothing broke where the search stopped."""
    larger_kept: bool
    """Of the larger burst those served are served as promised."""
    larger_refused_fraction: float
    """Of those that arrive in it."""
    larger_climbed_count: int
    """Rungs that it takes."""
    larger_settled: Recovery
    """After its end, until those who arrive are served as promised, refusals as errors."""


class Bearer(Protocol):
    """Who bears a burst with somebody at the door."""

    replays: Replays

    def watched(self, traffic: Traffic, ladder: Ladder, clients: Clients) -> tuple[RunRecord, int]:
        """What becomes of everybody while the ladder is climbed, and how far up it went."""


@dataclass(frozen=True, slots=True)
class Shock:
    """Bursts of one length on a fleet, or on several pools."""

    bearer: Bearer
    burst_s: tuple[float, float]
    surged: Callable[..., Traffic]
    """The traffic, or another part of the demand, with so many times the usual in the burst."""
    larger_factor: float
    """A burst that is more than the fleet rides out with nothing given up."""
    longer: Traffic
    """The traffic with more of what follows."""


def ridden(shock: Shock, ladder: Ladder, clients: Clients, reporter: Reporter) -> Iterator[RungRide]:
    """How large a burst each part of a ladder rides out, the bound of the queue alone first."""
    for count in range(len(ladder.rungs) + 1):
        yield _with_rungs(shock, replace(ladder, rungs=ladder.rungs[:count]), clients, reporter)


def _with_rungs(shock: Shock, ladder: Ladder, clients: Clients, reporter: Reporter) -> RungRide:
    kinds = tuple(rung.kind for rung in ladder.rungs)
    replays, watched = shock.bearer.replays, shock.bearer.watched
    among_served = Replays(_to_those_served(replays.slo), replays.router)

    def kept(traffic: Traffic, record: RunRecord) -> bool:
        served = requests_of(record, ~record.turned_away)
        return among_served.judged(traffic, served).kept

    def keeps(factor: float) -> bool:
        given_up = ", ".join(kinds) or "the bound of the queue"
        reporter.say("sizing", f"{factor:.3g} times the usual with {given_up}", 0.7)
        traffic = shock.surged(factor)
        return kept(traffic, watched(traffic, ladder, clients)[0])

    factor = largest_factor(keeps, most=MOST_FACTOR, precision=_PRECISION)
    larger = shock.surged(shock.larger_factor)
    record, climbed = watched(larger, ladder, clients)
    inside = (record.arrival_s >= shock.burst_s[0]) & (record.arrival_s < shock.burst_s[1])
    refused = inside & record.turned_away
    return RungRide(
        kinds=kinds,
        factor=factor,
        at_least=factor >= MOST_FACTOR,
        larger_kept=kept(larger, record),
        larger_refused_fraction=float(refused.sum() / max(1, inside.sum())),
        larger_climbed_count=climbed,
        larger_settled=settled(
            record,
            replays.slo,
            shock.burst_s[1],
            window_s=_WINDOW_S,
            longer=lambda: watched(shock.surged(shock.larger_factor, shock.longer), ladder, clients)[0],
        ),
    )


def _to_those_served(slo: Slo) -> Slo:
    """The promise without what it says of refusals: those served are no errors."""
    rates = tuple(rate for rate in slo.class_rates if rate.kind == "error_rate")
    return replace(slo, rejection_rate_fraction=None, class_rates=rates)


def batch_among(traffic: Traffic) -> Bools | None:
    """The requests that ``shed_batch`` refuses; ``None``: nobody says."""
    return of_class(traffic.trace, BATCH) if BATCH in traffic.trace.classes else None


def watched_fleet(
    replays: Replays, sized: Sized, traffic: Traffic, ladder: Ladder, clients: Clients
) -> tuple[RunRecord, int]:
    """All replicas of one fleet with somebody who climbs the ladder, and how far up it went."""
    controller = Controller(None, ladder)
    world = World(
        admission=Admission(queue_limit_count=ladder.queue_limit_count),
        clients=clients,
        batch=batch_among(traffic),
        controller=controller if ladder.rungs else None,
        caps_waits=ladder.caps_waits,
    )
    record = replays.run(traffic, sized.replica, sized.replica_count, world=world)
    return record, highest(controller)


def watched_pools(
    replays: Replays, system: System, traffic: Traffic, ladder: Ladder, clients: Clients
) -> tuple[RunRecord, int]:
    """The same of pools, with one door in front of all of them, which goes by the fullest replica of any."""
    climbed = [Controller(None, ladder)]

    def somebody_new() -> Controller:
        climbed.append(Controller(None, ladder))
        return climbed[-1]

    names = tuple(part.name for part in system.parts)
    gate = Gate(
        name="door",
        takes=np.ones(traffic.trace.request_count, dtype=np.bool_),
        watched=names,
        controllers=somebody_new,
        batch=batch_among(traffic),
        clients=clients,
    )
    bounded = World(admission=Admission(queue_limit_count=ladder.queue_limit_count), clients=clients)
    run = system.replayed(
        replays, traffic, spare=True, worlds=dict.fromkeys(names, bounded), gate=gate if ladder.rungs else None
    )
    # A replay through a door is repeated until nothing changes: the last one counts.
    return run.record, highest(climbed[-1])


def highest(controller: Controller) -> int:
    """Rungs that were climbed at most."""
    return max((step.rung_count for step in controller.ladder_steps), default=0)
