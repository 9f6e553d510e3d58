"""Scaling rules: each says how many ready replicas one signal asks for, and why.

Loads are judged on the worst replica, never on the mean: one replica that drowns is a broken promise, however idle
the others are. A rule answers with a count of replicas that are *ready*, reckoned from those that are ready now; what
is starting is the business of :mod:`tokenfleet.control.scaling`.

Limits are multiplied by a slack: 1 asks who must come, less than 1 asks who may go, and the band between the two is
the hysteresis.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Protocol

from tokenfleet.control.seasons import seasonal_per_s
from tokenfleet.control.signals import Learned, Signals
from tokenfleet.domain.records import dataclass

CANNOT_HELP = "single_request_too_slow"
"""Alert: a request with a replica to itself misses the limit, so that more replicas cannot help."""

_FIRST_LOOK = "arrivals are counted from now on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Ready replicas that a rule asks for."""

    count: int
    reason: str
    alert: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What a rule may look at."""

    seen: Signals
    learned: Learned
    slack_fraction: float = 1.0

    @property
    def rate_slack_fraction(self) -> float:
        """The slack for rules that count requests per second: what a replica carries is known better than a queue."""
        return 1.0 - (1.0 - self.slack_fraction) / 4.0


class Rule(Protocol):
    """One signal with its limit."""

    @property
    def name(self) -> str:
        """As a scenario writes it."""

    def needed(self, tick: Tick) -> Wish | None:
        """Ready replicas that keep the signal within its limit times the slack; ``None``: no data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRule:
    """Requests waiting on the fullest replica. 3 to 5 is where scale-out should start."""

    name: ClassVar[str] = "queue"
    limit_count: float = 4.0
    most_factor: float = 2.0
    """Largest growth over what is ready: a queue grows for as long as replicas load, the need for them does not."""

    def needed(self, tick: Tick) -> Wish | None:
        """Above the limit in proportion; below it one fewer at a time, for an empty queue does not say how empty."""
        seen = tick.seen
        if seen.waiting is None:
            return None
        worst, limit = max(seen.waiting, default=0), self.limit_count * tick.slack_fraction
        reason = f"{worst} waiting on the fullest replica, limit {limit:g}"
        if worst <= limit:
            return Wish(count=seen.ready_count - 1, reason=reason)
        return Wish(count=_times(seen, min(worst / limit, self.most_factor)), reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvRule:
    """Share of KV memory in use on the fullest replica. 80 to 85 % leaves room for sequences to grow."""

    name: ClassVar[str] = "kv"
    limit_fraction: float = 0.85

    def needed(self, tick: Tick) -> Wish | None:
        """In proportion both ways: KV use is load."""
        seen = tick.seen
        if seen.kv_used_fraction is None:
            return None
        worst, limit = max(seen.kv_used_fraction, default=0.0), self.limit_fraction * tick.slack_fraction
        reason = f"KV memory {worst:.0%} full on the fullest replica, limit {limit:.0%}"
        return Wish(count=_times(seen, worst / limit), reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRule:
    """Requests inside the fullest replica, running and waiting."""

    name: ClassVar[str] = "active"
    limit_count: float

    def needed(self, tick: Tick) -> Wish | None:
        """In proportion both ways."""
        seen = tick.seen
        if seen.running is None or seen.waiting is None:
            return None
        worst = max(map(sum, zip(seen.running, seen.waiting, strict=True)), default=0)
        limit = self.limit_count * tick.slack_fraction
        reason = f"{worst} requests in the fullest replica, limit {limit:g}"
        return Wish(count=_times(seen, worst / limit), reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveTokensRule:
    """Tokens of the requests that run in the fullest replica: load where lengths differ much."""

    name: ClassVar[str] = "active_tokens"
    limit_tokens: float

    def needed(self, tick: Tick) -> Wish | None:
        """In proportion both ways."""
        seen = tick.seen
        if seen.active_tokens is None:
            return None
        worst, limit = max(seen.active_tokens, default=0), self.limit_tokens * tick.slack_fraction
        reason = f"{worst:,} tokens active in the fullest replica, limit {limit:,.0f}"
        return Wish(count=_times(seen, worst / limit), reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeKvRule:
    """Tokens for which the fullest replica has KV memory left: room for the longest prompt that may come."""

    name: ClassVar[str] = "free_kv"
    limit_tokens: float
    """More are asked for when less is free."""
    capacity_tokens: float
    """What the KV memory of a replica holds."""

    def needed(self, tick: Tick) -> Wish | None:
        """In proportion both ways to what may be in use."""
        seen = tick.seen
        if seen.free_kv_tokens is None:
            return None
        least = min(seen.free_kv_tokens, default=math.floor(self.capacity_tokens))
        most_used = (self.capacity_tokens - self.limit_tokens) * tick.slack_fraction
        limit = self.capacity_tokens - most_used
        reason = f"KV memory for {least:,} tokens free on the fullest replica, limit {limit:,.0f}"
        return Wish(count=_times(seen, (self.capacity_tokens - least) / most_used), reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRule:
    """How long requests wait to be admitted, by priority: that of who has waited for longest at any replica."""

    name: ClassVar[str] = "wait"
    limits_s: Mapping[int, float]
    """By priority; those that are not named may wait."""
    most_factor: float = 2.0
    """Largest growth over what is ready: a wait grows for as long as replicas load, the need for them does not."""

    def needed(self, tick: Tick) -> Wish | None:
        """Above the limit of any priority in proportion; below all of them one fewer at a time."""
        seen = tick.seen
        if seen.oldest_wait_s is None:
            return None
        pressure, reason = 0.0, "nobody of a priority with a limit has come yet"
        for priority, limit_s in sorted(self.limits_s.items()):
            worst_s, most_s = max(seen.oldest_wait_s.get(priority, ()), default=0.0), limit_s * tick.slack_fraction
            if worst_s / most_s >= pressure:
                who = f" of priority {priority}" if len(self.limits_s) > 1 else ""
                reason = f"a request{who} has waited {worst_s:.3g} s, limit {most_s:.3g} s"
                pressure = worst_s / most_s
        if pressure <= 1.0:
            return Wish(count=seen.ready_count - 1, reason=reason)
        return Wish(count=_times(seen, min(pressure, self.most_factor)), reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class TtftRule:
    """p90 of the time to first token since the last tick."""

    name: ClassVar[str] = "ttft"
    limit_s: float
    most_factor: float = 2.0
    """Largest growth in one tick: a latency grows without bound near saturation, the need for replicas does not."""

    def needed(self, tick: Tick) -> Wish | None:
        """Above the limit in proportion, unless requests had replicas to themselves; below it one fewer at a time."""
        seen = tick.seen
        if seen.running is None or seen.waiting is None:
            return None
        fewer = seen.ready_count - 1
        if seen.ttft_p90_s is None:
            # Nobody got a first token. Where somebody waits, that is no sign of health.
            stuck = sum(seen.waiting) > 0
            return Wish(count=seen.ready_count if stuck else fewer, reason="no first token since the last tick")
        limit_s = self.limit_s * tick.slack_fraction
        reason = f"TTFT p90 {seen.ttft_p90_s:.3g} s, limit {limit_s:.3g} s"
        if seen.ttft_p90_s <= limit_s:
            return Wish(count=fewer, reason=reason)
        if max(map(sum, zip(seen.running, seen.waiting, strict=True)), default=0) <= 1:
            alone = f"{reason}, with a replica to itself: more replicas cannot help"
            return Wish(count=fewer, reason=alone, alert=CANNOT_HELP if tick.slack_fraction == 1.0 else "")
        return Wish(count=_times(seen, min(seen.ttft_p90_s / limit_s, self.most_factor)), reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRule:
    """Time until the queue is worked off while demand stays as it is."""

    name: ClassVar[str] = "drain"
    limit_s: float = 30.0
    capacity_per_s: float | None = None
    """Requests per second that one replica sustains; learned from ticks with a queue when ``None``."""

    def needed(self, tick: Tick) -> Wish | None:
        """Demand plus the queue spread over the limit, over what one replica does."""
        seen = tick.seen
        demand = tick.learned.arrival_per_s
        if seen.waiting is None or seen.arrived_count is None:
            return None
        if demand is None:
            return Wish(count=seen.ready_count, reason=_FIRST_LOOK)
        backlog, limit_s = sum(seen.waiting), self.limit_s * tick.slack_fraction
        capacity = self.capacity_per_s or tick.learned.capacity_per_s
        if capacity is None:
            reason = f"{backlog} waiting, and nobody knows yet what a replica does"
            return Wish(count=seen.ready_count + (1 if backlog else -1), reason=reason)
        needed = (demand + backlog / limit_s) / (capacity * tick.rate_slack_fraction)
        reason = (
            f"{demand:.3g} requests/s and {backlog} waiting, to be gone in {limit_s:g} s, {capacity:.3g}/s a replica"
        )
        return Wish(count=math.ceil(needed), reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRule:
    """A table of times and counts, over and over: what is known beforehand needs no signal."""

    name: ClassVar[str] = "schedule"
    entries: tuple[tuple[float, int], ...]
    """(seconds into the period, ready replicas from then on), in order of time."""
    period_s: float = 86_400.0
    ahead_s: float = 0.0
    """How much earlier than in the table to ask: the cold start."""
    offset_s: float = 0.0
    """Where in the period second 0 of the clock lies."""

    def count_at(self, time_s: float) -> int:
        """What the table says at a time; before the first entry of a period the last one still holds."""
        into_s = (time_s + self.offset_s) % self.period_s
        return next((count for start_s, count in reversed(self.entries) if start_s <= into_s), self.entries[-1][1])

    def needed(self, tick: Tick) -> Wish | None:
        """The larger of what holds now and what will hold when a replica asked for now is ready."""
        now, then = self.count_at(tick.seen.time_s), self.count_at(tick.seen.time_s + self.ahead_s)
        return Wish(count=max(now, then), reason=f"the schedule says {now} now, {then} in {self.ahead_s:g} s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRule:
    """Demand at the moment when a replica asked for now would be ready, by level and trend of arrivals (Holt)."""

    name: ClassVar[str] = "forecast"
    ahead_s: float
    safety_factor: float = 1.5
    """Mean forecast errors on top; the error is measured at this very horizon."""
    capacity_per_s: float | None = None
    """Requests per second that one replica sustains; learned from ticks with a queue when ``None``."""

    def needed(self, tick: Tick) -> Wish | None:
        """The larger of demand now and demand then, with its error, over what one replica does."""
        now, then = tick.learned.arrival_per_s, tick.learned.forecast_per_s(self.ahead_s)
        if tick.seen.arrived_count is None:
            return None
        if now is None or then is None:
            return Wish(count=tick.seen.ready_count, reason=_FIRST_LOOK)
        capacity = self.capacity_per_s or tick.learned.capacity_per_s
        if capacity is None:
            return Wish(count=tick.seen.ready_count, reason="nobody knows yet what a replica does")
        error = self.safety_factor * tick.learned.forecast_error_per_s
        needed = (max(now, then) + error) / (capacity * tick.rate_slack_fraction)
        reason = (
            f"{now:.3g} requests/s now, {then:.3g} in {self.ahead_s:g} s, error {error:.2g}, {capacity:.3g}/s a replica"
        )
        return Wish(count=math.ceil(needed), reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeasonalRule:
    """Demand at the moment when a replica asked for now would be ready, as it was a day or a week before.

    Until a day has passed it goes by level and trend, as :class:`ForecastRule`.
    """

    name: ClassVar[str] = "seasonal"
    ahead_s: float
    safety_factor: float = 1.5
    """Mean errors of the last hour on top."""
    capacity_per_s: float | None = None
    """Requests per second that one replica sustains; learned from ticks with a queue when ``None``."""

    def needed(self, tick: Tick) -> Wish | None:
        """The larger of demand now and demand then, with its error, over what one replica does."""
        seen, learned = tick.seen, tick.learned
        if seen.arrived_count is None:
            return None
        now = learned.arrival_per_s
        expected = seasonal_per_s(learned.seasons, seen.time_s, seen.time_s + self.ahead_s)
        capacity = self.capacity_per_s or learned.capacity_per_s
        if now is None or expected is None:
            trend = ForecastRule(
                ahead_s=self.ahead_s, safety_factor=self.safety_factor, capacity_per_s=self.capacity_per_s
            )
            wish = trend.needed(tick)
            return None if wish is None else replace(wish, reason=f"no day has passed yet: {wish.reason}")
        if capacity is None:
            return Wish(count=seen.ready_count, reason="nobody knows yet what a replica does")
        then, error = expected
        needed = (max(now, then) + self.safety_factor * error) / (capacity * tick.rate_slack_fraction)
        reason = (
            f"{now:.3g} requests/s now, {then:.3g} in {self.ahead_s:g} s by day and week, error "
            f"{self.safety_factor * error:.2g}, {capacity:.3g}/s a replica"
        )
        return Wish(count=math.ceil(needed), reason=reason)


def _times(seen: Signals, pressure: float) -> int:
    """Ready replicas times a pressure, rounded up; what rounding in floats adds to a whole number does not count."""
    return math.ceil(round(seen.ready_count * pressure, 9))
