from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfleet.cost import TokenWork, bill, span_of, token_work, usd_per_million, work_span_s
from tokenfleet.domain.run import BusyTime, GapHistogram, RunRecord

EMPTY = GapHistogram(lower_s=np.array([0.0, 1.0]), count=np.array([0]))


SECOND = (0.0, 1.0)
"""Everybody of ``run`` arrives in it."""


def run(*, prefill_s=10.0, decode_s=30.0, cached_s=0.0, replicas=2, inputs=(100, 100), outputs=(10, 10), cached=(0, 0)):
    count = len(inputs)
    return RunRecord(
        arrival_s=np.zeros(count),
        first_token_s=np.ones(count),
        finish_s=np.full(count, 2.0),
        input_tokens=np.array(inputs, dtype=np.int32),
        output_tokens=np.array(outputs, dtype=np.int32),
        cached_tokens=np.array(cached, dtype=np.int32),
        preemption_count=np.zeros(count, dtype=np.int32),
        replica=np.zeros(count, dtype=np.int32),
        status=np.zeros(count, dtype=np.int8),
        gaps=EMPTY,
        peak_gaps=None,
        busy=BusyTime(
            prefill_s=prefill_s, decode_s=decode_s, cached_prefix_s=cached_s, step_count=1, mixed_step_count=0
        ),
        replica_count=replicas,
        end_s=2.0,
        telemetry=None,
    )


def lines(made):
    return (
        made.input_usd_per_hour,
        made.cached_usd_per_hour,
        made.output_usd_per_hour,
        made.headroom_usd_per_hour,
        made.idle_usd_per_hour,
        made.spare_usd_per_hour,
    )


def an_hour(record, *, peak_window_s, full=None):
    """A fleet whose 200 replica-seconds cost 12 dollars, one spare replica beside."""
    made = bill(
        record,
        usd_per_gpu_hour=3.0,
        gpus_per_replica_count=2,
        spare_count=1,
        span_s=100.0,
        peak_window_s=peak_window_s,
        full=full,
    )
    assert made.total_usd_per_hour == 18.0
    assert made.spare_usd_per_hour == 6.0
    return made


def test_time_pays_for_the_tokens_it_made():
    # 15 of 200 replica-seconds go to input, 5 to cached, 60 to output. All of it arrives in 50 seconds, in which 1.6
    # of 2 replicas have work: 0.4 are headroom, as 20 of 200 seconds are, and half the time is no peak.
    made = an_hour(run(prefill_s=20.0, decode_s=60.0, cached_s=5.0, cached=(20, 0)), peak_window_s=(0.0, 50.0))
    assert lines(made) == pytest.approx((0.9, 0.3, 3.6, 1.2, 6.0, 6.0), abs=1e-8)


def test_a_replica_that_works_for_few_is_not_full_and_the_room_it_has_is_no_work():
    record = run(prefill_s=20.0, decode_s=60.0)
    # On full replicas the 200 prompt tokens take 10 replica-seconds, the 20 of output 20: 30 s of work, and as it all
    # comes in 50 s, 70 s are headroom and 100 s idle.
    full = TokenWork(input_s=0.05, cached_s=0.0, output_s=1.0)
    made = an_hour(record, peak_window_s=(0.0, 50.0), full=full)
    assert lines(made) == pytest.approx((0.6, 0.0, 1.2, 4.2, 6.0, 6.0), abs=1e-8)
    # Nothing is idle where all time is like the peak, and all of what is not work is headroom.
    even = an_hour(record, peak_window_s=(0.0, 100.0), full=full)
    assert lines(even) == pytest.approx((0.6, 0.0, 1.2, 10.2, 0.0, 6.0), abs=1e-8)
    # A peak that asks for more than the replicas can do leaves no headroom.
    hard = an_hour(record, peak_window_s=(0.0, 10.0), full=full)
    assert (hard.headroom_usd_per_hour, hard.idle_usd_per_hour) == pytest.approx((0.0, 10.2), abs=1e-8)


def test_work_never_costs_more_than_the_time_it_took():
    record = run(prefill_s=20.0, decode_s=60.0)
    swamped = an_hour(record, peak_window_s=(0.0, 50.0), full=TokenWork(input_s=9.0, cached_s=0.0, output_s=9.0))
    assert lines(swamped) == lines(an_hour(record, peak_window_s=(0.0, 50.0)))


