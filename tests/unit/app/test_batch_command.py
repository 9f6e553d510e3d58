"""The batch lane in a scenario, end to end."""

import json
from pathlib import Path

import polars as pl
import pytest

from commands import ended
from tokenfleet.app.scenario import load_scenario
from tokenfleet.domain.errors import BadInput

SCENARIO = """\
name: nightly
workload:
  lengths: {input: 900:2000, output: 150:300}
  mean_rate: 5
  duration: 6min
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s, itl_p99: 300ms, error_rate: 1%}
gpus: l40s
precision: fp8
batch:
  takes: {share: 30%}
  window: {opens: "00:02", closes: "06:00"}
  slots: 20%
"""


def told_apart(found: dict) -> None:
    """Gaps and latencies of the two lanes, and the promise on those of one."""
    mine, of_batch, of_all = (found[name] for name in ("latency_s", "latency_batch_s", "latency_all_s"))
    assert mine["itl"] == found["itl_by_class_s"]["lane interactive"]
    assert of_batch["itl"] == found["itl_by_class_s"]["lane batch"]
    assert mine["ttft"]["p95"] < of_all["ttft"]["p95"] < of_batch["ttft"]["p95"]
    promised = next(clause for clause in found["whole"]["slo"] if clause["name"].startswith("itl"))
    assert promised["predicted"] == mine["itl"]["p99"]
    assert promised["predicted_low"] < promised["predicted"] < promised["predicted_high"]
    assert promised["sample_count"] == sum(
        each["count"] for each in json.loads(Path("out/gaps.json").read_text())["classes"]["lane interactive"]["whole"]
    )


