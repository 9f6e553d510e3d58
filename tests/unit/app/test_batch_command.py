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
slo: {ttft_p95: 2s, error_rate: 1%}
gpus: l40s
precision: fp8
batch:
  takes: {share: 30%}
  window: {opens: "00:02", closes: "06:00"}
  slots: 20%
"""


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


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("ladder: {queue_limit: 5, rungs: [], batch: [night]}\n", "both say what is batch"),
        ("pools: {chat: {replicas: 1}}\n", "at the gateway of one fleet"),
    ],
)
def test_what_makes_no_sense_is_refused(scenario, more, said):
    scenario.write_text(SCENARIO + more)
    with pytest.raises(BadInput, match=said):
        load_scenario(scenario)
