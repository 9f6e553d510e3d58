"""``tokenfleet synth``: traffic like a measured one, or of a known kind, drawn anew."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tokenfleet.app.cli.face import Block, Face, face_options

if TYPE_CHECKING:
    from tokenfleet.domain.trace import Trace, Workload

_OPTIONS: Final = {
    "source": "SOURCE",
    "target": "-o",
    "mean_rate": "--rate",
    "peak_rate": "--peak-rate",
    "duration": "--duration",
    "scale": "--scale",
    "stretch": "--stretch",
    "splice": "--splice",
    "seed": "--seed",
}


@click.command("synth", short_help="Draw traffic like a profile, or of a preset.")
@click.argument("source", metavar="SOURCE")
@click.option(
    "-o",
    "--output",
    "target",
    required=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Where to write: Parquet.",
)
@click.option("--rate", "mean_rate", help="Mean requests per second: 20, 20/s or 1200/min. [default: as measured]")
@click.option("--peak-rate", help="Requests per second in the busiest minute, instead of --rate.")
@click.option("--duration", help="How much traffic: 30min, 6h. [default: as measured; 1h for a preset]")
@click.option("--scale", help="Times as many requests in the same time. [default: 1]")
@click.option("--stretch", help="The same requests over this many times the time. [default: 1]")
@click.option(
    "--splice", multiple=True, metavar="FILE@TIME", help="Put another trace or log on top: launch.parquet@30min."
)
@click.option("--seed", type=int, help="Start of every random draw. [default: 1]")
@face_options
@click.pass_obj
def command(face: Face, /, target: Path, **options: Any) -> int:  # noqa: ANN401 - click's options by name
    """Draw traffic like the profile SOURCE, or of the preset SOURCE, and write it as a trace.

    Kept of a profile: both length distributions, how they go together, the load of every minute, how each tenant
    bunches, sessions (turns, growth, pauses) and what prompts share, as far as the profile knows them.
    """
    from tokenfleet import workload
    from tokenfleet.app.cli.progress import shown
    from tokenfleet.app.draw_question import DrawQuestion, drawn
    from tokenfleet.app.scenario import checked
    from tokenfleet.app.traffic_document import traffic_document
    from tokenfleet.app.writing import check_results

    face.action = "draw"
    given = {name: value for name, value in options.items() if value not in (None, ())} | {"target": str(target)}
    question = checked(DrawQuestion, given, lambda path: _OPTIONS[str(path[0])] if path else "command line")
    check_results({"-o": target}, inputs=[Path(question.source), *(Path(event.path) for event in question.splice)])
    with shown(face) as teller:
        teller.say("drawing the traffic")
        trace, source = drawn(question)
        described = workload.profile(trace)
        teller.say("writing the trace")
        workload.write_trace(trace, target)
    if face.json:
        document = {"trace": str(target), "source": question.source, "seed": question.seed}
        face.document({**document, **traffic_document(described), "kind": "drawn", "confidence": None})
    else:
        face.blocks(_blocks(trace, described, source, target))
    return 0


def _blocks(trace: "Trace", described: "Workload", source: "Workload | None", target: Path) -> list[Block]:
    from tokenfleet.app.traffic_words import beside_blocks

    lines = [f"tokenfleet profile {target}", f"plan for it: workload: {{trace: {target}}} in a scenario"]
    return [*beside_blocks(trace, described, source), ("Next", [f"wrote {target}", *lines])]
