"""``drill``: the bad days of a planned fleet, gone through beforehand, and written into its contract."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Annotated

from pydantic import Field

from tokenfleet import contract, planner
from tokenfleet.app.bought import bought
from tokenfleet.app.compose import Composition, Teller, compose
from tokenfleet.app.planned_pools import PlannedPools, has_pools, pools_bought, pools_of_plan
from tokenfleet.app.quantities import shown_duration
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.scenario_words import Count, Duration, Fraction, Positive, Strict
from tokenfleet.app.simulate_question import fleet_of_plan
from tokenfleet.app.slo_words import spoken, value_of_limit
from tokenfleet.app.summary import Block
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.fleet import Fleet, ReplicaGroup, Router
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.slo import SloResult
from tokenfleet.domain.survival import Drill, DrillName, Zone
from tokenfleet.domain.trace import Trace
from tokenfleet.planner import words
from tokenfleet.planner.lodging import in_zones


class DrillOptions(Strict):
    """Which drills, and how hard."""

    only: tuple[DrillName, ...] = ()
    hold: Duration = 600.0
    burst: Positive = 1.5
    burst_length: Duration = 30.0
    flood: Annotated[Fraction, Field(gt=0)] = 0.2
    replicas: Annotated[Count, Field(ge=1)] | None = None

    def plan(self) -> planner.DrillPlan:
        """As the planner takes it.

        Raises:
            BadInput: a burst that is none.
        """
        if self.burst <= 1.0:
            raise BadInput.at("--burst", f"{self.burst:g} times the peak is no burst", "give a factor above 1")
        return planner.DrillPlan(
            names=tuple(dict.fromkeys(self.only)) or planner.DRILLS,
            hold_s=self.hold,
            burst_factor=self.burst,
            burst_s=self.burst_length,
            flood_fraction=self.flood,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """One fleet to drill: that of a plan, or one of its pools."""

    pool: str | None
    group: ReplicaGroup
    router: Router
    trace: Trace
    """What comes to it."""
    replay: planner.Replay
    zones: tuple[Zone, ...] | None = None
    """Those of the plan as a pool has them; ``None``: as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drilled:
    """What came of the drills."""

    fleets: Mapping[str | None, ReplicaGroup]
    """By pool, ``None``: there is one fleet. Empty when none keeps the promise in the first place."""
    why_not: tuple[str, ...]
    drills: tuple[Drill, ...]
    notes: tuple[str, ...] = ()
    """What the drills took for granted."""

    @property
    def failed(self) -> tuple[Drill, ...]:
        """Those that were done and not passed."""
        return tuple(each for each in self.drills if each.passed is False)


def drilled(
    scenario: Scenario, options: DrillOptions, *, plan: Path | None, paper: Path | None, today: date, teller: Teller
) -> Drilled:
    """Goes through the drills with the fleet or the pools of a plan, or with what a plan would choose.

    Args:
        scenario: The promise, the demand, what may be lost.
        options: Which drills, and how hard.
        plan: A plan.json or its folder; ``None``: the scenario is planned.
        paper: The contract to write the results into; ``None``: none.
        today: The day of the drills.
        teller: Told what is being done.

    Raises:
        BadInput: as for a plan; a plan or a contract of another scenario.
    """
    from tokenfleet import simulator
    from tokenfleet.simulator.checking import check_room

    harder = options.plan()
    composition = compose(scenario, teller)
    must_fit(options, composition.trace)
    document = contract_at(paper, composition.resolved, today) if paper is not None else None
    simulator.warm_up(announce=teller.announce)
    grounds, why_not = _grounds(scenario, composition, plan, options.replicas, teller)
    if not grounds:
        return Drilled(fleets={}, why_not=why_not, drills=())
    for ground in grounds:
        check_room(ground.trace, Fleet(groups=(ground.group,), router=ground.router))
    fleets = {ground.pool: ground.group for ground in grounds}
    if document is not None:
        must_be_of(document, fleets, paper)
    results = tuple(drill for ground in grounds for drill in _drills(composition, ground, harder, teller))
    if document is not None and paper is not None:
        contract.write_contract(contract.with_drills(document, results, made_on=today), paper)
    return Drilled(fleets=fleets, why_not=(), drills=results)


def must_fit(options: DrillOptions, trace: Trace) -> None:
    """Refuse a burst that outlasts the demand.

    Raises:
        BadInput: it does.
    """
    if options.burst_length > trace.duration_s:
        lasts, ends = shown_duration(options.burst_length), shown_duration(trace.duration_s)
        what = f"the burst lasts {lasts}, the demand {ends}"
        raise BadInput.at("--burst-length", what, "make it shorter, or workload.duration longer")


def _drills(composition: Composition, ground: Ground, harder: planner.DrillPlan, teller: Teller) -> tuple[Drill, ...]:
    question = replace(planner.question_to(composition.question, ground.trace), router=ground.router)
    question = question if ground.zones is None else in_zones(question, ground.zones)
    group = ground.group
    found = planner.drills(
        question,
        ground.trace,
        group.replica,
        group.replica_count,
        harder,
        progress=teller.step,
        replay=ground.replay,
    )
    return tuple(replace(drill, pool=ground.pool) for drill in found)


