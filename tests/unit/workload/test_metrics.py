"""Metrics pages, range queries and sums against the one list of true requests."""

import json
import math
from pathlib import Path

import pytest

from tokenfleet.domain.errors import BadInput
from tokenfleet.workload import between, read_aggregates, read_metrics, read_trace
from tokenfleet.workload.metrics.exposition import read_text
from tokenfleet.workload.metrics.snapshot import Histogram

LOGS = Path(__file__).resolve().parents[2] / "data" / "logs"

PAGES = {
    "vllm_metrics_v1_current.prom": "vLLM",
    "vllm_metrics_v1_0.9.prom": "vLLM",
    "vllm_metrics_v0.prom": "vLLM",
    "sglang_metrics.prom": "SGLang",
    "tgi_metrics.prom": "TGI",
    "trtllm_serve_metrics.prom": "TensorRT-LLM serve",
    "triton_trtllm_metrics.prom": "Triton TensorRT-LLM",
    "llamacpp_metrics.prom": "llama.cpp",
    "dynamo_frontend_metrics.prom": "Dynamo",
}


@pytest.mark.parametrize("name", PAGES)
def test_every_engine_is_found_and_its_totals_are_those_of_the_list(name):
    page = read_metrics(LOGS / name)
    assert page.engine == PAGES[name]
    assert page.counters.get("generation_tokens", 5793) == 5793
    assert page.counters.get("prompt_tokens", 65738) == 65738
    assert page.counters.get("computed_prompt_tokens", 60314) == 60314
    assert page.gauges.get("running_count", 7) in (7, 2)
    assert all(0 <= page.gauges[key] <= 1 for key in page.gauges if key.endswith("_fraction"))
    for histogram, mean in (("ttft_s", 3.785 / 17), ("input_tokens", 65738 / 17), ("output_tokens", 5793 / 17)):
        if histogram in page.histograms:
            assert page.histograms[histogram].mean == pytest.approx(mean)
            assert page.histograms[histogram].count == 17
    assert any("no single requests" in text for text in page.warnings)


@pytest.mark.parametrize("name", PAGES)
def test_quantiles_are_ranges_that_hold_the_truth(name):
    page = read_metrics(LOGS / name)
    truth = {"ttft_s": (0.168, 0.57), "input_tokens": (2293, 15455), "output_tokens": (311, 685)}
    for key, (p50, p99) in truth.items():
        if key in page.histograms:
            for fraction, value in ((0.5, p50), (0.99, p99)):
                low, high = page.histograms[key].quantile_range(fraction)
                assert low <= value <= high, key


def test_old_names_are_read_and_named():
    old, middle, new = (read_metrics(LOGS / f"vllm_metrics_{name}.prom") for name in ("v0", "v1_0.9", "v1_current"))
    assert old.names["kv_use_fraction"] == "vllm:gpu_cache_usage_perc"
    assert any("today it is vllm:kv_cache_usage_perc" in text for text in old.warnings)
    assert middle.names["itl_s"] == "vllm:time_per_output_token_seconds"
    assert not any("old name" in text for text in new.warnings)
    assert old.gauges["kv_use_fraction"] == middle.gauges["kv_use_fraction"] == new.gauges["kv_use_fraction"] == 0.4312
    # Hits over queries in tokens; the old page has only a gauge.
    assert new.gauges["prefix_hit_fraction"] == pytest.approx(5424 / 65738)
    assert old.gauges["prefix_hit_fraction"] == 0.31


def test_finished_requests_by_label_add_up():
    assert read_metrics(LOGS / "vllm_metrics_v1_current.prom").counters["finished_count"] == 18
    assert read_metrics(LOGS / "sglang_metrics.prom").counters["finished_count"] == 17
    assert read_metrics(LOGS / "dynamo_frontend_metrics.prom").counters["failed_count"] == 2


def test_missing_is_missing_and_not_zero():
    page = read_metrics(LOGS / "triton_trtllm_metrics.prom")
    assert "generation_tokens" not in page.counters
    assert "ttft_s" not in page.histograms
    page = read_metrics(LOGS / "llamacpp_metrics.prom")
    assert "prompt_tokens" not in page.counters
    assert any("processed tokens only" in text for text in page.warnings)


