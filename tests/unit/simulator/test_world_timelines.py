"""Small worlds whose times can be told by hand: every step takes 10 ms, every prompt fits into one step."""

from dataclasses import replace

import numpy as np
import pytest

from reference.fleets import engine, fleet, physics, trace
from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.trace import PrefixTree
from tokenfleet.domain.world import Admission, Clients, ClosedLoop, Happening, ReplicaState, World
from tokenfleet.simulator import replay

ONE_AT_A_TIME = physics(settings=engine(max_sequence_count=1))


def happening(time_s: float, kind: str, *replicas: int, **settings) -> Happening:
    return Happening(time_s=time_s, kind=kind, replicas=replicas, **settings)


def ms(times_s: np.ndarray) -> list[float]:
    return [round(time_s * 1000.0, 6) for time_s in times_s]


def run(rows, on, **settings) -> RunRecord:
    return replay(trace(rows), on, world=World(**settings))


def test_a_request_that_is_lost_with_its_replica_comes_back_to_another() -> None:
    clients = Clients(attempt_count=2, backoff_s=0.1)
    record = run([(0, 10, 5)], fleet(count=2), happenings=(happening(0.025, "fail", 0),), clients=clients)
    assert record.replica.tolist() == [1]
    first_ms = record.ttft_s[0] * 1000.0
    assert 25 + 50 + 10 <= first_ms <= 25 + 100 + 10, "counted from its first attempt; the wait is half to all of it"
    assert (record.turmoil.attempt_count.tolist(), record.turmoil.lost_count) == ([2], 1)
    assert record.gaps.count.sum() == 2 + 4, "two gaps left or were fixed before the failure"


def test_without_a_second_attempt_it_is_lost() -> None:
    record = run([(0, 10, 5), (0, 10, 5)], fleet(count=2), happenings=(happening(0.025, "fail", 0),))
    assert record.status.tolist() == [Status.LOST, Status.FINISHED]
    assert record.replica.tolist() == [0, 1]
    assert np.isnan([record.first_token_s[0], record.finish_s[0]]).all()


def test_a_draining_replica_finishes_and_a_stopping_one_goes_when_it_is_empty() -> None:
    world = (happening(0.005, "drain", 0), happening(0.005, "stop", 1))
    record = run([(0, 10, 3), (0, 10, 5), (10, 10, 9)], fleet(count=3), happenings=world)
    assert record.replica.tolist() == [0, 1, 2]
    assert ms(record.finish_s) == [30, 50, 100]
    assert ms(record.turmoil.state_s[0]) == [0, 0, 5, 95, 0, 0]
    assert ms(record.turmoil.state_s[1]) == [50, 0, 5, 0, 45, 0]
    assert record.turmoil.state_s[2, ReplicaState.READY] == record.end_s


def test_a_replica_that_comes_back_has_an_empty_cache() -> None:
    cached = physics(settings=engine(prefix_caching=True, block_tokens=4))
    rows = trace([(0, 9, 2), (100, 9, 2), (300, 9, 2)])
    tree = PrefixTree(parent=np.array([-1], dtype=np.int32), token_count=np.array([8], dtype=np.int32))
    rows = replace(rows, prefixes=tree, prefix_node=np.zeros(3, dtype=np.int32))
    gone = World(happenings=(happening(0.2, "stop", 0), happening(0.25, "ready", 0)))
    assert replay(rows, fleet(cached), world=gone).cached_tokens.tolist() == [0, 8, 0]
    kept = World(happenings=(happening(0.2, "drain", 0), happening(0.25, "ready", 0)))
    assert replay(rows, fleet(cached), world=kept).cached_tokens.tolist() == [0, 8, 8]


def test_slow_steps_begin_with_the_next_one_and_end_so() -> None:
    world = (happening(0.015, "slow", 0, step_time_factor=2.0), happening(0.045, "slow", 0, step_time_factor=1.0))
    record = run([(0, 10, 5)], fleet(), happenings=world)
    assert ms(record.finish_s) == [10 + 10 + 20 + 20 + 10]


def test_a_full_queue_refuses_and_a_client_waits_as_told() -> None:
    door = Admission(queue_limit_count=1, retry_after_s=0.04)
    clients = Clients(attempt_count=2, backoff_s=0.0)
    record = run([(0, 10, 5), (1, 10, 5), (2, 10, 5)], fleet(ONE_AT_A_TIME), admission=door, clients=clients)
    assert record.status.tolist() == [Status.FINISHED, Status.FINISHED, Status.REJECTED_QUEUE_FULL]
    assert ms(record.finish_s[:2]) == [50, 100]
    assert record.turmoil.refused_count == 2, "at 2 ms and 42 ms, when the second one waits still"
    assert record.end_s == pytest.approx(0.1)


def test_who_waits_until_the_deadline_is_refused_and_comes_back_as_told() -> None:
    door = Admission(deadline_s=0.06, retry_after_s=0.04)
    clients = Clients(attempt_count=2, backoff_s=0.0)
    rows = [(0, 10, 5), (1, 10, 5), (2, 10, 5)]
    record = run(rows, fleet(ONE_AT_A_TIME), admission=door, clients=clients)
    assert record.status.tolist() == [Status.FINISHED] * 3
    assert ms(record.finish_s) == [50, 100, 152], "refused at 62 ms, back at 102"
    assert record.turmoil.attempt_count.tolist() == [1, 1, 2]
    assert record.turmoil.refused_count == 1
    alone = run(rows, fleet(ONE_AT_A_TIME), admission=door)
    assert alone.status.tolist() == [Status.FINISHED, Status.FINISHED, Status.REJECTED_DEADLINE]
    assert alone.replica.tolist() == [0, 0, -1]
    assert ms(alone.turmoil.left_s) == [50, 100, 62]
    assert (alone.turmoil.timed_out_count, alone.turmoil.wasted_output_tokens) == (0, 0)


