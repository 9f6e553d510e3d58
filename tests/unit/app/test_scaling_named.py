"""Ways to scale the pools that a scenario names, each compared in its place among the others."""

import json
import re

import pytest

from commands import ended
from unit.app.named_pools import chain

CHAIN = chain(
    traffic="mean_rate: 9, peak_to_mean: 3, duration: 6min",
    slo="{ttft_p95: 2s}",
    more="cold_start: 60s\n",
    rank=", autoscaling: {policy: [queue], max: 4}",
    small=", replicas: 2",
    main="{autoscaling: {policy: [queue, kv], min: 1, max: 4, stable: 1min, cool_down: 30s}}",
)
APART = """\
name: apart
workload: {lengths: {input: 900:2500, output: 60:120}, mean_rate: 9, peak_to_mean: 3, duration: 6min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s}
gpus: l40s
precision: fp8
cold_start: 40s
clients: {attempts: 3, backoff: 1s}
events:
  - {pool: main-prefill, at: 3min, what: fail, replicas: 1}
pools:
  small: {model: Qwen/Qwen3-0.6B, gpu: l4, precision: bf16, takes: {input_up_to: 500}}
  main:
    prefill: {autoscaling: {policy: [queue], min: 1, max: 4, stable: 1min, cool_down: 30s}}
    decode: {replicas: 2}
    link: infiniband_200g
"""


def compared(capsys, folder, text: str, *options: object) -> dict:
    path = folder / "it.yaml"
    path.write_text(text)
    code, out, err = ended(capsys, "scaling", path, "--json", "--quiet", *options)
    assert (code, err) == (0, "")
    return json.loads(out)


def ways(pool: dict) -> dict[str, dict]:
    return {way["name"]: way for way in pool["ways"]}


def test_each_pool_that_is_scaled_is_compared_in_its_place(capsys, tmp_path) -> None:
    found = compared(capsys, tmp_path, CHAIN, "--report", tmp_path / "page.html")
    rank, main = found["pools"]
    assert (rank["pool"], main["pool"]) == ("rank", "main")
    # What reads keeps no KV and gives no first token, so that nobody goes by them.
    assert [name for name in ways(rank) if "kv" in name or "ttft" in name] == []
    assert {"as written", "kv 85 %", "ttft 2 s", "schedule", "forecast"} <= set(ways(main))
    for pool in (rank, main):
        best = ways(pool)[pool["best"]]
        assert best["broken_minute_count"] == min(way["broken_minute_count"] for way in pool["ways"])
    # The others are there all the time: 2 of small for some 6 minutes, besides what the best ways hold.
    hours = sum(ways(pool)[pool["best"]]["gpu_hours"] for pool in (rank, main))
    assert found["together"]["gpu_hours"] == pytest.approx(hours + 2 * 0.1, rel=0.03)
    assert found["together"]["broken_minute_count"] == 0
    page = (tmp_path / "page.html").read_text()
    assert [f"<h2>{name}</h2>" in page for name in ("rank", "main", "small")] == [True, True, False]


def test_a_replica_carries_calls_and_not_requests(capsys, tmp_path) -> None:
    """Four calls of four in ten requests come to the pool that ranks, and none of the others."""
    found = compared(capsys, tmp_path, CHAIN, "--report", tmp_path / "page.html")
    rank, main = found["pools"]
    carried = {each["pool"]: each["capacity_per_s"] * each["ways"][0]["most_replica_count"] for each in found["pools"]}
    page = (tmp_path / "page.html").read_text()
    drawn = json.loads(page.split('id="figures">')[1].split("</script>")[0])
    for pool in (rank, main):
        arrivals = drawn[f"{pool['pool']}demand"]["data"][0]["y"]
        assert max(arrivals) == pytest.approx(carried[pool["pool"]], rel=0.01)
    whole = compared(capsys, tmp_path, CHAIN.replace("takes: {share: 40%}", "takes: {share: 80%}"))
    assert whole["pools"][0]["capacity_per_s"] * whole["pools"][0]["ways"][0]["most_replica_count"] == pytest.approx(
        2.0 * carried["rank"], rel=0.15
    )


NIGHT = """\
name: night
workload: {lengths: {input: 900:2500, output: 60:120}, mean_rate: 9, peak_to_mean: 3, duration: 6min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s}
gpus: l40s
precision: fp8
cold_start: 40s
pools:
  bulk: {takes: {share: 30%}, window: {opens: "00:04", closes: "06:00"}}
  main: {autoscaling: {policy: [queue], min: 1, max: 4, stable: 1min, cool_down: 30s}}
"""
LANE = (
    NIGHT.replace('  bulk: {takes: {share: 30%}, window: {opens: "00:04", closes: "06:00"}}\n', "")
    + 'batch: {takes: {share: 30%}, window: {opens: "00:04", closes: "06:00"}, slots: 50%}\n'
)


