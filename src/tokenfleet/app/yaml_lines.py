"""YAML read with the line of every key, and refused where YAML itself would guess.

Plain scalars follow the JSON-like core schema: ``yes`` stays a word and ``12:30`` stays text, where classic YAML
reads a boolean and the number 750. Repeated keys are problems, not silent winners.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import yaml

from tokenfleet.domain.errors import BadInput, Problem

_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_NUMBER: Final = re.compile(r"[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?|[0-9]+[eE][-+]?[0-9]{1,3})")
_WORDS: Final = {"": None, "~": None, "null": None, "true": True, "false": False}
_PLAIN_TAGS: Final = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp")}
_MOST_NODES: Final = 100_000
_DEEPEST: Final = 40

KeyPath = tuple[str | int, ...]
"""The way to a value: keys of mappings, indices of lists."""


@dataclass(slots=True)
class YamlFile:
    """What a file holds, and where: ``lines`` gives the line of each key and item, by path."""

    path: Path
    value: object = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    node_count: int = 0

    def where(self, path: KeyPath) -> str:
        """``file.yaml:7: slo.ttft_p99``: the line of the deepest part of ``path`` that the file has."""
        line, shown, value = 1, path[:0], self.value
        for part in path:
            if not isinstance(value, dict | list):
                break
            shown = (*shown, part)
            if shown not in self.lines:
                break
            line = self.lines[shown]
            value = value[int(part)] if isinstance(value, list) else value[part]
        key = dotted(shown)
        return f"{self.path}:{line}" + (f": {key}" if key else "")


def dotted(path: KeyPath) -> str:
    """``("gpus", 1)`` as ``gpus[1]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def read_yaml(path: Path) -> YamlFile:
    """Read one YAML document.

    Raises:
        BadInput: no such file, not text, not YAML, empty, or repeated keys; with the line where there is one.
    """
    text = _text_of(path)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise BadInput([_syntax_problem(path, error)]) from None
    except RecursionError:
        raise BadInput.at(str(path), "is nested too deep to be read") from None
    if node is None:
        raise BadInput.at(str(path), "is empty", "start one with: tokenfleet init --defaults chat")
    found = YamlFile(path)
    found.value = _value(found, node, ())
    if found.problems:
        raise BadInput(found.problems)
    return found


def _text_of(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except IsADirectoryError:
        raise BadInput.at(str(path), "is a folder, not a file") from None
    except FileNotFoundError:
        raise BadInput.at(str(path), "there is no such file", _nearest_file(path)) from None
    except OSError as error:
        raise BadInput.at(str(path), f"cannot be read: {error.strerror}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise BadInput.at(f"{path}:{line}", "is not UTF-8 text", "save it as UTF-8") from None


def _nearest_file(path: Path) -> str:
    from difflib import get_close_matches

    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = get_close_matches(path.name, beside, n=1)
    return f"nearest: {path.parent / near[0]}" if near else ""


def _syntax_problem(path: Path, error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    where = f"{path}:{mark.line + 1}" if mark else str(path)
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    if r"'\t'" in what:
        return Problem(where, "a tab stands where YAML wants spaces", "indent with spaces")
    if isinstance(error, yaml.reader.ReaderError):
        return Problem(
            where, "holds a character YAML does not allow", f"character {error.character!r} at {error.position}"
        )
    return Problem(where, f"is not YAML: {what}", "check colons, quotes and indentation")


def _value(file: YamlFile, node: yaml.Node, path: KeyPath) -> object:
    file.node_count += 1
    line = node.start_mark.line + 1
    if file.node_count > _MOST_NODES or len(path) > _DEEPEST:
        raise BadInput.at(f"{file.path}:{line}", "is nested too deep or repeats itself through anchors", "write it out")
    if isinstance(node, yaml.MappingNode):
        return _mapping(file, node, path)
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            file.lines[(*path, index)] = item.start_mark.line + 1
            items.append(_value(file, item, (*path, index)))
        return items
    return _scalar(file, node, path)


def _mapping(file: YamlFile, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
    mapping: dict[str, object] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            file.problems.append(Problem(f"{file.path}:{line}", "a key must be a word"))
            continue
        key = str(key_node.value)
        if key in mapping:
            first = file.lines[(*path, key)]
            what = f"is written twice, first on line {first}"
            file.problems.append(Problem(f"{file.path}:{line}: {dotted((*path, key))}", what, "keep one"))
            continue
        file.lines[(*path, key)] = line
        mapping[key] = _value(file, value_node, (*path, key))
    return mapping


def _scalar(file: YamlFile, node: yaml.Node, path: KeyPath) -> object:
    text = str(node.value)
    if node.tag not in _PLAIN_TAGS:
        where = f"{file.path}:{node.start_mark.line + 1}: {dotted(path)}"
        file.problems.append(Problem(where, f"the tag {node.tag} has no meaning here", "leave it out"))
        return None
    if getattr(node, "style", None) is not None:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text
