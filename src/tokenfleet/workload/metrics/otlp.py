"""OpenTelemetry metrics as the collector writes them (OTLP JSON), as the samples of a metrics page."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tokenfleet.domain.errors import BadInput
from tokenfleet.workload.metrics.exposition import Sample

_Labels = tuple[tuple[str, str], ...]
_DELTA = (1, "AGGREGATION_TEMPORALITY_DELTA")
"""Points that hold what came since the last one; all others hold everything since the start."""


@dataclass(slots=True)
class _Totals:
    """Values of one series by the start of the process that counted them: after a restart both runs count."""

    latest_ns: dict[int, int] = field(default_factory=dict)
    values: dict[int, dict[str, float]] = field(default_factory=dict)

    def take(self, start_ns: int, time_ns: int, values: dict[str, float], *, delta: bool) -> None:
        if delta:
            sums = self.values.setdefault(0, {})
            for key, value in values.items():
                sums[key] = sums.get(key, 0.0) + value
        elif time_ns >= self.latest_ns.get(start_ns, -1):
            self.latest_ns[start_ns] = time_ns
            self.values[start_ns] = values

    def sums(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for values in self.values.values():
            for key, value in values.items():
                total[key] = total.get(key, 0.0) + value
        return total


def is_otlp(head: str) -> bool:
    """Whether the text looks like an export of metrics."""
    return '"resourceMetrics"' in head[:400]


def read_otlp(text: str, *, where: str) -> tuple[list[Sample], int]:
    """Samples of an export, one document or one per line, and how many points or lines could not be read.

    Histograms become cumulative buckets, sum and count; of gauges the last value counts. Points that hold growth are
    added up; of those that hold everything since the start the last one of each start counts.

    Raises:
        BadInput: no JSON at all.
    """
    exports, broken = _exports(text)
    if not exports:
        raise BadInput.at(where, "is not whole JSON", "export it again")
    totals: dict[tuple[str, _Labels], _Totals] = {}
    for export in exports:
        for metric in _metrics(export):
            for point, kind, delta in _points(metric):
                read = _values(point, kind)
                if read is None:
                    broken += 1
                    continue
                key = str(metric.get("name")), _labels(point)
                start_ns = 0 if kind == "gauge" else _whole(point.get("startTimeUnixNano"))
                totals.setdefault(key, _Totals()).take(start_ns, _whole(point.get("timeUnixNano")), read, delta=delta)
    return [sample for (name, labels), found in totals.items() for sample in _samples(name, labels, found)], broken


def _exports(text: str) -> tuple[list[dict[str, Any]], int]:
    whole = _parsed(text)
    if whole is not None:
        return [whole], 0
    lines = [_parsed(line) for line in text.splitlines() if line.strip()]
    return [line for line in lines if line is not None], sum(line is None for line in lines)


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _metrics(export: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in _items(export.get("resourceMetrics")):
        for scope in _items(resource.get("scopeMetrics")):
            yield from _items(scope.get("metrics"))


def _points(metric: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, bool]]:
    """Points with their kind; exponential histograms come back as a kind that cannot be read."""
    for kind in ("histogram", "sum", "gauge", "exponentialHistogram", "summary"):
        body = metric.get(kind)
        if isinstance(body, dict):
            delta = kind != "gauge" and body.get("aggregationTemporality") in _DELTA
            for point in _items(body.get("dataPoints")):
                yield point, kind, delta


def _values(point: dict[str, Any], kind: str) -> dict[str, float] | None:
    if kind in ("sum", "gauge"):
        value = _number(point.get("asInt", point.get("asDouble")))
        return None if value is None else {"": value}
    if kind != "histogram":
        return None
    edges, counts = _numbers(point.get("explicitBounds")), _numbers(point.get("bucketCounts"))
    total = _number(point.get("sum"))
    if edges is None or counts is None or total is None or len(counts) != len(edges) + 1 or min(counts) < 0:
        return None
    read = {f"_bucket {edge!r}": count for edge, count in zip([*edges, math.inf], counts, strict=True)}
    return {**read, "_sum": total, "_count": sum(counts)}


def _samples(name: str, labels: _Labels, found: _Totals) -> Iterator[Sample]:
    sums = found.sums()
    buckets = {float(key.split()[1]): value for key, value in sums.items() if key.startswith("_bucket ")}
    upto = 0.0
    for edge in sorted(buckets):
        upto += buckets[edge]
        yield Sample(name + "_bucket", {**dict(labels), "le": repr(edge)}, upto)
    for key, value in sums.items():
        if not key.startswith("_bucket "):
            yield Sample(name + key, dict(labels), value)


def _labels(point: dict[str, Any]) -> _Labels:
    found = {}
    for entry in _items(point.get("attributes")):
        value = entry.get("value")
        if isinstance(value, dict) and value:
            found[str(entry.get("key"))] = str(next(iter(value.values())))
    return tuple(sorted(found.items()))


def _items(value: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - any JSON
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _numbers(value: Any) -> list[float] | None:  # noqa: ANN401 - any JSON
    found = [_number(entry) for entry in value] if isinstance(value, list) else [None]
    return None if None in found else [entry for entry in found if entry is not None]


def _number(value: Any) -> float | None:  # noqa: ANN401 - any JSON
    """A finite number; OTLP writes whole ones as text, since JSON has no room for 64 bits."""
    try:
        found = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _whole(value: Any) -> int:  # noqa: ANN401 - any JSON
    found = _number(value)
    return 0 if found is None else int(found)
