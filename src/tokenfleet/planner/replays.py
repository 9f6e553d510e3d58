"""Runs fleets on traffic, judges them, and counts how often."""

from dataclasses import dataclass, replace

from tokenfleet import performance, simulator
from tokenfleet.contract import judge
from tokenfleet.domain.fleet import Fleet, ReplicaGroup, Router
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.slo import LatencyTarget, Slo, SloResult
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import World
from tokenfleet.planner import words
from tokenfleet.planner.early import Hopeless, at_best, excess_of, worse_of
from tokenfleet.planner.room import most_replicas
from tokenfleet.planner.spread import Replay, Spread
from tokenfleet.planner.traffic import Traffic

_WATCHED = Slo(
    latency=tuple(
        LatencyTarget(metric=metric, quantile=quantile, limit_s=float("inf"))
        for metric in ("ttft", "itl")
        for quantile in (0.5, 0.99)
    ),
    error_rate_fraction=1.0,
)


@dataclass(frozen=True, slots=True)
class Latencies:
    """What a person looks at first, in the peak window; ``None`` where there were no samples."""

    ttft_p50_s: float | None
    ttft_p99_s: float | None
    itl_p50_s: float | None
    itl_p99_s: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """One replay, judged."""

    peak: tuple[SloResult, ...]
    overall: tuple[SloResult, ...]
    seen: Latencies
    cut: bool = False
    """The replay was stopped: every value is what it comes to at least."""

    def said(self, result: SloResult) -> str:
        """``ttft_p99 is 2.31 s, promised 2 s``."""
        return words.broken(result, at_least=self.cut)

    @property
    def kept(self) -> bool:
        """Every clause is kept over all requests and, where the peak window has samples of it, in the window."""
        return not self.broken

    @property
    def kept_in_peak(self) -> bool:
        """The same, of the peak window alone."""
        return all(result.kept or not result.sample_count for result in self.peak)

    @property
    def excess(self) -> float:
        """Largest ratio of what happened to what is promised among broken clauses; 1 when all are kept."""
        return excess_of(self.broken)

    @property
    def tightness(self) -> float:
        """Largest ratio of a predicted latency to its promise, in the peak window and over all; 0 without any."""
        ratios = [
            result.predicted / result.promised
            for result in (*self.peak, *self.overall)
            if result.unit == "s" and result.predicted is not None
        ]
        return max(ratios, default=0.0)

    @property
    def broken(self) -> tuple[SloResult, ...]:
        """The worse result of each broken clause."""
        return worse_of(self.peak, self.overall)


FEW_REQUESTS = 5_000
"""So few are replayed to the end sooner than they are looked at on the way."""


class Replays:
    """The door to the simulator: same question, same router, one counter."""

    def __init__(self, slo: Slo, router: Router, replay: Replay | None = None) -> None:
        self.slo = slo
        self.router: Router = router
        self.replay: Replay = replay or simulator.replay
        self.width = replay.width if isinstance(replay, Spread) else 0
        """How many replays may run ahead of the one asked for."""
        self.count = 0
        # Traces and replicas are kept beside their number, so that nobody else gets their id.
        self._most: dict[tuple[int, int], tuple[Trace, ReplicaPhysics, int]] = {}

    def fleet(self, replica: ReplicaPhysics, count: int) -> Fleet:
        """``count`` equal replicas behind the router of the question."""
        return Fleet(groups=(ReplicaGroup(replica=replica, replica_count=count),), router=self.router)

    def most(self, traffic: Traffic, replica: ReplicaPhysics) -> int:
        """The most replicas there is memory for to replay ``traffic`` on."""
        key = id(traffic.trace), id(replica)
        if key not in self._most:
            self._most[key] = traffic.trace, replica, most_replicas(traffic.trace, replica)
        return self._most[key][2]

    def run(
        self,
        traffic: Traffic,
        replica: ReplicaPhysics,
        count: int,
        *,
        telemetry_interval_s: float | None = None,
        hopeless: Hopeless | None = None,
        world: World | None = None,
    ) -> RunRecord:
        """Replays ``traffic`` on ``count`` replicas, in quiet times or in a ``world`` where things happen."""
        self.count += 1
        return self.replay(
            traffic.trace,
            self.fleet(replica, count),
            peak_window_s=traffic.window_s,
            telemetry_interval_s=telemetry_interval_s,
            hopeless=hopeless,
            world=world,
        )

    def ahead(
        self, traffic: Traffic, replica: ReplicaPhysics, count: int, *, quick: bool, peak_only: bool = False
    ) -> None:
        """Says that :meth:`quick` or :meth:`verdict` of the same will be asked for, so that it can run meanwhile."""
        if isinstance(self.replay, Spread):
            hopeless = self._hopeless(traffic, peak_only) if quick else None
            self.replay.ahead(traffic.trace, self.fleet(replica, count), traffic.window_s, hopeless)

    def verdict(self, traffic: Traffic, replica: ReplicaPhysics, count: int) -> Verdict:
        """Replays and judges."""
        return self.judged(traffic, self.run(traffic, replica, count))

    def quick(self, traffic: Traffic, replica: ReplicaPhysics, count: int, *, peak_only: bool = False) -> Verdict:
        """The same where only the decision matters: the replay stops once the promise is clearly broken for good.

        ``kept`` is what :meth:`verdict` says, and so is whether ``excess`` is above ``CLEARLY``; broken clauses may be
        fewer and their values lower. With ``peak_only`` that holds of ``kept_in_peak`` alone.
        """
        record = self.run(traffic, replica, count, hopeless=self._hopeless(traffic, peak_only))
        return replace(self.judged(traffic, at_best(record)), cut=record.cut_s is not None)

    def _hopeless(self, traffic: Traffic, peak_only: bool) -> Hopeless | None:
        """When to give a replay up; ``None`` where it is over sooner than it is looked at."""
        if traffic.trace.request_count <= FEW_REQUESTS:
            return None
        return Hopeless(self.slo, traffic.window_s, peak_only)

    def judged(
        self,
        traffic: Traffic,
        record: RunRecord,
        *,
        low: RunRecord | None = None,
        high: RunRecord | None = None,
        first_token_factor: float = 1.0,
    ) -> Verdict:
        """Judges a record in the peak window and over all requests."""
        window_s = traffic.window_s
        wide = first_token_factor
        peak = judge(record, self.slo, peak_only=True, window_s=window_s, low=low, high=high, first_token_factor=wide)
        overall = judge(record, self.slo, low=low, high=high, first_token_factor=wide)
        watched = judge(record, _WATCHED, peak_only=True, window_s=window_s)
        return Verdict(peak, overall, Latencies(*(result.predicted for result in watched[:4])))


def with_step_factor(replica: ReplicaPhysics, factor: float) -> ReplicaPhysics:
    """The same replica with every step ``factor`` times as long."""
    return replace(replica, step_time=performance.scaled(replica.step_time, factor))
