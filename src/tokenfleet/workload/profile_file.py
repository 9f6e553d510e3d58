"""Profiles on disk: JSON that a person can read and that comes back as the same workload, exactly."""

import json
import math
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.trace import (
    ClientShape,
    LengthCounts,
    LengthSummary,
    PromptShape,
    Quality,
    SessionShape,
    Workload,
)

PROFILE_KIND = "tokenfleet workload profile"
"""Says in the first lines of a file that it is a profile."""
_WRITE = "write one with: tokenfleet profile FILES -o profile.json"
_VERSION = 1
_PLAIN = (
    "request_count",
    "duration_s",
    "mean_rate_per_s",
    "peak_minute_rate_per_s",
    "peak_minute_start_s",
    "peak_to_mean_minute_requests",
    "peak_to_mean_minute_tokens",
    "interarrival_cv",
    "shareable_input_fraction",
    "session_count",
    "tenant_request_counts",
    "extra",
)
_COUNTS = ("minute_requests", "minute_input_tokens", "minute_output_tokens")


def save_profile(workload: Workload, path: str | Path) -> Path:
    """Write a profile as JSON; the file appears whole or not at all.

    Raises:
        BadInput: the folder does not exist.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise BadInput.at(str(target), f"there is no folder {target.parent}", "make it first")
    part = target.with_name(target.name + ".part")
    part.write_text(json.dumps(profile_document(workload), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(part, target)
    return target


def load_profile(path: str | Path) -> Workload:
    """Read what :func:`save_profile` wrote.

    Raises:
        BadInput: missing, no profile, or of a version this program does not know.
    """
    source = Path(path)
    if not source.is_file():
        raise BadInput.at(str(source), "there is no such file", _WRITE)
    try:
        document = json.loads(source.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise BadInput.at(
            str(source),
            f"is no workload profile and not JSON: {error}",
            _WRITE,
        ) from error
    if not isinstance(document, dict) or document.get("kind") != PROFILE_KIND:
        raise BadInput.at(str(source), "is no workload profile", _WRITE)
    if document.get("version") != _VERSION:
        raise BadInput.at(
            str(source), f"is a profile of version {document.get('version')}", "read it with a newer tokenfleet"
        )
    try:
        return workload_of(document)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise BadInput.at(str(source), f"is damaged: {type(error).__name__} {error}", "write it again") from error


def profile_document(workload: Workload) -> dict[str, Any]:
    """The profile as plain data; unknown is null."""
    document: dict[str, Any] = {"kind": PROFILE_KIND, "version": _VERSION}
    for name in _PLAIN:
        document[name] = _known(getattr(workload, name))
    for name in ("input_tokens", "output_tokens"):
        document[name] = asdict(getattr(workload, name))
    for name in _COUNTS:
        document[name] = getattr(workload, name).tolist()
    for name in ("input_counts", "output_counts"):
        counts = getattr(workload, name)
        document[name] = None if counts is None else [counts.values.tolist(), counts.counts.tolist()]
    for name in ("sessions", "prompts"):
        shape = getattr(workload, name)
        document[name] = None if shape is None else _plain_shape(shape)
    document["clients"] = [_plain_shape(client) for client in workload.clients]
    document["input_edges"] = workload.input_edges.tolist()
    document["output_edges"] = workload.output_edges.tolist()
    rows, columns = np.nonzero(workload.joint_counts)
    cells = workload.joint_counts[rows, columns]
    document["joint_counts"] = [rows.tolist(), columns.tolist(), cells.tolist()]
    # Single rejected rows belong to the file they stand in, not to the description of its traffic.
    document["quality"] = {key: value for key, value in asdict(workload.quality).items() if key != "rejects"}
    document["quality"]["warnings"] = list(workload.quality.warnings)
    return document


def workload_of(document: dict[str, Any]) -> Workload:
    """The workload of :func:`profile_document`."""
    values: dict[str, Any] = {name: document[name] for name in _PLAIN}
    for name in ("mean_rate_per_s", "interarrival_cv"):
        values[name] = math.nan if values[name] is None else values[name]
    for name in ("input_tokens", "output_tokens"):
        values[name] = LengthSummary(**document[name])
    for name in _COUNTS:
        values[name] = _longs(document[name])
    for name in ("input_counts", "output_counts"):
        pair = document[name]
        values[name] = None if pair is None else LengthCounts(values=_longs(pair[0]), counts=_longs(pair[1]))
    for name, kind in (("sessions", SessionShape), ("prompts", PromptShape)):
        fields_ = document.get(name)
        values[name] = None if fields_ is None else kind(**_shape_fields(kind, fields_))
    found = [ClientShape(**_shape_fields(ClientShape, client)) for client in document.get("clients", ())]
    values["clients"] = tuple(found)
    for name in ("input_edges", "output_edges"):
        values[name] = np.array(document[name], dtype=np.float64)
    joint = np.zeros((len(document["input_edges"]) - 1, len(document["output_edges"]) - 1), dtype=np.int64)
    rows, columns, cells = document["joint_counts"]
    joint[rows, columns] = cells
    quality = {**document["quality"], "warnings": tuple(document["quality"]["warnings"])}
    return Workload(**values, joint_counts=joint, quality=Quality(**quality))


def _plain_shape(shape: SessionShape | PromptShape | ClientShape) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for entry in fields(shape):
        value = getattr(shape, entry.name)
        if isinstance(value, LengthCounts):
            out[entry.name] = [value.values.tolist(), value.counts.tolist()]
        else:
            out[entry.name] = value.tolist() if isinstance(value, np.ndarray) else _known(value)
    return out


def _shape_fields(kind: type, document: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for entry in fields(kind):
        value = document[entry.name]
        if isinstance(value, list):
            counts = entry.type in (LengthCounts, "LengthCounts")
            out[entry.name] = (
                LengthCounts(values=_longs(value[0]), counts=_longs(value[1])) if counts else _longs(value)
            )
        else:
            out[entry.name] = math.nan if value is None else value
    return out


def _longs(values: list[int]) -> npt.NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def _known(value: Any) -> Any:  # noqa: ANN401 - numbers and containers alike
    if isinstance(value, dict):
        return {key: _known(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
