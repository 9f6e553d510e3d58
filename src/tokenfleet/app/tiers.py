"""``tiers``: what a stricter promise to some costs, on replicas of their own or at the front of the queue."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Final

import numpy as np

from tokenfleet import planner
from tokenfleet.app.bought import bought
from tokenfleet.app.compose import Teller, compose, demand_of
from tokenfleet.app.named_bought import buy_named
from tokenfleet.app.quantities import shown_duration, shown_usd
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.scenario_words import Fraction, Strict
from tokenfleet.app.slo_types import SloSpec
from tokenfleet.app.slo_words import spoken, value_of_limit
from tokenfleet.app.summary import Block, replica_name
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.plan import Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.slo import Slo, SloResult
from tokenfleet.domain.trace import Bools, Trace

_TITLES: Final = {
    "own": "replicas of its own, with spare ones of its own",
    "priority": "shared replicas whose engine serves it first",
    "shared": "shared replicas, first come first served",
    "alike": "the stricter promise to everybody",
}


class TierOptions(Strict):
    """Who is premium, and what is promised to them."""

    premium: tuple[str, ...] = ()
    share: Fraction | None = None
    promise: SloSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """What each way costs."""

    usual: Sized | None
    """The fleet with one promise to all."""
    why_not: tuple[str, ...]
    premium_fraction: float
    options: tuple[planner.TierOption, ...]
    usual_pools: Mapping[str, Sized] = field(default_factory=dict)
    """By name: those of the scenario, or of a plan, where they cost less than one fleet. Then ``usual`` is ``None``."""
    pools: tuple[planner.PoolTiers, ...] = ()
    """What each way takes of each of them, or of several together; ``options`` are their sums."""

    @property
    def fleets(self) -> tuple[Sized, ...]:
        """What is planned for everybody; empty where nothing keeps that promise."""
        if self.usual_pools:
            return tuple(self.usual_pools.values())
        return () if self.usual is None else (self.usual,)


def tiers(scenario: Scenario, options: TierOptions, teller: Teller, replay: planner.Replay | None = None) -> Tiers:
    """Plans the scenario, then the four ways to serve a premium tier on the same kinds of replicas.

    Raises:
        BadInput: as for a plan; tenants that the demand does not name.
    """
    from tokenfleet import simulator

    if scenario.pools is not None:
        return _of_named(scenario, options, teller, replay or simulator.replay)
    composition = compose(scenario, teller)
    premium = _premium(composition.trace, options, scenario.seed)
    simulator.warm_up(announce=teller.announce)
    promise = promised_more(composition.question.slo, options.promise)
    made = bought(composition, teller, replay)
    question, trace, share = composition.question, composition.trace, float(premium.mean())
    if made.pools is not None:
        pools = planner.tiers_of_pools(question, trace, made.pools, premium, promise, progress=teller.step)
        sums = tuple(_sum(ways) for ways in zip(*(pool.options for pool in pools), strict=True))
        bought_for_all = {pool.name: sized for pool in made.pools.pools for sized in pool.plan.fleets}
        return Tiers(
            usual=None, why_not=(), premium_fraction=share, options=sums, usual_pools=bought_for_all, pools=pools
        )
    if made.sized is None or made.fleet is None:
        return Tiers(usual=None, why_not=made.why_not, premium_fraction=share, options=())
    asked = replace(question, router=made.fleet.router)
    found = planner.tiers(asked, trace, made.sized, premium, promise, progress=teller.step)
    return Tiers(usual=made.sized, why_not=(), premium_fraction=share, options=found)


def _of_named(scenario: Scenario, options: TierOptions, teller: Teller, replay: planner.Replay) -> Tiers:
    """The same of pools that the scenario names: the counts of all of them are sought together."""
    _refuse_offline(scenario)
    teller.say("reading the demand" if scenario.workload.trace else "drawing the demand")
    demand = demand_of(scenario)
    premium = _premium(demand[0], options, scenario.seed)
    promise = promised_more(scenario.slo.targets(), options.promise)
    made = buy_named(scenario, teller, replay, demand)
    share = float(premium.mean())
    if made.system is None:
        why_not = tuple(reason.text for reason in made.reasons)
        return Tiers(usual=None, why_not=why_not, premium_fraction=share, options=())
    found = planner.tiers_of_system(made.question, demand[0], made.system, premium, promise, progress=teller.step)
    if any(each.cap_fraction is not None for each in made.found.trials.system.named):
        note = "utilization_cap was not asked for with both tiers"
        found = replace(found, options=tuple(replace(each, notes=(*each.notes, note)) for each in found.options))
    return Tiers(
        usual=None,
        why_not=(),
        premium_fraction=share,
        options=tuple(_sum([option]) for option in found.options),
        usual_pools={part.name: part.sized for part in made.system.parts},
        pools=(found,),
    )


def promised_more(usual: Slo, more: SloSpec) -> Slo:
    """What the premium tier is promised: all that everybody is, and the stricter limits that it is given.

    Args:
        usual: The promise to everybody.
        more: To the premium tier, in place of the same clauses of the usual one.

    Raises:
        BadInput: a limit that is looser than the one for everybody.
    """
    error_rate = more.error_rate if "error_rate" in more.model_fields_set else usual.error_rate_fraction
    asked = more.model_copy(update={"error_rate": error_rate}).targets()
    new = {each.name: each.limit_s for each in asked.latency}
    old = {each.name: each.limit_s for each in usual.latency}
    looser = [
        Problem(
            f"--promise {name}",
            f"{shown_duration(new[name])} is looser than the {shown_duration(old[name])} promised to everybody",
            "write a stricter limit, or leave it out",
        )
        for name in new
        if name in old and new[name] > old[name]
    ]
    looser += [
        Problem(
            f"--promise {rate.kind}",
            f"{100.0 * rate.limit_fraction:g}% is looser than the {100.0 * before.limit_fraction:g}% for everybody",
            "write a stricter limit, or leave it out",
        )
        for rate in asked.rates
        for before in usual.rates
        if rate.name == before.name and rate.limit_fraction > before.limit_fraction
    ]
    if looser:
        raise BadInput(looser)
    refused = (usual.rejection_rate_fraction, asked.rejection_rate_fraction)
    waiting = (usual.queue_limit_count, asked.queue_limit_count)
    return replace(
        usual,
        latency=tuple({each.name: each for each in (*usual.latency, *asked.latency)}.values()),
        error_rate_fraction=error_rate,
        rejection_rate_fraction=min((each for each in refused if each is not None), default=None),
        queue_limit_count=min((each for each in waiting if each is not None), default=None),
        deadlines=tuple({each.name: each for each in (*usual.deadlines, *asked.deadlines)}.values()),
    )


def _refuse_offline(scenario: Scenario) -> None:
    """Offline work has a place in the queue, or a time, of its own."""
    what, mend = "is offline work, and tiers are of requests that somebody waits for", "leave it out"
    problems = [] if scenario.batch is None else [Problem("batch", what, mend)]
    specs = (scenario.pools or {}).items()
    problems += [Problem(f"pools.{name}.window", what, mend) for name, spec in specs if spec.window is not None]
    if problems:
        raise BadInput(problems)


def _sum(ways: Sequence[planner.TierOption]) -> planner.TierOption:
    """One way in all pools; what each tier has is said of each pool."""
    counts, usd = [each.replica_count for each in ways], [each.usd_per_hour for each in ways]
    return planner.TierOption(
        name=ways[0].name,
        replica_count=None if None in counts else sum(count or 0 for count in counts),
        usd_per_hour=None if None in usd else sum(each or 0.0 for each in usd),
        premium=(),
        others=(),
    )


def promise_of(written: tuple[str, ...]) -> Mapping[str, str]:
    """``ttft_p99=500ms`` as key and value.

    Raises:
        BadInput: one has no ``=``.
    """
    for each in written:
        if "=" not in each:
            key, _, value = each.partition(":")
            example = f"{key.strip()}={value.strip()}" if value else "ttft_p99=500ms"
            raise BadInput.at("--promise", f'"{each}" is no key with a limit', f"write {example}")
    return {key.strip(): value.strip() for key, _, value in (each.partition("=") for each in written)}


def _premium(trace: Trace, options: TierOptions, seed: int) -> Bools:
    if (options.share is None) == (not options.premium):
        raise BadInput.at("--premium", "who is premium is said twice or not at all", "give --premium or --share")
    if options.share is not None:
        drawn = np.random.default_rng(seed).uniform(size=trace.request_count)
        return np.asarray(drawn < options.share)
    if trace.tenant is None:
        raise BadInput.at("--premium", "the demand names no tenants", "give --share, or a log with a tenant column")
    strangers = [name for name in options.premium if name not in trace.tenants]
    if strangers:
        known = ", ".join(trace.tenants[:6])
        raise BadInput.at("--premium", f"no tenant is called {strangers[0]}", f"tenants: {known}")
    return np.isin(trace.tenant, [trace.tenants.index(name) for name in options.premium])


def tiers_document(found: Tiers) -> dict[str, object]:
    """For machines."""
    return {
        "premium_fraction": found.premium_fraction,
        "usual_replica_count": sum(sized.replica_count for sized in found.fleets) or None,
        "usual_usd_per_hour": sum(sized.price_usd_per_hour for sized in found.fleets) or None,
        "why_not": list(found.why_not),
        "pools": [asdict(pool) for pool in found.pools],
        "options": [asdict(option) for option in found.options],
    }


def tiers_blocks(found: Tiers) -> list[Block]:
    """For a person: the usual fleet, then the four ways, the cheapest first."""
    if not found.fleets:
        return [("Answer", ["no fleet keeps the promise to everybody", *found.why_not])]
    blocks: list[Block] = [
        ("Usual", list(_usual(found))),
        ("Premium", [f"{found.premium_fraction:.1%} of the requests", *_shares(found.pools)]),
    ]
    ranked = sorted(found.options, key=lambda option: option.usd_per_hour or float("inf"))
    blocks += [(_price(option), list(_lines(option, found.pools))) for option in ranked]
    return blocks


def _usual(found: Tiers) -> Iterator[str]:
    names = [f"{name}: " for name in found.usual_pools] or [""]
    for name, sized in zip(names, found.fleets, strict=True):
        price = f"beside {sized.beside}" if sized.beside else f"{shown_usd(sized.price_usd_per_hour)}/h"
        yield f"{name}{_replicas(sized.replica_count)} of {replica_name(sized)}, {price}, one promise to all"


def _shares(pools: Sequence[planner.PoolTiers]) -> list[str]:
    """Of the requests of each pool, where these are not all."""
    if len(pools) < 2:
        return []
    return [f"{pool.premium_fraction:.1%} of those of {' and '.join(pool.pools)}" for pool in pools]


def _replicas(count: int) -> str:
    return "1 replica" if count == 1 else f"{count} replicas"


def _price(option: planner.TierOption) -> str:
    return "-" if option.usd_per_hour is None else f"{shown_usd(option.usd_per_hour)}"


def _lines(option: planner.TierOption, pools: Sequence[planner.PoolTiers]) -> Iterator[str]:
    mine = [each for pool in pools for each in pool.options if each.name == option.name]
    yield f"{option.name}: {_TITLES[option.name]}; {_count(option, mine)}"
    yield from _kept(option)
    yield from option.notes
    for pool in pools:
        own = next(each for each in pool.options if each.name == option.name)
        counts = own.pool_replica_count
        said = f" ({' and '.join(map(str, counts))})" if counts else ""
        yield f"{' and '.join(pool.pools)}: {_count(own)}{said}"
        yield from _kept(own)
        yield from own.notes


def _count(option: planner.TierOption, pools: Sequence[planner.TierOption] = ()) -> str:
    """Of all pools, or of one way alone."""
    if option.replica_count is not None:
        return _replicas(option.replica_count)
    judged = [result for each in (option, *pools) for result in (*each.premium, *each.others)]
    kept = bool(judged) and all(result.kept or not result.sample_count for result in judged)
    return "no room for what keeps both promises" if kept else "no number tried keeps both promises"


def _kept(option: planner.TierOption) -> Iterator[str]:
    if option.premium:
        yield f"premium: {', '.join(_clause(each) for each in option.premium)}"
    if option.others and option.name != "alike":
        yield f"others: {', '.join(_clause(each) for each in option.others)}"


def _clause(result: SloResult) -> str:
    name, state = spoken(result.name), "" if result.kept else " BROKEN"
    return f"{name} {value_of_limit(result)}{state}"
