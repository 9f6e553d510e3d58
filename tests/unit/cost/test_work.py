"""Requests are charged by the gpu time they took."""

import dataclasses

import numpy as np
import pytest

from handmade import ledger_of
from tokenfleet.cost import invoice, request_work, usage_by_key
from tokenfleet.domain.errors import BadInput
from unit.cost.test_bill import run
from unit.cost.toy import bill_of

# A prompt of 500 tokens, and one of a hundred times as many that takes 146 times as long.
TOOK = ledger_of(prefill_gpu_s=[1.0, 146.0], decode_gpu_s=[2.0, 3.0], cached_gpu_s=[0.25, 0.0])


def test_the_lines_are_those_of_the_ledger():
    work = request_work(TOOK)
    assert work.input_s.tolist() == [0.75, 146.0]
    assert work.cached_s.tolist() == [0.25, 0.0]
    assert work.output_s.tolist() == [2.0, 3.0]


def test_a_bill_is_shared_by_time_and_stays_the_bill():
    record = run(inputs=(500, 50_000), outputs=(10, 10))
    key = np.array([0, 1], dtype=np.int32)
    bill = bill_of(147.0, 0.0, 20.0, 1.0, 2.0, 0.0)
    took = dataclasses.replace(TOOK, cached_gpu_s=np.zeros(2))
    by_time = invoice(bill, usage_by_key(record, key, ("short", "long"), work=request_work(took)))
    by_tokens = invoice(bill, usage_by_key(record, key, ("short", "long")))
    assert by_time.total_cents == by_tokens.total_cents == 17_000
    prefill = {line.key: line.cents for line in by_time.lines if line.part == "input"}
    assert prefill["long"] / prefill["short"] == pytest.approx(146, abs=2)
    decode = {line.key: line.cents for line in by_time.lines if line.part == "output"}
    assert decode == {"short": 800, "long": 1200}
    assert next(line.token_count for line in by_time.lines if line.key == "long") == 50_000


def test_time_known_of_some_only_is_refused():
    record = run(inputs=(500, 500), outputs=(10, 10))
    key = np.array([0, 1], dtype=np.int32)
    usage = usage_by_key(record, key, ("a", "b"), work=request_work(TOOK))
    usage["b"] = dataclasses.replace(usage["b"], work_s=None)
    with pytest.raises(BadInput, match="known of some"):
        invoice(bill_of(1.0, 0.0, 1.0, 0.0, 0.0, 0.0), usage)
