"""Reads a scenario file: every problem at once, each with file, line, key, and how to mend it."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tokenfleet.app.phase_types import PhaseSpec
from tokenfleet.app.quantities import quoted
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.yaml_lines import KeyPath, read_yaml
from tokenfleet.domain.errors import BadInput, Problem

Kind = TypeVar("Kind", bound=BaseModel)

_IN_FLEET = re.compile(r"(?:([\w-]+): )?fleet\.(?:(router|groups)|groups\[(\d+)\]\.(engine(?:\.\w+)*))")
"""Where a replay finds fault with a fleet, of a pool maybe, whose settings a scenario has under keys of its own."""
_IN_LIST = re.compile(r"\[(\d+)\]")
_ENGINE_KEYS = {
    "draft_token_count": "tokens",
    "acceptance_fraction": "acceptance",
    "prefill_decode_interval_count": "prefill_decode_interval",
    "receive_interval_count": "receive_interval",
}
_KINDS = {
    "string_type": "text",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "list_type": "a list",
    "dict_type": "a mapping of key: value",
    "model_type": "a mapping of key: value",
    "model_attributes_type": "a mapping of key: value",
}
_BOUNDS = {
    "greater_than": ("gt", "is not above", "write more than"),
    "greater_than_equal": ("ge", "is less than", "write at least"),
    "less_than": ("lt", "is not below", "write less than"),
    "less_than_equal": ("le", "is more than", "write at most"),
}
_EXAMPLES = {
    "name": "name: chat",
    "workload": "workload: {preset: chat, peak_rate: 20}",
    "model": "model: Qwen/Qwen3-8B",
    "slo": "slo: {ttft_p99: 2s}",
    "gpus": "gpus: [h100_sxm]",
    "redundancy": "redundancy: {replicas: n+1}",
}
"""How keys look that every scenario has."""


def load_scenario(path: Path) -> Scenario:
    """Read a scenario file. Paths inside it count from its own folder.

    Raises:
        BadInput: everything wrong with the file, in the order of its lines.
    """
    file = read_yaml(path)
    if not isinstance(file.value, Mapping):
        raise BadInput.at(str(path), "is not a scenario: the file must hold key: value lines", "see: tokenfleet init")
    try:
        return Scenario.model_validate(file.value, context={"folder": str(path.parent)})
    except ValidationError as error:
        found = dict.fromkeys(_problems(error, file.where, Scenario))
        raise BadInput(sorted(found, key=lambda problem: _line(problem, path))) from None


def checked(kind: type[Kind], values: Mapping[str, object], where: Callable[[KeyPath], str]) -> Kind:
    """Values given otherwise, such as options, as one of our strict types; ``where`` names the place of a key.

    Raises:
        BadInput: everything wrong with the values.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise BadInput(dict.fromkeys(_problems(error, where, kind))) from None


@contextmanager
def placed(where: Callable[[KeyPath], str]) -> Iterator[None]:
    """Problems that turn up after reading, and name a key of the scenario, get the place where the person wrote it."""
    try:
        yield
    except BadInput as error:
        raise BadInput(dict.fromkeys(_placed(problem, where) for problem in error.problems)) from None


class Lines:
    """Where the keys of a scenario file stand; read only when somebody asks."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, key: KeyPath) -> str:
        """Line and key."""
        return read_yaml(self._path).where(key)

    def names(self, key: str) -> list[str]:
        """What is named in a mapping at the top, in the order of the file."""
        value = read_yaml(self._path).value
        below = value.get(key) if isinstance(value, Mapping) else None
        return list(map(str, below)) if isinstance(below, Mapping) else []

    def has(self, key: KeyPath) -> bool:
        """Whether the file says something there."""
        return key in read_yaml(self._path).lines


def _placed(problem: Problem, where: Callable[[KeyPath], str]) -> Problem:
    found = _IN_FLEET.fullmatch(problem.where)
    if found is not None and isinstance(where, Lines):
        setting, owner = _written(found, where)
        what = f"{problem.what} ({'.'.join(owner)})" if owner else problem.what
        return replace(problem, where=where(setting), what=what)
    key = problem.where if found is None else ".".join(_setting_of(found))
    path = tuple(int(part) if part.isdigit() else part for part in _IN_LIST.sub(r".\1", key).split("."))
    return replace(problem, where=where(path)) if _is_key(path) else problem


def _setting_of(found: re.Match[str]) -> tuple[str, ...]:
    """The key of a scenario behind a setting of the fleet made from it."""
    return tuple(_ENGINE_KEYS.get(key, key) for key in (found[2] or found[4]).split("."))


def _written(found: re.Match[str], lines: Lines) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where a setting of a fleet was written, and the pool or group that has it where that is not in the key."""
    setting = _setting_of(found)
    owner = _owner_of(found[1], found[3], lines)
    # Pools and groups name their engine and a few of its settings; the others are those of all.
    own = (*owner, *(setting[1:] or setting))
    if owner and own[len(owner)] in PhaseSpec.model_fields and lines.has(own):
        return own, ()
    return setting, owner


def _owner_of(pool: str | None, index: str | None, lines: Lines) -> tuple[str, ...]:
    """The pool or the group of a fleet, as a scenario names it."""
    if pool is None:
        groups = lines.names("groups")
        return ("groups", groups[int(index)]) if index is not None and int(index) < len(groups) else ()
    if pool in lines.names("pools"):
        return "pools", pool
    name, _, phase = pool.rpartition("-")
    return "pools", name, phase


