"""The batch lane by hand: windows, free slots, who gives way, and that nobody starves. Every step takes 10 ms."""

from dataclasses import replace

import numpy as np
import pytest

from reference.fleets import engine, fleet, physics, trace
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.world import BatchLane, Happening, World
from tokenfleet.simulator import replay

HOUR_MS = 3_600_000
FEW = physics(settings=engine(max_sequence_count=2), blocks=500)
"""Two slots."""


def served(rows, batch, *, count=1, happenings=(), **lane) -> RunRecord:
    world = World(batch=np.array(batch, dtype=bool), lane=BatchLane(**lane), happenings=happenings)
    return replay(trace(rows), fleet(FEW, count=count), world=world)


def ms(times_s) -> list[float]:
    return np.round(np.asarray(times_s) * 1000.0, 3).tolist()


def test_batch_waits_for_its_window_and_what_is_late_for_the_next_one() -> None:
    rows = [(HOUR_MS, 10, 3), (3 * HOUR_MS, 10, 3), (20 * HOUR_MS, 10, 3)]
    record = served(rows, [True, True, True], opens_s=2 * 3600.0, open_for_s=4 * 3600.0)
    begun_h = np.round((record.finish_s - 0.03) / 3600.0, 6)
    assert begun_h.tolist() == [2.0, 3.0, 26.0]
    assert (record.arrival_s * 1000).tolist() == [row[0] for row in rows], "counted from when it came"


