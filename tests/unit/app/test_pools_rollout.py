"""A new version in a pool beside the old one; token gaps of the classes of requests in pools."""

import json
from pathlib import Path

import polars as pl
import pytest

from commands import ended

SCENARIO = """\
name: versions
workload: {lengths: {input: 900:2500, output: 100:250}, mean_rate: 6, peak_to_mean: 1, duration: 3min}
model: meta-llama/Llama-3.1-8B-Instruct
slo:
  ttft_p95: 2s
  classes:
    long: {takes: {output_over: 150}, itl_p99: 80ms}
    short: {takes: {output_up_to: 150}, itl_p99: 60ms}
gpus: l40s
cold_start: 20s
rollout: {max_surge: 1}
events:
  - {pool: main, at: 60s, what: rollout}
pools:
  small: {model: Qwen/Qwen3-0.6B, replicas: 1, takes: {input_up_to: 500}}
  main: {replicas: 2, precision: bf16}
"""


def simulated(capsys, monkeypatch, tmp_path, text):
    monkeypatch.chdir(tmp_path)
    Path("versions.yaml").write_text(text)
    code, out, err = ended(capsys, "simulate", "versions.yaml", "-o", "out", "--interval", "1s", "--quiet")
    assert (code, err) == (0, "")
    return out, json.loads(Path("out/summary.json").read_text())


def test_old_and_new_replicas_serve_side_by_side_and_nobody_is_lost(capsys, monkeypatch, tmp_path):
    out, found = simulated(capsys, monkeypatch, tmp_path, SCENARIO)
    assert "New replicas are numbered behind the old ones" in " ".join(out.split())
    assert found["finished_count"] == found["request_count"]
    events = json.loads(Path("out/decisions.json").read_text())["main"]["replicas"]
    assert [(each["kind"], each["time_s"], each["replicas"]) for each in events] == [
        ("start", 60.0, [2]),
        ("ready", 80.0, [2]),
        ("start", 80.0, [3]),
        ("stop", 80.0, [0]),
        ("ready", 100.0, [3]),
        ("stop", 100.0, [1]),
    ]
    calls = pl.read_parquet("out/calls.parquet").filter(pl.col("pool") == "main")
    served = {number: calls.filter(pl.col("replica") == number)["arrival_s"] for number in range(4)}
    assert served[0].max() <= 80.0 <= served[2].min()
    assert served[1].max() <= 100.0 <= served[3].min()
    fleet = pl.read_parquet("out/fleet.parquet").filter(pl.col("pool") == "main")
    assert fleet["ready_count"].min() == 2
    assert fleet["starting_count"].max() == 1


def test_a_version_that_differs_runs_as_it_says(capsys, monkeypatch, tmp_path):
    text = SCENARIO.replace("what: rollout}", "what: rollout, to: {precision: fp8}}")
    _, found = simulated(capsys, monkeypatch, tmp_path, text)
    old, new = found["pools"][1]["fleet"]
    assert (old["precision"], new["precision"]) == ("bf16", "fp8")
    assert (old["replica_count"], new["replica_count"]) == (2, 2)
    calls = pl.read_parquet("out/calls.parquet").filter(pl.col("pool") == "main")
    tpot_s = (calls["finish_s"] - calls["first_token_s"]) / (calls["output_tokens"] - 1)
    before, after = (tpot_s.filter(calls["replica"].is_in(numbers)).median() for numbers in ([0, 1], [2, 3]))
    assert after < before


def test_gaps_of_classes_are_judged_and_add_up(capsys, monkeypatch, tmp_path):
    text = SCENARIO.replace(
        "  main: {replicas: 2, precision: bf16}",
        "  main: {prefill: {}, decode: {}, link: infiniband_200g, first_token: prefill}",
    )
    text = text.replace("  - {pool: main, at", "  - {pool: main-decode, at")
    _, found = simulated(capsys, monkeypatch, tmp_path, text)
    clauses = {each["name"]: each for each in found["whole"]["slo"] if each["name"].startswith("itl")}
    assert set(clauses) == {"itl_p99 of long", "itl_p99 of short"}
    assert all(0.0 < each["predicted_low"] < each["predicted"] < each["predicted_high"] for each in clauses.values())
    gaps = json.loads(Path("out/gaps.json").read_text())
    total = sum(each["count"] for each in gaps["whole"])
    by_class = {name: sum(each["count"] for each in apart["whole"]) for name, apart in gaps["classes"].items()}
    assert by_class["long"] + by_class["short"] == total
    requests = pl.read_parquet("out/requests.parquet")
    assert by_class["short"] == int((requests.filter(pl.col("output_tokens") <= 150)["output_tokens"] - 1).sum())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("what: rollout}", "what: rollout, back_after: 3s}", "a rollout takes every replica"),
        ("what: rollout}", "what: fail, to: {precision: fp8}}", "which is of a rollout"),
        ("what: rollout}", "what: rollout, to: {replicas: 3}}", "as many as the old one"),
        ("main: {replicas: 2,", "main: {autoscaling: {max: 2},", "a rollout in main, which is scaled"),
        (
            SCENARIO[SCENARIO.index("  - {pool") :],
            "  - {pool: main-decode, at: 60s, what: rollout, to: {precision: fp8}}\n"
            "pools: {main: {prefill: {}, decode: {replicas: 2}, link: infiniband_200g}}\n",
            "main-decode needs replicas of one kind, for KV is handed over",
        ),
        ("{max_surge: 1}", "{max_surge: 0, max_unavailable: 2}", "may be missing at once"),
        ("what: rollout}", "what: rollout}\n  - {pool: main, at: 90s, what: rollout}", "a second rollout"),
    ],
)
def test_rollouts_that_make_no_sense_are_refused(capsys, monkeypatch, tmp_path, old, new, said):
    monkeypatch.chdir(tmp_path)
    Path("versions.yaml").write_text(SCENARIO.replace(old, new))
    code, _, err = ended(capsys, "simulate", "versions.yaml", "-o", "out")
    assert code == 2
    assert said in " ".join(err.split())