def test_what_a_token_takes_of_a_full_replica():
    record = run(prefill_s=20.0, decode_s=60.0, cached_s=5.0, cached=(20, 0))
    took = token_work(record)
    assert (took.input_s, took.cached_s, took.output_s) == pytest.approx((15 / 180, 5 / 20, 60 / 20))
    # Two replicas that end 0.05 requests a second take 40 s for each of the two: 80 s, as they did; at twice the rate
    # half of it, split as before.
    assert token_work(record, rate_per_s=0.05) == took
    half = token_work(record, rate_per_s=0.1)
    assert (half.input_s, half.cached_s, half.output_s) == pytest.approx((15 / 360, 5 / 40, 60 / 40))
    nothing = token_work(run(prefill_s=0.0, decode_s=0.0, inputs=(), outputs=(), cached=()), rate_per_s=1.0)
    assert (nothing.input_s, nothing.cached_s, nothing.output_s) == (0.0, 0.0, 0.0)


def test_price_times_tokens_plus_what_nobody_used_is_the_bill():
    record = run(prefill_s=20.0, decode_s=60.0, cached_s=5.0, inputs=(900, 700), outputs=(80, 40), cached=(300, 0))
    made = bill(
        record, usd_per_gpu_hour=2.99, gpus_per_replica_count=4, spare_count=1, span_s=50.0, peak_window_s=(0.0, 40.0)
    )
    hours = 3600.0 / 50.0
    spent = (
        made.usd_per_million_input_tokens * 1300 * hours / 1e6
        + made.usd_per_million_cached_tokens * 300 * hours / 1e6
        + made.usd_per_million_output_tokens * 120 * hours / 1e6
        + made.headroom_usd_per_hour
        + made.idle_usd_per_hour
        + made.spare_usd_per_hour
    )
    assert spent == pytest.approx(made.total_usd_per_hour, rel=1e-9)
    assert made.usd_per_request * 2 * hours == pytest.approx(made.total_usd_per_hour)
    assert made.usd_per_million_output_tokens_loaded * 120 * hours / 1e6 == pytest.approx(made.total_usd_per_hour)


def test_what_was_not_produced_has_no_price():
    made = bill(
        run(prefill_s=1.0, decode_s=0.0, outputs=(0, 0)),
        usd_per_gpu_hour=3.0,
        gpus_per_replica_count=1,
        spare_count=0,
        span_s=10.0,
        peak_window_s=SECOND,
    )
    assert made.usd_per_million_output_tokens is None
    assert made.usd_per_million_output_tokens_loaded is None
    assert made.usd_per_million_cached_tokens is None
    assert made.usd_per_million_input_tokens is not None


def test_refused_requests_carry_no_cost():
    record = run(inputs=(100, 100), outputs=(10, 10))
    record.status[1] = 1
    made = bill(
        record, usd_per_gpu_hour=3.0, gpus_per_replica_count=1, spare_count=0, span_s=100.0, peak_window_s=SECOND
    )
    assert made.usd_per_request == pytest.approx(6.0 / 36.0)


def test_more_work_than_time_is_refused():
    with pytest.raises(ValueError, match="replica-seconds"):
        bill(
            run(prefill_s=100.0, decode_s=101.0),
            usd_per_gpu_hour=1.0,
            gpus_per_replica_count=1,
            spare_count=0,
            span_s=100.0,
            peak_window_s=SECOND,
        )


@settings(max_examples=300)
@given(
    price=st.floats(0.01, 1000.0),
    gpus=st.integers(1, 72),
    replicas=st.integers(1, 500),
    spare=st.integers(0, 20),
    span=st.floats(1.0, 1e7),
    parts=st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)),
    order=st.permutations(range(6)),
    window=st.sampled_from([1e-3, 0.5, 7.0, 1e3]),
    shrunk=st.sampled_from([0.1, 0.7, 1.0, 2.0]),
)
def test_the_lines_add_up_to_the_last_bit(price, gpus, replicas, spare, span, parts, order, window, shrunk):
    prefill, decode, cached = parts
    share = replicas * span / max(1.0, prefill + decode)
    record = run(
        prefill_s=prefill * share, decode_s=decode * share, cached_s=cached * prefill * share, replicas=replicas
    )
    made = bill(
        record,
        usd_per_gpu_hour=price,
        gpus_per_replica_count=gpus,
        spare_count=spare,
        span_s=span,
        peak_window_s=(0.0, window),
        full=TokenWork(input_s=shrunk * prefill * share / 200, cached_s=0.0, output_s=shrunk * decode * share / 20),
    )
    each = lines(made)
    total = 0.0
    for index in order:
        total += each[index]
    assert total == made.total_usd_per_hour
    assert min(each) >= 0.0


