"""``tokenfleet pack``: several scenarios on shared nodes."""

from pathlib import Path

import click

from tokenfleet.app.cli.face import Face, face_options


@click.command("pack", short_help="Put the fleets of several scenarios on shared nodes.")
@click.argument("scenarios", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--isolate",
    metavar="NAME",
    multiple=True,
    help="This scenario, or this pool of one, shares no node; repeat for several.",
)
@click.option("--no-cache", is_flag=True, help="Replay everything anew, and keep nothing for the next plan.")
@face_options
@click.pass_obj
def command(face: Face, scenarios: tuple[Path, ...], isolate: tuple[str, ...], no_cache: bool) -> int:
    """Plan SCENARIOS together: the fleets, one of each, that need the cheapest whole nodes.

    Each is planned on every gpu it names; pools that it names, or that its plan buys, are put on nodes one by one. Says
    what stays free, who shares nodes and their fate, who survives the loss of a node, what each pays of the whole
    nodes, and how much of the hottest pool could move in from another region without starving others. A scenario with
    redundancy: {nodes: n+1} gets as many more replicas as its fullest node holds; one with {zones: n+1} keeps enough in
    the zones that are left, and says what each loss leaves.
    """
    from tokenfleet.app.cli.progress import shown
    from tokenfleet.app.compose import kept_replays
    from tokenfleet.app.pack import packed
    from tokenfleet.app.pack_words import pack_blocks, pack_document
    from tokenfleet.app.scenario import lines_of, load_scenario
    from tokenfleet.app.spreading import spread_replays

    face.action = "pack"
    asked = [load_scenario(path) for path in scenarios]
    with shown(face) as teller, spread_replays("local", kept_replays(teller, cache=not no_cache)) as replay:
        found = packed(asked, isolate, teller, replay, [lines_of(path) for path in scenarios])
    if face.json:
        face.document(pack_document(found))
    else:
        face.blocks(pack_blocks(found))
    return 0
