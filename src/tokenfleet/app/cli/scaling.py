"""``tokenfleet scaling``: ways to scale, compared by replay."""

from pathlib import Path

import click

from tokenfleet.app.cli.face import Face, face_options


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

    The scenario's own policy joins in. Needs its key autoscaling with max; the cold start is estimated where the
    scenario does not say it.
    """
    from tokenfleet import catalog, simulator
    from tokenfleet.app.cli.progress import shown
    from tokenfleet.app.compose import demand_of, must_generate
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
        must_generate(model)
        fleet = fleet_asked(asked, model, planned, options)
        teller.say("reading the demand" if asked.workload.trace else "drawing the demand")
        trace, _ = demand_of(asked)
        simulator.warm_up(announce=teller.announce)
        found, setting, note = compared(asked, fleet, trace, teller)
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
