"""Every recipe's sample is read by the command its page shows, and gives the lengths of the list of true requests."""

import csv
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from tokenfleet.app.cli import main
from tokenfleet.workload import format_names

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "tests" / "data" / "logs"
PAGES = sorted((ROOT / "docs" / "formats").glob("*.md"))
SAMPLE = re.compile(
    r"^Sample: \[(?P<name>[^\]]+)\]\(\.\./\.\./tests/data/logs/(?P=name)\), "
    r"(?P<verb>read|refused) by `tokenfleet profile (?P<arguments>[^`]+)`(?:: (?P<why>.+))?$",
    re.MULTILINE,
)
SAMPLES = {match["name"]: match for page in PAGES for match in SAMPLE.finditer(page.read_text())}

with (LOGS / "_truth.csv").open() as file:
    TRUTH = [(int(row["input_tokens"]), int(row["output_tokens"])) for row in csv.DictReader(file)]

ALL = set(range(20))
CUT, REJECTED, TWO_CHOICES, FAILED = 5, 8, 12, 15
DONE = ALL - {CUT, REJECTED, FAILED}
ANSWERED = ALL - {REJECTED, FAILED}
BOTH_CHOICES = {TWO_CHOICES: 1370}
ONE_TOKEN = {REJECTED: 1, FAILED: 1}

KEPT = {
    "_truth.csv": (ANSWERED, BOTH_CHOICES),
    "litellm_spendlogs.jsonl": (ANSWERED, BOTH_CHOICES),
    "litellm_spendlogs_pg_export.csv": (ANSWERED, BOTH_CHOICES),
    "otel_genai_spans_otlp.json": (DONE, {}),
    "langfuse_observations.json": (DONE, {}),
    "helicone_requests.jsonl": (DONE, {}),
    "portkey_logs_export.jsonl": (DONE, {}),
    "openrouter_generations.csv": (ANSWERED, {}),
    "envoy_ai_gateway_access_log.jsonl": (DONE, {}),
    "kong_ai_proxy_log.jsonl": (DONE, {}),
    "bedrock_invocation_log.jsonl": (DONE, {}),
    "azure_apim_gateway_llm_log.csv": (DONE & set(range(14)), {}),
    "sglang_request_log.jsonl": (ANSWERED & set(range(16)), {}),
    "llamacpp_response_timings.jsonl": (DONE & set(range(14)), {}),
    "trace_azure_2023_format.csv": (ALL, ONE_TOKEN),
    "trace_azure_2024_format.csv": (ALL, ONE_TOKEN),
    "trace_azure_2025_multimodal_format.csv": (ALL, ONE_TOKEN),
    "trace_burstgpt_v1_6col.csv": (DONE, {}),
    "trace_burstgpt_v3_8col.csv": (DONE, {}),
    "trace_mooncake_blksz512.jsonl": (ANSWERED, {}),
    "trace_qwen_bailian_blksz16.jsonl": (ANSWERED, {}),
}
"""Sample -> requests of the list that it can give, and outputs that the format counts otherwise."""


def is_metrics(name):
    return name.endswith(".prom") or name == "otel_genai_metrics_otlp.json"


def profiled(sample, capsys):
    files, *options = shlex.split(sample["arguments"])
    with pytest.raises(SystemExit) as ended:
        main(["profile", str(LOGS / files), *options, "--json"])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


@pytest.mark.parametrize("name", KEPT)
def test_a_recipe_gives_the_true_lengths(name, capsys):
    code, out, _ = profiled(SAMPLES[name], capsys)
    assert code == 0
    found = json.loads(out)
    kept, otherwise = KEPT[name]
    inputs = [TRUTH[index][0] for index in sorted(kept)]
    outputs = [otherwise.get(index, 685 if index == TWO_CHOICES else TRUTH[index][1]) for index in sorted(kept)]
    assert found["rows_kept"] == len(kept)
    assert found["rows_read"] == found["rows_kept"] + sum(found["rows_dropped"].values())
    for side, lengths in (("input_tokens", inputs), ("output_tokens", outputs)):
        assert found[side]["mean"] == pytest.approx(np.mean(lengths))
        assert found[side]["max"] == max(lengths)
        for quantile in (50, 90, 95, 99):
            assert found[side][f"p{quantile}"] == pytest.approx(np.percentile(lengths, quantile))


@pytest.mark.parametrize("name", [name for name in SAMPLES if is_metrics(name)])
def test_a_metrics_page_gives_the_true_totals(name, capsys):
    code, out, _ = profiled(SAMPLES[name], capsys)
    assert code == 0
    found = json.loads(out)
    for side, place, counter in (("input_tokens", 0, "prompt_tokens"), ("output_tokens", 1, "generation_tokens")):
        lengths = [685 if (index, place) == (TWO_CHOICES, 1) else TRUTH[index][place] for index in sorted(DONE)]
        if counter in found["counters"]:
            assert found["counters"][counter] == sum(lengths)
        if side in found["histograms"]:
            assert found[side]["mean"] == pytest.approx(np.mean(lengths))
            low, high = found[side]["p50_range"]
            assert low <= np.percentile(lengths, 50) <= high


def test_usage_objects_of_four_vendors_give_lengths_of_the_list(capsys):
    _, out, _ = profiled(SAMPLES["provider_usage_objects.jsonl"], capsys)
    found = json.loads(out)
    assert found["rows_dropped"] == {"input tokens unknown": 3, "time unknown": 4}
    assert found["input_tokens"]["max"] == max(TRUTH[index][0] for index in DONE)
    _, out, _ = profiled(SAMPLES["openai_stream_chunks.jsonl"], capsys)
    found = json.loads(out)
    assert (found["rows_kept"], found["input_tokens"]["max"], found["output_tokens"]["max"]) == (1, 31, 9)


@pytest.mark.parametrize("name", ["litellm_daily_activity.json", "openai_usage_completions.json"])
def test_sums_give_a_range(name, capsys):
    _, out, _ = profiled(SAMPLES[name], capsys)
    found = json.loads(out)
    low, high = found["peak_to_mean_minute_requests_range"]
    assert found["peak_to_mean_minute_requests"] is None
    assert 1 < low < high


@pytest.mark.parametrize("name", [name for name, sample in SAMPLES.items() if sample["verb"] == "refused"])
def test_what_a_page_calls_refused_is_refused_for_that_reason(name, capsys):
    code, out, err = profiled(SAMPLES[name], capsys)
    assert (code, out) == (2, "")
    assert SAMPLES[name]["why"] in err


def test_every_format_and_every_sample_has_its_page():
    text = "\n".join(page.read_text() for page in PAGES)
    assert [name for name in format_names() if f"`{name}`" not in text] == []
    assert [path.name for path in LOGS.iterdir() if path.name not in text] == []
    index = (ROOT / "docs" / "formats" / "README.md").read_text()
    assert [page.name for page in PAGES if page.name != "README.md" and page.name not in index] == []


def test_every_sample_line_is_read_by_a_test():
    lines = [line for page in PAGES for line in page.read_text().splitlines() if line.startswith("Sample")]
    assert len(lines) == len(SAMPLES)
    others = {"provider_usage_objects.jsonl", "openai_stream_chunks.jsonl"}
    sums = {"litellm_daily_activity.json", "openai_usage_completions.json"}
    untested = {
        name
        for name, sample in SAMPLES.items()
        if sample["verb"] == "read" and not is_metrics(name) and name not in {*KEPT, *others, *sums}
    }
    assert untested == set()
