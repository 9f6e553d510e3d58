"""``tokenfleet spike``: known events and unknown bursts."""

from pathlib import Path
from typing import Any

import click

from tokenfleet.app.cli.face import Face, face_options


@click.command("spike", short_help="What an event takes, and how large a burst the fleet rides out.")
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--at", metavar="TIME", help="When the event begins, in the demand. [default: with its busiest minute]")
@click.option("--duration", metavar="TIME", help="How long it lasts. [default: 15min]")
@click.option("--factor", help="Demand of that time against the usual, such as 3.")
@click.option("--tokens", help="Tokens on top of the usual, input and output together, instead of a factor.")
@click.option("--requests", help="Requests on top of the usual, instead of a factor.")
@click.option("--shape", type=click.Choice(["flat", "ramp", "hill", "front"]), help="How it fills its time.")
@click.option("--no-cache", is_flag=True, help="Replay everything anew, and keep nothing for the next plan.")
@face_options
@click.pass_obj
def command(face: Face, /, scenario: Path, no_cache: bool, **options: Any) -> int:  # noqa: ANN401 - click's options by name
    """Say what an event takes of the fleet that SCENARIO plans, and how large a burst it rides out.

    Of an event: its tokens, what the usual fleet makes of it, the fleet that keeps the promise, when to ask for it,
    what to warm, what to reserve, when to let go. Bursts of 10 s, 1 min and 5 min are made larger until the promise
    breaks. Shapes of what is on top: flat, as the usual; ramp, rising to its end; hill; front, all in the first tenth.
    """
    from tokenfleet.app.cli.progress import shown
    from tokenfleet.app.compose import kept_replays
    from tokenfleet.app.named_spike import spike_named
    from tokenfleet.app.scenario import checked, lines_of, load_scenario, placed
    from tokenfleet.app.spike import SpikeOptions, spike, spike_blocks, spike_document
    from tokenfleet.app.spike_pools import PoolsSpiked, pools_spike_blocks, pools_spike_document
    from tokenfleet.app.spreading import spread_replays

    face.action = "spike"
    asked = load_scenario(scenario)
    values = {name: value for name, value in options.items() if value is not None}
    event = checked(SpikeOptions, values, lambda path: f"--{path[0]}")
    with (
        shown(face) as teller,
        placed(lines_of(scenario)),
        spread_replays("local", kept_replays(teller, cache=not no_cache)) as replay,
    ):
        found = (spike if asked.pools is None else spike_named)(asked, event, teller, replay)
    if isinstance(found, PoolsSpiked):
        if face.json:
            face.document(pools_spike_document(found))
        else:
            face.blocks(list(pools_spike_blocks(found)))
    elif face.json:
        face.document(spike_document(found))
    else:
        face.blocks(spike_blocks(found))
    return 0
