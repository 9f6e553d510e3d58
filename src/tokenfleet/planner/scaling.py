"""Ways to scale, compared on the same traffic by replay: gpu-hours against minutes with a broken promise."""

import math
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from tokenfleet import simulator
from tokenfleet.contract import Minutes, judge, judge_minutes
from tokenfleet.contract.minutes import MINUTE_S, Marks
from tokenfleet.control import (
    ForecastRule,
    KvRule,
    QueueRule,
    Rule,
    ScalingPolicy,
    ScalingStep,
    ScheduleRule,
    SeasonalRule,
    TtftRule,
)
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.slo import Slo
from tokenfleet.domain.trace import Bools, Floats, Trace, rows_of
from tokenfleet.domain.world import HOLDS_GPUS, Admission, Clients, Happening, World
from tokenfleet.planner.spread import Replay
from tokenfleet.simulator.autoscaling import Autoscaler

Longs = npt.NDArray[np.int64]
Alone = Callable[[Trace, Longs], RunRecord]
"""Replays requests that come one at a time; their rows in the traffic say which they are."""
SLOT_S: Final = 900.0
"""Steps of a schedule that is made from traffic."""
_DAY_S: Final = 86_400.0
_SEASONS_S: Final = 1.5 * _DAY_S
"""Traffic from which on a forecast by the time of day has something to look back to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSetting:
    """What all ways to scale have in common."""

    fleet: Fleet
    """As many replicas as there may ever be."""
    slo: Slo
    start_count: int
    """Ready at second 0, of those that are scaled."""
    cold_start_s: float
    tick_s: float = 15.0
    happenings: tuple[Happening, ...] = ()
    stock_outs_s: tuple[tuple[float, float], ...] = ()
    clients: Clients = field(default_factory=Clients)
    admission: Admission = field(default_factory=Admission)
    priorities: tuple[int, ...] = (0,)
    """Those that occur in the traffic, the most urgent first."""
    group_index: int = 0
    """Which of the fleet's groups is scaled; the others stay."""
    sees_all: bool = True
    """Signals and counts are of all replicas; else of that group alone, where routers give each its own requests."""

    @property
    def scaled(self) -> ReplicaGroup:
        """The group that is."""
        return self.fleet.groups[self.group_index]

    @property
    def own(self) -> range:
        """Numbers of its replicas."""
        before = sum(group.replica_count for group in self.fleet.groups[: self.group_index])
        return range(before, before + self.scaled.replica_count)

    @property
    def staying_count(self) -> int:
        """Replicas of other groups that a policy counts with its own."""
        return sum(group.replica_count for group in self.fleet.groups) - len(self.own) if self.sees_all else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to scale, before it is known what a replica carries."""

    name: str
    policy: Callable[[float], ScalingPolicy]
    """The policy for the requests per second that one replica sustains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """One way to scale, and what became of it."""

    name: str
    policy: ScalingPolicy | None
    """``None``: a fixed count."""
    record: RunRecord
    minutes: Minutes
    gpu_hours: float
    """Loading, serving and draining replicas, up to the last answer."""
    most_count: int
    """Replicas that held gpus or were asked for at once."""
    steps: tuple[ScalingStep, ...]

    @property
    def change_count(self) -> int:
        """Ticks at which another count was asked for."""
        return sum(step.start_count > 0 or step.stop_count > 0 for step in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingComparison:
    """All ways, the fixed count first."""

    ways: tuple[Scaled, ...]
    best: Scaled
    """The fewest broken minutes; of equals, the fewest gpu-hours."""
    capacity_per_s: float
    """Requests per second that one replica sustains, as the fixed count shows."""
    fixed_is_enough: bool
    """Whether the whole fleet, all of it ready all the time, keeps every minute."""
    slow_alone_minute_count: int
    """Minutes that break although each request has a replica to itself: the ways do not count them as broken."""
    arrival_s: Floats
    """When requests come to the replicas."""
    kept_over_all: bool
    """Whether the first of the ways keeps the promise over all requests, whatever single minutes do."""


def world_of(setting: ScalingSetting, scaler: Autoscaler) -> World:
    """The world in which an autoscaler runs the fleet."""
    return World(
        happenings=setting.happenings,
        absent=scaler.absent,
        clients=setting.clients,
        admission=setting.admission,
        controller=scaler,
        tick_s=setting.tick_s,
        looks_inside=scaler.policy.looks_inside,
    )


def scaler_of(setting: ScalingSetting, policy: ScalingPolicy) -> Autoscaler:
    """A fresh autoscaler; every replay needs its own."""
    return Autoscaler(
        policy,
        replica_count=sum(group.replica_count for group in setting.fleet.groups),
        start_count=setting.start_count,
        cold_start_s=setting.cold_start_s,
        tick_s=setting.tick_s,
        stock_outs_s=setting.stock_outs_s,
        own=setting.own,
        sees_all=setting.sees_all,
    )


def scaled(
    trace: Trace, setting: ScalingSetting, name: str, policy: ScalingPolicy, replay: Replay | None = None
) -> Scaled:
    """Replay one way to scale."""
    scaler = scaler_of(setting, policy)
    record = (replay or simulator.replay)(trace, setting.fleet, world=world_of(setting, scaler))
    most = max((step.target_count for step in scaler.steps), default=setting.start_count)
    return Scaled(
        name=name,
        policy=policy,
        record=record,
        minutes=judge_minutes(record, setting.slo),
        gpu_hours=gpu_hours(record, setting.fleet),
        most_count=max(most, setting.start_count),
        steps=tuple(scaler.steps),
    )


def gpu_hours(record: RunRecord, fleet: Fleet) -> float:
    """GPU-hours that the replicas held, up to the last answer."""
    gpus = np.repeat(
        [group.replica.deployment.layout.gpu_count for group in fleet.groups],
        [group.replica_count for group in fleet.groups],
    )
    if record.turmoil is None:
        return float(gpus.sum()) * record.end_s / 3600.0
    held_s = record.turmoil.state_s[:, [int(state) for state in HOLDS_GPUS]].sum(axis=1)
    return float((held_s * gpus).sum()) / 3600.0


def compare_scaling(
    trace: Trace,
    setting: ScalingSetting,
    ways: Sequence[Way],
    *,
    capacity_per_s: float | None = None,
    told: Callable[[str], None] = lambda _: None,
    replay: Replay | None = None,
    calls: Trace | None = None,
    alone: Alone | None = None,
    among: Bools | None = None,
) -> ScalingComparison:
    """Replay every way to scale on the same traffic.

    Args:
        trace: The traffic.
        setting: Fleet, promise, cold start and surroundings, the same for all.
        ways: What to compare; each policy is made for the requests per second that one replica sustains.
        capacity_per_s: That rate; found by replaying fixed counts when ``None``: the busiest minute over the smallest
            count that keeps every minute, or over the whole fleet when none does.
        told: Called with the name of each way before its replay.
        replay: Runs replays instead of the simulator, such as those of one pool in its place among others.
        calls: What comes to the replicas, where that is not all of the traffic, or more than one call of a request.
        among: Requests of ``trace`` that ``replay`` tells of, where these are not all.
        alone: Replays some requests, of these rows of ``trace``, one at a time; ``replay`` does unless given.

    Returns:
        The fixed count, then every way in its order, and the best of all.
    """
    told("fixed counts")
    run = replay or simulator.replay
    whole = _fixed(trace, setting, setting.fleet.groups[0].replica_count, run)
    told_of = np.arange(trace.request_count) if among is None else np.flatnonzero(among)
    slow = _slow_alone(trace, told_of, setting, whole, alone or (lambda spaced, _rows: run(spaced, setting.fleet)))
    fixed = _smallest_fixed(trace, setting, _mendable(whole, slow), slow, run)
    comes = trace if calls is None else calls
    capacity = capacity_per_s or busiest_minute_per_s(comes) / fixed.most_count
    found = [fixed]
    for way in ways:
        told(way.name)
        found.append(_mendable(scaled(trace, setting, way.name, way.policy(capacity), replay), slow))
    best = min(found, key=lambda way: (way.minutes.broken_count, way.gpu_hours))
    return ScalingComparison(
        ways=tuple(found),
        best=best,
        capacity_per_s=capacity,
        fixed_is_enough=fixed.minutes.broken_count == 0,
        slow_alone_minute_count=int(slow.sum()),
        arrival_s=comes.arrival_s,
        kept_over_all=all(result.kept for result in judge(fixed.record, setting.slo)),
    )


def own_way(name: str, policy: ScalingPolicy) -> Way:
    """A policy that stands, whatever a replica carries."""
    return Way(name=name, policy=lambda _capacity_per_s: policy)


def usual_ways(
    trace: Trace,
    *,
    min_count: int,
    max_count: int,
    ttft_limit_s: float | None,
    cold_start_s: float,
    offset_s: float = 0.0,
    keeps_kv: bool = True,
) -> list[Way]:
    """The ways people scale by: reactive at the usual thresholds, scheduled, forecast, and a forecast with a queue.

    The schedule is made from the very traffic it is judged on, as if the day had been foreseen: it shows what the
    best schedule would do.

    Args:
        trace: The traffic.
        min_count: Fewest replicas.
        max_count: Most replicas.
        ttft_limit_s: Promised TTFT, for the reaction to TTFT; ``None``: none is promised.
        cold_start_s: How far ahead schedule and forecast look.
        offset_s: Time of day at second 0.
        keeps_kv: Whether the model keeps KV; else nobody scales by it.
    """
    forecast = partial(ForecastRule, ahead_s=cold_start_s)
    seasonal = partial(SeasonalRule, ahead_s=cold_start_s)

    def way(name: str, rules: Callable[[float], tuple[Rule, ...]]) -> Way:
        bounds = partial(ScalingPolicy, min_count=min_count, max_count=max_count)
        return Way(name=name, policy=lambda capacity: bounds(rules=rules(capacity), capacity_per_s=capacity))

    def schedule(capacity_per_s: float) -> ScheduleRule:
        entries = schedule_from(trace, capacity_per_s, min_count=min_count, max_count=max_count, offset_s=offset_s)
        return ScheduleRule(entries=entries, ahead_s=cold_start_s, offset_s=offset_s)

    ways = [
        way("queue 3", lambda _: (QueueRule(limit_count=3.0),)),
        way("queue 5", lambda _: (QueueRule(limit_count=5.0),)),
    ]
    if keeps_kv:
        ways += [
            way("kv 80 %", lambda _: (KvRule(limit_fraction=0.80),)),
            way("kv 85 %", lambda _: (KvRule(limit_fraction=0.85),)),
            way("queue 4 or kv 85 %", lambda _: (QueueRule(), KvRule())),
        ]
    if ttft_limit_s is not None:
        ways.append(way(f"ttft {ttft_limit_s:g} s", lambda _: (TtftRule(limit_s=ttft_limit_s),)))
    if trace.duration_s > _SEASONS_S:
        ways.append(
            way("seasonal or queue 4", lambda capacity: (seasonal(capacity_per_s=capacity), QueueRule())),
        )
    return [
        *ways,
        way("schedule", lambda capacity: (schedule(capacity),)),
        way("forecast", lambda capacity: (forecast(capacity_per_s=capacity),)),
        way("forecast or queue 4", lambda capacity: (forecast(capacity_per_s=capacity), QueueRule())),
    ]


def schedule_from(
    trace: Trace, capacity_per_s: float, *, min_count: int, max_count: int, offset_s: float = 0.0
) -> tuple[tuple[float, int], ...]:
    """A table for each quarter of an hour: replicas for its busiest minute, of the busiest day where there are more."""
    minute = (trace.arrival_s // MINUTE_S).astype(np.int64)
    rates = np.bincount(minute) / MINUTE_S if len(minute) else np.zeros(0)
    slots = (((np.arange(len(rates)) * MINUTE_S + offset_s) % _DAY_S) // SLOT_S).astype(np.int64)
    busiest = np.zeros(round(_DAY_S / SLOT_S))
    np.maximum.at(busiest, slots, rates)
    counts = [min(max(math.ceil(rate / capacity_per_s), min_count), max_count) for rate in busiest.tolist()]
    kept = [index for index, count in enumerate(counts) if index == 0 or count != counts[index - 1]]
    return tuple((index * SLOT_S, counts[index]) for index in kept)


def busiest_minute_per_s(trace: Trace) -> float:
    """Arrivals per second in the whole minute with the most, of minutes counted from second 0."""
    counts = np.bincount((trace.arrival_s // MINUTE_S).astype(np.int64))
    # A trace that ends within its first minute has no whole one.
    span_s = min(MINUTE_S, max(trace.duration_s, 1.0))
    return float(counts.max(initial=0)) / span_s


def _slow_alone(trace: Trace, told_of: Longs, setting: ScalingSetting, whole: Scaled, sent: Alone) -> Marks:
    """Minutes that break even where each request has a replica to itself, which no way to scale can mend.

    Asked of those that the whole fleet breaks: their requests are sent again one at a time.
    """
    broken = whole.minutes.any_broken
    rows = told_of[broken[(trace.arrival_s[told_of] // MINUTE_S).astype(np.int64)]]
    if not len(rows):
        return np.zeros_like(broken)
    # Further apart than any took among all the others, and not so far that a long log leaves the clock.
    apart_s = 1.0 + float(np.nanmax(whole.record.e2e_s, initial=0.0))
    spaced = replace(rows_of(trace, rows), arrival_s=np.arange(len(rows)) * np.float64(apart_s))
    record = sent(spaced, rows)
    later_s = spaced.arrival_s - trace.arrival_s[rows]
    alone = replace(
        record,
        arrival_s=trace.arrival_s[rows],
        first_token_s=record.first_token_s - later_s,
        finish_s=record.finish_s - later_s,
    )
    found = np.zeros_like(broken)
    marks = judge_minutes(alone, setting.slo).any_broken
    found[: len(marks)] = marks
    return found


def _mendable(way: Scaled, slow: Marks) -> Scaled:
    """A way to scale without the minutes that none can mend."""
    return replace(way, minutes=way.minutes.without(slow))


def _smallest_fixed(trace: Trace, setting: ScalingSetting, whole: Scaled, slow: Marks, replay: Replay) -> Scaled:
    """The smallest fixed count that keeps every minute that can be kept; the ``whole`` fleet when none does."""
    low, high, best = 0, whole.most_count, whole
    if best.minutes.broken_count:
        return best
    while high - low > 1:
        middle = (low + high) // 2
        tried = _mendable(_fixed(trace, setting, middle, replay), slow)
        if tried.minutes.broken_count:
            low = middle
        else:
            high, best = middle, tried
    return best


def _fixed(trace: Trace, setting: ScalingSetting, count: int, replay: Replay) -> Scaled:
    fleet = replace(setting.fleet, groups=(replace(setting.fleet.groups[0], replica_count=count),))
    around = World(clients=setting.clients, admission=setting.admission)
    record = replay(trace, fleet, world=around)
    return Scaled(
        name=f"fixed at {count}",
        policy=None,
        record=record,
        minutes=judge_minutes(record, setting.slo),
        gpu_hours=gpu_hours(record, fleet),
        most_count=count,
        steps=(),
    )
