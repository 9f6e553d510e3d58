"""``tokenfleet validate``: predicted against measured, on public rows or one's own runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from tokenfleet.app.cli.face import Block, Face, face_options

if TYPE_CHECKING:
    from tokenfleet.calibration import Group, Scoreboard

_NAMED_ROWS: Final = 8
_VIEWS: Final = ("source", "engine", "gpu", "model_kind")


@click.command("validate", short_help="Predict measured runs and say how far off the predictions are.")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option(
    "--by",
    "views",
    multiple=True,
    type=click.Choice(_VIEWS),
    help="Show groups by source, engine, gpu or model_kind too; repeat for several.",
)
@face_options
@click.pass_obj
def command(face: Face, files: tuple[str, ...], views: tuple[str, ...]) -> int:
    """Predict every run of some CSV files; print coverage, median and 90th-percentile error, bias, interval coverage.

    Rows that written rules do not believe are set apart, never rows that are predicted badly.
    """
    from tokenfleet.calibration import validate

    face.action = "validation"

    def progress(done: int, total: int) -> None:
        face.doing = f"predicting row {done} of {total}"

    board = validate([Path(file) for file in files], progress=progress)
    if face.json:
        face.document(board.as_document())
    else:
        face.blocks(_blocks(board, views))
    return 0


def _blocks(board: "Scoreboard", views: tuple[str, ...]) -> list[Block]:
    share = f" ({board.predicted_row_count / board.row_count:.0%})" if board.row_count else ""
    blocks: list[Block] = [
        ("Rows", [f"{board.predicted_row_count:,} of {board.row_count:,} predicted{share}"]),
        ("Errors", [_head("figure"), *(_line(group.metric, group) for group in board.groups if _named(group) == ())]),
    ]
    for view in views:
        lines = []
        for name in dict.fromkeys(getattr(group, view) for group in board.groups if _named(group) == (view,)):
            members = [group for group in board.groups if _named(group) == (view,) and getattr(group, view) == name]
            lines += [str(name), *(_line(f"  {group.metric}", group) for group in members)]
        blocks.append(("By", [_head(view), *lines]))
    if board.refused:
        blocks.append(("Refused", [f"{count:6,}  {reason}" for reason, count in board.refused.items()]))
    rules = [f"{count:6,}  {rule}" for rule, count in board.lint.items() if count]
    if rules:
        blocks.append(("Lint", rules))
    worst = [
        f"{score.predicted / score.measured - 1:+7.0%}  {score.metric}  {score.model} on {score.gpu}, {score.engine}"
        f"  {score.row_id}"
        for score in board.worst[:_NAMED_ROWS]
        if score.predicted is not None
    ]
    if worst:
        blocks.append(("Worst", worst))
    return blocks


def _named(group: "Group") -> tuple[str, ...]:
    return tuple(view for view in ("source", "gpu", "engine", "model_kind") if getattr(group, view) is not None)


def _head(name: str) -> str:
    return f"{name:28}{'rows':>6}{'pred.':>6}{'median':>7}{'p90':>6}{'bias':>6}{'inside':>7}{'cells':>6}"


def _line(name: str, group: "Group") -> str:
    figures = (
        _percent(group.median_abs_error_fraction, 7),
        _percent(group.p90_abs_error_fraction, 6),
        _percent(group.bias_fraction, 6, sign=True),
        _percent(group.interval_coverage_fraction, 7),
        _percent(group.cell_median_abs_error_fraction, 6),
    )
    return f"{name:28}{group.row_count:6}{group.predicted_count:6}{''.join(figures)}"


def _percent(value: float | None, width: int, *, sign: bool = False) -> str:
    if value is None:
        return "-".rjust(width)
    return (f"{value:+.0%}" if sign else f"{value:.0%}").rjust(width)
