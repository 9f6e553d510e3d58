"""Building blocks of a measured run: statistics in seconds, requests as columns."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tokenfleet.domain.benchmark import BenchmarkRun, MeasuredRequests
from tokenfleet.domain.trace import Floats
from tokenfleet.workload.formats.records import count, number

STATISTICS = ("mean", "p50", "p90", "p95", "p99")


def run_of(tool: str, source: str, **known: Any) -> BenchmarkRun:  # noqa: ANN401 - fields of a run
    """A run of which only some facts are known; the others are ``None``."""
    empty: dict[str, Any] = dict.fromkeys(
        (
            *("model", "engine", "asked_rate_per_s", "asked_concurrency_count", "duration_s", "finished_count"),
            *("failed_count", "mean_input_tokens", "mean_output_tokens", "request_rate_per_s"),
            *("output_rate_tokens_per_s", "requests"),
        )
    )
    facts = {"predicted": False, "latencies_s": {}, "settings": {}, "warnings": (), **known}
    facts["warnings"] = tuple(facts["warnings"])
    facts["latencies_s"] = {name: values for name, values in facts["latencies_s"].items() if values}
    return BenchmarkRun(tool=tool, source=source, **{**empty, **facts})


def statistics(values: Mapping[str, Any], names: Mapping[str, str], factor: float) -> dict[str, float]:
    """Statistics in seconds under our names; those not there or not finite are left out.

    Args:
        values: What the file has.
        names: Our statistic -> its name in the file.
        factor: To seconds.
    """
    found = {}
    for ours, theirs in names.items():
        value = number(values.get(theirs))
        if value is not None and math.isfinite(value):
            found[ours] = value * factor
    return found


def requests_of(rows: Iterable[Mapping[str, Any]]) -> MeasuredRequests | None:
    """Columns of single requests; rows have the names of :class:`MeasuredRequests`, and may lack any of them."""
    kept = list(rows)
    if not kept:
        return None
    starts = _floats(row.get("start_s") for row in kept)
    known = starts[~np.isnan(starts)]
    return MeasuredRequests(
        start_s=starts - float(known.min()) if len(known) else None,
        input_tokens=np.array([_whole(row.get("input_tokens")) for row in kept], dtype=np.int32),
        output_tokens=np.array([_whole(row.get("output_tokens")) for row in kept], dtype=np.int32),
        ttft_s=_floats(row.get("ttft_s") for row in kept),
        e2e_s=_floats(row.get("e2e_s") for row in kept),
        ok=np.array([int(bool(row.get("ok"))) for row in kept], dtype=np.int32),
    )


def from_requests(requests: MeasuredRequests) -> dict[str, dict[str, float]]:
    """TTFT, TPOT and E2E over the requests that finished; TPOT is (e2e - ttft) / (output - 1) of each."""
    done = requests.ok == 1
    later = requests.output_tokens > 1
    tpot = np.full(len(done), np.nan)
    tpot[later] = (requests.e2e_s[later] - requests.ttft_s[later]) / (requests.output_tokens[later] - 1)
    return {
        name: summary
        for name, values in (("ttft", requests.ttft_s), ("tpot", tpot), ("e2e", requests.e2e_s))
        if (summary := _summary(values[done]))
    }


def means(requests: MeasuredRequests) -> dict[str, float | None]:
    """Mean lengths over the requests that finished and whose lengths are known."""
    found: dict[str, float | None] = {}
    for name, values in (("mean_input_tokens", requests.input_tokens), ("mean_output_tokens", requests.output_tokens)):
        known = values[(requests.ok == 1) & (values >= 0)]
        found[name] = float(known.mean()) if len(known) else None
    return found


def ratio(total: Any, parts: Any) -> float | None:  # noqa: ANN401 - any JSON
    """``total / parts`` where both are known and parts are above 0."""
    over, under = number(total), number(parts)
    return over / under if over is not None and under else None


def _summary(values: Floats) -> dict[str, float]:
    known = values[~np.isnan(values)]
    if not len(known):
        return {}
    p50, p90, p95, p99 = np.quantile(known, [0.5, 0.9, 0.95, 0.99])
    return {"mean": float(known.mean()), "p50": float(p50), "p90": float(p90), "p95": float(p95), "p99": float(p99)}


def _floats(values: Iterable[Any]) -> Floats:
    return np.array([math.nan if (found := number(value)) is None else found for value in values], dtype=np.float64)


def _whole(value: Any) -> int:  # noqa: ANN401 - any JSON
    found = count(value)
    return found if found is not None and 0 <= found < 2**31 else -1