@pytest.mark.parametrize(
    ("usd_per_hour", "per_s", "busy", "expected"),
    [
        (2.5, 700.0, 1.0, 0.992),
        (2.5, 700.0, 0.1, 9.92),
        (2.836, 441.76, 1.0, 1.783),
        (2.836, 2203.64 + 441.76, 1.0, 0.298),
        (5.672, 441.76, 1.0, 3.567),
    ],
)
def test_published_prices_per_million_tokens(usd_per_hour, per_s, busy, expected):
    # A rented gpu busy all or a tenth of the time; a benchmark on half an instance, output alone and all tokens.
    assert usd_per_million(usd_per_hour, per_s, busy_fraction=busy) == pytest.approx(expected, rel=2e-3)


def test_a_month_reserved_against_the_part_of_it_used():
    # 2 gpus at 3 dollars for 730 hours make 500 million tokens, busy a fifth of the time.
    per_s = 500e6 / (730 * 3600)
    assert usd_per_million(6.0, per_s) == pytest.approx(8.76)
    assert usd_per_million(6.0 * 0.2, per_s) == pytest.approx(1.752)


@pytest.mark.parametrize(("cost_usd", "expected"), [(91.65, 79.52), (110.0, 95.44), (207.0, 179.61)])
def test_a_new_price_scales_every_line(cost_usd, expected):
    old, new = (
        bill(run(), usd_per_gpu_hour=price, gpus_per_replica_count=1, spare_count=1, span_s=100.0, peak_window_s=SECOND)
        for price in (63.296, 54.92)
    )
    assert cost_usd * new.usd_per_request / old.usd_per_request == pytest.approx(expected, rel=1e-4)
    assert [b / a for a, b in zip(lines(old), lines(new), strict=True) if a] == pytest.approx([54.92 / 63.296] * 4)


def test_nothing_produced_costs_an_unknown_amount():
    assert usd_per_million(2.5, 0.0) is None
    assert usd_per_million(2.5, 10.0, busy_fraction=0.0) is None
    with pytest.raises(ValueError, match="busy fraction"):
        usd_per_million(2.5, 10.0, busy_fraction=1.5)


def test_a_bill_counts_by_the_period_of_its_demand():
    """A long last answer makes no hour longer; work that takes longer than the demand, or is due by then, does."""
    record = run(prefill_s=10.0, decode_s=30.0, replicas=2)
    drained = replace(record, end_s=400.0)
    assert span_of([(drained, None)], period_s=300.0) == 300.0
    assert span_of([(drained, None)], period_s=300.0, until_done=True) == 400.0
    assert span_of([(drained, None)], period_s=0.0) == 20.0, "two replicas need 20 s each for 40 s of work"
    # Busy for 40 s with a few requests at a time; full ones would do 20 output tokens in a second.
    full = TokenWork(input_s=0.0, cached_s=0.0, output_s=0.05)
    assert span_of([(drained, full)], period_s=0.0) == pytest.approx(0.5)
    assert span_of([(drained, None), (run(decode_s=90.0, replicas=1), None)], period_s=0.0) == 100.0
    late = replace(record, arrival_s=np.array([0.0, 350.0]))
    assert span_of([(late, None)], period_s=300.0) == 350.0, "clients that wait for their answers come later"


def test_pools_on_the_same_gpus_are_billed_together():
    first, second = run(prefill_s=10.0, decode_s=30.0), run(prefill_s=8.0, decode_s=0.0, outputs=(0, 0))
    found = bill(
        first,
        usd_per_gpu_hour=3.0,
        gpus_per_replica_count=1,
        spare_count=0,
        span_s=40.0,
        peak_window_s=SECOND,
        beside=[(second, None)],
    )
    # 80 replica-seconds at $6 an hour: 18 of input, 30 of output, the rest free.
    assert found.total_usd_per_hour == 6.0
    assert found.input_usd_per_hour == pytest.approx(6.0 * 18 / 80, abs=1e-8)
    assert found.output_usd_per_hour == pytest.approx(6.0 * 30 / 80, abs=1e-8)
    assert found.headroom_usd_per_hour + found.idle_usd_per_hour == pytest.approx(6.0 * 32 / 80, abs=1e-8)
    # 400 prompt tokens of both pools in 40 s; the requests are those of the first.
    assert found.usd_per_million_input_tokens == pytest.approx(found.input_usd_per_hour / (400 / 40 * 3600) * 1e6)
    assert found.usd_per_request == pytest.approx(6.0 / (2 / 40 * 3600))
    assert work_span_s([(first, None), (second, None)]) == 24.0
