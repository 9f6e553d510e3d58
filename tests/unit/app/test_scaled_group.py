"""One of several replica groups is scaled."""

import json
from pathlib import Path

import polars as pl
import pytest

from commands import ended

SCENARIO = """\
name: spare
workload: {lengths: {input: 900:2500, output: 150:300}, mean_rate: 11, peak_to_mean: 1, duration: 3min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s}
gpus: l40s
precision: fp8
cold_start: 20s
groups:
  own: {replicas: 1, max_sequence_count: 48}
  spare: {max_batched_tokens: 2048}
autoscaling: {group: spare, policy: [queue, kv], min: 0, max: 2, stable: 1min, cool_down: 30s}
"""
BY_LENGTH = (
    SCENARIO.replace("spare: {max", "spare: {up_to: 400, max")
    .replace("min: 0", "min: 1")
    .replace("count: 48", "count: 20")
)
BY_LENGTH += "router: by_length\n"


@pytest.fixture
def simulated(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def of(text, command="simulate"):
        Path("spare.yaml").write_text(text)
        return ended(capsys, command, "spare.yaml", "-o", "out", "--quiet")

    return of


def test_a_group_comes_when_the_others_are_full(simulated):
    code, out, err = simulated(SCENARIO)
    assert (code, err) == (0, "")
    steps = json.loads(Path("out/decisions.json").read_text())["scaling"]
    assert steps[0]["ready_count"] == 1, "the group that stays is counted"
    assert max(step["target_count"] for step in steps) in (2, 3)
    moved = json.loads(Path("out/decisions.json").read_text())["replicas"]
    assert {number for each in moved for number in each["replicas"]} <= {1, 2}
    requests = pl.read_parquet("out/requests.parquet")
    came_s = next(each["time_s"] for each in moved if each["kind"] == "ready")
    assert requests.filter(pl.col("replica") > 0)["arrival_s"].min() >= came_s
    assert "1 to " in out


def test_behind_a_router_by_length_a_group_goes_by_its_own_requests(simulated):
    code, _, err = simulated(BY_LENGTH)
    assert (code, err) == (0, "")
    steps = json.loads(Path("out/decisions.json").read_text())["scaling"]
    telemetry = pl.read_parquet("out/telemetry.parquet")
    others = telemetry.filter(pl.col("replica") == 0)["waiting"].max()
    own = telemetry.filter(pl.col("replica") > 0)["waiting"].max()
    seen = [int(step["reason"].split(" waiting")[0].split()[-1]) for step in steps if " waiting on" in step["reason"]]
    assert others > 4 >= own, "the long ones wait, and no replica of the short ones helps"
    assert max(seen, default=0) <= own
    assert max(step["target_count"] for step in steps) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SCENARIO.replace("group: spare, ", ""), "one policy scales one"),
        (SCENARIO.replace("group: spare", "group: spar"), 'no group is called "spar"'),
        (SCENARIO.replace("spare: {max", "spare: {replicas: 2, max"), "set autoscaling.min, start and max"),
        (SCENARIO.replace("max: 2,", "max: 2, gpu_quota: 2,"), "2 replicas may come to 3 gpus, and the quota is 2"),
        (BY_LENGTH.replace("[queue, kv]", "[queue, ttft]"), "ttft is of the whole fleet"),
        (BY_LENGTH.replace("min: 1", "min: 0"), "nobody sees them without a replica"),
    ],
)
def test_what_cannot_be_scaled_is_refused(simulated, text, said):
    code, _, err = simulated(text)
    assert code == 2
    assert said in " ".join(err.split())


def test_a_pool_has_no_groups_to_scale(simulated):
    pools = SCENARIO[: SCENARIO.index("groups:")] + "pools: {main: {autoscaling: {group: own, max: 2}}}\n"
    code, _, err = simulated(pools)
    assert code == 2
    assert "a pool has equal replicas" in " ".join(err.split())


def test_ways_to_scale_are_compared_on_equal_replicas(capsys, simulated):
    Path("spare.yaml").write_text(SCENARIO)
    code, _, err = ended(capsys, "scaling", "spare.yaml")
    assert code == 2
    assert "2 replica groups" in " ".join(err.split())
