"""``tokenfleet simulate``: what a given fleet makes of the traffic, without a search."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokenfleet.app.cli.face import Face, face_options

if TYPE_CHECKING:
    from tokenfleet.app.pools_run import SystemOf
    from tokenfleet.app.scenario_types import Scenario
    from tokenfleet.app.simulate_run import How


@click.command("simulate", short_help="Replay the traffic on a fleet you name, and say what holds it up.")
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--replicas", help="Replicas of the fleet. [default: 1, or as planned]")
@click.option("--gpu", help="The accelerator. [default: the scenario's, where it names one]")
@click.option("--tp", "tensor_parallel", help="GPUs per replica. [default: the smallest of the scenario's that fits]")
@click.option("--precision", help="Weights: bf16, fp8, int8... [default: the scenario's, where it leaves no choice]")
@click.option("--kv-dtype", help="KV cache: bf16 or fp8. [default: the scenario's]")
@click.option("--plan", "planned", type=click.Path(path_type=Path), help="Take the fleet of a plan.json or its folder.")
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where to write. [default: ./NAME-simulation]",
)
@click.option("--interval", metavar="TIME", help="Time between two samples of queues and KV use. [default: by length]")
@click.option("--as-logged", is_flag=True, help="The log ran on this very fleet: compare the times its clients saw.")
@click.option(
    "--warn-waiting",
    metavar="COUNT",
    type=click.IntRange(min=0),
    default=10,
    help="More requests waiting on a replica are a warning. [default: 10]",
)
@click.option(
    "--alarm-waiting",
    metavar="COUNT",
    type=click.IntRange(min=0),
    default=50,
    help="More requests waiting on a replica are an emergency. [default: 50]",
)
@click.option(
    "--ttft-up",
    metavar="FACTOR",
    type=click.FloatRange(1.0, 1e6),
    default=3.0,
    help="TTFT p95 is up from this multiple of the same requests alone on. [default: 3]",
)
@click.option(
    "--itl-up",
    metavar="FACTOR",
    type=click.FloatRange(1.0, 1e6),
    default=3.0,
    help="ITL p50 is up from this multiple of the same requests alone on. [default: 3]",
)
@face_options
@click.pass_obj
def command(
    face: Face, /, scenario: Path, folder: Path | None, planned: Path | None, as_logged: bool, **options: object
) -> int:
    """Replay the traffic of SCENARIO on a fleet you name, without a search, and say what holds it up.

    The fleet comes from options, from an earlier plan with --plan, or from the pools of the scenario, whose numbers
    --plan gives. Writes
    requests.parquet, telemetry.parquet, waits.parquet, fleet.parquet, gaps.json, summary.json and timeline.html to DIR;
    with pools also calls.parquet.
    """
    from tokenfleet import catalog
    from tokenfleet.app.cli.progress import shown
    from tokenfleet.app.compose import must_generate
    from tokenfleet.app.named_counts import as_planned, system_as_planned
    from tokenfleet.app.planned_pools import has_pools, planned_system
    from tokenfleet.app.report import render_timeline
    from tokenfleet.app.scenario import lines_of, load_scenario, placed
    from tokenfleet.app.simulate_document import simulation_document
    from tokenfleet.app.simulate_files import check_target, write_simulation
    from tokenfleet.app.simulate_question import fleet_asked
    from tokenfleet.app.simulate_run import simulate
    from tokenfleet.app.simulate_words import diagnosis_words, simulation_blocks

    face.action = "simulation"
    asked = load_scenario(scenario)
    how = _how(options, as_logged=as_logged)
    target = folder if folder is not None else Path(f"{asked.name}-simulation")
    check_target(target)
    if asked.pools is not None:
        if planned is None:
            return _pools(face, asked, scenario, target, how, options)
        named, system_of = as_planned(asked, planned), partial(system_as_planned, path=planned)
        return _pools(face, named, scenario, target, how, options, system_of)
    if planned is not None and has_pools(planned, catalog.model(asked.model)):
        return _pools(face, asked, scenario, target, how, options, partial(planned_system, path=planned))
    with shown(face) as teller, placed(lines_of(scenario)):
        model = catalog.model(asked.model)
        must_generate(model)
        fleet = fleet_asked(asked, model, planned, options)
        run = simulate(asked, model, fleet, how, teller)
        document = simulation_document(run, diagnosis_words)
        teller.say("writing the simulation")
        written = write_simulation(
            run, document, render_timeline(run, command=f"tokenfleet simulate {scenario}"), target
        )
    if face.json:
        face.document(document)
    else:
        lines = [f"wrote {', '.join(written)} to {target}/", f"open {target}/timeline.html in a browser"]
        face.blocks(simulation_blocks(run, lines))
    return 0


def _pools(
    face: Face,
    asked: "Scenario",
    scenario: Path,
    target: Path,
    how: "How",
    fleet_options: dict[str, object],
    system_of: "SystemOf | None" = None,
) -> int:
    from tokenfleet.app.cli.progress import shown
    from tokenfleet.app.pools_document import pools_document, write_pools
    from tokenfleet.app.pools_question import pool_system
    from tokenfleet.app.pools_run import simulate_pools
    from tokenfleet.app.pools_words import pools_blocks
    from tokenfleet.app.report import render_pools
    from tokenfleet.app.scenario import lines_of, placed
    from tokenfleet.app.simulate_question import OPTIONS
    from tokenfleet.domain.errors import BadInput, Problem

    extra = [OPTIONS.get(key, f"--{key}") for key, value in fleet_options.items() if value is not None]
    extra += ["--as-logged"] if how.as_logged else []
    if extra:
        whose = "the scenario's pools" if asked.pools is not None else "the pools of the plan"
        raise BadInput(Problem(each, f"does not go with {whose}", "leave it out") for each in extra)
    with shown(face) as teller, placed(lines_of(scenario)):
        run = simulate_pools(asked, how, teller, system_of or pool_system)
        document = pools_document(run)
        teller.say("writing the simulation")
        written = write_pools(run, document, render_pools(run, command=f"tokenfleet simulate {scenario}"), target)
    if face.json:
        face.document(document)
    else:
        lines = [f"wrote {', '.join(written)} to {target}/", f"open {target}/timeline.html in a browser"]
        face.blocks(pools_blocks(run, lines))
    return 0


def _how(options: dict[str, object], *, as_logged: bool) -> "How":
    from tokenfleet.app.quantities import Unreadable, parse_duration_s
    from tokenfleet.app.simulate_run import How
    from tokenfleet.contract import DiagnosisLimits
    from tokenfleet.domain.errors import BadInput

    interval, warn, alarm, ttft_up, itl_up = (
        options.pop(name) for name in ("interval", "warn_waiting", "alarm_waiting", "ttft_up", "itl_up")
    )
    if int(str(alarm)) < int(str(warn)):
        raise BadInput.at("--alarm-waiting", f"{alarm} is below --warn-waiting {warn}", "raise it, or lower the other")
    try:
        interval_s = None if interval is None else parse_duration_s(interval)
    except Unreadable as error:
        raise BadInput.at("--interval", error.what, error.mend) from None
    limits = DiagnosisLimits(
        waiting_warning_count=int(str(warn)),
        waiting_emergency_count=int(str(alarm)),
        ttft_up_factor=float(str(ttft_up)),
        itl_up_factor=float(str(itl_up)),
    )
    return How(limits=limits, interval_s=interval_s, as_logged=as_logged)
