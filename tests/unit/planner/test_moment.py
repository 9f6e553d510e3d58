"""The moment of a loss, on the real replay."""

from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.domain.survival import Redundancy, Rollout, Zone
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import Admission, Clients
from tokenfleet.planner import cheapest, plan, riding
from tokenfleet.planner import moment as moments
from tokenfleet.planner.moment import Scene, drained, failed, rolled_out, worst
from tokenfleet.planner.placement import placed
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.traffic import Traffic
from unit.planner import toy
from unit.planner.test_warming import replica

ABC = (Zone(name="a"), Zone(name="b"), Zone(name="c", ingress=False))
REPLICA = replica()


def demand(rate=20.0, seconds=240.0):
    random = np.random.default_rng(5)
    count = int(rate * seconds)
    return Trace(
        arrival_s=np.sort(random.uniform(0.0, seconds, count)),
        input_tokens=random.integers(200, 900, count).astype(np.int32),
        output_tokens=random.integers(50, 150, count).astype(np.int32),
    )


def scene(total=6, redundancy=None, promise=None):
    traffic = Traffic(demand(), (60.0, 120.0))
    wanted = redundancy or Redundancy(zones=ABC, replicas_per_node_count=2)
    placement = placed(total, REPLICA, wanted)
    replays = Replays(promise or toy.slo(ttft=2.0, itl=0.2), "least_in_flight")
    quiet = replays.run(traffic, REPLICA, total)
    return Scene(replays, traffic, REPLICA, placement, quiet, wanted.zones)


def test_what_the_worst_replica_holds_is_lost_and_comes_back():
    before = scene()
    at_s = before.fullest_s
    assert 60.0 <= at_s < 120.0
    tokens = before.in_flight_tokens(at_s)
    moment = failed(before, "replica", 1)
    assert moment.replicas == (int(np.argmax(tokens)),)
    record = before.record
    held = (record.arrival_s <= at_s) & (record.finish_s > at_s) & (record.replica == moment.replicas[0])
    assert moment.lost_request_count == pytest.approx(held.sum(), abs=1)
    assert moment.unfinished_count == 0
    # The wait counts from the first attempt: half a backoff at the least, and all the time before the loss.
    assert moment.longest_wait_s > 0.5
    assert moment.kept
    assert moment.recovery.after_s == 0.0


def test_the_fullest_moment_is_when_most_tokens_are_in_flight():
    before = scene()
    sampled = [before.in_flight_tokens(at).sum() for at in np.linspace(60.0, 119.9, 50)]
    assert before.in_flight_tokens(before.fullest_s).sum() >= max(sampled)


def test_a_node_goes_with_all_of_its_replicas_and_a_zone_with_those_that_depend_on_it():
    before = scene()
    at_s = before.fullest_s
    node = worst(before, "node", 1, at_s)
    assert node in {(0, 1), (2, 3), (4, 5)}
    assert len(worst(before, "node", 2, at_s)) == 4
    zone = worst(before, "zone", 1, at_s)
    # Zone c is reached through another: without a or b nobody counts on it.
    assert zone in {(0, 1, 4, 5), (2, 3, 4, 5)}
    assert failed(before, "zone", 2) is None


def test_clients_and_the_door_are_those_of_the_question():
    before = scene()
    gone = failed(replace(before, clients=Clients(attempt_count=1)), "replica", 1)
    assert gone.unfinished_count == gone.lost_request_count > 0
    assert gone.longest_wait_s is None
    door = Admission(queue_limit_count=1)
    few = scene(total=2, redundancy=Redundancy())
    shut = failed(replace(few, admission=door, clients=Clients(attempt_count=1)), "replica", 1)
    assert shut.unfinished_count > shut.lost_request_count
    patient = failed(replace(before, clients=Clients(attempt_count=2, backoff_s=30.0)), "replica", 1)
    assert patient.longest_wait_s > 15.0


def test_a_drained_node_loses_nothing():
    before = scene()
    kept, lost = drained(before, 1), failed(before, "node", 1)
    assert kept.replicas == lost.replicas
    assert (kept.lost_request_count, kept.unfinished_count, kept.longest_wait_s) == (0, 0, None)
    assert drained(scene(total=2, redundancy=Redundancy()), 1) is None


def test_the_course_shows_replicas_go_and_requests_come_back():
    moment = failed(scene(), "node", 1)
    course = moment.course
    since = [point.since_s for point in course]
    assert since == sorted(since)
    assert since[0] >= -30.0
    assert since[-1] <= 120.0
    assert {point.ready_replica_count for point in course if point.since_s < 0} == {6}
    assert {point.ready_replica_count for point in course if point.since_s > 0} == {4}
    # Fewer replicas take the same demand, so as many requests run again, and longer.
    before = np.mean([point.running_count for point in course if point.since_s < 0])
    after = np.mean([point.running_count for point in course if point.since_s > 20.0])
    assert moment.lost_request_count > 0
    assert 0.9 * before < after < 2.0 * before


