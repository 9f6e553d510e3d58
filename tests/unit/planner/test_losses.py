import re
from dataclasses import replace

import pytest

from tokenfleet import workload
from tokenfleet.domain.survival import Redundancy, Rollout, Zone
from tokenfleet.planner import cheapest, plan, plan_document
from tokenfleet.planner.redundancy import zones_without_replicas
from unit.planner import toy

pytestmark = pytest.mark.usefixtures("toy_world")

PRICES = [toy.price("h100_sxm", 3.0)]
ABC = (Zone(name="a"), Zone(name="b"), Zone(name="c"))
TRACE = toy.trace(count=600, rate=40.0)
BUSY = toy.trace(count=1500, rate=100.0)


def question(redundancy=None, **more):
    asked = toy.question([toy.replica(slots=16, tensor_parallel=2)], PRICES, **more)
    return asked if redundancy is None else replace(asked, redundancy=redundancy)


def by_kind(made):
    return {case.kind: case for case in made.losses}


def test_each_loss_is_judged_by_the_replay_of_what_is_left():
    made = plan(question(Redundancy(node_count=1, zone_count=1, zones=ABC)), TRACE)
    cases = by_kind(made)
    carrying = made.chosen.carrying_count
    for kind in ("replica", "node", "zone"):
        assert cases[kind].required
        assert cases[kind].kept
        assert cases[kind].serving_replica_count >= carrying
        assert all(result.kept for result in cases[kind].slo_peak)
    assert cases["zone"].lost == "zone a"
    assert made.placement.replica_count == made.chosen.replica_count
    # One carrying replica fewer would have broken it: that is what the border of the search means.
    assert plan(question(spare=0), TRACE).chosen.carrying_count == carrying


def test_spare_lines_are_those_of_the_bill():
    made = plan(question(Redundancy(node_count=1, zone_count=1, zones=ABC)), TRACE)
    assert sum(case.spare_replica_count for case in made.losses) == made.chosen.spare_count
    paid = sum(case.spare_usd_per_hour for case in made.losses)
    assert paid == pytest.approx(made.bill.spare_usd_per_hour)
    only = plan(question(), TRACE)
    assert [case.spare_replica_count for case in only.losses] == [1, 0, 0, 0, 0]


def test_what_nobody_asked_for_is_examined_and_may_break():
    made = plan(question(), TRACE)
    node = by_kind(made)["node"]
    assert made.chosen.replica_count <= 4
    assert (node.required, node.kept, node.why) == (False, False, "all replicas stand on one node")
    zone = by_kind(made)["zone"]
    assert (zone.kept, zone.why) == (None, "no zones are named")
    assert [case.kind for case in plan(replace(question(), first_look=True), TRACE).losses] == ["replica"]


def test_a_lost_node_that_leaves_too_few_is_said_to_break_the_promise():
    spread = plan(question(Redundancy(replicas_per_node_count=2), spare=0), BUSY)
    node = by_kind(spread)["node"]
    assert node.serving_replica_count == spread.chosen.replica_count - 2
    assert node.kept is False
    assert any(not result.kept for result in node.slo_peak)


def test_too_few_zones_is_an_answer_with_what_to_change():
    lame = (Zone(name="a"), Zone(name="b", ingress=False))
    made = plan(question(Redundancy(zone_count=1, zones=lame)), TRACE)
    assert made.chosen is None
    (reason,) = made.reasons
    assert reason.kind == "redundancy"
    assert "b without weights or ingress" in reason.text
    assert re.match(
        r"weights and ingress in 2 zones \(\d+ replicas? of .*\)   or   redundancy: {zones: none} \(\d+ replicas?",
        reason.relax,
    )
    mended = tuple(replace(zone, ingress=True) for zone in lame)
    named = [int(count) for count in re.findall(r"\((\d+) replica", reason.relax)]
    relaxed = Redundancy(zone_count=1, zones=mended), Redundancy(zones=lame)
    assert named == [plan(question(each), TRACE).chosen.replica_count for each in relaxed]
    assert cheapest(question(Redundancy(zone_count=1, zones=lame)), TRACE).sized is None


