"""The known traps of usage logs: each has a test, here or among those of its format."""

import ast
import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from shared import SHARED, needs_shared
from tokenfleet.workload import profile, read_aggregates, read_benchmark, read_metrics, read_trace
from tokenfleet.workload.formats.rows import ReadOptions
from tokenfleet.workload.read import read_rows

HERE = Path(__file__).resolve().parent
LOGS = HERE.parents[1] / "data" / "logs"

TRAPS = {
    "1 cached tokens in or out of input": (
        "test_log_samples.test_usage_objects_of_four_vendors",
        "test_tables.test_cached_tokens_above_input_show_that_input_excludes_them",
    ),
    "2 cached tokens doubled": ("test_log_samples.test_cached_and_reasoning_are_counted_once",),
    "3 the gateway's response cache is no prefix cache": (
        "test_log_samples.test_responses_from_the_gateways_own_cache_never_reached_a_gpu",
        "test_traps.test_prefix_hits_of_litellm_come_from_the_usage_object",
    ),
    "4 reasoning in or out of output": (
        "test_log_samples.test_usage_objects_of_four_vendors",
        "test_traps.test_thoughts_of_gemini_are_added_and_those_of_others_are_not",
    ),
    "5 several choices of one prompt": ("test_traps.test_prompts_of_several_choices_are_counted_once_or_said",),
    "6 prompt tokens are no prefill tokens": ("test_traps.test_prompt_tokens_and_computed_tokens_are_told_apart",),
    "7 two tokenizers in one row": ("test_traps.test_tokens_of_the_models_own_tokenizer_count",),
    "8 bytes are no tokens": ("test_log_samples.test_logs_without_token_counts_make_no_trace",),
    "9 cut streams lose their usage": (
        "test_log_samples.test_the_last_usage_of_a_stream_counts_and_a_cut_stream_is_unknown",
        "test_log_samples.test_an_early_zero_usage_does_not_win",
    ),
    "10 failures distort arrivals": ("test_traps.test_calls_of_no_length_and_no_duration_are_no_free_calls",),
    "11 retries and calls turned away": (
        "test_log_samples.test_a_call_and_its_retry_are_one_demand",
        "test_log_samples.test_unmet_demand_is_said_and_can_be_kept",
        "test_traps.test_attempts_inside_one_row_are_one_demand",
    ),
    "12 windows and pages": ("test_metrics.test_usage_pages_give_sums_and_a_range_of_peaks",),
    "13 units of time": (
        "test_tables.test_dates_as_numbers_need_no_unit",
        "test_tables.test_numbers_without_a_unit_are_a_question",
        "test_tables.test_a_mooncake_file_in_seconds_is_seen_or_asked_for",
        "test_log_samples.test_rust_durations",
    ),
    "14 zones": (
        "test_tables.test_mixed_naive_and_zoned_stamps_are_a_question",
        "test_tables.test_the_doubled_hour_in_autumn_is_said",
        "test_traps.test_the_hour_that_spring_leaves_out_is_no_time",
    ),
    "15 which instant a stamp is": ("test_traps.test_logs_that_stamp_the_end_are_moved_to_the_arrival",),
    "16 stamps that tick": (
        "test_tables.test_whole_second_stamps_are_spread_and_said",
        "test_public_traces.test_mooncake_ticks_are_found_and_spread",
    ),
    "17 an inserted column": ("test_log_samples.test_burstgpt_by_name_in_whole_seconds",),
    "18 renamed metrics": ("test_metrics.test_old_names_are_read_and_named",),
    "19 gaps between chunks are no gaps between tokens": (
        "test_benchmarks.test_chunk_gaps_of_inference_perf_are_not_token_gaps",
        "test_traps.test_time_per_token_comes_from_whole_answers",
    ),
    "20 quantiles inside a bucket": (
        "test_metrics.test_quantiles_are_ranges_that_hold_the_truth",
        "test_traps.test_buckets_that_start_late_are_said",
    ),
    "21 counters that restart, several engines": (
        "test_metrics.test_two_scrapes_are_subtracted_and_a_restart_is_seen",
        "test_metrics.test_several_engines_add_up_and_fractions_are_averaged",
        "test_metrics.test_a_range_query_gives_growth_per_minute_over_a_restart",
    ),
    "22 benchmark tools": (
        "test_benchmarks.test_failed_requests_of_vllm_are_no_zeros",
        "test_benchmarks.test_every_line_of_sglang_is_a_run_and_infinity_a_rate",
        "test_benchmarks.test_warm_up_and_cancelled_requests_of_aiperf_are_left_out",
        "test_benchmarks.test_predictions_are_marked",
        "test_benchmarks.test_each_tool_tells_the_same_run_in_seconds",
    ),
    "23 block sizes and numbers that are local": (
        "test_tables.test_hashes_of_another_block_size_are_seen",
        "test_traps.test_blocks_numbered_anew_in_each_session_share_nothing_across",
    ),
    "24 no output is not always a failure": (
        "test_tables.test_zero_output_may_be_prefill_only_traffic",
        "test_traps.test_many_calls_without_text_are_doubted_and_can_be_kept",
    ),
}


