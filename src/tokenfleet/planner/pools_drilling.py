"""Drills of pools that somebody named: what users see of all of them while one bad day goes over them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import combinations
from typing import cast

import numpy as np

from tokenfleet import simulator, workload
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.plan import PlanQuestion
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.slo import SloResult
from tokenfleet.domain.stages import Call, Pools, StagedRun
from tokenfleet.domain.survival import Drill, DrillName, LossKind, Placement, Recovery
from tokenfleet.domain.trace import Bools, Trace
from tokenfleet.domain.world import Happening, World
from tokenfleet.planner import words
from tokenfleet.planner.drilling import (
    MOST_REQUESTS,
    NOTHING_LEFT,
    ONE_ZONE,
    DrillPlan,
    anywhere,
    burst_drill,
    changing,
    flood_drill,
    flooded_by,
    loss_said,
    no_rollout,
    passed,
    raised_to_peak,
    ramp_drill,
    recovered,
    rollout_drill,
    struck_said,
    with_burst,
    worse_of,
)
from tokenfleet.planner.housing import rooms_of
from tokenfleet.planner.moment import (
    CLIENTS,
    fullest_s,
    in_flight_tokens,
    in_zones,
    times_until,
    version_change,
    worst_of,
)
from tokenfleet.planner.placement import placed
from tokenfleet.planner.progress import Progress, Reporter
from tokenfleet.planner.recovery import recovery
from tokenfleet.planner.redundancy import asked
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.systems import Longs, Way, seen_of, verdict_of, with_lane_of
from tokenfleet.planner.traffic import Traffic, stretch
from tokenfleet.planner.verdict import Verdict

_OF_EACH_POOL: tuple[DrillName, ...] = ("replica", "node", "rollout")
_NOBODY_COMES = "no request of this demand comes to it"
_ON_SHARED = "pools share GPUs here, and a rollout beside them is not replayed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrilledPool:
    """One pool with all its replicas."""

    name: str
    fleet: Fleet
    """Equal replicas, carrying and spare."""
    carrying_count: int
    """Those that are not spare."""
    beside: str | None = None
    """The pool on whose GPUs it stands."""

    @property
    def count(self) -> int:
        """Its replicas."""
        return self.fleet.groups[0].replica_count


@dataclass(frozen=True, slots=True)
class _Demand:
    """Requests, and which way they go."""

    traffic: Traffic
    way: Way


@dataclass(frozen=True, slots=True)
class _Ground:
    """Where drills take place: all pools with all their replicas."""

    question: PlanQuestion
    plan: DrillPlan
    demand: _Demand
    pools: tuple[DrilledPool, ...]
    replays: Replays
    placements: Mapping[str, Placement]
    """Of each pool with GPUs of its own."""
    quiet: list[StagedRun] = field(default_factory=list)

    @property
    def usual(self) -> StagedRun:
        """The demand in quiet times, replayed once."""
        if not self.quiet:
            self.quiet.append(self.run(self.demand))
        return self.quiet[0]

    @property
    def fullest_s(self) -> float:
        """When most tokens of those who are waited for are in flight, in all pools."""
        return fullest_s(self.seen(self.demand, self.usual), self.demand.traffic.window_s)

    def through(self, demand: _Demand, counts: Mapping[str, int]) -> tuple[Trace, Pools]:
        """The requests as they are sent, and their stages; ``counts`` where a pool has not its usual replicas."""
        fleets = {pool.name: _of_count(pool, counts) for pool in self.pools}
        return demand.way.through(demand.traffic.trace, fleets)

    def run(
        self, demand: _Demand, *, counts: Mapping[str, int] | None = None, around: Mapping[str, World] | None = None
    ) -> StagedRun:
        """Replays a demand through all pools, in quiet times or with what happens around some of them."""
        worlds = around or {}

        def world(name: str, calls: Trace) -> World | None:
            return with_lane_of(demand.way.world(name, calls), worlds.get(name))

        self.replays.count += len(self.pools)
        sent, pools = self.through(demand, counts or {})
        # Gaps are counted class by class along with telemetry: one sample of it is enough.
        apart = self.question.slo.gaps_apart_in(has_lane=demand.way.has_lanes)
        return simulator.replay_stages(
            sent,
            pools,
            peak_window_s=demand.traffic.window_s,
            telemetry_interval_s=max(1.0, sent.duration_s) if apart else None,
            worlds=world,
            run=self.replays.replay,
        )

    def verdict(self, demand: _Demand, run: StagedRun, among: Bools | None = None) -> Verdict:
        """The promise to those who wait, of all or of some."""
        return verdict_of(demand.way, self.replays, demand.traffic, (run, None, None), among=among)

    def clauses(self, demand: _Demand, run: StagedRun, among: Bools | None = None) -> tuple[SloResult, ...]:
        """The worse of the window and of all requests, clause by clause."""
        found = self.verdict(demand, run, among)
        return worse_of(found.peak, found.overall)

    def seen(self, demand: _Demand, run: StagedRun) -> RunRecord:
        """Of a run the requests that somebody waits for."""
        return seen_of(demand.way, demand.traffic, run)

    def recovery(
        self, demand: _Demand, run: StagedRun, left: Callable[[], Mapping[str, int]] | None = None
    ) -> Recovery:
        """When it is over: at once, or when nothing is worse than it is by chance with as many as are ``left``."""
        slo, length_s = self.question.slo, self.demand.traffic.window_length_s
        at_s, record = demand.traffic.window_s[0], self.seen(demand, run)
        found = recovery(record, slo, at_s, window_s=length_s)
        if found.after_s == 0.0 or left is None:
            return found
        quiet = self.run(demand, counts=left())
        usual = self.seen(demand, quiet) if self.verdict(demand, quiet).kept else None
        return recovery(record, slo, at_s, window_s=length_s, usual=usual)

    def copies(self, traffic: Traffic, rows: Longs) -> _Demand:
        """Another demand, whose requests go the ways of those of the usual one that they are copies of."""
        return _Demand(traffic, self.demand.way.of_copies(self.demand.traffic.trace, traffic.trace, rows))

    def later(self, start_s: float) -> _Demand:
        """The usual demand, judged in a window from a moment on."""
        end_s = start_s + self.demand.traffic.window_length_s
        return replace(self.demand, traffic=Traffic(self.demand.traffic.trace, (start_s, end_s)))


def drills_of_pools(
    question: PlanQuestion,
    traffic: Traffic,
    pools: Sequence[DrilledPool],
    way: Way,
    plan: DrillPlan,
    *,
    progress: Progress | None = None,
) -> tuple[Drill, ...]:
    """Goes through the drills of ``plan`` with all pools, each with all its replicas.

    A demand that rises, a burst, a flood and a lost zone come over all pools at once; a replica, a node and a rollout
    are drilled in each pool with GPUs of its own. A drill is passed by what users see of all pools.

    Args:
        question: The promise to users, where replicas stand, how a rollout goes.
        traffic: The demand as users send it; of a long one the busiest stretch is taken.
        pools: In the order of their stages.
        way: How requests go through them.
        plan: Which drills, and how hard.
        progress: Told which one is under way.
    """
    part = stretch(traffic, MOST_REQUESTS)
    placements = _placements(question, [pool for pool in pools if pool.beside is None])
    ground = _Ground(question, plan, _Demand(part, way), tuple(pools), Replays.of(question), placements)
    reporter = Reporter(progress)
    found: list[Drill] = []
    for index, name in enumerate(plan.names):
        reporter.say("drills", name, index / len(plan.names))
        found += _drilled(ground, name)
    return tuple(found)


def _placements(question: PlanQuestion, pools: Sequence[DrilledPool]) -> dict[str, Placement]:
    """Where pools with GPUs of their own stand, as their plan has it."""
    replicas, wanted = [pool.fleet.groups[0].replica for pool in pools], asked(question)
    counts, carrying = tuple(pool.count for pool in pools), [pool.carrying_count for pool in pools]
    rooms = rooms_of(replicas, counts, wanted, carrying) or [None] * len(pools)
    found = {}
    for pool, replica, room in zip(pools, replicas, rooms, strict=True):
        here = wanted if room is None else replace(wanted, zones=room.zones)
        # Where the zones have no room the pool stands in one place.
        found[pool.name] = placed(pool.count, replica, here) or anywhere(pool.count, replica, question)
    return found


def _drilled(ground: _Ground, name: DrillName) -> Iterator[Drill]:
    if name in _OF_EACH_POOL:
        for pool in ground.pools:
            if pool.beside is None:
                found = _rollout(ground, pool) if name == "rollout" else _loss(ground, cast(LossKind, name), pool)
                yield replace(found, pool=pool.name)
        return
    yield {"ramp": _ramp, "burst": _burst, "zone": _zone, "flood": _flood}[name](ground)


def _of_count(pool: DrilledPool, counts: Mapping[str, int]) -> Fleet:
    """The fleet of a pool, of which some replicas may be missing; pools on the same GPUs have as many."""
    count = counts.get(pool.beside or pool.name, pool.count)
    return replace(pool.fleet, groups=(replace(pool.fleet.groups[0], replica_count=count),))


def _ramp(ground: _Ground) -> Drill:
    plan = ground.plan
    held, rows = raised_to_peak(ground.demand.traffic, ramp_s=plan.ramp_s, hold_s=plan.hold_s)
    demand = ground.copies(held, rows)
    return ramp_drill(plan, held, ground.clauses(demand, ground.run(demand)))


def _burst(ground: _Ground) -> Drill:
    demand = ground.copies(*with_burst(ground.demand.traffic, ground.plan, ground.fullest_s))
    run = ground.run(demand)
    return burst_drill(ground.plan, ground.clauses(demand, run), ground.recovery(demand, run))


def _loss(ground: _Ground, kind: LossKind, pool: DrilledPool) -> Drill:
    count = max(1, asked(ground.question).count_of(kind))
    drill = Drill(name=cast(DrillName, kind), what=loss_said(kind, count), passed=None, slo=(), how=_NOBODY_COMES)
    calls = ground.usual.pools[pool.name].record
    if not len(calls.arrival_s):
        return drill
    at_s = fullest_s(calls, _asked_in(calls, ground.demand.traffic.window_s))
    tokens = in_flight_tokens(calls, at_s, pool.count)
    lost = worst_of(ground.placements[pool.name], ground.question.redundancy.zones, tokens, kind, count)
    return _struck(ground, drill, {pool.name: lost}, at_s)


def _asked_in(calls: RunRecord, window_s: tuple[float, float]) -> tuple[float, float]:
    """The peak window, or all of the time where nobody comes to a pool in it."""
    inside = (calls.arrival_s >= window_s[0]) & (calls.arrival_s < window_s[1])
    return window_s if inside.any() else (0.0, np.inf)


def _zone(ground: _Ground) -> Drill:
    """A zone takes the replicas of every pool that it holds."""
    wanted = asked(ground.question)
    count = max(1, wanted.zone_count)
    drill = Drill(name="zone", what=f"{loss_said('zone', count)}, of all pools", passed=None, slo=(), how=ONE_ZONE)
    held = {name: in_zones(placement) for name, placement in ground.placements.items()}
    zones = list(dict.fromkeys(zone for by_zone in held.values() for zone in by_zone))
    if len(zones) < 2:
        return drill
    stands_alone = {zone.name for zone in wanted.zones if zone.stands_alone}
    alone = [zone for zone in zones if zone in stands_alone]
    if count >= len(alone):
        return replace(drill, passed=False, how=NOTHING_LEFT)
    at_s = ground.fullest_s
    calls = {name: ground.usual.pools[name].record for name in held}
    tokens = {name: in_flight_tokens(calls[name], at_s, ground.placements[name].replica_count) for name in held}

    def lost_with(gone: Sequence[str]) -> dict[str, tuple[int, ...]]:
        going = {*gone, *(zone for zone in zones if zone not in stands_alone)}
        return {
            name: tuple(sorted(each for zone, group in by_zone.items() if zone in going for each in group))
            for name, by_zone in held.items()
        }

    def badness(lost: Mapping[str, tuple[int, ...]]) -> tuple[int, int, float]:
        gpus = sum(len(lost[pool.name]) * _gpus_of(pool) for pool in ground.pools if pool.name in lost)
        in_flight = sum(float(tokens[name][list(each)].sum()) for name, each in lost.items())
        return len(_wiped_out(ground, lost)), gpus, in_flight

    return _struck(ground, drill, max(map(lost_with, combinations(alone, count)), key=badness), at_s)


def _gpus_of(pool: DrilledPool) -> int:
    return pool.fleet.groups[0].replica.deployment.layout.gpu_count


def _wiped_out(ground: _Ground, lost: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Pools to which requests come, and of which nothing is left."""
    gone = {pool.name for pool in ground.pools if len(lost.get(pool.name, ())) >= pool.count}
    return [
        pool.name
        for pool in ground.pools
        if (pool.beside or pool.name) in gone and len(ground.usual.pools[pool.name].record.arrival_s)
    ]


