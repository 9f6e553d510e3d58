"""Routing policies: compiled equals plain, for every policy and at the edges of its arguments."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calling import as_compiled
from tokenfleet import control
from tokenfleet.control import hashing, routing

COUNTS = st.integers(0, 2**31 - 1)
REPLICAS = st.integers(1, 2**31 - 1)
POLICIES = {
    "round_robin": st.tuples(COUNTS),
    "least_in_flight": st.tuples(COUNTS, st.integers(0, 2**control.AFTER_BITS - 1)),
    "home_replica": st.tuples(COUNTS, REPLICAS),
    "scrambled": st.tuples(COUNTS, COUNTS),
    "power_of_two": st.tuples(st.integers(0, 2**30 - 1), COUNTS, REPLICAS, st.booleans()),
    "least_loaded": st.tuples(COUNTS, COUNTS, st.integers(1, 2**18 - 1), st.integers(1, 2**12)),
    "least_waiting": st.tuples(COUNTS, COUNTS, st.integers(0, 2**30 - 1), COUNTS, st.integers(1, 2**18 - 1)),
    "least_kv": st.tuples(st.integers(0, 1_000_000), COUNTS, COUNTS, COUNTS, REPLICAS),
    "narrowest_fit": st.tuples(
        COUNTS,
        COUNTS,
        st.integers(0, control.MOST_GROUPS - 1),
        COUNTS,
        COUNTS,
        st.integers(0, 2**30 - 1),
        COUNTS,
        st.integers(1, 2**16 - 1),
    ),
    "prefix_affinity": st.tuples(
        st.integers(0, 2**28), COUNTS, st.integers(1, 2**28), st.booleans(), st.integers(0, 2**31 - 1)
    ),
}


def test_every_policy_is_compared() -> None:
    modules = routing, hashing
    assert set(POLICIES) == {name for module in modules for name, each in vars(module).items() if callable(each)}


@pytest.mark.parametrize("name", POLICIES)
def test_compiled_equals_plain(name: str) -> None:
    plain = getattr(control, name)
    compiled = as_compiled(plain)

    @settings(max_examples=200, deadline=None)
    @given(POLICIES[name])
    def compare(arguments: tuple) -> None:
        assert compiled(*arguments) == plain(*arguments)
        assert -(2**63) <= plain(*arguments) < 2**63

    compare()


def test_least_in_flight_breaks_ties_by_turn() -> None:
    scores = [control.least_in_flight(in_flight, after) for in_flight, after in ((2, 0), (1, 2), (1, 1))]
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


def test_of_two_drawn_the_emptier_one_and_nobody_else() -> None:
    scores = [
        control.power_of_two(load, after, 3, drawn)
        for after, (load, drawn) in enumerate([(9, True), (0, False), (7, True)])
    ]
    assert scores.index(min(scores)) == 2


def test_twice_the_weight_holds_twice_the_requests() -> None:
    held, costs = [0, 0], [control.WEIGHT_ONE, control.WEIGHT_ONE // 2]
    for _ in range(300):
        scores = [control.least_loaded(held[number], number, 2, costs[number]) for number in (0, 1)]
        held[scores.index(min(scores))] += 1
    assert held == [100, 200]


def test_the_short_have_replicas_of_their_own_and_go_over_where_those_have_a_queue() -> None:
    def score(value: int, up_to: int, rank: int, waiting: int, in_flight: int) -> int:
        return control.narrowest_fit(value, up_to, rank, waiting, in_flight, in_flight, 0, 4)

    assert score(500, 2000, 0, 0, 90) < score(500, 9000, 1, 0, 0), "theirs first, however full"
    assert score(500, 2000, 0, 4, 90) < score(500, 9000, 1, 0, 0), "a few may wait"
    assert score(500, 2000, 0, 6, 90) > score(500, 9000, 1, 5, 90), "then where fewer wait"
    assert score(2001, 2000, 0, 0, 0) == control.NOT_SERVED, "a long prompt never holds up the short ones"
    assert control.narrowest_fit(0, 9, 0, 3, 20, 30, 0, 4) > control.narrowest_fit(0, 9, 1, 0, 20, 30, 0, 4), (
        "what was sent since the scrape waits behind those who did"
    )


def test_what_a_scrape_saw_is_moved_on_by_what_was_sent_since() -> None:
    def waiting(then: int, now: int) -> int:
        return control.least_waiting(4, then, now, 0, 3)

    assert waiting(20, 20) < waiting(20, 25)
    assert waiting(20, 10) < control.least_waiting(1, 20, 20, 0, 3), "more have left than were waiting"
    assert control.least_kv(500_000, 9, 9, 0, 3) < control.least_kv(400_000, 9, 14, 0, 3)
