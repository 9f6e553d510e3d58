"""Ways to spend less, each planned anew for the same promise."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Final, get_args

import numpy as np
from pydantic import Field

from tokenfleet import cost, planner
from tokenfleet.app.compose import Composition, Teller, compose, gpu_prices, sort_out
from tokenfleet.app.scenario_types import Prices, Scenario, SpeculationSpec
from tokenfleet.app.scenario_words import Fraction, ModelName, Strict, Tokens
from tokenfleet.domain.gpu import RESERVED_H, Term
from tokenfleet.domain.plan import PlanQuestion, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.slo import SloResult
from tokenfleet.domain.trace import Bools, Trace, rows_of
from tokenfleet.domain.ways import RouterOfEquals

_CAP_QUANTILE = 0.95
_ROUTER = "router"
RISKS: Final[Mapping[str, str]] = {
    "fp8 weights": "quality on your own tasks",
    "int4 weights": "quality, most of all of long reasoning",
    "fp8 KV cache": "quality at your longest contexts",
    "smaller or distilled model": "answers of the smaller model on your own tasks",
    "routing by tier": "whether the easy requests are those sent there; answers of the smaller model to them",
    "output cap": "whoever asks again costs more than was saved",
    "shorter prompts": "answers with less context; time of the compressor itself",
    "prefix cache": "cache shared by tenants: timing leaks",
    "batching window": "TTFT of long prompts",
    _ROUTER: "prefix affinity: a hot prefix on one replica; routers that look: how old what they see is",
    "speculative decoding": "acceptance on your own text; full batches gain little",
    "reservation, 1y": "paid to its end, whatever comes; see purchase mix for how much to commit",
    "reservation, 3y": "paid to its end, whatever comes; see purchase mix for how much to commit",
}
"""What to check before a lever is pulled, by its name."""


class Options(Strict):
    """What a person wants to try beside the usual."""

    smaller_model: ModelName | None = None
    """Planned for too, where named."""
    output_cap: Tokens | None = None
    """Most output tokens; left out, the 95th percentile of the outputs."""
    prompt_cut: Annotated[Fraction, Field(gt=0.0, lt=1.0)] = 0.3
    """Share of the unshared prompt tokens to cut."""
    acceptance: Fraction | None = None
    """How often a drafted token is kept, where all before it were; left out, nobody knows what speculation would do."""
    draft_tokens: Annotated[Tokens, Field(le=64)] = 3
    """Drafted for each sequence in each step."""
    routed_share: Annotated[Fraction, Field(gt=0.0, lt=1.0)] = 0.5
    """Share of the requests that go to the smaller model, where one is named and the log tells no tiers apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One way to spend less."""

    name: str
    change: str
    risk: str
    """What to check before it is pulled."""
    sized: Sized | None
    """The cheapest fleet with it; ``None`` when none keeps the promise, or when it was not planned."""
    why_not: str = ""
    """Why there is no fleet."""
    beside: Sized | None = None
    """A second fleet that it takes, such as that of a smaller model for some of the requests."""
    pools: planner.PricedPools | None = None
    """Pools that the scenario names; or asks to try, where they cost less than the one fleet."""
    notes: tuple[str, ...] = ()
    """Of named pools: which it leaves as they are, and why."""

    @property
    def fleets(self) -> tuple[Sized, ...]:
        """Every fleet it takes; empty where there is none."""
        if self.pools is not None:
            return self.pools.fleets
        return tuple(each for each in (self.sized, self.beside) if each is not None)

    @property
    def price_usd_per_hour(self) -> float | None:
        """What all of them cost for one hour; ``None`` without any."""
        return sum(each.price_usd_per_hour for each in self.fleets) if self.sized or self.pools else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Levers:
    """All of them, and the fleet without any."""

    base: Sized | None
    why_not: str
    levers: tuple[Lever, ...]
    """The largest saving first, those without a fleet last."""
    base_pools: planner.PricedPools | None = None
    """Pools that the scenario names; or asks to try, where they cost less than ``base``: what every saving is held
    against."""

    @property
    def base_usd_per_hour(self) -> float | None:
        """What the scenario costs for one hour without any lever."""
        if self.base_pools is not None:
            return self.base_pools.price_usd_per_hour
        return None if self.base is None else self.base.price_usd_per_hour

    @property
    def base_slo(self) -> tuple[SloResult, ...]:
        """What its users see, clause by clause: of the pools, where they cost less."""
        if self.base_pools is not None:
            return self.base_pools.slo
        return () if self.base is None else self.base.slo

    def saving_fraction(self, lever: Lever) -> float | None:
        """Share of the bill that it saves; below 0 where it costs more; ``None`` without a fleet on both sides."""
        usd, before = lever.price_usd_per_hour, self.base_usd_per_hour
        return None if before is None or usd is None else 1.0 - usd / before


@dataclass(frozen=True, slots=True)
class _Try:
    name: str
    change: str
    risk: str
    question: PlanQuestion
    trace: Trace
    nothing: str = ""
    """Why there is nothing to plan."""
    beside: tuple[PlanQuestion, Trace] | None = None
    """A second fleet to plan, and its requests."""


def levers(scenario: Scenario, options: Options, teller: Teller, replay: planner.Replay | None = None) -> Levers:
    """Plans a scenario, then again with each lever pulled alone.

    Args:
        scenario: The question without any lever.
        options: What to try.
        teller: Told what is being done.
        replay: Runs replays instead of the simulator, as for a plan.

    Raises:
        BadInput: as for a plan; an unknown smaller model.
    """
    from tokenfleet import simulator

    if scenario.pools is not None:
        from tokenfleet.app.named_levers import named_levers

        return named_levers(scenario, options, teller, replay)
    composition = compose(scenario, teller)
    simulator.warm_up(announce=teller.announce)
    base = _planned(composition.question, composition.trace, teller, replay)
    pools = _pools(composition.question, composition.trace, base.sized, teller, replay)
    found = []
    for each in _tries(scenario, composition, base.sized, options):
        teller.say(f"planning with {each.name}")
        if each.nothing:
            found.append(Lever(name=each.name, change=each.change, risk=each.risk, sized=None, why_not=each.nothing))
            continue
        found.append(_pulled(each, teller, replay))
    found.sort(key=lambda lever: float("inf") if lever.price_usd_per_hour is None else lever.price_usd_per_hour)
    return Levers(base=base.sized, why_not=_why_not(base), levers=tuple(found), base_pools=pools)


def _pulled(each: _Try, teller: Teller, replay: planner.Replay | None) -> Lever:
    made = _planned(each.question, each.trace, teller, replay)
    change = each.change
    if each.name == _ROUTER:
        change = f"router: {made.router}, " + ("as now" if made.router == each.question.router else "the best of all")
    lever = Lever(name=each.name, change=change, risk=each.risk, sized=made.sized, why_not=_why_not(made))
    if each.beside is None:
        return replace(lever, pools=_pools(each.question, each.trace, made.sized, teller, replay))
    if made.sized is None:
        return lever
    second = _planned(*each.beside, teller, replay)
    if second.sized is None:
        return replace(lever, sized=None, why_not=_why_not(second))
    return replace(lever, beside=second.sized)


def _planned(question: PlanQuestion, trace: Trace, teller: Teller, replay: planner.Replay | None) -> planner.Cheapest:
    return planner.cheapest(question, trace, progress=teller.step, replay=replay)


def _pools(
    question: PlanQuestion, trace: Trace, one: Sized | None, teller: Teller, replay: planner.Replay | None
) -> planner.PricedPools | None:
    """Pools that cost less than one fleet, where the scenario asks to try some."""
    return planner.priced_pools(question, trace, one, progress=teller.step, replay=replay)


def _why_not(made: planner.Cheapest) -> str:
    return made.reasons[0].text if made.sized is None and made.reasons else ""


def _tries(scenario: Scenario, composition: Composition, base: Sized | None, options: Options) -> Iterator[_Try]:
    question, trace = composition.question, composition.trace
    yield from _smaller_numbers(scenario, question, trace, base)
    if options.smaller_model is not None:
        yield _other(
            scenario.model_copy(update={"model": options.smaller_model}),
            question,
            trace,
            ("smaller or distilled model", options.smaller_model),
        )
        yield _routed(scenario, question, trace, options.smaller_model, options.routed_share)
    yield _capped(question, trace, options.output_cap)
    yield _shorter_prompts(question, trace, options.prompt_cut)
    yield from _prefix_cache(scenario, question, trace)
    yield from _steps(scenario, question, trace)
    yield _router(scenario, question, trace)
    yield _speculation(scenario, question, trace, options)
    yield from _reservations(scenario, question, trace)


def _other(scenario: Scenario, question: PlanQuestion, trace: Trace, said: tuple[str, str]) -> _Try:
    """The same question with the candidates of another scenario."""
    from tokenfleet import catalog

    model = catalog.model(scenario.model)
    gpus = tuple(catalog.gpu(name) for name in dict.fromkeys(scenario.gpus))
    candidates, rejected = sort_out(model, gpus, scenario)
    asked = replace(question, model=model, candidates=candidates, rejected=rejected)
    name, change = said
    return _Try(name, change, RISKS[name], asked, trace)


def _routed(scenario: Scenario, question: PlanQuestion, trace: Trace, model: str, share: float) -> _Try:
    """Some requests go to the smaller model: the later tiers, or those with the shortest prompts."""
    easy, who = _easy(trace, share)
    name = "routing by tier"
    change = f"{who} ({float(easy.mean()):.0%} of requests) to {model}"
    smaller = _other(scenario.model_copy(update={"model": model}), question, trace, (name, change))
    risk = smaller.risk
    if easy.all() or not easy.any():
        return _Try(name, change, risk, question, trace, "it would take all requests, or none")
    rest, sent = rows_of(trace, ~easy), rows_of(trace, easy)
    beside = planner.question_to(smaller.question, sent), sent
    return _Try(name, change, risk, planner.question_to(question, rest), rest, beside=beside)


def _easy(trace: Trace, share: float) -> tuple[Bools, str]:
    tiers = trace.priority
    if tiers is not None and tiers.min() < tiers.max():
        return np.asarray(tiers > tiers.min()), "every tier but the first"
    limit = int(np.quantile(trace.input_tokens, share))
    return np.asarray(trace.input_tokens <= limit), f"prompts up to {limit:,} tokens"


def _router(scenario: Scenario, question: PlanQuestion, trace: Trace) -> _Try:
    """Another way to find a replica; see :mod:`tokenfleet.planner.routers`."""
    asked = replace(question, routers=tuple(get_args(RouterOfEquals)))
    nothing = "" if set(scenario.also_try.routers) != set(asked.routers) else "the scenario lets the planner choose it"
    return _Try(_ROUTER, "router: any", RISKS[_ROUTER], asked, trace, nothing)


def _speculation(scenario: Scenario, question: PlanQuestion, trace: Trace, options: Options) -> _Try:
    """Tokens drafted and checked in one step, at an acceptance that somebody measured."""
    name = "speculative decoding"
    change, spec, nothing = drafting(scenario, options)
    if spec is None:
        return _Try(name, change, RISKS[name], question, trace, nothing)
    engine = scenario.engine.model_copy(update={"speculation": spec})
    return _other(scenario.model_copy(update={"engine": engine}), question, trace, (name, change))


def drafting(scenario: Scenario, options: Options) -> tuple[str, SpeculationSpec | None, str]:
    """How tokens are drafted, in words and as a setting; or why nobody can plan it."""
    if scenario.engine.speculation is not None or options.acceptance is None:
        known = scenario.engine.speculation is not None
        nothing = "the scenario speculates already" if known else "measure how often a draft is kept: --acceptance 70%"
        return "engine: {speculation: ...}", None, nothing
    # Both values are read already; a share that is a number would be asked for its percent sign.
    spec = SpeculationSpec.model_construct(tokens=options.draft_tokens, acceptance=options.acceptance)
    return f"{options.draft_tokens} tokens drafted a step, {options.acceptance:.0%} of them kept", spec, ""


def _smaller_numbers(scenario: Scenario, question: PlanQuestion, trace: Trace, base: Sized | None) -> Iterator[_Try]:
    deployment = base.replica.deployment if base else None
    if deployment is None or deployment.precision == "bf16":
        fp8 = scenario.model_copy(update={"precision": ["fp8"]})
        yield _other(fp8, question, trace, ("fp8 weights", "precision: fp8"))
    if question.model.quantization is None:
        int4 = scenario.model_copy(update={"precision": ["int4"]})
        yield _other(int4, question, trace, ("int4 weights", "precision: int4"))
    if deployment is None or deployment.kv_precision == "bf16":
        kv = scenario.model_copy(update={"kv_dtype": ["fp8"]})
        yield _other(kv, question, trace, ("fp8 KV cache", "kv_dtype: fp8"))


def _capped(question: PlanQuestion, trace: Trace, cap_tokens: int | None) -> _Try:
    shorter, change, risk = capped_outputs(trace, cap_tokens)
    return _Try("output cap", change, risk, question, shorter)


def capped_outputs(trace: Trace, cap_tokens: int | None) -> tuple[Trace, str, str]:
    """Requests whose answers end at a cap, 95 % of them untouched where none is given; what is done, what to check."""
    cap = cap_tokens or int(np.quantile(trace.output_tokens, _CAP_QUANTILE))
    shorter = replace(trace, output_tokens=np.minimum(trace.output_tokens, cap).astype(np.int32))
    cut = float(np.mean(trace.output_tokens > cap))
    risk = f"{cut:.1%} of the answers are cut; {RISKS['output cap']}"
    return shorter, f"at most {cap:,} output tokens", risk


def _shorter_prompts(question: PlanQuestion, trace: Trace, cut_fraction: float) -> _Try:
    shorter, change = cut_prompts(trace, cut_fraction)
    return _Try("shorter prompts", change, RISKS["shorter prompts"], question, shorter)


def cut_prompts(trace: Trace, cut_fraction: float) -> tuple[Trace, str]:
    """Cuts what no cache serves: a shared beginning costs little, and cut in the middle it is shared no more."""
    shared = np.zeros(trace.request_count, dtype=np.int64)
    if trace.prefix_node is not None and trace.prefixes is not None and len(trace.prefixes.parent):
        depth = trace.prefixes.depth_tokens
        shared = np.where(trace.prefix_node >= 0, depth[np.maximum(trace.prefix_node, 0)], 0).astype(np.int64)
    own = np.maximum(trace.input_tokens - shared, 0)
    inputs = np.maximum(1, trace.input_tokens - np.floor(own * cut_fraction)).astype(np.int32)
    change = f"{cut_fraction:.0%} of the unshared prompt tokens gone (fewer or shorter chunks, compression)"
    return replace(trace, input_tokens=inputs), change


def _prefix_cache(scenario: Scenario, question: PlanQuestion, trace: Trace) -> Iterator[_Try]:
    engines = [candidate.deployment.engine for candidate in question.candidates]
    said = name, change = "prefix cache", "prefix_caching: on"
    if engines and all(engine.prefix_caching for engine in engines):
        yield _Try(name, change, RISKS[name], question, trace, "it is on already")
    if not engines or all(engine.prefix_caching for engine in engines):
        return
    on = scenario.model_copy(update={"engine": scenario.engine.model_copy(update={"prefix_caching": True})})
    shared = (
        "" if trace.prefix_node is not None else "the trace shows no shared prefix, so nothing would be found in it"
    )
    made = _other(on, question, trace, said)
    yield replace(made, nothing=shared)


def _steps(scenario: Scenario, question: PlanQuestion, trace: Trace) -> Iterator[_Try]:
    """Where a person fixed the batching, the planner's own choice; elsewhere it chose already."""
    said = name, change = "batching window", "max_batched_tokens and max_sequence_count left to the planner"
    if question.vary_step_tokens:
        yield _Try(name, change, RISKS[name], question, trace, "the planner chooses it already")
        return
    free = scenario.model_copy(
        update={"engine": scenario.engine.model_copy(update={"max_batched_tokens": None, "max_sequence_count": None})}
    )
    made = _other(free, question, trace, said)
    yield replace(made, question=replace(made.question, vary_step_tokens=True))


