"""Buys what costs least: one fleet for everybody, or pools that were tried beside it.

Each pool is planned like a fleet, on the requests that come to it, and all of them are proved together on the whole
demand: what that breaks is not bought.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from tokenfleet import cost, workload
from tokenfleet.domain.apart import Apart
from tokenfleet.domain.outlook import Confidence
from tokenfleet.domain.plan import Plan, PlannedPool, PlanQuestion, SplitTrial
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.stages import Handover, StagedRun
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.ways import Takes
from tokenfleet.planner import joint
from tokenfleet.planner.answer import DETAIL_REQUESTS, SEARCH_REQUESTS, full_replicas, one_fleet
from tokenfleet.planner.assumed import few_requests
from tokenfleet.planner.curve import odd_loads
from tokenfleet.planner.disaggregated import handover_of
from tokenfleet.planner.money import billed_span_s, invoices, tenant_invoice
from tokenfleet.planner.phases import phase_pools
from tokenfleet.planner.pools_outlook import PoolsOutlook
from tokenfleet.planner.progress import Progress, Reporter
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.splits import question_to
from tokenfleet.planner.spread import Replay
from tokenfleet.planner.systems import Proof, System, crowded, proof, requests_of_pool, system_of
from tokenfleet.planner.traffic import Traffic, stretch
from tokenfleet.planner.utilization import Saturated

_TELEMETRY_SAMPLES = 1_000
_ROUNDING = 1e-9
_LONGEST_NAME = 36


@dataclass(frozen=True, slots=True)
class _Offer:
    """Pools that were priced."""

    said: str
    usd_per_hour: float
    planned: Callable[[], "_Planned"]


@dataclass(frozen=True, slots=True)
class _Planned:
    """Pools with what a plan says of each."""

    pools: tuple[PlannedPool, ...]
    handover: Handover | None

    @property
    def system(self) -> System:
        """The pools as they are replayed together."""
        return system_of(self.pools, self.handover)


class Buyer:
    """Buys the cheapest of one fleet and the pools that were tried beside it."""

    def __init__(
        self, one: Plan, question: PlanQuestion, trace: Trace, progress: Progress | None, replay: Replay
    ) -> None:
        """Look at what was found.

        Args:
            one: The plan of one fleet, with what came of the pools that were tried.
            question: As it was asked.
            trace: The demand.
            progress: Told what is being tried.
            replay: Runs replays.
        """
        self._one = one
        self._asked = question
        self._question = replace(question, splits=(), apart=None)
        self._traffic = Traffic(trace, workload.peak_window(trace))
        self._progress = progress
        self._replay = replay
        self._replays = Replays.of(question, replay)

    def cheapest(self) -> Plan:
        """The plan to buy; why a cheaper one is not stands among its assumptions."""
        notes: list[str] = []
        for offer in sorted(self._offers(), key=lambda each: each.usd_per_hour):
            planned = offer.planned()
            why_not = self._why_not(planned)
            found = None if why_not else self._proved(planned)
            if found is not None:
                return replace(found, assumptions=(*notes, *found.assumptions))
            why_not = why_not or "together they break the promise in the peak minute of the whole"
            notes.append(f"{offer.said} for ${offer.usd_per_hour:.2f}/h are not bought: {why_not}.")
        return replace(self._one, assumptions=(*self._one.assumptions, *notes))

    def _offers(self) -> Iterator[_Offer]:
        """Everything that costs less than one fleet; nothing where only a part of the demand is looked at."""
        if self._question.first_look or self._question.stands_for_count > 1:
            return
        usual_usd = self._one.price_usd_per_hour
        offers = [self._split(trial) for trial in self._one.splits]
        if self._one.apart is not None and self._one.apart.found is not None:
            found = self._one.apart.found
            said = "Prefill and decode in pools of their own"
            offers.append(_Offer(said, found.price_usd_per_hour, partial(self._phases, found)))
        yield from (
            offer for offer in offers if offer is not None and (usual_usd is None or offer.usd_per_hour < usual_usd)
        )

    def _split(self, trial: SplitTrial) -> _Offer | None:
        usd = trial.price_usd_per_hour
        if usd is None:
            return None
        return _Offer(f"Pools by {trial.by} ({trial.named})", usd, partial(self._side_by_side, trial))

    def _side_by_side(self, trial: SplitTrial) -> _Planned:
        """Each pool planned in full, on its own requests."""
        pools = []
        for name, pool in zip(_names(trial), trial.pools, strict=True):
            mine = requests_of_pool(self._traffic.trace, pool.takes)
            pools.append(
                PlannedPool(
                    name=name,
                    who=pool.name,
                    does="answers",
                    takes=pool.takes,
                    request_fraction=pool.request_fraction,
                    plan=one_fleet(
                        question_to(self._question, mine), mine, progress=self._progress, replay=self._replay
                    ),
                )
            )
        return _Planned(tuple(pools), None)

    def _phases(self, found: Apart) -> _Planned:
        if self._asked.apart is None:
            raise ValueError("two phases were found that nobody asked for")
        handover = handover_of(self._question, self._asked.apart, found.prefill.replica)
        reporter = Reporter(self._progress)
        pools = phase_pools(self._question, self._traffic, found, handover, self._replay, reporter)
        return _Planned(pools, handover)

    def _why_not(self, planned: _Planned) -> str:
        """What a person asked for that these pools do not keep; empty where they keep all."""
        no_room = crowded(planned.system, self._question)
        if no_room:
            return no_room
        factor, cap = joint.load_factor(planned.pools), self._question.utilization_cap_fraction
        if cap is not None and (factor is None or factor * cap < 1.0 - _ROUNDING):
            return "they would be fuller than the utilization cap allows"
        cases = [case for pool in planned.pools for case in pool.plan.losses if case.required]
        if not all(case.kept for case in cases):
            return "they do not survive what may be lost"
        rides = all(case.moment is not None and case.moment.kept for case in cases)
        if self._question.redundancy.ride_through and not rides:
            return "they do not ride through the moment of a loss"
        return ""

    def _proved(self, planned: _Planned) -> Plan | None:
        """The plan of these pools; ``None`` where the whole demand on all of them breaks the promise."""
        interval_s = max(1.0, self._traffic.trace.duration_s / _TELEMETRY_SAMPLES)
        prove = partial(proof, planned.system, self._replays, self._traffic, telemetry_interval_s=interval_s)
        degraded = prove(spare=False)
        if not degraded.verdict.kept:
            return None
        whole = prove(spare=True) if any(joint.of_one_kind(pool).spare_count for pool in planned.pools) else degraded
        return self._plan(planned, degraded, whole)

    def _full(self, pool: PlannedPool, run: StagedRun) -> Saturated | None:
        """What a pool gets through with a queue that never empties."""
        plan = pool.plan
        calls = Traffic(run.pools[pool.name].trace, (plan.peak_start_s, plan.peak_end_s))
        detail = stretch(stretch(calls, SEARCH_REQUESTS), DETAIL_REQUESTS)
        return full_replicas(Replays.of(plan.question, self._replay), detail, joint.of_one_kind(pool))

    def _billed(self, planned: _Planned, run: StagedRun) -> tuple[tuple[PlannedPool, ...], float]:
        """The pools with their parts of the whole bill, and the time that it is reckoned by."""
        full = {pool.name: self._full(pool, run) for pool in planned.pools}
        works = [(run.pools[name].record, None if one is None else one.work) for name, one in full.items()]
        span_s = billed_span_s(self._question, self._traffic, works)
        return tuple(self._with_bill(pool, run, span_s, full[pool.name]) for pool in planned.pools), span_s

    def _with_bill(self, pool: PlannedPool, run: StagedRun, span_s: float, full: Saturated | None) -> PlannedPool:
        """A pool with its part of the whole bill, and what it could do; who pays it is said of the whole."""
        plan = pool.plan
        rate_per_s = plan.saturated_rate_per_s
        if rate_per_s is None and full is not None:
            rate_per_s = full.rate_per_s
        bill = joint.pool_bill(pool, run, span_s, full)
        billed = replace(plan, bill=bill, invoice=None, invoices=(), saturated_rate_per_s=rate_per_s)
        return replace(pool, plan=billed)

    def _plan(self, planned: _Planned, degraded: Proof, whole: Proof) -> Plan:
        one, traffic = self._one, self._traffic
        pools, span_s = self._billed(planned, degraded.run)
        factor = joint.load_factor(pools)
        # What was just proved is sustained, whatever one pool does where the other smooths nothing.
        sustained = None if factor is None else max(1.0, factor) * traffic.peak_rate_per_s
        reporter = Reporter(self._progress)
        searched = stretch(traffic, SEARCH_REQUESTS)
        outlook = PoolsOutlook(planned.system, self._replays, self._question, searched, reporter)
        curve = outlook.curve(stretch(searched, DETAIL_REQUESTS))
        apart = planned.handover is not None
        sure = outlook.sure() if apart else joint.sure(pools)
        made = replace(
            one,
            question=self._asked,
            chosen=None,
            pools=pools,
            handover=planned.handover,
            runners_up=(*((one.chosen,) if one.chosen else ()), *one.runners_up),
            reasons=(),
            fleet=None,
            record=whole.run.record,
            degraded=joint.paid_record(pools, degraded.run),
            slo_whole=whole.verdict.peak,
            slo_degraded=degraded.verdict.peak,
            slo_whole_overall=whole.verdict.overall,
            slo_degraded_overall=degraded.verdict.overall,
            limits=joint.limits(pools, traffic.peak_rate_per_s),
            curve=curve,
            bill=cost.together(
                [pool.plan.bill for pool in pools if pool.plan.bill], degraded.run.record, span_s=span_s
            ),
            peak_start_s=traffic.window_s[0],
            peak_end_s=traffic.window_s[1],
            replayed_count=one.replayed_count + self._replays.count + sum(pool.plan.replayed_count for pool in pools),
            tried_count=one.tried_count + sum(pool.plan.tried_count for pool in pools),
            assumptions=(*_assumed(planned), *(joint.sure_notes(pools, sure) if apart else ())),
            peak_rate_per_s=traffic.peak_rate_per_s,
            mean_rate_per_s=traffic.mean_rate_per_s,
            saturated_rate_per_s=None,
            sustained_rate_per_s=sustained,
            kv_peak_fraction=max(pool.plan.kv_peak_fraction or 0.0 for pool in pools),
            sequence_peak_count=max(pool.plan.sequence_peak_count or 0 for pool in pools),
            frontier=joint.with_pools(one.frontier, pools, degraded.verdict),
            sure=None,
            sure_pools=sure or (),
            anomalies=(*joint.anomalies(pools), *odd_loads(curve)),
            sensitivity=outlook.sensitivity() if apart else joint.sensitivity(pools),
            confidence=self._likely(outlook) if apart else joint.confidence(pools),
            purchase=joint.purchase(pools),
            purchase_missing=joint.purchase_missing(pools),
            placement=None,
            losses=joint.losses(pools),
            rough=None,
        )
        return replace(made, invoice=tenant_invoice(made, traffic), invoices=invoices(made, traffic))

    def _likely(self, outlook: PoolsOutlook) -> Confidence | None:
        """Of a handful of requests no share of cases can be told."""
        return None if few_requests(self._traffic) else outlook.confidence()


def _names(trial: SplitTrial) -> list[str]:
    """A word for each pool of a split, as a scenario may call it, no two alike."""
    words = ["short", "long"] if trial.by == "length" else [_word(pool.takes) for pool in trial.pools]
    return [word if words.index(word) == at else f"{word[:_LONGEST_NAME]}-{at + 1}" for at, word in enumerate(words)]


def _word(takes: Takes) -> str:
    said = f"tier-{takes.priority}" if takes.label is None else re.sub(r"[^A-Za-z0-9_-]+", "-", takes.label).strip("-_")
    return said[:_LONGEST_NAME] or "pool"


def _assumed(planned: _Planned) -> Iterator[str]:
    """What the pools take for granted: once where all do, else with the name of the pool."""
    if planned.handover is None:
        yield "Each request goes to the pool that takes it, whatever becomes of the others: none stands in for another."
    else:
        yield (
            f"KV crosses {planned.handover.link.name} from the replica that prefilled; the user's first token is the "
            f"{planned.handover.first_token} pool's. Losses of one pool are judged with the spare of the other gone "
            "too; what binds one is asked with plenty of the other, which smooths nothing then."
        )
    said = [pool.plan.assumptions for pool in planned.pools]
    for line in dict.fromkeys(line for lines in said for line in lines):
        owners = [pool.name for pool, lines in zip(planned.pools, said, strict=True) if line in lines]
        yield line if len(owners) == len(said) else f"{' and '.join(owners)}: {line}"
