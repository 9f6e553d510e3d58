"""Who was served how, on runs made by hand."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handmade import ledger_of
from tokenfleet.contract import fairness_of
from tokenfleet.contract.fairness import jain_fraction
from tokenfleet.domain.run import Status
from unit.contract.test_diagnosis import run


def served(wait_s, *, count=60, **changes):
    """Requests that arrive every 100 ms, wait, and take a second once admitted; tenants take turns."""
    waits = np.resize(np.asarray(wait_s, dtype=float), count)
    record = run(ttft_s=waits + 0.1, count=count)
    ledger = dataclasses.replace(ledger_of(np.ones(count), np.ones(count)), scheduled_s=record.arrival_s + waits)
    finish = record.arrival_s + waits + 1.0
    return dataclasses.replace(record, ledger=ledger, finish_s=finish, **changes)


TURNS = np.resize(np.arange(2, dtype=np.int32), 60)


def test_tenants_served_alike_are_served_fairly():
    found = fairness_of(served([0.5]), TURNS, ("a", "b"))
    assert (found.served_jain_fraction, found.slowdown_jain_fraction) == (1.0, pytest.approx(1.0))
    assert [each.slowdown for each in found.tenants] == pytest.approx([1.5, 1.5])
    assert found.worst_ttft_factor == pytest.approx(1.0)


def test_who_waits_is_named():
    """One waits 3 s for each second of work, one does not: slowdowns of 4 and 1."""
    found = fairness_of(served([0.0, 3.0]), TURNS, ("quick", "slow"))
    assert [(each.tenant, each.slowdown) for each in found.tenants] == [
        ("slow", pytest.approx(4.0)),
        ("quick", pytest.approx(1.0)),
    ]
    assert found.slowdown_jain_fraction == pytest.approx(25 / 34)
    assert found.worst_ttft_tenant == "slow"
    assert found.worst_ttft_factor == pytest.approx(3.1 / 1.6)


def test_who_is_turned_away_got_nothing_of_what_it_asked():
    status = np.where(TURNS == 1, int(Status.REJECTED_QUEUE_FULL), 0).astype(np.int8)
    found = fairness_of(served([0.0], status=status), TURNS, ("a", "b"))
    assert {each.tenant: each.served_fraction for each in found.tenants} == {"a": 1.0, "b": 0.0}
    assert found.served_jain_fraction == 0.5
    assert next(each for each in found.tenants if each.tenant == "b").slowdown is None
    assert found.slowdown_jain_fraction is None
    assert found.worst_ttft_tenant is None


def test_a_quantile_of_few_requests_is_not_held_against_others():
    few = np.where(np.arange(60) < 5, 0, 1).astype(np.int32)
    found = fairness_of(served([0.5]), few, ("rare", "usual"))
    assert {each.tenant: each.ttft_p95_s is None for each in found.tenants} == {"rare": True, "usual": False}
    assert found.worst_ttft_factor is None


def test_one_tenant_is_compared_with_nobody():
    assert fairness_of(served([0.5]), np.zeros(60, dtype=np.int32), ("a", "b")) is None
    assert fairness_of(served([0.5]), np.full(60, -1, dtype=np.int32), ("a", "b")) is None


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=20), st.floats(1e-3, 1e3))
def test_jain_index_lies_between_one_nth_and_one_whatever_the_unit(values, unit):
    found = jain_fraction(values)
    assert 1 / len(values) - 1e-9 <= found <= 1 + 1e-9
    assert jain_fraction([unit * value for value in values]) == pytest.approx(found)
    assert jain_fraction([values[0]] * len(values)) == pytest.approx(1.0)