def _struck(ground: _Ground, drill: Drill, lost: Mapping[str, tuple[int, ...]], at_s: float) -> Drill:
    """What becomes of everybody when these replicas fail at a moment; nothing is started in their place."""
    gone = _wiped_out(ground, lost)
    if gone:
        how = NOTHING_LEFT if len(lost) == 1 else f"nothing is left of {' and '.join(gone)}"
        return replace(drill, passed=False, how=how)
    clients = ground.question.clients or CLIENTS
    around = {
        name: World(
            happenings=(Happening(time_s=at_s, kind="fail", replicas=each, reason=f"{drill.name} lost"),),
            clients=clients,
        )
        for name, each in lost.items()
        if each
    }
    demand = ground.later(at_s)
    run = ground.run(demand, around=around)
    slo = ground.clauses(demand, run)
    counts = {pool.name: pool.count - len(lost.get(pool.name, ())) for pool in ground.pools}
    found = ground.recovery(demand, run, lambda: counts)
    call_count, longest_wait_s = _asked_again(run.record)
    said = struck_said(f"{_lost_said(lost)} and {_calls(call_count)} lost", longest_wait_s)
    return replace(drill, passed=passed(slo), slo=slo, how=f"{said}; {recovered(found, kept=passed(slo))}")


def _lost_said(lost: Mapping[str, tuple[int, ...]]) -> str:
    """``2 replicas``; of several pools ``2 replicas of chat, 1 replica of rank``."""
    if len(lost) == 1:
        return words.replicas(len(next(iter(lost.values()))))
    return ", ".join(f"{words.replicas(len(each))} of {name}" for name, each in lost.items() if each)


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count:,} calls"


