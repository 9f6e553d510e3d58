"""One pool of a system whose pools depend on each other, examined in its place as a plan examines a fleet."""

from dataclasses import replace

from tokenfleet.domain.plan import Does, LimitUse, Plan, PlanQuestion
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.stages import StagedRun
from tokenfleet.domain.trace import Trace
from tokenfleet.planner.assumed import assumptions
from tokenfleet.planner.buying import purchase, purchase_missing
from tokenfleet.planner.capped import cap_uses
from tokenfleet.planner.limits import Limits
from tokenfleet.planner.losses import Survived, losses
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.spread import Replay
from tokenfleet.planner.systems import SizedPool, System, in_its_place
from tokenfleet.planner.traffic import Traffic, stretch
from tokenfleet.planner.verdict import Verdict
from tokenfleet.planner.work import (
    DETAIL_REQUESTS,
    LOAD_PRECISION,
    SEARCH_REQUESTS,
    Work,
    detail_of,
    limits_of,
    survived_losses,
)

_PLENTY = 4
"""Times its carrying replicas that every other pool gets while one is asked what binds it: the highest load tried."""


@dataclass(frozen=True, slots=True)
class Within:
    """One pool among the others, which depend on it.

    What it tells is what users see of all pools. While it loses replicas, the others have their carrying ones only;
    while it is asked what binds it, they have plenty.
    """

    question: PlanQuestion
    """Of this pool: its model and its router."""
    traffic: Traffic
    system: System
    name: str
    replay: Replay
    run: StagedRun
    """The traffic on the carrying replicas of all pools."""
    verdict: Verdict
    """That, judged."""

    def planned(self, does: Does, reporter: Reporter) -> Plan:
        """What a plan says of this pool; what it promises is said of the whole, not of it."""
        traffic, sized = self.traffic, self._part.sized
        replays = self._replays(self.system)
        survived = self._survived(replays, reporter)
        plenty = self._replays(self._with_plenty)
        limits = self._limits(plenty, does, reporter)
        searched = stretch(traffic, SEARCH_REQUESTS)
        record = in_its_place(self.run, self.name)
        made = Plan(
            question=self.question,
            chosen=replace(sized, slo=self.verdict.peak),
            runners_up=(),
            rejected=(),
            reasons=(),
            fleet=replace(replays.fleet(sized.replica, sized.replica_count), router=self._part.router),
            record=record,
            degraded=record,
            slo_whole=(),
            slo_degraded=self.verdict.peak,
            limits=() if limits is None else (*self._capped(limits), *limits.uses),
            curve=(),
            bill=None,
            peak_start_s=traffic.window_s[0],
            peak_end_s=traffic.window_s[1],
            replayed_count=replays.count + plenty.count,
            assumptions=assumptions(self.question, traffic, searched, sized),
            slo_degraded_overall=self.verdict.overall,
            peak_rate_per_s=traffic.peak_rate_per_s,
            mean_rate_per_s=traffic.mean_rate_per_s,
            sustained_rate_per_s=None if limits is None else limits.sustained_rate_per_s(traffic.peak_rate_per_s),
            found_within_fraction=None if limits is None else LOAD_PRECISION - 1.0,
            kv_peak_fraction=None if limits is None else limits.peak.kv_fraction,
            sequence_peak_count=None if limits is None else limits.peak.running_count,
            placement=None if survived is None else survived.placement,
            losses=() if survived is None else survived.cases,
        )
        if sized.beside is not None:
            return made
        return replace(
            made, purchase=purchase(made, traffic.trace), purchase_missing=purchase_missing(made, traffic.trace)
        )

    def _capped(self, limits: Limits) -> tuple[LimitUse, ...]:
        """The cap on a pool that somebody named; others are bought only where they keep the cap on the whole."""
        return () if self.system.way is None else cap_uses(self.question, limits, self.traffic.peak_rate_per_s)

    @property
    def _part(self) -> SizedPool:
        return next(part for part in self.system.parts if part.name == self.name)

    @property
    def _with_plenty(self) -> System:
        """Plenty of every pool on other GPUs."""
        host = self._part.host
        return self.system.with_counts(
            [part.sized.carrying_count * (1 if part.name == host else _PLENTY) for part in self.system.own]
        )

    @property
    def _some_wait_for_no_one(self) -> bool:
        """Some requests are offline work: what a replay shows of all requests says little of the promise then."""
        way = self.system.way
        return way is not None and way.waited_for(self.traffic.trace, self.run) is not None

    def _replays(self, system: System) -> Replays:
        return Replays.of(self.question, system.in_place(self.name, self.replay))

    def _survived(self, replays: Replays, reporter: Reporter) -> Survived | None:
        """What the pool may lose; the moment of it where replicas can be struck one by one.

        Returns:
            ``None`` of a pool beside another, which goes with that one.
        """
        part = self._part
        sized = part.sized
        if sized.beside is not None:
            return None
        searched = stretch(self.traffic, SEARCH_REQUESTS)
        if not self._some_wait_for_no_one and not self._shares:
            work = Work(self.question, self.traffic, searched, replays, replays)
            return survived_losses(work, sized, {sized.carrying_count: self.verdict}, reporter)

        def judged(count: int) -> Verdict:
            reporter.say("verifying", f"{count} left in {self.name}", 0.65)
            left = [count if each is part else each.sized.carrying_count for each in self.system.own]
            return self.system.with_counts(left).judged(Replays.of(self.question, self.replay), self.traffic)

        return losses(self.question, sized, judged, lambda _case, _placement: None)

    @property
    def _shares(self) -> bool:
        return any(part.sized.beside == self.name for part in self.system.parts)

    def _window_of(self, calls: Trace) -> tuple[float, float]:
        """When the pool is asked most: the peak of all, or all of the time where it is asked nothing then."""
        start_s, end_s = self.traffic.window_s
        if ((calls.arrival_s >= start_s) & (calls.arrival_s < end_s)).any():
            return start_s, end_s
        return 0.0, max(calls.duration_s, end_s)

    def _limits(self, plenty: Replays, does: Does, reporter: Reporter) -> Limits | None:
        """What binds it, and what binds next; ``None`` where it is asked nothing, or what is asked can wait."""
        calls = self.run.pools[self.name].trace
        if self._some_wait_for_no_one or not calls.request_count:
            return None
        searched = stretch(self.traffic, SEARCH_REQUESTS)
        work = Work(self.question, self.traffic, searched, plenty, plenty)
        detail = detail_of(work, self._part.sized, DETAIL_REQUESTS)
        asked = None if self.system.way is None else Traffic(calls, self._window_of(calls))
        return limits_of(work, detail, self._part.sized, reporter, does, asked)
