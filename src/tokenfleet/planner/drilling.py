"""Drills: the bad days of a fleet, gone through by replay, each with a verdict per clause."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import cast, get_args

import numpy as np
import numpy.typing as npt

from tokenfleet import workload
from tokenfleet.contract import judge
from tokenfleet.domain.plan import PlanQuestion
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.run import RunRecord, requests_of
from tokenfleet.domain.slo import SloResult
from tokenfleet.domain.survival import Drill, DrillName, LossKind, Placement, Recovery, Rollout
from tokenfleet.domain.trace import Bools, Ints, Trace
from tokenfleet.planner import words
from tokenfleet.planner.moment import Scene, failed, rolled_out, scene_of
from tokenfleet.planner.placement import placed
from tokenfleet.planner.progress import Progress, Reporter
from tokenfleet.planner.recovery import recovery
from tokenfleet.planner.redundancy import asked
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.spread import Replay
from tokenfleet.planner.traffic import Traffic, followed, stretch

DRILLS: tuple[DrillName, ...] = get_args(DrillName)
MOST_REQUESTS = 50_000
_MINUTE_S = 60.0
_LEAST_RISE = 1.02
ONE_ZONE = "all replicas stand in one zone, or none is named"
NOTHING_LEFT = "nothing is left to serve"
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillPlan:
    """How hard each drill is."""

    names: tuple[DrillName, ...] = DRILLS
    ramp_s: float = 300.0
    """Time in which demand rises to the peak."""
    hold_s: float = 600.0
    """Time for which it stays there."""
    burst_factor: float = 1.5
    """Demand of the burst against the peak."""
    burst_s: float = 30.0
    flood_fraction: float = 0.2
    """Requests of the flooding tenant against all others of the peak window."""


@dataclass(frozen=True, slots=True)
class _Ground:
    """Where drills take place."""

    question: PlanQuestion
    scene: Scene
    plan: DrillPlan

    def run(self, traffic: Traffic) -> RunRecord:
        """Replays other traffic on the whole fleet."""
        return self.scene.replays.run(traffic, self.scene.replica, self.scene.placement.replica_count)


def drills(
    question: PlanQuestion,
    trace: Trace,
    replica: ReplicaPhysics,
    replica_count: int,
    plan: DrillPlan,
    *,
    progress: Progress | None = None,
    replay: Replay | None = None,
) -> tuple[Drill, ...]:
    """Goes through the drills of ``plan`` with a whole fleet.

    Args:
        question: The promise, the router, where replicas stand, how a rollout goes.
        trace: The demand; of a long one the busiest stretch is taken.
        replica: What the fleet is made of.
        replica_count: Carrying and spare.
        plan: Which drills, and how hard.
        progress: Told which one is under way.
        replay: Runs replays instead of the simulator, such as those of one pool in its place among others.
    """
    whole = Traffic(trace, workload.peak_window(trace))
    traffic = stretch(whole, MOST_REQUESTS)
    replays = Replays.of(question, replay)
    reporter = Reporter(progress)
    reporter.say("drills", words.fleet(replica, replica_count), 0.0)
    # Where the zones have no room the fleet stands in one place: losing it is not a drill but the end.
    placement = placed(replica_count, replica, asked(question)) or anywhere(replica_count, replica, question)
    scene = scene_of(question, replays, traffic, replica, placement)
    if traffic is not whole:
        scene = replace(scene, longer=followed(whole, MOST_REQUESTS))
    ground = _Ground(question, scene, plan)
    found = []
    for index, name in enumerate(plan.names):
        reporter.say("drills", name, index / len(plan.names))
        found.append(_HOW[name](ground))
    return tuple(found)


def anywhere(replica_count: int, replica: ReplicaPhysics, question: PlanQuestion) -> Placement:
    """Where replicas stand that no zone has room for."""
    wanted = replace(asked(question), zones=(), zone_count=0)
    found = placed(replica_count, replica, wanted)
    if found is None:
        raise ValueError("a place without limits holds every fleet")
    return found


def _ramp(ground: _Ground) -> Drill:
    plan = ground.plan
    held = held_at_peak(ground.scene.traffic, ramp_s=plan.ramp_s, hold_s=plan.hold_s)
    return ramp_drill(plan, held, _worse(ground, held, ground.run(held)))


def ramp_drill(plan: DrillPlan, held: Traffic, slo: tuple[SloResult, ...]) -> Drill:
    """What came of a demand that is held at its peak."""
    short = plan.hold_s - held.window_length_s >= _MINUTE_S
    return Drill(
        name="ramp",
        what=f"demand rises to the peak within {words.seconds(plan.ramp_s)} and stays for "
        f"{words.seconds(held.window_length_s)}",
        passed=passed(slo),
        slo=slo,
        how=f"{words.requests(held.trace.request_count)} replayed with all replicas"
        + (f"; the demand is too short to hold it for {words.seconds(plan.hold_s)}" if short else ""),
    )


def _burst(ground: _Ground) -> Drill:
    plan = ground.plan
    after, _ = with_burst(ground.scene.traffic, plan, ground.scene.fullest_s)
    record = ground.run(after)
    slo = _worse(ground, after, record)
    length_s = ground.scene.traffic.window_length_s
    settled = recovery(record, ground.question.slo, after.window_s[0], window_s=length_s)
    return burst_drill(plan, slo, settled)


def with_burst(traffic: Traffic, plan: DrillPlan, fullest_s: float) -> tuple[Traffic, Longs]:
    """The traffic with a burst at its fullest moment, its window from then on; and whose copy each request is."""
    start_s = min(fullest_s, max(0.0, traffic.trace.duration_s - plan.burst_s))
    surged, rows = workload.surge_with_rows(
        traffic.trace, start_s=start_s, length_s=plan.burst_s, factor=plan.burst_factor
    )
    return Traffic(surged, (start_s, start_s + max(plan.burst_s, traffic.window_length_s))), rows


def burst_drill(plan: DrillPlan, slo: tuple[SloResult, ...], settled: Recovery) -> Drill:
    """What came of a burst."""
    return Drill(
        name="burst",
        what=f"{plan.burst_factor:g} times the peak for {words.seconds(plan.burst_s)}, at its fullest moment",
        passed=passed(slo),
        slo=slo,
        how=recovered(settled, kept=passed(slo)),
    )


def _loss(kind: LossKind, ground: _Ground) -> Drill:
    name = cast(DrillName, kind)
    placement = ground.scene.placement
    count = max(1, asked(ground.question).count_of(kind))
    what = loss_said(kind, count)
    if kind == "zone" and len(placement.by_zone) < 2:
        return Drill(name=name, what=what, passed=None, slo=(), how=ONE_ZONE)
    moment = failed(ground.scene, kind, count)
    if moment is None:
        return Drill(name=name, what=what, passed=False, slo=(), how=NOTHING_LEFT)
    slo = worse_of(moment.slo_after, moment.slo_overall)
    lost = f"{words.replicas(len(moment.replicas))} and {words.requests(moment.lost_request_count)} lost"
    how = f"{struck_said(lost, moment.longest_wait_s)}; {recovered(moment.recovery, kept=moment.kept)}"
    return Drill(name=name, what=what, passed=passed(slo), slo=slo, how=how)


def loss_said(kind: LossKind, count: int) -> str:
    """What is lost in a drill, in words."""
    return f"the worst {kind if count == 1 else f'{count} {kind}s'} lost at the fullest moment of the peak"


def struck_said(lost: str, longest_wait_s: float | None) -> str:
    """What was ``lost``, and how long whoever asked again waited, in words."""
    if longest_wait_s is None:
        return lost
    return f"{lost}, sent again; the slowest is answered {words.seconds(longest_wait_s)} after it first asked"


def _rollout(ground: _Ground) -> Drill:
    rollout, count = ground.question.rollout, ground.scene.placement.replica_count
    not_run = no_rollout(rollout, count)
    if not_run is not None:
        return not_run
    moment = rolled_out(ground.scene, rollout)
    if moment is None:
        raise ValueError("a rollout that can be done was not")
    slo = worse_of(moment.slo_after, moment.slo_overall)
    left_s = moment.demand_end_s - moment.time_s
    how = recovered(moment.recovery, kept=moment.kept)
    return rollout_drill(rollout, count, slo, how, left_s=left_s, repeated_count=moment.repeated_count)


def no_rollout(rollout: Rollout, replica_count: int) -> Drill | None:
    """Why a rollout cannot be done; ``None`` where it can."""
    if rollout.ready_after_s is None:
        how = "nobody knows how long a start takes: cold_start"
        return Drill(name="rollout", what=changing(rollout), passed=None, slo=(), how=how)
    if rollout.max_unavailable_count >= replica_count:
        return Drill(name="rollout", what=changing(rollout), passed=False, slo=(), how=NOTHING_LEFT)
    return None


def changing(rollout: Rollout) -> str:
    """What a rollout does, in words."""
    return (
        f"a new version, {words.replicas(rollout.max_surge_count)} more and "
        f"{words.replicas(rollout.max_unavailable_count)} fewer at a time, from the beginning of the peak"
    )


def rollout_drill(
    rollout: Rollout,
    replica_count: int,
    slo: tuple[SloResult, ...],
    how: str,
    *,
    left_s: float,
    repeated_count: int,
) -> Drill:
    """What came of a rollout.

    Args:
        rollout: How it goes.
        replica_count: Replicas that were replaced.
        slo: The clauses.
        how: What became of those who arrived, in words.
        left_s: Demand that there was after its beginning.
        repeated_count: How often the demand came.
    """
    lasts_s = rollout.lasts_s(replica_count) or 0.0
    done: bool | None = passed(slo)
    if repeated_count > 1:
        again = f"the demand comes {repeated_count} times, one after the other"
        how = f"{how}; {again}, until the {words.seconds(lasts_s)} of it are over"
    if done and lasts_s > left_s:
        done = None
        how = (
            f"kept for {words.seconds(left_s)}, then the demand ends: the change takes {words.seconds(lasts_s)} and "
            "its rest is not tried: that is more than is replayed"
        )
    return Drill(name="rollout", what=changing(rollout), passed=done, slo=slo, how=how)


def _flood(ground: _Ground) -> Drill:
    traffic, plan = ground.scene.traffic, ground.plan
    flooded, others = flooded_peak(traffic, plan.flood_fraction)
    record = ground.run(flooded)
    spared = requests_of(record, others)
    window = judge(spared, ground.question.slo, peak_only=True, window_s=flooded.window_s)
    slo = worse_of(window, judge(spared, ground.question.slo))
    return flood_drill(plan, slo, int(traffic.trace.input_tokens.max()))


def flood_drill(plan: DrillPlan, slo: tuple[SloResult, ...], prompt_tokens: int, way: str = "") -> Drill:
    """What came of a flood of prompts, which go their ``way``."""
    prompts = f"prompts of {words.tokens(prompt_tokens)}"
    return Drill(
        name="flood",
        what=f"one tenant sends {plan.flood_fraction:.0%} more requests at the peak, {prompts} each{way}",
        passed=passed(slo),
        slo=slo,
        how="judged by everybody else's requests; no quota holds the tenant back, and ITL counts its gaps too",
    )


def held_at_peak(traffic: Traffic, *, ramp_s: float, hold_s: float) -> Traffic:
    """As :func:`raised_to_peak`, the traffic alone."""
    return raised_to_peak(traffic, ramp_s=ramp_s, hold_s=hold_s)[0]


def raised_to_peak(traffic: Traffic, *, ramp_s: float, hold_s: float) -> tuple[Traffic, Longs]:
    """The traffic raised, minute by minute, to the tokens of its busiest one, and held there.

    Returns:
        The traffic; its window is the time it is held, which is cut where the trace is shorter. And the row of the
        usual trace whose copy each request is.
    """
    trace = traffic.trace
    minutes = max(1, round(min(hold_s, trace.duration_s) / _MINUTE_S))
    last = max(minutes, int(-(-trace.duration_s // _MINUTE_S)))
    first = int(min(traffic.window_s[0] // _MINUTE_S, last - minutes))
    tokens = _tokens_by_minute(trace, last)
    peak = float(tokens.max())
    ramp = max(0, round(ramp_s / _MINUTE_S))
    raised, rows = trace, np.arange(trace.request_count)
    for minute in range(max(0, first - ramp), first + minutes):
        share = min(1.0, 1.0 - (first - minute) / (ramp + 1)) if minute < first else 1.0
        if tokens[minute] and share * peak > _LEAST_RISE * tokens[minute]:
            factor = share * peak / float(tokens[minute])
            start_s = minute * _MINUTE_S
            raised, of = workload.surge_with_rows(raised, start_s=start_s, length_s=_MINUTE_S, factor=factor)
            rows = rows[of]
    return Traffic(raised, (first * _MINUTE_S, (first + minutes) * _MINUTE_S)), rows


def _tokens_by_minute(trace: Trace, count: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    tokens = trace.input_tokens.astype(np.float64) + trace.output_tokens
    minute = np.minimum((trace.arrival_s // _MINUTE_S).astype(np.int64), count - 1)
    return np.bincount(minute, weights=tokens, minlength=count).astype(np.float64)


def flooded_peak(traffic: Traffic, fraction: float) -> tuple[Traffic, Bools]:
    """The traffic with another tenant's long prompts evenly over its peak window, and who is not that tenant.

    The prompts are as long as the longest there is and share nothing; answers are as long as the median.
    """
    trace = traffic.trace
    longest, median = int(trace.input_tokens.max()), max(1, int(np.median(trace.output_tokens)))
    flooded, order = _flooded(traffic, fraction, longest, median)
    return flooded, np.asarray(order < trace.request_count)


def flooded_by(traffic: Traffic, fraction: float, row: int) -> tuple[Traffic, Bools, Longs]:
    """The same with prompts and answers as long as those of one request, and the row whose copy each request is."""
    trace = traffic.trace
    flooded, order = _flooded(traffic, fraction, int(trace.input_tokens[row]), int(trace.output_tokens[row]))
    others = np.asarray(order < trace.request_count)
    return flooded, others, np.where(others, order, row)


def _flooded(traffic: Traffic, fraction: float, input_tokens: int, output_tokens: int) -> tuple[Traffic, Longs]:
    """The traffic with more requests, and the number of each: those on top come behind all others."""
    trace = traffic.trace
    inside = (trace.arrival_s >= traffic.window_s[0]) & (trace.arrival_s < traffic.window_s[1])
    count = max(1, round(fraction * int(inside.sum())))
    places = traffic.window_s[0] + (np.arange(count) + 0.5) / count * traffic.window_length_s
    order = np.argsort(np.concatenate([trace.arrival_s, places]), kind="stable")

    def column(usual: Ints | None, value: int) -> Ints | None:
        if usual is None:
            return None
        return np.concatenate([usual, np.full(count, value, dtype=np.int32)])[order].astype(np.int32)

    inputs, outputs = column(trace.input_tokens, input_tokens), column(trace.output_tokens, output_tokens)
    if inputs is None or outputs is None:
        raise ValueError("every trace has lengths")
    flooded = replace(
        trace,
        arrival_s=np.concatenate([trace.arrival_s, places])[order],
        input_tokens=inputs,
        output_tokens=outputs,
        prefix_node=column(trace.prefix_node, -1),
        session=column(trace.session, -1),
        tenant=column(trace.tenant, -1),
        priority=column(trace.priority, 0),
        class_bits=column(trace.class_bits, 0),
        kv_delivered=None,
        observed=None,
    )
    return Traffic(flooded, traffic.window_s), order


def _worse(ground: _Ground, traffic: Traffic, record: RunRecord) -> tuple[SloResult, ...]:
    verdict = ground.scene.replays.judged(traffic, record)
    return worse_of(verdict.peak, verdict.overall)


def worse_of(window: tuple[SloResult, ...], overall: tuple[SloResult, ...]) -> tuple[SloResult, ...]:
    """Of each clause the result that is worse; a window without samples says nothing."""

    def badness(result: SloResult) -> tuple[bool, float]:
        return not result.kept, float("inf") if result.predicted is None else result.predicted

    return tuple(
        overall_one if not near.sample_count else max(near, overall_one, key=badness)
        for near, overall_one in zip(window, overall, strict=True)
    )


def passed(slo: tuple[SloResult, ...]) -> bool:
    """Whether no clause is broken."""
    return all(result.kept or result.says_nothing for result in slo)


def recovered(found: Recovery, *, kept: bool) -> str:
    """When those who arrive are served as promised again, in words."""
    if found.after_s == 0.0 or (found.too_soon and kept):
        return "those who arrive are served as promised"
    if found.after_s is None:
        return words.not_recovered(found)
    return f"the promise holds again after {words.seconds(found.after_s)}"


def _losses() -> Iterator[tuple[DrillName, Callable[[_Ground], Drill]]]:
    yield "replica", lambda ground: _loss("replica", ground)
    yield "node", lambda ground: _loss("node", ground)
    yield "zone", lambda ground: _loss("zone", ground)


_HOW: dict[DrillName, Callable[[_Ground], Drill]] = {
    "ramp": _ramp,
    "burst": _burst,
    "rollout": _rollout,
    "flood": _flood,
    **dict(_losses()),
}
