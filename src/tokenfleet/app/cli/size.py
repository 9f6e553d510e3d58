"""``tokenfleet size``: how many replicas each pool of a scenario needs."""

from pathlib import Path

import click

from tokenfleet.app.cli.face import Face, face_options


@click.command("size", short_help="Find how many replicas each pool of a scenario needs.")
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option(
    "--report",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a page with charts there.",
)
@face_options
@click.pass_obj
def command(face: Face, /, scenario: Path, report: Path | None) -> int:
    """Find the cheapest counts of the pools in SCENARIO that keep its promise, by replay.

    Each pool is given as many replicas as the promise of the whole way needs, spare ones on top in every pool. The
    replicas that the scenario names are where the search starts; 64 times as many are the most that is tried.
    """
    from tokenfleet.app.cli.progress import shown
    from tokenfleet.app.pool_sizes import refuse_unsizable, size_pools, sizes_blocks, sizes_document
    from tokenfleet.app.scenario import lines_of, load_scenario, placed
    from tokenfleet.domain.errors import BadInput

    face.action = "sizing"
    asked = load_scenario(scenario)
    if asked.pools is None:
        raise BadInput.at(str(scenario), "names no pools", "tokenfleet plan sizes one fleet")
    with shown(face) as teller, placed(lines_of(scenario)):
        refuse_unsizable(asked)
        found = size_pools(asked, teller)
        if report is not None:
            from tokenfleet.app.report import render_sizes
            from tokenfleet.app.writing import write_text

            made = f"tokenfleet size {scenario} --report {report}"
            write_text(render_sizes(found, command=made), report)
    if face.json:
        face.document(sizes_document(found))
    else:
        wrote = [("Next", [f"wrote {report}; open it in a browser"])] if report is not None else []
        face.blocks([*sizes_blocks(found), *wrote])
    return 0
