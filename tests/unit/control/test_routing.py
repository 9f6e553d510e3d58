"""Routing policies: compiled equals plain, for every policy and at the edges of its arguments."""

import numba
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfleet import control

COUNTS = st.integers(0, 2**31 - 1)
REPLICAS = st.integers(1, 2**31 - 1)
POLICIES = {
    "round_robin": st.tuples(COUNTS),
    "least_in_flight": st.tuples(COUNTS, COUNTS, REPLICAS),
    "home_replica": st.tuples(COUNTS, REPLICAS),
    "scrambled": st.tuples(COUNTS, COUNTS),
    "prefix_affinity": st.tuples(
        st.integers(0, 2**28), COUNTS, st.integers(1, 2**28), st.booleans(), st.integers(0, 2**31 - 1)
    ),
}


def test_every_policy_is_compared() -> None:
    modules = control.routing, control.hashing
    assert set(POLICIES) == {name for module in modules for name, each in vars(module).items() if callable(each)}


@pytest.mark.parametrize("name", POLICIES)
def test_compiled_equals_plain(name: str) -> None:
    plain = getattr(control, name)
    compiled = numba.njit(plain, error_model="numpy")

    @settings(max_examples=200, deadline=None)
    @given(POLICIES[name])
    def compare(arguments: tuple) -> None:
        assert compiled(*arguments) == plain(*arguments)
        assert -(2**63) <= plain(*arguments) < 2**63

    compare()


def test_least_in_flight_breaks_ties_by_turn() -> None:
    scores = [control.least_in_flight(in_flight, after, 3) for in_flight, after in ((2, 0), (1, 2), (1, 1))]
    assert scores.index(min(scores)) == 2


def test_keys_spread_evenly_over_replicas() -> None:
    homes = [control.home_replica(key, 7) for key in range(7000)]
    counts = [homes.count(number) for number in range(7)]
    assert min(counts) > 850
    assert max(counts) < 1150


def test_draws_by_hash_are_even_and_differ_by_salt() -> None:
    draws = [[control.scrambled(key, salt) & 0xFFFF for key in range(4000)] for salt in (1, 2)]
    for each in draws:
        assert abs(sum(each) / len(each) / 0xFFFF - 0.5) < 0.02
        assert min(sum(low <= draw < low + 0x4000 for draw in each) for low in range(0, 0x10000, 0x4000)) > 900
    assert sum(one == other for one, other in zip(*draws, strict=True)) < 5


def test_affinity_goes_home_until_home_is_overloaded() -> None:
    def score(in_flight: int, *, home: bool) -> int:
        return control.prefix_affinity(in_flight, 0, 4, home, 40)

    assert score(12, home=True) < score(0, home=False)
    assert score(17, home=True) > score(0, home=False), "mean 10, a quarter more and 4: the bound is 16.5"