def _reservations(scenario: Scenario, question: PlanQuestion, trace: Trace) -> Iterator[_Try]:
    from tokenfleet import catalog

    gpus = list(dict.fromkeys(scenario.gpus))
    for term in RESERVED_H:
        if scenario.prices.term == term:
            continue
        change, asked = reserved(scenario, term, gpus)
        prices = tuple(price for gpu in gpus for price in gpu_prices(catalog.gpu(gpu), asked))
        name = f"reservation, {term.removeprefix('reserved_')}"
        yield _Try(
            name,
            change,
            RISKS[name],
            replace(question, prices=prices),
            trace,
            "" if prices else f"nobody publishes {term} prices of these gpus: enter your contract's under buy",
        )


def reserved(scenario: Scenario, term: Term, gpus: Collection[str]) -> tuple[str, Scenario]:
    """A scenario whose gpus are reserved: at its own prices under ``buy``, else at published ones.

    A term longer than the demand is believed is paid to its end, so an hour of it counts for as much more.

    Returns:
        What changes, in words, and the scenario.
    """
    from tokenfleet import catalog

    own = {"reserved_1y": scenario.buy.reserved_1y, "reserved_3y": scenario.buy.reserved_3y}[term]
    longer = Prices.model_construct(term=term, provider=scenario.prices.provider, usd_per_gpu_hour=own)
    asked = scenario.model_copy(update={"prices": longer})
    change = f"prices: {{term: {term}}}" + (", at the price under buy" if own else "")
    days = scenario.buy.believed_days
    if days is None or days * 24.0 >= RESERVED_H[term]:
        return change, asked
    counted = {}
    for gpu in gpus:
        quoted = planner.quote(gpu_prices(catalog.gpu(gpu), asked), gpu)
        if quoted is not None:
            usd = quoted.price.price_usd_per_gpu_hour
            paid = cost.Commitment(name=term, usd_per_gpu_hour=usd, term_h=RESERVED_H[term])
            counted[gpu] = cost.counted_usd_per_gpu_hour(paid, days * 24.0)
    dearer = longer.model_copy(update={"usd_per_gpu_hour": counted})
    return f"{change}, paid to its end for {days} days of use", scenario.model_copy(update={"prices": dearer})
