"""How many replicas each pool of a scenario needs: the cheapest counts that keep the promise, by replay."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Final

from tokenfleet import catalog, planner, simulator, workload
from tokenfleet.app.alternatives import users_are_known
from tokenfleet.app.compose import Teller, demand_of, gpu_prices
from tokenfleet.app.demand_words import about_demand
from tokenfleet.app.lately import Lately
from tokenfleet.app.pool_settings import setting_notes, with_fewer, with_smaller_steps
from tokenfleet.app.pool_trials import Capped, Counts, Tally, Trials, cap_notes, caps_of, of_count
from tokenfleet.app.pooled_words import waiting
from tokenfleet.app.pools_fleet import NamedPool
from tokenfleet.app.pools_question import PoolSystem, pool_system
from tokenfleet.app.pools_run import stage_words
from tokenfleet.app.provenance import resolved_scenario
from tokenfleet.app.quantities import shown_usd
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.simulate_document import group_document
from tokenfleet.app.simulate_run import Window
from tokenfleet.app.simulate_words import fleet_name, promise_lines
from tokenfleet.app.spot import refuse_spot_for_online
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.gpu import GpuPrice
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.slo import SloResult
from tokenfleet.domain.survival import Redundancy
from tokenfleet.domain.trace import Trace, Workload
from tokenfleet.planner.housing import Lodger, no_room, rooms_for

Block = tuple[str, Sequence[str]]
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
    def gpu_count(self) -> int:
        """GPUs of its own; those it shares count where they belong."""
        return 0 if self.named.beside is not None else self.named.fleet.gpu_count

    @property
    def price_usd_per_hour(self) -> float | None:
        """What the pool costs for one hour."""
        return None if self.price is None else self.gpu_count * self.price.price_usd_per_gpu_hour


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


def refuse_unsizable(asked: Scenario) -> None:
    """Only counts that stay as they are can be sized, for requests that come whatever becomes of others.

    Raises:
        BadInput: pools are scaled or struck, requests wait for answers, or a loss is to be ridden through.
    """
    scaled = [f"pools.{name}" for name, pool in (asked.pools or {}).items() if pool.is_scaled]
    if scaled or asked.events:
        where = scaled[0] if scaled else "events"
        raise BadInput.at(where, "changes how many replicas run", "leave it out: fixed counts are sized")
    if asked.users is not None:
        what = "wait for answers before they ask again, so that they never come too fast"
        raise BadInput.at("users", what, "leave it out: fleets are sized for a rate")
    if asked.losses.ride_through:
        what = "is not sought for pools that are named"
        raise BadInput.at("redundancy.ride_through", what, "leave it out: the plan says what each loss does")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The cheapest counts of all pools, and what they were found on."""

    described: Workload
    trials: Trials
    """Pools with the settings that were chosen."""
    counts: Counts | None
    """``None`` where none up to the largest tried keep the promise."""
    prices: tuple[GpuPrice | None, ...]
    """Of each pool; ``None``: nobody's is known."""
    stages: str
    assumptions: tuple[str, ...]
    resolved: dict[str, object]

    @property
    def judged(self) -> tuple[tuple[SloResult, ...], tuple[SloResult, ...]]:
        """The promise at the peak and over the whole run; of the largest counts where none keep it."""
        return self.trials.judged(self.counts or self.trials.largest)


