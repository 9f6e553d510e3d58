"""The hands of the autoscaler, with hand-made views: who is started, who is stopped, and when."""

import numpy as np

from tokenfleet.control import Ladder, Mark, QueueRule, Rung, ScalingPolicy
from tokenfleet.domain.world import Door, FleetView, ReplicaState
from tokenfleet.simulator.autoscaling import Autoscaler
from tokenfleet.simulator.controlling import Controller

A, S, R, D, F = (
    ReplicaState.ABSENT,
    ReplicaState.STARTING,
    ReplicaState.READY,
    ReplicaState.STOPPING,
    ReplicaState.FAILED,
)


def view(time_s, states, waiting, running=None):
    return FleetView(
        time_s=time_s,
        state=np.array(states, dtype=np.int8),
        running=np.array(running if running is not None else [0] * len(states), dtype=np.int32),
        waiting=np.array(waiting, dtype=np.int32),
        kv_used_fraction=np.zeros(len(states)),
        free_kv_tokens=np.full(len(states), 1000),
        arrived_count=10,
        refused_count=0,
        ttft_p90_s=None,
        first_tokens=np.zeros(0, dtype=np.int32),
        first_token_s=np.zeros(0),
    )


def scaler(count=5, start=2, cold_start_s=40.0, **given):
    settings = {"stable_s": 60.0, "down_cool_down_s": 0.0, "max_count": count} | given.pop("policy", {})
    policy = ScalingPolicy(rules=(QueueRule(),), **settings)
    return Autoscaler(policy, replica_count=count, start_count=start, cold_start_s=cold_start_s, tick_s=15.0, **given)


def said(happenings):
    return [(each.kind, each.time_s, each.replicas) for each in happenings]


def test_a_replica_holds_its_gpus_at_once_and_is_ready_a_cold_start_later():
    hands = scaler()
    assert hands.absent == (2, 3, 4)
    assert said(hands(view(15.0, [R, R, A, A, A], [8, 0, 0, 0, 0]))) == [("start", 15.0, (2,)), ("start", 15.0, (3,))]
    assert said(hands(view(30.0, [R, R, S, S, A], [8, 0, 0, 0, 0]))) == []
    # 55 s lies before the tick at 60 s: announced now.
    assert said(hands(view(45.0, [R, R, S, S, A], [8, 0, 0, 0, 0]))) == [("ready", 55.0, (2,)), ("ready", 55.0, (3,))]
    assert said(hands(view(60.0, [R, R, R, R, A], [0, 0, 0, 0, 0]))) == []


def test_the_emptiest_goes_and_those_on_their_way_before_it():
    hands = scaler(start=3)
    quiet = [hands(view(15.0 * tick, [R, R, R, A, A], [0, 0, 0, 0, 0], [9, 1, 5, 0, 0])) for tick in range(1, 6)]
    assert [said(each) for each in quiet[:-1]] == [[]] * 4
    assert said(quiet[-1]) == [("stop", 75.0, (1,))]
    other = scaler(cold_start_s=500.0)
    other(view(15.0, [R, R, A, A, A], [8, 0, 0, 0, 0]))
    ends = [said(other(view(15.0 * tick, [R, R, S, S, A], [0] * 5))) for tick in range(2, 9)]
    assert next(each for each in ends if each)[0][2] == (3,), "the youngest on its way"


def test_a_replica_that_failed_while_it_loaded_is_asked_for_anew():
    hands = scaler()
    hands(view(15.0, [R, R, A, A, A], [8, 0, 0, 0, 0]))
    again = said(hands(view(30.0, [R, R, F, S, A], [8, 0, 0, 0, 0])))
    assert again == [("start", 30.0, (2,))]
    assert said(hands(view(45.0, [R, R, S, S, A], [8, 0, 0, 0, 0]))) == [("ready", 55.0, (3,))]


def test_in_a_stock_out_nothing_starts_and_what_never_had_a_machine_is_given_up_silently():
    hands = scaler(stock_outs_s=((10.0, 100.0),), policy={"start_timeout_s": 45.0})
    assert said(hands(view(15.0, [R, R, A, A, A], [8, 0, 0, 0, 0]))) == []
    for time_s in (30.0, 45.0):
        assert said(hands(view(time_s, [R, R, A, A, A], [8, 0, 0, 0, 0]))) == []
    assert said(hands(view(60.0, [R, R, A, A, A], [8, 0, 0, 0, 0]))) == []
    assert hands.steps[-1].give_up_count == 2
    assert "start_timeout" in hands.steps[-1].alerts
    assert said(hands(view(90.0, [R, R, A, A, A], [8, 0, 0, 0, 0]))) == [("start", 100.0, (2,)), ("start", 100.0, (3,))]


def test_who_watches_notes_rungs_beside_scaling():
    rung = Rung(kind="shed_batch", enter=Mark(waiting_count=5), leave=Mark(waiting_count=1))
    watching = Controller(scaler(), Ladder(rungs=(rung,), queue_limit_count=60))
    happenings = watching(view(15.0, [R, R, A, A, A], [8, 0, 0, 0, 0]))
    assert [each.kind for each in happenings] == ["door", "start", "start"]
    assert happenings[0].door == Door(batch_is_open=False)
    assert happenings[0].reason == "enter shed_batch: 8 waiting on the fullest replica, 5 reached"
    assert [(each.kind, each.entered) for each in watching.ladder_steps] == [("shed_batch", True)]
    assert list(Controller(None, None)(view(15.0, [R], [99]))) == []


def test_of_several_groups_only_its_own_come_and_go():
    hands = scaler(own=range(2, 4), start=0)
    assert hands.absent == (2, 3)
    assert said(hands(view(15.0, [R, R, A, A, R], [0, 8, 0, 0, 0]))) == [("start", 15.0, (2,)), ("start", 15.0, (3,))]
    quiet = scaler(own=range(2, 4), start=2, policy={"min_count": 3})
    calm = [quiet(view(15.0 * tick, [R, R, R, R, R], [0] * 5, [0, 0, 5, 6, 0])) for tick in range(1, 6)]
    assert said(calm[-1]) == [("stop", 75.0, (2,))], "the emptiest of its own, however empty the others are"


def test_a_group_with_requests_of_its_own_goes_by_these():
    apart = scaler(own=range(2, 4), start=1, sees_all=False)
    assert said(apart(view(15.0, [R, R, R, A, R], [0, 8, 0, 0, 0]))) == []
    assert apart.steps[0].ready_count == 1
    assert said(apart(view(30.0, [R, R, R, A, R], [0, 0, 8, 0, 0]))) == [("start", 30.0, (3,))]
