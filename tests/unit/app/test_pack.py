"""Several scenarios on shared nodes, end to end."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tokenfleet.app.cli import main
from tokenfleet.app.pack_ways import _part
from tokenfleet.app.pool_sizes import size_pools
from tokenfleet.app.scenario import load_scenario
from tokenfleet.planner import cheapest, spare_replicas
from tokenfleet.planner.placement import placed, survivors
from tokenfleet.planner.redundancy import asked as asked_losses
from unit.planner import toy
from unit.planner.conftest import toy_world  # noqa: F401 - a fixture

SCENARIO = """\
name: {name}
workload: {{lengths: {{input: 1000, output: 200}}, mean_rate: {rate}, duration: 3min}}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {{ttft_p99: 2s, itl_p99: 100ms}}
gpus: [l40s]
precision: fp8
tensor_parallel: {tensor_parallel}
redundancy: {{nodes: n+1}}
"""


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, rate, size in (("chat", 12, 2), ("search", 6, 1)):
        Path(f"{name}.yaml").write_text(SCENARIO.format(name=name, rate=rate, tensor_parallel=size))

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["pack", *arguments])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def test_nodes_are_shared_and_their_bill_is_split(run):
    code, out, err = run("chat.yaml", "search.yaml", "--json")
    assert (code, err) == (0, "")
    (shared,) = json.loads(out)["nodes"]
    assert shared["proved"] is True
    assert shared["node_count"] <= shared["apart_node_count"]
    held = sum(pool["replica_count"] * pool["gpu_count_per_replica"] for pool in shared["pools"])
    assert held + shared["free_gpu_count"] == shared["node_count"] * shared["gpus_per_node_count"]
    assert sum(pool["usd_per_hour"] for pool in shared["pools"]) == pytest.approx(shared["usd_per_hour"])
    assert all(pool["survives_node"] for pool in shared["pools"])
    in_mixes = sum(mix["node_count"] * mix["replicas"].get("chat", 0) for mix in shared["mixes"])
    assert in_mixes == shared["pools"][0]["replica_count"]
    assert shared["failover"]["pool"] == "chat"
    _, said, _ = run("chat.yaml", "search.yaml")
    labels = [line.split()[0] for line in said.splitlines() if not line.startswith(" ")]
    assert labels == ["Nodes", "Pools", "Move", "Cost"]
    assert "shares nodes with search" in said


def test_what_leaves_the_hottest_pool_no_room_is_named(run):
    text = Path("chat.yaml").read_text()
    Path("chat.yaml").write_text(text.replace("{nodes: n+1}", "{nodes: n+1, replicas_per_node: 1}"))
    move = json.loads(run("chat.yaml", "--json")[1])["nodes"][0]["failover"]
    assert (move["replica_count"], move["held_by"]) == (0, ["replicas_per_node"])
    assert move["wanted_count"] > 0
    said = " ".join(run("chat.yaml")[1].split())
    assert "what leaves no more room is replicas_per_node (1 at most on a node)" in said


def test_two_nodes_may_be_lost_at_once(run):
    text = SCENARIO.format(name="wide", rate=6, tensor_parallel=1).replace("nodes: n+1", "nodes: n+2")
    Path("wide.yaml").write_text(text)
    code, out, err = run("wide.yaml", "chat.yaml", "--json")
    assert (code, err) == (0, "")
    (shared,) = json.loads(out)["nodes"]
    wide = shared["pools"][0]
    held = sorted(mix["replicas"].get("wide", 0) for mix in shared["mixes"] for _ in range(mix["node_count"]))
    assert len(held) > 2
    assert sum(held[:-2]) >= wide["carrying_replica_count"]
    assert wide["survives_node"]
    assert f"2 lost nodes take {sum(held[-2:])} and it keeps its promise" in " ".join(
        run("wide.yaml", "chat.yaml")[1].split()
    )


def test_zones_of_which_two_say_different_things_are_refused(run):
    text = SCENARIO.format(name="wide", rate=6, tensor_parallel=1)
    Path("wide.yaml").write_text(f"{text}zones: [{{name: a, gpu_limit: 8, region: eu}}, b]\n")
    other = Path("chat.yaml").read_text()
    Path("chat.yaml").write_text(f"{other}zones: [{{name: a, gpu_limit: 16, region: us}}]\n")
    code, out, err = run("wide.yaml", "search.yaml", "chat.yaml")
    assert (code, out) == (2, "")
    said = " ".join(err.split())
    assert "zones: wide gives zone a a gpu_limit of 8, chat a gpu_limit of 16; say the same gpu_limit in both" in said
    assert "zones: wide gives zone a the region eu, chat the region us" in said


def test_replicas_that_ride_through_a_loss_come_along(toy_world):  # noqa: F811 - the fixture, not the import
    asked = toy.question([toy.replica()], [toy.price("h100_sxm", 3.0)])
    for more in ({}, {"node_count": 1}):
        question = replace(asked, redundancy=replace(asked.redundancy, ride_through=True, **more))
        found = cheapest(question, toy.trace(count=600, rate=40.0)).sized
        usual = spare_replicas(question, found.replica, found.carrying_count)
        for riding in (0, 3):
            part = _part(question, "chat", "chat", replace(found, spare_count=usual + riding))
            assert part.spare_count == question.spare_replica_count
            assert part.alone_count == found.carrying_count + usual + riding
            stands = placed(part.alone_count, found.replica, asked_losses(question))
            kinds = ("replica", *(["node"] if more else []))
            left = min(survivors(stands, kind, 1) for kind in kinds)
            # Where nobody had to buy more, what carries is enough.
            assert part.more_left_count == (left - found.carrying_count if riding else 0)
            assert (part.more_left_count > 0) == (riding > 0)


def test_an_isolated_scenario_shares_with_nobody(run):
    _, out, _ = run("chat.yaml", "search.yaml", "--isolate", "chat", "--json")
    (shared,) = json.loads(out)["nodes"]
    assert [pool["neighbours"] for pool in shared["pools"]] == [[], []]
    assert shared["node_count"] == shared["apart_node_count"]


def test_what_cannot_be_packed_is_said(run):
    code, _, err = run("chat.yaml", "chat.yaml")
    assert code == 2
    assert "chat stands for several scenarios" in err
    code, _, err = run("chat.yaml", "--isolate", "premium")
    assert code == 2
    assert "no scenario or pool is called premium; there are chat" in " ".join(err.split())
    Path("hasty.yaml").write_text(Path("chat.yaml").read_text().replace("2s", "1ms").replace("chat", "hasty"))
    code, out, _ = run("hasty.yaml", "search.yaml")
    assert code == 0
    assert "hasty: no fleet keeps its promise" in " ".join(out.split())


def test_scenarios_are_planned_together(run):
    for name in ("chat", "search"):
        text = (
            Path(f"{name}.yaml")
            .read_text()
            .replace("[l40s]", "[l40s, h100_sxm]")
            .replace("mean_rate: 12", "mean_rate: 3")
        )
        Path(f"{name}.yaml").write_text(text)
    code, out, _ = run("chat.yaml", "search.yaml", "--json")
    assert code == 0
    found = json.loads(out)
    pools = {pool["name"]: (shared["gpu"], pool) for shared in found["nodes"] for pool in shared["pools"]}
    assert set(pools) == {"chat", "search"}
    assert found["usd_per_hour"] <= found["alone_usd_per_hour"]
    moved = [name for name, (gpu, pool) in pools.items() if gpu != pool["gpu_alone"]]
    assert bool(moved) == (found["usd_per_hour"] < found["alone_usd_per_hour"] - 0.01)
    for shared in found["nodes"]:
        move = shared["failover"]
        more = move["wanted_count"] - move["replica_count"]
        assert (move["more_node_count"] > 0) == (more > 0)
    assert run("chat.yaml", "search.yaml", "--json", "--no-cache")[1] == out


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
"""


