"""``drill`` of a scenario that names its pools: bad days of all of them together."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

from tokenfleet import catalog, contract, planner, simulator, workload
from tokenfleet.app.compose import Teller, demand_of
from tokenfleet.app.drill import Drilled, DrillOptions, contract_at, must_be_of, must_fit
from tokenfleet.app.named_bought import NamedWay, buy_named, refuse_unplannable
from tokenfleet.app.named_counts import as_planned, carrying_counts
from tokenfleet.app.plan_question import question_of
from tokenfleet.app.pool_sizes import resolved_pools
from tokenfleet.app.pools_question import pool_system
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.fleet import ReplicaGroup
from tokenfleet.domain.plan import PlanQuestion
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.world import Admission
from tokenfleet.planner.traffic import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """The pools of a scenario with all their replicas."""

    asked: Scenario
    """With the settings that were chosen."""
    traffic: Traffic
    question: PlanQuestion
    pools: tuple[planner.DrilledPool, ...]


def drilled_named(
    asked: Scenario, options: DrillOptions, *, plan: Path | None, paper: Path | None, today: date, teller: Teller
) -> Drilled:
    """Goes through the drills with the pools that a scenario names, in the numbers of their plan.

    Args:
        asked: A scenario with ``pools``.
        options: Which drills, and how hard.
        plan: A plan.json of the same scenario, or its folder; ``None``: the pools are sized, with their spare replicas.
        paper: The contract to write the results into; ``None``: none.
        today: The day of the drills.
        teller: Told what is being done.

    Raises:
        BadInput: as for a plan; a plan or a contract of another scenario.
    """
    refuse_unplannable(asked)
    if options.replicas is not None:
        mend = "leave it out; pools without --plan have the replicas that tokenfleet plan gives them"
        raise BadInput.at("--replicas", "the scenario names pools", mend)
    harder = options.plan()
    document = None if paper is None else contract_at(paper, resolved_pools(asked, teller), today)
    standing, why_not = _sized(asked, teller) if plan is None else (_planned(asked, plan, teller), ())
    if standing is None:
        return Drilled(fleets={}, why_not=why_not, drills=())
    must_fit(options, standing.traffic.trace)
    fleets: dict[str | None, ReplicaGroup] = {pool.name: pool.fleet.groups[0] for pool in standing.pools}
    if document is not None:
        must_be_of(document, fleets, paper)
    simulator.warm_up(announce=teller.announce)
    results = planner.drills_of_pools(
        standing.question,
        standing.traffic,
        standing.pools,
        NamedWay(standing.asked),
        harder,
        progress=teller.step,
    )
    if document is not None and paper is not None:
        contract.write_contract(contract.with_drills(document, results, made_on=today), paper)
    return Drilled(fleets=fleets, why_not=(), drills=results, notes=tuple(_notes(asked)))


def _planned(asked: Scenario, path: Path, teller: Teller) -> _Standing:
    """The pools in the numbers of a plan."""
    chosen = as_planned(asked, path)
    teller.say("reading the demand" if asked.workload.trace else "drawing the demand")
    text, _ = demand_of(chosen)
    system = pool_system(chosen, text)
    candidates = tuple(each.replica for each in system.named)
    question = question_of(chosen, catalog.model(chosen.model), candidates=candidates, prices=())
    carrying = carrying_counts(asked, path)
    pools = (
        planner.DrilledPool(name=each.name, fleet=each.fleet, carrying_count=carrying[each.name], beside=each.beside)
        for each in system.named
    )
    return _Standing(
        asked=chosen,
        traffic=Traffic(text, workload.peak_window(system.trace)),
        # Everybody is let in, as in the plan.
        question=replace(question, admission=Admission()),
        pools=tuple(pools),
    )


def _sized(asked: Scenario, teller: Teller) -> tuple[_Standing | None, tuple[str, ...]]:
    """The pools in the numbers that a plan would find; or why it would find none."""
    bought = buy_named(asked, teller)
    trials, system = bought.found.trials, bought.system
    if system is None:
        return None, tuple(reason.text for reason in bought.reasons)
    fleets = system.fleets(spare=True)
    pools = (
        planner.DrilledPool(
            name=each.name,
            fleet=fleets[each.name],
            carrying_count=part.sized.carrying_count,
            beside=each.beside,
        )
        for each, part in zip(trials.system.named, system.parts, strict=True)
    )
    return _Standing(asked=trials.asked, traffic=bought.traffic, question=bought.question, pools=tuple(pools)), ()


def _notes(asked: Scenario) -> Iterator[str]:
    specs = (asked.pools or {}).values()
    if asked.ladder is not None or asked.admission is not None or any(spec.ladder is not None for spec in specs):
        yield "Nothing is given up and nobody is turned away, as in the plan: ladders and bounds of queues stand aside."
