"""How many replicas each pool of a scenario needs: the cheapest counts that keep the promise, by replay."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from tokenfleet import catalog, planner, simulator, workload
from tokenfleet.app.compose import Teller, demand_of, gpu_prices, steps_are_free
from tokenfleet.app.demand_words import about_demand
from tokenfleet.app.pools_doors import without_gates
from tokenfleet.app.pools_fleet import NamedPool
from tokenfleet.app.pools_question import PoolSystem, pool_system
from tokenfleet.app.pools_run import judged, stage_words
from tokenfleet.app.provenance import resolved_scenario
from tokenfleet.app.quantities import shown_usd
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.simulate_document import group_document
from tokenfleet.app.simulate_run import Window
from tokenfleet.app.simulate_words import fleet_name, promise_lines
from tokenfleet.app.spot import refuse_spot_for_online
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.gpu import GpuPrice
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.slo import Slo, SloResult
from tokenfleet.domain.stages import Pools, StagedRun
from tokenfleet.domain.trace import Trace

Block = tuple[str, Sequence[str]]
Counts = tuple[int, ...]
_CAP_FACTOR: Final = 64
"""Pools are given up to so many times the replicas that the scenario names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedPool:
    """One pool with its count."""

    named: NamedPool
    """With carrying and spare replicas."""
    carrying_count: int
    spare_count: int
    price: GpuPrice | None
    """``None``: nobody's price is known."""
    windowed: bool
    """Its requests wait for a daily window."""
    filled: planner.Filled | None
    """How full it is; ``None`` where it is asked too little to say."""

    @property
    def price_usd_per_hour(self) -> float | None:
        """What the pool costs for one hour."""
        return None if self.price is None else self.named.fleet.gpu_count * self.price.price_usd_per_gpu_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSizes:
    """The answer; without pools when no counts keep the promise."""

    name: str
    stages: str
    pools: tuple[SizedPool, ...]
    peak_window_s: Window
    peak: tuple[SloResult, ...]
    """With the spare replicas of every pool gone; of the largest counts tried when there is no answer."""
    whole: tuple[SloResult, ...]
    replayed_count: int
    assumptions: tuple[str, ...]
    resolved: dict[str, object]

    @property
    def price_usd_per_hour(self) -> float | None:
        """What all pools cost for one hour; ``None`` when the price of one is not known, or without an answer."""
        prices = [pool.price_usd_per_hour for pool in self.pools]
        known = [price for price in prices if price is not None]
        return sum(known) if prices and len(known) == len(prices) else None


class _Trials:
    """Counts of every pool, replayed once each."""

    def __init__(self, system: PoolSystem, slo: Slo, window_s: Window) -> None:
        self.system, self.slo, self.window_s = system, slo, window_s
        self.seen: dict[tuple[int, ...], tuple[tuple[SloResult, ...], tuple[SloResult, ...]]] = {}

    def judged(self, counts: tuple[int, ...]) -> tuple[tuple[SloResult, ...], tuple[SloResult, ...]]:
        """The promise at the peak and over the whole run."""
        if counts not in self.seen:
            run = self.run(counts)
            peak = judged(self.system, run, self.slo, window_s=self.window_s)
            self.seen[counts] = peak, judged(self.system, run, self.slo)
        return self.seen[counts]

    def run(self, counts: tuple[int, ...]) -> StagedRun:
        """Replays pools of so many replicas."""
        pools = with_counts(self.system.pools, self.system.named, counts)
        trace = self.system.trace
        # Gaps are counted class by class along with telemetry: one sample of it is enough.
        interval_s = max(1.0, trace.duration_s) if self.slo.gaps_apart else None
        return simulator.replay_stages(trace, pools, peak_window_s=self.window_s, telemetry_interval_s=interval_s)

    def enough(self, counts: tuple[int, ...]) -> bool:
        """Every clause is kept, over all requests and in the peak window where it has samples."""
        peak, whole = self.judged(counts)
        kept = all(each.kept or each.says_nothing for each in whole)
        return kept and all(each.kept or not each.sample_count for each in peak)


