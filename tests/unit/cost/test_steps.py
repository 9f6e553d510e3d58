"""Shares of a step add up to it; weights are found again in counters made from them."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from tokenfleet.cost import compute_bound_fraction, counter_weights, split_step
from tokenfleet.domain.errors import BadInput

positive = st.floats(1.0, 1e9)


@given(
    flop=st.lists(positive, min_size=1, max_size=20),
    data=st.data(),
    weight=st.floats(1.0, 1e11),
    duration=st.floats(1e-4, 1.0),
    bound=st.floats(0.0, 1.0),
)
def test_the_shares_are_the_step(flop, data, weight, duration, bound):
    kv = data.draw(st.lists(st.floats(0.0, 1e9), min_size=len(flop), max_size=len(flop)))
    ask = {"weight_bytes": weight, "compute_fraction": bound}
    shares = split_step(duration, flop=np.array(flop), kv_bytes=np.array(kv), **ask)
    assert shares.sum() == pytest.approx(duration)
    assert shares.min() >= 0.0


def test_prefill_pays_for_arithmetic_and_decode_for_reading():
    # One request of 1,000 new tokens, nine of one each with long contexts.
    flop = np.array([1000.0] + [1.0] * 9)
    kv = np.array([1.0] + [9.0] * 9)
    ask = {"flop": flop, "kv_bytes": kv, "weight_bytes": 8.0}
    computed = split_step(1.0, compute_fraction=1.0, **ask)
    read = split_step(1.0, compute_fraction=0.0, **ask)
    assert computed[0] == pytest.approx(1000 / 1009)
    assert read[0] == pytest.approx((0.8 + 1.0) / 90)
    assert read[1] == pytest.approx((0.8 + 9.0) / 90)


def test_a_cached_prompt_costs_its_reading_only():
    new, cached = np.array([500.0, 10.0]), np.array([500.0, 500.0])
    shares = split_step(1.0, flop=new, kv_bytes=cached, weight_bytes=1.0, compute_fraction=1.0)
    assert shares[1] == pytest.approx(10 / 510)


@pytest.mark.parametrize(("ratio", "expected"), [(0.1, 0.0), (0.5, 0.0), (1.0, 0.5), (2.0, 1.0), (9.0, 1.0)])
def test_the_bound_goes_over_at_the_ridge(ratio, expected):
    assert compute_bound_fraction(ratio, 1.0) == pytest.approx(expected)


def test_an_empty_step_is_refused():
    none = np.array([])
    with pytest.raises(ValueError, match="requests"):
        split_step(1.0, flop=none, kv_bytes=none, weight_bytes=1.0, compute_fraction=0.5)
    with pytest.raises(ValueError, match="reads weights"):
        split_step(1.0, flop=np.array([0.0]), kv_bytes=np.array([1.0]), weight_bytes=1.0, compute_fraction=0.5)


@settings(max_examples=20, deadline=None)
@given(weights=st.lists(st.floats(0.0, 5.0), min_size=3, max_size=3), seed=st.integers(0, 99))
@example(weights=[0.00390625, 0.0, 1.0], seed=0)
@example(weights=[1.3e-7, 0.0, 2.0], seed=0)
def test_weights_are_found_again(weights, seed):
    counters = np.random.default_rng(seed).uniform(1.0, 100.0, (60, 3)) * np.array([1.0, 1e3, 1e6])
    found = counter_weights(counters @ np.array(weights), counters)
    assert found == pytest.approx(weights, rel=1e-5, abs=1e-7)


@given(seed=st.integers(0, 2**32 - 1), noise=st.sampled_from([0.0, 0.1, 10.0]))
def test_weights_of_noisy_counters_are_those_of_another_code(seed, noise):
    random = np.random.default_rng(seed)
    counters = random.uniform(0.1, 1.0, (40, random.integers(1, 7)))
    busy = counters @ random.normal(size=counters.shape[1]) + random.normal(0.0, noise, 40)
    assert counter_weights(busy, counters) == pytest.approx(nnls(counters, busy)[0], abs=1e-9)


def test_no_weight_is_below_zero_and_noise_is_borne():
    random = np.random.default_rng(3)
    counters = random.uniform(1.0, 10.0, (500, 3))
    busy = counters @ np.array([2.0, 0.0, 0.5]) + random.normal(0.0, 0.5, 500) - 0.3 * counters[:, 1]
    found = counter_weights(busy, counters)
    assert found[1] == 0.0
    assert found.min() >= 0.0


def test_counters_that_move_together_are_refused():
    one = np.linspace(1.0, 2.0, 50)
    with pytest.raises(BadInput, match="rise and fall together"):
        counter_weights(one, np.column_stack([one, 3.0 * one]))
    with pytest.raises(BadInput, match="more intervals"):
        counter_weights(one[:2], np.column_stack([one[:2], one[:2] ** 2]))
