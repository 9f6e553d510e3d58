"""``tokenfleet plan``: the main job."""

import time
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokenfleet.app.cli.face import Face, face_options
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass

if TYPE_CHECKING:
    from tokenfleet.app.compose import Composition, Teller
    from tokenfleet.app.executor import Executor
    from tokenfleet.app.plan_files import Written
    from tokenfleet.app.replay_cache import ReplayCache
    from tokenfleet.app.scenario_types import Scenario
    from tokenfleet.app.watching import Stamps
    from tokenfleet.domain.plan import Plan
    from tokenfleet.planner import Recall


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
@click.option("--watch", is_flag=True, help="Stay, and plan again whenever the scenario or its trace is saved.")
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
    watch: bool,
    no_cache: bool,
) -> int:
    """Find the cheapest fleet that keeps the promise of SCENARIO at its peak with spare replicas gone.

    Replays the demand on every candidate that fits and writes plan.json, contract.yaml and report.html to DIR. When
    no fleet keeps the promise, that is an answer: plan.json says why and what to relax, and no contract is written.
    """
    face.action = "plan"
    job = _Job(face, scenario, folder, focus, executor, cache=not no_cache)
    files = job.files() if watch else {}
    plan = job.done()
    if watch:
        _watch(job, files, plan)
    return 1 if require_feasible and not plan.fleets else 0


@dataclass(frozen=True, slots=True)
class _Job:
    """One plan, which may be made again and again."""

    face: Face
    scenario: Path
    folder: Path | None
    focus: Path | None
    executor: "Executor"
    cache: bool

    def done(self) -> "Plan":
        """Plan, write and tell."""
        from tokenfleet.app.cli.progress import shown
        from tokenfleet.app.compose import kept_replays, kept_work
        from tokenfleet.app.focus_file import write_focus
        from tokenfleet.app.plan_files import check_file, check_folder, write_plan
        from tokenfleet.app.scenario import lines_of, load_scenario, placed
        from tokenfleet.planner import plan_document

        start_s = time.perf_counter()
        asked = load_scenario(self.scenario)
        target = self.folder if self.folder is not None else Path(f"{asked.name}-plan")
        check_folder(target)
        if self.focus is not None:
            check_file(self.focus, "--focus", beside=target)
        with shown(self.face) as teller, placed(lines_of(self.scenario)):
            kept = kept_replays(teller, cache=self.cache)
            recall = kept_work(kept, teller)
            plan, composition = self._made(asked, teller, kept, recall)
            document = plan_document(plan, composition.workload, composition.resolved)
            teller.say("writing the plan")
            command = f"tokenfleet plan {self.scenario}"
            written = write_plan(plan, composition, document, target, command=command, made_on=date.today())
            if self.focus is not None and plan.fleets:
                write_focus(plan, composition.trace, self.focus, made_on=date.today())
        if self.face.json:
            # The file of a plan is the same bytes each time; how long this one took is told beside it.
            self.face.document(timed(document, time.perf_counter() - start_s))
        else:
            _tell(self.face, plan, composition, written, self.focus)
        return plan

    def _made(
        self, asked: "Scenario", teller: "Teller", kept: "ReplayCache | None", recall: "Recall"
    ) -> "tuple[Plan, Composition]":
        """The plan of one fleet, of pools that cost less, or of those that the scenario names."""
        from tokenfleet.app.compose import answer, compose
        from tokenfleet.app.spreading import spread_replays

        if asked.pools is not None:
            from tokenfleet.app.named_plan import plan_named

            with spread_replays(self.executor, kept, recall, announce=teller.announce) as replay:
                return plan_named(asked, teller, replay)
        composition = compose(asked, teller, recall)
        with spread_replays(self.executor, kept, recall, announce=teller.announce) as replay:
            return answer(composition, teller, replay), composition

    def files(self) -> "Stamps":
        """The scenario and what it reads its demand from, as they are now."""
        from tokenfleet.app.scenario import load_scenario
        from tokenfleet.app.watching import stamps

        source = load_scenario(self.scenario).workload
        named = [*(source.trace or ()), *([] if source.profile is None else [source.profile])]
        return stamps([self.scenario, *map(Path, named)])


def _watch(job: _Job, files: "Stamps", plan: "Plan") -> None:
    """Plans again whenever a file is saved, until somebody stops it, and says what that changed in ``plan``.

    What cannot be used is said and waited for.
    """
    from tokenfleet.app.changed_words import changed
    from tokenfleet.app.watching import wait_for_change

    while True:
        job.face.note(f"watching {', '.join(map(str, files))}; Ctrl+C ends")
        try:
            files = wait_for_change(files)
        except KeyboardInterrupt:
            return
        try:
            # Files are looked at before the plan: what is saved meanwhile is planned next.
            files = job.files()
            before, plan = plan, job.done()
            if not job.face.json:
                job.face.blocks([("Changed", changed(before, plan))])
        except BadInput as error:
            job.face.problems(error.problems)


def timed(document: dict[str, object], wall_s: float) -> dict[str, object]:
    """A plan's document with the time that the whole command took, in seconds."""
    search = document["search"]
    return {**document, "search": {**search, "wall_s": round(wall_s, 3)}} if isinstance(search, dict) else document


def _tell(face: Face, plan: "Plan", composition: "Composition", written: "Written", focus: Path | None) -> None:
    from tokenfleet.app.summary import summary

    models = dict.fromkeys([plan.question.model.name, *(pool.plan.question.model.name for pool in plan.pools)])
    face.blocks([("Model", [", ".join(models)]), *summary(plan, composition.workload)])
    lines = [f"wrote {', '.join(written.files)} to {written.folder}/"]
    if written.stale_contract:
        lines.append(f"{written.folder}/contract.yaml is of an earlier plan and does not hold for this one")
    if focus is not None:
        lines.append(f"wrote the bill to {focus}" if plan.fleets else f"no fleet, so no bill: {focus} is not written")
    if plan.fleets:
        lines.append(f"open {written.folder}/report.html in a browser")
    face.blocks([("Next", lines)])
