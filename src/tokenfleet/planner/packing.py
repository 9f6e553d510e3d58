"""Several pools on shared nodes: how few nodes hold them, what is left over, and who goes down together.

A node is filled with one of finitely many mixes of replicas, so the fewest nodes are an integer program over mixes: how
many nodes of each. It is solved exactly, or said not to be.
"""

from collections.abc import Sequence
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass

_TIME_LIMIT_S = 20.0
_MOST_TRIED = 200_000
_MOST_MIXES = 2_000
_MOST_CHOICES = 20_000
_SAME_USD = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Replicas of one scenario."""

    name: str
    gpu_count: int
    """GPUs of one replica; all of them on one node."""
    carrying_count: int
    """Replicas that carry the peak alone."""
    spare_count: int
    """Replicas that may fail, one by one."""
    survives_node: bool = False
    """It keeps ``carrying_count`` when any node is gone."""
    isolated: bool = False
    """It shares no node with pools of another owner."""
    owner: str = ""
    """The scenario that it is a pool of; empty: nobody else is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedNode:
    """Equal nodes."""

    node_count: int
    replicas: dict[str, int]
    """Replicas on each of them by pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """All pools on nodes of one kind."""

    gpus_per_node_count: int
    nodes: tuple[PackedNode, ...]
    proved: bool
    """No packing has fewer nodes; else the time was up, and this is the best one found."""

    @property
    def node_count(self) -> int:
        """Nodes of all kinds of mixes."""
        return sum(node.node_count for node in self.nodes)

    def replica_count(self, pool: str) -> int:
        """Replicas of a pool on all nodes."""
        return sum(node.node_count * node.replicas.get(pool, 0) for node in self.nodes)

    def lost_with_a_node(self, pool: str) -> int:
        """Replicas of a pool that the worst node takes with it."""
        return max((node.replicas.get(pool, 0) for node in self.nodes), default=0)

    def neighbours(self, pool: str) -> tuple[str, ...]:
        """Pools that share a node with this one, and its fate."""
        found = {name for node in self.nodes if node.replicas.get(pool) for name in node.replicas}
        return tuple(sorted(found - {pool}))

    def free_gpu_count(self, pools: Sequence[Pool]) -> int:
        """GPUs that are paid for with their node and hold no replica."""
        used = sum(pool.gpu_count * self.replica_count(pool.name) for pool in pools)
        return self.node_count * self.gpus_per_node_count - used


def pack(pools: Sequence[Pool], gpus_per_node_count: int) -> Packing:
    """The fewest nodes that hold every pool with what it may lose.

    A pool that must survive a node gets as many replicas more as its fullest node holds, so it is spread thinly where
    others fill the rest of the nodes.

    Raises:
        BadInput: a replica that no node holds, two pools of one name, or more mixes than can be tried.
    """
    _check(pools, gpus_per_node_count)
    shared = [pool for pool in pools if not pool.isolated]
    apart: dict[str, list[Pool]] = {}
    for pool in pools:
        if pool.isolated:
            apart.setdefault(pool.owner or pool.name, []).append(pool)
    groups = [*([shared] if shared else []), *apart.values()]
    packed = [_packed(group, gpus_per_node_count) for group in groups]
    return Packing(
        gpus_per_node_count=gpus_per_node_count,
        nodes=tuple(node for nodes, _ in packed for node in nodes),
        proved=all(proved for _, proved in packed),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One fleet that serves a scenario, or one pool of it."""

    gpu: str
    gpus_per_node_count: int
    usd_per_gpu_hour: float
    pool: Pool

    @property
    def least_usd_per_hour(self) -> float:
        """Price of its own replicas: no packing is cheaper."""
        used = self.pool.gpu_count * (self.pool.carrying_count + self.pool.spare_count)
        return used * self.usd_per_gpu_hour


