"""Tools that write one flat file per run or per level: vLLM, SGLang, llmperf, genai-bench, AIConfigurator."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tokenfleet.domain.benchmark import BenchmarkRun
from tokenfleet.workload.benchmarks.run import from_requests, means, ratio, requests_of, run_of, statistics
from tokenfleet.workload.formats.records import Record, at, count, csv_records, json_document, json_lines, number, text
from tokenfleet.workload.formats.source import Source

_MS = 1e-3
_AGREES = 0.02


def is_vllm(source: Source) -> bool:
    """``vllm bench serve --save-result``."""
    return {"input_lens", "output_lens", "ttfts"} <= set(source.columns) or (
        {"num_prompts", "request_rate", "tokenizer_id"} <= set(source.columns)
    )


def read_vllm(source: Source) -> list[BenchmarkRun]:
    """Summary keys are milliseconds, lists are seconds; failed requests stay in the lists as 0 and are taken out."""
    record = json_document(source)
    requests = requests_of(_vllm_rows(record)) if isinstance(record.get("input_lens"), list) else None
    latencies = _flat(record, _MS)
    warnings = ["start times are of a clock of their own: they order requests and do not date them"]
    if requests is not None:
        own = from_requests(requests)
        told, found = latencies.get("e2e", {}).get("mean"), own.get("e2e", {}).get("mean")
        if told is not None and found is not None and abs(found - told) > _AGREES * told:
            # A list of gaps that was cut short, or chunks left out of it: the sum is not the latency.
            requests = replace(requests, e2e_s=np.full(len(requests.ok), np.nan))
            own = from_requests(requests)
            warnings.append("gaps between tokens do not add up to the reported latency: single latencies are unknown")
        latencies = {name: {**own.get(name, {}), **latencies.get(name, {})} for name in (*own, *latencies)}
    finished = count(record.get("completed"))
    return [
        run_of(
            "vLLM bench",
            source.where,
            model=text(record.get("model_id")),
            engine=text(record.get("backend")) or text(record.get("endpoint_type")),
            asked_rate_per_s=_rate(record.get("request_rate")),
            asked_concurrency_count=count(record.get("max_concurrency")),
            duration_s=number(record.get("duration")),
            finished_count=finished,
            failed_count=_failed(record, finished),
            mean_input_tokens=ratio(record.get("total_input_tokens"), finished),
            mean_output_tokens=ratio(record.get("total_output_tokens"), finished),
            request_rate_per_s=number(record.get("request_throughput")),
            output_rate_tokens_per_s=number(record.get("output_throughput")),
            latencies_s=latencies,
            requests=requests,
            settings={key: str(record[key]) for key in ("burstiness", "date", "num_prompts") if key in record},
            warnings=warnings,
        )
    ]


def _vllm_rows(record: Record) -> Iterator[Record]:
    lists = {key: record.get(key) for key in ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors")}
    for index in range(len(record["input_lens"])):
        row = {key: _entry(values, index) for key, values in lists.items()}
        first, gaps = number(row["ttfts"]), row["itls"]
        # Requests without an answer have zeros for everything.
        ok = not row["errors"] and bool(count(row["output_lens"])) and bool(first)
        steps = [number(gap) for gap in gaps] if isinstance(gaps, list) else [None]
        known = [step for step in steps if step is not None]
        yield {
            "start_s": row["start_times"],
            "input_tokens": row["input_lens"],
            "output_tokens": row["output_lens"] if ok else None,
            "ttft_s": first if ok else None,
            "e2e_s": first + sum(known) if ok and first is not None and len(known) == len(steps) else None,
            "ok": ok,
        }


def _entry(values: Any, index: int) -> Any:  # noqa: ANN401 - any JSON
    return values[index] if isinstance(values, list) and index < len(values) else None


def _flat(record: Record, factor: float) -> dict[str, dict[str, float]]:
    """``mean_ttft_ms``, ``p99_itl_ms`` and the like."""
    found = {}
    for ours, theirs in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2e", "e2el"), ("e2e", "e2e_latency")):
        names = {"mean": f"mean_{theirs}_ms", "p50": f"median_{theirs}_ms"}
        names |= {f"p{share}": f"p{share}_{theirs}_ms" for share in (90, 95, 99)}
        values = statistics(record, names, factor)
        if values:
            found[ours] = values
    return found


def _failed(record: Record, finished: int | None) -> int | None:
    failed = count(record.get("failed"))
    asked = count(record.get("num_prompts"))
    return failed if failed is not None else asked - finished if asked is not None and finished is not None else None


def _rate(value: Any) -> float | None:  # noqa: ANN401 - any JSON
    if isinstance(value, str) and value.lower() in ("inf", "infinity"):
        return math.inf
    if isinstance(value, float) and math.isinf(value):
        return math.inf
    return number(value)


def is_sglang(source: Source) -> bool:
    """``sglang.bench_serving``, one appended line per run."""
    return {"backend", "dataset_name", "total_output_tokens_retokenized"} <= set(source.columns)


def read_sglang(source: Source) -> list[BenchmarkRun]:
    """Each line is a run; ``Infinity`` is allowed as a rate. Output counts come as reported and as counted again."""
    runs = []
    for line, record in json_lines(source).records:
        finished = count(record.get("completed"))
        runs.append(
            run_of(
                "SGLang bench_serving",
                f"{source.where}:{line}",
                engine=text(record.get("backend")),
                asked_rate_per_s=_rate(record.get("request_rate")),
                asked_concurrency_count=count(record.get("max_concurrency")),
                duration_s=number(record.get("duration")),
                finished_count=finished,
                mean_input_tokens=ratio(record.get("total_input_tokens"), finished),
                mean_output_tokens=ratio(record.get("total_output_tokens"), finished),
                request_rate_per_s=number(record.get("request_throughput")),
                output_rate_tokens_per_s=number(record.get("output_throughput")),
                latencies_s=_flat(record, _MS),
                settings={key: str(record[key]) for key in ("dataset_name", "tag") if record.get(key) is not None},
                warnings=["failed requests are not counted in this file"],
            )
        )
    return runs


def is_llmperf(source: Source) -> bool:
    """Llmperf's individual responses."""
    entries = source.record.get("")
    first = entries[0] if isinstance(entries, list) and entries else {}
    return isinstance(first, dict) and {"ttft_s", "end_to_end_latency_s", "number_output_tokens"} <= set(first)