def test_too_few_survivors_break_the_promise_at_once():
    few = scene(total=2, redundancy=Redundancy(), promise=toy.slo(ttft=0.4, itl=0.2))
    moment = failed(few, "replica", 1)
    assert not moment.kept
    assert moment.recovery.after_s != 0.0


def test_windows_that_the_survivors_break_by_chance_are_no_trace_of_a_loss(monkeypatch):
    before = scene(3)
    left = before.replays.run(before.traffic, REPLICA, 2)
    inside = (left.arrival_s >= 60.0) & (left.arrival_s < 120.0)
    # What two keep over all and at the peak, and in some later minutes just not.
    limit_s = max(float(np.quantile(ttft_s, 0.98, method="higher")) for ttft_s in (left.ttft_s, left.ttft_s[inside]))
    tight = scene(3, promise=toy.slo(ttft=limit_s, itl=5.0, quantile=0.98))
    assert failed(tight, "replica", 1).recovery.after_s == 0.0
    monkeypatch.setattr(moments, "_usual", lambda *_: None)
    assert failed(tight, "replica", 1).recovery.after_s > 30.0


def test_a_rollout_loses_nothing_and_begins_with_the_peak():
    before = scene()
    surge = rolled_out(before, Rollout(max_surge_count=1, ready_after_s=10.0))
    assert (surge.lost_request_count, surge.unfinished_count, surge.replicas) == (0, 0, ())
    assert surge.time_s == 60.0
    assert surge.kept
    hasty = rolled_out(before, Rollout(max_surge_count=0, max_unavailable_count=5, ready_after_s=60.0))
    slow = {result.name: result.predicted for result in hasty.slo_after}
    good = {result.name: result.predicted for result in surge.slo_after}
    assert slow["ttft_p99"] > good["ttft_p99"]
    assert rolled_out(before, Rollout()) is None


def test_a_plan_shows_the_moment_of_each_loss_it_pays_for():
    wanted = Redundancy(node_count=1, replicas_per_node_count=1)
    asked = replace(toy.question([REPLICA], [toy.price("l40s", 1.0)], promise=toy.slo(itl=0.2)), redundancy=wanted)
    made = plan(asked, demand())
    cases = {case.kind: case for case in made.losses}
    assert cases["node"].moment.replicas == cases["replica"].moment.replicas
    assert cases["zone"].moment is None
    assert cases["rollout"].moment is None
    first = plan(replace(asked, first_look=True), demand())
    assert all(case.moment is None for case in first.losses)


def test_riding_through_takes_more_spare_than_carrying_the_peak_without():
    wanted = Redundancy(node_count=1, replicas_per_node_count=3)
    question = toy.question([REPLICA], [toy.price("l40s", 1.0)], promise=toy.slo(ttft=0.3, itl=0.2))
    asked = replace(question, redundancy=wanted, first_look=False)
    trace = demand(rate=80.0, seconds=120.0)
    carried = plan(asked, trace)
    node = next(case for case in carried.losses if case.kind == "node")
    assert node.kept
    assert not node.moment.kept
    ridden = plan(replace(asked, redundancy=replace(wanted, ride_through=True)), trace)
    assert ridden.chosen.carrying_count == carried.chosen.carrying_count
    assert ridden.chosen.spare_count > carried.chosen.spare_count
    assert all(case.moment.kept for case in ridden.losses if case.required)
    assert sum(case.spare_replica_count for case in ridden.losses) == ridden.chosen.spare_count
    traffic = Traffic(trace, (ridden.peak_start_s, ridden.peak_end_s))
    replays = Replays(asked.slo, "least_in_flight")
    fewer = ridden.chosen.replica_count - 1
    quiet = replays.run(traffic, REPLICA, fewer)
    before = Scene(replays, traffic, REPLICA, placed(fewer, REPLICA, wanted), quiet)
    assert not all(failed(before, kind, 1).kept for kind in ("replica", "node"))


def test_riding_through_takes_the_first_fleet_that_does_though_one_more_may_not(monkeypatch):
    """Which replica is the worst hangs on chance: 6 more ride through, 7 do not, 8 do."""
    question = toy.question([REPLICA], [toy.price("l40s", 1.0)], promise=toy.slo(ttft=0.3, itl=0.2))
    asked = replace(question, redundancy=Redundancy(ride_through=True), first_look=True)
    least = cheapest(replace(question, first_look=True), demand()).sized.replica_count

    one = failed(scene(), "replica", 1)

    def ridden(before, kind, count):
        return replace(one, kept=before.placement.replica_count - least in {6, 8, 9, 10})

    monkeypatch.setattr(riding, "failed", ridden)
    assert cheapest(asked, demand()).sized.replica_count == least + 6
