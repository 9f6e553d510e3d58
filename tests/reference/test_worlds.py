"""With failures, starts, clients that come back, admission, closed loops and a controller, both still agree."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from reference.comparing import assert_equal
from reference.fleets import (
    first_come,
    random_copies,
    random_fleet,
    random_overcommitted,
    random_trace,
    with_any_router,
    with_smaller_model,
    with_speculation,
)
from reference.plain_engine import Replica, Request
from reference.plain_fleet import PlainRun
from reference.worlds import random_world, with_lane
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import Leaving, World

NAMES = ("vllm-0.32", "vllm-0.32", "sglang-0.5", "trtllm-1.2")


def random_case(draw: np.random.Generator) -> tuple[Trace, Fleet]:
    """Any rule set, with shared prefixes or without, in ample or in little memory."""
    name = str(draw.choice(NAMES))
    chance = draw.random()
    if chance < 0.2:
        return random_copies(draw, name=name)
    if chance < 0.3:
        return random_overcommitted(draw)
    drawn = random_fleet(draw, name=name)
    return random_trace(draw, shared=bool(draw.random() < 0.5), delivered=chance < 0.4), drawn


def check(seed: int) -> RunRecord:
    draw = np.random.default_rng(seed)
    trace, fleet = random_case(draw)
    fleet = with_any_router(draw, fleet)
    apart = np.random.default_rng([seed, 1])
    if apart.random() < 0.2:
        fleet = with_speculation(apart, fleet)
    if draw.random() < 0.6:
        fleet = with_smaller_model(draw, fleet)
    replica_count = sum(group.replica_count for group in fleet.groups)
    if draw.random() < 0.4:
        tenant = draw.integers(-1, 3, trace.request_count).astype(np.int32)
        trace = replace(trace, tenant=tenant, tenants=("a", "b", "c"))
    world = random_world(draw, replica_count, trace.request_count, 1.5 * trace.duration_s + 0.5)
    return assert_equal(trace, fleet, world)


@pytest.mark.parametrize("seed", range(4))
def test_worlds(seed: int) -> None:
    runs = [check(1000 * seed + step) for step in range(40)]
    ends = set(np.concatenate([run.status for run in runs]).tolist())
    assert ends == set(map(int, Status)), "every way to end occurs"
    assert any(run.turmoil.degraded.any() for run in runs), "somebody is sent to the smaller model"


def check_retracted(seed: int) -> int:
    """Clients of SGLang give up right before it retracts somebody; how many it retracts that it knows of by then."""
    draw = np.random.default_rng(seed)
    rows, fleet = random_overcommitted(draw)
    retracted = Retractions(rows, fleet).clocks
    if not retracted:
        return 0
    after_s = retracted[int(draw.integers(0, len(retracted)))] / 1e12 - 1e-5 - rows.arrival_s
    after_s[(after_s <= 1e-5) | (draw.random(rows.request_count) < 0.3)] = np.inf
    world = World(leaving=Leaving(after_s=after_s))
    assert_equal(rows, fleet, world)
    return Retractions(rows, fleet, world=world).of_gone


class Retractions(PlainRun):
    """A plain run that remembers when somebody was retracted, and how often one whose client was gone."""

    def __init__(self, *case, **more) -> None:
        self.clocks, self.of_gone = [], 0
        with mock.patch.object(Replica, "preempt", self.note(Replica.preempt)):
            super().__init__(*case, **more)

    def note(self, preempt):
        def noted(replica: Replica, request: Request) -> None:
            self.clocks.append(replica.clock)
            self.of_gone += request in replica.heard
            preempt(replica, request)

        return noted


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 60), marks=pytest.mark.long)], ids=len)
def test_sglang_retracts_who_has_given_up(seeds: range) -> None:
    assert sum(check_retracted(seed) for seed in seeds) > 1


def check_lane(seed: int) -> RunRecord:
    draw = np.random.default_rng(seed)
    fleet = first_come(with_any_router(draw, random_fleet(draw, name="vllm-0.32")))
    if fleet.router == "by_tier":
        fleet = replace(fleet, router="by_length")
    trace = random_trace(draw, shared=bool(draw.random() < 0.5))
    replica_count = sum(group.replica_count for group in fleet.groups)
    world = random_world(draw, replica_count, trace.request_count, 1.5 * trace.duration_s + 0.5)
    return assert_equal(trace, fleet, with_lane(draw, world, trace.request_count))


@pytest.mark.parametrize("seed", range(2))
def test_batch_in_a_lane(seed: int) -> None:
    runs = [check_lane(1000 * seed + step) for step in range(35)]
    assert sum(int(run.preemption_count.sum()) for run in runs) > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 30))
def test_thousands_of_lanes(seed: int) -> None:
    for step in range(50):
        check_lane(1000 * seed + step)


def check_quiet(seed: int) -> None:
    draw = np.random.default_rng(seed)
    trace, fleet = random_case(draw)
    assert_equal(trace, with_any_router(draw, fleet))


@pytest.mark.parametrize("seed", range(2))
def test_routers_in_a_quiet_world(seed: int) -> None:
    for step in range(30):
        check_quiet(1000 * seed + 500 + step)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 50))
def test_thousands_of_worlds(seed: int) -> None:
    for step in range(40):
        check(1000 * seed + step)
        check_quiet(1000 * seed + step)
