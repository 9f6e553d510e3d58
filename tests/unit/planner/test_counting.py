import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.planner.counting import smallest_enough


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
