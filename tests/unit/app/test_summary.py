"""What a person is told of a plan when the question is odd: too small, too large, or without a price."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tokenfleet.app.cli import estimate, main
from tokenfleet.app.summary import verdict
from tokenfleet.domain.slo import SloResult

QUESTION = (
    "estimate --model meta-llama/Llama-3.1-8B-Instruct --precision fp8 --tp 1 --input 700:1500 --output 140:300 "
    "--ttft-p99 2s --itl-p99 80ms --quiet"
)
ESTIMATE = QUESTION.split()


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert (ended.value.code, err) == (0, "")
        return out

    return run


def test_a_gpu_without_a_price_is_named_in_the_summary_with_what_to_give(run):
    out = run(*ESTIMATE, "--gpu", "h100_sxm,rtx4090", "--rate", 2)
    wanted = "Left out rtx4090: no price known; give prices: {usd_per_gpu_hour: {rtx4090: ...}}"
    assert wanted in " ".join(out.split())
    assert out.startswith("Buy")
    assert "requests/s in the peak minute" in out


@pytest.mark.parametrize("line", ["chat.yaml", "--quiet chat.yaml", "--model Qwen/Qwen3-8B --rate 2 chat.yaml --json"])
def test_an_estimate_of_a_scenario_says_who_reads_it(capsys, line):
    with pytest.raises(SystemExit) as stopped:
        main(["estimate", *line.split()])
    said = " ".join(capsys.readouterr().err.split())
    assert stopped.value.code == 2
    assert "reads no scenario, and chat.yaml looks like one" in said
    assert "take tokenfleet plan chat.yaml, or tokenfleet size chat.yaml to count pools that it names" in said


def test_a_file_to_save_to_is_no_scenario_that_was_given(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["estimate", "--save", "chat.yaml", "--rate", "2"])
    assert stopped.value.code == 2
    assert "missing option '--model'" in capsys.readouterr().err


def test_where_no_gpu_has_a_price_no_promise_is_said_to_be_broken(run):
    out = run(*ESTIMATE, "--gpu", "rtx4090", "--rate", 2)
    assert "so the promise was not looked at" in out
    assert "so that one can run: give your own price" in " ".join(out.split())


def test_the_summary_of_a_few_requests_tells_no_chance(run):
    Path("few.yaml").write_text(
        "name: few\nmodel: meta-llama/Llama-3.1-8B-Instruct\nslo: {ttft_p99: 2s, itl_p99: 80ms}\n"
        "gpus: [h100_sxm]\nprecision: fp8\ntensor_parallel: 1\n"
        "workload: {lengths: {input: 700:1500, output: 140:300}, mean_rate: 0.1, duration: 5min}\n"
    )
    out = run("plan", "few.yaml", "--quiet")
    document = json.loads(Path("few-plan/plan.json").read_text())
    count = document["workload"]["request_count"]
    assert count < 100
    assert f"too few requests to speak of p99 ({count})" in out
    assert "likely to hold" not in out
    assert document["confidence"] is None
    assert [each["kind"] for each in document["warnings"]] == ["no_samples"]


def test_an_estimate_of_a_large_demand_replays_a_part_and_says_so(run, monkeypatch):
    monkeypatch.setattr(estimate, "_MOST_REQUESTS", 1_000)
    question = [*ESTIMATE, "--gpu", "h100_sxm", "--rate", 20]
    document = json.loads(run(*question, "--json"))
    (group,) = document["fleet"]
    assert group["carrying_replica_count"] % 5 == 0
    assert group["spare_replica_count"] == 1
    assert document["workload"]["mean_rate_per_s"] == pytest.approx(20, rel=0.15)
    assert document["peak"]["rate_per_s"] > 20
    assert any("one request in 5" in line for line in document["assumptions"])
    assert document["resolved"]["replayed_in_parts"] == {"part_count": 5, "mean_rate": "20"}
    out = " ".join(run(*question).split())
    assert "one request in 5" in out


@pytest.mark.parametrize(
    ("rate", "duration", "parts"), [("20", "4min", 1), ("250/s", "4min", 1), ("2000", "4min", 8), ("fast", "4min", 1)]
)
def test_an_estimate_never_draws_more_requests_than_a_person_waits_for(rate, duration, parts):
    assert estimate.parts_of({"mean_rate": rate, "duration": duration}) == parts


def test_numbers_for_machines_carry_no_noise_of_binary_fractions(run):
    document = json.loads(run(*ESTIMATE, "--gpu", "h100_sxm", "--rate", 4, "--json"))
    exact = [document.pop(name) for name in ("slo", "redundancy", "resolved")]
    assert all(exact)

    def floats(value):
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            for below in value:
                yield from floats(below)
        if isinstance(value, float):
            yield value

    found = list(floats(document))
    assert len(found) > 30
    assert all(value == float(f"{value:.12g}") for value in found)
    cost = document["cost"]
    parts = [cost[f"{part}_usd_per_hour"] for part in ("input", "cached", "output", "headroom", "idle", "spare")]
    assert abs(sum(parts) - cost["total_usd_per_hour"]) < 1e-9


def test_a_range_without_a_slow_end_is_unsure():
    kept = SloResult(
        name="ttft_p95",
        unit="s",
        promised=2.0,
        predicted=0.5,
        predicted_low=0.4,
        predicted_high=0.7,
        sample_count=900,
        kept=True,
    )
    assert verdict(kept) == "kept"
    assert verdict(replace(kept, predicted_high=None)) == "kept, unsure", "too few are answered at the slow end"
    assert verdict(replace(kept, predicted_low=None, predicted_high=None)) == "kept", "no range was asked for"