def page_of(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return read_metrics(path)


def test_two_scrapes_are_subtracted_and_a_restart_is_seen(tmp_path):
    first = page_of(
        tmp_path, "a.prom", 'vllm:prompt_tokens_total{engine="0"} 100\nvllm:generation_tokens_total{engine="0"} 50\n'
    )
    second = page_of(
        tmp_path, "b.prom", 'vllm:prompt_tokens_total{engine="0"} 160\nvllm:generation_tokens_total{engine="0"} 20\n'
    )
    grown = between(first, second)
    assert grown.counters == {"prompt_tokens": 60, "generation_tokens": 20}
    assert any("restarted" in text and "generation_tokens" in text for text in grown.warnings)
    with pytest.raises(BadInput, match="one engine"):
        between(first, read_metrics(LOGS / "tgi_metrics.prom"))


def test_several_engines_add_up_and_fractions_are_averaged(tmp_path):
    lines = 'vllm:num_requests_running{{engine="{0}"}} {1}\nvllm:kv_cache_usage_perc{{engine="{0}"}} {2}\n'
    page = page_of(tmp_path, "a.prom", lines.format(0, 3, 0.2) + lines.format(1, 5, 0.6))
    assert page.gauges == {"running_count": 8, "kv_use_fraction": pytest.approx(0.4)}


def test_a_page_of_no_known_engine_is_refused(tmp_path):
    with pytest.raises(BadInput, match="known engine"):
        page_of(tmp_path, "a.prom", "# HELP x y\nprocess_cpu_seconds_total 3\n")


def test_exposition_with_escapes_stamps_exemplars_and_broken_lines():
    samples, broken = read_text(
        '# TYPE a counter\na{b="x\\"y}\\n",c="d"} 1.5 1700000000\n'
        'a_bucket{le="+Inf"} 3 # {trace_id="q"} 0.5\nb NaN\nc +Inf\nnot a line at all {\n'
    )
    assert broken == 1
    assert [(sample.name, sample.value) for sample in samples] == [("a", 1.5), ("a_bucket", 3.0), ("c", math.inf)]
    assert samples[0].labels == {"b": 'x"y}\n', "c": "d"}


def test_a_histogram_without_observations_knows_nothing():
    empty = Histogram(edges=(1.0, math.inf), counts=(0.0, 0.0), total=0.0)
    assert math.isnan(empty.mean)
    assert math.isnan(empty.quantile_range(0.5)[0])


def test_usage_pages_give_sums_and_a_range_of_peaks():
    sums = read_aggregates(LOGS / "openai_usage_completions.json")
    assert sums.bucket_s == 3600
    assert sums.requests[0] == 2200
    assert sums.input_tokens[0] == 2_921_600
    assert sums.cached_tokens[0] == 1_168_640
    # A bucket with no results is silence; batch results are no interactive load.
    assert sums.requests[3] == 0
    assert any("batch API" in text for text in sums.warnings)
    assert any("one page of several" in text for text in sums.warnings)
    low, high = sums.peak_rate_range_per_s()
    assert (low, high) == pytest.approx((2200 / 3600 * 1.2, 2200 / 3600 * 4.3))


def test_daily_totals_give_a_wide_range_and_never_one_number():
    sums = read_aggregates(LOGS / "litellm_daily_activity.json")
    assert sums.requests.tolist() == [18]
    assert sums.input_tokens.tolist() == [81266]
    low, high = sums.peak_rate_range_per_s()
    assert high / low == pytest.approx(5 / 1.5)
    assert any("2 failed" in text for text in sums.warnings)


def test_a_range_query_gives_growth_per_minute_over_a_restart(tmp_path):
    def series(name, values, **labels):
        stamps = [1774745880 + 60 * place for place in range(len(values))]
        return {
            "metric": {"__name__": name, **labels},
            "values": [[s, str(v)] for s, v in zip(stamps, values, strict=True)],
        }

    result = [
        series("vllm:request_success_total", [100, 110, 130, 5, 25], finished_reason="stop"),
        series("vllm:request_success_total", [0, 1, 1, 0, 0], finished_reason="length"),
        series("vllm:prompt_tokens_total", [1000, 2000, 4000, 500, 2500]),
        series("vllm:generation_tokens_total", [10, 20, 40, 5, 25]),
    ]
    path = tmp_path / "range.json"
    path.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}))
    sums = read_aggregates(path)
    assert sums.bucket_s == 60
    assert sums.requests.tolist() == [11, 20, 5, 20]
    assert sums.input_tokens.tolist() == [1000, 2000, 500, 2000]
    assert math.isnan(sums.cached_tokens[0])
    assert sums.peak_rate_range_per_s() == pytest.approx((20 / 60, 20 / 60))
    with pytest.raises(BadInput, match="no single requests"):
        read_trace(path)


