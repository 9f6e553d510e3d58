"""Pools of a scenario with failures, retries and scaling of their own."""

import json
from pathlib import Path

import numpy as np
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
    assert [each["kind"] for each in decisions["small"]["replicas"]] == ["fail", "back"]
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
        ("fail, replicas: 1", "fail, node: 1", "several.yaml:13: events[0].node: there is no node 1"),
        (
            "pools:",
            "chain: {steps: [{pool: emb}]}\npools:\n  emb: {model: BAAI/bge-m3, autoscaling: {policy: ttft, max: 2}}",
            "several.yaml:16: pools.emb.autoscaling.policy: ttft, and nothing is generated here",
        ),
        (
            "pools:",
            "chain: {steps: [{pool: emb}]}\npools:\n  emb: {model: BAAI/bge-m3, autoscaling: {policy: kv, max: 2}}",
            "pools.emb.autoscaling.policy: kv, and the model keeps no KV",
        ),
        (
            "pools:",
            "chain: {steps: [{pool: emb}]}\npools:\n"
            "  emb: {model: BAAI/bge-m3, autoscaling: {policy: [queue, free_kv], free_kv: 9000, max: 2}}",
            "pools.emb.autoscaling.policy: free_kv, and the model keeps no KV",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, scenario, old, new, said):
    scenario.write_text(SCENARIO.replace(old, new))
    code, _, err = ended(capsys, "simulate", scenario, "-o", "out")
    assert code == 2
    assert said in err


def test_a_run_in_which_nobody_gets_a_token_takes_no_time(capsys, scenario):
    slow = SCENARIO.replace("attempts: 4, backoff: 1s", "attempts: 1, timeout: 10ms").replace("4min", "30s")
    scenario.write_text(slow.replace("{autoscaling: {policy: [queue, kv], min: 1, max: 4, stable: 1min, ", "{} #"))
    code, out, err = ended(capsys, "simulate", scenario, "-o", "out", "--quiet")
    assert (code, err) == (0, "")
    assert "Demand  270 requests; 270 timed out" in out
    assert json.loads(Path("out/summary.json").read_text())["duration_s"] == 0.0


def test_sizes_are_of_fixed_counts(capsys, scenario):
    code, _, err = ended(capsys, "size", scenario)
    assert code == 2
    assert "fixed counts are sized" in err


def test_scaling_of_one_fleet_is_refused_with_pools(scenario):
    scenario.write_text(SCENARIO + "autoscaling: {max: 3}\n")
    with pytest.raises(BadInput, match=r"write it under the pools$"):
        load_scenario(scenario)
    scenario.write_text(SCENARIO + "autoscaling: {max: 3, gpu_quota: 4}\n")
    with pytest.raises(BadInput, match="under the pools; a gpu_quota of all of them stands beside pools"):
        load_scenario(scenario)


LADDER = """\
name: pressed
workload: {lengths: {input: 900:2500, output: 150:300}, mean_rate: 14, peak_to_mean: 1, duration: 80s}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s, rejection_rate: 5%}
gpus: l40s
precision: fp8
clients: {attempts: 2, backoff: 1s}
pools:
  small: {model: Qwen/Qwen3-0.6B, replicas: 1, takes: {input_up_to: 500}}
  main:
    prefill: {replicas: 1}
    decode: {replicas: 1, max_sequence_count: 24}
    link: infiniband_200g
"""
RUNGS = """\
ladder:
  queue_limit: 400
  rungs:
    - {give_up: cap_output, limit: 220, enter: {waiting: 6}, leave: {waiting: 2}}
    - {give_up: limit_sessions, sessions: 25, enter: {waiting: 8}, leave: {waiting: 3}}
"""


def simulated(capsys, monkeypatch, tmp_path, text):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    Path("pressed.yaml").write_text(text)
    code, out, err = ended(capsys, "simulate", "pressed.yaml", "-o", "out", "--interval", "1s", "--quiet")
    assert (code, err) == (0, "")
    return out, json.loads(Path("out/decisions.json").read_text()), pl.read_parquet("out/requests.parquet")


