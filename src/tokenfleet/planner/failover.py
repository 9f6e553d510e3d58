"""How much of one pool finds room on packed nodes when its demand comes over from elsewhere."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from tokenfleet.planner.packing import PackedNode, Packing, Pool
from tokenfleet.planner.packing_program import integer_programs

Held = Literal["replicas_per_node", "gpu_quota", "isolation", "zones", "gpus"]
"""What may leave a pool no room."""


def room_for_failover(
    packing: Packing, pools: Sequence[Pool], name: str, *, quota_left_count: int | None = None
) -> int:
    """Replicas of one pool that find room beside those it has while every other pool keeps its carrying ones.

    They go into free GPUs and into those of spare replicas of others, which stop. They still have to start there. Who
    is isolated stays so, no replica goes to a zone that its pool may not stand in, and a quota holds.

    Args:
        packing: Where everything stands.
        pools: What stands there.
        name: The pool whose demand comes over from elsewhere.
        quota_left_count: GPUs that its quota leaves beside all that are held under it; ``None``: nobody says.
    """
    solver = integer_programs()
    moving = next(pool for pool in pools if pool.name == name)
    others = [pool for pool in pools if pool.name != name]
    nodes = [node for node in packing.nodes for _ in range(node.node_count)]
    # Variables: replicas of the pool that come to each node, then replicas of each other that stop on each node.
    count = len(nodes) * (1 + len(others))
    gain = np.concatenate([np.ones(len(nodes)), np.zeros(len(nodes) * len(others))])
    rows, limits = [], []
    for at, node in enumerate(nodes):
        row = np.zeros(count)
        row[at] = moving.gpu_count
        for index, pool in enumerate(others):
            row[len(nodes) * (1 + index) + at] = -pool.gpu_count
        held = sum(pool.gpu_count * node.replicas.get(pool.name, 0) for pool in pools)
        rows.append(row)
        limits.append(packing.gpus_per_node_count - held)
    for index, pool in enumerate(others):
        row = np.zeros(count)
        row[len(nodes) * (1 + index) : len(nodes) * (2 + index)] = 1.0
        rows.append(row)
        limits.append(max(0, packing.replica_count(pool.name) - pool.carrying_count))
    if quota_left_count is not None:
        row = np.zeros(count)
        row[: len(nodes)] = moving.gpu_count
        for index, pool in enumerate(others):
            if pool.quota == moving.quota:
                row[len(nodes) * (1 + index) : len(nodes) * (2 + index)] = -pool.gpu_count
        rows.append(row)
        limits.append(quota_left_count)
    most = [_most(moving, node, packing, pools) for node in nodes]
    most += [node.replicas.get(pool.name, 0) for pool in others for node in nodes]
    found = solver.milp(
        -gain,
        constraints=solver.LinearConstraint(np.array(rows), ub=np.array(limits, dtype=float)),
        integrality=np.ones(count),
        bounds=solver.Bounds(0, np.array(most, dtype=float)),
    )
    return round(-float(found.fun)) if found.x is not None else 0


def what_holds_failover(
    packing: Packing, pools: Sequence[Pool], name: str, *, quota_left_count: int | None = None
) -> tuple[Held, ...]:
    """What leaves a pool no more room than :func:`room_for_failover` finds: each that alone, were it gone, left more.

    ``gpus`` where none does: the GPUs of these nodes are in use, or two hold it at once.

    Args:
        packing: Where everything stands.
        pools: What stands there.
        name: The pool whose demand comes over from elsewhere.
        quota_left_count: GPUs that its quota leaves; ``None``: nobody says.
    """
    room = room_for_failover(packing, pools, name, quota_left_count=quota_left_count)

    def without(change: Callable[[Pool], Pool], left_count: int | None = quota_left_count) -> int:
        changed = [change(pool) for pool in pools]
        return room_for_failover(packing, changed, name, quota_left_count=left_count)

    def freely(pool: Pool) -> Pool:
        return replace(pool, most_per_node_count=None) if pool.name == name else pool

    def anywhere(pool: Pool) -> Pool:
        return replace(pool, zones=()) if pool.name == name else pool

    rooms: tuple[tuple[Held, int], ...] = (
        ("replicas_per_node", without(freely)),
        ("gpu_quota", without(lambda pool: pool, None)),
        ("isolation", without(lambda pool: replace(pool, isolated=False))),
        ("zones", without(anywhere)),
    )
    return tuple(held for held, more in rooms if more > room) or ("gpus",)


def _most(moving: Pool, node: PackedNode, packing: Packing, pools: Sequence[Pool]) -> int:
    """Replicas that may come to a node, however empty it is."""
    there = [pool for pool in pools if pool.name in node.replicas]
    strangers = [pool for pool in there if (pool.owner or pool.name) != (moving.owner or moving.name)]
    if strangers and (moving.isolated or any(pool.isolated for pool in strangers)):
        return 0
    if not moving.may_stand_in(node.zone):
        return 0
    return moving.per_node_count(packing.gpus_per_node_count) - node.replicas.get(moving.name, 0)