def read_llmperf(source: Source) -> list[BenchmarkRun]:
    """Seconds; tokens are counted with a Llama tokenizer whatever the model; there are no start times."""
    rows = [
        {
            "input_tokens": at(record, "number_input_tokens"),
            "output_tokens": at(record, "number_output_tokens"),
            "ttft_s": at(record, "ttft_s"),
            "e2e_s": at(record, "end_to_end_latency_s"),
            "ok": at(record, "error_code") is None,
        }
        for record in json_document(source)
    ]
    requests = requests_of(rows)
    done = sum(1 for row in rows if row["ok"])
    return [
        run_of(
            "llmperf",
            source.where,
            finished_count=done,
            failed_count=len(rows) - done,
            latencies_s=from_requests(requests) if requests else {},
            requests=requests,
            warnings=["tokens are counted with a Llama tokenizer, whatever the model"],
            **(means(requests) if requests else {}),
        )
    ]


def is_genai_bench(source: Source) -> bool:
    """genai-bench, one file per scenario and concurrency."""
    return "aggregated_metrics" in source.columns


def read_genai_bench(source: Source) -> list[BenchmarkRun]:
    """Seconds."""
    record = at(json_document(source), "aggregated_metrics") or {}
    names = {name: name for name in ("mean", "p50", "p90", "p95", "p99")}
    latencies = {
        ours: statistics(at(record, "stats", theirs) or {}, names, 1.0)
        for ours, theirs in (("ttft", "ttft"), ("tpot", "tpot"), ("e2e", "e2e_latency"))
    }
    return [
        run_of(
            "genai-bench",
            source.where,
            asked_concurrency_count=count(record.get("num_concurrency")),
            duration_s=number(record.get("run_duration")),
            finished_count=count(record.get("num_completed_requests")),
            failed_count=count(record.get("num_error_requests")),
            mean_input_tokens=number(at(record, "stats", "num_input_tokens", "mean")),
            mean_output_tokens=number(at(record, "stats", "num_output_tokens", "mean")),
            request_rate_per_s=number(record.get("requests_per_second")),
            output_rate_tokens_per_s=number(record.get("mean_output_throughput_tokens_per_s")),
            latencies_s=latencies,
            settings={"scenario": str(record.get("scenario"))},
            warnings=["the GPU name in this tool's metadata is chosen from a list and may be false"],
        )
    ]


def is_aiconfigurator(source: Source) -> bool:
    """AIConfigurator's table of predictions."""
    return {"isl", "osl", "tokens/s/gpu", "system"} <= set(source.columns)


def read_aiconfigurator(source: Source) -> list[BenchmarkRun]:
    """One row is one predicted setting, in milliseconds: nothing was measured."""
    return [_predicted(record, f"{source.where}:{line}") for line, record in csv_records(source).records]


def _predicted(record: Record, where: str) -> BenchmarkRun:
    pairs = (("ttft", "ttft"), ("tpot", "tpot"), ("e2e", "request_latency"))
    return run_of(
        "AIConfigurator",
        where,
        predicted=True,
        model=text(record.get("model")),
        engine=text(record.get("backend")),
        asked_rate_per_s=number(record.get("request_rate")),
        asked_concurrency_count=count(record.get("concurrency")),
        mean_input_tokens=number(record.get("isl")),
        mean_output_tokens=number(record.get("osl")),
        request_rate_per_s=number(record.get("seq/s")),
        output_rate_tokens_per_s=number(record.get("tokens/s")),
        latencies_s={ours: statistics(record, {"mean": theirs}, _MS) for ours, theirs in pairs},
        settings={key: str(record.get(key)) for key in ("system", "num_total_gpus", "parallel", "gemm", "version")},
        warnings=["a prediction of another model: not for calibration"],
    )
