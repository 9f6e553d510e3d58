"""A verdict for each cause, on runs made by hand."""

import dataclasses

import numpy as np
import pytest

from handmade import telemetry_of
from tokenfleet.contract import DiagnosisLimits, diagnose
from tokenfleet.domain.run import BusyTime, GapHistogram, RunRecord, Status, Turmoil
from tokenfleet.domain.world import ReplicaState

EDGES_S = np.array([0.0, 0.01, 0.02, 0.04, 0.08, 0.16])
FAST, SLOW = 1, 4
"""Bins of 10 to 20 ms and of 80 to 160 ms."""


def gaps(bin_number, count=1000):
    counts = np.zeros(5, dtype=np.int64)
    counts[bin_number] = count
    return GapHistogram(lower_s=EDGES_S, count=counts)


def telemetry(waiting, kv=0.3, running=8):
    """One column per replica, one row per moment."""
    waiting = np.array(waiting, dtype=np.int32)
    return telemetry_of(
        np.arange(1.0, len(waiting) + 1.0),
        np.full(waiting.shape, running, dtype=np.int32),
        waiting,
        np.broadcast_to(np.array(kv, dtype=float), waiting.shape).copy(),
    )


def run(ttft_s=0.1, gap=FAST, *, prefill=0.5, gauges=None, count=100, **changes):
    arrival = np.arange(count) * 0.1
    record = RunRecord(
        arrival_s=arrival,
        first_token_s=arrival + ttft_s,
        finish_s=arrival + ttft_s + 1.0,
        input_tokens=np.full(count, 100, dtype=np.int32),
        output_tokens=np.full(count, 11, dtype=np.int32),
        cached_tokens=np.zeros(count, dtype=np.int32),
        preemption_count=np.zeros(count, dtype=np.int32),
        replica=np.zeros(count, dtype=np.int32),
        status=np.zeros(count, dtype=np.int8),
        gaps=gaps(gap),
        peak_gaps=None,
        busy=BusyTime(
            prefill_s=8.0 * prefill, decode_s=8.0 * (1 - prefill), cached_prefix_s=0.0, step_count=9, mixed_step_count=3
        ),
        replica_count=1,
        end_s=10.0,
        telemetry=telemetry([[0], [0]]) if gauges is None else gauges,
    )
    return dataclasses.replace(record, **changes)


QUEUE = [[0], [6], [8]]


@pytest.mark.parametrize(
    ("loaded", "verdict"),
    [
        (run(), "fine"),
        (run(0.29), "fine"),
        (run(1.0), "prefill"),
        (run(gap=SLOW), "decode"),
        (run(gap=SLOW, prefill=0.7), "shared_steps"),
        (run(1.0, SLOW, prefill=0.7), "prefill"),
        (run(1.0, SLOW, prefill=0.3), "decode"),
        (run(1.0, SLOW, prefill=0.5), "prefill_and_decode"),
        (run(1.0, gauges=telemetry(QUEUE, kv=0.95), prefill=0.3), "kv"),
        (run(1.0, SLOW, gauges=telemetry(QUEUE, kv=0.95), prefill=0.3), "kv"),
        (run(1.0, gauges=telemetry(QUEUE, kv=0.95), prefill=0.8), "prefill"),
        (run(1.0, gauges=telemetry(QUEUE, kv=0.5), prefill=0.3), "prefill"),
        (run(1.0, gauges=telemetry(QUEUE, running=16), prefill=0.3), "sequence_slots"),
        (run(0.1, gauges=telemetry(QUEUE, kv=0.95)), "fine"),
    ],
)
def test_each_cause_has_its_verdict(loaded, verdict):
    assert diagnose(loaded, run(), slot_counts=[16]).verdict == verdict