def count_pools(
    asked: Scenario,
    teller: Teller,
    replay: planner.Replay | None = None,
    demand: tuple[Trace, Workload] | None = None,
) -> Counted:
    """Find the cheapest counts of all pools that keep the promise, without any spare replicas.

    Args:
        asked: A scenario with ``pools``; the replicas it names are where the search starts.
        teller: Told what is being done.
        replay: Runs the replay of one pool instead of the simulator.
        demand: The demand and its profile; the scenario's own when ``None``.

    Raises:
        BadInput: the demand cannot be read or drawn, the pools do not serve it, users are of nobody in it, or online
            traffic would be on spot.
    """
    refuse_spot_for_online(asked)
    if demand is None:
        teller.say("reading the demand" if asked.workload.trace else "drawing the demand")
        demand = demand_of(asked, planner.recall_of(replay))
    text, described = demand
    users_are_known(asked.compare, text)
    system = pool_system(asked, text)
    simulator.warm_up(announce=teller.announce)
    run = replay or Lately(simulator.replay)
    trials = Trials(asked, text, workload.peak_window(system.trace), Tally(), run)
    start = tuple(named.fleet.groups[0].replica_count for named in system.named)
    prices = tuple(_price(asked, named) for named in system.named)
    teller.say("replaying pools of every size")
    own = [index for index, named in enumerate(system.named) if named.beside is None]
    weights = _weights(system, prices)
    counts, caps = _cheapest(trials, own, start, weights)
    do_usual = counts is not None
    if counts is not None:
        teller.say("replaying pools with other settings")
        trials, counts = with_fewer(trials, counts, caps)
        counts = trials.tied(counts)
    else:
        found = ((smaller, _cheapest(smaller, own, start, weights)) for smaller in with_smaller_steps(trials))
        trials, (counts, caps) = next((each for each in found if each[1][0] is not None), (trials, (None, caps)))
    settings = tuple(setting_notes(system.named, trials.system.named, do_usual=do_usual))
    return Counted(
        described=described,
        trials=trials,
        counts=counts,
        prices=prices,
        stages=stage_words(system.pools),
        assumptions=(
            *about_demand(asked, system.trace),
            *system.notes,
            *cap_notes(system.named, None if counts is None else caps),
            *settings,
            *planner.zones_without_replicas(asked.losses),
        ),
        resolved=_resolved(asked, system, prices),
    )


def resolved_pools(asked: Scenario, teller: Teller) -> dict[str, object]:
    """What the plan of a scenario with ``pools`` would rest on, without any replay.

    Raises:
        BadInput: the demand cannot be read or drawn, or the pools do not serve it.
    """
    teller.say("reading the demand" if asked.workload.trace else "drawing the demand")
    system = pool_system(asked, demand_of(asked)[0])
    return _resolved(asked, system, [_price(asked, named) for named in system.named])


def _resolved(asked: Scenario, system: PoolSystem, prices: Sequence[GpuPrice | None]) -> dict[str, object]:
    model = catalog.model(asked.model)
    others = {each.model.name: each.model for each in system.named if each.model.name != model.name}
    gpus = tuple(catalog.gpu(name) for name in dict.fromkeys(each.replica.deployment.gpu for each in system.named))
    known = tuple(price for price in prices if price is not None)
    return resolved_scenario(
        asked, model=model, gpus=gpus, prices=known, trace=system.trace, beside=tuple(others.values())
    )


def size_pools(asked: Scenario, teller: Teller) -> PoolSizes:
    """The counts of :func:`count_pools` with the spare replicas of every pool, and how full each will be."""
    found = count_pools(asked, teller)
    # Without an answer the largest counts say what stands in the way.
    peak, whole = found.judged
    return PoolSizes(
        name=asked.name,
        stages=found.stages,
        pools=() if found.counts is None else _sized(found, found.counts, asked.losses),
        peak_window_s=found.trials.window_s,
        peak=peak,
        whole=whole,
        replayed_count=found.trials.tally.replayed_count,
        assumptions=found.assumptions,
        resolved=found.resolved,
    )


def _cheapest(
    trials: Trials, own: Sequence[int], start: Counts, weights: Sequence[float]
) -> tuple[Counts | None, dict[int, Capped]]:
    """The cheapest counts of pools with GPUs of their own, those beside others follow them; and what caps ask for."""
    caps = {cap.index: cap for cap in caps_of(trials, start, _CAP_FACTOR)}

    def all_of(counts: Counts) -> Counts:
        known = dict(zip(own, counts, strict=True))
        return trials.tied(tuple(known.get(index, 1) for index in range(len(start))))

    counts = planner.cheapest_counts(
        lambda some: trials.enough(all_of(some)),
        tuple(start[index] for index in own),
        tuple(weights[index] for index in own),
        cap_factor=_CAP_FACTOR,
        floor=tuple(caps[index].least_count(start) if index in caps else 1 for index in own),
    )
    return None if counts is None else all_of(counts), caps


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


def _sized(found: Counted, counts: Counts, losses: Redundancy) -> tuple[SizedPool, ...]:
    trials = found.trials
    run, system = trials.run(counts), trials.system
    spare = _spare(system.named, counts, _weights(system, found.prices), losses)
    return tuple(
        SizedPool(
            named=replace(named, fleet=of_count(named.fleet, count + spare[named.name])),
            carrying_count=count,
            spare_count=spare[named.name],
            price=price,
            windowed=named.behind in system.windows,
            # What one of several engines on a GPU could do alone says nothing.
            filled=None
            if named.fleet.groups[0].berth is not None
            else planner.filled(
                run.pools[named.name].trace,
                of_count(named.fleet, count + spare[named.name]),
                simulator.replay,
                carrying_count=count,
                window_s=trials.window_s,
            ),
        )
        for named, count, price in zip(system.named, counts, found.prices, strict=True)
    )


