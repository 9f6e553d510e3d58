"""Runs fleets on traffic, judges them, and counts how often."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TypeVar, cast

from tokenfleet import performance, simulator
from tokenfleet.contract import Found, Judging, judged_again, measured, without_limits
from tokenfleet.domain.fleet import Fleet, ReplicaGroup, Router
from tokenfleet.domain.plan import PlanQuestion
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.slo import LatencyTarget, Metric, Slo, SloResult
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import Clients, World
from tokenfleet.planner.early import Hopeless
from tokenfleet.planner.giving_up import given_up
from tokenfleet.planner.recalling import Recall, anew
from tokenfleet.planner.room import most_replicas
from tokenfleet.planner.spread import Replay, Spread, recall_of
from tokenfleet.planner.traffic import Traffic
from tokenfleet.planner.verdict import UNSEEN, Asked, Latencies, Verdict

T = TypeVar("T")

_SEEN_QUANTILES = (0.5, 0.99)


def who_waits(slo: Slo) -> tuple[str | None, ...]:
    """Classes whose first token a person looks at: those promised one, else those promised any latency.

    Work that has until the morning may wait an hour for its first token, and that says nothing of the promise.

    Returns:
        ``(None,)``, for all requests, where one to all is promised, or none at all.
    """
    first = [target.traffic_class for target in slo.latency if target.metric == "ttft"]
    promised = first or [target.traffic_class for target in slo.latency]
    return (None,) if None in promised or not promised else tuple(dict.fromkeys(promised))


def _watched(slo: Slo) -> Slo:
    """What a person looks at first, as a promise that cannot be broken: TTFT of each class that waits, ITL of all."""
    asked = [("ttft", quantile, name) for quantile in _SEEN_QUANTILES for name in who_waits(slo)]
    asked += [("itl", quantile, None) for quantile in _SEEN_QUANTILES]
    return Slo(
        latency=tuple(
            LatencyTarget(metric=cast(Metric, metric), quantile=quantile, limit_s=float("inf"), traffic_class=name)
            for metric, quantile, name in asked
        ),
        error_rate_fraction=1.0,
        classes=slo.classes,
    )


def _worst(results: Sequence[SloResult]) -> float | None:
    """Of the class that waits longest; ``None`` where one of them has requests and no such time."""
    told = [result.predicted for result in results if not result.says_nothing]
    known = [value for value in told if value is not None]
    return max(known) if known and len(known) == len(told) else None


FEW_REQUESTS = 5_000
"""So few are replayed to the end sooner than they are looked at on the way."""


class Replays:
    """The door to the simulator: same question, same router, one counter."""

    def __init__(
        self,
        slo: Slo,
        router: Router,
        replay: Replay | None = None,
        *,
        door: World | None = None,
        clients: Clients | None = None,
    ) -> None:
        """Open the door.

        Args:
            slo: What replays are judged by.
            router: How requests find a replica.
            replay: Runs one; the simulator unless given.
            door: The world of replays that name none; ``None``: a quiet one.
            clients: Their time-outs count as errors.
        """
        self.slo = slo
        self._watched = _watched(slo)
        self.clients = clients
        self.door = door
        self.router: Router = router
        self.replay: Replay = replay or simulator.replay
        self.width = replay.width if isinstance(replay, Spread) else 0
        """How many replays may run ahead of the one asked for."""
        # What was decided is known by traffic, fleet and promise alone: by nothing that happens at a door.
        self._verdicts = replay.verdicts if isinstance(replay, Spread) and door is None else None
        self.recall: Recall = recall_of(replay)
        """For what formulas alone answer."""
        self.remembers = False
        """Whether the last verdict was one of an earlier plan."""
        self._count = 0
        self._behind: dict[Router, Replays] = {}
        # Traces and replicas are kept beside their number, so that nobody else gets their id.
        self._most: dict[tuple[int, int], tuple[Trace, ReplicaPhysics, int]] = {}

    @classmethod
    def of(cls, question: PlanQuestion, replay: Replay | None = None) -> "Replays":
        """Those that answer a question: with its router, and with its door where a share may be turned away."""
        bound = question.admission.queue_limit_count is not None and _may_be_turned_away(question.slo)
        door = World(admission=question.admission, clients=question.clients or Clients()) if bound else None
        return cls(question.slo, cast(Router, question.router), replay, door=door, clients=question.clients)

    def behind(self, router: Router) -> "Replays":
        """The same door, replicas behind another router; what is asked of it is counted here too."""
        if router == self.router:
            return self
        if router not in self._behind:
            self._behind[router] = Replays(self.slo, router, self.replay, door=self.door, clients=self.clients)
        return self._behind[router]

    def counted_apart(self) -> "Replays":
        """The same door, with a counter of its own: for whoever asks at the same time.

        Where work runs beside, nothing is foreseen behind it: one would wait for those that wait for it.
        """
        apart = Replays(self.slo, self.router, self.replay, door=self.door, clients=self.clients)
        if isinstance(self.replay, Spread) and self.replay.runs_beside:
            apart.width = 0
        return apart

    def beside(self, work: Callable[[], T]) -> Callable[[], T]:
        """Starts work that nobody's answer changes, on a core of its own where there is one; call it for the answer.

        What it replays goes through a door that is :meth:`counted_apart`.
        """
        return self.replay.beside(work) if isinstance(self.replay, Spread) else cache(work)

    def started(self, make: Callable[["Replays"], T]) -> Callable[[], T]:
        """Starts a part of an answer that no other part changes; its replays are counted when it is called for."""
        apart = self.counted_apart()
        asked = self.beside(lambda: make(apart))

        @cache
        def found() -> T:
            made = asked()
            self.count += apart.count
            return made

        return found

    @property
    def count(self) -> int:
        """Replays asked for, behind other routers too."""
        return self._count + sum(other.count for other in self._behind.values())

    @count.setter
    def count(self, value: int) -> None:
        self._count = value - sum(other.count for other in self._behind.values())

    def recalled(self, name: str, asked: object, make: Callable[[], T]) -> T:
        """What ``make`` finds out by replays of this door, where an earlier plan has not; counted as if it had not."""
        return self._recalled(name, (asked, self.slo), make)

    def remembered(self, name: str, asked: object, make: Callable[[], Verdict]) -> Verdict:
        """A verdict on replays to their end, which an earlier plan may have held against other limits."""
        if self.recall is anew:
            return make()

        def found() -> tuple[tuple[Found, ...], tuple[Found, ...], Latencies]:
            made = make()
            return measured(made.peak), measured(made.overall), made.seen

        peak, overall, seen = self._recalled(name, (asked, without_limits(self.slo)), found)
        return Verdict(judged_again(self.slo, peak), judged_again(self.slo, overall), seen)

    def _recalled(self, name: str, asked: object, make: Callable[[], T]) -> T:
        before = self.count

        def made() -> tuple[T, int]:
            found = make()
            return found, self.count - before

        found, replayed_count = self.recall(name, (asked, self.router, self.door, self.clients), made)
        self.count = before + replayed_count
        return found

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
        if telemetry_interval_s is None and self.slo.gaps_apart:
            # Gaps are counted class by class along with telemetry: one sample of it is enough.
            telemetry_interval_s = max(1.0, traffic.trace.duration_s)
        return self.replay(
            traffic.trace,
            self.fleet(replica, count),
            peak_window_s=traffic.window_s,
            telemetry_interval_s=telemetry_interval_s,
            hopeless=hopeless,
            world=world or self.door,
        )

    def ahead(
        self, traffic: Traffic, replica: ReplicaPhysics, count: int, *, quick: bool, peak_only: bool = False
    ) -> None:
        """Says that :meth:`quick` or :meth:`verdict` of the same will be asked for, so that it can run meanwhile."""
        foreseen = self.door is None and not self.slo.gaps_apart
        if isinstance(self.replay, Spread) and self.width and foreseen:
            hopeless = self._hopeless(traffic, peak_only) if quick else None
            asked = self._asked(traffic, replica, count, hopeless)
            if self._verdicts is None or not self._verdicts.knows(asked):
                self.replay.ahead(asked.trace, asked.fleet, asked.window_s, hopeless)

    def verdict(self, traffic: Traffic, replica: ReplicaPhysics, count: int) -> Verdict:
        """Replays and judges."""
        return self._decided(traffic, replica, count, None)

    def quick(self, traffic: Traffic, replica: ReplicaPhysics, count: int, *, peak_only: bool = False) -> Verdict:
        """The same where only the decision matters: the replay stops once the promise is clearly broken for good.

        ``kept`` is what :meth:`verdict` says, and so is whether ``excess`` is above ``CLEARLY``; broken clauses may be
        fewer and their values lower. With ``peak_only`` that holds of ``kept_in_peak`` alone.
        """
        return self._decided(traffic, replica, count, self._hopeless(traffic, peak_only))

    def _decided(self, traffic: Traffic, replica: ReplicaPhysics, count: int, hopeless: Hopeless | None) -> Verdict:
        """What was decided on the same question before, else a replay of it, judged."""
        asked = self._asked(traffic, replica, count, hopeless)
        if self._verdicts is None and self.recall is not anew:
            run = partial(self.run, traffic, replica, count)
            return self.remembered("verdict", (traffic, asked.fleet), lambda: self.judged(traffic, run()))
        known = None if self._verdicts is None else self._verdicts.find(asked)
        self.remembers = known is not None
        if known is not None:
            self.count += 1
            return known
        record = self.run(traffic, replica, count, hopeless=hopeless)
        if record.cut_s is None or hopeless is None:
            made = self.judged(traffic, record)
        else:
            made = Verdict(hopeless.looks[-1].peak, hopeless.looks[-1].overall, UNSEEN, cut=True)
        if self._verdicts is not None:
            self._verdicts.keep(asked, made)
        return made

    def _asked(self, traffic: Traffic, replica: ReplicaPhysics, count: int, hopeless: Hopeless | None) -> Asked:
        fleet = self.fleet(replica, count)
        return Asked(traffic.trace, fleet, traffic.window_s, hopeless, self.slo, self.clients)

    def _hopeless(self, traffic: Traffic, peak_only: bool) -> Hopeless | None:
        """When to give a replay up; ``None`` where it is over sooner than it is looked at."""
        if traffic.trace.request_count <= FEW_REQUESTS or self.door is not None or self.slo.gaps_apart:
            return None
        return Hopeless(self.slo, traffic.window_s, peak_only, self.clients)

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
        record = given_up(record, self.clients)
        low = None if low is None else given_up(low, self.clients)
        high = None if high is None else given_up(high, self.clients)
        run = Judging(record, low=low, high=high, first_token_factor=first_token_factor)
        peak = run.of(self.slo, peak_only=True, window_s=traffic.window_s)
        overall = run.of(self.slo)
        alone = run if low is None and high is None else Judging(record)
        watched = alone.of(self._watched, peak_only=True, window_s=traffic.window_s)
        size = len(who_waits(self.slo))
        ttft = _worst(watched[:size]), _worst(watched[size : 2 * size])
        itl = (result.predicted for result in watched[2 * size : 2 * size + 2])
        return Verdict(peak, overall, Latencies(*ttft, *itl))


def _may_be_turned_away(slo: Slo) -> bool:
    return any(rate.kind == "rejection_rate" for rate in slo.rates)


def with_step_factor(replica: ReplicaPhysics, factor: float) -> ReplicaPhysics:
    """The same replica with every step ``factor`` times as long."""
    return replace(replica, step_time=performance.scaled(replica.step_time, factor))
