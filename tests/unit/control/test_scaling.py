"""Scaling decisions, tick by tick, against hand-made signals."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.control import (
    ActiveRule,
    ActiveTokensRule,
    DrainRule,
    ForecastRule,
    FreeKvRule,
    KvRule,
    QueueRule,
    ScalingPolicy,
    ScalingState,
    ScheduleRule,
    Signals,
    TtftRule,
    WaitRule,
    check_policy,
    decide,
    worst_case_gpu_count,
)
from tokenfleet.control.rules import CANNOT_HELP
from tokenfleet.control.scaling import AT_MAXIMUM, NO_DATA, START_TIMEOUT
from tokenfleet.domain.errors import BadInput
from unit.control.ticks import signals


def policy(*rules, max_count=16, **given):
    return ScalingPolicy(rules=rules or (QueueRule(),), max_count=max_count, **given)


def run(ticks, by, target):
    """Decisions over ticks; the fleet does what it is told and nothing else happens."""
    state = ScalingState(target_count=target)
    decisions = []
    for tick in ticks:
        decision, state = decide(tick, by, state)
        decisions.append(decision)
    return decisions


def test_what_is_starting_is_not_asked_for_again():
    # Two ready replicas with twice the load they should have; new ones load for 300 s, a tick every 30 s.
    ticks = [
        signals(30.0 * tick, waiting=(8, 8), running=(20, 20), starting=0 if tick == 0 else 2, arrived=100)
        for tick in range(4)
    ]
    assert [each.target_count for each in run(ticks, policy(), 2)] == [4, 4, 4, 4]
    assert [each.start_count for each in run(ticks, policy(), 2)] == [2, 0, 0, 0]


def test_the_worst_replica_counts_and_not_the_mean():
    found, _ = decide(signals(waiting=(0, 0, 0, 9)), policy(), ScalingState(target_count=4))
    assert found.target_count == 8, "9 / 4 of what is ready, and at most twice"
    assert "9 waiting on the fullest replica" in found.reason
    assert decide(signals(waiting=(2, 2, 2, 3)), policy(), ScalingState(target_count=4))[0].target_count == 4


def test_a_missing_metric_holds_the_count_and_raises_an_alert():
    nothing = [Signals(time_s=30.0 * tick, ready_count=5) for tick in range(40)]
    for found in run(nothing, policy(QueueRule(), KvRule()), 5):
        assert (found.target_count, found.start_count, found.stop_count) == (5, 0, 0)
        assert NO_DATA in found.alerts
        assert "queue" in found.reason


def test_one_missing_metric_does_not_blind_the_others():
    without_kv = replace(signals(waiting=(8, 8)), kv_used_fraction=None)
    found, _ = decide(without_kv, policy(QueueRule(), KvRule()), ScalingState(target_count=2))
    assert (found.target_count, found.rule) == (4, "queue")
    assert NO_DATA in found.alerts


def test_from_zero_the_router_brings_the_first_replica():
    asleep = Signals(time_s=0.0, ready_count=0, arrived_count=3)
    found, state = decide(asleep, policy(min_count=0), ScalingState(target_count=0))
    assert (found.target_count, found.start_count, found.rule) == (1, 1, "arrivals")
    # It loads for longer than the stabilisation window, and is not given up for lack of load.
    for tick in range(1, 60):
        found, state = decide(replace(asleep, time_s=30.0 * tick, starting_count=1), policy(min_count=0), state)
        assert (found.target_count, found.start_count, found.stop_count) == (1, 0, 0)


def test_replicas_cannot_mend_a_request_that_is_slow_alone():
    # 1,050 ms of TTFT against 1,000 ms promised, and nobody else in the fleet.
    idle = signals(waiting=(0, 0), running=(0, 1), ttft=1.05)
    by = policy(TtftRule(limit_s=1.0), min_count=1, stable_s=60.0, down_cool_down_s=0.0)
    decisions = run([replace(idle, time_s=30.0 * tick) for tick in range(4)], by, 2)
    assert decisions[0].alerts == (CANNOT_HELP,)
    assert [each.target_count for each in decisions] == [2, 2, 1, 1]


def test_ttft_asks_for_more_where_requests_share_replicas():
    found, _ = decide(signals(waiting=(1, 0), running=(30, 30), ttft=1.4), policy(TtftRule(limit_s=1.0)), two())
    assert found.target_count == 3
    far = signals(waiting=(90, 90), running=(30, 30), ttft=50.0)
    assert decide(far, policy(TtftRule(limit_s=1.0)), two())[0].target_count == 4


def two():
    return ScalingState(target_count=2)


def test_no_first_token_is_no_sign_of_health():
    stuck = signals(waiting=(5, 5), running=(0, 0), ttft=None)
    by = policy(TtftRule(limit_s=1.0), stable_s=30.0, down_cool_down_s=0.0)
    decisions = run([replace(stuck, time_s=30.0 * tick) for tick in range(5)], by, 2)
    assert [each.target_count for each in decisions] == [2] * 5


def test_kv_follows_load_both_ways_with_a_band_between():
    by = policy(KvRule(limit_fraction=0.8), stable_s=60.0, down_cool_down_s=0.0, relax_fraction=0.5)
    up, _ = decide(signals(waiting=(0, 0), kv=(0.4, 0.95)), by, two())
    assert (up.target_count, up.rule) == (3, "kv")
    # Between 40 % (the limit relaxed) and 80 % nothing moves, however long.
    band = run([signals(30.0 * tick, waiting=(0, 0), kv=(0.5, 0.6)) for tick in range(20)], by, 2)
    assert {each.target_count for each in band} == {2}
    low = run([signals(30.0 * tick, waiting=(0, 0), kv=(0.1, 0.12)) for tick in range(5)], by, 2)
    assert low[-1].target_count == 1


def test_survivors_must_hold_what_the_one_that_goes_held():
    # Nobody waits, yet KV memory is half full on each: one alone would be full.
    by = policy(QueueRule(), stable_s=60.0, down_cool_down_s=0.0)
    decisions = run([signals(30.0 * tick, waiting=(0, 0), kv=(0.5, 0.5)) for tick in range(10)], by, 2)
    assert {each.target_count for each in decisions} == {2}
    assert "would be 100% full" in decisions[-1].reason
    known = policy(QueueRule(), stable_s=60.0, down_cool_down_s=0.0, capacity_per_s=5.0)
    busy = [signals(30.0 * tick, waiting=(0, 0), arrived=180) for tick in range(10)]
    assert {each.target_count for each in run(busy, known, 2)} == {2}, "6/s is more than 90 % of one replica's 5/s"


def test_down_is_slow_one_step_after_a_quiet_window_and_again_after_a_cool_down():
    by = policy(QueueRule(), stable_s=300.0, down_cool_down_s=600.0)
    decisions = run([signals(60.0 * tick, waiting=(0,) * 4) for tick in range(30)], by, 4)
    steps = [(each.time_s, each.target_count, each.stop_count) for each in decisions if each.rule == "queue"]
    assert steps[0][:2] == (300.0, 3)
    # The hand-made fleet keeps showing four ready replicas; the one let go is asked to stop.
    assert steps[0][2] == 1
    assert [time_s for time_s, _, _ in steps] == [300.0]


def test_one_busy_tick_keeps_a_replica_for_a_whole_window():
    by = policy(QueueRule(), stable_s=300.0, down_cool_down_s=0.0)
    ticks = [signals(60.0 * tick, waiting=(4, 0) if tick == 4 else (0, 0)) for tick in range(12)]
    assert [each.target_count for each in run(ticks, by, 2)].index(1) == 9


def test_steps_and_counts_have_limits_and_a_need_beyond_them_is_an_alert():
    flood, steep = signals(waiting=(100, 100)), QueueRule(most_factor=100.0)
    assert decide(flood, policy(), two())[0].target_count == 4
    assert decide(flood, policy(steep, up_step_count=3), two())[0].target_count == 5
    full, _ = decide(flood, policy(steep, max_count=6), two())
    assert (full.target_count, full.alerts) == (6, (AT_MAXIMUM,))
    held, _ = decide(flood, policy(steep, max_count=6), ScalingState(target_count=6))
    assert held.target_count == 6
    assert "50 would be needed, 6 are allowed" in held.reason
    assert decide(signals(waiting=(0,)), policy(min_count=3), ScalingState(target_count=1))[0].target_count == 3


def test_a_lost_replica_is_replaced():
    found, _ = decide(signals(waiting=(0, 0, 0)), policy(), ScalingState(target_count=4))
    assert (found.target_count, found.start_count) == (4, 1)


def test_a_replica_that_does_not_come_is_given_up_and_asked_for_anew():
    by = policy(start_timeout_s=600.0)
    decisions = run(
        [signals(30.0 * tick, waiting=(8, 8), starting=0 if tick == 0 else 2, arrived=90) for tick in range(22)], by, 2
    )
    late = next(each for each in decisions if each.give_up_count)
    assert (late.time_s, late.give_up_count, late.start_count, late.target_count) == (600.0, 2, 2, 4)
    assert START_TIMEOUT in late.alerts


def test_a_schedule_asks_ahead_of_time_and_repeats():
    table = ScheduleRule(entries=((8 * 3600.0, 6), (20 * 3600.0, 2)), ahead_s=600.0)
    by = policy(table, stable_s=300.0, down_cool_down_s=0.0, down_step_count=9)

    def target(hour, state):
        found, after = decide(signals(hour * 3600.0, waiting=(0,) * state.target_count), by, state)
        return found.target_count, after

    before, state = target(7.5, two())
    early, state = target(8.0 - 599 / 3600, state)
    assert (before, early) == (2, 6)
    assert [table.count_at(hour * 3600.0) for hour in (0.0, 8.0, 19.9, 20.0, 32.0)] == [2, 6, 6, 2, 6]
    day, state = target(19.95, state)
    assert day == 6, "the larger of what holds now and what will hold"
    night, _ = target(20.5, state)
    assert night == 2


def test_drain_time_counts_demand_and_backlog():
    rule = DrainRule(limit_s=30.0, capacity_per_s=2.0)
    ticks = [signals(30.0 * tick, waiting=(60, 60), running=(9, 9), arrived=90) for tick in range(6)]
    # 3 requests/s and 120 to be gone in 30 s at 2/s a replica.
    assert run(ticks, policy(rule), 2)[-1].target_count == 4


def test_capacity_is_learned_from_ticks_in_which_everybody_has_a_queue():
    rule = DrainRule(limit_s=30.0)
    # 4 replicas, 300 arrive in 30 s, the queue grows by 60: 240 served, 2 a second each.
    ticks = [signals(30.0 * tick, waiting=(15 * tick + 4,) * 4, running=(9,) * 4, arrived=300) for tick in range(8)]
    state = ScalingState(target_count=4)
    for tick in ticks:
        _, state = decide(tick, policy(rule), state)
    assert state.learned.capacity_per_s == pytest.approx(2.0)
    # Ticks in which a replica joined teach nothing: its batch is still empty.
    joined = signals(240.0, waiting=(109,) * 5, running=(0,) * 5, arrived=300)
    assert decide(joined, policy(rule), state)[1].learned.capacity_per_s == pytest.approx(2.0)


def test_a_forecast_asks_before_demand_is_there():
    rule = ForecastRule(ahead_s=300.0, safety_factor=1.0, capacity_per_s=2.0)
    ramp = [signals(15.0 * tick, waiting=(0,) * 4, arrived=round(15 * (4.0 + 0.02 * 15 * tick))) for tick in range(80)]
    asked = {each.time_s: each.target_count for each in run(ramp, policy(rule), 4)}
    # At 1,185 s demand is 27.7/s; at 885 s, when a replica must be asked for to be ready then, it is 21.7/s.
    assert asked[885.0] >= 13
    assert asked[885.0] <= 18
    flat = [signals(15.0 * tick, waiting=(0,) * 4, arrived=60) for tick in range(80)]
    assert run(flat, policy(rule), 4)[-1].target_count <= 4


def test_several_rules_ask_and_the_largest_wish_counts():
    both = policy(QueueRule(), KvRule(limit_fraction=0.5))
    found, _ = decide(signals(waiting=(6, 6), kv=(1.0, 1.0)), both, two())
    assert (found.target_count, found.rule) == (4, "kv")
    found, _ = decide(signals(waiting=(20, 6), kv=(0.6, 0.5)), both, two())
    assert (found.target_count, found.rule) == (4, "queue")


def test_a_limit_that_its_signal_never_reaches_is_refused():
    # One slot and no queue: the gauge tops out at 1, and the target is 2.
    with pytest.raises(BadInput, match="never exceeds 1") as error:
        check_policy(policy(ActiveRule(limit_count=2.0)), slot_count=1, queue_limit_count=0)
    assert "scale by the queue" in str(error.value)
    with pytest.raises(BadInput, match=r"never exceeds 4.*write less than 4, or raise queue_limit"):
        check_policy(policy(QueueRule(limit_count=5.0)), queue_limit_count=4)
    with pytest.raises(BadInput, match="never exceeds 1"):
        check_policy(policy(KvRule(limit_fraction=1.0)))
    check_policy(policy(ActiveRule(limit_count=0.5)), slot_count=1, queue_limit_count=0)
    check_policy(policy(QueueRule(limit_count=4.0)))


def test_what_is_gone_is_replaced_and_the_reason_says_so():
    calm = [signals(30.0 * tick, waiting=(1, 1, 1) if tick < 2 else (1,), arrived=30) for tick in range(3)]
    found = run(calm, policy(), 3)[-1]
    assert (found.target_count, found.start_count, found.rule) == (3, 2, "replace")
    assert found.reason.startswith("1 of 3 are ready or on their way, the others are gone; 1 waiting")


def test_waits_count_by_priority_and_those_not_named_may_wait():
    by = policy(WaitRule(limits_s={0: 2.0, 1: 60.0}))
    waits = {0: (0.0, 1.0), 1: (0.0, 90.0), 5: (900.0, 900.0)}
    found, _ = decide(signals(waiting=(4, 4), oldest_wait_s=waits), by, ScalingState(target_count=2))
    assert (found.target_count, found.rule) == (3, "wait"), "90 / 60 of what is ready"
    assert found.reason.startswith("a request of priority 1 has waited 90 s, limit 60 s")
    urgent = {0: (0.0, 5.0), 1: (0.0, 90.0)}
    found, _ = decide(signals(waiting=(4, 4), oldest_wait_s=urgent), by, ScalingState(target_count=2))
    assert found.target_count == 4, "2.5 times the limit, and at most twice"
    assert "priority 0" in found.reason
    calm = [signals(60.0 * tick, waiting=(0, 0), oldest_wait_s={0: (0.0, 0.0)}) for tick in range(12)]
    assert run(calm, by, 2)[-1].target_count == 1
    blind = decide(signals(waiting=(9, 9)), by, ScalingState(target_count=2))[0]
    assert (blind.target_count, blind.alerts) == (2, (NO_DATA,))


def test_active_tokens_and_free_kv_are_those_of_the_fullest_replica():
    by = policy(ActiveTokensRule(limit_tokens=10_000))
    found, _ = decide(signals(waiting=(0, 0), active_tokens=(1_000, 25_000)), by, ScalingState(target_count=2))
    assert (found.target_count, found.rule) == (5, "active_tokens")
    assert found.reason.startswith("25,000 tokens active in the fullest replica, limit 10,000")
    by = policy(FreeKvRule(limit_tokens=10_000, capacity_tokens=50_000))
    found, _ = decide(signals(waiting=(0, 0), free_kv_tokens=(45_000, 2_000)), by, ScalingState(target_count=2))
    assert (found.target_count, found.rule) == (3, "free_kv"), "48,000 are used where 40,000 may be"
    assert found.reason.startswith("KV memory for 2,000 tokens free on the fullest replica, limit 10,000")
    roomy, _ = decide(signals(waiting=(0, 0), free_kv_tokens=(45_000, 40_000)), by, ScalingState(target_count=2))
    assert roomy.target_count == 2
    for rule in (ActiveTokensRule(limit_tokens=1), FreeKvRule(limit_tokens=1, capacity_tokens=9)):
        blind, _ = decide(signals(waiting=(0, 0)), policy(rule), ScalingState(target_count=2))
        assert (blind.target_count, blind.alerts) == (2, (NO_DATA,))


def test_room_that_is_never_free_is_refused():
    with pytest.raises(BadInput, match="KV memory for 50,000 tokens in all, so 60,000 are never free"):
        check_policy(policy(FreeKvRule(limit_tokens=60_000, capacity_tokens=50_000)))
    with pytest.raises(BadInput, match="0 is no limit"):
        check_policy(policy(WaitRule(limits_s={})))


def test_the_worst_case_is_held_against_the_quota():
    with pytest.raises(BadInput, match="100 replicas may come to 100 gpus, and the quota is 4"):
        check_policy(policy(max_count=100), gpu_quota_count=4, gpus_per_replica_count=1)
    assert worst_case_gpu_count(policy(max_count=3), 8) == 24
    check_policy(policy(max_count=4), gpu_quota_count=4)


def test_every_problem_of_a_policy_is_told_at_once():
    table = ScheduleRule(entries=((3600.0, 40), (0.0, 1)))
    with pytest.raises(BadInput) as error:
        check_policy(policy(QueueRule(limit_count=0.0), table, min_count=9, max_count=8, relax_fraction=1.0))
    assert [problem.where.split(".")[1] for problem in error.value.problems] == ["min", "relax", "queue", "schedule"]
    with pytest.raises(BadInput, match="asks for 40 replicas"):
        check_policy(policy(ScheduleRule(entries=((0.0, 40),))))
    with pytest.raises(BadInput, match="names no rule"):
        check_policy(ScalingPolicy(rules=(), max_count=2))


WAITING = st.lists(st.integers(0, 200), min_size=1, max_size=6)


@given(
    st.lists(
        st.tuples(WAITING, st.floats(0.0, 1.0), st.integers(0, 500), st.none() | st.floats(0.0, 60.0), st.booleans()),
        max_size=40,
    ),
    st.integers(1, 4),
    st.integers(4, 20),
)
def test_whatever_comes_counts_stay_in_bounds_and_add_up(ticks, low, high):
    by = policy(
        QueueRule(),
        KvRule(),
        TtftRule(limit_s=1.0),
        DrainRule(),
        ForecastRule(ahead_s=120.0),
        min_count=low,
        max_count=high,
        start_timeout_s=100.0,
        stable_s=60.0,
        down_cool_down_s=30.0,
    )
    state = ScalingState(target_count=low)
    starting = 0
    for number, (waiting, kv, arrived, ttft, dark) in enumerate(ticks):
        tick = signals(
            15.0 * number, waiting=waiting, kv=[kv] * len(waiting), arrived=arrived, ttft=ttft, starting=starting
        )
        if dark:
            tick = replace(tick, waiting=None, kv_used_fraction=None)
        before = state.target_count
        found, state = decide(tick, by, state)
        assert low <= found.target_count <= high
        assert found.start_count == 0 or found.stop_count == 0
        here = tick.ready_count + starting - found.give_up_count
        assert found.target_count == here + found.start_count - found.stop_count
        assert not (dark and found.target_count < before), "nobody goes in the dark"
        starting = max(found.target_count - tick.ready_count, 0)
        assert len(state.starts_s) == starting
