"""``tokenfleet profile``: what is wrong with a log, and what its traffic is like."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tokenfleet.app.cli.face import Block, Face, face_options

if TYPE_CHECKING:
    from tokenfleet.app.intake import Found
    from tokenfleet.domain.trace import Quality, Workload

_FILE: Final = click.Path(path_type=Path)


def _mapping(_ctx: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """``arrival=ts,input_tokens=in``, once or several times."""
    pairs = [part.strip() for value in values for part in value.split(",") if part.strip()]
    wrong = [pair for pair in pairs if not all(side.strip() for side in pair.partition("=")[::2])]
    if wrong:
        raise click.BadParameter(f'"{wrong[0]}" is not ROLE=COLUMN, such as arrival=ts')
    return {role.strip(): column.strip() for role, _, column in (pair.partition("=") for pair in pairs)}


@click.command("profile", short_help="Say what is wrong with a log, and what its traffic is like.")
@click.argument("files", nargs=-1, required=True)
@click.option("-o", "--output", "profile_file", metavar="FILE", type=_FILE, help="Write the profile as JSON.")
@click.option("--html", "page", metavar="FILE", type=_FILE, help="Write a page with charts; one file, works offline.")
@click.option("--compare", metavar="OLD", type=_FILE, help="Say what moved since this profile was written.")
@click.option("--format", "log_format", help="Format of the log, when it is not the one found from the content.")
@click.option(
    "--columns", multiple=True, callback=_mapping, metavar="ROLE=COLUMN", help="Columns of a table: arrival=ts."
)
@click.option("--zone", help="Time zone of stamps that are written without one, such as Europe/Berlin.")
@click.option("--time-unit", type=click.Choice(["s", "ms", "us", "ns"]), help="Unit of stamps that are numbers.")
@click.option("--cached", type=click.Choice(["inside", "outside"]), help="Whether input tokens contain cached ones.")
@click.option(
    "--zero-output",
    type=click.Choice(["drop", "keep"]),
    default="drop",
    help="Rows without output tokens: failed calls, or embedding traffic to keep. [default: drop]",
)
@click.option(
    "--unfinished",
    type=click.Choice(["drop", "impute"]),
    default="drop",
    help="Calls that failed or lost their counts: leave out, or keep with lengths like theirs. [default: drop]",
)
@click.option(
    "--in-parts",
    "parts",
    type=click.Choice(["auto", "yes", "no"]),
    default="auto",
    help="Count tables part by part, in little memory; auto does so for large files. [default: auto]",
)
@click.option(
    "--executor",
    type=click.Choice(["local", "ray"]),
    default="local",
    help="Who counts the parts: threads here, or a Ray cluster that sees the same paths. [default: local]",
)
@click.option("--rejects", metavar="FILE", type=_FILE, help="Write rows that were left out, by file and line, as CSV.")
@click.option("--anonymize", "salt", metavar="SALT", help="Hash names of tenants and sessions with this secret text.")
@click.option("--engine", default="vllm", help="Whose metrics a Prometheus server is asked for. [default: vllm]")
@click.option("--last", default="1d", help="How far back a Prometheus server is asked: 6h, 7d. [default: 1d]")
@click.option("--labels", default="", metavar="MATCHERS", help='Which series of the server: namespace="prod".')
@face_options
@click.pass_obj
def command(face: Face, /, files: tuple[str, ...], **options: Any) -> int:  # noqa: ANN401 - click's options by name
    """Say what FILES hold and what is odd about it, then describe the traffic.

    FILES are request logs of any known format (several become one trace), sums per minute, hour or day, metrics pages
    of an engine (two pages: what happened from the first to the second), or the address of a Prometheus server.
    """
    from tokenfleet.app.writing import check_results
    from tokenfleet.domain.trace import Workload
    from tokenfleet.workload import compare, load_profile

    face.action = "profile"
    paths = [Path(name) for name in files]
    results = {"-o": options["profile_file"], "--html": options["page"], "--rejects": options["rejects"]}
    check_results(results, inputs=paths)
    old = load_profile(options["compare"]) if options["compare"] is not None else None
    found = _found(face, files, options)
    changes = None
    if isinstance(found, Workload):
        changes = compare(old, found) if old is not None else None
        _write(face, found, old, results, paths)
    else:
        _needs_requests(found, {**results, "--compare": options["compare"]})
    if face.json:
        from tokenfleet.app.traffic_document import traffic_document

        face.document(traffic_document(found, changes))
    else:
        _tell(face, found, old, results, paths)
    return 0


def _found(face: Face, files: Sequence[str], options: Mapping[str, Any]) -> "Found":
    """What the files, or the server, say."""
    import time

    from tokenfleet.app.cli.progress import shown
    from tokenfleet.app.intake import Files, Server, ask, is_address, take_in
    from tokenfleet.domain.errors import BadInput

    servers = [name for name in files if is_address(name)]
    with shown(face) as teller:
        if servers:
            if len(files) > 1:
                raise BadInput.at("FILES", f"{servers[0]} is a server, and other files are named", "ask it alone")
            teller.say(f"asking {servers[0]}")
            named = {name: options[name] for name in ("engine", "last", "labels")}
            return ask(Server(address=servers[0], **named), now_s=time.time())
        told = {name: options[name] for name in ("columns", "zone", "time_unit", "cached", "zero_output", "unfinished")}
        paths = [Path(name) for name in files]
        told |= {"format": options["log_format"]} | {name: options[name] for name in ("salt", "parts", "executor")}
        asked = Files(paths=paths, **told)
        return take_in(asked, progress=teller.part)


def _needs_requests(found: "Found", asked: dict[str, Path | None]) -> None:
    """Sums and metrics are described, and nothing is written that would pretend to more."""
    from tokenfleet.app.intake import kind_of
    from tokenfleet.domain.errors import BadInput, Problem

    problems = [
        Problem(option, f"the files are {kind_of(found)}, which hold no single requests", "give a request log")
        for option, path in asked.items()
        if path is not None
    ]
    if problems:
        raise BadInput(problems)


def _write(
    face: Face, found: "Workload", old: "Workload | None", results: dict[str, Path | None], files: Sequence[Path]
) -> None:
    from tokenfleet.app.writing import write_text
    from tokenfleet.workload import save_profile

    if (target := results["-o"]) is not None:
        save_profile(found, target)
    if (target := results["--html"]) is not None:
        from tokenfleet.app.report import render_profile

        write_text(render_profile(found, name=", ".join(path.name for path in files), old=old), target)
    if (target := results["--rejects"]) is not None:
        write_text(_rejected(found.quality), target)
        left_out, listed = sum(found.quality.rows_dropped.values()), len(found.quality.rejects)
        if listed < left_out:
            face.note(f"{target} lists {listed:,} of the {left_out:,} rows that were left out")


def _rejected(quality: "Quality") -> str:
    import csv
    from io import StringIO

    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("where", "reason"))
    rows.writerows((each.where, each.reason) for each in quality.rejects)
    return text.getvalue()


def _tell(
    face: Face, found: "Found", old: "Workload | None", results: dict[str, Path | None], files: Sequence[Path]
) -> None:
    from tokenfleet.app.traffic_words import change_blocks, traffic_blocks
    from tokenfleet.domain.trace import Workload
    from tokenfleet.workload import compare

    blocks: list[Block] = traffic_blocks(found)
    if isinstance(found, Workload):
        if old is not None:
            blocks += change_blocks(old, found, compare(old, found))
        blocks.append(("Next", _next(found, results, files)))
    else:
        blocks.append(("Next", ["export a request log: a fleet is sized from single requests"]))
    face.blocks(blocks)


def _next(found: "Workload", results: dict[str, Path | None], files: Sequence[Path]) -> list[str]:
    import math

    lines = [f"wrote {path}" for path in results.values() if path is not None]
    profile = results["-o"]
    if profile is None:
        named = " ".join(str(path) for path in files[:3]) + (" ..." if len(files) > 3 else "")
        return [*lines, f"tokenfleet profile {named} -o profile.json"]
    rate = "RATE" if math.isnan(found.mean_rate_per_s) else f"{found.mean_rate_per_s:.3g}"
    lines.append(f"tokenfleet estimate --profile {profile} --rate {rate} --model MODEL --ttft-p99 2s")
    lines.append(f"tokenfleet synth {profile} -o trace.parquet")
    return lines