def test_zones_that_hold_no_replica_are_named_and_why():
    home = (Zone(name="a"), Zone(name="b"), Zone(name="c", ingress=False))
    bound = Redundancy(zone_count=1, zones=home, elsewhere=("d", "e"), data_region="eu")
    made = plan(question(bound), TRACE)
    assert {node.zone for node in made.placement.nodes} == {"a", "b"}
    said = [line for line in made.assumptions if line.startswith("Zone")]
    assert said == [
        "Zones d, e: no replica stands there, as the data must not leave eu.",
        "Zone c: no replica stands there, as without weights and ingress of its own none serves when the others are "
        "gone.",
    ]
    # Where no zone has to be survivable, the third holds replicas like any other.
    assert not zones_without_replicas(Redundancy(zones=home))
    (reason,) = plan(question(replace(bound, zones=home[1:])), TRACE).reasons
    assert "(c without weights or ingress of its own does not count; d, e outside of eu do not)" in reason.text
    assert reason.relax.startswith("weights and ingress in 2 zones of eu (")


def test_no_fleet_takes_more_gpus_than_the_quota():
    free = plan(question(Redundancy()), BUSY).chosen
    enough = plan(question(Redundancy(gpu_quota_count=free.gpu_count)), BUSY)
    assert enough.chosen.replica_count == free.replica_count
    less = plan(question(Redundancy(gpu_quota_count=free.gpu_count - 1)), BUSY)
    assert less.chosen is None
    assert less.reasons[0].kind == "redundancy"
    assert f"The quota of {free.gpu_count - 1} GPUs holds no more than {free.replica_count - 2} replica" in (
        less.reasons[0].text
    )
    # The quota named is the one with which there is a plan.
    assert less.reasons[0].relax.startswith(f"gpu_quota: {free.gpu_count} ({free.replica_count} replicas")
    assert not plan_document(less, workload.profile(BUSY), {})["feasible"]
    # And with the quota as it is, a part of the demand, or less of a promise.
    _, looser, *_, thinner = less.reasons[0].relax.split("   or   ")
    part = int(re.search(r"may be had, serve (\d+)% of this demand", thinner)[1]) / 100
    kept = Redundancy(gpu_quota_count=free.gpu_count - 1)
    assert plan(question(kept), workload.grow(BUSY, part)).chosen.gpu_count <= free.gpu_count - 1
    assert plan(question(kept), workload.grow(BUSY, min(0.99, 1.15 * part))).chosen is None
    assert "may be had, ttft_p" in looser


def test_a_quota_is_kept_by_another_fleet_where_one_fits():
    small = toy.replica(slots=16, tensor_parallel=2)
    large = toy.replica(gpu="h200_sxm", slots=64, tensor_parallel=2)
    prices = [*PRICES, toy.price("h200_sxm", 30.0)]
    asked = toy.question([small, large], prices)
    cheapest_gpus = plan(asked, BUSY).chosen.gpu_count
    held = replace(asked, redundancy=Redundancy(gpu_quota_count=cheapest_gpus - 1))
    made = plan(held, BUSY)
    assert made.chosen.replica.deployment.gpu == "h200_sxm"
    assert made.chosen.gpu_count <= cheapest_gpus - 1


def test_a_quota_below_any_fleet_names_the_one_that_would_do():
    made = plan(question(Redundancy(gpu_quota_count=3)), BUSY)
    assert made.chosen is None
    (reason,) = made.reasons
    assert reason.text.startswith("The quota of 3 GPUs does not hold one replica of 2 x h100_sxm")
    wanted = int(reason.relax.split()[1])
    assert plan(question(Redundancy(gpu_quota_count=wanted)), BUSY).chosen is not None
    assert plan(question(Redundancy(gpu_quota_count=wanted - 1)), BUSY).chosen is None


def test_what_stands_in_the_way_is_the_room_where_more_of_it_is_enough():
    free = plan(question(Redundancy()), BUSY).chosen
    # Holds all but two requests, and comes nearest of all where nobody counts gpus.
    inputs = BUSY.input_tokens.copy()
    inputs[700:702] = 2_500
    uneven = replace(BUSY, input_tokens=inputs)
    short = toy.replica(slots=16, tensor_parallel=2, precision="fp8", block_count=150)
    assert short.longest_sequence_tokens < 2_500 < toy.replica().longest_sequence_tokens
    asked = toy.question([short, toy.replica(slots=16, tensor_parallel=2)], PRICES)
    made = plan(replace(asked, redundancy=Redundancy(gpu_quota_count=free.gpu_count - 1)), uneven)
    assert made.chosen is None
    assert made.reasons[0].text.startswith(f"The quota of {free.gpu_count - 1} GPUs holds no more than")
    assert made.reasons[0].relax.startswith(f"gpu_quota: {free.gpu_count} (")
    assert not any("longer than" in reason.text for reason in made.reasons)


