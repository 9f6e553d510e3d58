"""The door: compiled equals plain, caps refuse and never cut, budgets are never overshot, nobody starves."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calling import as_compiled
from tokenfleet.control import (
    REASONS,
    admission,
    admit,
    bucket_left_tokens,
    bucket_refilled,
    bucket_reserved,
    bucket_settled,
    is_overdue,
    queue_turn,
    retry_after_s,
)
from tokenfleet.domain.world import NO_CAP

COUNTS = st.integers(0, 2**31 - 1)
LEVELS = st.integers(-(2**51), 2**51)
TIMES = st.integers(0, 2**61 - 1)
FUNCTIONS = {
    "admit": st.tuples(
        st.booleans(), st.booleans(), *(COUNTS,) * 6, st.booleans(), st.integers(-5, 2**31 - 1), *(COUNTS,) * 5
    ),
    "is_overdue": st.tuples(TIMES, TIMES),
    "queue_turn": st.tuples(TIMES, st.booleans(), TIMES),
    "bucket_refilled": st.tuples(LEVELS, st.integers(0, 2**62), COUNTS, COUNTS),
    "bucket_left_tokens": st.tuples(LEVELS),
    "bucket_reserved": st.tuples(LEVELS, COUNTS),
    "bucket_settled": st.tuples(LEVELS, COUNTS, COUNTS, COUNTS),
    "backoff_ps": st.tuples(st.integers(1, 1000), *(st.integers(0, 86_400 * 10**12),) * 2, COUNTS),
}
GATEWAY_ONLY = {"retry_after_s"}
"""Floats go in and come out, which nothing compiled does."""


def test_every_function_is_compared():
    public = {
        name for name, value in vars(admission).items() if callable(value) and value.__module__ == admission.__name__
    }
    assert {*FUNCTIONS} | GATEWAY_ONLY == public


@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_equals_plain(name):
    plain = getattr(admission, name)
    compiled = as_compiled(plain)

    @settings(max_examples=200, deadline=None)
    @given(FUNCTIONS[name])
    def compare(arguments):
        assert compiled(*arguments) == plain(*arguments)
        assert -(2**63) <= plain(*arguments) < 2**63

    compare()


def asks(**given):
    """An interactive request of 100 + 200 tokens at an open door."""
    known = {
        "is_batch": False,
        "batch_is_open": True,
        "needed_tokens": 300,
        "quota_left_tokens": NO_CAP,
        "input_tokens": 100,
        "output_limit_tokens": 200,
        "smaller_input_tokens": 0,
        "smaller_output_tokens": NO_CAP,
        "opens_session": True,
        "sessions_left_count": NO_CAP,
        "context_cap_tokens": NO_CAP,
        "output_cap_tokens": NO_CAP,
        "waiting_count": 0,
        "queue_limit_count": 60,
        "batch_queue_limit_count": 30,
    }
    return REASONS[admit(**known | given)]


def test_each_reason_has_its_own_words():
    assert asks() == "admitted"
    assert asks(is_batch=True, batch_is_open=False) == "batch requests are shed"
    assert asks(batch_is_open=False) == "admitted"
    assert asks(quota_left_tokens=299) == "the tenant's tokens are spent"
    assert asks(quota_left_tokens=300) == "admitted"
    assert asks(sessions_left_count=0) == "no new sessions"
    assert asks(sessions_left_count=0, opens_session=False) == "admitted"
    assert asks(context_cap_tokens=299) == "prompt and output limit are longer than the cap in force"
    assert asks(output_cap_tokens=199) == "the output limit is higher than the cap in force"
    assert asks(output_cap_tokens=200) == "admitted", "a cap refuses what declares more, and cuts nobody"
    assert asks(smaller_input_tokens=100) == "admitted to the smaller model"
    assert asks(smaller_input_tokens=99) == "admitted"
    assert asks(smaller_input_tokens=100, smaller_output_tokens=199) == "admitted", "it declares a long answer"
    assert asks(smaller_input_tokens=100, is_batch=True) == "admitted"
    assert asks(waiting_count=60) == "the queue is full"
    assert len(set(REASONS.values())) == len(REASONS)


def test_who_has_waited_until_the_deadline_is_overdue():
    assert [is_overdue(waited_ps, 5) for waited_ps in (0, 4, 5, 6)] == [False, False, True, True]
    assert not is_overdue(10**18, 0), "no deadline"


def test_batch_is_shed_first():
    assert asks(waiting_count=30) == "admitted"
    assert asks(waiting_count=30, is_batch=True) == "the queue is full"


def test_five_at_once_do_not_pass_a_limit_of_a_hundred_tokens():
    # The same five requests passed a gateway that counted after the fact: 663 tokens of 100.
    level, admitted = 100 * 1_000_000, []
    for tokens in (58, 80, 175, 175, 175):
        if tokens <= bucket_left_tokens(level):
            level = bucket_reserved(level, tokens)
            admitted.append(tokens)
    assert admitted == [58]


@settings(max_examples=300)
@given(
    st.integers(0, 1000),
    st.integers(1, 5000),
    st.lists(st.tuples(st.integers(0, 2_000_000), st.integers(1, 3000), st.floats(0.0, 1.0)), max_size=40),
)
def test_what_is_used_and_reserved_never_passes_burst_plus_refill(rate, burst, requests):
    level, granted, time_us = burst * 1_000_000, 0, 0
    for passed_us, tokens, used_fraction in requests:
        time_us += passed_us
        level = bucket_refilled(level, passed_us, rate, burst)
        if tokens <= bucket_left_tokens(level):
            level = bucket_reserved(level, tokens)
            used = round(tokens * used_fraction)
            level = bucket_settled(level, tokens, used, burst)
            granted += used
        assert granted * 1_000_000 <= burst * 1_000_000 + rate * time_us
        assert 0 <= level <= burst * 1_000_000


def test_a_long_silence_fills_the_bucket_and_no_more():
    assert bucket_refilled(0, 2**62, 2**31 - 1, 500) == 500 * 1_000_000
    assert bucket_refilled(7, 10**12, 0, 500) == 7
    assert bucket_refilled(0, 1_500_000, 3, 500) == 4_500_000, "exact to a millionth"


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))
def test_batch_gives_way_and_never_starves(batch_us, other_us, patience_us):
    batch = queue_turn(batch_us, True, patience_us)
    interactive = queue_turn(other_us, False, patience_us)
    # Whoever arrives after the patience of a waiting batch request comes after it.
    assert (batch < interactive) == (other_us > batch_us + patience_us)


def test_come_back_when_those_ahead_are_served():
    assert retry_after_s(10, 4.0, 0.0) == 3.0
    assert retry_after_s(10, 4.0, 1.0) == pytest.approx(3.9)
    assert retry_after_s(0, 4.0, 0.0) == 1.0
    assert retry_after_s(10**6, 4.0, 0.0) == 30.0
    assert retry_after_s(10, 0.0, 0.5) == -1.0, "unknown is not zero"
