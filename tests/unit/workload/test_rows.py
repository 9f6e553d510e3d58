"""Some requests of a trace: every column comes along, also those that are added one day."""

import dataclasses

import numpy as np
import pytest

from tokenfleet import workload
from tokenfleet.domain.trace import COLUMNS, Observed, PrefixTree, Trace, rows_of

WHOLE = {"prefixes", "tenants", "classes", "start_utc", "time_of_day_s", "observed"}


def full() -> Trace:
    number = np.arange(6, dtype=np.int32)
    return Trace(
        arrival_s=number * 1.0,
        input_tokens=number + 10,
        output_tokens=number + 20,
        prefix_node=number % 2,
        prefixes=PrefixTree(parent=np.array([-1, -1], np.int32), token_count=np.array([4, 5], np.int32)),
        session=number // 2,
        kv_delivered=number % 2 == 0,
        tenant=number % 3,
        tenants=("a", "b", "c"),
        priority=number - 3,
        class_bits=number % 4,
        classes=("x", "y"),
        start_utc="2026-01-01T00:00:00Z",
        observed=Observed(),
    )


def test_a_field_has_an_entry_per_request_or_is_of_the_whole_trace():
    assert {field.name for field in dataclasses.fields(Trace)} == WHOLE | set(COLUMNS)
    assert all(getattr(full(), name) is not None for name in COLUMNS), "the example has every column"


@pytest.mark.parametrize("rows", [slice(1, 4), np.array([5, 0, 0]), np.arange(6) % 2 == 1])
def test_every_column_comes_along(rows):
    trace = full()
    some = rows_of(trace, rows)
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(some, name), getattr(trace, name)[rows])
    assert (some.prefixes, some.tenants, some.start_utc, some.observed) == (
        trace.prefixes,
        trace.tenants,
        trace.start_utc,
        None,
    )


def test_columns_that_are_not_there_stay_away():
    bare = Trace(**{name: getattr(full(), name) for name in COLUMNS[:3]})
    assert all(getattr(rows_of(bare, slice(2)), name) is None for name in COLUMNS[3:])


def test_growth_and_a_surge_know_whose_kv_comes_along():
    trace = full()
    assert workload.grow(trace, 2.0).kv_delivered.sum() == 6
    assert workload.surge(trace, start_s=2.0, length_s=2.0, factor=2.0).kv_delivered.any()
