"""A premium tier on several pools, of a plan or of a scenario that names them: the four ways of one fleet."""

from dataclasses import replace
from typing import Final

import numpy as np

from tokenfleet import workload
from tokenfleet.domain.plan import Plan, PlannedPool, PlanQuestion, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import Scheduling
from tokenfleet.domain.run import RunRecord, requests_of
from tokenfleet.domain.slo import Slo, SloResult
from tokenfleet.domain.trace import Bools, Trace, rows_of
from tokenfleet.planner.answer import cheapest
from tokenfleet.planner.lodging import crowded, housed
from tokenfleet.planner.pool_counts import Counts, cheapest_counts
from tokenfleet.planner.progress import Progress, Reporter
from tokenfleet.planner.redundancy import spare_replicas
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.splits import promised_to, question_to
from tokenfleet.planner.systems import System, members_of, system_of
from tokenfleet.planner.tiering import (
    MOST_REQUESTS,
    MOST_TIMES,
    WAYS,
    JudgedTier,
    TierOption,
    judged_tier,
    must_take_in_some,
    tiers,
)
from tokenfleet.planner.traffic import Traffic, stretch

_NOTHING_LEFT: Final = "No number of replicas leaves as many in every pool after what may be lost."


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTiers:
    """What each way takes of one pool, or of two that every request goes through."""

    pools: tuple[str, ...]
    premium_fraction: float
    """Of the requests that come to it."""
    options: tuple[TierOption, ...]
    """``own``, ``priority``, ``shared``, ``alike``."""


def tiers_of_pools(
    question: PlanQuestion,
    trace: Trace,
    plan: Plan,
    premium: Bools,
    promise: Slo,
    *,
    progress: Progress | None = None,
) -> tuple[PoolTiers, ...]:
    """Sizes the four ways of :func:`tokenfleet.planner.tiers` in every pool, on its kind of replica.

    Pools side by side are sized each on its own requests, with what is promised to these; one that prefills and one
    that decodes are sized together.

    Args:
        question: The promise to the others, what may be lost.
        trace: The demand of both tiers.
        plan: Of several pools.
        premium: Which requests are of the premium tier.
        promise: To them.
        progress: Told what is being tried.

    Raises:
        BadInput: a tier without requests.
    """
    must_take_in_some(premium)
    asked = replace(question, splits=(), apart=None)
    if plan.handover is not None:
        system = system_of(plan.pools, plan.handover)
        return (_Together(asked, trace, premium, promise, system, Reporter(progress)).tiers(),)
    return tuple(_in_pool(asked, trace, pool, premium, promise, progress) for pool in plan.pools)


def tiers_of_system(
    question: PlanQuestion,
    trace: Trace,
    system: System,
    premium: Bools,
    promise: Slo,
    *,
    progress: Progress | None = None,
) -> PoolTiers:
    """Sizes the four ways in pools that depend on each other, all of them together.

    Args:
        question: The promise to the others, what may be lost.
        trace: The demand of both tiers.
        system: The pools as they are bought for everybody.
        premium: Which requests are of the premium tier.
        promise: To them, through all pools.
        progress: Told what is being tried.

    Raises:
        BadInput: a tier without requests.
    """
    must_take_in_some(premium)
    return _Together(question, trace, premium, promise, system, Reporter(progress)).tiers()


def _in_pool(
    question: PlanQuestion,
    trace: Trace,
    pool: PlannedPool,
    premium: Bools,
    promise: Slo,
    progress: Progress | None,
) -> PoolTiers:
    (usual,) = pool.plan.fleets
    rows = members_of(trace, pool.takes)
    mine, first = rows_of(trace, rows), premium[rows]
    router = question.router if pool.plan.fleet is None else pool.plan.fleet.router
    asked = replace(question_to(question, mine), router=router, routers=())
    if first.any() and not first.all():
        options = tiers(asked, mine, usual, first, promise, progress=progress)
    else:
        options = _of_one_tier(asked, mine, usual, promise if first.all() else None, pool.plan, progress)
    return PoolTiers(pools=(pool.name,), premium_fraction=float(first.mean()), options=options)


def _of_one_tier(
    question: PlanQuestion, trace: Trace, usual: Sized, promise: Slo | None, plan: Plan, progress: Progress | None
) -> tuple[TierOption, ...]:
    """A pool to which only one tier comes: it is as large whichever way the tiers are kept apart."""
    if promise is None:
        alike = _option("", (usual,), (), plan.slo_degraded)
    else:
        narrowed = replace(
            question, slo=promised_to(promise, trace), candidates=(usual.replica,), rejected=(), vary_step_tokens=False
        )
        found = cheapest(narrowed, trace, progress=progress).sized
        alike = _option("", None if found is None else (found,), () if found is None else found.slo, ())
    return tuple(replace(alike, name=way) for way in WAYS)


