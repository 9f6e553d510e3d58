"""Pools of a scenario with failures, retries and scaling of their own."""

import json
from pathlib import Path

import polars as pl
import pytest

from commands import ended
from tokenfleet.app.scenario import load_scenario
from tokenfleet.domain.errors import BadInput

SCENARIO = """\
name: several
workload:
  lengths: {input: 900:2500, output: 100:250}
  mean_rate: 9
  duration: 4min
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s}
gpus: l40s
precision: fp8
cold_start: 20s
clients: {attempts: 4, backoff: 1s}
events:
  - {pool: small, at: 90s, what: fail, replicas: 1, back_after: 2s}
pools:
  small: {model: Qwen/Qwen3-0.6B, replicas: 1, takes: {input_up_to: 500}}
  main: {autoscaling: {policy: [queue, kv], min: 1, max: 4, stable: 1min, cool_down: 30s}}
"""


@pytest.fixture
def scenario(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    Path("several.yaml").write_text(SCENARIO)
    return Path("several.yaml")


def test_each_pool_fails_comes_back_and_scales_on_its_own(capsys, scenario):
    code, out, err = ended(capsys, "simulate", scenario, "-o", "out", "--quiet")
    assert (code, err) == (0, "")
    assert "small, 90 s: replica 0 failed (as the scenario says)" in out
    assert "main: 1 to" in out
    found = json.loads(Path("out/summary.json").read_text())
    small, main_pool = found["pools"]
    assert small["lost_count"] > 0
    assert main_pool["lost_count"] == 0
    assert found["world"]["lost_attempt_count"] == small["lost_count"]
    assert found["finished_count"] == found["request_count"], "whoever was lost came back"
    decisions = json.loads(Path("out/decisions.json").read_text())
    assert decisions["small"]["scaling"] is None
    assert [each["kind"] for each in decisions["small"]["replicas"]] == ["fail", "ready"]
    ticks = decisions["main"]["scaling"]
    most = max(each["target_count"] for each in ticks)
    assert most > 1
    hours = main_pool["gpu_hours"]
    assert ticks[-1]["time_s"] / 3600 < hours < most * found["duration_s"] / 3600
    calls = pl.read_parquet("out/calls.parquet")
    assert calls.filter((pl.col("pool") == "small") & (pl.col("attempt_count") > 1)).height == (
        calls.filter(pl.col("pool") == "small")["attempt_count"].gt(1).sum()
    )
    assert calls.filter(pl.col("pool") == "main")["attempt_count"].max() == 1


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("pool: small, ", "", "an event in no pool"),
        ("pool: small", "pool: smal", 'no pool is called "smal"'),
        ("pool: small, at: 90s, what: fail, replicas: 1", "pool: small, at: 90s, replicas: [3]", "no replica 3"),
        ("min: 1, max: 4,", "min: 1, max: 4, gpu_quota: 2,", "the quota is 2"),
        ("main: {auto", "main: {replicas: 2, auto", "has replicas and autoscaling"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, scenario, old, new, said):
    scenario.write_text(SCENARIO.replace(old, new))
    code, _, err = ended(capsys, "simulate", scenario, "-o", "out")
    assert code == 2
    assert said in err


def test_sizes_are_of_fixed_counts(capsys, scenario):
    code, _, err = ended(capsys, "size", scenario)
    assert code == 2
    assert "fixed counts are sized" in err


@pytest.mark.parametrize("more", ["users: {count: 3}\n", "ladder: {queue_limit: 5, rungs: []}\n"])
def test_what_needs_one_fleet_is_refused_with_pools(scenario, more):
    scenario.write_text(SCENARIO + more)
    with pytest.raises(BadInput, match="only one fleet is watched"):
        load_scenario(scenario)
