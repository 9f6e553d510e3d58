"""Tools that write reports: GuideLLM, AIPerf and GenAI-Perf, inference-perf."""

from collections.abc import Iterator
from typing import Any

from tokenfleet.domain.benchmark import BenchmarkRun
from tokenfleet.workload.benchmarks.run import from_requests, means, requests_of, run_of, statistics
from tokenfleet.workload.formats.records import Record, at, count, json_document, json_lines, number, scaled, text
from tokenfleet.workload.formats.source import Source

_MS = 1e-3
_PLAIN = {"mean": "mean", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}


def is_guidellm(source: Source) -> bool:
    """GuideLLM's report."""
    return {"metadata", "benchmarks"} <= set(source.columns) or '"guidellm_version"' in source.head[:2000]


def read_guidellm(source: Source) -> list[BenchmarkRun]:
    """One run per benchmark of the report. ``*_ms`` are milliseconds, ``request_latency`` is seconds."""
    document = json_document(source)
    return [
        _guidellm(entry, f"{source.where}, benchmark {place}") for place, entry in _dicts(at(document, "benchmarks"))
    ]


def _guidellm(entry: Record, where: str) -> BenchmarkRun:
    metrics = entry.get("metrics")
    totals = at(metrics, "request_totals")
    begin, end = (number(at(entry, "scheduler_metrics", key)) for key in ("start_time", "end_time"))
    strategy = at(entry, "config", "strategy")
    rows = [*_guidellm_rows(entry, "successful", ok=True), *_guidellm_rows(entry, "incomplete", ok=False)]
    rows += _guidellm_rows(entry, "errored", ok=False)
    latencies = {
        ours: _guidellm_statistics(at(metrics, theirs, "successful"), factor)
        for ours, theirs, factor in (
            ("ttft", "time_to_first_token_ms", _MS),
            ("tpot", "time_per_output_token_ms", _MS),
            ("itl", "inter_token_latency_ms", _MS),
            ("e2e", "request_latency", 1.0),
        )
    }
    bad = [count(at(totals, key)) for key in ("errored", "incomplete")]
    return run_of(
        "GuideLLM",
        where,
        asked_rate_per_s=number(at(strategy, "rate")),
        asked_concurrency_count=count(at(strategy, "streams")),
        duration_s=None if begin is None or end is None else end - begin,
        finished_count=count(at(totals, "successful")),
        failed_count=None if bad == [None, None] else sum(part or 0 for part in bad),
        mean_input_tokens=number(at(metrics, "prompt_token_count", "successful", "mean")),
        mean_output_tokens=number(at(metrics, "output_token_count", "successful", "mean")),
        request_rate_per_s=number(at(metrics, "requests_per_second", "successful", "mean")),
        output_rate_tokens_per_s=number(at(metrics, "output_tokens_per_second", "successful", "mean")),
        latencies_s=latencies,
        requests=requests_of(rows),
        settings={"strategy": str(at(strategy, "type_"))},
        warnings=["its time per output token counts the first token too: tpot here includes the time to it"],
    )


def _guidellm_statistics(values: Any, factor: float) -> dict[str, float]:  # noqa: ANN401 - any JSON
    if not isinstance(values, dict):
        return {}
    flat = {**(values.get("percentiles") or {}), "mean": values.get("mean")}
    return statistics(flat, _PLAIN, factor)


def _guidellm_rows(entry: Record, kind: str, *, ok: bool) -> list[Record]:
    rows = []
    for _, request in _dicts(at(entry, "requests", kind)):
        times = at(request, "info", "timings")
        start, first, last = (
            number(at(times, key)) for key in ("request_start", "first_token_iteration", "last_token_iteration")
        )
        rows.append(
            {
                "start_s": start,
                "input_tokens": at(request, "input_metrics", "text_tokens"),
                "output_tokens": at(request, "output_metrics", "text_tokens"),
                "ttft_s": None if start is None or first is None else first - start,
                "e2e_s": None if start is None or last is None else last - start,
                "ok": ok,
            }
        )
    return rows


def is_aiperf_records(source: Source) -> bool:
    """AIPerf's one line per request."""
    return source.kind == "jsonl" and at(source.record, "metadata", "request_start_ns") is not None


def read_aiperf_records(source: Source) -> list[BenchmarkRun]:
    """Nanosecond stamps; every metric names its unit; warm-up requests are left out and counted."""
    found = json_lines(source)
    measured = [record for _, record in found.records if at(record, "metadata", "benchmark_phase") != "warmup"]
    requests = requests_of(_aiperf_row(record) for record in measured)
    done = int(requests.ok.sum()) if requests else 0
    warm = len(found.records) - len(measured)
    return [
        run_of(
            "AIPerf",
            source.where,
            finished_count=done,
            failed_count=len(measured) - done,
            latencies_s=from_requests(requests) if requests else {},
            requests=requests,
            warnings=[f"{warm} warm-up requests are left out"] if warm else [],
            **(means(requests) if requests else {}),
        )
    ]


def _aiperf_row(record: Record) -> Record:
    metrics = record.get("metrics")
    cancelled = at(record, "metadata", "was_cancelled") is True
    return {
        "start_s": scaled(at(record, "metadata", "request_start_ns"), 1e-9),
        "input_tokens": at(metrics, "input_sequence_length", "value"),
        "output_tokens": at(metrics, "output_sequence_length", "value"),
        "ttft_s": _with_unit(at(metrics, "time_to_first_token")),
        "e2e_s": _with_unit(at(metrics, "request_latency")),
        "ok": record.get("error") is None and not cancelled,
    }