def _option(
    name: str,
    fleets: tuple[Sized, ...] | None,
    premium: tuple[SloResult, ...],
    others: tuple[SloResult, ...],
    pools: tuple[int, ...] = (),
) -> TierOption:
    return TierOption(
        name=name,
        replica_count=None if fleets is None else sum(each.replica_count for each in fleets),
        usd_per_hour=None if fleets is None else sum(each.price_usd_per_hour for each in fleets),
        premium=premium,
        others=others,
        pool_replica_count=pools,
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """Counts that were sized, and what each tier has of them."""

    bought: tuple[Sized, ...] | None
    """``None`` where no counts tried keep the promises, or there is no room for them."""
    premium: JudgedTier | None
    others: JudgedTier | None
    no_room: str = ""
    """Why there is none."""


@dataclass(frozen=True, slots=True)
class _Together:
    """Pools that depend on each other: two that every request goes through, or those of a way that somebody named."""

    question: PlanQuestion
    trace: Trace
    premium: Bools
    promise: Slo
    system: System
    reporter: Reporter

    def tiers(self) -> PoolTiers:
        """All four ways."""
        marked = replace(self.trace, priority=np.where(self.premium, 0, 1).astype(np.int32))
        usual = self.question.slo
        own = self._sized(rows_of(marked, self.premium), self.promise, usual, "own, premium")
        rest = self._sized(rows_of(marked, ~self.premium), self.promise, usual, "own, others")
        options = (
            self._own(own, rest),
            self._option("priority", self._sized(marked, self.promise, usual, "priority", "priority")),
            self._option("shared", self._sized(marked, self.promise, usual, "shared", "fcfs")),
            self._option("alike", self._sized(marked, self.promise, self.promise, "alike", "fcfs")),
        )
        names = tuple(part.name for part in self.system.parts)
        return PoolTiers(pools=names, premium_fraction=float(self.premium.mean()), options=options)

    def _sized(
        self,
        trace: Trace,
        first: Slo,
        second: Slo,
        way: str,
        scheduling: Scheduling | None = None,
    ) -> _Seen:
        """The cheapest counts of both pools that keep each tier its promise: priority 0 the first, 1 the second."""
        traffic = stretch(Traffic(trace, workload.peak_window(trace)), MOST_REQUESTS)
        system = self.system if scheduling is None else self.system.with_kinds(lambda one: _served(one, scheduling))
        replays = Replays.of(self.question)
        first_rows, second_rows = (np.asarray(traffic.trace.priority == tier) for tier in (0, 1))
        seen: dict[Counts, tuple[JudgedTier | None, JudgedTier | None]] = {}

        def judged(record: RunRecord, rows: Bools, slo: Slo) -> JudgedTier | None:
            if not rows.any():
                return None
            return judged_tier(requests_of(record, rows), promised_to(slo, rows_of(traffic.trace, rows)), traffic)

        def enough(counts: Counts) -> bool:
            if counts not in seen:
                self.reporter.say("sizing", f"{way}: {' and '.join(map(str, counts))} replicas", 0.5)
                record = system.with_counts(counts).replayed(replays, traffic, spare=False).record
                seen[counts] = judged(record, first_rows, first), judged(record, second_rows, second)
            return all(tier is None or tier.kept for tier in seen[counts])

        start = tuple(part.sized.carrying_count for part in system.own)
        usd = tuple(part.sized.price_usd_per_hour / part.sized.replica_count for part in system.own)
        counts = cheapest_counts(enough, start, usd, cap_factor=MOST_TIMES)
        if counts is None:
            return _Seen(None, *seen[max(seen)])
        return self._within(_Seen(tuple(part.sized for part in system.with_counts(counts).parts), *seen[counts]))

    def _within(self, found: _Seen) -> _Seen:
        """The same with spare replicas where zones and quota have room for all pools; else why nobody can buy them."""
        if found.bought is None:
            return found
        fleets = [replace(each, spare_count=0) for each in found.bought]
        hosts = self._hosts(len(fleets))
        own = {at: fleets[at] for at in hosts}
        here = housed(list(own.values()), self.question)
        if here is None:
            no_room = f"The pools have no room: {crowded(own.values(), self.question)}."
            lost = (spare_replicas(self.question, each.replica, each.carrying_count) for each in own.values())
            return replace(found, bought=None, no_room=_NOTHING_LEFT if None in lost else no_room)
        spare = {at: sized.spare_count for at, (sized, _) in zip(own, here, strict=True)}
        bought = (replace(each, spare_count=spare[host]) for each, host in zip(fleets, hosts, strict=True))
        return replace(found, bought=tuple(bought))

    def _hosts(self, count: int) -> list[int]:
        """Of so many fleets, one or several of each pool in turn, the one on whose GPUs each stands."""
        names = [part.name for part in self.system.parts]
        mine = [names.index(part.host) for part in self.system.parts]
        return [at - at % len(mine) + mine[at % len(mine)] for at in range(count)]

    def _own(self, premium: _Seen, others: _Seen) -> TierOption:
        both = None if premium.bought is None or others.bought is None else (*premium.bought, *others.bought)
        found = _Seen(both, premium.premium, others.others, premium.no_room or others.no_room)
        return self._option("own", found if both is None else self._within(found))

    def _option(self, name: str, found: _Seen) -> TierOption:
        option = _option(
            name,
            found.bought,
            found.premium.peak if found.premium else (),
            found.others.peak if found.others else (),
            () if found.bought is None else self._by_pool(found.bought),
        )
        return replace(option, notes=(found.no_room,)) if found.no_room else option

    def _by_pool(self, fleets: tuple[Sized, ...]) -> tuple[int, ...]:
        width = len(self.system.parts)
        return tuple(sum(each.replica_count for each in fleets[at::width]) for at in range(width))


def _served(sized: Sized, scheduling: Scheduling) -> Sized:
    engine = replace(sized.replica.deployment.engine, scheduling=scheduling)
    return replace(sized, replica=replace(sized.replica, deployment=replace(sized.replica.deployment, engine=engine)))
