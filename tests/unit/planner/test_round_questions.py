"""A question a little different asks about the same replays: round counts, round loads, round steps."""

from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.planner.counting import wider_count
from tokenfleet.planner.limits import Loads
from tokenfleet.planner.steps import round_size

LOADS = Loads.within(1.03)


def asked_about(limit: float, start: int = 0) -> tuple[list[float], float | None]:
    asked: list[float] = []

    def keeps(factor: float) -> bool:
        asked.append(factor)
        return factor <= limit

    found = LOADS.largest_kept(keeps, start)
    return asked, None if found is None else found.factor


@given(st.integers(1, 10_000))
def test_a_wider_count_is_a_few_more_and_one_of_few(count):
    wider = wider_count(count)
    assert count <= wider <= max(8, 1.25 * count)
    assert wider_count(wider) == wider
    assert wider_count(count + 1) >= wider


def test_counts_near_each_other_are_asked_about_as_one():
    assert {wider_count(count) for count in range(33, 41)} == {40}
    assert [wider_count(count) for count in range(1, 9)] == list(range(1, 9))


@given(st.floats(0.3, 3.9), st.integers(-20, 20))
def test_the_largest_kept_load_is_within_three_percent_below_the_limit(limit, start):
    _, found = asked_about(limit, start)
    assert found is not None
    assert found <= limit < 1.03 * found or found == LOADS.factor(LOADS.highest)


@given(st.floats(0.3, 3.9), st.integers(-20, 0), st.integers(0, 20))
def test_no_load_beyond_the_highest_is_asked_about(limit, start, highest):
    asked: list[float] = []

    def keeps(factor: float) -> bool:
        asked.append(factor)
        return factor <= limit

    found = LOADS.largest_kept(keeps, start, highest)
    assert max(asked) <= LOADS.factor(highest)
    assert found is not None
    assert found.at_least == (LOADS.factor(highest) <= limit)
    assert found.factor == min(asked_about(limit)[1], LOADS.factor(highest))


def test_below_the_lowest_load_there_is_none():
    assert asked_about(0.2)[1] is None


@given(st.floats(0.3, 3.0), st.floats(1.0, 1.02), st.integers(-20, 20))
def test_a_limit_a_little_different_asks_about_loads_asked_before(limit, change, start):
    before, after = asked_about(limit)[0], asked_about(limit * change, start)[0]
    steps = {LOADS.factor(step) for step in range(LOADS.lowest, LOADS.highest + 1)}
    assert set(before) | set(after) <= steps
    assert len(set(asked_about(limit * change)[0]) - set(before)) <= 4


@given(st.integers(64, 20_000))
def test_a_round_size_is_whole_grains_and_no_more(tokens):
    size = round_size(tokens)
    assert size % 64 == 0
    assert size <= tokens < 1.25 * size + 64
    assert round_size(size) == size


def test_round_sizes_are_few():
    assert {round_size(tokens) for tokens in range(1024, 2048)} == {1024, 1280, 1536, 1792}
    assert {round_size(tokens) for tokens in range(256, 512)} == {256, 320, 384, 448}
