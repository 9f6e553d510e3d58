"""The batch lane of a scenario at each of its pools: who is batch, and how it is served there."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tokenfleet.app.pools_fleet import NamedPool
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.taking import taken
from tokenfleet.app.world_question import lane_of
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.slo import DAY_S
from tokenfleet.domain.trace import Bools, Trace
from tokenfleet.domain.world import World


def in_lanes(asked: Scenario, trace: Trace) -> tuple[Trace, Bools | None]:
    """The requests with their lane for a priority, and which of them are batch; ``None`` where nobody says so.

    Raises:
        BadInput: a model, a label or a tenant that the traffic does not name.
    """
    if asked.batch is None:
        return trace, None
    everybody = np.ones(trace.request_count, dtype=np.bool_)
    batch = taken(asked.batch.takes, trace, "batch.takes", everybody, asked.seed)
    return replace(trace, priority=batch.astype(np.int32)), batch


def check_lanes(asked: Scenario, named: Sequence[NamedPool]) -> None:
    """Refuse pools that go by priorities of their own beside a lane.

    Raises:
        BadInput: all of them at once.
    """
    if asked.batch is None:
        return
    problems = []
    for pool in named:
        if pool.fleet.router == "by_tier":
            what = "goes by tiers, and the lanes of batch and of the others are the only ones"
            problems.append(Problem(f"pools.{pool.behind}.router", what, "take another router, or leave batch out"))
        if any(group.replica.deployment.engine.scheduling == "priority" for group in pool.fleet.groups):
            what = f"priority in {pool.name}, and the lanes of batch and of the others are the only ones"
            problems.append(Problem("engine.scheduling", what, "leave it out, or leave batch out"))
    if problems:
        raise BadInput(dict.fromkeys(problems))


def with_lane(asked: Scenario, pool: NamedPool, calls: Trace, world: World | None) -> World | None:
    """The world around a pool, with a lane where batch comes to it.

    A pool that decodes holds KV which another has computed, so it takes batch at any time: the window is kept where
    the prompt is computed.
    """
    lane = lane_of(asked, calls)
    if lane is None or calls.priority is None or not calls.priority.any():
        return world
    if pool.does == "decodes":
        lane = replace(lane, opens_s=0.0, open_for_s=DAY_S)
    return replace(world or World(), batch=calls.priority > 0, lane=lane)


def lanes_alone(asked: Scenario, named: Sequence[NamedPool]) -> Callable[[str, Trace], World | None]:
    """Pools in a quiet world, but for their lanes."""
    by_name = {pool.name: pool for pool in named}
    return lambda name, calls: with_lane(asked, by_name[name], calls, None)
