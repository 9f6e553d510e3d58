"""The words of a scenario: quantities with their units, names that are looked up while reading, strict parts."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from tokenfleet import catalog, workload
from tokenfleet.app.quantities import (
    Unreadable,
    parse_dollars,
    parse_duration_s,
    parse_fraction,
    parse_moment_s,
    parse_positive,
    parse_rate_per_s,
    parse_tokens,
    quoted,
    shown_duration,
)
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.replica import PREDICTION_LAYER


def problem(what: str, mend: str = "", *, at: str = "") -> PydanticCustomError:
    """An error that carries our two sentences through pydantic untouched, and which key below it is the cause."""
    return PydanticCustomError("tokenfleet", "{what}; {mend}", {"what": what, "mend": mend, "at": at})


def read_by(parse: Callable[[object], float]) -> BeforeValidator:
    """A field that a person writes with its unit."""

    def read(value: object) -> float:
        try:
            return parse(value)
        except Unreadable as error:
            raise problem(error.what, error.mend) from None

    return BeforeValidator(read, json_schema_input_type=str | float)


def _known(look_up: Callable[[str, ValidationInfo], str]) -> BeforeValidator:
    def read(value: object, info: ValidationInfo) -> str:
        if not isinstance(value, str):
            raise problem("has no value" if value is None else f"{value} is not a name", "write it as text")
        try:
            return look_up(value, info)
        except BadInput as error:
            first, *others = error.problems
            # What a file says is wrong is named with file and key; the name itself stands in the scenario.
            inside = f"{first.where}: " if ": " in first.where else ""
            more = f" (and {len(others)} more in the file)" if others else ""
            raise problem(f"{inside}{first.what}{more}", first.mend) from None

    return BeforeValidator(read, json_schema_input_type=str)


def one_as_list(value: object) -> object:
    """One value where a list may stand."""
    return value if isinstance(value, list | tuple) else [value]


def _by_file(info: ValidationInfo) -> Path:
    return Path(info.context["folder"]) if info.context else Path()


def beside(path: str, folder: Path) -> Path:
    """``path`` as the scenario means it: relative to the scenario's own folder."""
    return (folder / Path(path).expanduser()).resolve()


def _there(path: str, info: ValidationInfo) -> Path | None:
    """The file or folder that is meant; ``None`` where there is none, or where nothing can be called so."""
    try:
        local = beside(path, _by_file(info))
        return local if local.exists() else None
    except (OSError, ValueError):
        return None


def _model_name(name: str, info: ValidationInfo) -> str:
    local = _there(name, info)
    found = catalog.model(name if local is None else str(local))
    return found.name if local is None else str(local)


def _engine_name(name: str, _info: ValidationInfo) -> str:
    return catalog.engine(name, gpu=catalog.gpus()[0]).name


def _existing_file(path: str, info: ValidationInfo) -> str:
    local = _there(path, info)
    if local is None:
        folder = _by_file(info).resolve()
        raise problem(f"no file {quoted(path)}", f"looked in {folder}: paths count from the folder of the scenario")
    return str(local)


def _lengths(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    try:
        workload.Lengths.parse(text)
    except BadInput as error:
        raise problem(error.problems[0].what, error.problems[0].mend) from None
    return text


def _up_to(most_s: float) -> Callable[[object], float]:
    def parse(value: object) -> float:
        duration_s = parse_duration_s(value)
        if duration_s > most_s:
            most = shown_duration(most_s)
            raise Unreadable(f"{quoted(value)} is more than {most}", f"write at most {most}")
        return duration_s

    return parse


Duration = Annotated[float, read_by(parse_duration_s)]
Wait = Annotated[float, read_by(_up_to(86_400.0))]
"""Up to a day, which a replay can wait for."""
Span = Annotated[float, read_by(_up_to(7_776_000.0))]
"""Up to the ninety days that can be replayed."""
Moment = Annotated[float, read_by(parse_moment_s)]
Fraction = Annotated[float, read_by(parse_fraction)]
_LEAST_CAP = 0.25
Cap = Annotated[float, read_by(partial(parse_fraction, least_fraction=_LEAST_CAP)), Field(ge=_LEAST_CAP)]
"""The share of what replicas sustain that they may take; below a quarter nobody means it."""
Rate = Annotated[float, read_by(parse_rate_per_s)]
Tokens = Annotated[int, read_by(parse_tokens)]
Count = Annotated[int, read_by(parse_tokens)]
Positive = Annotated[float, read_by(parse_positive)]
Dollars = Annotated[float, read_by(parse_dollars)]
GpuName = Annotated[str, _known(lambda name, _info: catalog.gpu(name).name)]
ModelName = Annotated[str, _known(_model_name)]
DraftName = Annotated[str, _known(lambda name, info: name if name == PREDICTION_LAYER else _model_name(name, info))]
EngineName = Annotated[str, _known(_engine_name)]
InputFile = Annotated[str, _known(_existing_file)]
Lengths = Annotated[str, BeforeValidator(_lengths, json_schema_input_type=str | int)]


class Strict(BaseModel):
    """Every part of a scenario: unknown keys and near-miss types are problems."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


def said(part: Strict) -> dict[str, Any]:
    """What a part says, by key, without what is left out; parts inside of it stay parts."""
    return {key: value for key, value in part if value is not None}


def nothing_said() -> Any:  # noqa: ANN401 - pydantic makes the part of it
    """The default of a part all of whose keys may be left out: an empty mapping, read as the person's own would be.

    An object of the part's type would have its validator built apart from the scenario's, whenever a command starts.
    """
    return Field(default={}, validate_default=True)
