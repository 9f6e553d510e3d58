"""``tiers``: what a stricter promise to some costs, on replicas of their own or at the front of the queue."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Final

import numpy as np

from tokenfleet import planner
from tokenfleet.app.compose import Teller, compose
from tokenfleet.app.fleet_notes import one_fleet_note
from tokenfleet.app.quantities import shown_usd
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.scenario_words import Fraction, Strict
from tokenfleet.app.slo_types import SloSpec
from tokenfleet.app.slo_words import spoken, value_of_limit
from tokenfleet.app.summary import Block, replica_name
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.plan import Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.slo import SloResult
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
    pools: str = ""
    """What the pools that the scenario asks to try would cost, where that is less than the usual fleet."""


def tiers(scenario: Scenario, options: TierOptions, teller: Teller) -> Tiers:
    """Plans the scenario, then the four ways to serve a premium tier on the same kind of replica.

    Raises:
        BadInput: as for a plan; tenants that the demand does not name.
    """
    from tokenfleet import simulator

    composition = compose(scenario, teller)
    premium = _premium(composition.trace, options, scenario.seed)
    simulator.warm_up(announce=teller.announce)
    made = planner.cheapest(composition.question, composition.trace, progress=teller.step)
    share = float(premium.mean())
    if made.sized is None:
        return Tiers(usual=None, why_not=tuple(r.text for r in made.reasons), premium_fraction=share, options=())
    found = planner.tiers(
        composition.question,
        composition.trace,
        made.sized,
        premium,
        options.promise.targets(),
        progress=teller.step,
    )
    pools = one_fleet_note(composition, made.sized, teller)
    return Tiers(usual=made.sized, why_not=(), premium_fraction=share, options=found, pools=pools)


def promise_of(written: tuple[str, ...]) -> Mapping[str, str]:
    """``ttft_p99=500ms`` as key and value."""
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
        "usual_replica_count": None if found.usual is None else found.usual.replica_count,
        "usual_usd_per_hour": None if found.usual is None else found.usual.price_usd_per_hour,
        "why_not": list(found.why_not),
        "pools_note": found.pools or None,
        "options": [asdict(option) for option in found.options],
    }


def tiers_blocks(found: Tiers) -> list[Block]:
    """For a person: the usual fleet, then the four ways, the cheapest first."""
    if found.usual is None:
        return [("Answer", ["no fleet keeps the promise to everybody", *found.why_not])]
    usual = found.usual
    count = "1 replica" if usual.replica_count == 1 else f"{usual.replica_count} replicas"
    fleet = f"{count} of {replica_name(usual)}, {shown_usd(usual.price_usd_per_hour)}/h, one promise to all"
    blocks: list[Block] = [
        ("Usual", [fleet, *([found.pools] if found.pools else [])]),
        ("Premium", [f"{found.premium_fraction:.1%} of the requests"]),
    ]
    ranked = sorted(found.options, key=lambda option: option.usd_per_hour or float("inf"))
    blocks += [(_price(option), list(_lines(option))) for option in ranked]
    return blocks


def _price(option: planner.TierOption) -> str:
    return "-" if option.usd_per_hour is None else f"{shown_usd(option.usd_per_hour)}"


def _lines(option: planner.TierOption) -> Iterator[str]:
    count = (
        "no number tried keeps both promises" if option.replica_count is None else f"{option.replica_count} replicas"
    )
    yield f"{option.name}: {_TITLES[option.name]}; {count}"
    if option.premium:
        yield f"premium: {', '.join(_clause(each) for each in option.premium)}"
    if option.others and option.name != "alike":
        yield f"others: {', '.join(_clause(each) for each in option.others)}"


def _clause(result: SloResult) -> str:
    name, state = spoken(result.name), "" if result.kept else " BROKEN"
    return f"{name} {value_of_limit(result)}{state}"