@pytest.mark.parametrize(("deadline_s", "status"), [(0.05, Status.REJECTED_DEADLINE), (0.051, Status.FINISHED)])
def test_the_deadline_asks_for_the_start_alone(deadline_s: float, status: Status) -> None:
    """The second one would be admitted at 50 ms, and would end at 100: a start at this very moment comes too late."""
    record = run([(0, 10, 5), (0, 10, 5)], fleet(ONE_AT_A_TIME), admission=Admission(deadline_s=deadline_s))
    assert record.status.tolist() == [Status.FINISHED, status]


def test_kv_that_is_here_waits_past_the_deadline() -> None:
    rows = replace(trace([(0, 10, 5), (0, 10, 5)]), kv_delivered=np.array([False, True]))
    world = World(admission=Admission(deadline_s=0.02))
    assert replay(rows, fleet(ONE_AT_A_TIME), world=world).status.tolist() == [Status.FINISHED] * 2


def test_a_client_that_gives_up_at_the_deadline_is_gone_first() -> None:
    clients = Clients(first_token_timeout_s=0.02)
    record = run([(0, 10, 5), (0, 10, 5)], fleet(ONE_AT_A_TIME), admission=Admission(deadline_s=0.02), clients=clients)
    assert record.status.tolist() == [Status.FINISHED, Status.TIMED_OUT]


def test_a_full_replica_is_passed_over() -> None:
    door = Admission(queue_limit_count=1)
    record = run(
        [(0, 10, 5), (1, 10, 5), (2, 10, 5)], fleet(ONE_AT_A_TIME, count=2, router="round_robin"), admission=door
    )
    assert record.replica.tolist() == [0, 1, 0]
    four = run(
        [(0, 10, 5), (1, 10, 5)] + [(2, 10, 5)] * 3, fleet(ONE_AT_A_TIME, count=2, router="round_robin"), admission=door
    )
    assert four.replica.tolist() == [0, 1, 0, 1, -1]


def test_a_user_sends_the_next_request_after_thinking() -> None:
    loop = ClosedLoop(after=np.array([-1, 0, 1], dtype=np.int32), delay_s=np.array([0.0, 0.1, 0.0]))
    record = run([(5, 10, 2), (5, 10, 2), (5, 10, 1)], fleet(), closed_loop=loop)
    assert ms(record.arrival_s) == [5, 125, 145]
    assert ms(record.finish_s) == [25, 145, 155]


def test_whoever_is_free_takes_the_next_in_line() -> None:
    loop = ClosedLoop(after=np.array([-1, -1, -2, -2], dtype=np.int32), delay_s=np.zeros(4))
    record = run([(0, 10, 2), (0, 10, 5), (0, 10, 2), (0, 10, 2)], fleet(), closed_loop=loop)
    assert ms(record.finish_s) == [20, 50, 50, 70]


def test_a_request_that_ends_badly_still_releases_the_next() -> None:
    loop = ClosedLoop(after=np.array([-1, 0], dtype=np.int32), delay_s=np.array([0.0, 0.2]))
    record = run([(0, 10, 5), (0, 10, 5)], fleet(count=2), closed_loop=loop, happenings=(happening(0.025, "fail", 0),))
    assert record.status.tolist() == [Status.LOST, Status.FINISHED]
    assert ms(record.arrival_s) == [0, 225]


def test_a_controller_is_shown_waits_by_priority_and_tokens() -> None:
    views = []

    def look(view):
        views.append(view)
        return []

    # One at a time, 10 ms a step: who runs has 11 to 15 tokens; at 35 ms the second one has waited for 30 ms.
    rows = [(0, 10, 5), (5, 10, 5), (20, 10, 5)]
    ranked = replace(trace(rows), priority=np.array([0, 2, 0], dtype=np.int32))
    replay(ranked, fleet(ONE_AT_A_TIME), world=World(controller=look, tick_s=0.035, looks_inside=True))
    first = views[0]
    assert {priority: ms(waits) for priority, waits in first.oldest_wait_s.items()} == {0: [15], 2: [30]}
    assert first.active_tokens.tolist() == [13]
    assert first.free_kv_tokens[0] < views[-1].free_kv_tokens[0] + 16
    blind = []
    run(rows, fleet(ONE_AT_A_TIME), controller=lambda view: blind.append(view) or [], tick_s=0.035)
    assert (blind[0].oldest_wait_s, blind[0].active_tokens) == (None, None)


def test_a_controller_starts_replicas_and_they_are_ready_later() -> None:
    def more(view):
        if view.waiting.sum() > 1 and view.state[1] == ReplicaState.ABSENT:
            return [
                happening(view.time_s, "start", 1, reason="2 wait"),
                happening(view.time_s + 0.05, "ready", 1),
            ]
        return []

    rows = [(0, 10, 5)] * 4 + [(90, 10, 5)]
    record = run(rows, fleet(ONE_AT_A_TIME, count=2), absent=(1,), controller=more, tick_s=0.02)
    assert record.replica.tolist() == [0, 0, 0, 0, 1]
    assert [(each.kind, round(each.time_s, 6)) for each in record.turmoil.decisions] == [
        ("start", 0.02),
        ("ready", 0.07),
    ]
    assert ms(record.turmoil.state_s[1]) == [20, 50, 130, 0, 0, 0]
