"""``tokenfleet capacity``: what one replica can do on each gpu, in each precision and layout."""

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tokenfleet.app.cli.beside import BESIDE, beside_option, beside_options, beside_values
from tokenfleet.app.cli.face import Block, Face, face_options, width
from tokenfleet.app.columns import figures, folded

if TYPE_CHECKING:
    from tokenfleet.app.capacity_question import Capacity
    from tokenfleet.app.capacity_table import Cell, Row
    from tokenfleet.domain.replica import Layout

_GIB: Final = 2**30
_OPTIONS: Final = {
    "model": "--model",
    "gpus": "--gpu",
    "precision": "--precision",
    "kv_dtype": "--kv-dtype",
    "tensor_parallel": "--tp",
    "pipeline_parallel": "--pp",
    "data_parallel": "--dp",
    "engine": "--engine",
    "input": "--input",
    "output": "--output",
    "calibration": "--calibration",
    "measured": "--measured",
}
_SPECULATION: Final = {"tokens": "--drafted", "acceptance": "--acceptance"}
_MARKS: Final = {"predicted": "", "calibrated": "c", "measured": "m", "published": ""}
_HEADINGS: Final = (
    "replica",
    "weights",
    "KV",
    "seqs",
    "prefill/s",
    "decode/s",
    "stream/s",
    "idle",
    "at 30%",
    "60%",
    "90%",
    "$/M out",
)


def _commas(_ctx: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


@click.command("capacity", short_help="What one replica can do on each GPU: tokens/s, waiting, memory, price.")
@click.option("--model", required=True, help="Name in the catalog, or path to a config.json.")
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    callback=_commas,
    help="GPUs to compare, repeat or separate by commas; h200_sxm:1g.18gb is a slice. [default: common ones]",
)
@click.option(
    "--precision",
    multiple=True,
    callback=_commas,
    help="Weights: bf16, fp8, int8, int4... [default: the checkpoint's, or bf16 and fp8]",
)
@click.option("--kv-dtype", multiple=True, callback=_commas, help="KV cache: bf16 or fp8. [default: bf16]")
@click.option(
    "--tp", "tensor_parallel", multiple=True, callback=_commas, help="GPUs per replica. [default: 1, 2, 4, 8]"
)
@click.option("--pp", "pipeline_parallel", multiple=True, callback=_commas, help="Pipeline stages. [default: 1]")
@click.option(
    "--dp",
    "data_parallel",
    multiple=True,
    callback=_commas,
    help="Data-parallel attention ranks, for models with experts. [default: 1]",
)
@click.option("--engine", multiple=True, callback=_commas, help="Engines or engine versions. [default: vllm]")
@beside_options
@click.option(
    "--drafted", type=int, help="Speculative decoding: tokens that --draft proposes for each sequence in each step."
)
@click.option("--acceptance", help="How often a drafted token is kept, where all before it were, such as 70%.")
@click.option("--input", "input_lengths", metavar="LENGTHS", help="Prompt tokens, MEAN or MEDIAN:P95. [default: 1000]")
@click.option("--output", "output_lengths", metavar="LENGTHS", help="Generated tokens, same way. [default: 300]")
@click.option("--calibration", type=click.Path(), help="What your own runs taught: a file of tokenfleet calibrate.")
@click.option(
    "--measured", multiple=True, type=click.Path(), help="Measured runs that fill cells of the same deployment."
)
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Also write the table as CSV; - for stdout.")
@click.option("--force", is_flag=True, help="Let --csv overwrite a file.")
@face_options
@click.pass_obj
def command(
    face: Face,
    /,
    csv_file: Path | None,
    force: bool,
    input_lengths: str | None,
    output_lengths: str | None,
    drafted: int | None,
    acceptance: str | None,
    **options: object,
) -> int:
    """Say what one replica can do for every GPU, precision, layout and engine version asked for.

    Prefill and decode tokens per second, sequences that stay in memory, time to first token against load, memory and
    price, each predicted, calibrated or measured, with its evidence. What cannot run says why.
    """
    from tokenfleet import simulator
    from tokenfleet.app.capacity_document import capacity_document
    from tokenfleet.app.capacity_question import CapacityQuestion, answered
    from tokenfleet.app.scenario import checked
    from tokenfleet.app.writing import check_new

    face.action = "answer"
    to_stdout = csv_file is not None and str(csv_file) == "-"
    if csv_file is not None and not to_stdout:
        check_new(csv_file, force=force)
    speculation = {key: value for key, value in (("tokens", drafted), ("acceptance", acceptance)) if value is not None}
    given = {
        **{key: value for key, value in options.items() if key not in BESIDE},
        "memory": beside_values(options),
        "speculation": speculation or None,
        "input": input_lengths,
        "output": output_lengths,
    }
    values = {key: value for key, value in given.items() if value not in (None, (), [])}
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
    question = checked(CapacityQuestion, values, _option)
    simulator.warm_up(announce=face.note)
    found = answered(question)
    if csv_file is not None and not to_stdout:
        csv_file.write_text(_csv_text(found), encoding="utf-8", newline="")
    if to_stdout:
        face.say(_csv_text(found).rstrip("\n"))
    elif face.json:
        face.document(capacity_document(found))
    else:
        _show(face, found)
    return 0


