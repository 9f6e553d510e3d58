"""What every command shares with a person or a machine: streams, colours, progress, and how a command ends."""

import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, TypeVar

import click

from tokenfleet.app.columns import folded
from tokenfleet.app.quantities import quoted
from tokenfleet.domain.errors import BadInput, Problem, TokenfleetError

_LABEL_WIDTH: Final = 8
_WIDEST: Final = 110
_NARROWEST: Final = 40
_STOPPED: Final = 130

Block = tuple[str, Sequence[str]]
"""One word in the margin and the lines that belong to it."""
Command = TypeVar("Command", bound=Callable[..., object])


@dataclass(slots=True)
class Face:
    """How this run talks: ``json`` for machines, ``quiet`` without progress, ``debug`` with tracebacks."""

    json: bool = False
    quiet: bool = False
    debug: bool = False
    action: str = "command"
    """What problems stop, in a word: plan, estimate..."""
    doing: str = ""
    """What long work is at, for whoever stops it."""

    @property
    def talks(self) -> bool:
        """Whether notes and progress may be shown at all."""
        return not self.quiet and not self.json

    @property
    def live(self) -> bool:
        """Whether a moving progress line makes sense: a person looks at stderr."""
        return self.talks and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def say(self, text: str) -> None:
        """Print a result."""
        click.echo(text, color=_coloured(sys.stdout.isatty()))

    def note(self, text: str) -> None:
        """Tell what is going on, on stderr; not in quiet or JSON runs."""
        if self.talks:
            click.echo(text, err=True, color=_coloured(sys.stderr.isatty()))

    def blocks(self, blocks: Iterable[Block]) -> None:
        """Print labelled blocks, wrapped to the terminal."""
        for label, lines in blocks:
            self.say("\n".join(_laid_out(label, lines)))

    def document(self, document: Mapping[str, object]) -> None:
        """Print the one JSON document of a run."""
        click.echo(json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False))

    def problems(self, problems: Sequence[Problem]) -> None:
        """Print every problem on stderr: as lines, or as one JSON object for machines."""
        if self.json:
            listed = [{"where": each.where, "what": each.what, "mend": each.mend} for each in problems]
            click.echo(json.dumps({"problems": listed}, indent=2, ensure_ascii=False), err=True)
            return
        for each in problems:
            click.echo(str(each), err=True)
        count = f"{len(problems)} problems stop" if len(problems) > 1 else "1 problem stops"
        click.echo(f"{count} the {self.action}. Nothing was written.", err=True)


def width() -> int:
    """Columns to fill: the terminal's, within what reads well."""
    return max(_NARROWEST, min(_WIDEST, shutil.get_terminal_size((100, 24)).columns))


def _coloured(is_terminal: bool) -> bool:
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _laid_out(label: str, lines: Sequence[str]) -> list[str]:
    """Lines beside a label, folded to the terminal."""
    margin = click.style(label.ljust(_LABEL_WIDTH), bold=True)
    beside = folded(lines, width() - _LABEL_WIDTH)
    return [(" " * _LABEL_WIDTH if index else margin) + line for index, line in enumerate(beside)]


def face_options(command: Command) -> Command:
    """``--json``, ``--quiet`` and ``--debug``, the same on every command."""

    def keep(ctx: click.Context, option: click.Parameter, value: bool) -> None:
        face = ctx.find_object(Face)
        if value and face is not None and option.name is not None:
            setattr(face, option.name, True)

    texts = {
        "--json": "Print one JSON document on stdout and nothing else.",
        "--quiet": "Show no progress and no notes.",
        "--debug": "Show the traceback of a bug.",
    }
    for flag, text in reversed(texts.items()):
        command = click.option(flag, is_flag=True, is_eager=True, expose_value=False, callback=keep, help=text)(command)
    return command


class ReaderGone(Exception):
    """Whoever read the output went away; click would end the run with a 1, which means something else here."""


class Border:
    """Where a run ends: turns whatever stopped it into an exit code and one clear message."""

    def __init__(self, face: Face) -> None:
        self.face = face
        self.exit_code = 0

    def __enter__(self) -> "Border":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Swallow every error except ``SystemExit``, and remember the exit code it stands for."""
        if error is None:
            return True
        if isinstance(error, SystemExit | GeneratorExit):
            return False
        self.exit_code = self._ended_by(error)
        return True

    def _ended_by(self, error: BaseException) -> int:
        if isinstance(error, KeyboardInterrupt | click.Abort):
            at = f" while {self.face.doing}" if self.face.doing else ""
            click.echo(f"Stopped{at}. Nothing was written.", err=True)
            return _STOPPED
        if isinstance(error, BrokenPipeError | ReaderGone):
            # The reader went away (``| head``); the interpreter must not complain again while it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        if isinstance(error, click.ClickException):
            return self._usage(error)
        if isinstance(error, BadInput):
            self.face.problems(error.problems)
            return error.exit_code
        if isinstance(error, OSError) and error.filename is not None:
            # A file that cannot be what it was taken for, or a disk that refuses: nothing of ours.
            name = quoted(os.fsdecode(error.filename)).strip('"')
            self.face.problems([Problem(name, (error.strerror or "cannot be used").lower(), "name another")])
            return BadInput.exit_code
        if isinstance(error, TokenfleetError) and error.exit_code != TokenfleetError.exit_code:
            self.face.problems([Problem(self.face.action, str(error))])
            return error.exit_code
        return self._bug(error)

    def _usage(self, error: click.ClickException) -> int:
        where = "command line"
        context = getattr(error, "ctx", None)
        if context is not None:
            where = context.command_path
        what = " ".join(error.format_message().split()).rstrip(".")
        mend = f"see: {where} --help" if context is not None else ""
        self.face.problems([Problem(where, what[:1].lower() + what[1:], mend)])
        return error.exit_code

    def _bug(self, error: BaseException) -> int:
        if self.face.debug:
            traceback.print_exception(error, file=sys.stderr)
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(last.filename)}:{last.lineno}"
        click.echo(
            f"This is a bug of tokenfleet, not of your input: {type(error).__name__}: {error} ({place}).", err=True
        )
        click.echo("Run it again with --debug and report the traceback with the command you typed.", err=True)
        return TokenfleetError.exit_code
