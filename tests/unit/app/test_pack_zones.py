"""Several scenarios on shared nodes in zones, end to end."""

import json
from pathlib import Path

import pytest

from tokenfleet.app.cli import main

SCENARIO = """\
name: {name}
workload: {{lengths: {{input: 1000, output: 200}}, mean_rate: {rate}, duration: 3min}}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {{ttft_p99: 2s, itl_p99: 100ms}}
gpus: [l40s]
precision: fp8
tensor_parallel: {tensor_parallel}
redundancy: {redundancy}
zones: {zones}
"""
SURVIVES = "{nodes: n+1, zones: n+1}"
LAME = "[{name: a, gpu_limit: 8}, {name: b, gpu_limit: 8}, {name: c, weights: false}]"


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([*arguments])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def write(name, rate, tensor_parallel, *, redundancy=SURVIVES, zones=LAME):
    text = SCENARIO.format(name=name, rate=rate, tensor_parallel=tensor_parallel, redundancy=redundancy, zones=zones)
    Path(f"{name}.yaml").write_text(text)


def said(text):
    return " ".join(text.split())


def test_a_lost_zone_leaves_every_pool_its_carrying_replicas(run):
    write("chat", 12, 2)
    write("search", 6, 1)
    code, out, err = run("pack", "chat.yaml", "search.yaml", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    (shared,) = found["nodes"]
    assert shared["proved"]
    # Each fills a zone alone; together they fit in both, and apart they would have no room.
    assert {zone["name"]: zone["gpu_count"] for zone in found["zones"]} == {"a": 8, "b": 8, "c": 0}
    assert shared["apart_node_count"] is None
    by_zone = {}
    for mix in shared["mixes"]:
        by_zone[mix["zone"]] = by_zone.get(mix["zone"], 0) + mix["node_count"]
    assert by_zone == {zone["name"]: zone["node_count"] for zone in found["zones"] if zone["node_count"]}
    for pool in shared["pools"]:
        assert pool["survives_zone"]
        assert sum(pool["by_zone"].values()) == pool["replica_count"]
        left = {loss["zones"][0]: loss["serving_replica_count"] for loss in pool["zone_losses"]}
        assert left == {zone: pool["replica_count"] - pool["by_zone"].get(zone, 0) for zone in ("a", "b", "c")}
        assert min(left.values()) >= pool["carrying_replica_count"]
    move = shared["failover"]
    assert move["replica_count"] < move["wanted_count"]
    assert move["more_node_count"] is None
    _, text, _ = run("pack", "chat.yaml", "search.yaml")
    labels = [line.split()[0] for line in text.splitlines() if not line.startswith(" ")]
    assert labels == ["Nodes", "Pools", "Move", "Zones", "Cost"]
    assert "apart they would have no room" in said(text)
    assert "a: 1 node, 8 GPUs of 8; lost, it leaves chat 3 of 6, search 2 of 4" in said(text)
    assert "c: nothing stands there" in said(text)
    assert "its zones have no GPUs left for all of them" in said(text)


def test_a_scenario_alone_stands_as_its_plan_has_it(run):
    """Nodes of replicas as large as a node: as few nodes are as few replicas."""
    write("chat", 30, 8, redundancy="{zones: n+1}", zones="[a, b, {name: c, ingress: false}]")
    Path("chat.yaml").write_text(Path("chat.yaml").read_text().replace("3min", "1min"))
    _, out, _ = run("pack", "chat.yaml", "--json")
    (shared,) = json.loads(out)["nodes"]
    (pool,) = shared["pools"]
    code, _, err = run("plan", "chat.yaml", "-o", "plan", "--quiet")
    assert (code, err) == (0, "")
    plan = json.loads(Path("plan/plan.json").read_text())
    assert pool["replica_count"] == sum(group["replica_count"] for group in plan["fleet"])
    stands = {}
    for node in plan["placement"]["nodes"]:
        stands[node["zone"]] = stands.get(node["zone"], 0) + node["replica_count"]
    assert pool["carrying_replica_count"] > 1
    assert pool["by_zone"] == stands
    (lost,) = [each for each in plan["redundancy"] if each.get("kind") == "zone"]
    assert min(loss["serving_replica_count"] for loss in pool["zone_losses"]) == lost["serving_replica_count"]
    assert pool["usd_per_hour"] == pool["usd_per_hour_alone"] == pytest.approx(plan["price_usd_per_hour"])


def test_no_room_is_an_answer_with_the_smallest_reason(run):
    write("chat", 12, 2)
    write("search", 12, 1)
    write("other", 2, 1)
    code, out, err = run("pack", "other.yaml", "chat.yaml", "search.yaml", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["nodes"] == []
    (crowd,) = found["no_room"]
    assert crowd["scenarios"] == ["chat", "search"]
    assert crowd["zones"] == [{"name": name, "gpu_limit_count": 8, "needed_gpu_count": 16} for name in ("a", "b")]
    assert set(found["infeasible"]) == {"chat", "search"}
    _, text, _ = run("pack", "other.yaml", "chat.yaml", "search.yaml")
    assert "chat and search have no room together, each has room without the other" in said(text)
    assert "gpu_limit: 16 in zone a and gpu_limit: 16 in zone b" in said(text)
    # Those limits do.
    roomier = LAME.replace("gpu_limit: 8", "gpu_limit: 16")
    for name, rate, size in (("chat", 12, 2), ("search", 12, 1), ("other", 2, 1)):
        write(name, rate, size, zones=roomier)
    _, out, _ = run("pack", "other.yaml", "chat.yaml", "search.yaml", "--json")
    assert len(json.loads(out)["nodes"][0]["pools"]) == 3


def test_whoever_has_no_room_alone_is_left_out(run):
    small = LAME.replace("{name: a, gpu_limit: 8}", "{name: a, gpu_limit: 7}")
    write("chat", 2, 1, zones=small)
    write("search", 2, 1, redundancy="{nodes: n+1}", zones="[{name: c, region: eu}]\ndata_region: eu")
    code, out, err = run("pack", "chat.yaml", "search.yaml")
    assert (code, err) == (0, "")
    assert "chat has no room: whole nodes that keep its promise whatever may be lost take 8 GPUs in zone a" in said(out)
    assert "x (1 search) in zone c" in said(out)
    write("chat", 2, 1, zones="[a, {name: b, weights: false}]")
    _, out, _ = run("pack", "chat.yaml", "search.yaml")
    assert "1 zone may be lost, and 1 zone can serve without the others" in said(out)


def test_what_a_scenario_says_of_nodes_and_its_quota_holds_here_too(run):
    def nodes(more, redundancy="{nodes: n+1}"):
        write("chat", 12, 2, redundancy=redundancy, zones="[]")
        text = Path("chat.yaml").read_text()
        Path("chat.yaml").write_text(f"{text}{more}")
        _, out, _ = run("pack", "chat.yaml", "--json")
        (shared,) = json.loads(out)["nodes"]
        (pool,) = shared["pools"]
        return shared["node_count"], pool["replica_count"]

    # Three carry: two nodes of three each, or one more where no more than two may stand on one, or five be held.
    assert nodes("") == (2, 6)
    assert nodes("", "{nodes: n+1, replicas_per_node: 2}") == (3, 5)
    assert nodes("autoscaling: {max: 5, gpu_quota: 10}\n") == (3, 5)
    code, out, _ = run("pack", "chat.yaml")
    assert code == 0
    assert "its zones or its quota have no GPUs left for all of them" in said(out)


DESK = """\
name: desk
workload: {lengths: {input: 1500:3000, output: 100:200}, mean_rate: 3, duration: 3min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s, itl_p99: 80ms}
gpus: [l40s]
precision: fp8
pools:
  rank: {model: BAAI/bge-reranker-v2-m3, gpu: l4, precision: bf16}
  main: {tensor_parallel: 2}
chain: {steps: [{pool: rank, input: 300, calls: 10}]}
redundancy: {zones: n+1}
zones: [a, {name: b, gpu_limit: 16}]
"""


def test_every_pool_of_a_scenario_survives_and_limits_hold_for_all_gpus(run):
    Path("desk.yaml").write_text(DESK)
    code, out, err = run("pack", "desk.yaml", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    pools = {pool["name"]: pool for shared in found["nodes"] for pool in shared["pools"]}
    assert set(pools) == {"desk.rank", "desk.main"}
    assert all(pool["survives_zone"] and set(pool["by_zone"]) == {"a", "b"} for pool in pools.values())
    # A node of 8 L40S and one of 8 L4 stand in each zone.
    counts = {shared["gpu"]: shared["gpus_per_node_count"] for shared in found["nodes"]}
    assert {zone["gpu_count"] for zone in found["zones"]} == {sum(counts.values())}
    Path("desk.yaml").write_text(DESK.replace("gpu_limit: 16", f"gpu_limit: {sum(counts.values()) - 1}"))
    _, out, _ = run("pack", "desk.yaml", "--json")
    (crowd,) = json.loads(out)["no_room"]
    assert crowd["zones"][0]["needed_gpu_count"] == sum(counts.values())
    Path("desk.yaml").write_text(DESK.replace("{name: b, gpu_limit: 16}", "{name: b, ingress: false}"))
    _, out, _ = run("pack", "desk.yaml")
    assert "b without weights or ingress of its own does not count" in said(out)
