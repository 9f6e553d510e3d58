"""Replicas that share gpus, and several models behind one router: both engines still agree."""

from dataclasses import replace

import numpy as np
import pytest

from reference.comparing import assert_equal
from reference.fleets import (
    first_come,
    random_fleet,
    random_trace,
    with_any_router,
    with_pools,
    with_sharing,
    with_speculation,
)
from reference.test_worlds import random_case
from reference.worlds import random_world, with_lane
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.world import ClosedLoop

NAMES = ("vllm-0.32", "vllm-0.11", "sglang-0.5", "trtllm-1.2")


def any_bound(draw: np.random.Generator, fleet: Fleet) -> Fleet:
    """Any router; by length and by tier each pool has a group that serves everybody."""
    routed = with_any_router(draw, fleet)
    groups = tuple(replace(each, up_to=each.up_to if each.pool == 0 else None) for each in routed.groups)
    return replace(routed, groups=groups)


def for_lanes(fleet: Fleet) -> Fleet:
    """A fleet that may have a lane for batch."""
    return replace(first_come(fleet), router="by_length" if fleet.router == "by_tier" else fleet.router)


def check_sharing(seed: int) -> RunRecord:
    """One model, quiet or in a world."""
    draw = np.random.default_rng(seed)
    trace, fleet = random_case(draw)
    fleet = with_sharing(draw, with_any_router(draw, fleet))
    if draw.random() < 0.2:
        fleet = with_speculation(draw, fleet)
    if draw.random() < 0.4:
        return assert_equal(trace, fleet)
    replica_count = sum(group.replica_count for group in fleet.groups)
    return assert_equal(trace, fleet, random_world(draw, replica_count, trace.request_count, trace.duration_s + 0.5))


def random_chain(draw: np.random.Generator, request_count: int) -> ClosedLoop:
    """Requests in threes and fours: the last waits for all before it, or each for the one before it."""
    after = np.full(request_count, -1, dtype=np.int32)
    ends = np.ones(request_count, dtype=np.int32)
    first = 0
    while first < request_count:
        size = int(draw.integers(1, 5))
        rows = range(first + 1, min(first + size, request_count))
        if draw.random() < 0.5 and rows:
            after[rows[-1]], ends[rows[-1]] = rows[-1] - 1, rows[-1] - first
        else:
            for row in rows:
                after[row] = row - 1
        first += size
    delay_s = np.floor(draw.exponential(3.0, request_count)) / 100.0
    return ClosedLoop(
        after=after,
        delay_s=delay_s * (draw.random(request_count) < 0.8),
        end_count=ends,
        only_after_success=draw.random(request_count) < draw.random() if draw.random() < 0.7 else None,
        unread=draw.random(request_count) < 0.5 if draw.random() < 0.5 else None,
        marks=draw.random(request_count) < 0.2 if draw.random() < 0.5 else None,
        at_once=bool(draw.random() < 0.5),
    )


def check_pools(seed: int) -> RunRecord:
    """Several models in a world."""
    draw = np.random.default_rng(seed)
    has_lanes = draw.random() < 0.3
    name, other = ("vllm-0.32", "vllm-0.11") if has_lanes else draw.choice(NAMES, 2).tolist()
    fleet = any_bound(draw, with_pools(draw, random_fleet(draw, name=name), name=other))
    fleet = for_lanes(fleet) if has_lanes else fleet
    trace = random_trace(draw, shared=bool(draw.random() < 0.5))
    replica_count = sum(group.replica_count for group in fleet.groups)
    world = random_world(draw, replica_count, trace.request_count, trace.duration_s + 0.5)
    world = replace(
        world,
        controller=None,
        calls=draw.integers(0, fleet.groups[-1].pool + 1, trace.request_count),
        closed_loop=random_chain(draw, trace.request_count) if draw.random() < 0.5 else world.closed_loop,
    )
    return assert_equal(trace, fleet, with_lane(draw, world, trace.request_count) if has_lanes else world)


@pytest.mark.parametrize("seed", range(2))
def test_one_model(seed: int) -> None:
    for step in range(20):
        check_sharing(1000 * seed + step)


@pytest.mark.parametrize("seed", range(2))
def test_several_models(seed: int) -> None:
    for step in range(20):
        check_pools(1000 * seed + step)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 30))
def test_thousands(seed: int) -> None:
    for step in range(50):
        check_sharing(1000 * seed + step)
        check_pools(1000 * seed + step)