def _with_unit(metric: Any) -> float | None:  # noqa: ANN401 - any JSON
    factor = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}.get(str(at(metric, "unit")))
    return None if factor is None else scaled(at(metric, "value"), factor)


def is_aiperf(source: Source) -> bool:
    """The summary of AIPerf or GenAI-Perf: every metric an object with a unit."""
    return at(source.record, "request_latency", "unit") is not None and "request_throughput" in source.columns


def read_aiperf(source: Source) -> list[BenchmarkRun]:
    """Summary statistics, converted by the unit that each metric names."""
    record = json_document(source)
    named = {"mean": "avg", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99"}
    latencies = {}
    for ours, theirs in (("ttft", "time_to_first_token"), ("itl", "inter_token_latency"), ("e2e", "request_latency")):
        factor = {"ms": 1e-3, "s": 1.0, "us": 1e-6, "ns": 1e-9}.get(str(at(record, theirs, "unit")))
        latencies[ours] = {} if factor is None else statistics(at(record, theirs), named, factor)
    model = at(record, "input_config", "model") or at(record, "input_config", "endpoint", "model_names")
    return [
        run_of(
            "AIPerf" if "schema_version" in record or "aiperf_version" in record else "GenAI-Perf",
            source.where,
            model=text(model[0]) if isinstance(model, list) and model else text(model),
            asked_concurrency_count=count(at(record, "input_config", "concurrency")),
            finished_count=count(at(record, "request_count", "avg")) or count(at(record, "request_latency", "count")),
            mean_input_tokens=number(at(record, "input_sequence_length", "avg")),
            mean_output_tokens=number(at(record, "output_sequence_length", "avg")),
            request_rate_per_s=number(at(record, "request_throughput", "avg")),
            output_rate_tokens_per_s=number(at(record, "output_token_throughput", "avg")),
            latencies_s=latencies,
        )
    ]


def is_inference_perf(source: Source) -> bool:
    """inference-perf's summary of a stage."""
    return {"load_summary", "successes"} <= set(source.columns)


def read_inference_perf(source: Source) -> list[BenchmarkRun]:
    """Seconds. Its gap between tokens is between network chunks, so it is left out: several tokens share a chunk."""
    record = json_document(source)
    latency = at(record, "successes", "latency")
    named = {"mean": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
    latencies = {
        ours: statistics(at(latency, theirs) or {}, named, 1.0)
        for ours, theirs in (
            ("ttft", "time_to_first_token"),
            ("tpot", "time_per_output_token"),
            ("e2e", "request_latency"),
        )
    }
    return [
        run_of(
            "inference-perf",
            source.where,
            asked_rate_per_s=number(at(record, "load_summary", "requested_rate")),
            duration_s=number(at(record, "load_summary", "send_duration")),
            finished_count=count(at(record, "successes", "count")),
            failed_count=count(at(record, "failures", "count")),
            mean_input_tokens=number(at(record, "successes", "prompt_len", "mean")),
            mean_output_tokens=number(at(record, "successes", "output_len", "mean")),
            request_rate_per_s=number(at(record, "successes", "throughput", "requests_per_sec")),
            output_rate_tokens_per_s=number(at(record, "successes", "throughput", "output_tokens_per_sec")),
            latencies_s=latencies,
            warnings=["gaps between network chunks are not gaps between tokens: left out"],
        )
    ]


def is_inference_perf_requests(source: Source) -> bool:
    """inference-perf's list of requests."""
    entries = source.record.get("")
    first = entries[0] if isinstance(entries, list) and entries else {}
    return isinstance(first, dict) and {"start_time", "end_time", "info"} <= set(first)


def read_inference_perf_requests(source: Source) -> list[BenchmarkRun]:
    """Start and end of a clock of their own; server-side counts come first. Texts in the file are not read."""
    rows = []
    for _, record in _dicts(json_document(source)):
        start, end = number(record.get("start_time")), number(record.get("end_time"))
        answer = at(record, "info", "response_metrics")
        times = at(answer, "output_token_times") or at(answer, "chunk_times") or []
        first = number(times[0]) if isinstance(times, list) and times else None
        usage = at(answer, "server_usage")
        sent = _first(at(record, "info", "input_tokens"), at(record, "info", "request_metrics", "text", "input_tokens"))
        rows.append(
            {
                "start_s": start,
                "input_tokens": _first(at(usage, "prompt_tokens"), sent),
                "output_tokens": _first(at(usage, "completion_tokens"), at(answer, "output_tokens")),
                "ttft_s": None if first is None or start is None else first - start,
                "e2e_s": None if end is None or start is None else end - start,
                "ok": record.get("error") is None,
            }
        )
    requests = requests_of(rows)
    done = sum(1 for row in rows if row["ok"])
    return [
        run_of(
            "inference-perf",
            source.where,
            finished_count=done,
            failed_count=len(rows) - done,
            latencies_s=from_requests(requests) if requests else {},
            requests=requests,
            warnings=["start times are of a clock of their own: they order requests and do not date them"],
            **(means(requests) if requests else {}),
        )
    ]


def _first(*values: Any) -> int | None:  # noqa: ANN401 - any JSON
    return next((found for value in values if (found := count(value)) is not None), None)


def _dicts(value: Any) -> Iterator[tuple[int, Record]]:  # noqa: ANN401 - any JSON
    for place, entry in enumerate(value if isinstance(value, list) else []):
        if isinstance(entry, dict):
            yield place, entry
