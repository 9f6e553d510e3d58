"""Pools that a scenario names, each of which has room in the zones, and not all of them at once."""

import json

import pytest

from commands import ended
from unit.app.named_pools import shared

ZONES = """\
name: crowd
workload: {lengths: {input: 900:2500, output: 60:120}, mean_rate: 8, duration: 60s}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 1s}
gpus: l40s
precision: fp8
zones: [{name: a, gpu_limit: LIMIT}, {name: b, gpu_limit: LIMIT}]
redundancy: {zones: n+1}
pools:
  small: {model: Qwen/Qwen3-0.6B, takes: {input_up_to: 500}}
  main: {max_batched_tokens: 2048}
"""


def answered(capsys, folder, limit: int, command: str, *options: str) -> tuple[int, str, str]:
    path = folder / "it.yaml"
    path.write_text(ZONES.replace("LIMIT", str(limit)))
    return ended(capsys, command, path, *options, "--quiet")


def test_sizes_have_no_room_where_the_plan_has_none(capsys, tmp_path) -> None:
    code, out, _ = answered(capsys, tmp_path, 8, "size", "--json")
    sized = json.loads(out)
    half = sized["gpu_count"] // 2
    assert code == 0
    # Each pool alone has room in zones that hold half of all, less one; together they have not.
    code, out, err = answered(capsys, tmp_path, half - 1, "size")
    said = " ".join(err.split())
    assert (code, out) == (2, "")
    assert (
        f"it.yaml:7: zones: the pools have no room: they take {half} GPUs of zone a, which has {half - 1}, and "
        f"{half} GPUs of zone b, which has {half - 1}; gpu_limit: {half} in zone a and gpu_limit: {half} in zone b"
        in said
    )
    code, out, _ = answered(capsys, tmp_path, half - 1, "plan", "-o", str(tmp_path / "plan"))
    assert f"they take {half} GPUs of zone a, which has {half - 1}" in " ".join(out.split())
    assert f"gpu_limit: {half} in zone a and gpu_limit: {half} in zone b" in " ".join(out.split())
    assert answered(capsys, tmp_path, half, "size")[0] == 0


def test_a_quota_holds_for_all_pools_together(capsys, tmp_path) -> None:
    usual = ZONES.replace("[{name: a, gpu_limit: LIMIT}, {name: b, gpu_limit: LIMIT}]", "[a, b]")
    path = tmp_path / "it.yaml"

    def asked(command: str, *options: str, quota: int | None) -> tuple[int, str, str]:
        path.write_text(usual + ("" if quota is None else f"gpu_quota: {quota}\n"))
        return ended(capsys, command, path, *options, "--quiet")

    total = json.loads(asked("size", "--json", quota=None)[1])["gpu_count"]
    assert json.loads(asked("size", "--json", quota=total)[1])["gpu_count"] == total
    few = f"they take {total} GPUs, and the quota is {total - 1}"
    code, _, err = asked("size", quota=total - 1)
    assert code == 2
    assert f"gpu_quota: the pools have no room: {few}; gpu_quota: {total}, or" in " ".join(err.split())
    out = tmp_path / "plan"
    assert few in " ".join(asked("plan", "-o", str(out), quota=total - 1)[1].split())
    asked("plan", "-o", str(out), quota=total)
    plan = json.loads((out / "plan.json").read_text())
    assert [pool["obtainable"]["allowed_gpu_count"] for pool in plan["pools"]] == [total, total]


UNEVEN = """\
name: uneven
workload: {lengths: {input: 900:2500, output: 60:120}, mean_rate: 8, duration: 60s}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 1s}
gpus: l40s
precision: fp8
zones: [{name: a, gpu_limit: 4}, {name: b, gpu_limit: 2}, {name: c, gpu_limit: 2}]
redundancy: {zones: n+1}
events: []
pools:
  small: {tensor_parallel: 2, takes: {input_up_to: 500}}
  main: {tensor_parallel: 2, max_batched_tokens: 2048}
"""
"""Two pools of two replicas, each of two GPUs: each on its own stands in a and b, and b has room for one."""


def test_pools_stand_in_uneven_zones_all_at_once_and_where_the_plan_says(capsys, tmp_path) -> None:
    path = tmp_path / "it.yaml"
    path.write_text(UNEVEN)
    code, out, _ = ended(capsys, "size", path, "--json", "--quiet")
    assert (code, json.loads(out)["gpu_count"]) == (0, 8)
    code, out, _ = ended(capsys, "plan", path, "-o", str(tmp_path / "plan"), "--json", "--quiet", "--no-cache")
    pools = json.loads(out)["pools"]
    stand = {pool["name"]: [node["zone"] for node in pool["placement"]["nodes"]] for pool in pools}
    assert stand == {"small": ["a", "b"], "main": ["a", "c"]}
    for pool in pools:
        (lost,) = [case for case in pool["redundancy"] if case.get("kind") == "zone"]
        assert (lost["serving_replica_count"], lost["kept"]) == (1, True)
        assert pool["obtainable"]["allowed_gpu_count"] == 8
    drills = ("drill", path, "--plan", str(tmp_path / "plan"), "--only", "zone", "--json", "--quiet")
    (drill,) = json.loads(ended(capsys, *drills)[1])["drills"]
    # Zone a holds one replica of each.
    assert drill["passed"]
    assert drill["how"].startswith("1 replica of small, 1 replica of main and ")