def test_a_quota_counts_beside_zones():
    zones = Redundancy(zone_count=1, zones=ABC)
    total = plan(question(zones), BUSY).chosen.gpu_count
    assert plan(question(replace(zones, gpu_quota_count=total)), BUSY).chosen.gpu_count == total
    full = plan(question(replace(zones, gpu_quota_count=total - 1)), BUSY)
    assert full.chosen is None
    assert f"gpu_quota: {total}" in full.reasons[0].relax


def test_zones_that_are_full_leave_no_fleet():
    small = tuple(replace(zone, gpu_limit_count=2) for zone in ABC)
    asked = question(Redundancy(zone_count=1, zones=small))
    assert plan(asked, TRACE).chosen.replica_count == 3
    made = plan(asked, BUSY)
    assert made.chosen is None
    assert made.reasons[0].kind == "redundancy"
    assert "no room for more than 2 replicas" in made.reasons[0].text
    assert not any("can replay" in reason.text for reason in made.reasons)
    # The limits named are those with which the plan is found.
    limits = {
        text.split(" in zone ")[1][0]: int(text.split()[1])
        for text in re.findall(r"gpu_limit: \d+ in zone .", made.reasons[0].relax)
    }
    roomier = tuple(replace(zone, gpu_limit_count=limits.get(zone.name, 2)) for zone in ABC)
    found = plan(question(Redundancy(zone_count=1, zones=roomier)), BUSY)
    room, *in_room = made.reasons[0].relax.split("   or   ")
    assert in_room
    assert all(each.startswith("with the GPUs that may be had, ") for each in in_room)
    assert found.chosen.replica_count == int(room.split("(")[1].split(" ")[0])
    tighter = tuple(replace(zone, gpu_limit_count=max(2, limits.get(zone.name, 2) - 2)) for zone in ABC)
    assert plan(question(Redundancy(zone_count=1, zones=tighter)), BUSY).chosen is None


def test_two_full_replicas_are_not_one_and_a_spare():
    made = plan(question(spare=0), TRACE)
    replica = by_kind(made)["replica"]
    assert (replica.required, replica.kept) == (False, False)


def test_a_rollout_says_what_it_takes():
    asked = replace(question(), rollout=Rollout(max_surge_count=1, max_unavailable_count=1, ready_after_s=300.0))
    rollout = by_kind(plan(asked, TRACE))["rollout"]
    total = rollout.serving_replica_count + 1
    assert rollout.lasts_s == -(-total // 2) * 300.0
    assert rollout.kept
    assert "no other may fail meanwhile" in rollout.why
    assert "2 GPUs" in rollout.why
    waiting = by_kind(plan(question(), TRACE))["rollout"]
    assert waiting.lasts_s is None
    assert "1 may fail meanwhile" in waiting.why


def test_a_part_of_the_demand_pays_for_the_losses_of_the_whole():
    asked = question(Redundancy(node_count=1))
    part = plan(asked, TRACE)
    whole = plan(replace(asked, stands_for_count=5), TRACE)
    assert whole.chosen.carrying_count == 5 * part.chosen.carrying_count
    assert by_kind(whole)["node"].serving_replica_count >= whole.chosen.carrying_count
    assert whole.chosen.spare_count < 5 * part.chosen.spare_count
    assert whole.bill.total_usd_per_hour == pytest.approx(whole.chosen.price_usd_per_hour)


def test_machines_read_every_loss():
    made = plan(question(Redundancy(node_count=1, zone_count=1, zones=ABC)), TRACE)
    document = plan_document(made, workload.profile(TRACE), {})
    cases = {case["kind"]: case for case in document["redundancy"] if "kind" in case}
    assert list(cases) == ["replica", "node", "zone", "maintenance", "rollout"]
    assert cases["zone"]["scenario"] == "zone a gone"
    assert all(case["kept"] for case in cases.values())
    placed = [(node["zone"], node["replica_count"]) for node in document["placement"]["nodes"]]
    assert placed == [("a", 1), ("b", 1), ("c", 1)]


def test_a_lost_node_costs_one_replica_where_nodes_are_rented_in_part():
    asked = question(Redundancy(node_count=1))
    thin, full = plan(asked, TRACE), plan(question(Redundancy(node_count=1, replicas_per_node_count=4)), TRACE)
    assert thin.chosen.spare_count == 1
    assert full.chosen.spare_count > 1
    (said,) = [line for line in thin.assumptions if line.startswith("Nodes are rented in part")]
    assert f"it takes {full.chosen.replica_count} replicas: redundancy: {{replicas_per_node: 4}}" in said
    assert not any(line.startswith("Nodes are rented in part") for line in full.assumptions)