def pack_together(ways: Sequence[Sequence[Sequence[Option]]]) -> tuple[int, ...]:
    """Which way to serve each scenario makes the whole nodes of all of them cheapest.

    A fleet that is dearer alone may share nodes that others leave half empty. Choices are packed in order of what their
    replicas cost, until that alone is more than the cheapest nodes found.

    Args:
        ways: Of each scenario, the ways to serve it: one fleet, or several pools.

    Returns:
        The place of the way chosen in each list; of equal prices, the choice whose replicas cost less.

    Raises:
        BadInput: as for :func:`pack`, or more choices than can be tried.
    """
    count = int(np.prod([float(len(each)) for each in ways]))
    if count > _MOST_CHOICES:
        what = f"{len(ways)} scenarios have {count:,} choices of fleets together"
        raise BadInput.at("gpus", what, "name fewer gpus in each scenario")

    def chosen(choice: tuple[int, ...]) -> list[Option]:
        return [option for each, at in zip(ways, choice, strict=True) for option in each[at]]

    def least(choice: tuple[int, ...]) -> float:
        return sum(option.least_usd_per_hour for option in chosen(choice))

    best: tuple[float, tuple[int, ...]] | None = None
    for choice in sorted(product(*(range(len(each)) for each in ways)), key=lambda choice: (least(choice), choice)):
        if best is not None and least(choice) >= best[0]:
            break
        usd = nodes_usd_per_hour(chosen(choice))
        if best is None or usd < best[0] - _SAME_USD:
            best = usd, choice
    if best is None:
        raise ValueError("a scenario without a fleet cannot be packed")
    return best[1]


def nodes_usd_per_hour(chosen: Sequence[Option]) -> float:
    """Price of the whole nodes that hold these fleets, each gpu on nodes of its own."""
    total = 0.0
    for gpu in dict.fromkeys(option.gpu for option in chosen):
        mine = [option for option in chosen if option.gpu == gpu]
        per_node = mine[0].gpus_per_node_count
        nodes = pack([option.pool for option in mine], per_node).node_count
        total += nodes * per_node * max(option.usd_per_gpu_hour for option in mine)
    return total