def test_only_the_longest_queues_tell_a_cause():
    """Arrivals that wait for the next step must not hide what the real queue waits for."""
    steps = [[1]] * 20
    gauges = telemetry([*steps, [9], [5]], kv=[*([[0.2]] * 20), [0.95], [0.2]])
    found = diagnose(run(1.0, gauges=gauges, prefill=0.3), run())
    assert found.kv_held_fraction == pytest.approx(9 / 14)
    assert found.queued_fraction == 1.0
    assert found.verdict == "kv"


def test_the_figures_stand_beside_the_verdict():
    found = diagnose(run(1.0, gauges=telemetry([[0, 0], [2, 7]]), prefill=0.25, replica_count=2), run())
    assert found.ttft.factor == pytest.approx(10.0)
    assert (found.ttft.up, found.itl.up) == (True, False)
    assert found.itl.loaded_s == found.itl.alone_s == 0.02
    assert (found.waiting_peak_count, found.waiting_peak_replica) == (7, 1)
    assert found.busy_fraction == pytest.approx(8.0 / 20.0)
    assert found.prefill_fraction == pytest.approx(0.25)
    assert found.queued_fraction == pytest.approx(0.5)
    assert found.slots_held_fraction is None


def test_the_work_of_the_tight_stretch_decides_where_it_is_given():
    loaded = run(1.0, SLOW, prefill=0.1)
    assert diagnose(loaded, run()).verdict == "decode"
    assert diagnose(loaded, run(), prefill_fraction=0.9).verdict == "prefill"


@pytest.mark.parametrize(
    ("waiting", "alarm"), [(0, "none"), (10, "none"), (11, "warning"), (50, "warning"), (51, "emergency")]
)
def test_queues_alarm(waiting, alarm):
    assert diagnose(run(gauges=telemetry([[0, waiting]])), run()).alarm == alarm


def test_every_limit_can_be_set():
    queue = telemetry([[3]])
    strict = DiagnosisLimits(waiting_warning_count=1, waiting_emergency_count=2, ttft_up_factor=1.5)
    assert diagnose(run(0.2, gauges=queue), run()).verdict == "fine"
    found = diagnose(run(0.2, gauges=queue), run(), strict)
    assert (found.verdict, found.alarm) == ("prefill", "emergency")
    loose = DiagnosisLimits(itl_up_factor=20.0)
    assert diagnose(run(gap=SLOW), run(), loose).verdict == "fine"


def test_a_slow_client_of_a_fast_fleet():
    seen = np.full(100, 0.5)
    assert diagnose(run(), run(), client_ttft_s=seen).verdict == "client"
    assert diagnose(run(), run(), client_e2e_s=np.full(100, 3.0)).verdict == "client"
    close = diagnose(run(), run(), client_ttft_s=np.full(100, 0.15))
    assert (close.verdict, close.client_ttft.up) == ("fine", False)
    assert diagnose(run(1.0), run(), client_ttft_s=np.full(100, 5.0)).verdict == "prefill", "the fleet comes first"
    unknown = diagnose(run(), run(), client_ttft_s=np.full(100, np.nan))
    assert (unknown.verdict, unknown.client_ttft.factor) == ("fine", None)


def test_a_window_looks_at_its_own_requests_moments_and_gaps():
    late = np.where(np.arange(100) < 50, 0.1, 1.0)
    record = run(peak_gaps=gaps(SLOW), gauges=telemetry([[0], [99], [2]]))
    record = dataclasses.replace(record, first_token_s=record.arrival_s + late)
    early = diagnose(record, run(), window_s=(0.0, 1.5))
    assert (early.verdict, early.waiting_peak_count) == ("decode", 0)
    whole = diagnose(record, run())
    assert (whole.verdict, whole.waiting_peak_count) == ("prefill", 99)
    with pytest.raises(ValueError, match="gaps of the window"):
        diagnose(run(), run(), window_s=(0.0, 1.0))