@pytest.mark.parametrize(("text", "name"), [(APART, "main-prefill"), (NIGHT, "main"), (LANE, "main")])
def test_as_written_is_what_a_simulation_of_the_scenario_does(capsys, tmp_path, text, name) -> None:
    (pool,) = compared(capsys, tmp_path, text)["pools"]
    code, _, err = ended(capsys, "simulate", tmp_path / "it.yaml", "-o", tmp_path / "sim", "--quiet")
    assert (code, err) == (0, "")
    summary = json.loads((tmp_path / "sim" / "summary.json").read_text())
    hours = {each["name"]: each["gpu_hours"] for each in summary["pools"]}
    written = ways(pool)["as written"]
    assert pool["pool"] == name
    assert written["gpu_hours"] == pytest.approx(hours[name], rel=1e-9)
    assert written["broken_minute_count"] == summary["scaling"]["broken_minute_count"]
    assert written["minute_count"] == summary["scaling"]["minute_count"]
    assert written["change_count"] == summary["scaling"]["pools"][name]["change_count"]


def test_minutes_are_those_of_who_waits(capsys, tmp_path) -> None:
    """Whoever waits for the night is late for every promise, and breaks no minute."""
    found = compared(capsys, tmp_path, NIGHT)
    assert found["pools"][0]["slow_alone_minute_count"] == 0
    assert found["pools"][0]["fixed_is_enough"]
    assert found["together"]["broken_minute_count"] == 0
    code, out, _ = ended(capsys, "scaling", tmp_path / "it.yaml", "--quiet")
    assert code == 0
    assert "Minutes are those of requests that somebody waits for" in out
    # Slow alone are only those that are told of.
    slow = compared(capsys, tmp_path, NIGHT.replace("ttft_p95: 2s", "ttft_p95: 60ms"))
    assert 0 < slow["pools"][0]["slow_alone_minute_count"] <= 10


def test_a_request_that_is_slow_alone_is_asked_for_with_its_own_way(capsys, tmp_path) -> None:
    """Whoever goes through the chain is slower than promised alone: no replica of any pool mends that."""
    slow = CHAIN.replace("ttft_p95: 2s", "ttft_p50: 400ms").replace("{wait: 20ms}", "{wait: 450ms}")
    found = compared(capsys, tmp_path, slow.replace("share: 40%", "share: 60%"))
    for pool in found["pools"]:
        assert pool["slow_alone_minute_count"] > 0
        assert pool["ways"][0]["broken_minute_count"] == 0
    assert found["together"]["broken_minute_count"] >= found["pools"][0]["slow_alone_minute_count"]


@pytest.mark.long
def test_the_others_have_the_replicas_of_their_plan(capsys, tmp_path) -> None:
    path = tmp_path / "fixed.yaml"
    path.write_text(re.sub(r", autoscaling: \{.*\}\}", "}", CHAIN).replace("{autoscaling: {", "{}  # {{"))
    code, _, err = ended(capsys, "plan", path, "-o", tmp_path / "plan", "--quiet", "--no-cache")
    assert (code, err) == (0, "")
    planned = {
        pool["name"]: pool["fleet"][0]["replica_count"]
        for pool in json.loads((tmp_path / "plan" / "plan.json").read_text())["pools"]
    }
    text = CHAIN.replace("replicas: 2", "replicas: 5")
    path = tmp_path / "it.yaml"
    path.write_text(text)
    code, out, err = ended(capsys, "scaling", path, "--plan", tmp_path / "plan", "--quiet")
    assert (code, err) == (0, "")
    count = planned["small"]
    assert count < 5
    assert f"small stays at {count} replica{'' if count == 1 else 's'}: " in out
    code, out, _ = ended(capsys, "scaling", path, "--quiet")
    assert "small stays at 5 replicas: " in out
    other = tmp_path / "other.yaml"
    other.write_text(APART)
    code, _, err = ended(capsys, "scaling", other, "--plan", tmp_path / "plan", "--quiet")
    assert code == 2
    assert "give the plan of this scenario" in " ".join(err.split())


def test_a_ladder_is_left_out_and_that_is_said(capsys, tmp_path) -> None:
    ladder = """\
ladder:
  queue_limit: 400
  rungs: [{give_up: cap_output, limit: 60, enter: {waiting: 1}, leave: {waiting: 0.5}}]
"""
    path = tmp_path / "it.yaml"
    path.write_text(CHAIN + ladder)
    code, out, _ = ended(capsys, "scaling", path, "--quiet")
    assert code == 0
    assert "Ladders are left out: ways to scale are compared with nothing given up." in " ".join(out.split())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (CHAIN[CHAIN.index("pools:") :], "pools: {main: {}}\n", "pools: no pool says how many replicas it may have"),
        ("precision: fp8\n", "precision: fp8\nusers: {count: 9, think: 1s}\n", "users: send requests as fast"),
        ("main: {", 'main: {window: {opens: "22:00", closes: "06:00"}, ', "pools.main.window: holds offline work"),
        ("policy: [queue], max: 4", "policy: [ttft], max: 4", "pools.rank.autoscaling.policy: ttft, and nothing"),
    ],
)
def test_what_ways_are_not_compared_with_is_refused_at_its_key(capsys, tmp_path, old, new, said) -> None:
    path = tmp_path / "it.yaml"
    assert old in CHAIN
    path.write_text(CHAIN.replace(old, new))
    code, out, err = ended(capsys, "scaling", path, "--quiet")
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())


def test_a_fleet_of_options_does_not_go_with_pools(capsys, tmp_path) -> None:
    path = tmp_path / "it.yaml"
    path.write_text(CHAIN)
    code, _, err = ended(capsys, "scaling", path, "--gpu", "l4", "--quiet")
    assert code == 2
    assert "--gpu: does not go with the scenario's pools" in " ".join(err.split())
