"""What a scaling decision rests on: the signals of one tick, and what the ticks before have taught.

A signal that nobody delivered is ``None``. It is never 0: an autoscaler that read an empty metric as no load once
scaled a fleet to its minimum at the peak. The busy share of a gpu is no signal here, and never will be: a decode
step that fills the memory bus shows a gpu 60 % busy, and a gpu that waits for one long kernel shows 100 %.
"""

import math
from collections.abc import Mapping
from dataclasses import field, replace

import numpy as np
import numpy.typing as npt

from tokenfleet.control.seasons import Seasons, counted
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.world import FleetView

_LEVEL_S = 60.0
"""Arrivals are smoothed over about a minute, so that a burst of a second starts nothing."""
_TREND_S = 600.0
_ERROR_S = 3600.0
_CAPACITY_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """One tick. Tuples have one entry per ready replica."""

    time_s: float
    ready_count: int
    """Replicas that take requests. Only these have capacity."""
    starting_count: int = 0
    """Replicas asked for that are not ready yet."""
    waiting: tuple[int, ...] | None = None
    running: tuple[int, ...] | None = None
    kv_used_fraction: tuple[float, ...] | None = None
    free_kv_tokens: tuple[int, ...] | None = None
    active_tokens: tuple[int, ...] | None = None
    """Tokens of running requests, prompts and outputs."""
    oldest_wait_s: Mapping[int, tuple[float, ...]] | None = None
    """By priority: how long the request that has waited for longest has waited, 0 where nobody waits."""
    arrived_count: int | None = None
    """Requests that reached the router since the last tick: a signal that exists without any replica."""
    refused_count: int | None = None
    """Of those, turned away."""
    held_count: int | None = None
    """Requests inside the fleet, those of draining replicas included."""
    ttft_p90_s: float | None = None
    """Of first tokens since the last tick; ``None`` too when there was none."""


def signals_of(view: FleetView, ready: npt.NDArray[np.bool_], starting_count: int) -> Signals:
    """The signals in a view of a fleet.

    Args:
        view: What the last scrape saw.
        ready: Which replicas take requests, one entry per replica.
        starting_count: Replicas asked for that are not ready yet; whoever asked knows.
    """
    return Signals(
        time_s=view.time_s,
        ready_count=int(ready.sum()),
        starting_count=starting_count,
        waiting=tuple(view.waiting[ready].tolist()),
        running=tuple(view.running[ready].tolist()),
        kv_used_fraction=tuple(view.kv_used_fraction[ready].tolist()),
        free_kv_tokens=tuple(view.free_kv_tokens[ready].tolist()),
        active_tokens=None if view.active_tokens is None else tuple(view.active_tokens[ready].tolist()),
        oldest_wait_s=None
        if view.oldest_wait_s is None
        else {priority: tuple(wait_s[ready].tolist()) for priority, wait_s in view.oldest_wait_s.items()},
        arrived_count=view.arrived_count,
        refused_count=view.refused_count,
        held_count=int(view.running.sum()) + int(view.waiting.sum()),
        ttft_p90_s=view.ttft_p90_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What the ticks so far have taught: demand, its trend, and what one replica carries."""

    time_s: float | None = None
    ready_count: int = 0
    held_count: int | None = None
    arrival_per_s: float | None = None
    """Level of arrivals, smoothed."""
    trend_per_s_per_s: float = 0.0
    """How fast the level grows."""
    forecasts: tuple[tuple[float, float], ...] = ()
    """Forecasts whose moment has not come: when, and how many arrivals per second."""
    forecast_error_per_s: float = 0.0
    """Mean size of the error of forecasts at the horizon they were made for."""
    capacity_per_s: float | None = None
    """Requests per second that a replica finishes while somebody waits for it; ``None`` before anybody did."""
    seasons: Seasons = field(default_factory=Seasons)
    """Arrivals by time of day and week."""

    def forecast_per_s(self, ahead_s: float) -> float | None:
        """Arrivals per second ``ahead_s`` seconds from the last tick, by level and trend (Holt), never below 0."""
        return None if self.arrival_per_s is None else max(self.arrival_per_s + self.trend_per_s_per_s * ahead_s, 0.0)


def learn(seen: Signals, before: Learned, *, ahead_s: float) -> Learned:
    """What is known after one more tick.

    A tick in which replicas came or went teaches nothing about capacity: new ones have empty batches, lost ones took
    their requests along.

    Args:
        seen: The tick.
        before: What was known.
        ahead_s: Horizon whose forecast is checked when its moment comes.
    """
    before = replace(before, seasons=counted(seen.time_s, seen.arrived_count, before.seasons))
    if before.time_s is None or seen.time_s <= before.time_s:
        return replace(before, time_s=seen.time_s, ready_count=seen.ready_count, held_count=seen.held_count)
    passed_s = seen.time_s - before.time_s
    after = _capacity(seen, before, passed_s)
    if seen.arrived_count is not None:
        after = _demand(seen, after, seen.arrived_count / passed_s, passed_s, ahead_s)
    return replace(after, time_s=seen.time_s, ready_count=seen.ready_count, held_count=seen.held_count)


def _weight(passed_s: float, memory_s: float) -> float:
    """Weight of a new value in an average that forgets within about ``memory_s``."""
    return 1.0 - math.exp(-passed_s / memory_s)


def _demand(seen: Signals, before: Learned, rate_per_s: float, passed_s: float, ahead_s: float) -> Learned:
    if before.arrival_per_s is None:
        return replace(before, arrival_per_s=rate_per_s)
    expected = before.arrival_per_s + before.trend_per_s_per_s * passed_s
    level = max(expected + _weight(passed_s, _LEVEL_S) * (rate_per_s - expected), 0.0)
    slope = (level - before.arrival_per_s) / passed_s
    trend = before.trend_per_s_per_s + _weight(passed_s, _TREND_S) * (slope - before.trend_per_s_per_s)
    error = before.forecast_error_per_s
    for due_s, forecast in before.forecasts:
        if due_s <= seen.time_s:
            error += _weight(passed_s, _ERROR_S) * (abs(level - forecast) - error)
    after = replace(before, arrival_per_s=level, trend_per_s_per_s=trend, forecast_error_per_s=error)
    ahead = after.forecast_per_s(ahead_s)
    waiting = tuple(each for each in before.forecasts if each[0] > seen.time_s)
    return replace(after, forecasts=(*waiting, (seen.time_s + ahead_s, ahead)) if ahead is not None else waiting)


def _capacity(seen: Signals, before: Learned, passed_s: float) -> Learned:
    if seen.waiting is None or seen.running is None or seen.arrived_count is None:
        return before
    held = sum(seen.waiting) + sum(seen.running)
    everybody_is_busy = min(seen.waiting, default=0) > 0
    nobody_came_or_went = seen.ready_count == before.ready_count and seen.held_count == held
    if before.held_count is None or not (everybody_is_busy and nobody_came_or_went):
        return before
    entered = seen.arrived_count - (seen.refused_count or 0)
    served_per_s = (entered - (held - before.held_count)) / passed_s / seen.ready_count
    if served_per_s <= 0.0:
        return before
    known = before.capacity_per_s
    if known is None:
        return replace(before, capacity_per_s=served_per_s)
    return replace(before, capacity_per_s=known + _weight(passed_s, _CAPACITY_S) * (served_per_s - known))
