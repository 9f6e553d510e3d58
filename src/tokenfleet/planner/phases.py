"""Prefill and decode apart as a plan: what each of the two pools is, what it may lose and what binds it."""

from collections.abc import Mapping
from dataclasses import replace

from tokenfleet.domain.apart import Apart, ApartPool
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.plan import Does, Plan, PlannedPool, PlanQuestion, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.stages import Handover
from tokenfleet.planner.answer import DETAIL_REQUESTS, LOAD_PRECISION, SEARCH_REQUESTS, Work, limits_of, survived_losses
from tokenfleet.planner.assumed import assumptions
from tokenfleet.planner.buying import purchase, purchase_missing
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.quotes import quote
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.spread import Replay
from tokenfleet.planner.systems import in_place
from tokenfleet.planner.traffic import Traffic, stretch
from tokenfleet.simulator.splitting import DECODE, PREFILL

_PLENTY = 4
"""Times its carrying replicas that the other pool gets while one is asked what binds it: the highest load tried."""


def phase_pools(
    question: PlanQuestion, traffic: Traffic, found: Apart, handover: Handover, replay: Replay, reporter: Reporter
) -> tuple[PlannedPool, ...]:
    """Both pools with what a plan says of a fleet.

    Each is examined in its place, with what users see of both. While one loses replicas, the other has its carrying
    ones only; while one is asked what binds it, the other has plenty.

    Args:
        question: What was asked.
        traffic: The demand.
        found: Replicas and counts of both.
        handover: The way between them.
        replay: Runs the replay of one pool.
        reporter: Told what is being tried.
    """
    pools = {PREFILL: found.prefill, DECODE: found.decode}
    who = {PREFILL: "every prompt, to its first token", DECODE: "every answer"}
    does: dict[str, Does] = {PREFILL: "prefills", DECODE: "decodes"}
    return tuple(
        PlannedPool(
            name=name,
            who=who[name],
            does=does[name],
            takes=None,
            request_fraction=1.0,
            plan=_Phase(question, traffic, name, pools, handover, replay).planned(does[name], reporter),
        )
        for name in pools
    )


@dataclass(frozen=True, slots=True)
class _Phase:
    """One of the two pools, in its place beside the other."""

    question: PlanQuestion
    traffic: Traffic
    name: str
    pools: Mapping[str, ApartPool]
    handover: Handover
    replay: Replay

    @property
    def _other(self) -> ApartPool:
        return next(pool for name, pool in self.pools.items() if name != self.name)

    def _fleets(self, other_count: int, fleet: Fleet) -> dict[str, Fleet]:
        beside = Replays.of(self.question).fleet(self._other.replica, other_count)
        return {name: fleet if name == self.name else beside for name in self.pools}

    def _replays(self, other_count: int) -> Replays:
        usual = Replays.of(self.question)
        fleets = self._fleets(other_count, usual.fleet(self.pools[self.name].replica, 1))
        everybody = dict.fromkeys(self.pools)
        return Replays.of(self.question, in_place(self.name, everybody, fleets, self.handover, self.replay))

    def planned(self, does: Does, reporter: Reporter) -> Plan:
        """What a plan says of this pool; what it promises is said of the whole, not of it."""
        traffic, sized = self.traffic, sized_phase(self.question, self.pools[self.name])
        replays = self._replays(self._other.carrying_count)
        work = Work(self.question, traffic, stretch(traffic, SEARCH_REQUESTS), replays, replays)
        record = replays.run(traffic, sized.replica, sized.carrying_count)
        verdict = replays.judged(traffic, record)
        survived = survived_losses(work, sized, {sized.carrying_count: verdict}, reporter)
        plenty = self._replays(_PLENTY * self._other.carrying_count)
        detail = stretch(work.searched, DETAIL_REQUESTS)
        limits = limits_of(replace(work, replays=plenty), detail, sized, reporter, does)
        made = Plan(
            question=self.question,
            chosen=replace(sized, slo=verdict.peak),
            runners_up=(),
            rejected=(),
            reasons=(),
            fleet=replays.fleet(sized.replica, sized.replica_count),
            record=record,
            degraded=record,
            slo_whole=(),
            slo_degraded=verdict.peak,
            limits=limits.uses,
            curve=(),
            bill=None,
            peak_start_s=traffic.window_s[0],
            peak_end_s=traffic.window_s[1],
            replayed_count=replays.count + plenty.count,
            assumptions=assumptions(self.question, traffic, work.searched, sized),
            slo_degraded_overall=verdict.overall,
            peak_rate_per_s=traffic.peak_rate_per_s,
            mean_rate_per_s=traffic.mean_rate_per_s,
            sustained_rate_per_s=limits.sustained_rate_per_s(traffic.peak_rate_per_s),
            found_within_fraction=LOAD_PRECISION - 1.0,
            kv_peak_fraction=limits.peak.kv_fraction,
            sequence_peak_count=limits.peak.running_count,
            placement=survived.placement,
            losses=survived.cases,
        )
        return replace(
            made, purchase=purchase(made, traffic.trace), purchase_missing=purchase_missing(made, traffic.trace)
        )


def sized_phase(question: PlanQuestion, pool: ApartPool) -> Sized:
    """A pool of two phases as a fleet that was sized; what it promises is said of both."""
    known = quote(question.prices, pool.replica.deployment.gpu)
    if known is None:
        raise ValueError(f"no price of {pool.replica.deployment.gpu} is known, and it was chosen")
    return Sized(
        replica=pool.replica,
        carrying_count=pool.carrying_count,
        spare_count=pool.spare_count,
        price=pool.price,
        price_low_usd_per_gpu_hour=known.low_usd_per_gpu_hour,
        price_high_usd_per_gpu_hour=known.high_usd_per_gpu_hour,
        slo=(),
    )
