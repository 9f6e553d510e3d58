"""The files a review reads: a scenario, a ``plan.json``, a sizing sheet, or the report of a load test."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from tokenfleet.app.scenario_words import Count, Lengths, Positive, Rate, Strict, Tokens, problem
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass

METRICS = ("ttft", "itl", "tpot", "e2el", "e2e_latency")
RANKS = ("median", "p90", "p95", "p99")
"""Quantiles of a report, from the fastest on."""
_REPORT = "give the JSON that the tool wrote"
_UNUSED = ("headroom", "idle", "spare")


class Sizing(Strict):
    """How somebody sized a fleet by hand; every key may be left out."""

    requests_per_s: Rate | None = None
    """Mean demand."""
    peak_requests_per_s: Rate | None = None
    """Demand in the busiest minute."""
    requests_per_s_per_replica: Rate | None = None
    """What one replica is said to carry."""
    input_tokens: Lengths | None = None
    """Prompt tokens: a mean, or ``MEDIAN:P95``."""
    output_tokens: Lengths | None = None
    """Generated tokens, written the same way."""
    input_limit_tokens: Tokens | None = None
    """Longest prompt let in."""
    throughput_from: Literal["peak_benchmark", "load_test", "replay"] | None = None
    """Where the capacity of a replica comes from."""
    weights_gb: Positive | None = None
    """Memory for weights."""
    kv_cache_gb: Positive | None = None
    """Memory for the KV cache."""
    replica_count: Count | None = None
    """Replicas, the spare ones included."""
    spare_replica_count: Annotated[int, Field(ge=0)] | None = None
    """Replicas that may be gone at the peak."""
    usd_per_million_tokens: Positive | None = None
    """Cost as claimed."""
    usd_per_hour: Positive | None = None
    """The whole bill."""
    scale_on: Literal["gpu_utilization", "queue_length", "kv_usage", "ttft", "concurrency"] | None = None
    """What the autoscaler looks at."""
    scale_target: Positive | None = None
    """Where it acts."""
    scale_signal_max: Positive | None = None
    """The most that the signal can show."""
    cold_start_s: Positive | None = None
    """From start to ready."""
    startup_probe_s: Positive | None = None
    """When a replica that is not ready is restarted."""
    zone_count: Count | None = None
    """Zones in use."""
    gpu_model_count: Count | None = None
    """GPU models that would do."""
    max_replica_count: Count | None = None
    """The most the autoscaler may start."""
    gpus_per_replica: Count | None = None
    """GPUs of one replica."""
    quota_gpus: Count | None = None
    """GPUs allowed."""
    engines_per_gpu: Count | None = None
    """Engines that share a GPU."""
    start_in_order: bool = False
    """They start one after the other, each with its KV size given in bytes."""

    @model_validator(mode="after")
    def _says_something_that_can_be(self) -> "Sizing":
        if not self.model_fields_set:
            raise problem("the sheet is empty, so there is nothing to review", "give what was reckoned, key by key")
        mean, peak = self.requests_per_s, self.peak_requests_per_s
        if mean is not None and peak is not None and peak < mean:
            raise problem(
                f"the busiest minute, {peak:g} requests/s, is below the mean, {mean:g}",
                "requests_per_s is the mean, peak_requests_per_s the busiest minute",
            )
        replicas, spare = self.replica_count, self.spare_replica_count
        if replicas is not None and spare is not None and spare >= replicas:
            raise problem(f"{spare} spare of {replicas} replicas leave none", "replica_count counts the spare ones too")
        most = self.max_replica_count
        if replicas is not None and most is not None and most < replicas:
            what = f"the autoscaler may start {most} replicas at most, and {replicas} are there"
            raise problem(what, "max_replica_count is the most that may run at once")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """What a review looks at in a ``plan.json``."""

    spare_count: int | None
    """``None`` when no fleet keeps the promise."""
    predicted: tuple[tuple[str, float, float | None], ...]
    """Clause, promised, slow end of the prediction."""
    warnings: tuple[str, ...]
    request_count: int
    unused_fraction: float | None
    """Headroom, idle and spare over the bill."""
    from_log: bool
    price_source: str
    term: str = "on_demand"
    """How the GPUs are bought."""
    broken_rollouts: tuple[str, ...] = ()
    """A new version, so many replicas at a time, where that breaks the promise."""
    survives_a_replica: bool = False
    """Its replay without one replica, of each pool, keeps the promise."""
    spot_gpu_count: float = 0.0
    """GPUs on spot in the purchase of a day, on average."""
    spot_promised: tuple[str, ...] = ()
    """Latency clauses that their work has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """What a review looks at in the JSON report of a serving benchmark (named as ``vllm bench serve`` does)."""

    completed: int
    failed: int
    request_rate: str | None
    """``inf`` when everything was sent at once."""
    burstiness: float | None
    """Shape of the gaps: 1 is Poisson, below 1 comes in bursts."""
    p99_ttft_ms: float | None
    max_concurrency: int | None = None
    """Requests in flight at most; a client that has so many waits before it sends the next."""
    request_throughput: float | None = None
    """Requests answered per second."""
    latencies_ms: Mapping[str, float] = field(default_factory=dict)
    """``median_ttft_ms``, ``p99_itl_ms``...: quantiles and means by the names they have in the report."""
    duration_s: float | None = None
    """From the first request to the last answer."""
    output_tokens: float | None = None
    """Of all answers together."""
    output_throughput: float | None = None
    """Output tokens per second."""
    in_flight_mean: float | None = None
    """Requests in flight on average."""
    in_flight_most: int | None = None
    """The most that were in flight within a second."""


