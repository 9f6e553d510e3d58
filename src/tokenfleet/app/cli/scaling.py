"""``tokenfleet scaling``: ways to scale, compared by replay."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokenfleet.app.cli.face import Face, face_options
from tokenfleet.domain.errors import BadInput, Problem

if TYPE_CHECKING:
    from tokenfleet.app.cli.progress import Teller
    from tokenfleet.app.scaling_pools import ScaledPools
    from tokenfleet.app.scenario_types import Scenario
    from tokenfleet.domain.model import ModelArchitecture
    from tokenfleet.domain.trace import Trace


@click.command("scaling", short_help="Compare ways to scale: GPU-hours against minutes with a broken promise.")
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--gpu", help="The accelerator. [default: the scenario's, where it names one]")
@click.option("--tp", "tensor_parallel", help="GPUs per replica. [default: the smallest of the scenario's that fits]")
@click.option("--precision", help="Weights: bf16, fp8, int8... [default: the scenario's, where it leaves no choice]")
@click.option("--kv-dtype", help="KV cache: bf16 or fp8. [default: the scenario's]")
@click.option(
    "--plan", "planned", type=click.Path(path_type=Path), help="Take the replica of a plan.json or its folder."
)
@click.option(
    "--report",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a page with charts there.",
)
@face_options
@click.pass_obj
def command(face: Face, /, scenario: Path, planned: Path | None, report: Path | None, **options: object) -> int:
    """Replay the traffic of SCENARIO with each way to scale: queue, KV memory, TTFT, a schedule, a forecast.

    Of a plan with pools each is scaled on its own, and the best ways are replayed together; of pools that the scenario
    names those with autoscaling, the others with the replicas of the scenario or of --plan. The scenario's own policy
    joins in. Needs its key autoscaling with max; the cold start is estimated where the
    scenario does not say it.
    """
    from tokenfleet import catalog, simulator
    from tokenfleet.app.cli.progress import shown
    from tokenfleet.app.compose import demand_of, must_generate
    from tokenfleet.app.planned_pools import has_pools
    from tokenfleet.app.scaling_compare import compared
    from tokenfleet.app.scaling_words import advice, comparison_document, comparison_rows
    from tokenfleet.app.scenario import lines_of, load_scenario, placed
    from tokenfleet.app.simulate_question import fleet_asked
    from tokenfleet.app.simulate_words import fleet_name
    from tokenfleet.app.writing import write_text

    face.action = "comparison"
    asked = load_scenario(scenario)
    with shown(face) as teller, placed(lines_of(scenario)):
        model = catalog.model(asked.model)
        if asked.pools is not None:
            return _tell_named(face, asked, planned, teller, options, (scenario, report))
        must_generate(model)
        if planned is not None and asked.groups is None and has_pools(planned, model):
            return _tell_pools(face, asked, model, planned, teller, options, (scenario, report))
        fleet = fleet_asked(asked, model, planned, options)
        teller.say("reading the demand" if asked.workload.trace else "drawing the demand")
        trace, _ = demand_of(asked)
        simulator.warm_up(announce=teller.announce)
        found, setting, note = compared(asked, fleet, trace, teller, planned=planned is not None)
        if report is not None:
            from tokenfleet.app.report import render_scaling

            made = f"tokenfleet scaling {scenario} --report {report}"
            page = render_scaling(found, name=asked.name, advice=advice(found, setting), notes=(note,), command=made)
            write_text(page, report)
    if face.json:
        face.document(comparison_document(found, setting))
    else:
        face.blocks(
            [
                ("Fleet", [f"up to {fleet_name(setting.fleet.groups[0])}", note]),
                ("Ways", comparison_rows(found)),
                ("Best", advice(found, setting)),
                *([("Next", [f"wrote {report}; open it in a browser"])] if report is not None else []),
            ]
        )
    return 0


def _tell_named(
    face: Face,
    asked: "Scenario",
    planned: Path | None,
    teller: "Teller",
    options: Mapping[str, object],
    page: "tuple[Path, Path | None]",
) -> int:
    """The same for every pool that the scenario names and scales."""
    from tokenfleet.app.named_counts import as_planned, system_as_planned
    from tokenfleet.app.pools_question import pool_system
    from tokenfleet.app.scaling_named import compared_named

    _refuse_options(options, "does not go with the scenario's pools")
    named = asked if planned is None else as_planned(asked, planned)
    system_of = pool_system if planned is None else partial(system_as_planned, path=planned)
    return _told(face, asked, teller, page, planned, lambda trace: compared_named(named, trace, teller, system_of))


def _tell_pools(
    face: Face,
    asked: "Scenario",
    model: "ModelArchitecture",
    planned: Path,
    teller: "Teller",
    options: Mapping[str, object],
    page: "tuple[Path, Path | None]",
) -> int:
    """The same for every pool of a plan, and all of them together."""
    from tokenfleet.app.scaling_pools import compared_pools

    _refuse_options(options, f"is about one fleet, and {planned} has pools")
    return _told(face, asked, teller, page, planned, lambda trace: compared_pools(asked, model, planned, trace, teller))


def _refuse_options(options: Mapping[str, object], what: str) -> None:
    from tokenfleet.app.simulate_question import OPTIONS

    said = [OPTIONS.get(key, f"--{key}") for key, value in options.items() if value is not None]
    if said:
        raise BadInput(Problem(each, what, "leave it out") for each in said)


def _told(
    face: Face,
    asked: "Scenario",
    teller: "Teller",
    page: "tuple[Path, Path | None]",
    planned: Path | None,
    compared: "Callable[[Trace], ScaledPools]",
) -> int:
    from tokenfleet import simulator
    from tokenfleet.app.compose import demand_of
    from tokenfleet.app.scaling_pools import scaled_pools_blocks, scaled_pools_document, together_lines

    teller.say("reading the demand" if asked.workload.trace else "drawing the demand")
    trace, _ = demand_of(asked)
    simulator.warm_up(announce=teller.announce)
    found = compared(trace)
    scenario, report = page
    if report is not None:
        from tokenfleet.app.report import render_scaled_pools
        from tokenfleet.app.writing import write_text

        plan = "" if planned is None else f" --plan {planned}"
        made = f"tokenfleet scaling {scenario}{plan} --report {report}"
        write_text(render_scaled_pools(found, name=asked.name, lead=together_lines(found), command=made), report)
    if face.json:
        face.document(scaled_pools_document(found))
    else:
        wrote = [("Next", [f"wrote {report}; open it in a browser"])] if report is not None else []
        face.blocks([*scaled_pools_blocks(found), *wrote])
    return 0
