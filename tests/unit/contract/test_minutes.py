"""Minutes with a broken promise, counted by hand."""

from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.contract import judge_minutes
from tokenfleet.domain.run import BusyTime, GapHistogram, RunRecord, Status
from tokenfleet.domain.slo import LatencyTarget, Slo

SLO = Slo(
    latency=(
        LatencyTarget(metric="ttft", quantile=0.5, limit_s=1.0),
        LatencyTarget(metric="itl", quantile=0.99, limit_s=0.1),
    ),
    error_rate_fraction=0.3,
)


def record(rows):
    """A run of (arrival, ttft or None where it was refused)."""
    arrival = np.array([each for each, _ in rows])
    ttft = np.array([np.nan if each is None else each for _, each in rows])
    count = len(rows)
    none = np.zeros(count, dtype=np.int32)
    return RunRecord(
        arrival_s=arrival,
        first_token_s=arrival + ttft,
        finish_s=arrival + ttft + 1.0,
        input_tokens=none + 10,
        output_tokens=none + 5,
        cached_tokens=none,
        preemption_count=none,
        replica=none,
        status=np.where(np.isnan(ttft), Status.REJECTED_TOO_LONG, Status.FINISHED).astype(np.int8),
        gaps=GapHistogram(lower_s=np.array([0.0, np.inf]), count=np.array([0])),
        peak_gaps=None,
        busy=BusyTime(prefill_s=0.0, decode_s=0.0, cached_prefix_s=0.0, step_count=0, mixed_step_count=0),
        replica_count=1,
        end_s=400.0,
        telemetry=None,
    )


def test_each_minute_is_judged_on_its_own_arrivals():
    found = judge_minutes(
        record(
            [
                (0.0, 0.5),
                (10.0, 3.0),  # one of two is late: the median holds
                (60.0, 2.0),
                (61.0, 2.0),
                (62.0, 0.1),  # two of three
                (190.0, 0.5),
                (191.0, None),  # half was refused, and so the median still holds
                (240.0, None),
                (241.0, None),
                (242.0, 0.1),
            ]
        ),
        SLO,
    )
    assert found.request_count.tolist() == [2, 3, 0, 2, 3]
    assert set(found.broken) == {"ttft_p50", "error_rate"}, "token gaps are not counted by minute"
    assert found.broken["ttft_p50"].tolist() == [False, True, False, False, True]
    assert found.broken["error_rate"].tolist() == [False, False, False, True, True]
    assert found.broken_count == 3


def test_a_minute_without_arrivals_does_not_end_a_broken_stretch():
    found = judge_minutes(record([(0.0, 2.0), (180.0, 2.0), (240.0, 0.1), (300.0, 9.0)]), SLO)
    assert found.any_broken.tolist() == [True, False, False, True, False, True]
    assert found.longest_broken_count == 4


def test_who_left_is_not_judged():
    rows = record([(0.0, None), (1.0, None), (2.0, 0.1), (60.0, None)])
    status = np.where(rows.status == Status.FINISHED, rows.status, Status.CANCELLED).astype(np.int8)
    found = judge_minutes(replace(rows, status=status), SLO)
    assert not found.any_broken.any()
    assert judge_minutes(rows, SLO).any_broken.all()


def test_a_request_without_output_has_nothing_to_be_late_with():
    run = record([(0.0, None), (1.0, 0.5)])
    embedded = replace(run, status=np.zeros(2, dtype=np.int8), output_tokens=np.zeros(2, dtype=np.int32))
    assert judge_minutes(embedded, SLO).broken_count == 0


def test_no_request_no_minute():
    found = judge_minutes(record([]), SLO)
    assert (found.broken_count, found.longest_broken_count) == (0, 0)


@pytest.mark.parametrize(("late", "broken"), [(1, False), (2, True)])
def test_one_in_a_hundred_may_be_late_under_a_p99(late, broken):
    slo = Slo(latency=(LatencyTarget(metric="ttft", quantile=0.99, limit_s=1.0),), error_rate_fraction=0.0)
    rows = [(index / 2.0, 5.0 if index < late else 0.1) for index in range(100)]
    assert bool(judge_minutes(record(rows), slo).broken_count) == broken


def test_minutes_do_not_depend_on_the_order_of_requests():
    rows = [(200.0, 3.0), (0.0, 0.5), (61.0, 2.0), (10.0, 3.0)]
    mixed, sorted_ = judge_minutes(record(rows), SLO), judge_minutes(record(sorted(rows)), SLO)
    assert mixed.request_count.tolist() == sorted_.request_count.tolist() == [2, 1, 0, 1]
    assert mixed.broken["ttft_p50"].tolist() == sorted_.broken["ttft_p50"].tolist()
