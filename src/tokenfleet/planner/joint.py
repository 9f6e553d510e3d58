"""What the plans of several pools come to together: their limits, losses, bill, and how sure they are."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tokenfleet import cost
from tokenfleet.domain.buying import Purchase, PurchaseLine
from tokenfleet.domain.outlook import FrontierPoint, SensitivityCase
from tokenfleet.domain.plan import Bill, LimitUse, PlannedPool, Sized
from tokenfleet.domain.run import Ledger, RunRecord
from tokenfleet.domain.stages import StagedRun
from tokenfleet.domain.survival import LossCase
from tokenfleet.domain.trace import Floats
from tokenfleet.planner.assumed import FIRST_TOKEN_UNSURE
from tokenfleet.planner.curve import marked
from tokenfleet.planner.pools_outlook import frontier_point
from tokenfleet.planner.verdict import Verdict


def of_one_kind(pool: PlannedPool) -> Sized:
    """The equal replicas of a pool."""
    (sized,) = pool.plan.fleets
    return sized


def pool_bill(pool: PlannedPool, work: cost.Work, span_s: float, beside: Sequence[cost.Work]) -> Bill:
    """One hour of a pool, and of those beside it on its GPUs, at the mean load of the whole."""
    sized = of_one_kind(pool)
    return cost.bill(
        work[0],
        usd_per_gpu_hour=sized.price.price_usd_per_gpu_hour,
        gpus_per_replica_count=sized.replica.deployment.layout.gpu_count,
        spare_count=sized.spare_count,
        span_s=span_s,
        peak_window_s=(pool.plan.peak_start_s, pool.plan.peak_end_s),
        full=work[1],
        beside=beside,
    )


def paid_record(pools: Sequence[PlannedPool], run: StagedRun) -> RunRecord:
    """What users saw, with a ledger of what their requests cost in each pool instead of the gpu time they took.

    Each line of a pool's bill is shared out by the gpu time that requests took of that pool; dollars for one hour of
    it. A second of one pool is not worth a second of another, and only what entries are to each other counts.
    """
    ledger = run.record.ledger
    if ledger is None:
        raise ValueError("a run without a ledger says nothing of gpu time")
    prefill, cached, decode = np.zeros((3, len(ledger.scheduled_s)))
    for pool, bill in _billed(pools):
        names = _on_its_gpus(pool, pools)
        works = [cost.request_work(_ledger(run, name)) for name in names]
        caller = np.concatenate([run.pools[name].caller for name in names])
        read = _shared_out(bill.cached_usd_per_hour, np.concatenate([work.cached_s for work in works]))
        fresh = _shared_out(bill.input_usd_per_hour, np.concatenate([work.input_s for work in works]))
        np.add.at(cached, caller, read)
        np.add.at(prefill, caller, fresh + read)
        np.add.at(
            decode, caller, _shared_out(bill.output_usd_per_hour, np.concatenate([work.output_s for work in works]))
        )
    paid = replace(ledger, prefill_gpu_s=prefill, cached_gpu_s=cached, decode_gpu_s=decode)
    return replace(run.record, ledger=paid)


def kept_usd(pools: Sequence[PlannedPool], run: StagedRun) -> Floats:
    """What each request answers for of the room, the idle time and the spare replicas of its pools.

    Those of a pool are shared out by the gpu time of the calls that come in its own peak window, of all its calls where
    none comes then: whoever makes a pool large pays for it to be there, and nobody for a pool that others use. What is
    kept for nobody goes to all in proportion.

    Returns:
        Dollars for one hour of all pools; shape (request,).
    """
    kept, unused = np.zeros(len(run.record.arrival_s)), 0.0
    for pool, bill in _billed(pools):
        usd = bill.headroom_usd_per_hour + bill.idle_usd_per_hour + bill.spare_usd_per_hour
        runs = [run.pools[name] for name in _on_its_gpus(pool, pools)]
        took_s = np.concatenate([_took_s(run, name) for name in _on_its_gpus(pool, pools)])
        arrival_s = np.concatenate([each.record.arrival_s for each in runs])
        at_peak = took_s * ((arrival_s >= pool.plan.peak_start_s) & (arrival_s < pool.plan.peak_end_s))
        shares = _shared_out(usd, at_peak if at_peak.any() else took_s)
        np.add.at(kept, np.concatenate([each.caller for each in runs]), shares)
        unused += 0.0 if shares.any() else usd
    whole = float(kept.sum())
    return kept * (1.0 + unused / whole) if whole > 0.0 else kept


def _billed(pools: Sequence[PlannedPool]) -> Iterator[tuple[PlannedPool, Bill]]:
    """Every pool with gpus of its own, and their bill."""
    for pool in pools:
        if of_one_kind(pool).beside is not None:
            continue
        bill = pool.plan.bill
        if bill is None:
            raise ValueError(f"the pool {pool.name} was not billed")
        yield pool, bill


def _on_its_gpus(pool: PlannedPool, pools: Sequence[PlannedPool]) -> list[str]:
    """A pool, and those beside it."""
    return [pool.name, *(each.name for each in pools if of_one_kind(each).beside == pool.name)]


def _took_s(run: StagedRun, name: str) -> Floats:
    """Gpu time of each call of a pool."""
    work = cost.request_work(_ledger(run, name))
    return work.input_s + work.cached_s + work.output_s


def _ledger(run: StagedRun, name: str) -> Ledger:
    ledger = run.pools[name].record.ledger
    if ledger is None:
        raise ValueError(f"the run of {name} has no ledger")
    return ledger


def _shared_out(usd_per_hour: float, took_s: Floats) -> Floats:
    """A line of a bill by what each request took of it."""
    total_s = float(took_s.sum())
    return took_s * (usd_per_hour / total_s) if total_s > 0.0 else took_s


def load_factor(pools: Sequence[PlannedPool]) -> float | None:
    """How many times its peak the demand may be before the first pool breaks; ``None`` where one is not known.

    A pool that nobody goes to breaks at no load.
    """
    asked = [pool for pool in pools if pool.request_fraction > 0.0]
    factors = [
        pool.plan.sustained_rate_per_s / pool.plan.peak_rate_per_s
        for pool in asked
        if pool.plan.sustained_rate_per_s is not None and pool.plan.peak_rate_per_s > 0.0
    ]
    return min(factors) if asked and len(factors) == len(asked) else None


def limits(pools: Sequence[PlannedPool], peak_rate_per_s: float) -> tuple[LimitUse, ...]:
    """What binds each pool and what binds it next, at rates of the whole demand: the tightest first."""
    found = [
        replace(use, pool=pool.name, rate_at_limit_per_s=use.rate_at_limit_per_s * peak_rate_per_s / own_per_s)
        for pool in pools
        if (own_per_s := pool.plan.peak_rate_per_s) > 0.0
        for use in pool.plan.limits
    ]
    return tuple(sorted(found, key=lambda use: (use.rate_at_limit_per_s, use.at_least)))


def losses(pools: Sequence[PlannedPool]) -> tuple[LossCase, ...]:
    """Every loss of every pool, kind by kind."""
    cases = [replace(case, pool=pool.name) for pool in pools for case in pool.plan.losses]
    kinds = list(dict.fromkeys(case.kind for case in cases))
    return tuple(sorted(cases, key=lambda case: kinds.index(case.kind)))


def sure(pools: Sequence[PlannedPool]) -> tuple[Sized, ...] | None:
    """Fleets that each keep the promise to their own requests at the slow end of the band; ``None``: one has none."""
    known = [pool.plan.sure for pool in pools]
    found = tuple(each for each in known if each is not None)
    return found if len(found) == len(known) else None


def as_sure(cases: Sequence[SensitivityCase], found: tuple[Sized, ...] | None) -> tuple[SensitivityCase, ...]:
    """The cases with the fleets that are sure, where there are any, as those that slow steps ask for."""
    if found is None:
        return tuple(cases)
    counts = tuple(sized.replica_count for sized in found)
    usd = sum(sized.price_usd_per_hour for sized in found)
    return tuple(
        replace(case, replica_count=sum(counts), price_usd_per_hour=usd, pool_replica_count=counts)
        if case.is_slow_end
        else case
        for case in cases
    )


def sure_notes(
    pools: Sequence[PlannedPool], found: tuple[Sized, ...] | None, cases: Sequence[SensitivityCase]
) -> Iterator[str]:
    """What it would take to be sure of the promise of all pools, in a sentence.

    Args:
        pools: As they are planned.
        found: The fleets that are sure, if any.
        cases: What wrong assumptions ask for: counts may keep the promise with slow steps, and yet not be sure of a
            first token.
    """
    kinds = [of_one_kind(pool) for pool in pools]
    factors = dict.fromkeys(f"{sized.replica.band.step_time_factor:.3g}" for sized in kinds)
    slow = f"If steps of all pools take {' and '.join(factors)} times as long"
    enough = next((case.pool_replica_count for case in cases if case.is_slow_end and case.pool_replica_count), None)
    if found is None and enough:
        counts = " and ".join(f"{count} in {pool.name}" for pool, count in zip(pools, enough, strict=True))
        yield f"{slow}, {counts} keep the promise; {FIRST_TOKEN_UNSURE}."
        return
    if found is None:
        yield f"{slow}, no counts of such replicas keep the promise: load-test before you promise it."
        return
    usd = sum(sized.price_usd_per_hour for sized in found)
    if usd <= sum(sized.price_usd_per_hour for sized in kinds):
        yield f"Even if{slow.removeprefix('If')}, the plan keeps the promise."
        return
    counts = " and ".join(f"{sized.replica_count} in {pool.name}" for pool, sized in zip(pools, found, strict=True))
    yield f"{slow}, {counts} keep the promise, for ${usd:.2f}/h."


def purchase(pools: Sequence[PlannedPool]) -> Purchase | None:
    """How to buy every pool, line by line; ``None`` where one of them cannot say."""
    known = [pool.plan.purchase for pool in pools if of_one_kind(pool).beside is None]
    found = [each for each in known if each is not None]
    if len(found) < len(known):
        return None
    names = dict.fromkeys(line.name for each in found for line in each.lines)
    shares = [each.commit_from_fraction for each in found]
    return Purchase(
        hour_count=min(each.hour_count for each in found),
        described=all(each.described for each in found),
        lines=tuple(_line(name, found) for name in names),
        total_usd_per_hour=sum(each.total_usd_per_hour for each in found),
        all_on_demand_usd_per_hour=sum(each.all_on_demand_usd_per_hour for each in found),
        committed_gpu_count=sum(each.committed_gpu_count for each in found),
        # A gpu that is needed for the largest of these shares is worth a commitment in every pool.
        commit_from_fraction=None if None in shares else max(share for share in shares if share is not None),
        unknown_terms=tuple(dict.fromkeys(term for each in found for term in _unknown_of(each, found))),
        terms=tuple(dict.fromkeys(term for each in found for term in each.terms)),
        dearer_terms=tuple(dict.fromkeys(term for each in found for term in each.dearer_terms)),
        spot_promised=tuple(dict.fromkeys(name for each in found for name in each.spot_promised)),
    )


def _unknown_of(bought: Purchase, every: Sequence[Purchase]) -> Iterator[str]:
    """Terms of a pool without a price, with its gpu where the pools have gpus of several models."""
    gpus = dict.fromkeys(each.gpu for one in every for each in one.terms)
    own = dict.fromkeys(each.gpu for each in bought.terms)
    for term in bought.unknown_terms:
        yield f"{term} of {' and '.join(own)}" if len(gpus) > 1 else term


def purchase_missing(pools: Sequence[PlannedPool]) -> str:
    """Why not every pool says how to buy it; empty where all do."""
    missing = dict.fromkeys(pool.plan.purchase_missing for pool in pools if pool.plan.purchase is None)
    return " ".join(each for each in missing if each)


def _line(name: str, purchases: Sequence[Purchase]) -> PurchaseLine:
    lines = [line for each in purchases for line in each.lines if line.name == name]
    return PurchaseLine(
        name=name,
        mean_gpu_count=sum(line.mean_gpu_count for line in lines),
        usd_per_hour=sum(line.usd_per_hour for line in lines),
    )


def with_pools(
    points: Sequence[FrontierPoint], pools: Sequence[PlannedPool], verdict: Verdict
) -> tuple[FrontierPoint, ...]:
    """The fleets of one pool in the plane of price against latency, and these pools among them."""
    kinds = [of_one_kind(pool) for pool in pools]
    mine = frontier_point(kinds, tuple(pool.name for pool in pools), verdict)
    return marked([*points, mine])


def anomalies(pools: Sequence[PlannedPool]) -> Iterator[str]:
    """Where more replicas did worse than fewer, and in which pool."""
    for pool in pools:
        yield from (f"{pool.name}: {each}" for each in pool.plan.anomalies)
