"""Unit costs name their denominator, and retries have a price."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.cost import task_cost, unit_costs, units_of, usd_per_million
from tokenfleet.domain.plan import Bill


def by_name(**ask):
    return {each.name: each for each in unit_costs(**ask)}


def test_the_denominator_is_in_the_name():
    # Half of an instance of 5.672 dollars an hour for 97.65 s made 43,140 output tokens out of 215,196 input ones.
    seconds = 97.65
    counts = {"output_tokens": 43_140, "all_tokens": 43_140 + 215_196, "request": 100, "user": 0}
    found = by_name(busy_usd=2.836 * seconds / 3600, loaded_usd=5.672 * seconds / 3600, counts=counts)
    assert found["usd_per_million_output_tokens"].busy_usd == pytest.approx(1.783, abs=5e-4)
    assert found["usd_per_million_all_tokens"].busy_usd == pytest.approx(0.298, abs=5e-4)
    assert found["usd_per_million_output_tokens"].loaded_usd == pytest.approx(3.567, abs=1e-3)
    assert found["usd_per_request"].busy_usd == pytest.approx(found["usd_per_request"].loaded_usd / 2)
    assert found["usd_per_user"].busy_usd is None


def test_paid_for_and_used_are_told_apart():
    # 2 gpus at 3 dollars for 730 hours, busy a fifth of them: both figures of 500 million tokens.
    found = by_name(busy_usd=876.0, loaded_usd=4380.0, counts={"all_tokens": 500e6})
    assert found["usd_per_million_all_tokens"].loaded_usd == pytest.approx(8.76)
    assert found["usd_per_million_all_tokens"].busy_usd == pytest.approx(1.752)


@pytest.mark.parametrize(
    ("gpu", "usd", "tokens_per_s", "published"),
    [("L4", 0.80, 80e3, 0.0028), ("L40S", 1.86, 239e3, 0.0022), ("H100", 2.99, 653e3, 0.0013)],
)
def test_published_prices_of_an_encoder_pool(gpu, usd, tokens_per_s, published):
    assert usd_per_million(usd, tokens_per_s) == pytest.approx(published, abs=5e-5), gpu


@given(success=st.floats(0.01, 1.0), most=st.integers(1, 60), usd=st.floats(0.0, 10.0))
def test_retries_do_not_change_the_price_of_a_success(success, most, usd):
    found = task_cost(usd, success_fraction=success, most_attempts_count=most)
    assert found.usd_per_successful_task == pytest.approx(usd / success, rel=1e-6)
    assert found.attempts_per_task * (1 + 1e-12) >= 1.0
    assert found.attempts_per_task <= most * (1 + 1e-12)
    assert found.succeeded_fraction == pytest.approx(found.attempts_per_task * success)


def test_a_task_by_hand():
    found = task_cost(0.05, success_fraction=0.8, most_attempts_count=2, hand_work_usd=4.0)
    assert found.attempts_per_task == pytest.approx(1.2)
    assert found.succeeded_fraction == pytest.approx(0.96)
    assert found.usd_per_task == pytest.approx(1.2 * 0.05 + 0.04 * 4.0)
    assert found.usd_per_successful_task == pytest.approx(0.22 / 0.96)


def test_nothing_succeeds_at_no_price():
    found = task_cost(0.05, success_fraction=0.0, most_attempts_count=3)
    assert (found.attempts_per_task, found.usd_per_successful_task) == (3.0, None)
    with pytest.raises(ValueError, match="success"):
        task_cost(1.0, success_fraction=1.5)
    with pytest.raises(ValueError, match="busy"):
        unit_costs(busy_usd=2.0, loaded_usd=1.0, counts={})


def an_hour(**changes):
    lines = {"input": 3.0, "cached": 0.5, "output": 4.5, "headroom": 1.0, "idle": 1.0, "spare": 5.0} | changes
    return Bill(
        span_s=3600.0,
        total_usd_per_hour=sum(lines.values()),
        **{f"{name}_usd_per_hour": usd for name, usd in lines.items()},
        usd_per_million_input_tokens=0.3 if lines["input"] else None,
        usd_per_million_cached_tokens=0.05 if lines["cached"] else None,
        usd_per_million_output_tokens=1.5 if lines["output"] else None,
        usd_per_million_output_tokens_loaded=None,
        usd_per_request=0.01,
    )


@pytest.mark.parametrize("changes", [{}, {"cached": 0.0}, {"headroom": 0.0, "idle": 0.0, "spare": 0.0}])
def test_loaded_units_times_their_counts_are_the_bill_and_busy_ones_its_busy_lines(changes):
    hour = an_hour(**changes)
    found = {unit.name: unit for unit in units_of(hour)}
    tokens = [unit for name, unit in found.items() if name.endswith("tokens")]
    busy = hour.input_usd_per_hour + hour.cached_usd_per_hour + hour.output_usd_per_hour
    assert sum(unit.loaded_usd * unit.count / 1e6 for unit in tokens) == pytest.approx(hour.total_usd_per_hour)
    assert sum(unit.busy_usd * unit.count / 1e6 for unit in tokens) == pytest.approx(busy)
    request = found["usd_per_request"]
    assert request.loaded_usd * request.count == pytest.approx(hour.total_usd_per_hour)
    assert request.busy_usd * request.count == pytest.approx(busy)
    assert ("usd_per_million_cached_tokens" in found) == bool(hour.cached_usd_per_hour)


def test_an_hour_without_work_has_no_units():
    assert units_of(an_hour(input=0.0, cached=0.0, output=0.0)) == ()
