"""How large a burst each rung of the ladder rides out, on the real replay."""

from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.control import Ladder, Mark, Rung
from tokenfleet.domain.plan import Sized
from tokenfleet.domain.run import Status
from tokenfleet.domain.world import Admission, Clients, World
from tokenfleet.planner import BATCH, bursts
from tokenfleet.planner.counting import largest_factor
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.rungs import watched_fleet, watched_pools
from tokenfleet.planner.systems import SizedPool, System
from tokenfleet.planner.traffic import Traffic
from tokenfleet.simulator import replay
from tokenfleet.simulator.controlling import Controller
from tokenfleet.workload import peak_window, surge
from unit.planner import toy
from unit.planner.test_utilization import fleet

ENTER, LEAVE = Mark(waiting_count=3.0), Mark(waiting_count=1.0)
LADDER = Ladder(
    rungs=(
        Rung(kind="shed_batch", enter=ENTER, leave=LEAVE),
        Rung(kind="cap_output", enter=ENTER, leave=LEAVE, limit_tokens=50),
    ),
    queue_limit_count=6,
    climb_s=15.0,
)


def sized(question):
    return Sized(
        replica=question.candidates[0],
        carrying_count=2,
        spare_count=0,
        price=toy.price("h100_sxm", 2.0),
        price_low_usd_per_gpu_hour=2.0,
        price_high_usd_per_gpu_hour=2.0,
        slo=(),
    )


@pytest.mark.parametrize("border", [1.0, 1.7, 2.0, 5.3, 40.0])
def test_the_largest_factor_is_within_its_precision(border):
    found = largest_factor(lambda factor: factor <= border, most=16.0, precision=1.05)
    assert found <= border
    assert found * 1.05 >= min(border, 16.0)


@pytest.fixture(scope="module")
def found():
    trace = toy.trace(count=1200, rate=4.0, inputs=400, outputs=50)
    batch = np.random.default_rng(4).random(1200) < 0.4
    marked = replace(trace, class_bits=batch.astype(np.int32), classes=(BATCH,))
    question = toy.question([toy.replica(slots=2)], [toy.price("h100_sxm", 2.0)], promise=toy.slo(ttft=1.0, error=0.01))
    return marked, question, bursts(question, marked, sized(question), queue_limit_count=6, ladder=LADDER)


def test_each_rung_stands_beside_those_before_it(found):
    _, _, rides = found
    for burst in rides:
        assert [ride.kinds for ride in burst.rungs] == [(), ("shed_batch",), ("shed_batch", "cap_output")]
        assert all(1.0 <= ride.factor <= 16.0 for ride in burst.rungs)
        assert burst.rungs[0].larger_climbed_count == 0


def test_those_served_ride_out_more_the_more_is_given_up(found):
    _, _, rides = found
    longest = rides[-1]
    bound, shed, _ = longest.rungs
    assert shed.factor > bound.factor
    assert shed.larger_climbed_count == 1
    assert shed.larger_refused_fraction > bound.larger_refused_fraction


def test_a_ladder_changes_nothing_of_what_is_ridden_out_without_it(found):
    marked, question, rides = found
    without = bursts(question, marked, sized(question), queue_limit_count=6)
    assert all(not burst.rungs for burst in without)
    assert tuple(replace(burst, rungs=()) for burst in rides) == without


def test_shedding_refuses_batch_and_nobody_else():
    trace = toy.trace(count=600, rate=12.0, inputs=400, outputs=50)
    batch = np.arange(600) % 2 == 0
    world = World(
        admission=Admission(queue_limit_count=1000),
        clients=Clients(),
        batch=batch,
        controller=Controller(None, replace(LADDER, rungs=LADDER.rungs[:1], queue_limit_count=1000)),
    )
    record = replay(trace, fleet(2, slots=2), world=world)
    shed = record.status == Status.REJECTED_BATCH_SHED
    assert shed.any()
    assert not shed[~batch].any()


def test_one_pool_behind_a_door_is_a_fleet_with_somebody_at_its_own(found):
    marked, question, _ = found
    usual = sized(question)
    whole = Traffic(marked, peak_window(marked))
    start_s = whole.window_s[0]
    burst = Traffic(surge(marked, start_s=start_s, length_s=60.0, factor=4.0), whole.window_s)
    replays = Replays.of(question)
    system = System((SizedPool("all", None, usual, "least_in_flight"),), None)
    for count in range(3):
        ladder = replace(LADDER, rungs=LADDER.rungs[:count])
        alone, climbed = watched_fleet(replays, usual, burst, ladder, Clients())
        behind, climbed_too = watched_pools(replays, system, burst, ladder, Clients())
        assert climbed == climbed_too == min(count, climbed)
        np.testing.assert_array_equal(behind.status, alone.status)
        np.testing.assert_allclose(behind.ttft_s, alone.ttft_s, rtol=0, atol=1e-9)
    assert climbed > 0
