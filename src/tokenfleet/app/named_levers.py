"""``levers`` on pools that a scenario names: each pulled in every pool where it can be, and all pools counted anew."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, get_args

import numpy as np

from tokenfleet import catalog, planner, simulator
from tokenfleet.app.compose import Teller, demand_of, gpu_prices
from tokenfleet.app.levers import RISKS, Lever, Levers, Options, capped_outputs, cut_prompts, drafting, reserved
from tokenfleet.app.named_bought import NamedBought, buy_named
from tokenfleet.app.pool_settings import is_free, with_setting
from tokenfleet.app.pools_fleet import NamedPool
from tokenfleet.app.pools_question import PoolSystem, pool_system
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.gpu import RESERVED_H
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.stages import Call
from tokenfleet.domain.trace import Bools, Trace, Workload
from tokenfleet.domain.ways import RouterOfEquals

_STEPS: Final = {"max_batched_tokens": None, "max_sequence_count": None}
_NOTHING_GENERATED: Final = "nothing is generated here"
_Skip = Callable[[NamedPool], str]
"""Why a lever leaves a pool as it is; empty where it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Try:
    name: str
    change: str
    asked: Scenario
    text: Trace
    """The demand, text alone."""
    risk: str
    nothing: str = ""
    """Why there is nothing to plan."""
    notes: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    """The pools in which it is pulled, by the scenario's names; empty where it is none of replicas."""
    without: "Callable[[Collection[str]], _Try] | None" = None
    """The same, with some of these pools left as they are."""


def named_levers(scenario: Scenario, options: Options, teller: Teller, replay: planner.Replay | None = None) -> Levers:
    """Counts named pools, then again with each lever pulled alone.

    Args:
        scenario: The question without any lever, with ``pools``.
        options: What to try.
        teller: Told what is being done.
        replay: Runs replays of one pool instead of the simulator.

    Raises:
        BadInput: as for :func:`tokenfleet.app.named_bought.buy_named`.
    """
    teller.say("reading the demand" if scenario.workload.trace else "drawing the demand")
    demand = demand_of(scenario)
    run = replay or simulator.replay
    base = buy_named(scenario, teller, run, demand)
    pools = _Pools(scenario, demand, base, teller, run)
    found = [pools.pulled(each) for each in pools.tries(options)]
    found.append(pools.routed())
    found.sort(key=lambda lever: float("inf") if lever.price_usd_per_hour is None else lever.price_usd_per_hour)
    return Levers(base=None, why_not=_why_not(base), levers=tuple(found), base_pools=_priced(base))


def _priced(made: NamedBought) -> planner.PricedPools | None:
    """The pools with what they cost and what their users see."""
    if made.system is None:
        return None
    names = tuple(part.name for part in made.parts)
    return planner.PricedPools(names=names, system=made.system, slo=made.found.judged[0])


def _why_not(made: NamedBought) -> str:
    return made.reasons[0].text if made.reasons else ""