def _option(path: tuple[str | int, ...]) -> str:
    """The option behind a key of the question."""
    if path[0] == "memory":
        return beside_option(path)
    if path[0] == "speculation":
        return _SPECULATION[str(path[1])] if len(path) > 1 else "--drafted"
    return _OPTIONS[str(path[0])]


def _csv_text(found: "Capacity") -> str:
    from tokenfleet.app.capacity_document import csv_header, csv_lines

    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(csv_header())
    writer.writerows(csv_lines(found))
    return text.getvalue()


def _show(face: Face, found: "Capacity") -> None:
    runs = [row for row in found.rows if row.cells]
    lengths = found.lengths
    about = f"{found.model.name}, prompts {lengths.input_text}, answers {lengths.output_text} tokens"
    face.blocks([("Model", [about, f"one replica; a typical sequence has a context of {lengths.context_tokens:,}"])])
    if runs:
        face.say("")
        for line in folded(_table(runs), width()):
            face.say(line)
        face.say("")
    blocks: list[Block] = []
    together = _together(found)
    if together:
        blocks.append(("Same", together))
    blocked = [f"{_named(row, engine=True)}: {row.reasons[0]}" for row in found.rows if not row.cells]
    if blocked:
        blocks.append(("No", blocked))
    blocks.append(("Sure", _evidence(runs)))
    face.blocks(blocks)


def _table(runs: Sequence["Row"]) -> list[str]:
    """A line for each replica, below the heads of its figures."""
    several = len({row.deployment.engine.name for row in runs}) > 1
    return figures([_HEADINGS, *(_cells(row, engine=several) for row in runs)])


def _cells(row: "Row", *, engine: bool) -> list[str]:
    cells, budget = row.cells, row.budget
    terms = {} if budget is None else budget.terms_bytes
    return [
        _named(row, engine=engine),
        f"{terms.get('weights', 0) / _GIB:.1f}",
        f"{terms.get('kv_cache', 0) / _GIB:.1f}",
        _count(cells["max_stable_sequence_count"]),
        _count(cells["prefill_tokens_per_s"]),
        _count(cells["decode_tokens_per_s"]),
        _count(cells["stream_tokens_per_s"]),
        _seconds(cells["idle_ttft_s"]),
        *(_seconds(point.ttft_p99_s) for point in row.loads),
        _dollars(cells["usd_per_million_output_tokens"]),
    ]


def _named(row: "Row", *, engine: bool) -> str:
    deployment = row.deployment
    precision = "own" if deployment.precision == "checkpoint" else deployment.precision
    name = f"{deployment.layout.gpu_count} x {deployment.gpu} {precision}"
    if deployment.layout.gpu_count != deployment.layout.tensor_parallel:
        name += f" {_layout(deployment.layout)}"
    name += " kv fp8" if deployment.kv_precision == "fp8" else ""
    return f"{name} {deployment.engine.name}" if engine else name


def _layout(layout: "Layout") -> str:
    sizes = {
        "TP": layout.tensor_parallel,
        "PP": layout.pipeline_parallel,
        "DP": layout.attention_data_parallel,
    }
    return "+".join(f"{name}{size}" for name, size in sizes.items() if size > 1) or "TP1"


def _count(cell: "Cell") -> str:
    return "?" if cell.value is None else f"{cell.value:,.0f}{_MARKS[cell.kind]}"


def _seconds(cell: "Cell") -> str:
    if cell.value is None:
        return "?"
    text = f"{cell.value * 1000:.0f}ms" if cell.value < 1 else f"{cell.value:.1f}s"
    return f"{text}{_MARKS[cell.kind]}"


def _dollars(cell: "Cell") -> str:
    return "?" if cell.value is None else f"{cell.value:.2f}{_MARKS[cell.kind]}"


def _together(found: "Capacity") -> list[str]:
    """Tensor parallel against replicas: a line for each way to use the same gpus."""
    from tokenfleet.app.capacity_document import ways

    lines = []
    for group in ways(found):
        first = group[0]
        total = first.replica_count * first.row.deployment.layout.gpu_count
        deployment = first.row.deployment
        lines.append(f"{total} x {deployment.gpu}, {deployment.precision}, {deployment.engine.name}")
        for way in group:
            cells = way.row.cells
            rate = "?" if way.output_tokens_per_s is None else f"{way.output_tokens_per_s:,.0f}"
            lines.append(
                f"  {way.replica_count} x {_layout(way.row.deployment.layout).ljust(7)}  {rate.rjust(7)} tok/s full  "
                f"{_count(cells['stream_tokens_per_s']).rjust(4)} tok/s a stream  "
                f"{_seconds(cells['idle_ttft_s']).rjust(6)} first token  "
                f"${_dollars(cells['usd_per_million_output_tokens'])} a million"
            )
    return lines


def _evidence(runs: Sequence["Row"]) -> list[str]:
    marks = [
        "seqs: sequences of that context that stay in memory; weights and KV: GiB on each GPU",
        "prefill, decode: tokens/s with all of them; stream: tokens/s of one alone",
        "idle, at 30%...: time to first token, p99 against load, replayed",
        "$/M out: dollars for a million answered tokens at full load",
        "unmarked figures are predicted, c is calibrated on your runs, m is measured",
    ]
    notes = list(dict.fromkeys(row.evidence for row in runs if row.evidence))
    close = [
        f"{_named(row, engine=True)}: too close to call whether it fits"
        for row in runs
        if row.budget is not None and row.budget.too_close_to_call
    ]
    return [*marks, *notes, *close]
