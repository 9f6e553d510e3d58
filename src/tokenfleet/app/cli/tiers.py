"""``tokenfleet tiers``: what a premium tier costs."""

from pathlib import Path

import click

from tokenfleet.app.cli.face import Face, face_options


@click.command("tiers", short_help="What a premium tier costs: replicas of its own, or the front of the queue.")
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--premium", metavar="TENANT", multiple=True, help="A tenant of the premium tier; repeat for several.")
@click.option("--share", metavar="SHARE", help="Or a share of all requests, drawn by the seed.")
@click.option("--promise", metavar="KEY=LIMIT", multiple=True, required=True, help="Promise to them: ttft_p99=500ms...")
@click.option("--no-cache", is_flag=True, help="Replay everything anew, and keep nothing for the next plan.")
@face_options
@click.pass_obj
def command(
    face: Face,
    /,
    scenario: Path,
    premium: tuple[str, ...],
    share: str | None,
    promise: tuple[str, ...],
    no_cache: bool,
) -> int:
    """Promise some requests of SCENARIO more than the others in four ways, each sized by replay on its replica.

    Replicas of their own with spare ones of their own; shared replicas whose engine serves them first; shared ones in
    order of arrival; or the stricter promise to everybody.
    """
    from tokenfleet.app.cli.progress import shown
    from tokenfleet.app.compose import kept_replays
    from tokenfleet.app.scenario import checked, lines_of, load_scenario, placed
    from tokenfleet.app.spreading import spread_replays
    from tokenfleet.app.tiers import TierOptions, promise_of, tiers, tiers_blocks, tiers_document

    face.action = "comparison"
    asked = load_scenario(scenario)
    values = {"premium": premium, "share": share, "promise": promise_of(promise)}
    given = {name: value for name, value in values.items() if value is not None}
    options = checked(TierOptions, given, lambda path: f"--{' '.join(str(part) for part in path)}")
    with (
        shown(face) as teller,
        placed(lines_of(scenario)),
        spread_replays("local", kept_replays(teller, cache=not no_cache)) as replay,
    ):
        found = tiers(asked, options, teller, replay)
    if face.json:
        face.document(tiers_document(found))
    else:
        face.blocks(tiers_blocks(found))
    return 0
