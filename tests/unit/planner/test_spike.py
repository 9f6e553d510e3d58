from dataclasses import replace

import numpy as np
import pytest

from tokenfleet import workload
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.run import Status
from tokenfleet.planner import Event, bursts, cheapest, known_spike
from tokenfleet.planner.letting_go import let_go
from tokenfleet.planner.recovery import recovery
from tokenfleet.workload import scale
from unit.planner import toy

pytestmark = pytest.mark.usefixtures("toy_world")

QUESTION = toy.question([toy.replica(slots=16, tensor_parallel=2)], [toy.price("h100_sxm", 3.0)])
TRACE = toy.trace(count=12_000, rate=40.0)


@pytest.fixture
def real_time(monkeypatch, toy_world):
    """The toy's ten-second peak and its growth by compression do not fit a surge: workload's own do."""
    monkeypatch.setattr(workload, "grow", scale.grow)
    monkeypatch.setattr(workload, "Grower", scale.Grower)
    monkeypatch.setattr(workload, "peak_window", scale.peak_window)


def test_an_event_takes_more_and_a_formula_stands_beside_it(real_time):
    sized = cheapest(QUESTION, TRACE).sized
    event = Event(start_s=30.0, length_s=40.0, factor=3.0)
    found = known_spike(QUESTION, TRACE, sized, event)
    assert found.needed.carrying_count > sized.carrying_count
    assert found.added_replica_count == found.needed.replica_count - sized.replica_count
    assert found.added_gpu_count == 2 * found.added_replica_count
    assert found.endured.kept
    assert not found.usual.kept
    assert found.usual.settled.after_s > 0
    budget = found.budget
    assert budget.request_count == pytest.approx(3 * budget.usual_request_count, abs=2)
    assert budget.mean_tokens_per_s == pytest.approx((budget.input_tokens + budget.output_tokens) / 40.0)
    assert budget.work_s == pytest.approx((budget.input_tokens + budget.output_tokens) / budget.full_tokens_per_s)
    # A fleet that keeps a promise is not full: it does more than is asked of it at its peak.
    start_s, end_s = workload.peak_window(TRACE)
    inside = (TRACE.arrival_s >= start_s) & (TRACE.arrival_s < end_s)
    asked = (TRACE.input_tokens[inside].sum() + TRACE.output_tokens[inside].sum()) / (end_s - start_s)
    assert budget.full_tokens_per_s > asked
    assert budget.kv_at_once_bytes == (budget.input_tokens + budget.output_tokens) * 2
    assert found.warm is None


def test_an_event_outside_of_the_demand_is_bad_input(real_time):
    sized = cheapest(QUESTION, TRACE).sized
    with pytest.raises(BadInput, match="not within the demand"):
        known_spike(QUESTION, TRACE, sized, Event(start_s=1e6, length_s=1.0, factor=2.0))


def test_short_bursts_may_be_larger_and_more_replicas_take_larger_ones(real_time):
    trace = toy.trace(count=1200, rate=40.0)
    sized = cheapest(QUESTION, trace).sized
    found = bursts(QUESTION, trace, sized)
    assert [burst.length_s for burst in found] == [10.0, 60.0, 300.0]
    for burst in found:
        assert burst.whole_factor >= burst.carrying_factor >= 1.0
        assert burst.larger_factor > burst.whole_factor
    assert found[0].whole_factor >= found[1].whole_factor / 1.05


def record(late, *, status=None):
    """One request a second; those in ``late`` wait 5 s for their first token."""
    made = toy.replay(toy.trace(count=600, rate=1.0), fleet())
    arrival = np.arange(600.0)
    first = arrival + np.where(late(arrival), 5.0, 0.5)
    return replace(
        made,
        arrival_s=arrival,
        first_token_s=first,
        finish_s=first + 1.0,
        status=made.status if status is None else status(arrival),
    )


def fleet():
    return Fleet(groups=(ReplicaGroup(replica=toy.replica(), replica_count=1),))


def test_recovery_is_when_those_who_arrive_are_served_again():
    promise = toy.slo(ttft=2.0)

    def after(run, shock_s=100.0):
        return recovery(run, promise, shock_s, window_s=60.0).after_s

    assert after(record(lambda at: at < 0)) == 0.0
    shocked = record(lambda at: (at >= 100) & (at < 130))
    assert after(shocked) == 30.0
    # A queue that breaks the promise only after a while is not recovered before it has.
    slow = record(lambda at: (at >= 190) & (at < 200))
    assert after(slow) == 100.0
    assert after(record(lambda at: at >= 100)) is None
    lost = record(lambda at: at < 0, status=lambda at: np.where(at == 120, Status.REJECTED_TOO_LONG, 0).astype(np.int8))
    assert after(lost) == 21.0
    # What breaks the promise without the shock, too, is no trace of it.
    chance = record(lambda at: (at >= 190) & (at < 200))
    both = record(lambda at: ((at >= 100) & (at < 130)) | ((at >= 190) & (at < 200)))
    assert after(both) == 100.0
    assert recovery(both, promise, 100.0, window_s=60.0, usual=chance).after_s == 30.0


def test_the_end_of_the_demand_is_no_recovery():
    promise = toy.slo(ttft=2.0)
    broken = record(lambda at: at >= 100)
    found = recovery(broken, promise, 100.0, window_s=60.0)
    assert (found.after_s, found.demand_left_s, found.too_soon, found.lasts) == (None, 499.0, False, False)
    late = recovery(broken, promise, 560.0, window_s=60.0)
    assert (late.after_s, late.demand_left_s, late.too_soon) == (None, 39.0, True)
    # Served again at 500 s: two windows of arrivals are left, three make it last.
    unsure = recovery(record(lambda at: (at >= 100) & (at < 480)), promise, 100.0, window_s=60.0)
    assert (unsure.after_s, unsure.lasts) == (380.0, False)
    assert recovery(record(lambda at: at < 0), promise, 100.0, window_s=60.0).lasts


def test_the_added_replicas_go_as_soon_as_who_comes_is_served_without_them():
    promise = toy.slo(ttft=2.0)

    def until(enough_s, at_s):
        return record(lambda at: (at >= at_s) & (at < enough_s) if at_s is not None else at < 0)

    def found(enough_s, ended_s=100.0):
        return let_go(lambda at_s: until(enough_s, at_s), promise, ended_s=ended_s, settled_after_s=10.0)

    assert (found(0.0).after_s, found(0.0).without.after_s) == (10.0, 0.0)
    assert (found(200.0).after_s, found(200.0).without.after_s) == (190.0, 0.0), "a minute later is too early, too"
    assert (found(600.0).after_s, found(600.0).without.after_s) == (10.0, None), "too few without them for good"
    assert found(600.0, ended_s=560.0).without.too_soon
    assert let_go(lambda at_s: until(0.0, at_s), promise, ended_s=100.0, settled_after_s=None) is None
