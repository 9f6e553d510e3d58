"""A premium tier: replicas of its own with headroom of its own, or a place at the front of everybody's queue."""

from dataclasses import replace

import numpy as np

from tokenfleet import workload
from tokenfleet.contract import judge
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.plan import PlanQuestion, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics, Scheduling
from tokenfleet.domain.run import RunRecord, requests_of
from tokenfleet.domain.slo import Slo, SloResult
from tokenfleet.domain.trace import Bools, Trace, rows_of
from tokenfleet.planner import words
from tokenfleet.planner.answer import Cheapest, cheapest
from tokenfleet.planner.counting import smallest_enough
from tokenfleet.planner.progress import Progress, Reporter
from tokenfleet.planner.redundancy import spare_replicas
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.splits import promised_to
from tokenfleet.planner.traffic import Traffic, stretch

WAYS = ("own", "priority", "shared", "alike")
MOST_REQUESTS = 10_000
MOST_TIMES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOption:
    """One way to serve both tiers."""

    name: str
    """``own``, ``priority``, ``shared``, ``alike``."""
    replica_count: int | None
    """Spare ones included; ``None`` when no number tried keeps both promises."""
    usd_per_hour: float | None
    premium: tuple[SloResult, ...]
    """The premium tier's requests in the peak window, the spare gone; of the largest count tried where none will do."""
    others: tuple[SloResult, ...]
    """Everybody else's, against their own promise."""
    pool_replica_count: tuple[int, ...] = ()
    """In each of several pools that every request goes through."""
    notes: tuple[str, ...] = ()
    """What stands in the way where the clauses do not say it, and what was not looked at."""


def tiers(
    question: PlanQuestion,
    trace: Trace,
    usual: Sized,
    premium: Bools,
    promise: Slo,
    *,
    progress: Progress | None = None,
) -> tuple[TierOption, ...]:
    """Sizes four ways to keep a stricter promise to some requests, on replicas of one kind.

    ``own``: each tier on replicas of its own, with spare ones of its own. ``priority``: shared ones whose engine serves
    the premium tier first. ``shared``: shared ones, first come first served. ``alike``: everybody gets the stricter
    promise. On shared replicas ITL is judged on the gaps of both tiers together.

    Args:
        question: The promise to the others, what may be lost, the router.
        trace: The demand of both.
        usual: The fleet planned for everybody with that promise.
        premium: Which requests are of the premium tier.
        promise: To them.
        progress: Told what is being tried.

    Raises:
        BadInput: a tier without requests.
    """
    must_take_in_some(premium)
    # Who is premium is written where a cut of the traffic keeps it; an engine that serves by arrival ignores it.
    marked = replace(trace, priority=np.where(premium, 0, 1).astype(np.int32))
    traffic = stretch(Traffic(marked, workload.peak_window(trace)), MOST_REQUESTS)
    reporter = Reporter(progress)
    both = _Both(question, promise, usual.replica, usual.price_usd_per_hour / usual.replica_count)
    return (
        _own(both, trace, premium, progress),
        _together(both, traffic, usual.carrying_count, "priority", reporter),
        _together(both, traffic, usual.carrying_count, "fcfs", reporter),
        _alike(both, trace, progress),
    )


@dataclass(frozen=True, slots=True)
class _Both:
    question: PlanQuestion
    """With the promise to the others."""
    promise: Slo
    replica: ReplicaPhysics
    usd_per_replica_hour: float

    def asked(self, slo: Slo, part: Trace) -> PlanQuestion:
        """The same question with another promise, to these requests, and this kind of replica only."""
        only = replace(self.question, candidates=(self.replica,), rejected=(), vary_step_tokens=False)
        return replace(only, slo=promised_to(slo, part))

    def priced(
        self, name: str, count: int | None, premium: tuple[SloResult, ...], others: tuple[SloResult, ...]
    ) -> TierOption:
        """An option with its price."""
        usd = None if count is None else count * self.usd_per_replica_hour
        return TierOption(name=name, replica_count=count, usd_per_hour=usd, premium=premium, others=others)


