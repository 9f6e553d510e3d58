"""What named pools buy: the counts that ``size`` finds with their spare replicas, for whoever goes on with them."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from threading import Lock
from typing import Final

from tokenfleet import catalog, planner, simulator
from tokenfleet.app.compose import Teller, gpu_prices
from tokenfleet.app.plan_question import question_of
from tokenfleet.app.pool_sizes import Counted, count_pools, refuse_unsizable
from tokenfleet.app.pool_trials import Counts, way_text, with_counts
from tokenfleet.app.pools_doors import without_gates
from tokenfleet.app.pools_fleet import NamedPool
from tokenfleet.app.pools_lanes import with_lane
from tokenfleet.app.pools_question import IMAGES, PoolSystem, pool_system
from tokenfleet.app.pools_run import promised, who_waits
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.slo_types import takes_in_words
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.plan import PlanQuestion, Reason
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.stages import Call, Pools, StagedRun
from tokenfleet.domain.trace import Bools, Trace, Workload
from tokenfleet.domain.world import Admission, World
from tokenfleet.planner.systems import Longs
from tokenfleet.planner.traffic import Traffic

_KEPT: Final = 24
"""Demands whose stages are kept: as many as there are loads and stretches of one search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBought:
    """Pools that a scenario names, in the counts that they are bought in."""

    question: PlanQuestion
    """What is asked of all of them together."""
    found: Counted
    """The counts without spare replicas, and what they were found on."""
    parts: tuple[planner.NamedPart, ...]
    """In the order of the stages."""
    way: "NamedWay"
    """How requests go through them."""
    system: planner.System | None
    """All of them with their spare replicas; ``None`` where they cannot be bought."""
    reasons: tuple[Reason, ...]
    """Why not."""

    @property
    def traffic(self) -> Traffic:
        """The demand as users send it, with its peak."""
        return Traffic(self.found.trials.text, self.found.trials.window_s)


def buy_named(
    asked: Scenario,
    teller: Teller,
    replay: planner.Replay | None = None,
    demand: tuple[Trace, Workload] | None = None,
) -> NamedBought:
    """Find what named pools buy.

    Args:
        asked: A scenario with ``pools``.
        teller: Told what is being done.
        replay: Runs the replay of one pool instead of the simulator.
        demand: The demand and its profile; the scenario's own when ``None``.

    Raises:
        BadInput: as for :func:`tokenfleet.app.pool_sizes.count_pools` and :func:`refuse_unplannable`.
    """
    refuse_unplannable(asked)
    found = count_pools(asked, teller, replay, demand)
    question = _question(asked, found)
    parts = tuple(_parts(asked, found, question))
    way = NamedWay(found.trials.asked)
    system: planner.System | None = None
    reasons = tuple(_reasons(question, found))
    if not reasons:
        system, reasons = planner.system_of_named(question, parts, way)
    return NamedBought(question=question, found=found, parts=parts, way=way, system=system, reasons=reasons)


def refuse_unplannable(asked: Scenario) -> None:
    """Only counts that stay as they are can be planned, of pools that somebody named.

    Raises:
        BadInput: as for :func:`tokenfleet.app.pool_sizes.refuse_unsizable`; or the plan is asked for other pools.
    """
    refuse_unsizable(asked)
    mend = "leave it out, or leave pools out: then the plan chooses them"
    problems = []
    if asked.also_try.pools or asked.also_try.routers:
        problems.append(Problem("also_try", "asks for other pools or routers than those that are named", mend))
    if asked.disaggregated is not None:
        problems.append(Problem("disaggregated", "asks for other pools than those that are named", mend))
    if problems:
        raise BadInput(problems)


class NamedWay:
    """How requests go through the pools of a scenario, for its demand or any part of it."""

    def __init__(self, asked: Scenario) -> None:
        self._asked = asked
        self.asked: str | None = way_text(asked)
        # Traces are kept beside their number, so that nobody else gets their id.
        self._one_at_a_time = Lock()
        self._known: OrderedDict[int, tuple[Trace, PoolSystem]] = OrderedDict()
        self._named: dict[str, NamedPool] = {}

    def through(self, trace: Trace, fleets: Mapping[str, Fleet], /) -> tuple[Trace, Pools]:
        """The requests as they are sent, and their stages with these fleets."""
        system = self._system(trace)
        named = [replace(each, fleet=_like(each.fleet, fleets[each.name])) for each in system.named]
        counts = [each.fleet.groups[0].replica_count for each in named]
        return system.trace, with_counts(without_gates(system.pools), named, counts)

    @property
    def has_lanes(self) -> bool:
        """Whether the scenario has batch."""
        return self._asked.batch is not None

    def world(self, name: str, calls: Trace, /) -> World | None:
        """The batch lane of a pool, where there is one."""
        if self._asked.batch is None:
            return None
        return with_lane(self._asked, self._named[name], calls, None)

    def who_waits(self, trace: Trace, /) -> Bools | None:
        """Which requests are no offline work; ``None``: all of them are not."""
        return who_waits(self._system(trace))

    def waited_for(self, trace: Trace, run: StagedRun, among: Bools | None = None, /) -> RunRecord | None:
        """The requests that are no offline work; ``None``: all of them."""
        found = promised(self._system(trace), run, among)
        return None if found is run.record else found

    def of_copies(self, trace: Trace, made: Trace, rows: Longs, /) -> "NamedWay":
        """The way of requests that are copies of those of ``trace``, whatever is drawn for others."""
        usual = self._system(trace)
        sent = replace(made, input_tokens=usual.trace.input_tokens[rows])
        if usual.batch is not None and usual.trace.priority is not None:
            sent = replace(sent, priority=usual.trace.priority[rows])
        system = replace(
            usual,
            trace=sent,
            pools=simulator.narrowed(usual.pools, rows),
            batch=None if usual.batch is None else usual.batch[rows],
        )
        found = NamedWay(self._asked)
        # Which requests are copies of which, the scenario does not say.
        found.asked = None
        found._known.update(self._known)
        found._named = self._named
        found._keep(made, system)
        return found

    def _system(self, trace: Trace) -> PoolSystem:
        with self._one_at_a_time:
            if id(trace) not in self._known:
                system = pool_system(self._asked, trace, is_part=True)
                self._named = {each.name: each for each in system.named}
                self._keep(trace, system)
            self._known.move_to_end(id(trace))
            return self._known[id(trace)][1]

    def _keep(self, trace: Trace, system: PoolSystem) -> None:
        self._known[id(trace)] = trace, system
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)


