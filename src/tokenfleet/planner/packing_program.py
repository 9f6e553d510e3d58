"""The integer program of packing: how many nodes of each mix of replicas stand in each zone.

A node is filled with one of finitely many mixes, so a packing is a count of nodes for each mix and zone. What a pool
may lose is linear in these counts but for the fullest nodes, which take a few yes-or-no variables: for every pool and
number, whether any node holds so many of its replicas, and whether a second does. It is solved exactly, or said not to
be.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib import import_module
from itertools import combinations, pairwise, product
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.survival import Zone
from tokenfleet.planner.packing import PackedNode, Pool, Quota, Shelf

_TIME_LIMIT_S = 20.0
_MOST_TRIED = 200_000
_MOST_MIXES = 2_000
_DEARER = 1.0 + 1e-9
_IMPOSSIBLE = 2

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Nodes of each block."""

    nodes: tuple[tuple[PackedNode, ...], ...]
    proved: bool
    more_gpu_counts: dict[str, int]
    """GPUs that zones would have to have beyond their limits; none where the limits are kept."""


def integer_programs() -> Any:  # noqa: ANN401 - a module without types
    """The integer programs of an optional extra.

    Raises:
        BadInput: it is not installed.
    """
    try:
        return import_module("scipy.optimize")
    except ImportError:
        mend = "pip install 'tokenfleet[pack]'"
        raise BadInput.at("pack", "needs scipy, which is not installed", mend) from None


def solved(
    blocks: Sequence[Shelf], zones: Sequence[Zone], *, sparing: bool = True, beyond: float | None = None
) -> Solution | None:
    """The cheapest nodes that hold all pools, and of those the ones with the fewest GPUs in use.

    Where limits of zones may be exceeded, any nodes that exceed them by as few GPUs as will do.

    Args:
        blocks: Pools that may share nodes, each on nodes of its own; zones have so many GPUs for all of them.
        zones: Where nodes may stand.
        sparing: Whether the GPUs in use matter.
        beyond: GPUs by which limits of zones may be exceeded in all; ``None``: by none.

    Returns:
        ``None`` where no nodes do.

    Raises:
        BadInput: more mixes than can be tried, or no packing is found in time.
    """
    program = _Program(blocks, zones, beyond=beyond)
    cheapest = [program.usd, *([program.used] if sparing else [])]
    goals = cheapest if beyond is None else [program.exceeded]
    best: Floats | None = None
    proved = True
    for at, goal in enumerate(goals):
        found = program.least(goal)
        if found.x is None and at == 0:
            if found.status == _IMPOSSIBLE:
                return None
            raise BadInput.at("pools", "no packing was found in time", "pack fewer pools at a time")
        if found.x is None:
            # Nothing better came up in time.
            break
        best = np.rint(found.x)
        # Which of several packings as cheap is the leanest need not be proved.
        proved &= found.status == 0 or goal is program.used
        program.keep(goal, best)
    if best is None:
        raise ValueError("a packing without a goal")
    return Solution(nodes=program.nodes(best), proved=proved, more_gpu_counts=program.more_gpu_counts(best))