def test_what_nobody_saw_is_unknown():
    nothing = run(np.nan, status=np.full(100, Status.REJECTED_TOO_LONG, dtype=np.int8), gaps=gaps(FAST, 0))
    found = diagnose(nothing, run())
    assert (found.verdict, found.refused_count, found.tail_gap_s) == ("unknown", 100, None)
    blind = dataclasses.replace(run(1.0), telemetry=None)
    found = diagnose(blind, run())
    assert (found.verdict, found.alarm, found.waiting_peak_count) == ("prefill", "unknown", None)


def test_every_kind_of_refusal_counts():
    status = np.zeros(100, dtype=np.int8)
    status[:7], status[7:10], status[10] = Status.REJECTED_QUEUE_FULL, Status.REJECTED_TOO_LONG, Status.LOST
    status[11:13] = Status.TIMED_OUT
    found = diagnose(run(status=status), run())
    assert found.refused_count == 10
    assert found.refused_by == {"rejected_too_long": 3, "rejected_queue_full": 7}
    assert (found.lost_count, found.timed_out_count) == (1, 2)


def test_first_tokens_that_wait_for_the_cpu_are_nobody_elses_fault():
    late = run(1.0, gauges=telemetry(QUEUE, kv=0.95))
    in_front_end = diagnose(dataclasses.replace(late, ready_s=late.arrival_s + 0.6), run())
    assert (in_front_end.verdict, in_front_end.front_end_fraction) == ("front_end", pytest.approx(0.6))
    assert diagnose(dataclasses.replace(late, ready_s=late.arrival_s + 0.4), run()).verdict == "kv"
    assert diagnose(late, run()).front_end_fraction is None


def test_requests_that_had_to_come_back_blame_no_replica():
    ttft_s = np.full(100, 0.1)
    ttft_s[:20] = 12.0
    turmoil = Turmoil(
        attempt_count=np.where(ttft_s > 1.0, 2, 1).astype(np.int32),
        degraded=np.zeros(100, dtype=np.int8),
        refused_count=0,
        lost_count=20,
        cancelled_count=0,
        timed_out_count=0,
        wasted_output_tokens=0,
        left_s=np.full(100, 2.0),
        partial_output_tokens=np.zeros(100, dtype=np.int32),
        state_s=np.full((1, len(ReplicaState)), 2.0),
        spells=(),
        decisions=(),
    )
    found = diagnose(run(ttft_s, turmoil=turmoil), run())
    assert (found.verdict, found.sent_again_count) == ("fine", 20)
    assert diagnose(run(ttft_s), run()).verdict == "prefill"


def test_a_first_token_that_a_client_gave_up_waiting_for_never_came():
    def given_up(count):
        status = np.zeros(100, dtype=np.int8)
        status[:count] = Status.TIMED_OUT
        return run(np.where(status == Status.TIMED_OUT, np.nan, 0.1), status=status, prefill=0.8)

    late = diagnose(given_up(6), run())
    assert (late.verdict, late.ttft.up, late.ttft.loaded_s, late.ttft.factor) == ("prefill", True, None, None)
    assert late.ttft.never_fraction == pytest.approx(0.06)
    assert diagnose(given_up(5), run()).verdict == "fine", "p95 is the 95th of a hundred"
    assert diagnose(given_up(100), run(), mixed=True).ttft.up
    slow = np.where(np.arange(100) < 6, Status.TIMED_OUT, Status.FINISHED).astype(np.int8)
    assert diagnose(run(0.1, status=slow), run()).ttft.never_fraction == 0.0, "they had their first token"


def test_kinds_of_replicas_are_not_compared_with_each_other():
    def halves(fast, slow):
        count = np.zeros(len(gaps(FAST).count), dtype=np.int64)
        count[gaps(FAST).count > 0], count[gaps(SLOW).count > 0] = fast, slow
        return dataclasses.replace(gaps(FAST), count=count)

    loaded, alone = run(gaps=halves(499, 501)), run(gaps=halves(501, 499))
    assert diagnose(loaded, alone).itl.up
    assert not diagnose(loaded, alone, mixed=True).itl.up
