"""Result files of load tools: invented ones against the list of true requests, real ones against themselves."""

import math
from pathlib import Path

import numpy as np
import pytest

from shared import SHARED, needs_shared
from tokenfleet.domain.errors import BadInput
from tokenfleet.workload import read_benchmark, read_trace

LOGS = Path(__file__).resolve().parents[2] / "data" / "logs"
MEAN_INPUT, MEAN_OUTPUT, MEAN_TTFT, MEAN_E2E = 65738 / 17, 5793 / 17, 3.785 / 17, 108.059 / 17

SAMPLES = {
    "vllm_bench_serve.json": "vLLM bench",
    "sglang_bench_serving.jsonl": "SGLang bench_serving",
    "guidellm_report.json": "GuideLLM",
    "aiperf_profile_export.json": "AIPerf",
    "genai_perf_profile_export.json": "GenAI-Perf",
    "inference_perf_stage_0_lifecycle_metrics.json": "inference-perf",
    "inference_perf_per_request_lifecycle_metrics.json": "inference-perf",
    "llmperf_individual_responses.json": "llmperf",
    "genai_bench_D1024_256_concurrency_16.json": "genai-bench",
}


@pytest.mark.parametrize("name", SAMPLES)
def test_each_tool_tells_the_same_run_in_seconds(name):
    run = read_benchmark(LOGS / name)[0]
    assert run.tool == SAMPLES[name]
    assert not run.predicted
    assert run.finished_count == 17
    assert run.failed_count in (None, 2, 3)
    assert run.mean_input_tokens == pytest.approx(MEAN_INPUT)
    if "per_request" not in name:
        # That file counts both choices of one request.
        assert run.mean_output_tokens == pytest.approx(MEAN_OUTPUT)
    assert run.latencies_s["ttft"]["mean"] == pytest.approx(MEAN_TTFT, rel=1e-3)
    assert run.latencies_s["e2e"]["mean"] == pytest.approx(MEAN_E2E, rel=1e-3)
    for metric in ("tpot", "itl"):
        if metric in run.latencies_s:
            assert run.latencies_s[metric]["mean"] == pytest.approx(0.018, rel=0.03)
    assert run.output_rate_tokens_per_s is None or run.output_rate_tokens_per_s > 50


def test_failed_requests_of_vllm_are_no_zeros():
    run = read_benchmark(LOGS / "vllm_bench_serve.json")[0]
    assert run.failed_count == 3
    assert run.asked_rate_per_s == math.inf
    assert run.asked_concurrency_count == 16
    failed = run.requests.ok == 0
    assert failed.sum() == 3
    assert np.all(run.requests.output_tokens[failed] == -1)
    assert np.all(np.isnan(run.requests.ttft_s[failed]))
    assert run.requests.start_s[1] == pytest.approx(0.31)
    # The sample's lists of gaps are cut short, so they must not become latencies.
    assert np.all(np.isnan(run.requests.e2e_s))
    assert any("do not add up" in text for text in run.warnings)


def test_every_line_of_sglang_is_a_run_and_infinity_a_rate():
    runs = read_benchmark(LOGS / "sglang_bench_serving.jsonl")
    assert [run.asked_rate_per_s for run in runs][:2] == [4.0, math.inf]
    assert len(runs) == 3


def test_warm_up_and_cancelled_requests_of_aiperf_are_left_out():
    run = read_benchmark(LOGS / "aiperf_profile_export_records.jsonl")[0]
    assert (run.finished_count, run.failed_count) == (15, 3)
    assert any("2 warm-up" in text for text in run.warnings)
    assert run.latencies_s["tpot"]["p50"] == pytest.approx(0.018, rel=0.02)


def test_chunk_gaps_of_inference_perf_are_not_token_gaps():
    run = read_benchmark(LOGS / "inference_perf_stage_0_lifecycle_metrics.json")[0]
    assert "itl" not in run.latencies_s
    assert any("chunks" in text for text in run.warnings)


def test_predictions_are_marked():
    runs = read_benchmark(LOGS / "aiconfigurator_pareto_agg.csv")
    assert all(run.predicted for run in runs)
    assert runs[0].latencies_s["ttft"]["mean"] == pytest.approx(0.3091)
    assert runs[0].output_rate_tokens_per_s == 54.9
    assert runs[0].settings["system"] == "h200_sxm"


def test_a_benchmark_is_no_traffic_and_traffic_no_benchmark():
    with pytest.raises(BadInput, match="benchmark result"):
        read_trace(LOGS / "vllm_bench_serve.json")
    with pytest.raises(BadInput, match="no benchmark result"):
        read_benchmark(LOGS / "litellm_spendlogs.jsonl")


REAL = SHARED / "data" / "log_samples" / "bench"


@needs_shared
@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "finished", "output_mean"),
    [
        ("vllm_bench_serve_0.32.0.json", 40, 32),
        ("guidellm_0.8.1_poisson_1worker.json", 40, 32),
        ("guidellm_0.8.1_poisson_10workers.json", 40, 32),
        ("aiperf_0.13.0_profile_export_aiperf.json", 40, 32),
        ("aiperf_0.13.0_profile_export.jsonl", 40, 32),
        ("aiperf_0.13.0_trace_replay_profile_export.jsonl", 40, 27.15),
        ("inference_perf_0.7.0_summary_lifecycle_metrics.json", 40, 33.025),
        ("inference_perf_0.7.0_per_request_lifecycle_metrics.json", 12, 32),
        ("genai_bench_0.0.5_D96_32_text-to-text_num_concurrency_1_time_9s.json", 20, 32),
        ("genai_bench_0.0.5_D96_32_text-to-text_num_concurrency_4_time_4s.json", 20, 32),
    ],
)
def test_real_files_of_todays_tools(name, finished, output_mean):
    run = read_benchmark(REAL / name)[0]
    assert run.finished_count == finished
    assert run.failed_count in (0, None)
    assert run.mean_output_tokens == pytest.approx(output_mean)
    ttft, e2e = run.latencies_s["ttft"], run.latencies_s["e2e"]
    assert 0.05 < ttft["p50"] < ttft["p99"] < e2e["p99"] < 5
    if run.requests is not None and not np.isnan(run.requests.e2e_s).all():
        assert np.nanmean(run.requests.e2e_s) == pytest.approx(e2e["mean"], rel=0.01)
        assert run.requests.start_s.min() == 0


@needs_shared
@pytest.mark.shared
def test_the_same_run_seen_by_summary_and_by_request():
    by_request = read_benchmark(REAL / "aiperf_0.13.0_profile_export.jsonl")[0]
    summary = read_benchmark(REAL / "aiperf_0.13.0_profile_export_aiperf.json")[0]
    for metric in ("ttft", "e2e"):
        for statistic in ("mean", "p50", "p90", "p99"):
            assert by_request.latencies_s[metric][statistic] == pytest.approx(
                summary.latencies_s[metric][statistic], rel=1e-6
            )
