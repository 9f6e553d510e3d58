import numpy as np
import pytest

from tokenfleet.contract import conservative_rank, judge
from tokenfleet.domain.run import BusyTime, GapHistogram, RunRecord, Status
from tokenfleet.domain.slo import LatencyTarget, Slo

LOWER = np.array([0.0, 0.01, 0.02, 0.04, 0.08])


def gaps(*counts):
    return GapHistogram(lower_s=LOWER, count=np.array(counts, dtype=np.int64))


def run(ttft, *, arrival=None, e2e=None, outputs=None, status=None, all_gaps=None, peak_gaps=None):
    ttft = np.array(ttft, dtype=float)
    count = len(ttft)
    arrival = np.arange(count, dtype=float) if arrival is None else np.array(arrival, dtype=float)
    outputs = np.full(count, 11) if outputs is None else np.array(outputs)
    e2e = ttft + 1.0 if e2e is None else np.array(e2e, dtype=float)
    return RunRecord(
        arrival_s=arrival,
        first_token_s=arrival + ttft,
        finish_s=arrival + e2e,
        input_tokens=np.full(count, 100, dtype=np.int32),
        output_tokens=outputs.astype(np.int32),
        cached_tokens=np.zeros(count, dtype=np.int32),
        preemption_count=np.zeros(count, dtype=np.int32),
        replica=np.zeros(count, dtype=np.int32),
        status=np.zeros(count, dtype=np.int8) if status is None else np.array(status, dtype=np.int8),
        gaps=all_gaps or gaps(0, 10, 0, 0),
        peak_gaps=peak_gaps,
        busy=BusyTime(prefill_s=0.0, decode_s=0.0, cached_prefix_s=0.0, step_count=0, mixed_step_count=0),
        replica_count=1,
        end_s=float(count),
        telemetry=None,
    )


def promise(*targets, errors=0.0):
    made = tuple(LatencyTarget(metric=m, quantile=q, limit_s=limit) for m, q, limit in targets)
    return Slo(latency=made, error_rate_fraction=errors)


@pytest.mark.parametrize(
    ("count", "quantile", "rank"),
    [(100, 0.99, 99), (101, 0.99, 100), (99, 0.99, 99), (1, 0.5, 1), (2, 0.5, 1), (1000, 0.999, 999), (10, 0.07, 1)],
)
def test_rank(count, quantile, rank):
    assert conservative_rank(count, quantile) == rank


def test_a_request_that_its_user_left_is_not_judged():
    status = [Status.FINISHED, Status.CANCELLED, Status.TIMED_OUT, Status.FINISHED]
    left = run([0.1, 9.0, 0.3, 0.2], status=status)
    ttft, errors = judge(left, promise(("ttft", 0.5, 1.0), errors=0.4))
    assert (ttft.predicted, ttft.sample_count) == (pytest.approx(0.2), 3)
    assert (errors.predicted, errors.sample_count) == (pytest.approx(1 / 3), 3)


def test_a_p99_of_few_requests_is_the_slowest_of_them():
    ttft, errors = judge(run(np.linspace(0.1, 0.9, 30)), promise(("ttft", 0.99, 0.9)))
    assert ttft.predicted == pytest.approx(0.9)
    assert ttft.sample_count == 30
    assert ttft.name == "ttft_p99"
    assert errors.kept


def test_exactly_the_limit_is_kept():
    (result, _) = judge(run([0.5, 0.25]), promise(("ttft", 0.99, 0.5)))
    assert result.kept
    (result, _) = judge(run([0.5, 0.25]), promise(("ttft", 0.99, np.nextafter(0.5, 0))))
    assert not result.kept


def test_what_never_finished_counts_as_late():
    ttft = [0.1] * 98 + [np.nan] * 2
    status = [Status.FINISHED] * 98 + [Status.REJECTED_TOO_LONG] * 2
    late, errors = judge(run(ttft, status=status), promise(("ttft", 0.99, 1.0), errors=0.01))
    assert late.predicted is None
    assert not late.kept
    assert late.sample_count == 100
    assert errors.predicted == pytest.approx(0.02)
    assert not errors.kept
    early, errors = judge(run(ttft, status=status), promise(("ttft", 0.98, 1.0), errors=0.02))
    assert early.predicted == pytest.approx(0.1)
    assert early.kept
    assert errors.kept


def test_a_request_cut_in_the_middle_is_late_though_it_had_a_first_token():
    record = run([0.1, 0.1], e2e=[1.0, np.nan])
    results = judge(record, promise(("ttft", 0.99, 1.0), ("e2e", 0.99, 9.0), ("tpot", 0.99, 1.0)))
    assert [result.predicted for result in results] == [None, None, None, 0.5]


