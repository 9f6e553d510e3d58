"""Prometheus text and query results as samples: name, labels, value."""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass

_LINE = re.compile(
    r"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>(?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*)\})?\s+"
    r"(?P<value>[^\s]+)(?:\s+(?P<stamp>-?[0-9.]+))?\s*(?:#.*)?$"
)
_LABEL = re.compile(r"([a-zA-Z_][a-zA-Z0-9_.]*)\s*=\s*\"((?:[^\"\\]|\\.)*)\"")
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one series."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Series:
    """One series over time."""

    name: str
    labels: dict[str, str]
    stamps_s: tuple[float, ...]
    values: tuple[float, ...]


def read_text(text: str) -> tuple[list[Sample], int]:
    """Samples of a metrics page (Prometheus text or OpenMetrics), and how many lines are none.

    Comments, exemplars and time stamps are allowed; NaN values are left out, since they stand for "no value".
    """
    samples, broken = [], 0
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.match(line)
        value = None if match is None else _value(match.group("value"))
        if match is None or value is None:
            broken += 1
        elif not math.isnan(value):
            samples.append(Sample(match.group("name"), _labels(match.group("labels") or ""), value))
    return samples, broken


def read_query(document: Any, *, where: str) -> list[Series]:  # noqa: ANN401 - any JSON
    """Series of a Prometheus query: a range (matrix) or an instant (vector).

    Raises:
        BadInput: a failed query, or something else than a query result.
    """
    if not isinstance(document, dict) or not isinstance(document.get("data"), dict):
        raise BadInput.at(where, "is no Prometheus query result", "save the answer of /api/v1/query_range")
    if document.get("status") != "success":
        raise BadInput.at(where, f"the query failed: {document.get('error', 'no reason given')}", "run it again")
    return list(_series(document["data"].get("result")))


def _series(result: Any) -> Iterator[Series]:  # noqa: ANN401 - any JSON
    for entry in result if isinstance(result, list) else []:
        if not isinstance(entry, dict) or not isinstance(entry.get("metric"), dict):
            continue
        labels = {str(key): str(value) for key, value in entry["metric"].items()}
        pairs = entry.get("values") if isinstance(entry.get("values"), list) else [entry.get("value")]
        points = [point for pair in pairs or [] if (point := _point(pair)) is not None]
        yield Series(
            labels.pop("__name__", ""), labels, tuple(point[0] for point in points), tuple(point[1] for point in points)
        )


def _point(pair: Any) -> tuple[float, float] | None:  # noqa: ANN401 - any JSON
    if (
        not isinstance(pair, list)
        or len(pair) != 2
        or isinstance(pair[0], bool)
        or not isinstance(pair[0], int | float)
    ):
        return None
    value = _value(str(pair[1]))
    return None if value is None or math.isnan(value) else (float(pair[0]), value)


def is_query(text: str) -> bool:
    """Whether the text looks like a Prometheus query result."""
    return '"resultType"' in text[:400]


def parse_json(text: str, *, where: str) -> Any:  # noqa: ANN401 - any JSON
    """JSON, or a question.

    Raises:
        BadInput: not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput.at(where, f"is not whole JSON: {error}", "export it again") from error


def _labels(text: str) -> dict[str, str]:
    return {
        name: re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), value)
        for name, value in _LABEL.findall(text)
    }


def _value(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