def size_pools(asked: Scenario, teller: Teller) -> PoolSizes:
    """Find the cheapest counts of all pools that keep the promise with the spare replicas of every pool gone.

    Args:
        asked: A scenario with ``pools``; the replicas it names are where the search starts.
        teller: Told what is being done.

    Raises:
        BadInput: the demand cannot be read or drawn, the pools do not serve it, or online traffic would be on spot.
    """
    refuse_spot_for_online(asked)
    teller.say("reading the demand" if asked.workload.trace else "drawing the demand")
    text, _ = demand_of(asked)
    system = pool_system(asked, text)
    # Sizes keep the promise with nothing given up.
    system = replace(system, pools=without_gates(system.pools))
    simulator.warm_up(announce=teller.announce)
    window_s = workload.peak_window(system.trace)
    trials = _Trials(system, asked.slo.targets(), window_s)
    start = tuple(named.fleet.groups[0].replica_count for named in system.named)
    prices = tuple(_price(asked, named) for named in system.named)
    teller.say("replaying pools of every size")
    floor = _floor(asked, text, system, start, window_s)
    weights = _weights(system, prices)
    counts = planner.cheapest_counts(trials.enough, start, weights, cap_factor=_CAP_FACTOR, floor=floor)
    replayed_count = len(trials.seen)
    if counts is not None:
        trials, counts, more_count = _with_smaller_steps(asked, trials, counts)
        replayed_count, system = replayed_count + more_count, trials.system
    # Without an answer the largest counts say what stands in the way.
    peak, whole = trials.judged(counts or max(trials.seen, key=sum))
    model = catalog.model(asked.model)
    gpus = tuple(catalog.gpu(name) for name in dict.fromkeys(each.replica.deployment.gpu for each in system.named))
    known = tuple(price for price in prices if price is not None)
    return PoolSizes(
        name=asked.name,
        stages=stage_words(system.pools),
        pools=() if counts is None else _sized(system, trials, counts, asked.spare_replica_count, prices),
        peak_window_s=window_s,
        peak=peak,
        whole=whole,
        replayed_count=replayed_count,
        assumptions=(*about_demand(asked.workload, asked.seed, system.trace), *system.notes),
        resolved=resolved_scenario(asked, model=model, gpus=gpus, prices=known, trace=system.trace),
    )


def _with_smaller_steps(asked: Scenario, trials: _Trials, counts: Counts) -> tuple[_Trials, Counts, int]:
    """Smaller steps for the pools whose size of step nobody fixed, where they let fewer replicas do.

    Every running request waits while a step computes somebody's prompt, so smaller steps keep a promise of ITL or TPOT
    with fewer replicas now and then. A pool with a cap of its own keeps the engine's steps.

    Returns:
        The trials of the pools chosen, their counts, and how many counts were replayed on the way.
    """
    replayed_count = 0
    for index, named in enumerate(trials.system.named):
        spec = (asked.pools or {}).get(named.behind)
        fixed = spec is None or spec.max_batched_tokens is not None or not steps_are_free(asked)
        if fixed or named.does != "answers" or named.cap_fraction is not None:
            continue
        for replica in planner.smaller_steps(named.model, named.replica, trials.slo):
            other = _Trials(_with_replica(trials.system, index, named, replica), trials.slo, trials.window_s)
            fewer = _fewest(other, counts, index)
            replayed_count += len(other.seen)
            if fewer < counts[index]:
                trials, counts = other, (*counts[:index], fewer, *counts[index + 1 :])
    return trials, counts, replayed_count


def _fewest(trials: _Trials, counts: Counts, index: int) -> int:
    """The fewest replicas of one pool, the others as they are; as many as now where one fewer is not enough."""
    most = counts[index] - 1

    def enough(count: int) -> bool:
        return trials.enough((*counts[:index], count, *counts[index + 1 :]))

    if most < 1 or not enough(most):
        return counts[index]
    return planner.smallest_enough(enough, most, most) or counts[index]