@dataclass(frozen=True, slots=True)
class _Pools:
    """Pools without any lever, and what each lever makes of them."""

    asked: Scenario
    demand: tuple[Trace, Workload]
    base: NamedBought
    teller: Teller
    replay: planner.Replay

    @property
    def named(self) -> tuple[NamedPool, ...]:
        return self.base.found.trials.system.named

    @property
    def generates(self) -> bool:
        """Whether any request has an answer of tokens."""
        return bool(self.demand[0].output_tokens.any())

    def tries(self, options: Options) -> Iterator[_Try]:
        """All levers but another router."""
        yield from self._smaller_numbers()
        if options.smaller_model is not None:
            yield self._smaller_model(options.smaller_model)
            why = "which requests go to which pool is said by takes: name a pool that serves the smaller model"
            yield self._try("routing by tier", f"some requests to {options.smaller_model}", nothing=why)
        yield self._capped(options)
        prompts, change = cut_prompts(self.demand[0], options.prompt_cut)
        yield self._try("shorter prompts", change, text=prompts)
        yield self._prefix_cache()
        yield self._steps()
        yield self._speculation(options)
        yield from self._reservations()

    def pulled(self, each: _Try) -> Lever:
        """All pools counted anew with one lever; in those alone where it saves a replica, if that costs no more."""
        lever = self._counted(each)
        if each.without is None or lever.pools is None or self.base.system is None:
            return lever
        was, now = self._bought(self.base.system), self._bought(lever.pools.system)
        idle = [name for name in each.taken if now[name] >= was[name]]
        if not idle or len(idle) == len(each.taken):
            return lever
        fewer = self._counted(each.without(idle))
        kept = fewer.pools is not None and fewer.pools.price_usd_per_hour <= lever.pools.price_usd_per_hour
        return fewer if kept else lever

    def _bought(self, system: planner.System) -> dict[str, tuple[float, int]]:
        """What each pool of the scenario costs for one hour, and its replicas, for one beside others costs nothing."""
        found: dict[str, tuple[float, int]] = {}
        for each, part in zip(self.named, system.parts, strict=True):
            usd, count = found.get(each.behind, (0.0, 0))
            found[each.behind] = usd + part.sized.price_usd_per_hour, count + part.sized.replica_count
        return found

    def _counted(self, each: _Try) -> Lever:
        self.teller.say(f"planning with {each.name}")
        lever = Lever(
            name=each.name, change=each.change, risk=each.risk, sized=None, why_not=each.nothing, notes=each.notes
        )
        if each.nothing:
            return lever
        try:
            made = buy_named(each.asked, self.teller, self.replay, (each.text, self.demand[1]))
        except BadInput as error:
            return replace(lever, why_not="; ".join(f"{problem.where}: {problem.what}" for problem in error.problems))
        moved = _moved(self.base.found.trials.system, made.found.trials.system)
        notes = (*each.notes, f"{moved:.1%} of the requests come to another pool then, by its takes") if moved else ()
        return replace(lever, pools=_priced(made), why_not=_why_not(made), notes=notes or each.notes)

    def routed(self) -> Lever:
        """One router in front of all pools; those behind which no pool does with a replica less are passed over."""
        name, base = "router", self.base
        now = Lever(
            name=name,
            change="router: as now, the best of all",
            risk=RISKS[name],
            sized=None,
            pools=_priced(base),
        )
        counts = base.found.counts
        if counts is None or base.system is None:
            why = "others are tried where they may save a replica, and these pools keep no promise yet"
            return replace(now, change="router: any", why_not=why)
        if max(counts) == 1:
            why = "one replica of each pool carries the peak: there is nobody to choose among"
            return replace(now, change="router: any", pools=None, why_not=why)
        best = now
        for router in get_args(RouterOfEquals):
            if not self._does_with_fewer(router, counts):
                continue
            lever = self.pulled(self._try(name, f"router: {router} in every pool", self._behind(self.asked, router)))
            if (lever.price_usd_per_hour or np.inf) < (best.price_usd_per_hour or np.inf):
                best = lever
        return best

    def _does_with_fewer(self, router: RouterOfEquals, counts: tuple[int, ...]) -> bool:
        """Whether some pool with GPUs of its own does with one replica less behind it."""
        self.teller.say(f"planning with router {router}")
        trials = self.base.found.trials
        trials = trials.with_asked(self._behind(trials.asked, router))
        own = [index for index, each in enumerate(self.named) if each.beside is None and counts[index] > 1]
        return any(trials.enough((*counts[:index], counts[index] - 1, *counts[index + 1 :])) for index in own)

    def _behind(self, asked: Scenario, router: RouterOfEquals) -> Scenario:
        """The scenario with one router in front of all pools."""
        for each in self.named:
            asked = with_setting(asked, each, {"router": router})
        return asked.model_copy(update={"router": router})

    def _try(
        self,
        name: str,
        change: str,
        asked: Scenario | None = None,
        *,
        text: Trace | None = None,
        risk: str = "",
        nothing: str = "",
        notes: tuple[str, ...] = (),
    ) -> _Try:
        return _Try(
            name=name,
            change=change,
            asked=asked or self.asked,
            text=self.demand[0] if text is None else text,
            risk=risk or RISKS[name],
            nothing=nothing,
            notes=notes,
        )

    def _in_pools(
        self, name: str, said: str, update: Mapping[str, object], skip: _Skip, leave: Collection[str] = ()
    ) -> _Try:
        """A setting of the replicas, in every pool where it is not set yet and can be, but for those to leave."""
        asked, taken, notes = self.asked, [], []
        for behind in dict.fromkeys(each.behind for each in self.named):
            if behind in leave:
                notes.append(f"{behind} stays as it is: no replica is saved there")
                continue
            changed, mine = asked, []
            for each in (one for one in self.named if one.behind == behind):
                why = skip(each)
                if why:
                    notes.append(f"{each.name} stays as it is: {why}")
                else:
                    changed = with_setting(changed, each, update)
                    mine.append(each.name)
            refused = self._refused(changed) if mine else ""
            if refused:
                notes.append(f"{behind} stays as it is: {refused}")
            elif mine:
                asked = changed
                taken.append((behind, mine))
        if not taken:
            return self._try(name, said, nothing="; ".join(notes))
        pools = ", ".join(each for _, mine in taken for each in mine)
        return replace(
            self._try(name, f"{said} in {pools}", asked, notes=tuple(notes)),
            taken=tuple(behind for behind, _ in taken),
            without=None if leave else partial(self._in_pools, name, said, update, skip),
        )

    def _refused(self, asked: Scenario) -> str:
        """Why the pools of a scenario cannot run; empty where they can."""
        try:
            pool_system(asked, self.demand[0])
        except BadInput as error:
            return "; ".join(problem.what for problem in error.problems)
        return ""

    def _smaller_numbers(self) -> Iterator[_Try]:
        yield self._in_pools("fp8 weights", "precision: fp8", {"precision": "fp8"}, _has_other_weights)
        yield self._in_pools("int4 weights", "precision: int4", {"precision": "int4"}, _has_four_bits)
        yield self._in_pools("fp8 KV cache", "kv_dtype: fp8", {"kv_dtype": "fp8"}, _has_other_kv)

    def _smaller_model(self, smaller: str) -> _Try:
        """In the pools that serve the scenario's own model, with the precision that it names."""
        own = catalog.model(self.asked.model).name
        pools = dict(self.asked.pools or {})
        taken, notes = [], []
        for behind in dict.fromkeys(each.behind for each in self.named if each.does != "sees"):
            serves = next(each.model.name for each in self.named if each.behind == behind)
            if serves != own:
                notes.append(f"{behind} stays as it is: it serves {serves}")
                continue
            taken.append(behind)
            spec = pools[behind]
            precision = spec.precision or (self.asked.precision[0] if self.asked.precision else None)
            pools[behind] = spec.model_copy(update={"model": smaller, "precision": precision})
        name = "smaller or distilled model"
        if not taken:
            return self._try(name, smaller, nothing="; ".join(notes))
        asked = self.asked.model_copy(update={"pools": pools})
        return self._try(name, f"{smaller} in {', '.join(taken)}", asked, notes=tuple(notes))

    def _capped(self, options: Options) -> _Try:
        name = "output cap"
        if not self.generates:
            return self._try(name, "fewer output tokens", nothing=_NOTHING_GENERATED)
        outputs, change, risk = capped_outputs(self.demand[0], options.output_cap)
        return self._try(name, change, text=outputs, risk=risk)

    def _prefix_cache(self) -> _Try:
        name, said = "prefix cache", "prefix_caching: on"
        keeps = [each for each in self.named if each.keeps_kv]
        if not keeps:
            return self._try(name, said, nothing="no pool keeps KV")
        if all(each.replica.deployment.engine.prefix_caching for each in keeps):
            return self._try(name, said, nothing="it is on already")
        if self.demand[0].prefix_node is None:
            why = "the trace shows no shared prefix, so nothing would be found in it"
            return self._try(name, said, nothing=why)
        engine = self.asked.engine.model_copy(update={"prefix_caching": True})
        return self._try(name, said, self.asked.model_copy(update={"engine": engine}))

    def _steps(self) -> _Try:
        """Where a person fixed the batching, what ``size`` would choose."""
        name, said = "batching window", "max_batched_tokens and max_sequence_count left to the planner"
        fixed = [each for each in self.named if not is_free(self.asked, each)]
        if not fixed:
            return self._try(name, said, nothing="the planner chooses it already")
        asked = self.asked.model_copy(
            update={
                "engine": self.asked.engine.model_copy(update=_STEPS),
                "vary": self.asked.vary.model_copy(update=_STEPS),
                "pools": {name: spec.model_copy(update=_STEPS) for name, spec in (self.asked.pools or {}).items()},
            }
        )
        for each in fixed:
            asked = with_setting(asked, each, _STEPS)
        return self._try(name, f"{said} in {', '.join(each.name for each in fixed)}", asked)

    def _speculation(self, options: Options) -> _Try:
        name = "speculative decoding"
        change, spec, nothing = drafting(self.asked, options)
        engine = self.asked.engine.model_copy(update={"speculation": spec})
        asked = self.asked if spec is None else self.asked.model_copy(update={"engine": engine})
        if not self.generates:
            nothing = _NOTHING_GENERATED
        elif spec is not None and self.asked.batch is not None:
            nothing = "batch has a lane in the pools, which is replayed without drafts"
        return self._try(name, change, asked, nothing=nothing)

    def _reservations(self) -> Iterator[_Try]:
        gpus = dict.fromkeys(each.replica.deployment.gpu for each in self.named)
        for term in RESERVED_H:
            if self.asked.prices.term == term:
                continue
            change, longer = reserved(self.asked, term, gpus)
            unsold = [gpu for gpu in gpus if not gpu_prices(catalog.gpu(gpu), longer)]
            nobody = f"nobody publishes {term} prices of {', '.join(unsold)}"
            why = f"{nobody}: enter your contract's under buy" if unsold else ""
            yield self._try(f"reservation, {term.removeprefix('reserved_')}", change, longer, nothing=why)


def _has_other_weights(pool: NamedPool) -> str:
    precision = pool.replica.deployment.precision
    if precision == "checkpoint":
        return "its weights are as the checkpoint has them"
    return "" if precision == "bf16" else f"its weights are {precision} already"


def _has_four_bits(pool: NamedPool) -> str:
    if pool.model.quantization is not None:
        return "its checkpoint is quantised already"
    precision = pool.replica.deployment.precision
    return f"its weights are {precision} already" if "4" in precision else ""


def _has_other_kv(pool: NamedPool) -> str:
    if not pool.keeps_kv:
        return "it keeps no KV"
    precision = pool.replica.deployment.kv_precision
    return "" if precision == "bf16" else f"its KV is {precision} already"


def _moved(before: PoolSystem, after: PoolSystem) -> float:
    """Share of the requests that another pool answers."""
    was, now = _answered(before), _answered(after)
    others = [was[name] != now[name] for name in was]
    return float(np.logical_or.reduce(others).mean()) if others else 0.0


def _answered(system: PoolSystem) -> dict[str, Bools]:
    """Whom each pool answers, by its name."""
    return {stage.answer: stage.takes for stage in system.pools.stages if isinstance(stage, Call) and stage.answer}