def _spare(pools: Sequence[NamedPool], counts: Counts, weights: Sequence[float], losses: Redundancy) -> dict[str, int]:
    """Spare replicas of every pool by its name; a pool beside another has those of the other.

    Raises:
        BadInput: no number of replicas survives what may be lost, or the zones have no room for all pools.
    """
    own = [
        (named.name, count, Lodger(replica=named.replica, left_count=count, usd_per_hour=usd))
        for named, count, usd in zip(pools, counts, weights, strict=True)
        if named.beside is None
    ]
    lodgers = [lodger for _, _, lodger in own]
    rooms = rooms_for(lodgers, losses)
    if rooms is None:
        raise _no_room(pools, lodgers, losses)
    found = {name: room.count - count for (name, count, _), room in zip(own, rooms, strict=True)}
    return found | {named.name: found[named.beside] for named in pools if named.beside is not None}


def _no_room(pools: Sequence[NamedPool], lodgers: Sequence[Lodger], losses: Redundancy) -> BadInput:
    """Where in the scenario the room ends, and what would do."""
    short = planner.too_few_zones(losses)
    if short is not None:
        return BadInput.at("zones", short.text.rstrip("."), short.relax)
    why, mend = no_room(lodgers, losses)
    where = "gpu_quota" if mend.startswith("gpu_quota") else "zones"
    who = "the pools have" if len(pools) > 1 else f"{pools[0].name} has"
    return BadInput.at(where, f"{who} no room: {why}", f"{mend}, or less redundancy")


# ---- faces


def sizes_document(found: PoolSizes) -> dict[str, object]:
    """Everything that was found, ready for JSON; ``null`` is unknown, never 0."""
    return {
        "name": found.name,
        "feasible": bool(found.pools),
        "stages": found.stages,
        "pools": [_pool(pool) for pool in found.pools],
        "gpu_count": sum(pool.gpu_count for pool in found.pools) if found.pools else None,
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
        "beside": pool.named.beside,
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
    gpus = sum(pool.gpu_count for pool in found.pools)
    cost = "no price is known for all of it" if total is None else f"{shown_usd(total)}/h"
    full = list(fullness(found.pools))
    return [
        ("Way", [found.stages]),
        ("Size", [*(_line(pool) for pool in found.pools), f"{gpus} GPUs in all, {cost}"]),
        *([("Full", full)] if full else []),
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
        peak = f"{how.peak_fraction:.0%} at the peak{waiting(how.peak_to_saturated_ratio)}"
        yield f"{name}: {peak}, {how.mean_fraction:.0%} on average{spare}{capped}"
    if len(known) > 1:
        emptiest, fullest = (pick(known, key=lambda one: one[1].peak_fraction)[0] for pick in (min, max))
        yield (
            f"of what each could do with a queue that never empties; {emptiest.named.name} comes out lower than "
            f"{fullest.named.name}: {_why_lower(emptiest, fullest)}"
        )


def _why_lower(emptiest: SizedPool, fullest: SizedPool) -> str:
    if fullest.windowed and not emptiest.windowed:
        return "somebody waits for the one, who needs a replica that is free; the work of the other can wait"
    if emptiest.carrying_count == 1:
        return "replicas come whole, and one is the fewest there are"
    if emptiest.spare_count and emptiest.carrying_count < fullest.carrying_count:
        return "a spare replica and a whole one weigh more in a small pool"
    return "its part of the promise needs replicas that are free when somebody comes"


def _line(pool: SizedPool) -> str:
    group = pool.named.fleet.groups[0]
    spare = f", {pool.spare_count} of them spare" if pool.spare_count else ""
    usd = pool.price_usd_per_hour
    cost = "price unknown" if usd is None else f"{shown_usd(usd)}/h"
    if pool.named.beside is not None:
        cost = f"on the GPUs of {pool.named.beside}"
    return f"{pool.named.name} {pool.named.does}: {pool.named.model.name} on {fleet_name(group)}{spare}, {cost}"