def test_a_door_before_pools_caps_no_waits(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rung = "    - {give_up: cap_wait, wait: 2s, enter: {waiting: 6}, leave: {waiting: 2}}\n"
    Path("s.yaml").write_text(LADDER + RUNGS + rung)
    code, _, err = ended(capsys, "simulate", "s.yaml", "--quiet")
    assert code == 2
    assert "ladder.rungs[2].give_up: a door in front of pools does not know" in err


def test_a_ladder_before_all_pools_goes_by_the_fullest_of_them(capsys, monkeypatch, tmp_path):
    out, decisions, requests = simulated(capsys, monkeypatch, tmp_path, LADDER + RUNGS)
    steps = decisions["all pools"]["ladder"]
    assert [step["kind"] for step in steps[:2]] == ["cap_output", "limit_sessions"]
    assert all(step["entered"] for step in steps[:2])
    assert "all pools: at" in out
    capped = requests.filter(pl.col("status") == "rejected_output_cap")
    assert capped.height > 0
    assert capped["output_tokens"].min() > 220
    assert capped["attempt_count"].to_list() == [2] * capped.height
    assert capped["arrival_s"].min() > steps[0]["time_s"] - 1.0
    assert requests.filter(pl.col("status") == "rejected_new_session").height > 0
    calls = pl.read_parquet("out/calls.parquet")
    assert set(capped["request"]).isdisjoint(calls["request"]), "whoever is turned away takes nothing of any pool"


def test_a_ladder_before_one_pool_leaves_the_others_alone(capsys, monkeypatch, tmp_path):
    own = LADDER.replace("  main:\n", "  main:\n    " + RUNGS.replace("\n", "\n    ").rstrip() + "\n")
    _, decisions, requests = simulated(capsys, monkeypatch, tmp_path, own)
    assert decisions["main"]["ladder"]
    assert "all pools" not in decisions
    turned = requests.filter(pl.col("status").is_in(["rejected_output_cap", "rejected_new_session"]))
    assert turned.height > 0
    assert turned["input_tokens"].min() > 500


def test_users_wait_for_the_end_of_the_whole_way(capsys, monkeypatch, tmp_path):
    text = LADDER.replace(", rejection_rate: 5%", "").replace("80s", "40s")
    text += "users: {count: 20, think: 1s, ramp: 5s}\n"
    _, decisions, requests = simulated(capsys, monkeypatch, tmp_path, text)
    assert requests["status"].unique().to_list() == ["finished"]
    at_s = np.concatenate([requests["finish_s"], requests["arrival_s"]])
    by = np.repeat([-1, 1], requests.height)[np.argsort(at_s, kind="stable")]
    assert by.cumsum().max() == 20
    assert decisions.keys() == {"small", "main-prefill", "main-decode"}
    assert all(log == {"scaling": None, "ladder": None, "replicas": []} for log in decisions.values()), "nobody decides"
    assert requests["arrival_s"].max() > requests["finish_s"].min()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LADDER + RUNGS + "admission: {queue_limit: 3}\n", "ladder and admission both bound the queue"),
        (LADDER + RUNGS.replace("leave: {waiting: 2}", "leave: {waiting: 9}"), "left as soon as it is entered"),
        (LADDER, "nobody is turned away"),
    ],
)
def test_ladders_that_cannot_work_are_refused(capsys, monkeypatch, tmp_path, text, said):
    monkeypatch.chdir(tmp_path)
    Path("pressed.yaml").write_text(text)
    code, _, err = ended(capsys, "simulate", "pressed.yaml", "-o", "out")
    assert code == 2
    assert said in " ".join(err.split())


def test_users_who_read_slowly_wait_with_pools_as_with_one_fleet(capsys, monkeypatch, tmp_path):
    text = SCENARIO[: SCENARIO.index("cold_start")].replace("mean_rate: 9", "mean_rate: 1")
    text += "clients: {attempts: 1, reads: 20/s}\nusers: {count: 30, think: 1s}\nadmission: {queue_limit: 50}\n"
    _, _, pooled = simulated(capsys, monkeypatch, tmp_path, text + "pools: {main: {replicas: 1}}\n")
    _, _, alone = simulated(capsys, monkeypatch, tmp_path, text)
    np.testing.assert_allclose(pooled["arrival_s"], alone["arrival_s"], atol=1e-9)
    followed = pooled.filter(pl.col("arrival_s") > 0)["arrival_s"].min()
    read_s = (pooled["first_token_s"] + (pooled["output_tokens"] - 1) / 20.0).min()
    assert followed > read_s, "the first to go on has read its answer"