def _like(usual: Fleet, asked: Fleet) -> Fleet:
    """A fleet of other replicas, or of more of them, in the place of the usual one."""
    (group,) = asked.groups
    own = replace(usual.groups[0], replica=group.replica, replica_count=group.replica_count)
    return replace(usual, groups=(own,))


def _question(asked: Scenario, found: Counted) -> PlanQuestion:
    """What is asked of all pools together."""
    named = found.trials.system.named
    gpus = dict.fromkeys(each.replica.deployment.gpu for each in named)
    prices = tuple(price for gpu in gpus for price in gpu_prices(catalog.gpu(gpu), asked))
    whole = question_of(
        asked, catalog.model(asked.model), candidates=tuple(each.replica for each in named), prices=prices
    )
    caps = {each.cap_fraction for each in named}
    # Sizes are found with nobody turned away at the door.
    return replace(whole, admission=Admission(), utilization_cap_fraction=caps.pop() if len(caps) == 1 else None)


def _parts(asked: Scenario, found: Counted, whole: PlanQuestion) -> Iterator[planner.NamedPart]:
    trials = found.trials
    counts: Counts = found.counts or tuple(1 for _ in trials.system.named)
    for pool, count in zip(trials.system.named, counts, strict=True):
        question = replace(
            whole,
            model=pool.model,
            candidates=(pool.replica,),
            router=pool.fleet.router,
            utilization_cap_fraction=pool.cap_fraction,
        )
        takes = _takes(trials.system, pool.name)
        yield planner.NamedPart(
            name=pool.name,
            who=_who(asked, pool),
            does=pool.does,
            question=question,
            router=pool.fleet.router,
            replica=pool.replica,
            carrying_count=count,
            request_fraction=float(takes.mean()),
            beside=pool.beside,
        )


def _takes(system: PoolSystem, name: str) -> Bools:
    return next(stage.takes for stage in system.pools.stages if isinstance(stage, Call) and stage.pool == name)


def _who(asked: Scenario, pool: NamedPool) -> str:
    """Whom a pool serves: ``10 calls before the answer``."""
    if pool.behind == IMAGES:
        return "images in prompts"
    if asked.chain is not None and any(step.pool == pool.name for step in asked.chain.steps):
        calls = sum(step.calls for step in asked.chain.steps if step.pool == pool.name)
        return "a call before the answer" if calls == 1 else f"{calls} calls before the answer"
    return _answered(asked, pool)


def _answered(asked: Scenario, pool: NamedPool) -> str:
    """Whose answers come from a pool, or a part of them: ``prompts up to 1,000 tokens``, ``all other answers``."""
    specs = asked.pools or {}
    takes = specs[pool.behind].takes
    if takes is not None:
        of = takes_in_words(takes)
        return {"prefills": f"the prompts of {of}", "decodes": f"the answers of {of}"}.get(pool.does, of)
    if any(spec.takes is not None for spec in specs.values()):
        return {"prefills": "all other prompts", "decodes": "all other answers"}.get(pool.does, "all other requests")
    return {"prefills": "every prompt", "decodes": "every answer"}.get(pool.does, "every request")


def _reasons(question: PlanQuestion, found: Counted) -> Iterator[Reason]:
    """Why these pools are no plan."""
    gpus = dict.fromkeys(replica.deployment.gpu for replica in question.candidates)
    missing = [gpu for gpu in gpus if not any(price.gpu == gpu for price in question.prices)]
    for gpu in missing:
        mend = f"give prices: {{usd_per_gpu_hour: {{{gpu}: ...}}}}"
        yield Reason(kind="price_missing", text=f"No price of {gpu} is known.", relax=mend)
    if missing or found.counts is not None:
        return
    yield from planner.missed_by_named(question, *found.judged)
