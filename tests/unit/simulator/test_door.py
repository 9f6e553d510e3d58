"""The door of a replayed fleet, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from reference.fleets import fleet, trace
from tokenfleet.control import admission
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.run import Status
from tokenfleet.domain.world import Door, Happening, World
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


def test_open_sessions_go_on_and_new_ones_wait():
    rows = [(0, 10, 20), (1, 10, 20), (2, 10, 1), (1000, 10, 1)]
    asked = replace(trace(rows), session=np.array([0, 1, 0, -1], dtype=np.int32))
    record = replay(asked, fleet(), world=World(door=Door(session_limit_count=1)))
    ended = [Status(each) for each in record.status.tolist()]
    assert ended == [Status.FINISHED, Status.REJECTED_NEW_SESSION, Status.FINISHED, Status.FINISHED]


def test_a_door_without_sense_is_refused():
    wrong = Happening(time_s=0.0, kind="door", replicas=())
    with pytest.raises(BadInput, match="only it, has one"):
        statuses(happenings=(wrong,))
    with pytest.raises(BadInput, match="stands for no limit"):
        statuses(door=Door(output_cap_tokens=-1))
    with pytest.raises(BadInput, match="one per request"):
        statuses(batch=np.zeros(2, dtype=bool))
