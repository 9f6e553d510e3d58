"""How full the pools of a plan are, and why some are fuller than others."""

from dataclasses import replace

import pytest

from tokenfleet.app.pooled_words import fullness, fullness_lines
from tokenfleet.domain.plan import PlannedPool
from tokenfleet.planner import plan
from unit.planner import toy
from unit.planner.conftest import toy_world  # noqa: F401 - a fixture


@pytest.fixture
def known(toy_world):  # noqa: F811 - the fixture, not the import
    return plan(toy.question([toy.replica(slots=4)], [toy.price("h100_sxm", 2.0)], spare=0), toy.trace(count=600))


def pool(known, name, *, sustained, peak=10.0, at_least=False):
    """Replicas that get ten requests a second done."""
    limits = (replace(known.limits[0], at_least=at_least), *known.limits[1:])
    made = replace(
        known, limits=limits, sustained_rate_per_s=sustained, saturated_rate_per_s=10.0, peak_rate_per_s=peak
    )
    return PlannedPool(name=name, who=name, does="answers", takes=None, request_fraction=0.5, plan=made)


def test_work_that_can_wait_fills_a_pool_and_no_more_than_fills_it(known):
    chat, batch = pool(known, "chat", sustained=5.0, peak=5.0), pool(known, "batch", sustained=40.0, peak=30.0)
    assert fullness(batch).asked_ratio == pytest.approx(3.0)
    assert fullness(batch).peak_fraction == 1.0
    full, why = fullness_lines([chat, batch])
    assert "chat 50 %, batch 100 % (asked for 3.0 times as much, which waits)" in full
    assert why == "chat is emptier than batch: its promise leaves 50 % of that, and the work of the other can wait"


def test_where_no_load_was_too_much_only_what_is_asked_beyond_is_known_to_wait(known):
    calm = fullness(pool(known, "batch", sustained=40.0, peak=8.0, at_least=True))
    assert (calm.promise_ratio, calm.whole_fraction) == (1.0, pytest.approx(0.8))
    late = fullness(pool(known, "batch", sustained=40.0, peak=30.0, at_least=True))
    assert (late.promise_ratio, late.whole_fraction) == (pytest.approx(3.0), 1.0)


def test_two_pools_that_somebody_waits_for_differ_in_what_their_promise_leaves(known):
    pools = [pool(known, "chat", sustained=5.0, peak=5.0), pool(known, "code", sustained=9.0, peak=9.0)]
    assert fullness_lines(pools)[1] == (
        "chat is emptier than code: its promise leaves 50 % of that and the other's 90 %, as replicas must be free "
        "when somebody comes"
    )
