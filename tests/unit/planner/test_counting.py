import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.planner.counting import below_near_misses, first_enough, smallest_enough


@given(border=st.integers(1, 3000), start=st.integers(-3, 4000), cap=st.integers(1, 3000))
def test_finds_the_border_and_asks_both_sides_of_it(border, start, cap):
    asked = []

    def enough(count):
        asked.append(count)
        return count >= border

    found = smallest_enough(enough, start, cap)
    assert found == (border if border <= cap else None)
    assert len(asked) == len(set(asked)) <= 40
    assert all(1 <= count <= cap for count in asked)
    if found is not None and found > 1:
        assert {found, found - 1} <= set(asked)


@given(holes=st.sets(st.integers(1, 60)), start=st.integers(1, 60))
def test_an_answer_is_always_a_border_even_where_more_is_worse(holes, start):
    def enough(count):
        return count not in holes

    found = smallest_enough(enough, start, 60)
    if found is not None:
        assert enough(found)
        assert found == 1 or not enough(found - 1)


def test_zero_is_never_asked():
    asked = []
    assert smallest_enough(lambda count: not asked.append(count), 5, 10) == 1
    assert min(asked) == 1


@pytest.mark.parametrize("cap", [1, 7])
def test_never_enough(cap):
    asked = []
    assert smallest_enough(lambda count: bool(asked.append(count)), 3, cap) is None
    assert max(asked) == cap


def test_a_walk_crosses_near_misses_and_stops_at_a_clear_one():
    excess = {20: 1.002, 19: 1.0, 18: 1.0, 17: 1.0, 16: 1.01, 15: 1.0, 14: 1.002, 13: 1.037, 12: 1.0}
    asked = []

    def ask(count):
        asked.append(count)
        return excess[count]

    assert below_near_misses(ask, 21) == 15
    assert asked == [20, 19, 18, 17, 16, 15, 14, 13]


def test_a_walk_loses_patience_and_never_asks_zero():
    asked = []

    def near(count):
        asked.append(count)
        return 1.01

    assert below_near_misses(near, 50) == 50
    assert len(asked) == 6
    asked.clear()
    assert below_near_misses(near, 3) == 3
    assert asked == [2, 1]


@given(holes=st.sets(st.integers(1, 16)), cap=st.integers(1, 16))
def test_the_first_count_is_that_of_brute_force_where_more_is_worse(holes, cap):
    found = first_enough(lambda count: count not in holes, cap)
    assert found == next((count for count in range(1, cap + 1) if count not in holes), None)


@given(border=st.integers(1, 200), hole=st.integers(1, 210), cap=st.integers(1, 200))
def test_beyond_the_first_counts_the_answer_is_a_border(border, hole, cap):
    asked = []

    def enough(count):
        asked.append(count)
        return count >= border and count != hole

    found = first_enough(enough, cap)
    assert len(asked) == len(set(asked))
    assert found is None or (enough(found) and (found == 1 or not enough(found - 1)))
    if not border <= hole and cap != hole:
        assert found == (border if border <= cap else None)


def test_beyond_the_first_counts_the_border_found_is_followed_down():
    assert first_enough(lambda count: count >= 30 and count != 32, 100) == 30
