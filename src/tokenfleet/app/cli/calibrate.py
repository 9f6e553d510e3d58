"""``tokenfleet calibrate``: what one's own measured runs teach."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokenfleet.app.cli.face import Block, Face, face_options

if TYPE_CHECKING:
    from tokenfleet.calibration import Calibration


@click.command("calibrate", short_help="Learn corrections from a few measured runs of your own.")
@click.argument("runs", nargs=-1, required=True, type=click.Path())
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    default="calibration.yaml",
    show_default=True,
    help="Where to write what was learned.",
)
@face_options
@click.pass_obj
def command(face: Face, runs: tuple[str, ...], output: str) -> int:
    """Fit a factor and a slope in concurrency to a few measured runs, and say what they do to runs held out.

    Three runs help already: the lowest, a middle and the highest concurrency. Runs that contradict themselves (a warm
    cache, a slow client, too few requests) are refused by name.
    """
    from tokenfleet.calibration import calibrate, write_calibration

    face.action = "calibration"
    found = calibrate([Path(run) for run in runs])
    write_calibration(found, output)
    if face.json:
        face.document({**found.as_document(), "written": output})
    else:
        face.blocks(_blocks(found, output))
    return 0


def _blocks(found: "Calibration", output: str) -> list[Block]:
    blocks: list[Block] = []
    for one in found.deployments:
        named = f"{one.model} on {one.gpu}, {one.engine}, TP{one.tensor_parallel}, {one.precision}"
        lines = [named]
        for metric, correction in sorted(one.corrections.items()):
            before, after = correction.held_out_error_before_fraction, correction.held_out_error_after_fraction
            told = (
                ""
                if before is None or after is None
                else f"; runs held out: {before:.0%} off before, {after:.0%} after"
            )
            lines.append(
                f"{metric:12} x{correction.factor:.2f} at {correction.reference_concurrency:.0f} in flight, "
                f"slope {correction.slope:+.2f}, 90 % within x{correction.band_factor:.2f} "
                f"from {correction.lowest_concurrency} to {correction.highest_concurrency} in flight, "
                f"{correction.run_count} run{'s' if correction.run_count > 1 else ''}{told}"
            )
        blocks.append(("Learned", lines))
    if found.refused:
        blocks.append(("Refused", [f"{row}  {why}" for row, why in found.refused.items()]))
    blocks.append(("Written", [output]))
    return blocks