def read_json(path: Path) -> Mapping[str, Any]:
    """A JSON file that holds one object, or one with an object in each line that has a single one.

    Raises:
        BadInput: it cannot be read, or holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        lines = [line for line in text.splitlines() if line.strip()] if path.suffix == ".jsonl" else []
        if len(lines) > 1:
            what = f"holds {len(lines)} runs, one a line"
            raise BadInput.at(str(path), what, "review one at a time, each in a file of its own")
        value = json.loads(text)
    except OSError as error:
        raise BadInput.at(str(path), f"cannot be read: {error.strerror}", "give a file that can") from None
    except (ValueError, RecursionError) as error:
        raise BadInput.at(str(path), f"is not JSON: {error}", "give a plan.json or a benchmark's report") from None
    if not isinstance(value, dict):
        raise BadInput.at(str(path), "holds no object", "give a plan.json or a benchmark's report")
    return value


def _slowest(row: Mapping[str, Any]) -> float | None:
    """The slow end of the range of a clause: never, where only the fast one has a value."""
    if row["predicted_high"] is None:
        return math.inf if row.get("predicted_low") is not None else None
    return _figure(row["predicted_high"])


def plan_file(document: Mapping[str, Any], path: Path) -> PlanFile:
    """Reads a ``plan.json``.

    Raises:
        BadInput: it is of another shape.
    """
    try:
        return _plan_file(document)
    except KeyError as error:
        raise BadInput.at(str(path), f"is no plan.json: {error} is missing", "plan again") from None
    except (TypeError, IndexError, AttributeError, ValueError) as error:
        raise BadInput.at(str(path), f"is no plan.json, or an odd one: {error}", "plan again") from None


def _plan_file(document: Mapping[str, Any]) -> PlanFile:
    fleet: Sequence[Mapping[str, Any]] = document["fleet"]
    bill = document["cost"] or {}
    total = _figure(bill["total_usd_per_hour"]) if bill else 0.0
    bought = bill.get("purchase") or {}
    scenario = document["resolved"]["scenario"]
    cases: Sequence[Mapping[str, Any]] = document.get("redundancy", ())
    alone = [case["kept"] for case in cases if case.get("kind") == "replica"]
    return PlanFile(
        spare_count=min((int(_figure(group["spare_replica_count"])) for group in fleet), default=None),
        predicted=tuple((_clause(row), _figure(row["promised"]), _slowest(row)) for row in document["slo"]),
        warnings=tuple(
            _text(row["text"])
            for row in document.get("warnings", ())
            if row.get("kind", "contradiction") == "contradiction"
        ),
        request_count=int(_figure(document["workload"]["request_count"])),
        unused_fraction=sum(_figure(bill[f"{line}_usd_per_hour"]) for line in _UNUSED) / total if total else None,
        from_log=bool(scenario["workload"].get("trace")),
        price_source="; ".join(dict.fromkeys(group["price_source"] for group in fleet)),
        term=scenario.get("prices", {}).get("term", "on_demand"),
        broken_rollouts=tuple(
            _text(case["lost"]) for case in cases if case.get("kind") == "rollout" and case["kept"] is False
        ),
        survives_a_replica=bool(alone) and all(kept is True for kept in alone),
        spot_gpu_count=sum(
            _figure(line["mean_gpu_count"]) for line in bought.get("lines", ()) if line["name"] == "spot"
        ),
        spot_promised=tuple(_text(name) for name in bought.get("spot_promised", ())),
    )


def _clause(row: Mapping[str, Any]) -> str:
    name, of = _text(row["name"]), row.get("traffic_class")
    return name if of is None else f"{name} of {_text(of)}"


def _figure(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{value!r} is no number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def benchmark_file(document: Mapping[str, Any], path: Path) -> Benchmark:
    """Reads the report of a serving benchmark.

    Raises:
        BadInput: numbers are no numbers, or none that a run can have counted.
    """
    try:
        return _benchmark(document)
    except KeyError as error:
        raise BadInput.at(str(path), f"is no benchmark report: {error} is missing", _REPORT) from None
    except (TypeError, ValueError) as error:
        raise BadInput.at(str(path), f"is no benchmark report: {error}", _REPORT) from None


def _benchmark(document: Mapping[str, Any]) -> Benchmark:
    rate, most = document.get("request_rate"), document.get("max_concurrency")
    flying = document.get("max_concurrent_requests")
    completed, failed = _count(document["completed"], "completed"), _count(document.get("failed", 0), "failed")
    duration_s = _number(document.get("duration"))
    if not completed + failed:
        raise ValueError("no request was answered, and none failed")
    if duration_s is not None and duration_s <= 0.0:
        raise ValueError(f"its duration is {duration_s:g} s")
    return Benchmark(
        completed=completed,
        failed=failed,
        request_rate=None if rate is None else str(rate),
        burstiness=_number(document.get("burstiness")),
        p99_ttft_ms=_number(document.get("p99_ttft_ms")),
        max_concurrency=None if most is None else _count(most, "max_concurrency"),
        request_throughput=_number(document.get("request_throughput")),
        latencies_ms={
            name: value
            for name in (f"{rank}_{metric}_ms" for metric in METRICS for rank in ("mean", *RANKS))
            if (value := _number(document.get(name))) is not None
        },
        duration_s=duration_s,
        output_tokens=_number(document.get("total_output_tokens")),
        output_throughput=_number(document.get("output_throughput")),
        in_flight_mean=_number(document.get("concurrency")),
        in_flight_most=None if flying is None else _count(flying, "max_concurrent_requests"),
    )


def _count(value: object, name: str) -> int:
    """A whole number of 0 or more, as a number or as its text."""
    number = float(str(value))
    if not (math.isfinite(number) and number >= 0.0 and number == int(number)):
        raise ValueError(f"{name} is {value}")
    return int(number)


def _number(value: object) -> float | None:
    """``None`` where it is not there, and where a tool wrote that it is no number."""
    number = None if value is None else float(str(value))
    return None if number is None or math.isnan(number) else number