@pytest.mark.parametrize(("pool", "zone", "other"), [("small", "b", "c"), ("main", "c", "b")])
def test_a_simulated_zone_holds_the_replicas_that_a_plan_puts_there(capsys, tmp_path, pool, zone, other) -> None:
    path = tmp_path / "it.yaml"
    counts = UNEVEN.replace("tensor_parallel: 2,", "tensor_parallel: 2, replicas: 2,")

    def simulated(where: str) -> tuple[int, str, str]:
        path.write_text(counts.replace("events: []", f"events: [{{at: 5s, what: fail, zone: {where}, pool: {pool}}}]"))
        return ended(capsys, "simulate", path, "-o", str(tmp_path / f"at-{where}"), "--quiet")

    assert simulated("a")[0] == simulated(zone)[0] == 0
    code, _, err = simulated(other)
    assert (code, f'no replica stands in a zone called "{other}"' in " ".join(err.split())) == (2, True)


@pytest.mark.parametrize("limit", [3, 1000])
def test_an_event_is_not_carried_by_replicas_for_which_there_is_no_room(capsys, tmp_path, limit) -> None:
    options = ("--at", "10s", "--duration", "30s", "--factor", "4")
    code, out, _ = answered(capsys, tmp_path, limit, "spike", *options, "--json")
    found = json.loads(out)
    needed = [pool["needed"] for pool in found["pools"]]
    assert code == 0
    if limit == 1000:
        assert sum(each["replica_count"] for each in needed) > 2 * 3
        return
    assert needed == [None, None]
    said = " ".join(answered(capsys, tmp_path, limit, "spike", *options)[1].split())
    assert "no numbers of these replicas keep the promise through it Replicas that would carry it (1 of small, " in said
    assert said.count("have no room with their spare ones: ") == 1
    assert "Not even" not in said


def test_a_tier_is_not_served_by_replicas_for_which_there_is_no_room(capsys, tmp_path) -> None:
    options = ("--share", "20%", "--promise", "ttft_p95=500ms")
    code, out, _ = answered(capsys, tmp_path, 1000, "tiers", *options, "--json")
    own = json.loads(out)["options"][0]
    code, out, _ = answered(capsys, tmp_path, own["replica_count"] // 2 - 1, "tiers", *options)
    said = " ".join(out.split())
    assert code == 0
    assert "own: replicas of its own, with spare ones of its own; no room for what keeps both promises" in said
    assert "The pools have no room: they take" in said


def test_sizes_say_where_a_key_stands_that_they_do_not_take(capsys, tmp_path) -> None:
    path = tmp_path / "it.yaml"
    path.write_text(ZONES.replace("LIMIT", "8").replace("{max_batched_tokens: 2048}", "{autoscaling: {max: 3}}"))
    code, out, err = ended(capsys, "size", path)
    assert (code, out) == (2, "")
    assert "it.yaml:11: pools.main: changes how many replicas run" in " ".join(err.split())


def test_one_replica_is_emptier_for_being_whole(capsys, tmp_path) -> None:
    words = " ".join(answered(capsys, tmp_path, 8, "size")[1].split())
    assert "small comes out lower than main: replicas come whole, and one is the fewest there are" in words


def test_where_all_share_gpus_nothing_is_said_of_how_full_each_would_be(capsys, tmp_path) -> None:
    path = tmp_path / "shared.yaml"
    path.write_text(shared("mean_rate: 4, duration: 30s"))
    code, out, _ = ended(capsys, "size", path, "--quiet")
    assert code == 0
    assert "Full" not in out
    assert "\n\n" not in out


def test_what_all_pools_take_for_granted_is_said_once(capsys, tmp_path) -> None:
    path = tmp_path / "it.yaml"
    path.write_text(ZONES.replace("{name: b, gpu_limit: LIMIT}", "b, {name: c, weights: false}").replace("LIMIT", "64"))
    out = tmp_path / "plan"
    assert ended(capsys, "plan", path, "-o", str(out), "--quiet")[0] == 0
    assumed = json.loads((out / "plan.json").read_text())["assumptions"]
    assert len([line for line in assumed if line.startswith("Zone c: no replica stands there")]) == 1
    assert len(assumed) == len(set(assumed))
