"""What a replay refuses of several models side by side, and of gpus that they share."""

from collections.abc import Iterator

import numpy as np

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.stages import Call, Pools, Wait
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import ClosedLoop, World
from tokenfleet.simulator.classes import MOST_CLASSES, combinations

MOST_BITS = 31
"""Classes that the bits of a request can name."""


def sharing_problems(fleet: Fleet, world: World | None) -> Iterator[Problem]:
    """Everything that is wrong with the pools of a fleet, those who call them, and its berths."""
    pools = [group.pool for group in fleet.groups]
    count = len(set(pools))
    if pools and (pools != sorted(pools) or set(pools) != set(range(count))):
        yield Problem(
            "fleet.groups", f"pools {pools}", "number them from 0 on, the groups of each one behind the other"
        )
        return
    yield from _berth_problems(fleet)
    calls = None if world is None else world.calls
    if calls is not None and np.any((np.asarray(calls) < 0) | (np.asarray(calls) >= count)):
        yield Problem("world.calls", "a pool that there is not", f"0 to {count - 1}")
    if count < 2:
        return
    if calls is None:
        yield Problem("world.calls", f"{count} pools, and nobody says who calls which", "give one number per request")
    if any(group.is_smaller_model for group in fleet.groups):
        yield Problem("fleet.groups", "a smaller model beside several pools", "make it a pool that is called")
    if world is not None and world.controller is not None:
        yield Problem("world", "a controller, which knows one pool, beside several", "replay each pool on its own")


def _berth_problems(fleet: Fleet) -> Iterator[Problem]:
    """Who shares gpus stands on as many."""
    sizes: dict[int, int] = {}
    for index, group in enumerate(fleet.groups):
        if group.berth is None:
            continue
        where, own = f"fleet.groups[{index}].berth", group.replica.deployment.layout.gpu_count
        if group.berth < 0:
            yield Problem(where, f"{group.berth}", "at least 0")
        for number in range(group.berth, group.berth + group.replica_count):
            other = sizes.setdefault(number, own)
            if other != own:
                what = f"a replica on {own} gpus shares those of one on {other}"
                yield Problem(where, what, "give both as many, or gpus of their own")
                break


def shared_problems(pools: Pools, closed_loop: ClosedLoop | None, read_tokens_per_s: float | None) -> Iterator[Problem]:
    """What is wrong with pools that stand on the same gpus, and with the way of requests through such a system."""
    if not pools.shares_gpus:
        return
    odd = {type(stage).__name__ for stage in pools.stages if not isinstance(stage, (Call, Wait))}
    odd |= {"Call with kv_delivered" for stage in pools.stages if isinstance(stage, Call) and stage.kv_delivered}
    for what in sorted(odd):
        yield Problem("stages", f"{what} in a system of which pools share gpus", "calls and waits alone")
    if closed_loop is not None and read_tokens_per_s is not None:
        yield from _read_problems(pools)
    if closed_loop is not None and closed_loop.end_count is not None:
        yield Problem("closed_loop.end_count", "users of pools that share gpus wait for one answer", "leave it out")
    routers = {(fleet.router, fleet.scrape_s) for fleet in pools.fleets.values()}
    if len(routers) > 1:
        yield Problem("fleets", "several routers in a system of which pools share gpus", "give all pools the same")


def _read_problems(pools: Pools) -> Iterator[Problem]:
    """An answer that is read is the last thing on the way of its request."""
    read = np.zeros(len(pools.stages[0].takes) if pools.stages else 0, dtype=np.bool_)
    for index, stage in enumerate(pools.stages):
        if (read & stage.takes).any():
            what = "comes behind an answer that users read, of pools that share gpus"
            yield Problem(f"stages[{index}]", what, "let users read as fast as tokens come")
            return
        if isinstance(stage, Call) and stage.is_seen:
            read |= stage.takes


def check_told_apart(rows: Trace) -> None:
    """Refuse more combinations of pools, classes and priorities than are told apart.

    Raises:
        BadInput: there are too many.
    """
    if len(rows.classes) > MOST_BITS or not combinations(rows).names:
        what = f"more than {MOST_CLASSES} combinations of pools, classes and priorities where pools share gpus"
        raise BadInput.at("classes", what, "fewer classes or pools")
