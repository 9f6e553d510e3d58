"""A shared bill: additive, and tenants plus headroom, idle and spare are the invoice to the cent."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfleet.cost import TokenCounts, in_cents, invoice, reserved_peak, usage_by_key
from tokenfleet.domain.errors import BadInput
from unit.cost.test_bill import run
from unit.cost.toy import amounts, bill_of, users


@settings(max_examples=80)
@given(usd=amounts, usage=users, hours=st.sampled_from([1.0, 24.0, 730.0]))
def test_tenants_and_what_nobody_used_are_the_invoice_to_the_cent(usd, usage, hours):
    made = invoice(bill_of(*usd), usage, hours=hours)
    tenants = sum(made.busy_cents(key) for key in usage)
    unused = made.part_cents("headroom") + made.part_cents("idle")
    assert tenants + unused + made.part_cents("spare") == made.total_cents
    exact = sum((Fraction(each) for each in usd), Fraction(0)) * Fraction(hours) * 100
    assert abs(made.total_cents - exact) <= Fraction(1, 2)
    assert sum(line.cents for line in made.lines) == made.total_cents
    assert min(line.cents for line in made.lines) >= 0


@settings(max_examples=80)
@given(usd=amounts, usage=users, parts=st.tuples(st.integers(0, 10), st.integers(0, 10), st.integers(0, 10)))
def test_a_tenant_in_two_halves_pays_what_it_paid_as_one(usd, usage, parts):
    """Additive up to the cent that each rounded line may move."""
    name = min(usage)
    whole = usage[name]
    taken = [
        value * tenths // 10
        for value, tenths in zip((whole.input_tokens, whole.cached_tokens, whole.output_tokens), parts, strict=True)
    ]
    left = TokenCounts(input_tokens=taken[0], cached_tokens=taken[1], output_tokens=taken[2])
    right = TokenCounts(
        input_tokens=whole.input_tokens - taken[0],
        cached_tokens=whole.cached_tokens - taken[1],
        output_tokens=whole.output_tokens - taken[2],
    )
    before = invoice(bill_of(*usd), usage)
    rest = {key: each for key, each in usage.items() if key != name}
    after = invoice(bill_of(*usd), {**rest, "left": left, "right": right})
    assert abs(before.busy_cents(name) - after.busy_cents("left") - after.busy_cents("right")) <= 9
    assert after.total_cents == before.total_cents
    assert before.part_cents("output") == pytest.approx(after.part_cents("output"), abs=12)


@given(usd=amounts, usage=users)
def test_who_uses_nothing_pays_nothing_and_order_is_no_matter(usd, usage):
    made = invoice(bill_of(*usd), {**usage, "quiet": TokenCounts()})
    assert made.busy_cents("quiet") == 0
    turned = invoice(bill_of(*usd), dict(reversed(usage.items())))
    assert all(abs(turned.busy_cents(key) - made.busy_cents(key)) <= 3 for key in usage)


@given(usd=amounts, usage=users, weights=st.lists(st.floats(0.0, 100.0), min_size=8, max_size=8))
def test_fully_loaded_is_the_whole_invoice_too(usd, usage, weights):
    reserved = {key: weight + 0.01 for key, weight in zip(usage, weights, strict=False)}
    made = invoice(bill_of(*usd), usage, reserved=reserved)
    assert sum(made.loaded_cents.values()) == made.total_cents
    # Nobody's share of what nobody used is below 0, not by a cent of rounding either.
    assert all(made.loaded_cents[key] >= made.busy_cents(key) for key in usage)


@given(cents=st.lists(st.fractions(min_value=0, max_value=10**6), min_size=1, max_size=30))
def test_rounding_to_cents_moves_nobody_by_a_cent(cents):
    exact = {index: each / 100 for index, each in enumerate(cents)}
    made = in_cents(exact)
    assert abs(sum(made.values()) - sum(cents)) <= Fraction(1, 2)
    assert all(abs(made[index] - each) < 1 for index, each in enumerate(cents))


def test_whole_cents_stay_and_halves_go_to_the_even_total():
    assert in_cents({"a": Fraction(1, 100), "b": Fraction(0)}) == {"a": 1, "b": 0}
    assert in_cents({"a": Fraction(1, 3), "b": Fraction(1, 3), "c": Fraction(1, 3)}) == {"a": 34, "b": 33, "c": 33}
    assert in_cents({"a": Fraction(5, 1000)}) == {"a": 0}
    assert in_cents({"a": Fraction(15, 1000)}) == {"a": 2}
    with pytest.raises(ValueError, match="negative"):
        in_cents({"a": Fraction(-1)})


def test_each_kind_of_token_pays_its_own_line():
    usage = {
        "chat": TokenCounts(input_tokens=100, cached_tokens=300, output_tokens=100),
        "batch": TokenCounts(input_tokens=300, cached_tokens=0, output_tokens=100),
    }
    made = invoice(bill_of(4.0, 1.0, 6.0, 3.0, 5.0, 5.0), usage, reserved={"chat": 3.0, "batch": 1.0})
    cents = {(line.key, line.part): line.cents for line in made.lines}
    assert cents == {
        ("chat", "input"): 100,
        ("batch", "input"): 300,
        ("chat", "cached"): 100,
        ("batch", "cached"): 0,
        ("chat", "output"): 300,
        ("batch", "output"): 300,
        ("", "headroom"): 300,
        ("", "idle"): 500,
        ("", "spare"): 500,
    }
    assert made.total_cents == 2400
    assert made.loaded_cents == {"chat": 500 + 975, "batch": 600 + 325}


def test_what_nobody_explains_is_refused():
    usage = {"a": TokenCounts(input_tokens=1)}
    with pytest.raises(BadInput, match="nobody used output tokens"):
        invoice(bill_of(1.0, 0.0, 2.0, 0.0, 0.0, 0.0), usage)
    with pytest.raises(BadInput, match="fewer than 0"):
        invoice(bill_of(1.0, 0.0, 0.0, 0.0, 0.0, 0.0), {"a": TokenCounts(input_tokens=-1)})
    for reserved in ({}, {"a": 0.0}, {"a": 1.0, "b": 1.0}):
        with pytest.raises(BadInput, match="reserved"):
            invoice(bill_of(1.0, 0.0, 0.0, 0.0, 0.0, 0.0), usage, reserved=reserved)
    assert invoice(bill_of(1.0, 0.0, 0.0, 0.0, 0.0, 0.0), usage).loaded_cents is None


def test_usage_is_counted_from_a_run():
    record = run(inputs=(100, 200, 300, 400), outputs=(10, 20, 30, 40), cached=(50, 0, 100, 0))
    record.status[1] = 1
    found = usage_by_key(record, np.array([0, 0, 1, -1], dtype=np.int32), ("chat", "batch"))
    assert found == {
        "chat": TokenCounts(input_tokens=50, cached_tokens=50, output_tokens=10, request_count=1),
        "batch": TokenCounts(input_tokens=200, cached_tokens=100, output_tokens=30, request_count=1),
        "unknown": TokenCounts(input_tokens=400, cached_tokens=0, output_tokens=40, request_count=1),
    }
    with pytest.raises(ValueError, match="2 keys"):
        usage_by_key(record, np.array([0, 1], dtype=np.int32), ("chat", "batch"))


def test_reserved_is_the_own_load_in_the_hour_when_the_fleet_is_fullest():
    load = np.zeros((20, 24, 2))
    load[:, 9, 0], load[:, 9, 1] = 8.0, 2.0
    load[:, 3, 1] = 7.0
    load[-1, 9, 1] = 40.0
    peaks = reserved_peak(load, ("office", "batch"))
    assert peaks["office"] == 8.0
    assert 2.0 <= peaks["batch"] < 40.0, "one wild day in twenty is not what is reserved"
    assert reserved_peak(load, ("office", "batch"), quantile_fraction=1.0)["batch"] == 40.0


def test_every_grouping_of_the_same_work_has_the_same_invoice():
    usage = {
        name: TokenCounts(input_tokens=10 * n, cached_tokens=n, output_tokens=n) for n, name in enumerate("abcd", 1)
    }
    totals = {
        invoice(bill_of(3.33, 1.11, 5.55, 0.03, 0.02, 0.01), {key: usage[key] for key in order}).total_cents
        for order in itertools.permutations(usage)
    }
    assert totals == {1005}