def _asked_again(users: RunRecord) -> tuple[int, float | None]:
    """Calls that were lost, and the slowest first token of who asked again; ``None``: nobody did."""
    turmoil = users.turmoil
    if turmoil is None:
        return 0, None
    waits = users.ttft_s[turmoil.attempt_count > 1]
    known = waits[np.isfinite(waits)]
    return turmoil.lost_count, float(known.max()) if len(known) else None


def _rollout(ground: _Ground, pool: DrilledPool) -> Drill:
    question, count = ground.question, pool.count
    rollout = question.rollout
    not_run = no_rollout(rollout, count)
    if not_run is not None:
        return not_run
    if ground.through(ground.demand, {})[1].shares_gpus:
        return Drill(name="rollout", what=changing(rollout), passed=None, slo=(), how=_ON_SHARED)
    start_s = ground.demand.traffic.window_s[0]
    lasts_s = rollout.lasts_s(count) or 0.0
    demand, times = _until(ground, start_s + lasts_s + ground.demand.traffic.window_length_s)
    world = World(
        happenings=tuple(version_change(count, start_s, rollout)),
        absent=tuple(range(count, 2 * count)),
        clients=question.clients or CLIENTS,
    )
    run = ground.run(demand, counts={pool.name: 2 * count}, around={pool.name: world})
    slo = ground.clauses(demand, run)
    how = recovered(ground.recovery(demand, run, dict), kept=passed(slo))
    left_s = demand.traffic.trace.duration_s - start_s
    return rollout_drill(rollout, count, slo, how, left_s=left_s, repeated_count=times)


