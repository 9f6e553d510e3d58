"""``tokenfleet init``: a scenario from a few questions."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokenfleet.app.cli.face import Face, face_options

if TYPE_CHECKING:
    from tokenfleet.app.interview import Answers, Question
    from tokenfleet.app.service_kinds import ServiceKind


@click.command("init", short_help="Write a commented scenario from a few questions.")
@click.option("--defaults", metavar="KIND", help="Ask nothing: chat, rag, summarize, agents, multitenant or batch.")
@click.option("-o", "--output", "path", type=click.Path(path_type=Path), metavar="FILE", help="[default: NAME.yaml]")
@click.option("--force", is_flag=True, help="Overwrite a file that is there.")
@face_options
@click.pass_obj
def command(face: Face, defaults: str | None, path: Path | None, force: bool) -> int:
    """Ask what a plan must start from, and write it as a scenario that ``tokenfleet plan`` accepts.

    Without a terminal, name a kind of service: --defaults chat.
    """
    from tokenfleet.app.interview import default_answers, scenario_text
    from tokenfleet.app.writing import check_new, write_text

    face.action = "scenario"
    if defaults is not None:
        kind = _kind(defaults)
        answers = default_answers(kind)
    else:
        kind, answers = _asked()
    target = path if path is not None else Path(f"{answers.name}.yaml")
    check_new(target, force=force)
    write_text(scenario_text(kind, answers, file_name=target.name), target)
    if face.json:
        face.document({"scenario": str(target), "kind": kind.name, "name": answers.name})
    else:
        face.blocks([("Wrote", [f"{target}: {kind.title.lower()}, {answers.model}, {answers.peak_rate} at the peak"])])
        face.blocks([("Next", [f"tokenfleet plan {target}"])])
    return 0


def _kind(name: str) -> "ServiceKind":
    from difflib import get_close_matches

    from tokenfleet.app.service_kinds import SERVICE_KINDS, service_kind
    from tokenfleet.domain.errors import BadInput

    kind = service_kind(name.strip().lower())
    if kind is None:
        names = [each.name for each in SERVICE_KINDS]
        near = get_close_matches(name.lower(), names, n=1)
        mend = f"nearest: {near[0]}" if near else f"one of: {', '.join(names)}"
        raise BadInput.at("--defaults", f'unknown kind of service "{name}"', mend)
    return kind


def _asked() -> tuple["ServiceKind", "Answers"]:
    from tokenfleet.app.interview import answers_from, questions
    from tokenfleet.app.service_kinds import SERVICE_KINDS
    from tokenfleet.domain.errors import BadInput

    if not sys.stdin.isatty():
        names = ", ".join(kind.name for kind in SERVICE_KINDS)
        raise BadInput.at("init", "there is no terminal to ask questions on", f"name a kind: --defaults {names}")
    click.echo("Enter takes the answer in brackets. Everything can be changed in the file afterwards.\n", err=True)
    for kind in SERVICE_KINDS:
        click.echo(f"  {kind.name.ljust(12)} {kind.title}", err=True)
    kind = _kind(click.prompt("\nKind of service", default="chat", err=True))
    given = {}
    for question in questions(kind):
        hint = f" ({question.help})" if question.help else ""
        given[question.key] = click.prompt(
            question.text + hint,
            default=question.default,
            show_default=bool(question.default),
            value_proc=_checking(question),
            err=True,
        )
    return kind, answers_from(kind, given)


def _checking(question: "Question") -> Callable[[str], str]:
    """Ask again, with the reason, when an answer cannot be used."""
    from tokenfleet.app.quantities import Unreadable
    from tokenfleet.domain.errors import BadInput

    def check(text: str) -> str:
        if question.check is not None and text.strip():
            try:
                question.check(text.strip())
            except (Unreadable, BadInput) as error:
                raise click.UsageError(str(error)) from None
        return text

    return check
