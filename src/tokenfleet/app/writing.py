"""Writes scenario files a person can read and change: every key with a comment that says what it does."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from tokenfleet.app.whole_files import write_whole
from tokenfleet.domain.errors import BadInput, Problem

_COMMENTS = {
    "workload": "Where the demand comes from. Your own log beats every guess:  workload: {trace: requests.csv}",
    "model": "A name of the catalog, or the path of a config.json.",
    "slo": "The promise, at any percentile: ttft_p99, itl_p99, tpot_p50, e2e_p95... and error_rate.",
    "gpus": "Accelerators to try; the cheapest fleet that keeps the promise wins.",
    "precision": "Weight precisions to try. Below bf16, check your own quality before you promise.",
    "redundancy": "The promise holds with this many replicas gone, at the peak minute.",
    "seed": "The same seed gives the same plan.",
}

_ORDER = [
    "name",
    "workload",
    "model",
    "slo",
    "gpus",
    "precision",
    "kv_dtype",
    "tensor_parallel",
    "engine",
    "redundancy",
    "seed",
]


def check_new(path: Path, *, force: bool) -> None:
    """Make sure, before any work, that ``path`` may be written.

    Raises:
        BadInput: the file is there already and ``force`` is not given, or it is a folder.
    """
    if path.is_dir():
        raise BadInput.at(str(path), "is a folder", "give a file name")
    if path.exists() and not force:
        raise BadInput.at(str(path), "is there already", "give another name, or --force to overwrite it")


def check_results(results: Mapping[str, Path | None], *, inputs: Iterable[Path]) -> None:
    """Make sure, before any work, that results can be written and replace nothing that was given as input.

    Args:
        results: Option -> file; ``None`` where the option was not given.
        inputs: Files that are read.

    Raises:
        BadInput: everything that is wrong with the results.
    """
    problems, taken = [], {path.resolve(): "is a file that is read" for path in inputs}
    for option, path in results.items():
        if path is None:
            continue
        folder = path.resolve().parent
        if path.is_dir():
            problems.append(Problem(option, f"{path} is a folder", "give a file name"))
        elif path.resolve() in taken:
            problems.append(Problem(option, f"{path} {taken[path.resolve()]}", "give another name"))
        elif not folder.is_dir():
            problems.append(Problem(option, f"there is no folder {folder}", "make it first"))
        elif not os.access(folder, os.W_OK | os.X_OK):
            problems.append(
                Problem(option, f"{path} cannot be written: {folder} does not allow it", "give another path")
            )
        taken[path.resolve()] = f"is written by {option} already"
    if problems:
        raise BadInput(problems)


def save_scenario(values: Mapping[str, object], path: Path) -> None:
    """Write the values of a scenario with comments.

    Raises:
        BadInput: the file cannot be written.
    """
    parts = [f"# tokenfleet plan {path.name}\n"]
    for key in sorted(values, key=_ORDER.index):
        comment = f"# {_COMMENTS[key]}\n" if key in _COMMENTS else ""
        # Short lists and mappings stay on one line; a bare value must not become a mapping in braces.
        flow = None if isinstance(values[key], list | dict) else False
        body = yaml.safe_dump(
            {key: plain(values[key])}, sort_keys=False, allow_unicode=True, width=100, default_flow_style=flow
        )
        parts.append(comment + body)
    write_text("\n".join(parts), path)


def plain(value: object) -> object:
    """Numbers typed as text become numbers, so that a file reads ``growth: 1.3`` and not ``growth: '1.3'``."""
    if isinstance(value, Mapping):
        return {key: plain(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [plain(below) for below in value]
    if not isinstance(value, str):
        return value
    if re.fullmatch(r"0|[1-9][0-9]{0,8}", value):
        return int(value)
    return float(value) if re.fullmatch(r"[0-9]{1,6}\.[0-9]{1,6}", value) else value


def write_text(text: str, path: Path) -> None:
    """Write a file whole or not at all.

    Raises:
        BadInput: the disk refuses.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(text, path)
    except OSError as error:
        raise BadInput.at(str(path), f"cannot be written: {error.strerror}", "give another path") from None