@pytest.fixture
def scenario(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    Path("nightly.yaml").write_text(SCENARIO)
    return Path("nightly.yaml")


def test_batch_runs_in_its_window_and_the_promise_is_about_the_others(capsys, scenario):
    code, out, err = ended(capsys, "simulate", scenario, "-o", "out", "--quiet", "--replicas", "1")
    assert (code, err) == (0, "")
    requests = pl.read_parquet("out/requests.parquet")
    found = json.loads(Path("out/summary.json").read_text())
    batch = found["batch"]
    assert batch["request_count"] == batch["finished_count"]
    assert 0.2 < batch["request_count"] / len(requests) < 0.4
    early = requests.filter(pl.col("arrival_s") < 100.0)
    held = early.filter(pl.col("first_token_s") > 120.0)
    assert 0.2 < len(held) / len(early) < 0.4, "batch, until the window opens"
    assert f"{batch['finished_count']:,} of {batch['request_count']:,} requests done" in out
    ttft = next(clause for clause in found["whole"]["slo"] if clause["name"].startswith("ttft"))
    assert ttft["predicted"] < 20.0, "nobody counts the night"
    rows = pl.read_parquet("out/telemetry.parquet")
    batch_too, others = rows["waiting"].max(), found["whole"]["diagnosis"]["waiting_peak_count"]
    assert others < batch_too, "an alarm is about those for whom somebody waits"
    assert "of all but batch, which has its own lines below" in out
    told_apart(found)
    page = Path("out/timeline.html").read_text()
    assert "ITL interactive" in page
    assert "TTFT batch" in page
    assert "slowest request of each, of all but batch" in page


ALL_BATCH = """\
name: nightly
model: Qwen/Qwen3-0.6B
gpus: l4
workload: {lengths: {input: "200:600", output: "20:60"}, mean_rate: 2, peak_to_mean: 1, duration: 20s}
slo: {ttft_p95: 2s}
batch: {takes: {share: 100%}, window: {opens: "00:01", closes: "00:02"}}
"""


def test_batch_that_waits_a_day_for_a_slot_is_sampled_by_the_length_of_the_run(capsys, monkeypatch, scenario):
    monkeypatch.setattr("tokenfleet.app.simulate_run._MOST_SAMPLES", 200)
    short = SCENARIO.replace("duration: 6min", "peak_to_mean: 1\n  duration: 1min").replace("slots: 20%", "slots: 1%")
    short = short.replace('opens: "00:02", closes: "06:00"', 'opens: "00:00", closes: "00:01"')
    scenario.write_text(f"{short}scrape: 10min\n")
    assert ended(capsys, "simulate", scenario, "-o", "out", "--quiet", "--replicas", "1")[0] == 0
    found = json.loads(Path("out/summary.json").read_text())
    assert found["duration_s"] > 86_400.0
    assert pl.read_parquet("out/telemetry.parquet").height <= 200


def test_where_everybody_is_batch_nobody_is_judged(capsys, scenario):
    scenario.write_text(ALL_BATCH)
    code, out, err = ended(capsys, "simulate", scenario, "--precision", "bf16", "--quiet")
    assert (code, err) == (0, "")
    assert "all requests are batch, which has its own lines below" in out
    assert "unknown: all requests are batch, and nobody waits for those." in out
    promise = next(line for line in out.splitlines() if "TTFT p95" in line)
    assert promise.split() == ["TTFT", "p95", "unknown", "of", "2.00", "s", "too", "few", "requests", "to", "say"]
    assert "judged over all other" not in out


POOLS = """\
pools:
  small: {model: Qwen/Qwen3-0.6B, replicas: 1, takes: {input_up_to: 500}}
  main: {prefill: {replicas: 1}, decode: {replicas: 1}, link: infiniband_200g}
"""


def test_each_pool_has_a_lane_of_its_own(capsys, scenario):
    scenario.write_text(SCENARIO + POOLS)
    code, out, err = ended(capsys, "simulate", scenario, "-o", "out", "--quiet")
    assert (code, err) == (0, "")
    found = json.loads(Path("out/summary.json").read_text())
    batch = found["batch"]
    assert batch["finished_count"] == batch["request_count"] > 0
    assert f"{batch['finished_count']:,} of {batch['request_count']:,} requests done" in out
    told_apart(found)
    assert "of all but batch" in out
    calls = pl.read_parquet("out/calls.parquet")
    early = calls.filter((pl.col("arrival_s") < 110.0) & (pl.col("pool") != "main-decode"))
    for _, pool in early.group_by("pool"):
        held = pool.filter(pl.col("scheduled_s") > 120.0)
        assert 0.1 < len(held) / len(pool) < 0.5, "batch waits for its window at the first pool of its way"
        assert pool.filter(pl.col("scheduled_s").is_between(100.0, 119.9)).height
    decode = calls.filter((pl.col("pool") == "main-decode") & (pl.col("arrival_s") < 115.0))
    assert (decode["scheduled_s"] - decode["queued_s"]).max() < 5.0, "a pool that decodes holds nobody until night"
    ttft = next(clause for clause in found["whole"]["slo"] if clause["name"].startswith("ttft"))
    assert ttft["predicted"] < 20.0, "nobody counts the night"
    gaps = json.loads(Path("out/gaps.json").read_text())
    counted = {name: sum(each["count"] for each in lane["whole"]) for name, lane in gaps["classes"].items()}
    assert counted.keys() == {"lane interactive", "lane batch"}
    assert sum(counted.values()) == sum(each["count"] for each in gaps["whole"])


SIZED = """\
name: sized
workload: {lengths: {input: 900:2000, output: 150:300}, mean_rate: 14, peak_to_mean: 1, duration: 2min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 400ms}
gpus: l40s
precision: fp8
pools: {main: {max_batched_tokens: 2048}}
"""


def test_pools_are_sized_with_batch_in_its_lane(capsys, scenario):
    counts = []
    for lane in ("", "batch: {takes: {share: 60%}, slots: 20%}\n"):
        scenario.write_text(SIZED + lane)
        code, out, err = ended(capsys, "size", scenario, "--quiet", "--json")
        assert (code, err) == (0, "")
        counts.append(json.loads(out)["pools"][0]["carrying_replica_count"])
    assert counts == [2, 1], "batch takes what the others leave over"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("engine: {scheduling: priority}\n", "the lanes of batch and of the others are the only ones"),
        ("router: by_tier\n", "the lanes of batch and of the others are the only ones"),
    ],
)
def test_lanes_are_the_only_priorities_of_pools(capsys, scenario, more, said):
    scenario.write_text(SCENARIO + POOLS + more)
    code, _, err = ended(capsys, "simulate", scenario, "-o", "out")
    assert code == 2
    assert said in " ".join(err.split())


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("ladder: {queue_limit: 5, rungs: [], batch: [night]}\n", "both say what is batch"),
    ],
)
def test_what_makes_no_sense_is_refused(scenario, more, said):
    scenario.write_text(SCENARIO + more)
    with pytest.raises(BadInput, match=said):
        load_scenario(scenario)
