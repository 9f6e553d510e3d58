"""``tokenfleet contract``: does it still hold."""

from datetime import date
from pathlib import Path

import click

from tokenfleet.app.cli.face import Face, face_options


@click.command("contract", short_help="Does a contract still hold: day, digests, drills, what it survives.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--scenario", type=click.Path(path_type=Path), help="What it should rest on: demand, model, facts, prices."
)
@face_options
@click.pass_obj
def command(face: Face, /, file: Path, scenario: Path | None) -> int:
    """Check the contract in FILE: its last day, its drills and, with --scenario, whether anything it rests on changed.

    Says what is promised, on which proof, what may be lost, and how soon one more replica is ready. Exits with 1 when
    the contract is void or expired, or when a drill in it was failed.
    """
    from tokenfleet.app.cli.progress import shown
    from tokenfleet.app.contract_paper import standing, standing_blocks, standing_document
    from tokenfleet.app.scenario import load_scenario

    face.action = "check"
    asked = load_scenario(scenario) if scenario is not None else None
    with shown(face) as teller:
        found = standing(file, asked, today=date.today(), teller=teller)
    if face.json:
        face.document(standing_document(found))
    else:
        face.blocks(standing_blocks(found))
    return 0 if found.holds else 1
