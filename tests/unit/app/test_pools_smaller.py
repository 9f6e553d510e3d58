"""Rungs that send short requests to the pool of a smaller model."""

import json
from pathlib import Path

import polars as pl
import pytest

from commands import ended

SCENARIO = """\
name: stepped
workload: {lengths: {input: 900:2500, output: 150:300}, mean_rate: 16, peak_to_mean: 1, duration: 90s}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s}
gpus: l40s
precision: fp8
pools:
  small: {model: Qwen/Qwen3-0.6B, replicas: 1}
  main:
    prefill: {replicas: 1}
    decode: {replicas: 1, max_sequence_count: 24}
    link: infiniband_200g
"""
LADDER = """\
ladder:
  queue_limit: 400
  rungs:
    - give_up: smaller_model
      pool: small
      input: 1000
      output: 300
      evaluation: {measure: judged right, score: 0.93, required: 0.9, as_of: "2026-11-02", source: evals/41}
      enter: {waiting: 12}
      leave: {waiting: 3}
"""


@pytest.fixture
def simulated(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def of(text):
        Path("stepped.yaml").write_text(text)
        return ended(capsys, "simulate", "stepped.yaml", "-o", "out", "--quiet")

    return of


def checked_answers(door):
    """Who was sent on, and by whom they were answered."""
    steps = json.loads(Path("out/decisions.json").read_text())[door]["ladder"]
    entered_s = next(step["time_s"] for step in steps if step["entered"])
    requests, calls = pl.read_parquet("out/requests.parquet"), pl.read_parquet("out/calls.parquet")
    moved = requests.filter(pl.col("degraded_by") == "smaller_model")
    assert moved.height > 50
    assert (moved["input_tokens"] <= 1000).all()
    assert (moved["output_tokens"] <= 300).all()
    assert (moved["arrival_s"] > entered_s - 1e-9).all()
    by_small, by_main = (set(calls.filter(pl.col("pool") == pool)["request"]) for pool in ("small", "main-prefill"))
    assert set(moved["request"]) <= by_small - by_main
    found = json.loads(Path("out/summary.json").read_text())
    assert found["world"]["smaller_model_count"] == moved.height
    return requests, moved, by_small


def test_short_requests_go_to_the_pool_that_stands_by(simulated):
    code, out, err = simulated(SCENARIO + LADDER)
    assert (code, err) == (0, "")
    requests, moved, by_small = checked_answers("all pools")
    assert by_small == set(moved["request"]), "without takes it answers nobody else"
    assert f"answered by the smaller model: {moved.height:,}" in out
    assert requests.filter(pl.col("status") != "finished").height == 0


def test_a_ladder_of_one_pool_sends_its_own_on_to_a_pool_written_before(simulated):
    own = "    " + LADDER.replace("\n", "\n    ").rstrip() + "\n"
    takes = SCENARIO.replace("replicas: 1}\n  main", "replicas: 1, takes: {input_up_to: 300}}\n  main")
    code, _, err = simulated(takes + own)
    assert (code, err) == (0, "")
    requests, moved, by_small = checked_answers("main")
    short = set(requests.filter(pl.col("input_tokens") <= 300)["request"])
    assert short
    assert by_small == short | set(moved["request"])
    assert (moved["input_tokens"] > 300).all(), "its own are not given up"


def test_prefill_and_decode_apart_can_be_the_smaller_model(simulated):
    small = "small: {model: Qwen/Qwen3-0.6B, prefill: {replicas: 1}, decode: {replicas: 1}, link: pcie}"
    main = "main: {max_sequence_count: 24}"
    start = SCENARIO[: SCENARIO.index("  small:")]
    code, _, err = simulated(f"{start}  {small}\n  {main}\n{LADDER}")
    assert (code, err) == (0, "")
    calls = pl.read_parquet("out/calls.parquet")
    counts = dict(calls.group_by("pool").len().iter_rows())
    assert counts["small-prefill"] == counts["small-decode"] > 50
    assert counts["main"] + counts["small-prefill"] == pl.read_parquet("out/requests.parquet").height


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("pool: small\n", "model: Qwen/Qwen3-0.6B\n", "nobody says which pool answers"),
        ("pool: small\n", "pool: small\n      fleet: {gpu: l40s}\n", "the smaller model is one of them"),
        ("pool: small\n", "pool: smal\n", 'no pool is called "smal"'),
        ("score: 0.93", "score: 0.8", "a model that failed answers nobody"),
        ("      evaluation: {", "      # {", "Qwen3-0.6B without an evaluation record"),
    ],
)
def test_what_sends_nobody_anywhere_is_refused(simulated, old, new, said):
    assert old in LADDER
    code, _, err = simulated(SCENARIO + LADDER.replace(old, new))
    assert code == 2
    assert said in " ".join(err.split())


def test_a_rung_steps_down_once(simulated):
    own = LADDER.replace("\n", "\n    ").rstrip() + "\n"
    back = own.replace("pool: small", "pool: main")
    text = SCENARIO.replace(
        "  small: {model: Qwen/Qwen3-0.6B, replicas: 1}\n", f"  small:\n    replicas: 1\n    {back}"
    )
    code, _, err = simulated(text + "    " + own)
    assert code == 2
    assert "sends requests on to a smaller model, too" in " ".join(err.split())
    code, _, err = simulated(SCENARIO + "    " + back)
    assert code == 2
    assert "is the pool itself" in " ".join(err.split())


def test_one_fleet_has_no_pool_to_name(simulated):
    code, _, err = simulated(SCENARIO[: SCENARIO.index("pools:")] + LADDER)
    assert code == 2
    assert "write model and fleet" in " ".join(err.split())
