"""Progress of long work: one moving line for a person at a terminal, nothing for a pipe."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from tokenfleet.app.cli.face import Face

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Step(Protocol):
    """What a search tells of itself."""

    @property
    def phase(self) -> str:
        """What kind of work."""

    @property
    def trying(self) -> str:
        """The fleet being replayed."""

    @property
    def best(self) -> str:
        """The cheapest fleet so far; empty before there is one."""

    @property
    def done_fraction(self) -> float:
        """Share of the search that is done."""


class Teller:
    """Takes what the work says. This one is silent but for announcements, which a pipe sees too."""

    def __init__(self, face: Face) -> None:
        self._face = face

    def say(self, text: str) -> None:
        """What is being done now."""
        self._face.doing = text

    def step(self, step: Step, /) -> None:
        """What a search is trying now."""
        best = f"; best so far {step.best}" if step.best else ""
        self._face.doing = f"trying {step.trying} ({step.phase}){best}"

    def part(self, text: str, done: int, total: int) -> None:
        """How many parts of known work are done."""
        self._face.doing = f"{text} ({done} of {total})" if total > 1 else text

    def announce(self, text: str) -> None:
        """Something rare that takes long and must not look like a hang."""
        self._face.note(text)


class LiveTeller(Teller):
    """One line on a terminal: phase, what is tried, the best so far, time left."""

    def __init__(self, face: Face, bar: "Progress", task: "TaskID") -> None:
        super().__init__(face)
        self._bar = bar
        self._task = task

    def say(self, text: str) -> None:
        """Show what is being done."""
        super().say(text)
        self._bar.update(self._task, description=text, visible=True)

    def step(self, step: Step, /) -> None:
        """Show what is tried, and the best fleet so far."""
        super().step(step)
        # The best comes first, because a narrow terminal cuts the end.
        best = f"best so far {step.best}; " if step.best else ""
        text = f"{step.phase}: {best}trying {step.trying}"
        self._bar.update(self._task, description=text, total=1.0, completed=step.done_fraction, visible=True)

    def part(self, text: str, done: int, total: int) -> None:
        """Move the bar; a single part has no length to show."""
        super().part(text, done, total)
        of = total if total > 1 else None
        self._bar.update(self._task, description=text, total=of, completed=done, visible=True)

    def announce(self, text: str) -> None:
        """Print a line above the moving one."""
        self._bar.console.print(text, highlight=False, markup=False)


@contextmanager
def shown(face: Face) -> Iterator[Teller]:
    """Where long work reports; the line is gone when the work is over."""
    if not face.live:
        yield Teller(face)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    columns = (
        BarColumn(bar_width=16),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as bar:
        yield LiveTeller(face, bar, bar.add_task("", total=None, visible=False))
