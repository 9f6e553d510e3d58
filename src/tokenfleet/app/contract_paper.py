"""``contract``: does a contract still hold, and what does it say about the worst day."""

from collections.abc import Iterator
from datetime import date
from pathlib import Path

from tokenfleet import contract
from tokenfleet.app.compose import Teller, compose
from tokenfleet.app.pool_sizes import resolved_pools
from tokenfleet.app.quantities import shown_duration, shown_usd
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.slo_words import shown_limit
from tokenfleet.app.summary import Block
from tokenfleet.contract.schema import Contract, Loss
from tokenfleet.domain.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A contract and what is left of it."""

    paper: Contract
    check: contract.ContractCheck
    compared: bool
    """Its digests were held against a scenario."""

    @property
    def holds(self) -> bool:
        """It is valid and no drill in it was failed."""
        return self.check.state == "valid" and not self.check.failed_drills


def standing(path: Path, scenario: Scenario | None, *, today: date, teller: Teller) -> Standing:
    """Reads a contract and checks its day, its drills and, against a scenario, what it rests on.

    Raises:
        BadInput: no contract, or a scenario that cannot be read.
    """
    document = contract.read_contract(path)
    resolved = None if scenario is None else _resolved(scenario, teller)
    return Standing(
        paper=Contract.model_validate(document),
        check=contract.check_contract(document, today=today, resolved=resolved),
        compared=scenario is not None,
    )


def _resolved(scenario: Scenario, teller: Teller) -> dict[str, object]:
    return compose(scenario, teller).resolved if scenario.pools is None else resolved_pools(scenario, teller)


def standing_document(found: Standing) -> dict[str, object]:
    """For machines."""
    return {
        "name": found.paper.name,
        "holds": found.holds,
        "state": found.check.state,
        "reasons": list(found.check.reasons),
        "compared": found.compared,
        "evidence": found.paper.evidence.status,
        "survives": {name: loss.kept for name, loss in _losses(found)},
        "spare_replica_count": sum(fleet.spare_count for _, _, fleet in found.paper.fleets),
        "ready_after_s": found.paper.scale_out.ready_after_s,
        "drills": {drill.name: drill.passed for drill in found.paper.drills},
        "failed_drills": list(found.check.failed_drills),
        "until": found.paper.valid.until.isoformat(),
    }


def standing_blocks(found: Standing) -> list[Block]:
    """For a person: whether it holds, then what is promised, what may be lost, how soon more is there."""
    paper = found.paper
    said = found.check.state if found.holds or found.check.state != "valid" else "valid, with failed drills"
    held = "" if found.compared else "; give --scenario to see whether what it rests on has changed"
    blocks: list[Block] = [
        ("State", [f"{said}, until {paper.valid.until}{held}", *found.check.reasons]),
        ("Promise", [", ".join(_promises(paper))]),
        ("Proof", [_proof(paper)]),
        ("Losses", list(_loss_lines(found))),
        ("Scaling", [_scaling(paper)]),
        ("Drills", list(_drill_lines(paper))),
        (
            "Cost",
            [f"{shown_usd(paper.cost.total_usd_per_hour)}/h, {shown_usd(paper.cost.spare_usd_per_hour)} of it spare"],
        ),
    ]
    return blocks


def _promises(paper: Contract) -> Iterator[str]:
    for clause in contract.clauses_of(paper.promise.slo):
        yield shown_limit(*clause)


def _proof(paper: Contract) -> str:
    test = paper.evidence.load_test
    if test is None:
        return f"replay of {paper.evidence.replay.made_on}; no load test yet, so {paper.evidence.status}"
    return f"load test of {test.made_on}: {paper.evidence.status}"


def _losses(found: Standing) -> tuple[tuple[str, Loss], ...]:
    survives = found.paper.survives
    return (
        ("replica", survives.replica),
        ("node", survives.node),
        ("zone", survives.zone),
        ("rollout", survives.rollout),
    )


def _loss_lines(found: Standing) -> Iterator[str]:
    words = {True: "survived", False: "not survived", None: "not examined"}
    for name, loss in _losses(found):
        count = "" if name == "rollout" else f"{loss.count} "
        yield f"{count}{name}: {words[loss.kept]} ({loss.how})"


def _scaling(paper: Contract) -> str:
    start = paper.scale_out
    if start.ready_after_s is None:
        return "nobody knows how long one more replica takes"
    text = f"one more replica after {shown_duration(start.ready_after_s)} ({start.source}); the promise counts on none"
    if start.startup_budget_s is not None:
        text += f"; a start-up probe must allow {shown_duration(start.startup_budget_s)}"
    if start.most_gpu_count is not None:
        of = "" if start.allowed_gpu_count is None else f" of {start.allowed_gpu_count}"
        text += f"; at most {start.most_gpu_count} GPUs{of}"
    return text if start.capacity_assured is not False else f"{text}; capacity not assured"


def _drill_lines(paper: Contract) -> Iterator[str]:
    if not paper.drills:
        yield "none yet: tokenfleet drill SCENARIO --plan PLAN --contract FILE"
    words = {True: "passed", False: "FAILED", None: "not run"}
    for drill in paper.drills:
        yield f"{drill.name}: {words[drill.passed]} on {drill.made_on} ({drill.how})"
