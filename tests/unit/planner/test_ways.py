"""Other routers and other pools, beside one pool behind the router named."""

from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.domain.trace import Observed, PrefixTree
from tokenfleet.planner import cheapest, plan, plan_document, split_trials
from tokenfleet.planner.splits import splits_of
from tokenfleet.planner.systems import members_of
from tokenfleet.workload import profile
from unit.planner import toy

ROUTERS = ("round_robin", "power_of_two", "prefix_affinity")
PRICES = [toy.price("h100_sxm", 3.0), toy.price("l40s", 1.0)]


def conversations(count=1200, users=24, shared=1500):
    """Prompts that mostly repeat what their user sent before, from a few users at a time."""
    drawn = toy.trace(count=count, rate=30.0, inputs=shared + 100, outputs=20)
    tree = PrefixTree(parent=np.full(users, -1, dtype=np.int32), token_count=np.full(users, shared, dtype=np.int32))
    node = np.random.default_rng(3).integers(0, users, count).astype(np.int32)
    return replace(drawn, prefix_node=node, prefixes=tree)


CACHING = toy.replica(caching=True, token_us=100.0, block_count=1000, slots=32)


def test_the_plan_takes_the_router_behind_which_the_fewest_replicas_do():
    question, trace = toy.question([CACHING], PRICES, promise=toy.slo(ttft=0.5, itl=0.2)), conversations()
    usual = cheapest(question, trace).sized.carrying_count
    made = plan(replace(question, routers=ROUTERS, first_look=True), trace)
    assert made.routers[0].router == made.fleet.router == made.question.router == "prefix_affinity"
    assert made.chosen.carrying_count == made.routers[0].carrying_count < usual
    assert made.routers[1].router == "least_in_flight"
    assert made.routers[1].carrying_count == usual
    assert {trial.router for trial in made.routers} == {*ROUTERS, "least_in_flight"}
    assert all(trial.why for trial in made.routers)
    alone = cheapest(replace(question, router="prefix_affinity"), trace).sized
    assert alone.carrying_count == made.chosen.carrying_count


def test_a_router_is_tried_in_front_of_other_kinds_than_the_best():
    large = toy.replica(caching=True, token_us=24.0, block_count=4000, slots=128, gpu="l40s", step_ms=2.0)
    prices = [toy.price("h100_sxm", 3.0), toy.price("l40s", 9.5)]
    promise, trace = toy.slo(ttft=0.5, itl=0.2), conversations()
    question = toy.question([CACHING, large], prices, promise=promise)
    usual = cheapest(question, trace).sized
    behind = cheapest(replace(question, router="prefix_affinity"), trace).sized
    made = plan(replace(question, routers=("prefix_affinity",), first_look=True), trace)
    assert usual.replica.deployment.gpu == "l40s"
    assert behind.replica.deployment.gpu == "h100_sxm"
    assert made.chosen.price_usd_per_hour == behind.price_usd_per_hour < usual.price_usd_per_hour


def test_a_router_that_saves_nothing_changes_nothing():
    question, trace = toy.question([toy.replica(slots=8)], PRICES), toy.trace(count=600, rate=40.0)
    usual = plan(replace(question, first_look=True), trace)
    made = plan(replace(question, routers=("round_robin",), first_look=True), trace)
    assert made.fleet == usual.fleet
    assert made.slo_degraded == usual.slo_degraded
    assert [trial.router for trial in made.routers] == ["least_in_flight", "round_robin"]
    assert made.replayed_count > usual.replayed_count
    one = plan(replace(question, routers=("round_robin",), first_look=True), toy.trace(count=300, rate=1.0))
    assert one.chosen.carrying_count == 1
    assert "nobody does with fewer" in one.routers[1].why


def two_lengths(count=1600):
    drawn = toy.trace(count=count, rate=40.0, inputs=200, outputs=20)
    inputs = np.where(np.arange(count) % 4, 200, 6000).astype(np.int32)
    return replace(drawn, input_tokens=inputs)


