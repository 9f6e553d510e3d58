"""The degradation ladder: which rung, when, and why."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.control import (
    Evaluation,
    Ladder,
    LadderState,
    Mark,
    Rung,
    Signals,
    check_ladder,
    climb,
    door_of,
)
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.world import NO_CAP, Door
from unit.control.ticks import signals

PASSED = Evaluation(
    model="small", measure="helpdesk answers", score=0.91, required_score=0.9, as_of="2026-11-02", source="eval 41"
)


def rung(kind, enter, leave, **given):
    return Rung(kind=kind, enter=Mark(waiting_count=enter), leave=Mark(waiting_count=leave), **given)


LADDER = Ladder(
    rungs=(
        rung("shed_batch", 8.0, 2.0),
        rung("smaller_model", 16.0, 6.0, model="small", input_tokens=500, evaluation=PASSED),
        rung("cap_output", 24.0, 10.0, limit_tokens=800),
        rung("limit_sessions", 40.0, 16.0, session_count=100),
    ),
    queue_limit_count=60,
    climb_s=30.0,
    calm_s=120.0,
)


def walk(waits, ladder=LADDER, every_s=30.0):
    state, log, rungs = LadderState(), [], []
    for tick, waiting in enumerate(waits):
        state, step = climb(signals(every_s * tick, waiting=(waiting, 0)), ladder, state)
        rungs.append(state.rung_count)
        if step is not None:
            log.append(step)
    return rungs, log


def test_one_rung_at_a_time_and_each_step_has_its_reason():
    rungs, log = walk([5, 50, 50, 50, 50, 50])
    assert rungs == [0, 1, 2, 3, 4, 4]
    assert [(step.kind, step.entered) for step in log][:2] == [("shed_batch", True), ("smaller_model", True)]
    assert log[0].reason == "50 waiting on the fullest replica, 8 reached"


def test_a_step_has_time_to_act_before_the_next():
    rungs, _ = walk([50] * 7, every_s=10.0)
    assert rungs == [1, 1, 1, 2, 2, 2, 3]


def test_between_leave_and_enter_nothing_moves_and_calm_must_last():
    rungs, log = walk([9, 5, 5, 5, 5, 5, 1, 1, 5, 1, 1, 1, 1, 1, 1])
    assert rungs == [1] * 13 + [0, 0]
    assert (log[-1].entered, log[-1].rung_count) == (False, 0)
    assert "below 2 for 120 s" in log[-1].reason


def test_a_missing_signal_neither_enters_nor_leaves():
    state = LadderState(rung_count=2, changed_s=0.0)
    for tick in range(1, 30):
        state, step = climb(Signals(time_s=30.0 * tick, ready_count=2), LADDER, state)
        assert step is None
    assert state.rung_count == 2


def test_kv_and_ttft_move_it_too_on_the_worst_replica():
    ladder = replace(
        LADDER,
        rungs=(
            Rung(
                kind="cap_context",
                enter=Mark(kv_fraction=0.9, ttft_p90_s=4.0),
                leave=Mark(kv_fraction=0.7, ttft_p90_s=1.0),
                limit_tokens=8000,
            ),
        ),
    )
    check_ladder(ladder)
    full = signals(waiting=(0, 0), kv=(0.2, 0.95), ttft=0.1)
    state, step = climb(full, ladder, LadderState())
    assert step.reason == "0.95 of the fullest KV memory in use, 0.9 reached"
    slow = signals(waiting=(0, 0), kv=(0.2, 0.3), ttft=5.0)
    assert climb(slow, ladder, LadderState())[0].rung_count == 1
    # An idle fleet has no TTFT: that is calm, where nobody waits.
    for tick in range(1, 7):
        state, step = climb(signals(30.0 * tick, waiting=(0, 0)), ladder, state)
    assert state.rung_count == 0


def test_rungs_are_cumulative_at_the_door():
    assert door_of(LADDER, LadderState()) == Door()
    third = door_of(LADDER, LadderState(rung_count=3))
    assert (third.batch_is_open, third.output_cap_tokens, third.session_limit_count) == (False, 800, NO_CAP)
    assert door_of(LADDER, LadderState(rung_count=4)).session_limit_count == 100
    caps = tuple(rung("cap_context", 8.0, 2.0, limit_tokens=limit) for limit in (4000, 9000))
    assert door_of(replace(LADDER, rungs=caps), LadderState(rung_count=2)).context_cap_tokens == 4000, "the lower one"
    quota = replace(LADDER, rungs=(rung("tenant_quota", 8.0, 2.0, quota_tokens_per_s=50),))
    spent = door_of(quota, LadderState(rung_count=1))
    assert (spent.quota_tokens_per_s, spent.quota_burst_tokens) == (50, 3000), "a minute may be saved up"
    waits = tuple(rung("cap_wait", 8.0, 2.0, wait_s=wait_s) for wait_s in (2.0, 5.0))
    assert door_of(replace(LADDER, rungs=waits), LadderState(rung_count=2)).wait_cap_s == 2.0
    assert replace(LADDER, rungs=waits).caps_waits
    assert not LADDER.caps_waits


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (None, "without an evaluation record"),
        (replace(PASSED, score=0.8), "has helpdesk answers 0.8 and needs 0.9"),
        (replace(PASSED, model="other"), "is of other, not of small"),
    ],
)
def test_a_smaller_model_answers_only_where_it_passed(record, said):
    bad = rung("smaller_model", 16.0, 6.0, model="small", input_tokens=500, evaluation=record)
    with pytest.raises(BadInput, match=said) as error:
        check_ladder(replace(LADDER, rungs=(bad,)))
    assert error.value.problems[0].where == "ladder.rungs[0].evaluation"


def test_every_problem_of_a_ladder_is_told_at_once():
    rungs = (
        rung("shed_batch", 4.0, 4.0),
        rung("cap_output", 8.0, 2.0),
        Rung(kind="tenant_quota", enter=Mark(), leave=Mark(kv_fraction=0.5), quota_tokens_per_s=5),
        rung("pray", 8.0, 2.0),
    )
    with pytest.raises(BadInput) as error:
        check_ladder(Ladder(rungs=rungs, queue_limit_count=0))
    assert [problem.where for problem in error.value.problems] == [
        "ladder.queue_limit",
        "ladder.rungs[0].leave.waiting_count",
        "ladder.rungs[1].limit_tokens",
        "ladder.rungs[2]",
        "ladder.rungs[3].kind",
    ]
    check_ladder(LADDER)


@given(st.lists(st.none() | st.integers(0, 100), max_size=60))
def test_whatever_comes_it_moves_by_one_and_logs_each_move(waits):
    state = LadderState()
    for tick, waiting in enumerate(waits):
        seen = signals(15.0 * tick, waiting=(waiting or 0,))
        before = state
        state, step = climb(replace(seen, waiting=None) if waiting is None else seen, LADDER, state)
        assert 0 <= state.rung_count <= len(LADDER.rungs)
        assert abs(state.rung_count - before.rung_count) == (0 if step is None else 1)
        if step is not None:
            assert step.rung_count == state.rung_count
            assert step.reason
            assert step.kind == LADDER.rungs[max(state.rung_count, before.rung_count) - 1].kind