def _with_replica(system: PoolSystem, index: int, named: NamedPool, replica: ReplicaPhysics) -> PoolSystem:
    """The same pools, one of them of another kind of replica than ``named`` has."""
    usual = named.replica.deployment.engine.max_batched_tokens
    groups = tuple(replace(group, replica=replica) for group in named.fleet.groups)
    changed = replace(named, fleet=replace(named.fleet, groups=groups))
    start = f"The pool {named.name} "
    note = (
        f"{start}takes steps of {replica.deployment.engine.max_batched_tokens:,} tokens (by default {usual:,}): fewer "
        "replicas keep the promise with them."
    )
    return replace(
        system,
        named=(*system.named[:index], changed, *system.named[index + 1 :]),
        notes=(*(text for text in system.notes if not text.startswith(f"{start}takes steps")), note),
    )


def _floor(asked: Scenario, text: Trace, system: PoolSystem, start: Counts, window_s: Window) -> Counts:
    """The fewest replicas of each pool that take no more of what they sustain than its cap allows."""
    least = []
    for index, named in enumerate(system.named):
        if named.cap_fraction is None:
            least.append(1)
            continue
        # A pool that sustains so much more than the peak takes as little of it; the others are in nobody's way.
        denser = pool_system(asked, workload.grow(text, 1.0 / named.cap_fraction))
        trials = _Trials(denser, asked.slo.targets(), window_s)
        plenty = planner.plenty_of(trials.enough, start, _CAP_FACTOR)
        least.append(1 if plenty is None else planner.least_count(trials.enough, plenty, start, index))
    return tuple(least)


def with_counts(pools: Pools, named: Sequence[NamedPool], counts: Sequence[int]) -> Pools:
    """The same pools with other numbers of replicas."""
    return replace(
        pools,
        fleets={each.name: _of_count(each.fleet, count) for each, count in zip(named, counts, strict=True)},
    )


def _of_count(fleet: Fleet, count: int) -> Fleet:
    return replace(fleet, groups=tuple(replace(group, replica_count=count) for group in fleet.groups))


def _price(asked: Scenario, named: NamedPool) -> GpuPrice | None:
    gpu = catalog.gpu(named.replica.deployment.gpu)
    found = planner.quote(gpu_prices(gpu, asked), gpu.name)
    return None if found is None else found.price


def _weights(system: PoolSystem, prices: Sequence[GpuPrice | None]) -> tuple[float, ...]:
    """Price of one replica of each pool; where one is not known, gpus are counted instead."""
    gpus = [float(each.replica.deployment.layout.gpu_count) for each in system.named]
    known = [price for price in prices if price is not None]
    if len(known) < len(prices):
        return tuple(gpus)
    return tuple(count * price.price_usd_per_gpu_hour for count, price in zip(gpus, known, strict=True))


def _sized(
    system: PoolSystem, trials: _Trials, counts: Counts, spare_count: int, prices: Sequence[GpuPrice | None]
) -> tuple[SizedPool, ...]:
    run = trials.run(counts)
    return tuple(
        SizedPool(
            named=replace(named, fleet=_of_count(named.fleet, count + spare_count)),
            carrying_count=count,
            spare_count=spare_count,
            price=price,
            windowed=named.behind in system.windows,
            filled=planner.filled(
                run.pools[named.name].trace,
                _of_count(named.fleet, count + spare_count),
                simulator.replay,
                carrying_count=count,
                window_s=trials.window_s,
            ),
        )
        for named, count, price in zip(system.named, counts, prices, strict=True)
    )


# ---- faces


