"""What ``synth`` is asked, as a strict type, and the trace it means."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Final

from pydantic import BeforeValidator, Field, model_validator

from tokenfleet import workload
from tokenfleet.app.quantities import Unreadable, parse_duration_s
from tokenfleet.app.scenario_words import Duration, Positive, Rate, Strict, problem
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.trace import Trace, Workload

_PRESET_DURATION_S: Final = 3600.0
_OPTIONS: Final = {
    "duration_s": "--duration",
    "mean_rate": "--rate",
    "peak_rate": "--peak-rate",
    "rate_factor": "--scale",
    "seed": "--seed",
    "profile": "SOURCE",
    "stretch": "--stretch",
    "splice": "--splice",
}
"""Options by the names that drawing gives to the same things."""


class Event(Strict):
    """Traffic that comes on top, and when."""

    path: str
    at_s: float


def _event(value: object) -> object:
    """``launch.parquet@30min``."""
    if not isinstance(value, str):
        return value
    path, _, at = value.rpartition("@")
    if not path:
        raise problem(f'"{value}" does not say when it starts', "write FILE@TIME, such as launch.parquet@30min")
    if not Path(path).is_file():
        raise problem(f'no file "{path}"', "name a log or a trace")
    try:
        return Event(path=path, at_s=0.0 if at in ("0", "0s") else parse_duration_s(at))
    except Unreadable as error:
        raise problem(error.what, error.mend) from None


def _source(value: object) -> object:
    presets = workload.preset_names()
    if not isinstance(value, str) or value in presets or Path(value).is_file():
        return value
    near = get_close_matches(value, presets, n=1)
    mend = f"nearest preset: {near[0]}" if near else f"give a profile file, or one of: {', '.join(presets)}"
    raise problem(f'no file and no preset "{value}"', mend)


def _parquet(value: object) -> object:
    if isinstance(value, str) and not value.endswith(".parquet"):
        raise problem(f'"{value}" does not end in .parquet', f"write {Path(value).stem}.parquet: traces are Parquet")
    return value


class DrawQuestion(Strict):
    """Traffic like a profile, or of a preset."""

    source: Annotated[str, BeforeValidator(_source)]
    target: Annotated[str, BeforeValidator(_parquet)]
    mean_rate: Rate | None = None
    peak_rate: Rate | None = None
    duration: Duration | None = None
    scale: Positive = 1.0
    stretch: Positive = 1.0
    splice: tuple[Annotated[Event, BeforeValidator(_event)], ...] = ()
    seed: Annotated[int, Field(ge=0)] = 1

    @property
    def is_preset(self) -> bool:
        """Whether the source is a kind of traffic that comes with the package; a file of that name comes first."""
        return self.source in workload.preset_names() and not Path(self.source).is_file()

    @model_validator(mode="after")
    def _one_rate(self) -> "DrawQuestion":
        if self.mean_rate is not None and self.peak_rate is not None:
            raise problem("--rate and --peak-rate are given, and one decides", "leave one of them out")
        if self.is_preset and self.mean_rate is None and self.peak_rate is None:
            raise problem(f"the preset {self.source} has no rate of its own", "give --rate or --peak-rate")
        return self


def drawn(question: DrawQuestion) -> tuple[Trace, Workload | None]:
    """Draw the trace, and give back the profile it should look like.

    Raises:
        BadInput: a source that cannot be read, or numbers that nothing can be drawn from.
    """
    with _as_options():
        if question.is_preset:
            trace, source = _of_preset(question), None
        else:
            source = workload.load_profile(Path(question.source))
            trace = _like(question, source)
        if question.stretch != 1.0:
            trace = workload.stretch(trace, question.stretch)
        for event in question.splice:
            trace = workload.splice(trace, workload.read_trace(event.path)[0], event.at_s)
        return trace, source


def _of_preset(question: DrawQuestion) -> Trace:
    scaled = {
        "mean_rate_per_s": question.mean_rate and question.mean_rate * question.scale,
        "peak_rate_per_s": question.peak_rate and question.peak_rate * question.scale,
    }
    duration_s = question.duration or _PRESET_DURATION_S
    return workload.synthesize(question.source, duration_s=duration_s, seed=question.seed, **scaled)


def _like(question: DrawQuestion, source: Workload) -> Trace:
    factor = question.scale
    if question.mean_rate is not None:
        factor *= question.mean_rate / source.mean_rate_per_s
    elif question.peak_rate is not None:
        factor *= question.peak_rate / source.peak_minute_rate_per_s
    return workload.synthesize_like(source, rate_factor=factor, duration_s=question.duration, seed=question.seed)


@contextmanager
def _as_options() -> Iterator[None]:
    """Problems of drawing, in the words of the command line."""
    try:
        yield
    except BadInput as error:
        raise BadInput(replace(each, where=_OPTIONS.get(each.where, each.where)) for each in error.problems) from None