def _grounds(
    scenario: Scenario, composition: Composition, plan: Path | None, replicas: int | None, teller: Teller
) -> tuple[tuple[Ground, ...], tuple[str, ...]]:
    question, trace = composition.question, composition.trace
    if plan is not None and has_pools(plan, question.model):
        return _of_pools(pools_of_plan(scenario, question.model, plan), scenario, trace, replicas), ()
    if plan is not None:
        return (_of_fleet(fleet_of_plan(scenario, question.model, plan, replicas=replicas), trace),), ()
    found = bought(composition, teller)
    if found.pools is not None:
        return _of_pools(pools_bought(found.pools), scenario, trace, replicas), ()
    if found.fleet is None:
        return (), found.why_not
    fleet = found.fleet
    group = fleet.groups[0]
    asked = replace(group, replica_count=replicas or group.replica_count)
    return (_of_fleet(replace(fleet, groups=(asked,)), trace),), ()


def _of_fleet(fleet: Fleet, trace: Trace) -> Ground:
    from tokenfleet import simulator

    return Ground(pool=None, group=fleet.groups[0], router=fleet.router, trace=trace, replay=simulator.replay)


def _of_pools(pools: PlannedPools, asked: Scenario, trace: Trace, replicas: int | None) -> tuple[Ground, ...]:
    from tokenfleet import simulator

    if replicas is not None:
        raise BadInput.at("--replicas", f"the plan has {len(pools.fleets)} pools", "leave it out")
    zones = pools.zones_of(asked.losses)
    return tuple(
        Ground(
            pool=name,
            zones=zones[name],
            group=fleet.groups[0],
            router=fleet.router,
            trace=pools.trace_of(name, trace),
            replay=pools.replay_of(name, simulator.replay),
        )
        for name, fleet in pools.fleets.items()
    )


def contract_at(paper: Path, resolved: dict[str, object], today: date) -> dict[str, object]:
    """The contract that results are written into.

    Args:
        paper: Its file.
        resolved: What a plan of the scenario rests on.
        today: The day of the drills.

    Raises:
        BadInput: no contract, or one that is void or expired.
    """
    document = contract.read_contract(paper)
    checked = contract.check_contract(document, today=today, resolved=resolved)
    if checked.state != "valid":
        raise BadInput.at(str(paper), "; ".join(checked.reasons), "plan again, and drill the new contract")
    return document


def must_be_of(document: Mapping[str, object], fleets: Mapping[str | None, ReplicaGroup], paper: Path | None) -> None:
    """Refuse a contract about other fleets than those that are drilled.

    Raises:
        BadInput: it is about others.
    """
    promised = contract.fleets_of(document)
    mine = {pool: _size_of(group) for pool, group in fleets.items()}
    if promised != mine:
        said, drilled = (_said(each) for each in (promised, mine))
        what = f"is about {said}, the drills about {drilled}"
        raise BadInput.at(str(paper), what, "drill the fleet of the contract: give its plan with --plan")


def _size_of(group: ReplicaGroup) -> tuple[str, int, int]:
    deployment = group.replica.deployment
    return deployment.gpu, deployment.layout.gpu_count, group.replica_count


def _said(fleets: Mapping[str | None, tuple[str, int, int]]) -> str:
    named = ((f"{name}: " if name else "", *size) for name, size in fleets.items())
    return " and ".join(f"{name}{count} replicas of {gpus} x {gpu}" for name, gpu, gpus, count in named)


def drill_document(found: Drilled) -> dict[str, object]:
    """For machines."""
    return {
        "passed": not found.failed if found.fleets else None,
        "replica_count": sum(group.replica_count for group in found.fleets.values()) if found.fleets else None,
        "why_not": list(found.why_not),
        "drills": [asdict(each) for each in found.drills],
        "notes": list(found.notes),
    }


def drill_blocks(found: Drilled) -> list[Block]:
    """For a person."""
    if not found.fleets:
        return [("Answer", ["no fleet keeps the promise in usual times", *found.why_not])]
    blocks: list[Block] = [("Fleet", [_fleet_line(pool, group) for pool, group in found.fleets.items()])]
    blocks += [(_verdict(each), _lines(each)) for each in found.drills]
    done = [each for each in found.drills if each.passed is not None]
    blocks.append(("Drills", [f"{len(done) - len(found.failed)} of {len(done)} passed"]))
    if found.notes:
        blocks.append(("Assumed", list(found.notes)))
    return blocks


def _fleet_line(pool: str | None, group: ReplicaGroup) -> str:
    said = words.fleet(group.replica, group.replica_count)
    return f"{pool}: {said}" if pool else said


def _verdict(drill: Drill) -> str:
    if drill.passed is None:
        return "cut off" if drill.slo else "not run"
    return "passed" if drill.passed else "FAILED"


def _lines(drill: Drill) -> Sequence[str]:
    lines = [f"{drill.pool}, {drill.name}: {drill.what}" if drill.pool else f"{drill.name}: {drill.what}"]
    if drill.slo:
        lines.append(", ".join(_clause(each) for each in drill.slo))
    return [*lines, drill.how]


def _clause(result: SloResult) -> str:
    state = "kept" if result.kept else "BROKEN"
    return f"{spoken(result.name)} {value_of_limit(result)} {state}"
