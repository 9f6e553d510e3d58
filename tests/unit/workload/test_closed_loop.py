"""Closed loops made of traces: who waits for whom, and who for a user."""

import numpy as np
import pytest

from reference.fleets import fleet, trace
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.world import World
from tokenfleet.simulator import replay
from tokenfleet.workload import close_loop


def test_turns_wait_for_the_turn_before_and_sessions_start_by_the_clock() -> None:
    rows = trace([(10 * i, 5, 2) for i in range(6)], session=np.array([3, -1, 3, 7, 7, 3], dtype=np.int32))
    same, loop = close_loop(rows)
    assert loop.after.tolist() == [-1, -1, 0, -1, 3, 2]
    assert (same.arrival_s == rows.arrival_s).all()
    assert (loop.delay_s == 0.0).all()


def test_users_take_the_sessions_in_order() -> None:
    rows = trace([(10 * i, 5, 2) for i in range(6)], session=np.array([3, -1, 3, 7, 7, 3], dtype=np.int32))
    users, loop = close_loop(rows, user_count=2, ramp_s=1.0)
    assert loop.after.tolist() == [-1, -1, 0, -2, 3, 2]
    assert users.arrival_s.tolist() == [0.0, 0.5, 0.5, 0.5, 0.5, 0.5]
    more, loop = close_loop(rows, user_count=9)
    assert loop.after.tolist() == [-1, -1, 0, -1, 3, 2]
    assert (more.arrival_s == 0.0).all()


def test_concurrency_is_fixed_without_sessions_and_thinking() -> None:
    rows, loop = close_loop(trace([(i, 5, 3 + i % 9) for i in range(200)]), user_count=5)
    run = replay(rows, fleet(), world=World(closed_loop=loop), telemetry_interval_s=0.030037)
    inside = (run.telemetry.running + run.telemetry.waiting).sum(axis=1)
    busy = run.telemetry.time_s < np.sort(run.finish_s)[-5]
    assert (inside[busy] == 5).all()


def test_thinking_is_drawn_with_its_mean_and_the_seed_decides() -> None:
    rows = trace([(i, 5, 3) for i in range(5000)])
    first, again, other = (close_loop(rows, user_count=2, think_s=4.0, seed=seed)[1].delay_s for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    assert first.mean() == pytest.approx(4.0, rel=0.05)


def test_every_problem_at_once() -> None:
    with pytest.raises(BadInput) as caught:
        close_loop(trace([(0, 5, 3)]), user_count=0, think_s=-1.0, ramp_s=float("nan"))
    for part in ("0 users", "think_s: -1.0 s", "ramp_s: nan s"):
        assert part in str(caught.value)