class _Grid:
    """The columns of one block: nodes of each mix in each zone, then whether any node holds so many of a pool."""

    def __init__(self, block: Shelf, zones: Sequence[Zone], start: int) -> None:
        self.block, self._zones, self._start = block, zones, start
        self.mixes = _mixes(block.pools, block.gpus_per_node_count)
        self._levels = [pool.per_node_count(block.gpus_per_node_count) * pool.node_count for pool in block.pools]

    @property
    def node_column_count(self) -> int:
        return len(self._zones) * len(self.mixes)

    @property
    def end(self) -> int:
        """The first column of the next block."""
        return self._start + self.node_column_count + sum(self._levels)

    @cached_property
    def most(self) -> Floats:
        """Nodes of each mix in each zone that an answer with no replica to no purpose has at most."""
        pools = self.block.pools
        enough = np.array([_enough(pool, self.block.gpus_per_node_count) for pool in pools])
        with np.errstate(divide="ignore"):
            most = np.where(self.mixes > 0, enough // np.maximum(self.mixes, 1), np.iinfo(np.int64).max).min(axis=1)
        rows = []
        for zone in self._zones:
            barred = np.array([not pool.may_stand_in(zone.name) for pool in pools])
            rows.append(np.where((self.mixes[:, barred] > 0).any(axis=1), 0, most))
        return np.concatenate(rows).astype(float)

    def columns(self, zone: int) -> Ints:
        """Nodes of each mix in one zone."""
        begin = self._start + zone * len(self.mixes)
        return np.arange(begin, begin + len(self.mixes))

    def held(self, index: int, zones: Sequence[int]) -> "_Row":
        """Replicas of a pool in some zones."""
        return _Row.of([(self.columns(zone), self.mixes[:, index]) for zone in zones])

    def level_columns(self, index: int) -> Ints:
        """Whether any node holds one replica of a pool, two..., then whether two nodes do, as many as may be lost."""
        begin = self._start + self.node_column_count + sum(self._levels[:index])
        return np.arange(begin, begin + self._levels[index])

    def every_zone(self) -> range:
        return range(len(self._zones))


@dataclass(frozen=True, slots=True)
class _Row:
    """Factors of some columns."""

    columns: Ints
    factors: Floats

    @staticmethod
    def of(parts: Sequence[tuple[Ints, npt.NDArray[Any]]]) -> "_Row":
        nothing = (np.zeros(0, dtype=np.int64), np.zeros(0))
        columns = np.concatenate([columns for columns, _ in (nothing, *parts)])
        factors = np.concatenate([np.asarray(factors, dtype=float) for _, factors in (nothing, *parts)])
        return _Row(columns[factors != 0.0], factors[factors != 0.0])


class _Program:
    def __init__(self, blocks: Sequence[Shelf], zones: Sequence[Zone], *, beyond: float | None) -> None:
        self._solver = integer_programs()
        self._sparse = import_module("scipy.sparse")
        self._zones, self._beyond = zones, beyond is not None
        self._unit = gcd(*(block.gpus_per_node_count for block in blocks))
        self._grids: list[_Grid] = []
        for block in blocks:
            self._grids.append(_Grid(block, zones, self._grids[-1].end if self._grids else 0))
        self._nodes_end = self._grids[-1].end
        self._count = self._nodes_end + (2 * len(zones) if self._beyond else 0)
        self._rows: list[tuple[_Row, float, float]] = []
        for grid in self._grids:
            for index in range(len(grid.block.pools)):
                self._rows += [(row, low, np.inf) for row, low in _survival(grid, index, zones)]
                self._rows += [(row, -np.inf, most) for row, most in _levels(grid, index)]
        self._rows += [(row, -np.inf, limit) for row, limit in self._limits()]
        self._rows += [(row, -np.inf, limit) for row, limit in self._quotas()]
        self._rows += [(row, 0.0, np.inf) for row in self._order()]
        if beyond is not None:
            self._rows += [(row, 0.0, np.inf) for row in self._begun()]
            self._rows.append((_Row.of([(np.arange(self._count), self.exceeded)]), -np.inf, beyond))

    @cached_property
    def usd(self) -> Floats:
        """Price of all nodes, in that of the cheapest: nodes of one kind are simply counted."""
        prices = [grid.block.usd_per_gpu_hour * grid.block.gpus_per_node_count for grid in self._grids]
        goal = np.zeros(self._count)
        for grid, usd in zip(self._grids, prices, strict=True):
            for zone in grid.every_zone():
                goal[grid.columns(zone)] = usd / min(prices)
        return goal

    @cached_property
    def used(self) -> Floats:
        """GPUs in use."""
        goal = np.zeros(self._count)
        for grid in self._grids:
            sizes = np.array([pool.gpu_count for pool in grid.block.pools])
            for zone in grid.every_zone():
                goal[grid.columns(zone)] = grid.mixes @ sizes
        return goal

    @cached_property
    def exceeded(self) -> Floats:
        """GPUs beyond the limits of zones: whole units more, the first of which a limit may hold in part."""
        goal = np.zeros(self._count)
        goal[self._nodes_end :: 2] = self._unit
        goal[self._nodes_end + 1 :: 2] = [-self._odd(zone) for zone in self._zones]
        return goal

    def _odd(self, zone: Zone) -> int:
        """GPUs of a limit that are too few for what all nodes are multiples of."""
        return (zone.gpu_limit_count or 0) % self._unit

    def least(self, goal: Floats) -> Any:  # noqa: ANN401 - a result without a type
        """Solves for the least of a goal."""
        most = np.full(self._count, np.inf)
        most[: self._nodes_end] = 1.0
        most[self._nodes_end + 1 :: 2] = 1.0
        for grid in self._grids:
            columns = grid.columns(0)[0] + np.arange(grid.node_column_count)
            most[columns] = grid.most
        at = np.concatenate([np.full(len(row.columns), index) for index, (row, _, _) in enumerate(self._rows)])
        columns = np.concatenate([row.columns for row, _, _ in self._rows])
        factors = np.concatenate([row.factors for row, _, _ in self._rows])
        matrix = self._sparse.csr_array((factors, (at, columns)), shape=(len(self._rows), self._count))
        low, high = ([bounds[side] for bounds in self._rows] for side in (1, 2))
        return self._solver.milp(
            goal,
            constraints=self._solver.LinearConstraint(matrix, lb=low, ub=high),
            integrality=np.ones(self._count),
            bounds=self._solver.Bounds(0, most),
            options={"time_limit": _TIME_LIMIT_S, "mip_rel_gap": 0.0},
        )

    def keep(self, goal: Floats, best: Floats) -> None:
        """No later answer is worse in this goal."""
        every = np.arange(self._count)
        self._rows.append((_Row.of([(every, goal)]), -np.inf, float(goal @ best) * _DEARER))

    def nodes(self, best: Floats) -> tuple[tuple[PackedNode, ...], ...]:
        """Nodes of each block."""
        return tuple(tuple(self._packed(grid, best)) for grid in self._grids)

    def _packed(self, grid: _Grid, best: Floats) -> Iterator[PackedNode]:
        for at, zone in enumerate(self._zones):
            counts = best[grid.columns(at)].astype(int)
            for kind in np.flatnonzero(counts):
                held = zip(grid.block.pools, grid.mixes[kind], strict=True)
                yield PackedNode(
                    node_count=int(counts[kind]),
                    replicas={pool.name: int(count) for pool, count in held if count},
                    zone=zone.name,
                )

    def more_gpu_counts(self, best: Floats) -> dict[str, int]:
        """GPUs beyond the limit of each zone."""
        more = best[self._nodes_end :: 2].astype(int)
        units = zip(self._zones, more, strict=False)
        return {zone.name: int(count) * self._unit - self._odd(zone) for zone, count in units if count}

    def _limits(self) -> Iterator[tuple[_Row, float]]:
        """All nodes of a zone have no more GPUs than are to be had there."""
        for at, zone in enumerate(self._zones):
            if zone.gpu_limit_count is None:
                continue
            parts = [
                (grid.columns(at), np.full(len(grid.mixes), grid.block.gpus_per_node_count // self._unit))
                for grid in self._grids
            ]
            if self._beyond:
                parts.append((np.array([self._nodes_end + 2 * at]), np.array([-1])))
            yield _Row.of(parts), float(zone.gpu_limit_count // self._unit)

    def _begun(self) -> Iterator[_Row]:
        """What a limit holds in part counts where a unit more is taken at all."""
        for at in range(self._nodes_end, self._count, 2):
            yield _Row.of([(np.array([at, at + 1]), np.array([1, -1]))])

    def _quotas(self) -> Iterator[tuple[_Row, float]]:
        """The pools of a scenario hold no more GPUs than its quota."""
        parts: dict[Quota, list[tuple[Ints, npt.NDArray[Any]]]] = {}
        for grid in self._grids:
            for index, pool in enumerate(grid.block.pools):
                if pool.quota is not None:
                    held = grid.held(index, grid.every_zone())
                    parts.setdefault(pool.quota, []).append((held.columns, held.factors * pool.gpu_count))
        for quota, held_by_all in parts.items():
            yield _Row.of(held_by_all), float(quota.gpu_count)

    def _order(self) -> Iterator[_Row]:
        """Of zones that are alike, the first has most nodes: what is the same packing is not sought twice."""
        alike: dict[tuple[object, ...], list[int]] = {}
        pools = [pool for grid in self._grids for pool in grid.block.pools]
        for at, zone in enumerate(self._zones):
            told = tuple((pool.may_stand_in(zone.name), pool.stands_alone_in(zone.name)) for pool in pools)
            alike.setdefault((zone.gpu_limit_count, told), []).append(at)
        for each in alike.values():
            for first, second in pairwise(each):
                parts = []
                for grid in self._grids:
                    ones = np.full(len(grid.mixes), grid.block.gpus_per_node_count)
                    parts += [(grid.columns(first), ones), (grid.columns(second), -ones)]
                yield _Row.of(parts)


def _survival(grid: _Grid, index: int, zones: Sequence[Zone]) -> Iterator[tuple[_Row, float]]:
    """What each loss must leave of a pool."""
    pool = grid.block.pools[index]
    everywhere = grid.held(index, grid.every_zone())
    yield everywhere, float(pool.left_count + pool.spare_count)
    if pool.node_count:
        columns = grid.level_columns(index)
        fullest = (columns, np.full(len(columns), -1))
        yield _Row.of([(everywhere.columns, everywhere.factors), fullest]), float(pool.left_count)
    if pool.zone_count:
        own = [at for at, zone in enumerate(zones) if pool.may_stand_in(zone.name) and pool.stands_alone_in(zone.name)]
        for lost in combinations(own, min(pool.zone_count, len(own))):
            yield grid.held(index, [at for at in own if at not in lost]), float(pool.left_count)


def _levels(grid: _Grid, index: int) -> Iterator[tuple[_Row, float]]:
    """Nodes hold no more of a pool than its yes-or-no variables say.

    The fullest node holds as many replicas as there are numbers that any node holds, the second fullest as many as
    there are numbers that two hold.
    """
    pool, per_node = grid.block.pools[index], grid.block.gpus_per_node_count
    for at, column in enumerate(grid.level_columns(index)):
        others, count = divmod(at, pool.per_node_count(per_node))
        holds = grid.mixes[:, index] > count
        parts = [(grid.columns(zone), holds.astype(float)) for zone in grid.every_zone()]
        nodes = _enough(pool, per_node) // (count + 1) * len(parts)
        yield _Row.of([*parts, (np.array([column]), np.array([-float(nodes)]))]), float(others)


def _enough(pool: Pool, gpus_per_node_count: int) -> int:
    """Replicas of a pool in one zone beyond which one is there to no purpose: no loss needs it."""
    lost = pool.per_node_count(gpus_per_node_count) * pool.node_count
    return pool.left_count + max(1, pool.spare_count, lost)


def _mixes(pools: Sequence[Pool], gpus_per_node_count: int) -> Ints:
    """Every way to fill a node, fully or not."""
    most = [pool.per_node_count(gpus_per_node_count) for pool in pools]
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