def test_every_request_is_in_one_pool_and_each_pool_can_be_judged():
    trace = two_lengths()
    marked = replace(
        trace,
        observed=Observed(label=(np.arange(1600) % 2).astype(np.int32), labels=("chat", "search")),
        priority=(np.arange(1600) % 3).astype(np.int32),
    )
    for by, names in (("length", 1), ("task", 1), ("tier", 1)):
        found = list(splits_of(marked, by))
        assert len(found) >= names
        for split in found:
            held = np.sum([part.chosen for part in split.parts], axis=0)
            assert np.all(held == 1)
            assert all(part.chosen.sum() >= 200 for part in split.parts)
    assert [part.who for part in next(splits_of(marked, "task")).parts] == ["chat", "search"]
    assert list(splits_of(trace, "task")) == list(splits_of(trace, "tier")) == []
    assert list(splits_of(toy.trace(count=300), "length")) == []


def test_short_prompts_get_a_cheap_pool_of_their_own_where_that_is_cheaper():
    """One replica must be large to hold the long prompts; most requests do not need it."""
    small = toy.replica(gpu="l40s", slots=4, step_ms=10.0, block_count=200)
    large = toy.replica(gpu="h100_sxm", slots=4, step_ms=10.0)
    prices = [toy.price("h100_sxm", 20.0), toy.price("l40s", 1.0)]
    question = toy.question([small, large], prices, promise=toy.slo(ttft=3.0, itl=0.5))
    trace = two_lengths()
    together = cheapest(question, trace).sized
    assert together.replica.deployment.gpu == "h100_sxm"
    trials = split_trials(replace(question, splits=("length", "task")), trace, together)
    best = trials[0]
    assert best.why.startswith("won, ")
    assert best.price_usd_per_hour < together.price_usd_per_hour
    assert [pool.sized.replica.deployment.gpu for pool in best.pools] == ["l40s", "h100_sxm"]
    assert sum(pool.request_fraction for pool in best.pools) == pytest.approx(1.0)
    for pool, part in zip(best.pools, next(splits_of(trace, "length")).parts, strict=True):
        assert pool.request_fraction == part.chosen.mean()
        assert np.array_equal(members_of(trace, pool.takes), part.chosen)
    assert "names no tasks" in trials[-1].why or "names no tasks" in trials[-2].why


def test_a_split_loses_where_each_pool_pays_for_spare_replicas_of_its_own():
    question, trace = toy.question([toy.replica(slots=16)], PRICES, spare=2), two_lengths()
    together = cheapest(question, trace).sized
    trials = split_trials(replace(question, splits=("length",)), trace, together)
    assert trials[0].why.startswith("lost, ")
    assert "4 replicas stand spare where one pool keeps 2" in trials[0].why
    unserved = split_trials(replace(question, splits=("length",), slo=toy.slo(ttft=0.0001)), trace, None)
    assert all(trial.price_usd_per_hour is None for trial in unserved)


def test_machines_read_all_of_it():
    question, trace = toy.question([toy.replica(slots=16)], PRICES), two_lengths()
    made = plan(replace(question, routers=("round_robin",), first_look=True), trace)
    trials = split_trials(replace(question, splits=("length",)), trace, made.chosen)
    found = plan_document(replace(made, splits=trials), profile(trace, None), {})
    assert found["routers"][0]["router"] == "least_in_flight"
    ratio = trials[0].price_usd_per_hour / made.chosen.price_usd_per_hour
    assert found["splits"][0]["price_over_together"] == pytest.approx(ratio)
    assert found["splits"][0]["pools"][0]["fleet"][0]["replica_count"] == trials[0].pools[0].sized.replica_count


def test_prompts_are_split_in_the_gap_between_their_lengths_whatever_formulas_say():
    """A quarter of the prompts are thirty times as long: no quantile that is tried lies between the two kinds."""
    trace = two_lengths()
    found = list(splits_of(trace, "length"))
    assert found[0].is_natural
    assert not any(split.is_natural for split in found[1:])
    limit = found[0].parts[0].takes.input_up_to_tokens
    assert 200 < limit < 6000
    assert found[0].parts[1].takes.input_over_tokens == limit
    # Lengths without a gap have no place where they fall apart.
    assert not any(split.is_natural for split in splits_of(toy.trace(count=1600), "length"))


def test_requests_without_a_task_leave_no_split_by_task():
    trace = replace(
        two_lengths(),
        observed=Observed(label=(np.arange(1600) % 3 - 1).astype(np.int32), labels=("chat", "search")),
    )
    assert list(splits_of(trace, "task")) == []