def _is_key(path: KeyPath) -> bool:
    """Whether a scenario may say something there: a key of ours, a name that the person chose, an item of a list."""
    part: type[BaseModel] | None = Scenario
    chosen = False
    for key in path:
        if chosen or isinstance(key, int):
            chosen = False
            continue
        field = part.model_fields.get(str(key)) if part is not None else None
        if field is None:
            return False
        part, chosen = _model_in(field.annotation), _maps(field.annotation)
    return True


def lines_of(path: Path) -> Lines:
    """Where the keys of a scenario file stand."""
    return Lines(path)


def _line(problem: Problem, path: Path) -> int:
    number = problem.where.removeprefix(f"{path}:").split(":")[0]
    return int(number) if number.isdigit() else 0


def _problems(error: ValidationError, where: Callable[[KeyPath], str], kind: type[BaseModel]) -> list[Problem]:
    """One problem for each place: a key that takes values of several kinds has one for each of them."""
    found: dict[tuple[str, str], Problem] = {}
    for details in error.errors(include_url=False):
        each = _problem(details, where, kind)
        key = each.where, str(details["input"])
        first = found.setdefault(key, each)
        if each.mend.removeprefix("write ") not in first.mend:
            found[key] = replace(first, mend=f"{first.mend}, or {each.mend.removeprefix('write ')}")
    return list(found.values())


def _problem(details: ErrorDetails, where: Callable[[KeyPath], str], kind: type[BaseModel]) -> Problem:
    below = str(details.get("ctx", {}).get("at", "")).split(".")
    loc = tuple(part for part in (*details["loc"], *below) if part not in ("[key]", ""))
    what, mend = _said(details, loc, known_keys(loc[:-1], kind))
    return Problem(where(loc), what, mend)


def _said(details: ErrorDetails, loc: KeyPath, keys: list[str]) -> tuple[str, str]:
    kind, context = details["type"], details.get("ctx", {})
    if kind == "tokenfleet":
        return str(context["what"]), str(context["mend"])
    if kind == "extra_forbidden":
        return "unknown key", _nearest(str(loc[-1]), keys)
    example = f"such as {_EXAMPLES[str(loc[0])]}" if len(loc) == 1 and loc[0] in _EXAMPLES else ""
    if kind == "missing":
        return "is missing", f"keys: {', '.join(keys)}" if len(loc) > 1 else example or "it has to be given"
    if details["input"] is None:
        return "has no value", example or "write one, or leave the key out"
    if kind == "literal_error":
        choices = [choice.strip(" '") for choice in str(context["expected"]).replace(" or ", ", ").split(",")]
        return f"{quoted(details['input'])} is not known", _nearest(str(details["input"]), choices)
    if kind == "too_long" or (kind == "too_short" and context["min_length"] > 1):
        wanted = context.get("min_length", context.get("max_length"))
        return f"has {context['actual_length']} entries", f"write {wanted} of them"
    if kind in ("too_short", "string_too_short"):
        return "is an empty list" if kind == "too_short" else "is empty", "name at least one"
    return _misfit(details, quoted(details["input"]), example)


def _misfit(details: ErrorDetails, shown: str, example: str) -> tuple[str, str]:
    """A value that is not what its key takes."""
    kind, context = details["type"], details.get("ctx", {})
    if kind == "string_pattern_mismatch":
        named = {"name": "a folder", "pools": "a pool", "groups": "a group"}.get(str(details["loc"][0]), "a class")
        longest = int(str(context["pattern"]).rpartition(",")[2].partition("}")[0]) + 1
        return (
            f"{shown} cannot name {named}",
            f"use letters, digits, _ and -, {longest} at most, a letter or digit first",
        )
    if kind in _BOUNDS:
        bound, breaks, mend = _BOUNDS[kind]
        limit = f"{context[bound]:{'.0%' if '%' in shown else 'g'}}"
        return f"{shown} {breaks} {limit}", f"{mend} {limit}"
    if kind in _KINDS:
        return f"{shown} is not {_KINDS[kind]}", example or f"write {_KINDS[kind]}"
    return f"{shown}: {details['msg'][:1].lower()}{details['msg'][1:]}", ""


def _nearest(word: str, choices: list[str]) -> str:
    inside = [choice for choice in choices if word and word.lower() in choice]
    near = list(dict.fromkeys([*inside, *get_close_matches(word.lower(), choices, n=2, cutoff=0.6)]))[:3]
    return f"nearest: {', '.join(near)}" if near else f"known: {', '.join(choices)}"


def known_keys(path: KeyPath, kind: type[BaseModel] = Scenario) -> list[str]:
    """Keys that ``kind`` may hold below ``path``."""
    part = kind
    chosen = False
    for key in path:
        if chosen or isinstance(key, int):
            # A name that the person chose, or a place in a list: what it leads to is the part itself.
            chosen = False
            continue
        field = part.model_fields.get(str(key))
        below = _model_in(field.annotation) if field else None
        if field is None or below is None:
            return []
        part, chosen = below, _maps(field.annotation)
    return list(part.model_fields)


def _maps(annotation: object) -> bool:
    """Whether a mapping whose keys the person chooses is meant."""
    return get_origin(annotation) is dict or any(_maps(inner) for inner in get_args(annotation))


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner)) is not None), None)