def test_every_trap_has_its_tests():
    assert [int(name.split()[0]) for name in TRAPS] == list(range(1, 25))
    there = {
        f"{path.stem}.{node.name}"
        for path in HERE.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert {test for tests in TRAPS.values() for test in tests} <= there


def log(tmp_path, *records, name="log.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_prefix_hits_of_litellm_come_from_the_usage_object():
    rows = read_rows(LOGS / "litellm_spendlogs.jsonl").rows.to_dicts()
    # Both have "cache_hit": "False", which is the gateway's own cache; the engine served 80 and 832 tokens.
    assert [rows[place]["cached_tokens"] for place in (2, 7)] == [80, 832]


def test_thoughts_of_gemini_are_added_and_those_of_others_are_not(tmp_path):
    gemini = {"promptTokenCount": 106, "candidatesTokenCount": 40, "thoughtsTokenCount": 91, "totalTokenCount": 237}
    openai = {"prompt_tokens": 106, "completion_tokens": 131, "total_tokens": 237}
    openai["completion_tokens_details"] = {"reasoning_tokens": 91}
    path = log(
        tmp_path,
        {"responseId": "a", "createTime": "2026-03-29T00:58:15Z", "modelVersion": "gemini", "usageMetadata": gemini},
        {"id": "b", "object": "chat.completion", "created": 1774745896, "model": "gpt", "usage": openai},
    )
    rows = read_rows(path).rows.to_dicts()
    assert [(row["output_tokens"], row["reasoning_tokens"]) for row in rows] == [(131, 91), (131, 91)]


def test_prompts_of_several_choices_are_counted_once_or_said():
    rows = read_rows(LOGS / "litellm_spendlogs.jsonl").rows.to_dicts()
    assert (rows[12]["input_tokens"], rows[12]["output_tokens"]) == (13767, 2 * 685)
    page = read_metrics(LOGS / "vllm_metrics_v1_current.prom")
    assert any("once per choice" in text for text in page.warnings)


def test_prompt_tokens_and_computed_tokens_are_told_apart():
    new, old = (read_metrics(LOGS / f"vllm_metrics_{name}.prom") for name in ("v1_current", "v1_0.9"))
    assert (new.counters["prompt_tokens"], new.counters["computed_prompt_tokens"]) == (65738, 65738 - 5424)
    assert "computed_prompt_tokens" not in old.counters
    assert any("includes cache hits" in text for text in old.warnings)
    # llama.cpp counts the other way round.
    assert read_metrics(LOGS / "llamacpp_metrics.prom").counters["computed_prompt_tokens"] == 65738 - 5424


def test_tokens_of_the_models_own_tokenizer_count(tmp_path):
    frame = pl.read_csv(LOGS / "openrouter_generations.csv")
    assert frame["tokens_prompt"][0] != frame["native_tokens_prompt"][0] == 137
    assert read_rows(LOGS / "openrouter_generations.csv").rows["input_tokens"][0] == 137
    run = read_benchmark(LOGS / "sglang_bench_serving.jsonl")[0]
    record = json.loads((LOGS / "sglang_bench_serving.jsonl").read_text().splitlines()[0])
    assert record["total_output_tokens"] != record["total_output_tokens_retokenized"]
    assert run.mean_output_tokens == pytest.approx(record["total_output_tokens"] / record["completed"])


def test_calls_of_no_length_and_no_duration_are_no_free_calls():
    # Failed rows hold 0 and 0 tokens, and a start that is the end.
    rows = read_rows(LOGS / "litellm_spendlogs.jsonl").rows.to_dicts()
    assert {rows[place]["input_tokens"] for place in (8, 15)} == {None}
    assert {rows[place]["e2e_s"] for place in (8, 15)} == {None}
    trace, _ = read_trace(LOGS / "litellm_spendlogs.jsonl")
    assert trace.output_tokens.min() > 0


def test_attempts_inside_one_row_are_one_demand(tmp_path):
    lines = [json.loads(line) for line in (LOGS / "kong_ai_proxy_log.jsonl").read_text().splitlines()]
    assert lines[0]["upstream_status"] == "200"
    lines[0]["tries"] *= 3
    trace, quality = read_trace(log(tmp_path, *lines))
    assert quality.rows_read == 20
    assert trace.input_tokens.tolist().count(137) == 2  # Two requests of the list are that long.


def test_the_hour_that_spring_leaves_out_is_no_time(tmp_path):
    path = tmp_path / "log.csv"
    clocks = ("01:50:00", "02:30:00", "03:10:00")
    path.write_text("time,input_tokens,output_tokens\n" + "".join(f"2026-03-29 {clock},5,5\n" for clock in clocks))
    trace, quality = read_trace(path, zone="Europe/Berlin")
    assert quality.rows_dropped == {"time unknown": 1}
    assert trace.duration_s == 20 * 60


def test_logs_that_stamp_the_end_are_moved_to_the_arrival():
    first_s = 1774745895.938
    rows = read_rows(LOGS / "bedrock_invocation_log.jsonl").rows
    assert rows["arrival_ns"][0] / 1e9 == pytest.approx(first_s, abs=1)
    record = json.loads((LOGS / "bedrock_invocation_log.jsonl").read_text().splitlines()[0])
    assert "timestamp" in record
    kong = read_rows(LOGS / "kong_ai_proxy_log.jsonl").rows
    tgi = read_rows(LOGS / "tgi_router.log").rows
    assert kong["arrival_ns"][0] == tgi["arrival_ns"][0] == pytest.approx(first_s * 1e9, abs=2e6)


def test_time_per_token_comes_from_whole_answers():
    runs = [read_benchmark(LOGS / name)[0] for name in ("vllm_bench_serve.json", "guidellm_report.json")]
    for run in runs:
        assert run.latencies_s["tpot"]["mean"] == pytest.approx(0.018, rel=0.03)


def test_buckets_that_start_late_are_said():
    page = read_metrics(LOGS / "vllm_metrics_v1_current.prom")
    assert any("start at 0.3 s" in text for text in page.warnings)
    low, high = page.histograms["e2e_s"].quantile_range(0.5)
    assert low < high < math.inf


def sessions(tmp_path, starts, name="log.parquet"):
    """Three sessions of two turns; the numbers of their blocks begin at ``starts``."""
    rows = []
    for place, (start, blocks) in enumerate(zip(starts, (2, 4, 7), strict=True)):
        for turn in range(2):
            ids = list(range(start, start + blocks + turn))
            rows.append((place * 100 + turn * 7, 64 * len(ids), 5, f"s{place}", ids))
    path = tmp_path / name
    names = ("time_s", "input_tokens", "output_tokens", "session", "hash_ids")
    pl.DataFrame(rows, schema=names, orient="row").write_parquet(path)
    return read_trace(path)


def test_blocks_numbered_anew_in_each_session_share_nothing_across(tmp_path):
    local, quality = sessions(tmp_path, (1, 1, 1))
    assert quality.detected["prefix blocks"] == "64 tokens, numbered anew in each session"
    apart, quality = sessions(tmp_path, (1, 101, 201))
    assert quality.detected["prefix blocks"] == "64 tokens"
    served = 64 * (2 + 4 + 7)
    for trace in (local, apart):
        shared = profile(trace).shareable_input_fraction
        assert shared == pytest.approx(served / int(trace.input_tokens.sum()))


def test_many_calls_without_text_are_doubted_and_can_be_kept(tmp_path):
    path = tmp_path / "log.csv"
    rows = "".join(f"{place * 1.25},50,{0 if place % 5 < 3 else 9}\n" for place in range(50))
    path.write_text("time_s,input_tokens,output_tokens\n" + rows)
    _, quality = read_trace(path)
    assert quality.rows_kept == 20
    assert any("30 calls have 0 output tokens, 60%" in text for text in quality.warnings)
    trace, quality = read_trace(path, zero_output="keep")
    assert trace.request_count == 50
    assert not any("0 output tokens" in text for text in quality.warnings)


@needs_shared
@pytest.mark.shared
def test_tool_calls_without_text_of_a_real_agent():
    path = SHARED / "data" / "traces" / "lmcache_agent_taubench.parquet"
    _, quality = read_trace(path)
    assert any("283 calls have 0 output tokens, 60%" in text for text in quality.warnings)
    trace, _ = read_trace(path, zero_output="keep")
    assert (trace.output_tokens == 0).sum() == 283
    assert trace.request_count == 471


def test_pages_without_results_are_silence_and_not_gaps():
    sums = read_aggregates(LOGS / "openai_usage_completions.json")
    assert not np.isnan(sums.requests).any()
    assert (sums.requests == 0).any()


def test_a_zone_by_name_moves_the_clock_and_not_the_traffic():
    name = LOGS / "sglang_request_log.jsonl"
    here, there = (read_rows(name, ReadOptions(zone=zone)).rows for zone in ("UTC", "Europe/Berlin"))
    assert set((here["arrival_ns"] - there["arrival_ns"]).to_list()) <= {3600 * 10**9, 7200 * 10**9}
