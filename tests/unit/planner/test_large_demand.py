"""Demand that is too large to replay, and fleets that there is no memory for."""

from dataclasses import replace

import pytest

from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.planner import cheapest, plan, room
from unit.planner import toy

pytestmark = pytest.mark.usefixtures("toy_world")

PRICES = [toy.price("h100_sxm", 3.0)]


def test_the_room_is_that_of_the_buffer_the_simulator_lays_out():
    from tokenfleet.simulator.placing import place

    replica, trace = toy.replica(slots=256), toy.trace()
    fleet = Fleet(groups=(ReplicaGroup(replica=replica, replica_count=100),), router="round_robin")
    each = room.replica_bytes(trace, replica)
    assert 100 * each == pytest.approx(place(trace, fleet).words * 8, rel=0.1)
    assert room.most_replicas(trace, replica) == room.ROOM_BYTES // each


def test_a_count_without_memory_is_a_reason_and_is_never_replayed(monkeypatch):
    replica = toy.replica(slots=4)
    trace = toy.trace(count=600, rate=40.0)
    enough = plan(toy.question([replica], PRICES), trace).chosen.carrying_count
    most = enough - 2
    monkeypatch.setattr(room, "ROOM_BYTES", most * room.replica_bytes(trace, replica))
    asked = []
    from tokenfleet import simulator

    def replay(trace, fleet, **how):
        asked.append(fleet.groups[0].replica_count)
        return toy.replay(trace, fleet, **how)

    monkeypatch.setattr(simulator, "replay", replay)
    made = plan(toy.question([replica], PRICES), trace)
    assert made.chosen is None
    assert max(asked) == most
    (out,) = made.rejected
    assert out.reasons[0].kind == "capacity"
    assert f"More than {most} replicas" in out.reasons[0].text
    assert "exceed what this machine can replay" in out.reasons[0].text
    (told, *_) = made.reasons
    assert told.relax.startswith("plan for a part of this demand"), "no promise is named that more replicas would beat"


def test_what_memory_stops_is_not_planned_in_parts_where_more_replicas_would_not_help(monkeypatch):
    replica = toy.replica(slots=4)
    trace = toy.trace(count=600, rate=40.0)
    monkeypatch.setattr(room, "ROOM_BYTES", 60 * room.replica_bytes(trace, replica))
    # The longest of 600 prompts takes more than 19 ms alone, the longest of 60 may not.
    asked = toy.question([replica], PRICES, promise=toy.slo(ttft=0.0199, quantile=1.0))
    made = plan(asked, trace)
    assert made.chosen is None
    for change in made.reasons[0].relax.split("   or   "):
        assert "part of this demand" not in change
    limit = float(made.reasons[0].relax.split("ttft_p100 >= ")[1].split(" ")[0])
    assert plan(replace(asked, slo=toy.slo(ttft=limit, quantile=1.0)), trace).chosen is not None


def test_a_part_of_the_demand_is_sized_and_multiplied():
    trace = toy.trace(count=600, rate=40.0)
    asked = toy.question([toy.replica(slots=16)], PRICES)
    part, made = plan(asked, trace), plan(replace(asked, stands_for_count=10), trace)
    chosen = made.chosen
    assert chosen.carrying_count == 10 * part.chosen.carrying_count
    assert chosen.spare_count == 1, "one replica fails, not one of each part"
    assert chosen == cheapest(replace(asked, stands_for_count=10), trace).sized
    assert made.peak_rate_per_s == pytest.approx(10 * part.peak_rate_per_s)
    assert made.sustained_rate_per_s == pytest.approx(10 * part.sustained_rate_per_s)
    assert made.utilization_carrying_fraction == pytest.approx(part.utilization_carrying_fraction)
    bill = made.bill
    work = bill.input_usd_per_hour + bill.cached_usd_per_hour + bill.output_usd_per_hour
    assert work + bill.headroom_usd_per_hour + bill.idle_usd_per_hour + bill.spare_usd_per_hour == pytest.approx(
        bill.total_usd_per_hour
    )
    assert bill.total_usd_per_hour == pytest.approx(chosen.price_usd_per_hour)
    assert bill.spare_usd_per_hour == pytest.approx(3.0)
    assert bill.usd_per_million_output_tokens == pytest.approx(part.bill.usd_per_million_output_tokens)
    assert bill.usd_per_request < part.bill.usd_per_request, "ten parts share one spare"
    assert any(chosen.replica_count == point.replica_count for point in made.frontier)
    assert any("one request in 10" in line for line in made.assumptions)
    assert any(f"{chosen.carrying_count} replicas carry" in line for line in made.assumptions)


def test_a_part_that_fails_names_the_fleet_of_the_whole():
    slow = toy.replica(slots=4, token_us=100.0)
    asked = toy.question([slow], PRICES, promise=toy.slo(itl=0.0101))
    one, ten = plan(asked, toy.trace()), plan(replace(asked, stands_for_count=10), toy.trace())

    def count(made):
        return int(made.reasons[0].text.split("Even ")[1].split(" ")[0].replace(",", ""))

    assert count(ten) == 10 * count(one)
