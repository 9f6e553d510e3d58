"""``tokenfleet plan``: the main job."""

import time
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokenfleet.app.cli.face import Face, face_options

if TYPE_CHECKING:
    from tokenfleet.app.compose import Composition
    from tokenfleet.app.executor import Executor
    from tokenfleet.app.plan_files import Written
    from tokenfleet.domain.plan import Plan


@click.command("plan", short_help="Find the cheapest fleet that keeps the promise; write plan, contract and report.")
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where to write. [default: ./NAME-plan]",
)
@click.option("--require-feasible", is_flag=True, help="Exit with 1 when no fleet keeps the promise.")
@click.option(
    "--focus",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write a month of the bill there too, as a FOCUS 1.3 file (CSV) for tools that read cloud bills.",
)
@click.option(
    "--executor",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where replays run ahead: threads here, or the workers of a Ray cluster. The plan is the same.",
)
@click.option("--no-cache", is_flag=True, help="Replay everything anew, and keep nothing for the next plan.")
@face_options
@click.pass_obj
def command(
    face: Face,
    scenario: Path,
    folder: Path | None,
    require_feasible: bool,
    focus: Path | None,
    executor: "Executor",
    no_cache: bool,
) -> int:
    """Find the cheapest fleet that keeps the promise of SCENARIO at its peak with spare replicas gone.

    Replays the demand on every candidate that fits and writes plan.json, contract.yaml and report.html to DIR. When
    no fleet keeps the promise, that is an answer: plan.json says why and what to relax, and no contract is written.
    """
    from tokenfleet.app.cli.progress import shown
    from tokenfleet.app.compose import answer, compose, kept_replays, kept_work
    from tokenfleet.app.focus_file import write_focus
    from tokenfleet.app.plan_files import check_folder, write_plan
    from tokenfleet.app.scenario import lines_of, load_scenario, placed
    from tokenfleet.app.spreading import spread_replays
    from tokenfleet.planner import plan_document

    face.action = "plan"
    start_s = time.perf_counter()
    asked = load_scenario(scenario)
    target = folder if folder is not None else Path(f"{asked.name}-plan")
    check_folder(target)
    with shown(face) as teller, placed(lines_of(scenario)):
        kept = kept_replays(teller, cache=not no_cache)
        recall = kept_work(kept, teller)
        composition = compose(asked, teller, recall)
        with spread_replays(executor, kept, recall, announce=teller.announce) as replay:
            plan = answer(composition, teller, replay)
        document = plan_document(plan, composition.workload, composition.resolved)
        teller.say("writing the plan")
        written = write_plan(
            plan, composition, document, target, command=f"tokenfleet plan {scenario}", made_on=date.today()
        )
        if focus is not None and plan.fleets:
            write_focus(plan, composition.trace, focus, made_on=date.today())
    if face.json:
        # The file of a plan is the same bytes each time; how long this one took is told beside it.
        face.document(timed(document, time.perf_counter() - start_s))
    else:
        _tell(face, plan, composition, written)
    return 1 if require_feasible and not plan.fleets else 0


def timed(document: dict[str, object], wall_s: float) -> dict[str, object]:
    """A plan's document with the time that the whole command took, in seconds."""
    search = document["search"]
    return {**document, "search": {**search, "wall_s": round(wall_s, 3)}} if isinstance(search, dict) else document


def _tell(face: Face, plan: "Plan", composition: "Composition", written: "Written") -> None:
    from tokenfleet.app.summary import summary

    face.blocks([("Model", [plan.question.model.name]), *summary(plan, composition.workload)])
    lines = [f"wrote {', '.join(written.files)} to {written.folder}/"]
    if written.stale_contract:
        lines.append(f"{written.folder}/contract.yaml is of an earlier plan and does not hold for this one")
    if plan.fleets:
        lines.append(f"open {written.folder}/report.html in a browser")
    face.blocks([("Next", lines)])
