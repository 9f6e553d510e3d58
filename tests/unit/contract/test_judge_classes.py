"""Promises to classes of requests, limits on refusals and on the queue, and deadlines."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.contract import judge, judge_minutes, time_given_s
from tokenfleet.domain.run import ClassGaps, Status, requests_of
from tokenfleet.domain.slo import Deadline, LatencyTarget, RateTarget, Slo
from unit.contract.test_judge import gaps, run

HOUR_S = 3600.0


def in_classes(record, **members):
    bits = np.zeros(len(record.arrival_s), dtype=np.int32)
    for index, rows in enumerate(members.values()):
        bits[list(rows)] |= 1 << index
    return replace(record, class_bits=bits, classes=tuple(members))


def slo(*latency, errors=1.0, **rest):
    targets = tuple(
        LatencyTarget(metric=metric, quantile=quantile, limit_s=limit, traffic_class=name)
        for metric, quantile, limit, name in latency
    )
    return Slo(latency=targets, error_rate_fraction=errors, **rest)


def by_name(results):
    return {result.name: result for result in results}


def test_a_class_is_judged_on_its_own_requests_alone():
    record = in_classes(run([0.1, 5.0, 0.2, 6.0]), premium=[0, 2], long=[1, 2, 3])
    asked = slo(("ttft", 0.99, 1.0, None), ("ttft", 0.99, 1.0, "premium"), ("ttft", 0.5, 5.0, "long"))
    found = by_name(judge(record, asked))
    assert (found["ttft_p99"].predicted, found["ttft_p99"].kept) == (pytest.approx(6.0), False)
    assert (found["ttft_p99 of premium"].predicted, found["ttft_p99 of premium"].kept) == (pytest.approx(0.2), True)
    assert found["ttft_p50 of long"].sample_count == 3
    assert found["ttft_p50 of long"].traffic_class == "long"
    assert found["ttft_p50 of long"].predicted == pytest.approx(5.0)


@given(st.lists(st.tuples(st.floats(0.01, 9.0), st.booleans()), min_size=1, max_size=40))
def test_a_class_is_judged_as_if_nobody_else_were_there(rows):
    ttft, mine = zip(*rows, strict=True)
    chosen = np.array(mine)
    record = in_classes(run(ttft), premium=np.flatnonzero(chosen))
    of_class = judge(record, slo(("ttft", 0.9, 1.0, "premium"), ("e2e", 0.5, 3.0, "premium")))
    alone = judge(requests_of(record, chosen), slo(("ttft", 0.9, 1.0, None), ("e2e", 0.5, 3.0, None)))
    for theirs, own in zip(of_class[:2], alone[:2], strict=True):
        assert (theirs.predicted, theirs.sample_count, theirs.kept) == (own.predicted, own.sample_count, own.kept)


def test_a_class_that_a_record_does_not_know_is_no_kept_promise():
    (found, _) = judge(run([0.1]), slo(("ttft", 0.99, 1.0, "premium")))
    assert (found.predicted, found.sample_count, found.kept, found.says_nothing) == (None, 0, False, True)


def test_refusals_are_errors_until_they_have_a_limit_of_their_own():
    status = [Status.FINISHED, Status.REJECTED_QUEUE_FULL, Status.LOST, Status.REJECTED_TOO_LONG]
    record = run([0.1, np.nan, np.nan, np.nan], e2e=[1.0, np.nan, np.nan, np.nan], status=status)
    assert by_name(judge(record, slo()))["error_rate"].predicted == pytest.approx(0.75)
    apart = by_name(judge(record, slo(rejection_rate_fraction=0.2)))
    assert apart["error_rate"].predicted == pytest.approx(0.5)
    assert (apart["rejection_rate"].predicted, apart["rejection_rate"].kept) == (pytest.approx(0.25), False)


def test_a_class_has_limits_of_its_own_on_how_requests_end():
    status = [Status.REJECTED_QUEUE_FULL, Status.FINISHED, Status.FINISHED, Status.FINISHED]
    record = in_classes(run([np.nan, 0.1, 0.1, 0.1], status=status), batch=[0, 1])
    asked = slo(class_rates=(RateTarget(kind="error_rate", limit_fraction=0.1, traffic_class="batch"),))
    found = by_name(judge(record, asked))
    assert found["error_rate"].predicted == pytest.approx(0.25)
    assert (found["error_rate of batch"].predicted, found["error_rate of batch"].kept) == (pytest.approx(0.5), False)
    assert "error_rate of batch" in judge_minutes(record, asked).broken


def brute_queue(record):
    longest = 0
    for i, moment in enumerate(record.arrival_s):
        waiting = [
            j
            for j in range(len(record.arrival_s))
            if record.replica[j] == record.replica[i] and record.arrival_s[j] <= moment < record.first_token_s[j]
        ]
        longest = max(longest, len(waiting))
    return longest


@given(st.lists(st.tuples(st.floats(0.0, 9.0), st.floats(0.01, 5.0), st.integers(0, 2)), min_size=1, max_size=30))
def test_the_queue_is_the_most_that_wait_for_a_first_token_at_one_replica(rows):
    arrival, ttft, replica = zip(*sorted(rows), strict=True)
    record = replace(run(ttft, arrival=arrival), replica=np.array(replica, dtype=np.int32))
    found = by_name(judge(record, slo(queue_limit_count=2)))["queue_limit"]
    assert found.unit == "count"
    assert found.predicted == brute_queue(record)
    assert found.kept == (brute_queue(record) <= 2)


@pytest.mark.parametrize(
    ("at", "cut_off", "hour", "given_h"),
    [(6, None, 22, 8), (6, None, 5.5, 0.5), (6, None, 6, 24), (6, 5, 4, 2), (6, 5, 5, 25), (6, 5, 5.5, 24.5)],
)
def test_a_deadline_by_the_clock_gives_time_to_its_next_moment(at, cut_off, hour, given_h):
    deadline = Deadline(at_s=at * HOUR_S, cut_off_s=None if cut_off is None else cut_off * HOUR_S)
    assert time_given_s(deadline, np.array([hour * HOUR_S])) == pytest.approx(given_h * HOUR_S)


def test_requests_must_be_done_in_their_time_but_for_those_that_may_fail():
    record = in_classes(run([0.1] * 4, e2e=[HOUR_S, 2 * HOUR_S, 5 * HOUR_S, 1.0]), nightly=[0, 1, 2])
    all_of_them = Deadline(within_s=4 * HOUR_S, traffic_class="nightly")
    found = by_name(judge(record, slo(deadlines=(all_of_them,))))["done_within_4h of nightly"]
    assert (found.predicted, found.kept, found.sample_count) == (pytest.approx(1.25), False, 3)
    two_thirds = replace(all_of_them, quantile=0.66)
    assert by_name(judge(record, slo(deadlines=(two_thirds,))))["done_within_4h of nightly"].predicted == 0.5


def test_the_clock_of_a_deadline_starts_with_the_record():
    late = run([0.1], arrival=[0.0], e2e=[3 * HOUR_S])
    asked = slo(deadlines=(Deadline(at_s=6 * HOUR_S),))
    at_two, at_four = (replace(late, time_of_day_s=hour * HOUR_S) for hour in (2, 4))
    assert by_name(judge(at_two, asked))["done_by_06:00"].predicted == pytest.approx(0.75)
    assert not by_name(judge(at_four, asked))["done_by_06:00"].kept


def test_what_never_finished_is_not_done():
    record = run([0.1, np.nan], e2e=[1.0, np.nan], status=[0, Status.LOST])
    found = by_name(judge(record, slo(deadlines=(Deadline(within_s=HOUR_S),))))["done_within_1h"]
    assert (found.predicted, found.kept) == (None, False)


def test_gaps_of_a_class_are_its_own_where_they_were_counted_apart():
    slow, fast = gaps(0, 0, 0, 9), gaps(0, 8, 0, 0)
    apart = {"premium": ClassGaps(gaps=fast, peak_gaps=gaps(1, 0, 0, 0))}
    record = replace(run([0.1], all_gaps=slow, peak_gaps=slow), class_gaps=apart)
    asked = slo(("itl", 0.99, 0.05, None), ("itl", 0.99, 0.05, "premium"), ("itl", 0.99, 0.05, "nobody"))
    found = by_name(judge(record, asked))
    assert not found["itl_p99"].kept
    assert (found["itl_p99 of premium"].predicted, found["itl_p99 of premium"].sample_count) == (0.02, 8)
    assert (found["itl_p99 of nobody"].predicted, found["itl_p99 of nobody"].says_nothing) == (None, True)
    at_peak = by_name(judge(record, asked, peak_only=True, window_s=(0.0, 1.0)))
    assert (at_peak["itl_p99 of premium"].predicted, at_peak["itl_p99 of premium"].sample_count) == (0.01, 1)
