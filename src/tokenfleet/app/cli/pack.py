"""``tokenfleet pack``: several scenarios on shared nodes."""

from pathlib import Path

import click

from tokenfleet.app.cli.face import Face, face_options


@click.command("pack", short_help="Put the fleets of several scenarios on shared nodes.")
@click.argument("scenarios", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--isolate", metavar="NAME", multiple=True, help="This scenario shares no node; repeat for several.")
@face_options
@click.pass_obj
def command(face: Face, scenarios: tuple[Path, ...], isolate: tuple[str, ...]) -> int:
    """Plan each of SCENARIOS, then put all replicas on as few whole nodes as hold them.

    Says what stays free, who shares nodes and their fate, who survives the loss of a node, what each pays of the whole
    nodes, and how much of the hottest pool could move in from another region without starving others. A scenario with
    redundancy: {nodes: n+1} gets as many more replicas as its fullest node holds.
    """
    from tokenfleet.app.cli.progress import shown
    from tokenfleet.app.pack import pack_blocks, pack_document, packed
    from tokenfleet.app.scenario import load_scenario

    face.action = "pack"
    asked = [load_scenario(path) for path in scenarios]
    with shown(face) as teller:
        found = packed(asked, isolate, teller)
    if face.json:
        face.document(pack_document(found))
    else:
        face.blocks(pack_blocks(found))
    return 0