def test_itl_is_the_upper_edge_of_its_bin():
    record = run([0.1], all_gaps=gaps(0, 98, 2, 0))
    p98, p99, _ = judge(record, promise(("itl", 0.98, 0.02), ("itl", 0.99, 0.02)))
    assert (p98.predicted, p98.kept) == (0.02, True)
    assert (p99.predicted, p99.kept, p99.sample_count) == (0.04, False, 100)


def test_an_open_last_bin_has_no_value():
    histogram = GapHistogram(lower_s=np.array([0.0, 1.0, np.inf]), count=np.array([1, 1]))
    (result, _) = judge(run([0.1], all_gaps=histogram), promise(("itl", 0.99, 5.0)))
    assert result.predicted is None
    assert not result.kept


def test_no_gap_is_no_evidence():
    (result, _) = judge(run([0.1], outputs=[1], all_gaps=gaps(0, 0, 0, 0)), promise(("itl", 0.99, 1.0)))
    assert (result.predicted, result.kept, result.sample_count) == (None, False, 0)


def test_tpot_leaves_out_requests_of_one_token():
    record = run([0.1, 0.1, 0.1], outputs=[1, 11, 6], e2e=[0.1, 1.1, 1.1])
    (result, _) = judge(record, promise(("tpot", 0.5, 0.1)))
    assert result.predicted == pytest.approx(0.1)
    assert result.sample_count == 2


def test_a_request_without_output_has_no_first_token_to_be_late():
    record = run([0.1, np.nan], outputs=[5, 0], e2e=[0.5, 0.2])
    ttft, e2e, errors = judge(record, promise(("ttft", 0.99, 1.0), ("e2e", 0.99, 1.0)))
    assert (ttft.sample_count, ttft.kept) == (1, True)
    assert (e2e.sample_count, e2e.kept) == (2, True)
    assert errors.predicted == 0.0


def test_the_peak_counts_arrivals_in_it_and_its_own_gaps():
    record = run([0.1, 0.9, 0.2, 0.8], all_gaps=gaps(0, 9, 9, 9), peak_gaps=gaps(5, 0, 0, 0))
    slo = promise(("ttft", 0.99, 1.0), ("itl", 0.99, 1.0))
    ttft, itl, errors = judge(record, slo, peak_only=True, window_s=(1.0, 3.0))
    assert (ttft.predicted, ttft.sample_count) == (pytest.approx(0.9), 2)
    assert (itl.predicted, itl.sample_count) == (0.01, 5)
    assert errors.sample_count == 2


def test_a_peak_without_window_or_gaps_is_a_mistake():
    slo = promise(("itl", 0.99, 1.0))
    with pytest.raises(ValueError, match="window"):
        judge(run([0.1]), slo, peak_only=True)
    with pytest.raises(ValueError, match="gaps"):
        judge(run([0.1]), slo, peak_only=True, window_s=(0.0, 1.0))


def test_the_band_holds_the_prediction():
    slo = promise(("ttft", 0.99, 1.0))
    (result, _) = judge(run([0.5]), slo, low=run([0.4]), high=run([0.7]))
    assert (result.predicted_low, result.predicted_high) == (pytest.approx(0.4), pytest.approx(0.7))
    (odd, _) = judge(run([0.5]), slo, low=run([0.6]), high=run([0.45]))
    assert (odd.predicted_low, odd.predicted_high) == (pytest.approx(0.5), pytest.approx(0.5))
    (wide, _) = judge(run([0.5]), slo, low=run([0.4]), high=run([0.7]), first_token_factor=3.0)
    assert (wide.predicted_low, wide.predicted_high) == (pytest.approx(0.5 / 3), pytest.approx(1.5))
    (queue, _) = judge(run([0.5]), slo, low=run([0.4]), high=run([9.0]), first_token_factor=3.0)
    assert queue.predicted_high == pytest.approx(9.0), "a queue that grows at the slow end is wider, and counts once"
    (bare, _) = judge(run([0.5]), slo)
    assert (bare.predicted_low, bare.predicted_high) == (None, None)


def test_an_empty_window_says_nothing():
    (result, errors) = judge(run([0.1]), promise(("ttft", 0.99, 1.0)), peak_only=True, window_s=(50.0, 60.0))
    assert (result.predicted, result.kept, errors.predicted, errors.kept) == (None, False, None, False)
