"""Requests are charged by the gpu time they took, and the terms are those of the step."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.cost import invoice, request_work, usage_by_key
from tokenfleet.cost.work import _sum_of_cut_run, _sum_of_run
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.replica import StepTimeModel
from unit.cost.test_bill import run
from unit.cost.toy import bill_of

# A dense model of 70 billion parameters at 10^15 operations a second: 80 layers, 64 heads of 128.
DENSE_70B = StepTimeModel(
    token_ps=np.arange(8193, dtype=np.int64) * 140_000_000,
    sequence_ps=0,
    context_ps=0,
    window_ps=0,
    window_tokens=0,
    pair_ps=4 * 80 * 64 * 128 // 1000,
    eager_ps=0,
    request_ps=0,
)
READING = dataclasses.replace(
    DENSE_70B, token_ps=np.full(257, 1000, dtype=np.int64), sequence_ps=5, context_ps=2, pair_ps=3
)


def test_a_hundred_times_the_prompt_is_146_times_the_work():
    work = request_work(run(inputs=(500, 50_000), outputs=(1, 1)), DENSE_70B)
    assert work.input_s[1] / work.input_s[0] == pytest.approx(146, abs=0.5)


def test_two_requests_of_1k_are_less_than_one_of_2k():
    work = request_work(run(inputs=(1_000, 2_000), outputs=(1, 1)), DENSE_70B)
    assert 2 * work.input_s[0] < work.input_s[1] < 2.05 * work.input_s[0]


def test_the_terms_are_those_of_the_steps():
    # 10 prompt tokens, 6 of them cached; 5 generated, 4 after the first, on contexts of 11 to 14.
    record = run(inputs=(10, 10), outputs=(5, 1), cached=(6, 0))
    record = dataclasses.replace(record, busy=dataclasses.replace(record.busy, step_count=4))
    work = request_work(record, READING)
    assert work.input_s[0] * 1e12 == pytest.approx(4 * 1000 / 256 + 3 * (1 + 2 + 3 + 4))
    assert work.cached_s[0] * 1e12 == pytest.approx(3 * 4 * 6)
    assert work.output_s[0] * 1e12 == pytest.approx(4 * (1000 + 5) + 2 * (11 + 12 + 13 + 14))
    assert (work.cached_s[1], work.output_s[1]) == (0.0, 0.0)


def test_a_window_cuts_what_is_read():
    windowed = dataclasses.replace(READING, context_ps=0, window_ps=2, window_tokens=12)
    record = run(inputs=(10, 500), outputs=(5, 5))
    free = request_work(record, dataclasses.replace(windowed, window_ps=0)).output_s
    reading = (request_work(record, windowed).output_s - free) * 1e12
    assert reading == pytest.approx([2 * (11 + 12 + 12 + 12), 2 * 4 * 12])


@given(first=st.integers(1, 300), count=st.integers(0, 300), most=st.integers(1, 400))
def test_sums_of_contexts_are_closed_forms(first, count, most):
    terms = np.arange(first, first + count)
    one, many = np.array([float(first)]), np.array([float(count)])
    assert _sum_of_run(one, many)[0] == terms.sum()
    assert _sum_of_cut_run(one, many, float(most))[0] == np.minimum(terms, most).sum()


def test_a_bill_is_shared_by_time_and_stays_the_bill():
    record = run(inputs=(500, 50_000), outputs=(10, 10))
    key = np.array([0, 1], dtype=np.int32)
    bill = bill_of(147.0, 0.0, 20.0, 3.0, 0.0)
    by_time = invoice(bill, usage_by_key(record, key, ("short", "long"), work=request_work(record, DENSE_70B)))
    by_tokens = invoice(bill, usage_by_key(record, key, ("short", "long")))
    assert by_time.total_cents == by_tokens.total_cents == 17_000
    prefill = {line.key: line.cents for line in by_time.lines if line.part == "input"}
    assert prefill["long"] / prefill["short"] == pytest.approx(146, abs=2)
    assert next(line.token_count for line in by_time.lines if line.key == "long") == 50_000


def test_time_known_of_some_only_is_refused():
    record = run(inputs=(500, 500), outputs=(10, 10))
    key = np.array([0, 1], dtype=np.int32)
    usage = usage_by_key(record, key, ("a", "b"), work=request_work(record, DENSE_70B))
    usage["b"] = dataclasses.replace(usage["b"], work_s=None)
    with pytest.raises(BadInput, match="known of some"):
        invoice(bill_of(1.0, 0.0, 1.0, 0.0, 0.0), usage)
