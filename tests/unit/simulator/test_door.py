"""The door of a replayed fleet, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from reference.fleets import MS, engine, fleet, physics, step_time, trace
from tokenfleet.control import admission
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.run import Degraded, Status
from tokenfleet.domain.world import Admission, Door, Happening, World
from tokenfleet.simulator import replay

ROWS = [(0, 10, 4), (0, 10, 9), (500, 10, 9), (1500, 10, 9), (1600, 40, 1)]


def statuses(rows=ROWS, **world):
    return [Status(each) for each in replay(trace(rows), fleet(), world=World(**world)).status.tolist()]


def test_codes_of_the_door_and_statuses_go_hand_in_hand():
    codes = ("BATCH_SHED", "QUOTA_SPENT", "SESSION_REFUSED", "CONTEXT_CAPPED", "OUTPUT_CAPPED")
    names = ("BATCH_SHED", "QUOTA_SPENT", "NEW_SESSION", "CONTEXT_CAP", "OUTPUT_CAP")
    for code, name in zip(codes, names, strict=True):
        offset = getattr(admission, code) - admission.BATCH_SHED
        assert Status[f"REJECTED_{name}"] == Status.REJECTED_BATCH_SHED + offset


def test_a_wait_cap_is_that_of_who_comes_while_it_holds():
    rows = [(0, 10, 300), (0, 10, 300), (1, 10, 300), (2, 10, 300)]
    one = Fleet(groups=(ReplicaGroup(replica=physics(settings=engine(max_sequence_count=1)), replica_count=1),))

    def ends(**world):
        return [Status(each) for each in replay(trace(rows), one, world=World(**world)).status.tolist()]

    cap, lift = (
        Happening(time_s=time_s, kind="door", replicas=(), door=door)
        for time_s, door in ((0.0005, Door(wait_cap_s=0.02)), (0.0015, Door()))
    )
    assert ends() == [Status.FINISHED] * 4
    refused = [Status.FINISHED, Status.FINISHED, Status.REJECTED_DEADLINE, Status.FINISHED]
    assert ends(happenings=(cap, lift)) == refused
    # The shorter of it and the deadline that always holds.
    assert ends(happenings=(cap, lift), admission=Admission(deadline_s=0.01))[1:] == [Status.REJECTED_DEADLINE] * 3
    with pytest.raises(BadInput, match="wait_cap_s"):
        ends(door=Door(wait_cap_s=0.0))
    with pytest.raises(ValueError, match="caps_waits"):
        ends(controller=lambda view: [replace(cap, time_s=view.time_s)], tick_s=0.01)


def test_a_cap_holds_from_the_moment_it_is_set_until_it_is_lifted():
    cap, lift = (
        Happening(time_s=time_s, kind="door", replicas=(), door=door, reason="by hand")
        for time_s, door in ((0.2, Door(output_cap_tokens=8)), (1.0, Door()))
    )
    ended = statuses(happenings=(cap, lift))
    assert ended == [Status.FINISHED, Status.FINISHED, Status.REJECTED_OUTPUT_CAP, Status.FINISHED, Status.FINISHED]
    record = replay(trace(ROWS), fleet(), world=World(happenings=(cap, lift)))
    assert [(each.time_s, each.kind, each.reason) for each in record.turmoil.decisions] == [
        (0.2, "door", "by hand"),
        (1.0, "door", "by hand"),
    ]


def test_context_counts_prompt_and_output_limit():
    ended = statuses(door=Door(context_cap_tokens=19))
    assert ended == [*[Status.FINISHED] * 4, Status.REJECTED_CONTEXT_CAP]


def test_batch_is_shed_and_others_are_not():
    ended = statuses(door=Door(batch_is_open=False), batch=np.array([False, True, False, True, False]))
    assert [each == Status.REJECTED_BATCH_SHED for each in ended] == [False, True, False, True, False]


def test_each_tenant_has_its_own_quota_and_nobody_passes_it():
    rng = np.random.default_rng(5)
    rows = np.column_stack([np.sort(rng.uniform(0, 20_000, 400)), rng.integers(1, 20, 400), rng.integers(1, 8, 400)])
    asked = replace(trace(rows), tenant=rng.integers(-1, 2, 400).astype(np.int32), tenants=("a", "b"))
    door = Door(quota_tokens_per_s=30, quota_burst_tokens=60)
    record = replay(asked, fleet(count=8), world=World(door=door))
    served = record.status == Status.FINISHED
    assert served[asked.tenant == -1].all(), "without a tenant there is no quota"
    for tenant in (0, 1):
        mine = (asked.tenant == tenant) & served
        used = np.cumsum((asked.input_tokens + asked.output_tokens)[mine])
        assert (used <= 60 + 30 * asked.arrival_s[mine] + 1e-6).all()
        assert used[-1] > 0.9 * 30 * 20
        assert (record.status[(asked.tenant == tenant) & ~served] == Status.REJECTED_QUOTA_SPENT).all()


def in_sessions(rows, sessions, idle_s, **door):
    asked = replace(trace(rows), session=np.array(sessions, dtype=np.int32))
    world = World(door=Door(**door), admission=Admission(session_idle_s=idle_s))
    return [Status(each) for each in replay(asked, fleet(), world=world).status.tolist()]


def test_open_sessions_go_on_and_new_ones_wait():
    rows = [(0, 10, 20), (1, 10, 20), (2, 10, 1), (1000, 10, 1)]
    ended = in_sessions(rows, [0, 1, 0, -1], 0.1, session_limit_count=1)
    assert ended == [Status.FINISHED, Status.REJECTED_NEW_SESSION, Status.FINISHED, Status.FINISHED]


def test_a_session_is_open_while_its_user_reads_and_no_longer_than_a_door_can_know():
    refused, served = Status.REJECTED_NEW_SESSION, Status.FINISHED
    # The first turn ends at 40 ms; its session counts as open for 10 s more, though nothing is in flight.
    rows = [(0, 10, 3), (5_000, 10, 1), (9_000, 10, 3), (19_500, 10, 1), (19_600, 10, 1)]
    assert in_sessions(rows, [0, 1, 0, 1, 0], 10.0, session_limit_count=1) == [served, refused, served, served, refused]
    alone = in_sessions([(0, 10, 3), (1, 10, 3), (100, 10, 3)], [-1, -1, -1], 10.0, session_limit_count=1)
    assert alone == [served, refused, served], "a request without a session is one of its own, and ends with it"


def test_several_requests_of_one_session_are_one_session():
    rows = [(0, 10, 30), (1, 10, 30), (2, 10, 30), (3, 10, 1)]
    ended = in_sessions(rows, [0, 0, 0, 1], 1.0, session_limit_count=2)
    assert ended == [Status.FINISHED] * 4


def test_a_session_that_was_refused_is_not_open():
    rows = [(0, 10, 40), (1, 10, 5), (20, 10, 5), (30_000, 10, 5)]
    ended = in_sessions(rows, [0, 1, 1, 1], 1.0, session_limit_count=1)
    assert ended[1:] == [Status.REJECTED_NEW_SESSION, Status.REJECTED_NEW_SESSION, Status.FINISHED]


def beside_smaller(rows, count=1, **world):
    """One replica of the model that is asked for, and some of the smaller one, each step half as long."""
    usual = ReplicaGroup(replica=physics(), replica_count=1)
    quick = physics(time=step_time(token_ps=np.full(65, 5 * MS)), blocks=10)
    both = Fleet(groups=(usual, ReplicaGroup(replica=quick, replica_count=count, is_smaller_model=True)))
    return replay(trace(rows), both, world=World(**world))


def test_short_requests_go_to_the_smaller_model_while_the_rung_is_up():
    rows = [(0, 10, 4), (500, 10, 4), (600, 30, 4), (700, 10, 9), (1500, 10, 4)]
    up, down = (
        Happening(time_s=time_s, kind="door", replicas=(), door=door, reason="by hand")
        for time_s, door in ((0.4, Door(smaller_input_tokens=20, smaller_output_tokens=8)), (1.0, Door()))
    )
    record = beside_smaller(rows, happenings=(up, down))
    assert record.status.tolist() == [Status.FINISHED] * 5
    assert record.turmoil.degraded.tolist() == [0, Degraded.SMALLER_MODEL, 0, 0, 0]
    assert record.replica.tolist() == [0, 1, 0, 0, 0]
    assert record.e2e_s[1] == pytest.approx(record.e2e_s[0] / 2)


def test_where_the_smaller_model_has_no_room_or_cannot_the_model_itself_answers():
    door = Door(smaller_input_tokens=100)
    too_long_there = beside_smaller([(0, 45, 4)], door=door)
    assert too_long_there.turmoil.degraded.tolist() == [0]
    assert too_long_there.replica.tolist() == [0]
    rows = [(0, 10, 20), *[(1 + row, 10, 20) for row in range(12)]]
    crowded = beside_smaller(rows, door=door, admission=Admission(queue_limit_count=2))
    assert 0 < crowded.turmoil.degraded.sum() < len(rows)
    failed = Happening(time_s=0.0, kind="fail", replicas=(1,))
    gone = beside_smaller([(1, 10, 4)], door=door, happenings=(failed,))
    assert (gone.status[0], gone.turmoil.degraded[0], gone.replica[0]) == (Status.FINISHED, 0, 0)


def test_a_cap_holds_for_those_that_come_back_from_the_smaller_model():
    failed = Happening(time_s=0.0, kind="fail", replicas=(1,))
    door = Door(smaller_input_tokens=100, output_cap_tokens=3)
    assert beside_smaller([(1, 10, 4)], door=door).status.tolist() == [Status.FINISHED]
    gone = beside_smaller([(1, 10, 4)], door=door, happenings=(failed,))
    assert gone.status.tolist() == [Status.REJECTED_OUTPUT_CAP]


def test_nobody_is_sent_to_the_smaller_model_unasked():
    rows = [(row, 10, 20) for row in range(30)]
    assert not beside_smaller(rows).turmoil.degraded.any()
    groups = tuple(ReplicaGroup(replica=physics(), replica_count=2, is_smaller_model=small) for small in (False, True))
    quiet = replay(trace(rows), Fleet(groups=groups))
    assert set(quiet.replica.tolist()) == {0, 1}
    with pytest.raises(BadInput, match="smaller model before others"):
        replay(trace(rows), Fleet(groups=groups[::-1]))


class Watcher:
    """Remembers the views."""

    def __init__(self):
        self.views = []

    def __call__(self, view):
        self.views.append(view)
        return []


def test_a_controller_sees_the_model_it_watches_alone():
    rows = [(10 * row, 10, 20) for row in range(40)]
    watcher = Watcher()
    record = beside_smaller(rows, door=Door(smaller_input_tokens=20), controller=watcher, tick_s=0.1)
    assert record.turmoil.degraded.all()
    assert {len(view.state) for view in watcher.views} == {1}
    assert sum(view.arrived_count for view in watcher.views) == 0
    assert all(view.ttft_p90_s is None for view in watcher.views)


def test_a_door_without_sense_is_refused():
    wrong = Happening(time_s=0.0, kind="door", replicas=())
    with pytest.raises(BadInput, match="only it, has one"):
        statuses(happenings=(wrong,))
    with pytest.raises(BadInput, match="stands for no limit"):
        statuses(door=Door(output_cap_tokens=-1))
    with pytest.raises(BadInput, match="one per request"):
        statuses(batch=np.zeros(2, dtype=bool))