def test_pools_on_the_same_gpus_are_one_on_nodes(run, tmp_path):
    shared = DESK.replace("gpu: l4, precision: bf16", "beside: main, memory_share: 10%, precision: bf16")
    Path("desk.yaml").write_text(shared.replace("{tensor_parallel: 2}", "{memory_share: 80%}"))
    code, out, err = run("desk.yaml", "search.yaml", "--isolate", "desk.main+rank", "--json")
    assert (code, err) == (0, "")
    pools = {pool["name"]: pool for nodes in json.loads(out)["nodes"] for pool in nodes["pools"]}
    assert set(pools) == {"desk.main+rank", "search"}
    assert pools["desk.main+rank"]["neighbours"] == []
    assert pools["desk.main+rank"]["carrying_replica_count"] == sizes_of(tmp_path)["main"]


def test_pools_of_a_scenario_stand_beside_other_models(run, tmp_path):
    Path("desk.yaml").write_text(DESK)
    code, out, err = run("desk.yaml", "search.yaml", "--json")
    assert (code, err) == (0, "")
    by_gpu = {shared["gpu"]: shared for shared in json.loads(out)["nodes"]}
    pools = {pool["name"]: pool for shared in by_gpu.values() for pool in shared["pools"]}
    assert set(pools) == {"desk.rank", "desk.main", "search"}
    assert [pool["name"] for pool in by_gpu["l4"]["pools"]] == ["desk.rank"]
    assert pools["desk.rank"]["model"] == "BAAI/bge-reranker-v2-m3"
    assert pools["desk.main"]["neighbours"] == ["search"]
    sized = sizes_of(tmp_path)
    assert {name: pools[f"desk.{name}"]["carrying_replica_count"] for name in sized} == sized
    _, out, _ = run("desk.yaml", "search.yaml", "--isolate", "desk.main", "--json")
    alone = {pool["name"]: pool for shared in json.loads(out)["nodes"] for pool in shared["pools"]}
    assert alone["desk.main"]["neighbours"] == []
    _, said, _ = run("desk.yaml", "search.yaml")
    assert "desk.main: " in said


def sizes_of(folder):
    found = size_pools(load_scenario(folder / "desk.yaml"), Silent())
    return {pool.named.name: pool.carrying_count for pool in found.pools}


class Silent:
    def say(self, text: str) -> None: ...

    def step(self, step, /) -> None: ...

    def announce(self, text: str) -> None: ...


def test_pools_that_come_and_go_are_not_packed(run):
    Path("desk.yaml").write_text(DESK.replace("main: {tensor_parallel: 2}", "main: {autoscaling: {min: 1, max: 2}}"))
    code, _, err = run("desk.yaml", "search.yaml")
    assert code == 2
    # Of several scenarios, the one whose it is.
    assert "desk.yaml:" in err
    assert "pools.main: changes how many replicas run" in " ".join(err.split())
    Path("desk.yaml").write_text(DESK.replace("ttft_p95: 2s", "ttft_p95: 1ms"))
    code, out, _ = run("desk.yaml", "search.yaml")
    assert code == 0
    assert "no counts of its pools that were tried keep ttft_p95" in " ".join(out.split())
