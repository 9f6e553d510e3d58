"""A plan of several pools end to end: what is written, and what simulate, drill, contract and review make of it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from commands import ended

SCENARIO = """\
name: mixed
workload: {trace: mixed.csv}
model: meta-llama/Llama-3.1-8B-Instruct
slo:
  error_rate: 0.1%
  classes:
    chat: {takes: {labels: [chat]}, ttft_p99: 500ms, tpot_p95: 30ms}
    document: {takes: {labels: [document]}, ttft_p95: 15s, tpot_p95: 60ms}
gpus: [l40s, h100_sxm]
precision: fp8
tensor_parallel: 1
cold_start: 2min
also_try: {pools: task}
compare: {users: 1000}
"""


def log():
    """Ten minutes of chats, and every now and then a document that somebody wants read."""
    rng = np.random.default_rng(7)
    rows = [(t, rng.integers(100, 400), rng.integers(50, 250), "chat") for t in rng.uniform(0, 600, 3000)]
    rows += [(t, rng.integers(20_000, 40_000), rng.integers(150, 350), "document") for t in rng.uniform(0, 600, 210)]
    lines = [f"{t:.3f},{inputs},{outputs},{label}" for t, inputs, outputs, label in sorted(rows)]
    return "\n".join(["arrival_s,input_tokens,output_tokens,label", *lines]) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("mixed")
    (place / "mixed.csv").write_text(log())
    (place / "mixed.yaml").write_text(SCENARIO)
    return place


@pytest.fixture
def run(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "110")
    return lambda *arguments: ended(capsys, *arguments)


@pytest.fixture
def planned(run):
    """The plan, made once for all tests of this file; its terminal text stands beside it."""
    if not Path("plan").exists():
        code, out, err = run("plan", "mixed.yaml", "-o", "plan", "--focus", "focus.csv", "--quiet")
        assert (code, err) == (0, "")
        Path("said.txt").write_text(out)
    return json.loads(Path("plan/plan.json").read_text())


def test_pack_puts_the_pools_of_a_plan_on_nodes_where_that_is_cheapest(planned, run) -> None:
    chosen = {pool["name"]: pool["fleet"][0] for pool in planned["pools"]}
    code, out, err = run("pack", "mixed.yaml", "--json")
    assert (code, err) == (0, "")
    packed = json.loads(out)
    pools = {pool["name"]: (shared["gpu"], pool) for shared in packed["nodes"] for pool in shared["pools"]}
    assert set(pools) == {"mixed.chat", "mixed.document"}
    for name, group in chosen.items():
        gpu, pool = pools[f"mixed.{name}"]
        assert (gpu, pool["replica_count"]) == (group["gpu"], group["replica_count"])
    alone = sum(pool["usd_per_hour_alone"] for _, pool in pools.values())
    assert alone == pytest.approx(planned["price_usd_per_hour"])
    assert packed["usd_per_hour"] == packed["alone_usd_per_hour"]


def test_spike_and_tiers_go_on_with_the_pools_that_are_bought(planned, run) -> None:
    bought = {pool["name"]: pool["fleet"][0]["replica_count"] for pool in planned["pools"]}
    code, out, err = run("spike", "mixed.yaml", "--at", "5min", "--duration", "1min", "--factor", "3", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert {pool["pool"]: pool["usual"]["replica_count"] for pool in found["pools"]} == bought
    assert found["event"]["endured"]["kept"]
    grown = [pool for pool in found["pools"] if pool["added_replica_count"]]
    assert grown
    for pool in found["pools"]:
        lead_s = None if pool not in grown else 300.0 - 120.0
        assert pool["trigger_s"] == lead_s
    _, said, _ = run("tiers", "mixed.yaml", "--share", "20%", "--promise", "tpot_p95=28ms")
    assert "of those of chat" in said
    assert "document: 3 replicas of l40s (fp8)" in said


PAGE = ("ways", "demand", "counts")


def test_ways_to_scale_are_compared_pool_by_pool_and_the_best_replayed_together(planned, run) -> None:
    Path("scaled.yaml").write_text(SCENARIO + "autoscaling: {policy: [queue], min: 1, max: 5}\n")
    code, out, err = run("scaling", "scaled.yaml", "--plan", "plan", "--report", "page.html", "--json")
    assert (code, err) == (0, "")
    page = Path("page.html").read_text()
    assert [f"<h2>{name}</h2>" in page for name in ("chat", "document", "Once more")] == [True] * 3
    figures = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, flags=re.DOTALL)
    assert set(json.loads(figures[1])) == {f"{pool}{key}" for pool in ("chat", "document") for key in PAGE}
    found = json.loads(out)
    assert [pool["pool"] for pool in found["pools"]] == ["chat", "document"]
    hours = 0.0
    for pool, limit_s in zip(found["pools"], ("0.5", "15"), strict=True):
        ways = {way["name"]: way for way in pool["ways"]}
        assert {"as written", "queue 5", f"ttft {limit_s} s", "schedule", "forecast"} <= set(ways)
        best = ways[pool["best"]]
        assert best["broken_minute_count"] == 0
        assert all(way["gpu_hours"] >= best["gpu_hours"] for way in ways.values() if not way["broken_minute_count"])
        hours += best["gpu_hours"]
    # Pools side by side do not know of each other, and what is kept by each is kept by all.
    assert found["together"]["gpu_hours"] == pytest.approx(hours, rel=0.02)
    assert found["together"]["broken_minute_count"] == 0
    code, _, err = run("scaling", "scaled.yaml", "--plan", "plan", "--gpu", "l4")
    assert code == 2
    assert "--gpu: is about one fleet, and plan has pools" in " ".join(err.split())
    Path("scaled.yaml").write_text(SCENARIO)
    code, _, err = run("scaling", "scaled.yaml", "--plan", "plan")
    assert code == 2
    assert "how many replicas each pool may have" in " ".join(err.split())


@pytest.mark.long
def test_spike_and_tiers_tell_the_same_to_people_and_machines(planned, run) -> None:
    _, said, _ = run("spike", "mixed.yaml", "--at", "5min", "--duration", "1min", "--factor", "3")
    assert "chat: 2 replicas of l40s (fp8)" in said
    labels = [line.split()[0] for line in said.splitlines() if not line.startswith(" ")]
    assert labels == ["Usual", "Event", "As", "Needs", "When", "Warm", "Bursts"]
    code, out, err = run("tiers", "mixed.yaml", "--share", "20%", "--promise", "tpot_p95=28ms", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["usual_replica_count"] == sum(pool["fleet"][0]["replica_count"] for pool in planned["pools"])
    for at, way in enumerate(found["options"]):
        each = [pool["options"][at] for pool in found["pools"]]
        assert way["name"] == each[0]["name"] == each[1]["name"]
        assert way["replica_count"] == sum(option["replica_count"] for option in each)


@pytest.mark.long
def test_levers_start_from_the_pools_and_weigh_them_with_each_lever(planned, run) -> None:
    code, out, err = run("levers", "mixed.yaml", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["base_usd_per_hour"] == pytest.approx(planned["price_usd_per_hour"])
    assert [pool["who"] for pool in found["base_pools"]] == ["chat", "document"]
    assert found["base"]["price_usd_per_hour"] > found["base_usd_per_hour"]
    pulled = [lever for lever in found["levers"] if lever["pools"]]
    assert pulled, "no lever was tried with pools"
    for lever in pulled:
        usd = sum(pool["price_usd_per_hour"] for pool in lever["pools"])
        assert lever["price_usd_per_hour"] == pytest.approx(usd)
        assert lever["fleet"] is None or usd < lever["fleet"]["price_usd_per_hour"]
        assert lever["saving_fraction"] == pytest.approx(1 - usd / found["base_usd_per_hour"])
    _, said, _ = run("levers", "mixed.yaml", "--quiet")
    assert "chat: 2 x l40s (fp8)" in said
    assert "proved together: the whole demand on all pools" in " ".join(said.split())


def test_the_pools_are_what_is_bought_said_written_and_promised(planned) -> None:
    pools = planned["pools"]
    assert [pool["name"] for pool in pools] == ["chat", "document"]
    assert planned["price_usd_per_hour"] < 0.8 * planned["runner_up"]["price_usd_per_hour"]
    said = " ".join(Path("said.txt").read_text().split())
    assert "Buy 2 pools" in said
    assert "less than the best fleet of one pool" in said
    assert "the spare replicas of every pool gone" in said
    for pool in pools:
        assert f"{pool['name']}: {pool['fleet'][0]['replica_count']} replicas of " in said
    assert "emptier than" in said
    page = Path("plan/report.html").read_text()
    assert "All pools together, the spare of each gone" in page
    assert [point["load_fraction"] for point in planned["curve"]] == [0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5]
    assert f"<h1>Buy {pools[0]['fleet'][0]['replica_count']} replicas of " in page
    assert "for chat and" in page
    assert "Full at the peak" in page
    promise = yaml.safe_load(Path("plan/contract.yaml").read_text())
    assert [(pool["name"], pool["takes"]["label"]) for pool in promise["pools"]] == [("chat",) * 2, ("document",) * 2]
    assert "fleet" not in promise
    lines = ("input", "cached", "output", "headroom", "idle", "spare")
    total = sum(promise["cost"][f"{line}_usd_per_hour"] for line in lines)
    assert total == pytest.approx(promise["cost"]["total_usd_per_hour"])
    assert sum(pool["usd_per_hour"] for pool in promise["pools"]) == pytest.approx(total)
    # A month of the same bill for whoever reads cloud bills.
    rows = [line.split(",") for line in Path("focus.csv").read_text().splitlines()]
    cost = rows[0].index("BilledCost")
    assert sum(float(row[cost]) for row in rows[1:]) == pytest.approx(730 * total, abs=0.01)


def test_simulate_takes_the_pools_of_the_plan(run, planned) -> None:
    code, out, _ = run("simulate", "mixed.yaml", "--plan", "plan", "-o", "sim", "--json", "--quiet")
    found = json.loads(out)
    assert code == 0
    assert found["stages"] == "chat | document"
    for pool, bought in zip(found["pools"], planned["pools"], strict=True):
        assert pool["name"] == bought["name"]
        assert pool["fleet"][0]["replica_count"] == bought["fleet"][0]["replica_count"]
        assert pool["router"] == bought["fleet"][0]["router"]
    # The whole fleet, replayed anew, is what the plan says of it.
    present = next(case for case in planned["redundancy"] if case["scenario"] == "all replicas present")
    assert [each["predicted"] for each in found["peak"]["slo"]] == [each["predicted"] for each in present["slo_peak"]]
    code, _, err = run("simulate", "mixed.yaml", "--plan", "plan", "--replicas", "3")
    assert code == 2
    assert "--replicas: does not go with the pools of the plan" in err


def test_drills_of_every_pool_stand_in_the_contract(run, planned) -> None:
    code, out, _ = run(
        *("drill", "mixed.yaml", "--plan", "plan", "--contract", "plan/contract.yaml", "--json", "--quiet"),
        *("--only", "replica", "--only", "burst", "--only", "rollout"),
    )
    drills = json.loads(out)["drills"]
    assert code == 0
    assert {drill["pool"] for drill in drills} == {"chat", "document"}
    # Of each pool its own clauses are judged, and no others.
    for drill in drills:
        assert {result["traffic_class"] for result in drill["slo"]} == {None, drill["pool"]}
    code, out, _ = run("contract", "plan/contract.yaml", "--scenario", "mixed.yaml", "--json")
    standing = json.loads(out)
    assert code == 0
    assert standing["holds"]
    assert standing["survives"]["replica"]
    assert standing["spare_replica_count"] == 2
    assert set(standing["drills"]) >= {"chat: burst", "document: replica", "document: rollout"}
    assert planned["pools"]


def test_a_contract_of_pools_is_not_drilled_with_another_fleet(run, planned) -> None:
    changed = json.loads(Path("plan/plan.json").read_text())
    changed["pools"][0]["fleet"][0]["replica_count"] += 1
    Path("other.json").write_text(json.dumps(changed))
    code, _, err = run("drill", "mixed.yaml", "--plan", "other.json", "--contract", "plan/contract.yaml", "--quiet")
    assert code == 2
    assert "is about chat: " in err
    assert "the drills about chat: " in err
    code, _, err = run("drill", "mixed.yaml", "--plan", "plan", "--replicas", "3")
    assert code == 2
    assert "the plan has 2 pools" in err
    assert planned["pools"]


def test_a_review_reads_a_plan_of_pools(run, planned) -> None:
    code, out, _ = run("review", "plan/plan.json", "--json")
    found = {finding["rule"]: finding["severity"] for finding in json.loads(out)["findings"]}
    assert code == (1 if "mistake" in found.values() else 0)
    # One replica may fail in each pool; the prices of both are the catalog's, and the log is somebody's.
    assert "reference-price" in found
    assert not found.keys() & {"no-rollout-room", "drawn-demand"}
    assert planned["pools"]


def test_what_surrounds_one_fleet_does_not_go_with_the_pools_of_a_plan(run, planned, folder) -> None:
    text = SCENARIO + "autoscaling: {policy: [queue], min: 1, max: 3}\n"
    (folder / "scaled.yaml").write_text(text)
    code, _, err = run("simulate", "scaled.yaml", "--plan", "plan")
    assert code == 2
    assert "is about one fleet, and plan has pools" in " ".join(err.split())
    assert planned["pools"]


def test_batch_and_users_go_with_the_pools_of_a_plan(run, planned, folder) -> None:
    some = "\n".join(log().splitlines()[:200]) + "\n"
    (folder / "some.csv").write_text(some)
    text = SCENARIO.replace("mixed.csv", "some.csv") + "batch: {takes: {share: 20%}}\nusers: {count: 20, think: 1s}\n"
    (folder / "lanes.yaml").write_text(text)
    code, out, _ = run("simulate", "lanes.yaml", "--plan", "plan", "-o", "lanes", "--json")
    assert code == 0
    batch = json.loads(out)["batch"]
    assert batch["request_count"] == batch["finished_count"] > 0
    assert planned["pools"]
