"""``tokenfleet showback``: who pays for a running fleet."""

from pathlib import Path

import click

from tokenfleet.app.cli.face import Face, face_options


@click.command("showback", short_help="Who pays for a running fleet, from its counters.")
@click.argument("counters", type=click.Path(path_type=Path))
@click.argument("usage", type=click.Path(path_type=Path))
@click.option("--gpus", required=True, type=click.IntRange(min=1), help="GPUs paid for, the spare ones included.")
@click.option("--spare-gpus", default=0, type=click.IntRange(min=0), help="Of them, kept for the day one fails.")
@click.option("--usd", "price", required=True, metavar="DOLLARS", help="Dollars of a GPU-hour.")
@click.option("--interval", default="60s", metavar="TIME", help="Time of one row of COUNTERS. [default: 60s]")
@face_options
@click.pass_obj
def command(face: Face, /, counters: Path, usage: Path, gpus: int, spare_gpus: int, price: str, interval: str) -> int:
    """Share the price of a running fleet over its tenants, by what each kind of token takes of the GPUs.

    COUNTERS is a CSV with a row for each interval: busy_gpu_s, input_tokens (those no cache served), cached_tokens,
    output_tokens. USAGE has a row for each tenant and the same tokens in all that time. What a token of each kind takes
    is learnt from the counters; headroom, idle and spare stay lines of their own, and all lines are the invoice, to the
    cent.
    """
    from tokenfleet.app.quantities import Unreadable, parse_dollars, parse_duration_s
    from tokenfleet.app.showback import showback, showback_blocks, showback_document
    from tokenfleet.domain.errors import BadInput, Problem

    face.action = "showback"
    read: dict[str, float] = {}
    problems = []
    for name, parse, text in (("--usd", parse_dollars, price), ("--interval", parse_duration_s, interval)):
        try:
            read[name] = parse(text)
        except Unreadable as error:
            problems.append(Problem(name, error.what, error.mend))
    if problems:
        raise BadInput(problems)
    found = showback(
        counters,
        usage,
        interval_s=read["--interval"],
        gpu_count=gpus,
        usd_per_gpu_hour=read["--usd"],
        spare_gpu_count=spare_gpus,
    )
    if face.json:
        face.document(showback_document(found))
    else:
        face.blocks(showback_blocks(found))
    return 0
