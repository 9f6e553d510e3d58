"""What would make sure, said the same where the promise is told and where wrong assumptions are."""

from dataclasses import replace

from tokenfleet.app.outlook_words import nobody_is_sure, sensitive
from tokenfleet.app.summary import promised
from tokenfleet.planner import plan
from tokenfleet.planner.joint import as_sure
from unit.planner import toy
from unit.planner.conftest import toy_world  # noqa: F401 - a fixture

PRICES = [toy.price("h100_sxm", 2.0)]


def test_a_count_for_slow_steps_is_no_contradiction_to_being_unsure(toy_world):  # noqa: F811 - the fixture
    """More replicas bear slow steps; a first token has an interval of its own, which they do not narrow."""
    kind = toy.replica(slots=4, tensor_parallel=2, band=1.5)
    vague = replace(kind, band=replace(kind.band, first_token_factor=1e6))
    made = plan(toy.question([vague], PRICES), toy.trace(count=600, rate=40.0))
    slow = next(case for case in made.sensitivity if case.is_slow_end)
    assert made.sure is None
    assert slow.replica_count > made.chosen.replica_count
    count = f"{slow.replica_count} replicas"
    assert f"step time x 1.5: {count}" in sensitive(made)[0]
    said = nobody_is_sure(made)
    assert said.startswith(f"{count} at $")
    assert "would keep it if only steps are slow, but the promise of a first token may break all the same" in said
    assert "up to 4 times" not in said
    late = tuple(replace(each, predicted_high=2 * each.promised) for each in made.slo_degraded)
    assert [line for line in promised(replace(made, slo_degraded=late)) if line.endswith(said)]


def test_where_no_fleet_bears_slow_steps_none_is_named(toy_world):  # noqa: F811 - the fixture
    fast = toy.replica(slots=4, step_ms=8.0, token_us=10.0)
    made = plan(toy.question([fast], PRICES, promise=toy.slo(itl=0.009)), toy.trace())
    assert made.sure is None
    assert nobody_is_sure(made) == "no fleet of such replicas at up to 4 times the price would make sure"
    assert "step time x 1.2: another fleet" in sensitive(made)[0]


def test_pools_that_are_sure_are_those_that_slow_steps_ask_for(toy_world):  # noqa: F811 - the fixture
    made = plan(toy.question([toy.replica(slots=16, band=1.5)], PRICES), toy.trace(count=600, rate=40.0))
    cases = made.sensitivity
    assert as_sure(cases, None) == cases
    sure = (made.sure, replace(made.sure, carrying_count=7))
    told = as_sure(cases, sure)
    (slow,) = (case for case in told if case.is_slow_end)
    assert slow.pool_replica_count == tuple(sized.replica_count for sized in sure)
    assert slow.price_usd_per_hour == sum(sized.price_usd_per_hour for sized in sure)
    assert [case for case in told if not case.is_slow_end] == [case for case in cases if not case.is_slow_end]
