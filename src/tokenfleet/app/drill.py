"""``drill``: the bad days of a planned fleet, gone through beforehand, and written into its contract."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Annotated

from pydantic import Field

from tokenfleet import contract, planner
from tokenfleet.app.compose import Composition, Teller, compose
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.scenario_words import Count, Duration, Fraction, Positive, Strict
from tokenfleet.app.simulate_question import fleet_of_plan
from tokenfleet.app.slo_words import spoken, value_of_limit
from tokenfleet.app.summary import Block
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.fleet import ReplicaGroup
from tokenfleet.domain.plan import Sized
from tokenfleet.domain.slo import SloResult
from tokenfleet.domain.survival import Drill, DrillName
from tokenfleet.planner import words


class DrillOptions(Strict):
    """Which drills, and how hard."""

    only: tuple[DrillName, ...] = ()
    hold: Duration = 600.0
    burst: Positive = 1.5
    burst_length: Duration = 30.0
    flood: Fraction = 0.2
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
class Drilled:
    """What came of the drills."""

    fleet: ReplicaGroup | None
    """``None`` when no fleet keeps the promise in the first place."""
    why_not: tuple[str, ...]
    drills: tuple[Drill, ...]

    @property
    def failed(self) -> tuple[Drill, ...]:
        """Those that were done and not passed."""
        return tuple(each for each in self.drills if each.passed is False)


def drilled(
    scenario: Scenario, options: DrillOptions, *, plan: Path | None, paper: Path | None, today: date, teller: Teller
) -> Drilled:
    """Goes through the drills with the fleet of a plan, or with the one that a plan would choose.

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

    harder = options.plan()
    composition = compose(scenario, teller)
    document = _contract(paper, composition, today) if paper is not None else None
    simulator.warm_up(announce=teller.announce)
    found, why_not = _fleet(scenario, composition, plan, options.replicas, teller)
    if found is None:
        return Drilled(fleet=None, why_not=why_not, drills=())
    if document is not None:
        _must_be_of(document, found, paper)
    results = planner.drills(
        composition.question, composition.trace, found.replica, found.replica_count, harder, progress=teller.step
    )
    if document is not None and paper is not None:
        contract.write_contract(contract.with_drills(document, results, made_on=today), paper)
    return Drilled(fleet=found, why_not=(), drills=results)


def _fleet(
    scenario: Scenario, composition: Composition, plan: Path | None, replicas: int | None, teller: Teller
) -> tuple[ReplicaGroup | None, tuple[str, ...]]:
    question = composition.question
    if plan is not None:
        groups = fleet_of_plan(scenario, question.model, plan, replicas=replicas).groups
        if len(groups) > 1:
            raise BadInput.at(
                str(plan), f"has {len(groups)} groups; drills know equal replicas", "drill them one by one"
            )
        return groups[0], ()
    made = planner.cheapest(question, composition.trace, progress=teller.step)
    if made.sized is None:
        return None, tuple(reason.text for reason in made.reasons)
    sized: Sized = made.sized
    return ReplicaGroup(replica=sized.replica, replica_count=replicas or sized.replica_count), ()


def _contract(paper: Path, composition: Composition, today: date) -> dict[str, object]:
    document = contract.read_contract(paper)
    checked = contract.check_contract(document, today=today, resolved=composition.resolved)
    if checked.state != "valid":
        raise BadInput.at(str(paper), "; ".join(checked.reasons), "plan again, and drill the new contract")
    return document


def _must_be_of(document: dict[str, object], fleet: ReplicaGroup, paper: Path | None) -> None:
    promised = contract.fleet_of(document)
    deployment = fleet.replica.deployment
    mine = deployment.gpu, deployment.layout.gpu_count, fleet.replica_count
    if promised != mine:
        said, drilled = (f"{count} replicas of {gpus} x {gpu}" for gpu, gpus, count in (promised, mine))
        what = f"is about {said}, the drills about {drilled}"
        raise BadInput.at(str(paper), what, "drill the fleet of the contract: give its plan with --plan")


def drill_document(found: Drilled) -> dict[str, object]:
    """For machines."""
    return {
        "passed": None if found.fleet is None else not found.failed,
        "replica_count": None if found.fleet is None else found.fleet.replica_count,
        "why_not": list(found.why_not),
        "drills": [asdict(each) for each in found.drills],
    }


def drill_blocks(found: Drilled) -> list[Block]:
    """For a person."""
    if found.fleet is None:
        return [("Answer", ["no fleet keeps the promise in usual times", *found.why_not])]
    blocks: list[Block] = [("Fleet", [words.fleet(found.fleet.replica, found.fleet.replica_count)])]
    blocks += [(_verdict(each), _lines(each)) for each in found.drills]
    done = [each for each in found.drills if each.passed is not None]
    blocks.append(("Drills", [f"{len(done) - len(found.failed)} of {len(done)} passed"]))
    return blocks


def _verdict(drill: Drill) -> str:
    return {True: "passed", False: "FAILED", None: "not run"}[drill.passed]


def _lines(drill: Drill) -> Sequence[str]:
    lines = [f"{drill.name}: {drill.what}"]
    if drill.slo:
        lines.append(", ".join(_clause(each) for each in drill.slo))
    return [*lines, drill.how]


def _clause(result: SloResult) -> str:
    state = "kept" if result.kept else "BROKEN"
    return f"{spoken(result.name)} {value_of_limit(result)} {state}"