def must_take_in_some(premium: Bools) -> None:
    """Refuse a tier that is nobody, or everybody.

    Raises:
        BadInput: it is one of both.
    """
    if not premium.any() or premium.all():
        raise BadInput.at("premium", "takes in nobody, or everybody", "choose some of the requests")


def _own(both: _Both, trace: Trace, premium: Bools, progress: Progress | None) -> TierOption:
    unranked = replace(trace, priority=None)
    first_part, second_part = rows_of(unranked, premium), rows_of(unranked, ~premium)
    mine = cheapest(both.asked(both.promise, first_part), first_part, progress=progress)
    theirs = cheapest(both.asked(both.question.slo, second_part), second_part, progress=progress)
    first, second = mine.sized, theirs.sized
    count = None if first is None or second is None else first.replica_count + second.replica_count
    option = both.priced("own", count, first.slo if first else (), second.slo if second else ())
    return replace(option, notes=(*_why_not("premium", mine), *_why_not("others", theirs)))


def _why_not(tier: str, found: Cheapest) -> tuple[str, ...]:
    return tuple(f"{tier}: {reason.text}" for reason in found.reasons[:1]) if found.sized is None else ()


def _alike(both: _Both, trace: Trace, progress: Progress | None) -> TierOption:
    found = cheapest(both.asked(both.promise, trace), trace, progress=progress)
    results = found.sized.slo if found.sized else ()
    option = both.priced("alike", None if found.sized is None else found.sized.replica_count, results, results)
    return replace(option, notes=_why_not("everybody", found))


def _together(both: _Both, traffic: Traffic, guess: int, scheduling: Scheduling, reporter: Reporter) -> TierOption:
    """The smallest shared fleet that keeps each tier its promise, over the peak window and over all."""
    engine = replace(both.replica.deployment.engine, scheduling=scheduling)
    replica = replace(both.replica, deployment=replace(both.replica.deployment, engine=engine))
    replays = Replays.of(both.question)
    marks = traffic.trace.priority
    if marks is None:
        raise ValueError("the tiers are not marked")
    premium = np.asarray(marks == 0)
    to_premium = promised_to(both.promise, rows_of(traffic.trace, premium))
    to_others = promised_to(both.question.slo, rows_of(traffic.trace, ~premium))
    seen: dict[int, tuple[JudgedTier, JudgedTier]] = {}

    def keeps(count: int) -> bool:
        reporter.say("sizing", f"{words.fleet(replica, count)}, {scheduling}", 0.5)
        record = replays.run(traffic, replica, count)
        seen[count] = (
            judged_tier(requests_of(record, premium), to_premium, traffic),
            judged_tier(requests_of(record, ~premium), to_others, traffic),
        )
        return seen[count][0].kept and seen[count][1].kept

    cap = min(MOST_TIMES * guess, replays.most(traffic, replica))
    carrying = smallest_enough(keeps, guess, cap)
    first, second = seen[max(seen) if carrying is None else carrying]
    spare = None if carrying is None else spare_replicas(both.question, replica, carrying)
    total = None if carrying is None or spare is None else carrying + spare
    option = both.priced("priority" if scheduling == "priority" else "shared", total, first.peak, second.peak)
    rides = both.question.redundancy.ride_through
    return replace(option, notes=("the moment of a loss was not replayed with both tiers",) if rides else ())


@dataclass(frozen=True, slots=True)
class JudgedTier:
    """A tier's own requests against its own promise."""

    peak: tuple[SloResult, ...]
    overall: tuple[SloResult, ...]

    @property
    def kept(self) -> bool:
        """Every clause is, where it has samples."""
        return all(result.kept or not result.sample_count for result in (*self.peak, *self.overall))


def judged_tier(record: RunRecord, slo: Slo, traffic: Traffic) -> JudgedTier:
    """Judged in the peak window and over all."""
    return JudgedTier(judge(record, slo, peak_only=True, window_s=traffic.window_s), judge(record, slo))