def test_a_window_closes_on_those_still_in_the_lane() -> None:
    # Each takes 20 minutes alone in its slot; two slots, so two of five are done in the 25 minutes of the window.
    rows = [(0, 10, 120_000)] * 5
    long = physics(settings=engine(max_sequence_count=2), blocks=200_000)
    world = World(batch=np.ones(5, dtype=bool), lane=BatchLane(open_for_s=1500.0, kept_count=0))
    record = replay(trace(rows), fleet(long), world=world)
    started_h = (record.first_token_s // 3600).tolist()
    assert started_h == [0.0, 0.0, 0.0, 0.0, 24.0], "one more pair at minute 20, the last one a day later"


def test_batch_fills_free_slots_only_and_in_order() -> None:
    rows = [(0, 10, 10), (1, 10, 10), (2, 10, 10), (3, 10, 10)]
    record = served(rows, [True] * 4, kept_count=0)
    first, second, third, fourth = ms(record.finish_s)
    assert first < second < third < fourth
    assert ms(record.first_token_s)[2] == pytest.approx(first + 10, abs=10), "the step after a slot is free"
    half = served(rows, [True] * 4, kept_count=0, slot_fraction=0.5)
    assert (half.first_token_s[1:] > half.finish_s[:-1]).all()
    assert record.preemption_count.sum() == half.preemption_count.sum() == 0


def test_running_batch_gives_way_to_who_finds_no_slot() -> None:
    rows = [(0, 10, 50), (1, 10, 50), (105, 10, 5)]
    record = served(rows, [True, True, False])
    # The step under way ends at 110 ms; then the one that came last makes room, and its prefill yields the token.
    assert ms(record.first_token_s)[2] == 120
    assert record.preemption_count.tolist() == [0, 1, 0]
    assert record.finish_s[1] > record.finish_s[0] > record.finish_s[2]
    plain = replay(trace(rows), fleet(FEW))
    assert plain.first_token_s[2] > 0.5, "without a lane it waits for a slot"


def test_an_interactive_request_waits_for_so_long_before_anybody_gives_way() -> None:
    rows = [(0, 10, 50), (1, 10, 50), (105, 10, 5)]
    record = served(rows, [True, True, False], wait_s=0.2)
    assert ms(record.first_token_s)[2] == 320, "due at 305 ms, seen at 310 ms"
    short = served([(0, 10, 20), (1, 10, 50), (105, 10, 5)], [True, True, False], wait_s=0.2)
    assert short.preemption_count.sum() == 0, "a slot was free before that"


def test_interactive_requests_give_way_to_nobody_and_batch_not_to_batch() -> None:
    rows = [(0, 10, 50), (1, 10, 50), (105, 10, 5)]
    assert served(rows, [False, False, False]).preemption_count.sum() == 0
    assert served(rows, [True, True, True], kept_count=3).preemption_count.sum() == 0


def test_who_finds_no_kv_memory_is_made_room_for_too() -> None:
    small = physics(settings=engine(max_sequence_count=8), blocks=10)
    world = World(batch=np.array([True, False]), lane=BatchLane())
    record = replay(trace([(0, 30, 8), (15, 20, 4)]), fleet(small), world=world)
    assert record.preemption_count.tolist() == [1, 0]
    assert record.finish_s[1] < record.finish_s[0]


def test_patience_ends_giving_way() -> None:
    rows = [(0, 10, 50), (1, 10, 50), *[(105 + 60 * row, 10, 20) for row in range(20)]]
    batch = [True, True] + [False] * 20
    patient = served(rows, batch, patience_s=600.0)
    hasty = served(rows, batch, patience_s=0.3)
    assert hasty.finish_s[:2].max() < patient.finish_s[:2].max()
    assert hasty.finish_s[2:].max() > patient.finish_s[2:].min()


def test_nobody_starves_however_busy_the_fleet_is() -> None:
    """Twice as many interactive requests as fit, for a minute: batch goes on all the same, one at a time."""
    draw = np.random.default_rng(0)
    arrival_ms = np.sort(draw.uniform(0, 60_000, 1200))
    batch = np.zeros(1200, dtype=bool)
    batch[:60:2] = True
    rows = np.column_stack([arrival_ms, draw.integers(5, 30, 1200), draw.integers(5, 30, 1200)])
    going, standing = (served(rows, batch, patience_s=1.0, kept_count=kept) for kept in (1, 0))
    assert (going.status == Status.FINISHED).all()
    assert (standing.status == Status.FINISHED).all()
    assert (going.finish_s[batch] < 60.0).sum() > (standing.finish_s[batch] < 60.0).sum()


def test_the_morning_peak_is_as_if_there_were_no_job_of_the_night() -> None:
    """A backlog that would take an hour, and a rush in the middle of it."""
    job = [(0, 40, 400)] * 200
    rush = [(60_000 + 30 * row, 10, 5) for row in range(200)]
    batch = np.array([True] * 200 + [False] * 200)
    lane, alone, mixed = (
        replay(trace(rows), fleet(FEW), world=world)
        for rows, world in (
            (job + rush, World(batch=batch, lane=BatchLane(kept_count=0))),
            (rush, World()),
            (job + rush, World()),
        )
    )
    felt, usual, without = (np.quantile(each, 0.95) for each in (lane.ttft_s[200:], alone.ttft_s, mixed.ttft_s[200:]))
    assert felt < 2 * usual + 0.03
    assert without > 100 * felt
    assert (lane.status == Status.FINISHED).all()


def test_what_nobody_will_ever_serve_is_turned_away() -> None:
    gone = Happening(time_s=0.05, kind="fail", replicas=(0,))
    record = served([(0, 10, 2), (100, 10, 2)], [True, True], happenings=(gone,))
    assert record.status.tolist() == [Status.FINISHED, Status.REJECTED_NOBODY_READY]
    back = Happening(time_s=900.0, kind="ready", replicas=(0,))
    late = served([(0, 10, 2), (100, 10, 2)], [True, True], happenings=(gone, back))
    assert late.status.tolist() == [Status.FINISHED] * 2
    assert late.finish_s[1] > 900.0


def test_a_lane_that_makes_no_sense_is_refused() -> None:
    rows, batch = trace([(0, 10, 2)]), np.array([True])
    for lane, said in (
        (BatchLane(slot_fraction=0.0), "above 0, at most 1"),
        (BatchLane(open_for_s=0.0), "a part of a day above 0"),
        (BatchLane(patience_s=-1.0), "0 up to a day"),
        (BatchLane(kept_count=-1), "at least 0"),
    ):
        with pytest.raises(BadInput, match=said):
            replay(rows, fleet(), world=World(batch=batch, lane=lane))
    with pytest.raises(BadInput, match="nobody says which requests are batch"):
        replay(rows, fleet(), world=World(lane=BatchLane()))
    for odd in ("sglang-0.5", "trtllm-1.2"):
        with pytest.raises(BadInput, match=f"{odd} beside a batch lane"):
            replay(rows, fleet(physics(settings=engine(name=odd))), world=World(batch=batch, lane=BatchLane()))
    with pytest.raises(BadInput, match="tiers of its own"):
        replay(rows, replace(fleet(), router="by_tier"), world=World(batch=batch, lane=BatchLane()))