def sizes_document(found: PoolSizes) -> dict[str, object]:
    """Everything that was found, ready for JSON; ``null`` is unknown, never 0."""
    return {
        "name": found.name,
        "feasible": bool(found.pools),
        "stages": found.stages,
        "pools": [_pool(pool) for pool in found.pools],
        "gpu_count": sum(pool.named.fleet.gpu_count for pool in found.pools) if found.pools else None,
        "price_usd_per_hour": found.price_usd_per_hour,
        "peak": {
            "start_s": found.peak_window_s[0],
            "end_s": found.peak_window_s[1],
            "slo": [asdict(result) for result in found.peak],
        },
        "whole": {"slo": [asdict(result) for result in found.whole]},
        "replayed_count": found.replayed_count,
        "assumptions": list(found.assumptions),
        "resolved": found.resolved,
    }


def _pool(pool: SizedPool) -> dict[str, object]:
    return {
        "name": pool.named.name,
        "does": pool.named.does,
        "model": pool.named.model.name,
        "carrying_replica_count": pool.carrying_count,
        "spare_replica_count": pool.spare_count,
        "fleet": [group_document(group) for group in pool.named.fleet.groups],
        "price_usd_per_hour": pool.price_usd_per_hour,
        "utilization_cap_fraction": pool.named.cap_fraction,
        "utilization": None if pool.filled is None else asdict(pool.filled),
    }


def sizes_blocks(found: PoolSizes) -> list[Block]:
    """The blocks a terminal shows."""
    promise = promise_lines(found.peak_window_s, found.peak, found.whole)
    if not found.pools:
        return [
            ("Way", [found.stages]),
            ("Size", ["no counts up to 64 times those of the scenario keep the promise; the largest tried:"]),
            ("Promise", promise),
            ("Assumed", list(found.assumptions)),
        ]
    total = found.price_usd_per_hour
    gpus = sum(pool.named.fleet.gpu_count for pool in found.pools)
    cost = "no price is known for all of it" if total is None else f"{shown_usd(total)}/h"
    return [
        ("Way", [found.stages]),
        ("Size", [*(_line(pool) for pool in found.pools), f"{gpus} GPUs in all, {cost}"]),
        ("Full", list(fullness(found.pools))),
        ("Promise", ["the spare replicas of every pool gone:", *promise]),
        ("Assumed", [*found.assumptions, f"{found.replayed_count} counts were replayed, on the whole demand."]),
    ]


def fullness(pools: Sequence[SizedPool]) -> Iterator[str]:
    """How full each pool is, of what it could do with a queue that never empties, and why some are fuller."""
    known = [(pool, pool.filled) for pool in pools if pool.filled is not None]
    for pool, how in known:
        spare = f", {how.spare_fraction:.0%} of it spare" if pool.spare_count else ""
        cap = pool.named.cap_fraction
        capped = "" if cap is None else f"; at most {cap:.0%} of what it sustains within the promise"
        name = pool.named.name
        yield f"{name}: {how.peak_fraction:.0%} at the peak, {how.mean_fraction:.0%} on average{spare}{capped}"
    if len(known) > 1:
        emptiest, fullest = (pick(known, key=lambda one: one[1].peak_fraction)[0] for pick in (min, max))
        yield (
            f"of what each could do with a queue that never empties; {emptiest.named.name} comes out lower than "
            f"{fullest.named.name}: {_why_lower(emptiest, fullest)}"
        )


def _why_lower(emptiest: SizedPool, fullest: SizedPool) -> str:
    if fullest.windowed and not emptiest.windowed:
        return "somebody waits for the one, who needs a replica that is free; the work of the other can wait"
    if emptiest.spare_count and emptiest.carrying_count < fullest.carrying_count:
        return "a spare replica and a whole one weigh more in a small pool"
    return "its part of the promise needs replicas that are free when somebody comes"


def _line(pool: SizedPool) -> str:
    group = pool.named.fleet.groups[0]
    spare = f", {pool.spare_count} of them spare" if pool.spare_count else ""
    usd = pool.price_usd_per_hour
    cost = "price unknown" if usd is None else f"{shown_usd(usd)}/h"
    return f"{pool.named.name} {pool.named.does}: {pool.named.model.name} on {fleet_name(group)}{spare}, {cost}"
