"""A new version of one fleet, its replicas beside the old ones."""

import json
from pathlib import Path

import polars as pl
import pytest

from commands import ended

SCENARIO = """\
name: versions
workload: {lengths: {input: 900:2500, output: 100:250}, mean_rate: 5, peak_to_mean: 1, duration: 2min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s}
gpus: l40s
precision: bf16
cold_start: 20s
rollout: {max_surge: 1}
events:
  - {at: 40s, what: rollout, to: {precision: fp8, max_sequence_count: 64}}
"""


@pytest.fixture
def simulated(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def of(text, *options, folder="out"):
        Path("versions.yaml").write_text(text)
        return ended(capsys, "simulate", "versions.yaml", "-o", folder, "--quiet", *options)

    return of


def test_old_and_new_serve_side_by_side_as_in_a_pool(simulated):
    code, out, err = simulated(SCENARIO, "--replicas", "2")
    assert (code, err) == (0, "")
    assert "New replicas are numbered behind the old ones" in " ".join(out.split())
    old, new = json.loads(Path("out/summary.json").read_text())["fleet"]
    assert (old["precision"], new["precision"]) == ("bf16", "fp8")
    assert (old["max_sequence_count"] > 64, new["max_sequence_count"]) == (True, 64)
    requests = pl.read_parquet("out/requests.parquet")
    served = {number: requests.filter(pl.col("replica") == number)["arrival_s"] for number in range(4)}
    assert served[0].max() <= 60.0 <= served[2].min()
    assert served[1].max() <= 80.0 <= served[3].min()
    fleet = pl.read_parquet("out/fleet.parquet")
    assert (fleet["ready_count"].min(), fleet["starting_count"].max()) == (2, 1)
    pools = SCENARIO.replace("{at: 40s", "{pool: main, at: 40s") + "pools: {main: {replicas: 2}}\n"
    code, _, err = simulated(pools, folder="pools")
    assert (code, err) == (0, "")
    in_pool = pl.read_parquet("pools/requests.parquet")
    assert in_pool["finish_s"].equals(requests["finish_s"])
    assert in_pool["replica"].equals(requests["replica"])


def test_every_group_has_its_new_version(simulated):
    groups = "groups: {big: {replicas: 1, max_batched_tokens: 4096}, small: {replicas: 2}}\n"
    code, _, err = simulated(SCENARIO + groups)
    assert (code, err) == (0, "")
    fleet = json.loads(Path("out/summary.json").read_text())["fleet"]
    assert [each["replica_count"] for each in fleet] == [1, 2, 1, 2]
    assert [each["precision"] for each in fleet] == ["bf16", "bf16", "fp8", "fp8"]
    assert fleet[0]["max_batched_tokens"] == fleet[2]["max_batched_tokens"] == 4096
    last = pl.read_parquet("out/requests.parquet").filter(pl.col("arrival_s") > 105.0)
    assert set(last["replica"]) == {3, 4, 5}


def test_a_version_on_another_gpu_takes_its_engine_defaults(simulated):
    code, out, err = simulated(SCENARIO.replace("to: {precision: fp8", "to: {gpu: h100_sxm"), "--replicas", "2")
    assert (code, err) == (0, "")
    assert "2 replicas of h100_sxm (bf16)" in out
    price = pl.read_parquet("out/fleet.parquet")["usd_per_million_output_tokens"]
    assert price.drop_nulls().len() > 0, "both gpus have their price"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("cold_start: 20s\n", "cold_start: 20s\nautoscaling: {max: 4}\n", "a rollout in a fleet that is scaled"),
        ("{max_surge: 1}", "{max_surge: 0, max_unavailable: 1}", "every replica of the fleet may be missing"),
        ("events:\n", "events:\n  - {at: 9s, what: rollout}\n", "a second rollout in the fleet"),
        ("{precision: fp8,", "{router: round_robin,", "both versions serve together"),
        ("{precision: fp8,", "{tensor_parallel: 3,", "events[0].to"),
    ],
)
def test_what_cannot_be_rolled_out_is_refused(simulated, old, new, said):
    code, _, err = simulated(SCENARIO.replace(old, new))
    assert code == 2
    assert said in " ".join(err.split())


@pytest.mark.parametrize(
    ("event", "went", "ready_count"),
    [
        (
            "{at: 50s, replicas: [2], back_after: 25s}",
            [("wait", 60.0, [2]), ("stop", 75.0, [0]), ("stop", 95.0, [1])],
            2,
        ),
        (
            "{at: 70s, replicas: [2], back_after: 35s}",
            [("wait", 80.0, [2]), ("stop", 60.0, [0]), ("stop", 105.0, [1])],
            2,
        ),
        ("{at: 50s, replicas: [2]}", [("wait", 60.0, [2])], 2),
        ("{at: 70s, replicas: [2]}", [("wait", 80.0, [2]), ("stop", 60.0, [0])], 2),
    ],
)
def test_it_waits_for_a_new_replica_that_failed(simulated, event, went, ready_count):
    code, out, _ = simulated(f"{SCENARIO}  - {event}\n", "--replicas", "2")
    assert code == 0
    log = json.loads(Path("out/decisions.json").read_text())["replicas"]
    found = [(each["kind"], each["time_s"], each["replicas"]) for each in log if each["kind"] in ("wait", "stop")]
    assert sorted(found) == sorted(went)
    assert "replica 2 held the rollout up (the rollout goes on when all are ready)" in " ".join(out.split())
    assert pl.read_parquet("out/fleet.parquet")["ready_count"][-1] == ready_count


def test_who_was_given_back_stays_away_when_its_failure_ends(simulated):
    failed = SCENARIO + "  - {at: 50s, replicas: [0, 1], back_after: 20s}\n"
    assert simulated(failed, "--replicas", "2")[0] == 0
    log = json.loads(Path("out/decisions.json").read_text())["replicas"]
    assert [each["replicas"] for each in log if each["kind"] == "back"] == [[1]]
    assert pl.read_parquet("out/fleet.parquet")["ready_count"][-1] == 2