def test_gaps_between_buckets_stay_unknown(tmp_path):
    buckets = [
        {
            "start_time": start,
            "end_time": start + 60,
            "results": [{"num_model_requests": 5, "input_tokens": 50, "output_tokens": 5}],
        }
        for start in (0, 60, 240)
    ]
    path = tmp_path / "page.json"
    path.write_text(json.dumps({"object": "page", "data": buckets}))
    sums = read_aggregates(path)
    assert math.isnan(sums.requests[2])
    assert any("2 of 5 buckets are missing" in text for text in sums.warnings)


@pytest.mark.parametrize(
    "name", ["vllm_metrics_v1_current.prom", "otel_genai_metrics_otlp.json", "openai_usage_completions.json"]
)
def test_files_without_requests_are_told_by_what_they_are(name):
    with pytest.raises(BadInput, match="no single requests"):
        read_trace(LOGS / name)


def test_opentelemetry_metrics_are_those_of_the_list():
    page = read_metrics(LOGS / "otel_genai_metrics_otlp.json")
    assert page.engine == "OpenTelemetry GenAI"
    assert page.models == ("qwen3-32b",)
    # Seventeen of twenty calls ended well; requests 5, 8 and 15 did not.
    assert page.counters == {"prompt_tokens": 65738, "generation_tokens": 5793, "finished_count": 17}
    assert page.histograms["input_tokens"].count == 17
    assert page.histograms["input_tokens"].total == 65738
    assert page.histograms["output_tokens"].total == 5793
    assert page.histograms["input_tokens"].quantile_range(0.5) == (1024, 4096)
    assert page.histograms["ttft_s"].mean == pytest.approx(3.785 / 17)
    assert page.histograms["e2e_s"].mean == pytest.approx(108.059 / 17)


def otlp(*points, temporality=2):
    usage = {"name": "gen_ai.client.operation.duration", "histogram": {"aggregationTemporality": temporality}}
    usage["histogram"]["dataPoints"] = [
        {
            "startTimeUnixNano": str(start),
            "timeUnixNano": str(time),
            "count": str(sum(counts)),
            "sum": float(sum(counts)),
            "bucketCounts": [str(count) for count in counts],
            "explicitBounds": [0.5, 2],
            "attributes": [],
        }
        for start, time, counts in points
    ]
    return {"resourceMetrics": [{"scopeMetrics": [{"metrics": [usage]}]}]}


@pytest.mark.parametrize(
    ("temporality", "expected"),
    # Since the start: the last of the first run and the last of the second. Growth: everything.
    [(2, (4, 2, 1)), (1, (5, 3, 1))],
)
def test_opentelemetry_points_over_a_restart_add_up(tmp_path, temporality, expected):
    exports = [
        otlp((1, 10, (1, 1, 0)), temporality=temporality),
        otlp((1, 20, (3, 2, 1)), temporality=temporality),
        otlp((21, 30, (1, 0, 0)), temporality=temporality),
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join(json.dumps(export) for export in exports) + "\n{broken\n")
    page = read_metrics(path)
    assert page.histograms["e2e_s"].counts == expected
    assert page.counters["finished_count"] == sum(expected)
    assert any("1 lines are no samples" in text for text in page.warnings)


def test_exponential_histograms_are_counted_as_unread(tmp_path):
    export = otlp((1, 10, (1, 1, 0)))
    metrics = export["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    metrics.append({"name": "gen_ai.client.token.usage", "exponentialHistogram": {"dataPoints": [{"scale": 3}]}})
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps(export))
    page = read_metrics(path)
    assert "input_tokens" not in page.histograms
    assert any("1 lines are no samples" in text for text in page.warnings)
