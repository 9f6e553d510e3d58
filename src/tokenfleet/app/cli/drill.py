"""``tokenfleet drill``: bad days, gone through beforehand."""

from datetime import date
from pathlib import Path
from typing import Any

import click

from tokenfleet.app.cli.face import Face, face_options


@click.command("drill", short_help="Go through the bad days of a fleet: ramp, burst, losses, rollout, flood.")
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--plan", type=click.Path(path_type=Path), help="The fleet of this plan.json. [default: planned anew]")
@click.option("--replicas", help="Another number of replicas, to see what it changes.")
@click.option("--only", multiple=True, metavar="NAME", help="This drill only; repeat for several.")
@click.option("--hold", metavar="TIME", help="How long the peak is held. [default: 10min]")
@click.option("--burst", metavar="FACTOR", help="Demand of the burst against the peak. [default: 1.5]")
@click.option("--burst-length", metavar="TIME", help="How long it lasts. [default: 30s]")
@click.option("--flood", metavar="SHARE", help="Requests of the flooding tenant against all others. [default: 20%]")
@click.option("--contract", type=click.Path(path_type=Path), help="Write the results into this contract.")
@face_options
@click.pass_obj
def command(
    face: Face,
    /,
    scenario: Path,
    plan: Path | None,
    contract: Path | None,
    **options: Any,  # noqa: ANN401 - click's options by name
) -> int:
    """Go through the bad days of the fleet that SCENARIO plans: each drill passes or fails, clause by clause.

    ramp: demand rises to the peak and stays. burst: half as much again for half a minute. replica, node, zone: the
    worst one fails at the fullest moment, its requests are lost and sent again. rollout: a new version from the
    beginning of the peak. flood: one tenant sends prompts as long as the longest. Of pools that SCENARIO names a
    replica, a node and a rollout are drilled in each, all else in all of them together. Exits with 1 when a drill
    fails.
    """
    from tokenfleet.app.cli.progress import shown
    from tokenfleet.app.drill import DrillOptions, drill_blocks, drill_document, drilled
    from tokenfleet.app.named_drill import drilled_named
    from tokenfleet.app.scenario import checked, lines_of, load_scenario, placed

    face.action = "drill"
    asked = load_scenario(scenario)
    values = {name: value for name, value in options.items() if value not in (None, ())}
    harder = checked(DrillOptions, values, lambda path: f"--{path[0]}".replace("_", "-"))
    with shown(face) as teller, placed(lines_of(scenario)):
        how = drilled if asked.pools is None else drilled_named
        found = how(asked, harder, plan=plan, paper=contract, today=date.today(), teller=teller)
    if face.json:
        face.document(drill_document(found))
    else:
        face.blocks(drill_blocks(found))
    return 1 if found.failed else 0