def room_for_failover(packing: Packing, pools: Sequence[Pool], name: str) -> int:
    """Replicas of one pool that find room beside those it has while every other pool keeps its carrying ones.

    They go into free GPUs and into those of spare replicas of others, which stop. They still have to start there.

    Args:
        packing: Where everything stands.
        pools: What stands there.
        name: The pool whose demand comes over from elsewhere.
    """
    solver = _solver()
    size = next(pool.gpu_count for pool in pools if pool.name == name)
    others = [pool for pool in pools if pool.name != name]
    nodes = [node for node in packing.nodes for _ in range(node.node_count)]
    # Variables: replicas of the pool that come to each node, then replicas of each other that stop on each node.
    count = len(nodes) * (1 + len(others))
    gain = np.concatenate([np.ones(len(nodes)), np.zeros(len(nodes) * len(others))])
    rows, limits = [], []
    for at, node in enumerate(nodes):
        row = np.zeros(count)
        row[at] = size
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
    most = [packing.gpus_per_node_count // size] * len(nodes)
    most += [node.replicas.get(pool.name, 0) for pool in others for node in nodes]
    found = solver.milp(
        -gain,
        constraints=solver.LinearConstraint(np.array(rows), ub=np.array(limits, dtype=float)),
        integrality=np.ones(count),
        bounds=solver.Bounds(0, np.array(most, dtype=float)),
    )
    return round(-float(found.fun)) if found.x is not None else 0


def _solver() -> Any:  # noqa: ANN401 - a module without types
    """The integer programs of an optional extra.

    Raises:
        BadInput: it is not installed.
    """
    try:
        return import_module("scipy.optimize")
    except ImportError:
        mend = "pip install 'tokenfleet[pack]'"
        raise BadInput.at("pack", "needs scipy, which is not installed", mend) from None


def _check(pools: Sequence[Pool], gpus_per_node_count: int) -> None:
    names = [pool.name for pool in pools]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadInput.at("name", f"{', '.join(twice)} stands for several pools", "give each scenario its own name")
    for pool in pools:
        if pool.gpu_count > gpus_per_node_count:
            what = f"a replica of {pool.name} takes {pool.gpu_count} GPUs, a node has {gpus_per_node_count}"
            raise BadInput.at("tensor_parallel", what, "replicas that span nodes take whole nodes: pack the others")


def _mixes(pools: Sequence[Pool], gpus_per_node_count: int) -> npt.NDArray[np.int64]:
    """Every way to fill a node, fully or not."""
    most = [gpus_per_node_count // pool.gpu_count for pool in pools]
    sizes = np.array([pool.gpu_count for pool in pools])
    fitting = np.zeros((0, len(pools)), dtype=np.int64)
    tried = np.prod([float(each + 1) for each in most])
    if tried <= _MOST_TRIED:
        every = np.array(list(product(*(range(each + 1) for each in most))), dtype=np.int64)
        used = every @ sizes
        fitting = np.asarray(every[(used <= gpus_per_node_count) & (used > 0)])
    if tried > _MOST_TRIED or len(fitting) > _MOST_MIXES:
        what = f"{len(pools)} pools share a node in too many ways to try"
        raise BadInput.at("pools", what, "pack fewer at a time, or isolate some")
    return fitting


def _packed(pools: Sequence[Pool], gpus_per_node_count: int) -> tuple[tuple[PackedNode, ...], bool]:
    """Solves for: nodes of each mix, whether a mix is used, and the most replicas of each pool on one node."""
    solver = _solver()
    mixes = _mixes(pools, gpus_per_node_count)
    kinds, width = mixes.shape
    count = 2 * kinds + width
    enough = float(sum(pool.carrying_count + pool.spare_count for pool in pools) + gpus_per_node_count * width)
    rows, low = [], []
    for index, pool in enumerate(pools):
        row = np.zeros(count)
        row[:kinds] = mixes[:, index]
        rows.append(row.copy())
        low.append(float(pool.carrying_count + pool.spare_count))
        if pool.survives_node:
            row[2 * kinds + index] = -1.0
            rows.append(row)
            low.append(float(pool.carrying_count))
            rows += _fullest(mixes, index)
            low += [0.0] * kinds
    for kind in range(kinds):
        row = np.zeros(count)
        row[kind], row[kinds + kind] = -1.0, enough
        rows.append(row)
        low.append(0.0)
    # Nodes count; among packings with as few nodes, the one with the fewest gpus in use.
    used = mixes @ np.array([pool.gpu_count for pool in pools])
    weight = 1.0 / (4.0 * enough * gpus_per_node_count)
    found = solver.milp(
        np.concatenate([1.0 + weight * used, np.zeros(kinds + width)]),
        constraints=solver.LinearConstraint(np.array(rows), lb=np.array(low)),
        integrality=np.ones(count),
        bounds=solver.Bounds(
            0, np.concatenate([np.full(kinds, enough), np.ones(kinds), np.full(width, float(gpus_per_node_count))])
        ),
        options={"time_limit": _TIME_LIMIT_S},
    )
    if found.x is None:
        raise BadInput.at("pools", "no packing was found in time", "pack fewer pools at a time")
    nodes = np.rint(found.x[:kinds]).astype(int)
    packed = tuple(
        PackedNode(
            node_count=int(nodes[kind]),
            replicas={pool.name: int(n) for pool, n in zip(pools, mixes[kind], strict=True) if n},
        )
        for kind in np.flatnonzero(nodes)
    )
    return packed, found.status == 0


def _fullest(mixes: npt.NDArray[np.int64], index: int) -> list[npt.NDArray[np.float64]]:
    """No mix in use holds more replicas of a pool than its variable for the fullest node says."""
    kinds, width = mixes.shape
    rows = []
    for kind in range(kinds):
        row = np.zeros(2 * kinds + width)
        row[kinds + kind] = -float(mixes[kind, index])
        row[2 * kinds + index] = 1.0
        rows.append(row)
    return rows
