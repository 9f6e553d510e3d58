"""Several pools as one plan: proved together on the whole demand, billed together, with one outlook."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from tokenfleet import cost
from tokenfleet.domain.outlook import Confidence
from tokenfleet.domain.plan import Plan, PlannedPool, PlanQuestion
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.stages import Handover, StagedRun
from tokenfleet.planner import joint
from tokenfleet.planner.assumed import few_requests, is_about_sure
from tokenfleet.planner.curve import odd_loads
from tokenfleet.planner.lodging import in_zones
from tokenfleet.planner.money import billed_span_s, invoices, tenant_invoice
from tokenfleet.planner.pools_outlook import PoolsOutlook
from tokenfleet.planner.progress import Progress, Reporter
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.spread import Replay
from tokenfleet.planner.systems import Proof, System, Way, proof, system_of
from tokenfleet.planner.traffic import Traffic, stretch
from tokenfleet.planner.utilization import Saturated, busiest_part, busiest_rate_per_s, full_replicas
from tokenfleet.planner.work import DETAIL_REQUESTS, SEARCH_REQUESTS

T = TypeVar("T")

_TELEMETRY_SAMPLES = 1_000
_LONG_WAY_S = 1.0
"""Longer a pause in the middle of an answer is told."""


@dataclass(frozen=True, slots=True)
class Planned:
    """Pools with what a plan says of each."""

    pools: tuple[PlannedPool, ...]
    handover: Handover | None = None
    way: Way | None = None
    """How requests go through pools that somebody named."""

    @property
    def system(self) -> System:
        """The pools as they are replayed together."""
        return system_of(self.pools, self.handover, self.way)

    @property
    def depend(self) -> bool:
        """Whether what one pool needs hangs on the others."""
        return self.handover is not None or self.way is not None


class Together:
    """Makes one plan of several pools."""

    def __init__(
        self, asked: PlanQuestion, traffic: Traffic, replays: Replays, replay: Replay, progress: Progress | None
    ) -> None:
        """Look at a question.

        Args:
            asked: As a person asked it.
            traffic: The demand.
            replays: Judges, and counts.
            replay: Runs replays.
            progress: Told what is being tried.
        """
        self._asked, self._traffic, self._progress = asked, traffic, progress
        self._question = replace(asked, splits=(), apart=None)
        self._replays, self._replay = replays, replay

    def started(self, work: Callable[[], T]) -> Callable[[], T]:
        """Starts a part of the answer that no other part changes; call it for the answer."""
        return self._replays.beside(work)

    def proofs(self, system: System) -> tuple[Proof, Proof | None]:
        """The whole demand with the spare replicas of every pool gone and, where that keeps the promise, there."""
        interval_s = max(1.0, self._traffic.trace.duration_s / _TELEMETRY_SAMPLES)
        prove = partial(proof, system, self._replays, self._traffic, telemetry_interval_s=interval_s)
        degraded = prove(spare=False)
        if not degraded.verdict.kept:
            return degraded, None
        return degraded, prove(spare=True) if any(part.sized.spare_count for part in system.parts) else degraded

    def plan(self, one: Plan, planned: Planned, degraded: Proof, whole: Proof) -> Plan:
        """The plan of these pools.

        Args:
            one: What was found without them: the best fleet of one pool, and who was rejected.
            planned: The pools.
            degraded: The whole demand with their spare replicas gone.
            whole: The same with all replicas there.
        """
        traffic = self._traffic
        pools, span_s = self._billed(planned, degraded.run)
        factor = joint.load_factor(pools)
        made = replace(
            self._looked_out(one, planned, pools, degraded),
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
            bill=cost.together(
                [pool.plan.bill for pool in pools if pool.plan.bill], degraded.run.record, span_s=span_s
            ),
            peak_start_s=traffic.window_s[0],
            peak_end_s=traffic.window_s[1],
            replayed_count=one.replayed_count + self._replays.count + sum(pool.plan.replayed_count for pool in pools),
            tried_count=one.tried_count + sum(pool.plan.tried_count for pool in pools),
            peak_rate_per_s=traffic.peak_rate_per_s,
            mean_rate_per_s=traffic.mean_rate_per_s,
            saturated_rate_per_s=None,
            # What was just proved is sustained, whatever one pool does where the other smooths nothing.
            sustained_rate_per_s=None if factor is None else max(1.0, factor) * traffic.peak_rate_per_s,
            kv_peak_fraction=max(pool.plan.kv_peak_fraction or 0.0 for pool in pools),
            sequence_peak_count=max(pool.plan.sequence_peak_count or 0 for pool in pools),
            purchase=joint.purchase(pools),
            purchase_missing=joint.purchase_missing(pools),
            placement=None,
            losses=joint.losses(pools),
            rough=None,
        )
        kept = joint.kept_usd(pools, degraded.run)
        return replace(made, invoice=tenant_invoice(made, traffic, kept), invoices=invoices(made, traffic, kept))

    def _looked_out(self, one: Plan, planned: Planned, pools: Sequence[PlannedPool], degraded: Proof) -> Plan:
        """The plan with what surrounds it: other loads, more replicas, wrong assumptions, and how sure it is."""
        reporter = Reporter(self._progress)
        searched = stretch(self._traffic, SEARCH_REQUESTS)

        def part(told: Callable[[PoolsOutlook], T]) -> Callable[[], T]:
            def made(replays: Replays) -> T:
                return told(PoolsOutlook(planned.system, replays, self._question, searched, reporter))

            return self._replays.started(made)

        alone = None if planned.depend else joint.sure(pools)
        wrong, surer = part(PoolsOutlook.sensitivity), part(lambda outlook: outlook.sure(alone))
        drawn = part(lambda outlook: outlook.curve(stretch(searched, DETAIL_REQUESTS)))
        dearer = part(lambda outlook: outlook.frontier() if planned.way is not None else ())
        likely = part(self._likely)
        sure, curve = surer(), drawn()
        cases = joint.as_sure(wrong(), sure)
        return replace(
            one,
            assumptions=(*_assumed(planned), *_long_ways(planned, degraded.run), *joint.sure_notes(pools, sure, cases)),
            curve=curve,
            frontier=joint.with_pools((*one.frontier, *dearer()), pools, degraded.verdict),
            sure=None,
            sure_pools=sure or (),
            anomalies=(*joint.anomalies(pools), *odd_loads(curve)),
            sensitivity=cases,
            confidence=likely(),
        )

    def _full(self, pool: PlannedPool, run: StagedRun) -> Saturated | None:
        """What a pool gets through with a queue that never empties, with its GPUs to itself."""
        plan, calls = pool.plan, run.pools[pool.name].trace
        if not calls.request_count:
            return None
        detail = busiest_part(Traffic(calls, (plan.peak_start_s, plan.peak_end_s)))
        return full_replicas(Replays.of(plan.question, self._replay), detail, joint.of_one_kind(pool))

    def _billed(self, planned: Planned, run: StagedRun) -> tuple[tuple[PlannedPool, ...], float]:
        """The pools with their parts of the whole bill, and the time that it is reckoned by."""
        full = {pool.name: self._full(pool, run) for pool in planned.pools}
        works = {name: (run.pools[name].record, None if one is None else one.work) for name, one in full.items()}
        beside = {
            pool.name: [works[each.name] for each in planned.pools if joint.of_one_kind(each).beside == pool.name]
            for pool in planned.pools
        }
        span_s = billed_span_s(self._question, self._traffic, list(works.values()))
        span_s = max(span_s, *(cost.work_span_s([works[name], *others]) for name, others in beside.items()))
        billed = []
        zones = self._question.redundancy.zones
        for pool in planned.pools:
            bill = None
            if joint.of_one_kind(pool).beside is None:
                bill = joint.pool_bill(pool, works[pool.name], span_s, beside[pool.name])
            shares = bill is None or bool(beside[pool.name])
            rate_per_s = pool.plan.saturated_rate_per_s or _rate_per_s(run, pool, full[pool.name], shares=shares)
            # What a pool was dealt of the zones, its placement says.
            question = in_zones(pool.plan.question, zones)
            plan = replace(
                pool.plan, question=question, bill=bill, invoice=None, invoices=(), saturated_rate_per_s=rate_per_s
            )
            billed.append(replace(pool, plan=plan))
        return tuple(billed), span_s

    def _likely(self, outlook: PoolsOutlook) -> Confidence | None:
        """Of a handful of requests no share of cases can be told."""
        return None if few_requests(self._traffic) else outlook.confidence()


def _rate_per_s(run: StagedRun, pool: PlannedPool, full: Saturated | None, *, shares: bool) -> float | None:
    """The rate of all users at which a pool is full, however few of them come to it at the peak, with whatever calls.

    ``None`` where it is asked too little to say, and where others share its GPUs: what it could do alone says nothing.
    """
    if full is None or shares:
        return None
    plan = pool.plan
    asked = Traffic(run.pools[pool.name].trace, (plan.peak_start_s, plan.peak_end_s))
    return full.rate_per_s * plan.peak_rate_per_s / busiest_rate_per_s(asked)


def _own(plan: Plan) -> Iterator[str]:
    """All but what it would take to be sure of one pool alone: that is said of all together."""
    yield from (line for line in plan.assumptions if not is_about_sure(line))


def _long_ways(planned: Planned, run: StagedRun) -> Iterator[str]:
    """A pause after the first token that is long, and too rare among all gaps for a quantile to notice."""
    handover = planned.handover
    if handover is None or handover.first_token == "decode" or not len(run.transfer_s):
        return
    mean_s = float(run.transfer_s.mean())
    if mean_s > _LONG_WAY_S:
        yield (
            f"KV takes {mean_s:.3g} s on average to cross {handover.link.name}, waits for it included: so long is the "
            "pause after each first token, which is the prefill pool's. The promise does not notice it; do you?"
        )


def _assumed(planned: Planned) -> Iterator[str]:
    """What the pools take for granted: once where all do, else with the name of the pool."""
    if planned.handover is not None:
        yield (
            f"KV crosses {planned.handover.link.name} from the replica that prefilled; the user's first token is the "
            f"{planned.handover.first_token} pool's. Losses of one pool are judged with the spare of the other gone "
            "too; what binds one is asked with plenty of the other, which smooths nothing then."
        )
    elif planned.way is not None:
        yield (
            "Losses of one pool are judged with the spare of the others gone too; what binds one is asked with plenty "
            "of the others, which smooth nothing then."
        )
        if any(pool.plan.found_within_fraction is None for pool in planned.pools if pool.request_fraction > 0.0):
            yield (
                "What binds each pool, and the moment of a loss, are not sought where some requests are offline work, "
                "which the promise is not about."
            )
    else:
        yield (
            "Each request goes to the pool that takes it, whatever becomes of the others: none stands in for another. "
            "What a wrong assumption asks for is counted by the promise to all; planned again, each pool is counted by "
            "its own requests, and may come out larger."
        )
    said = [tuple(_own(pool.plan)) for pool in planned.pools]
    for line in dict.fromkeys(line for lines in said for line in lines):
        owners = [pool.name for pool, lines in zip(planned.pools, said, strict=True) if line in lines]
        yield line if len(owners) == len(said) else f"{' and '.join(owners)}: {line}"