def _until(ground: _Ground, end_s: float) -> tuple[_Demand, int]:
    """The demand from the peak on, which goes on so long, and how often it comes for that."""
    usual = ground.later(ground.demand.traffic.window_s[0])
    trace = usual.traffic.trace
    times = 1 if trace.duration_s >= end_s else times_until(trace, end_s)
    if times is None or times == 1:
        return usual, 1
    repeated, rows = workload.repeated_with_rows(trace, times)
    return ground.copies(Traffic(repeated, usual.traffic.window_s), rows), times


def _flood(ground: _Ground) -> Drill:
    traffic, way = ground.demand.traffic, ground.demand.way
    waits = way.who_waits(traffic.trace)
    inputs = traffic.trace.input_tokens
    row = int(np.argmax(inputs if waits is None else np.where(waits, inputs, -1)))
    flooded, others, rows = flooded_by(traffic, ground.plan.flood_fraction, row)
    demand = ground.copies(flooded, rows)
    slo = ground.clauses(demand, ground.run(demand), among=others)
    _, pools = ground.through(demand, {})
    called = [stage.pool for stage in pools.stages if isinstance(stage, Call) and stage.takes[~others].any()]
    return flood_drill(ground.plan, slo, int(inputs[row]), f", to {' and '.join(called)} like the longest there is")
