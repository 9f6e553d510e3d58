"""Several pools on shared nodes: how few nodes hold them, where those stand, and who goes down together.

Nodes of several gpus are packed at once where zones have only so many GPUs, as these hold for all gpus together; else
each gpu, and on it each owner that shares with nobody, is packed for itself.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import combinations

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.survival import Zone
from tokenfleet.planner.placement import ANYWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """GPUs that all pools under it may hold together, free ones of their nodes left aside."""

    scenario: str
    gpu_count: int


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
    node_count: int = 0
    """Nodes that may be lost at once."""
    isolated: bool = False
    """It shares no node with pools of another owner."""
    owner: str = ""
    """The scenario that it is a pool of; empty: nobody else is."""
    more_left_count: int = 0
    """Replicas beyond those that carry which a loss must leave, to ride through it."""
    most_per_node_count: int | None = None
    """At most so many replicas on one node; ``None``: as many as fit."""
    zone_count: int = 0
    """Zones that may be lost at once."""
    zones: tuple[Zone, ...] = ()
    """Where replicas may stand; none named: in any zone that others name."""
    quota: Quota | None = None
    """``None``: nobody says."""

    @property
    def left_count(self) -> int:
        """Replicas that every loss must leave."""
        return self.carrying_count + self.more_left_count

    @property
    def least_count(self) -> int:
        """No packing has fewer replicas.

        Whichever zones are lost, the others hold enough, so all of them together hold more in proportion.
        """
        least = self.left_count + max(self.spare_count, self.node_count)
        usable = len([zone for zone in self.zones if zone.stands_alone])
        if not self.zone_count or usable <= self.zone_count:
            return least
        return max(least, -(-self.left_count * usable // (usable - self.zone_count)))

    def may_stand_in(self, zone: str) -> bool:
        """Where a zone must be survivable, those that cannot stand alone would only be paid for."""
        if not self.zones:
            return True
        return any(each.name == zone and (each.stands_alone or not self.zone_count) for each in self.zones)

    def stands_alone_in(self, zone: str) -> bool:
        """Whether its replicas there serve when every other zone is gone."""
        return not self.zones or any(each.name == zone and each.stands_alone for each in self.zones)

    def per_node_count(self, gpus_per_node_count: int) -> int:
        """Replicas that one node may hold."""
        fit = gpus_per_node_count // self.gpu_count
        return fit if self.most_per_node_count is None else min(fit, self.most_per_node_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """Nodes of one gpu, and all pools that stand on them."""

    gpus_per_node_count: int
    usd_per_gpu_hour: float
    pools: tuple[Pool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedNode:
    """Equal nodes."""

    node_count: int
    replicas: dict[str, int]
    """Replicas on each of them by pool."""
    zone: str = ""
    """Empty where no pool names zones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneLoss:
    """What is left of a pool when zones are gone."""

    zones: tuple[str, ...]
    serving_count: int
    """Its replicas in the other zones, as far as those stand alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """All pools on nodes of one kind."""

    gpus_per_node_count: int
    nodes: tuple[PackedNode, ...]
    proved: bool
    """No packing is cheaper; else the time was up, and this is the best one found."""
    zones: tuple[Zone, ...] = (ANYWHERE,)
    """Where nodes may stand, with the GPUs to be had there for nodes of all kinds."""

    @property
    def node_count(self) -> int:
        """Nodes of all kinds of mixes."""
        return sum(node.node_count for node in self.nodes)

    def nodes_in(self, zone: str) -> tuple[PackedNode, ...]:
        """Nodes of one zone."""
        return tuple(node for node in self.nodes if node.zone == zone)

    def replica_count(self, pool: str) -> int:
        """Replicas of a pool on all nodes."""
        return sum(node.node_count * node.replicas.get(pool, 0) for node in self.nodes)

    def by_zone(self, pool: str) -> dict[str, int]:
        """Replicas of a pool in each zone that has some, in the order of the zones."""
        found = {zone.name: 0 for zone in self.zones}
        for node in self.nodes:
            found[node.zone] += node.node_count * node.replicas.get(pool, 0)
        return {name: count for name, count in found.items() if count}

    def lost_with_nodes(self, pool: str, count: int = 1) -> int:
        """Replicas of a pool that the worst nodes take with them."""
        held = [node.replicas.get(pool, 0) for node in self.nodes for _ in range(min(count, node.node_count))]
        return sum(sorted(held, reverse=True)[:count])

    def zone_losses(self, pool: Pool) -> tuple[ZoneLoss, ...]:
        """What every loss of as many zones as the pool may lose, at least one, leaves of it."""
        names = [zone.name for zone in self.zones]
        return tuple(
            ZoneLoss(zones=lost, serving_count=self.left_without(pool, lost))
            for lost in combinations(names, max(1, pool.zone_count))
        )

    def left_without(self, pool: Pool, lost: Collection[str]) -> int:
        """Replicas of a pool in the zones that are not lost, as far as those stand alone."""
        stands = self.by_zone(pool.name).items()
        return sum(count for zone, count in stands if zone not in lost and pool.stands_alone_in(zone))

    def neighbours(self, pool: str) -> tuple[str, ...]:
        """Pools that share a node with this one, and its fate."""
        found = {name for node in self.nodes if node.replicas.get(pool) for name in node.replicas}
        return tuple(sorted(found - {pool}))

    def free_gpu_count(self, pools: Sequence[Pool]) -> int:
        """GPUs that are paid for with their node and hold no replica."""
        used = sum(pool.gpu_count * self.replica_count(pool.name) for pool in pools)
        return self.node_count * self.gpus_per_node_count - used


def zones_of(pools: Sequence[Pool]) -> tuple[Zone, ...]:
    """All zones that pools name, with the fewest GPUs that anybody says they have; where nobody does, one place."""
    limits: dict[str, list[int]] = {}
    for pool in pools:
        for zone in pool.zones:
            said = limits.setdefault(zone.name, [])
            said += [] if zone.gpu_limit_count is None else [zone.gpu_limit_count]
    return tuple(Zone(name=name, gpu_limit_count=min(said, default=None)) for name, said in limits.items()) or (
        ANYWHERE,
    )


def pack(pools: Sequence[Pool], gpus_per_node_count: int) -> Packing | None:
    """The fewest nodes of one kind that hold every pool with what it may lose; see :func:`pack_all`."""
    shelf = Shelf(gpus_per_node_count=gpus_per_node_count, usd_per_gpu_hour=1.0, pools=tuple(pools))
    found = pack_all([shelf])
    return None if found is None else found[0]


def pack_all(shelves: Sequence[Shelf], *, sparing: bool = True) -> tuple[Packing, ...] | None:
    """The cheapest nodes that hold every pool with what it may lose.

    A pool that must survive nodes gets as many replicas more as its fullest ones hold, so it is spread thinly where
    others fill the rest of the nodes. One that must survive a zone keeps enough in the others, of those that have
    weights and ingress of their own.

    Args:
        shelves: Of each gpu, what stands on its nodes.
        sparing: Of packings as cheap, take the one with fewest GPUs in use; otherwise any.

    Returns:
        One packing for each shelf; ``None`` where the zones have no room for all of them.

    Raises:
        BadInput: a replica that no node holds, two pools of one name, more mixes than can be tried, or no packing is
            found in time.
    """
    from tokenfleet.planner.packing_program import solved

    pools = [pool for shelf in shelves for pool in shelf.pools]
    _check_names(pools)
    for shelf in shelves:
        _check_sizes(shelf)
    zones = zones_of(pools)
    blocks = blocks_of(shelves)
    nodes: list[list[PackedNode]] = [[] for _ in shelves]
    proved = [True] * len(shelves)
    for together in [blocks] if hang_together(pools) else [[each] for each in blocks]:
        found = solved([block for _, block in together], zones, sparing=sparing)
        if found is None:
            return None
        for (at, _), mine in zip(together, found.nodes, strict=True):
            nodes[at] += mine
            proved[at] &= found.proved
    places = {zone.name: at for at, zone in enumerate(zones)}
    return tuple(
        Packing(
            gpus_per_node_count=shelf.gpus_per_node_count,
            nodes=tuple(sorted(mine, key=lambda node: places[node.zone])),
            proved=sure,
            zones=zones,
        )
        for shelf, mine, sure in zip(shelves, nodes, proved, strict=True)
    )


def hang_together(pools: Sequence[Pool]) -> bool:
    """Whether what some pools take leaves less for others on other nodes: zones, or a quota, have only so much."""
    return any(pool.quota or any(zone.gpu_limit_count is not None for zone in pool.zones) for pool in pools)


def blocks_of(shelves: Sequence[Shelf]) -> list[tuple[int, Shelf]]:
    """Pools that may share nodes, behind the place of the shelf that these stand on."""
    return [(at, replace(shelf, pools=group)) for at, shelf in enumerate(shelves) for group in _groups(shelf.pools)]


def _groups(pools: Sequence[Pool]) -> list[tuple[Pool, ...]]:
    """Pools that may share nodes: all that are not isolated, and those of each owner that is."""
    shared = tuple(pool for pool in pools if not pool.isolated)
    apart: dict[str, list[Pool]] = {}
    for pool in pools:
        if pool.isolated:
            apart.setdefault(pool.owner or pool.name, []).append(pool)
    return [*([shared] if shared else []), *map(tuple, apart.values())]


def _check_names(pools: Sequence[Pool]) -> None:
    names = [pool.name for pool in pools]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadInput.at("name", f"{', '.join(twice)} stands for several pools", "give each scenario its own name")


def _check_sizes(shelf: Shelf) -> None:
    for pool in shelf.pools:
        if pool.gpu_count > shelf.gpus_per_node_count:
            what = f"a replica of {pool.name} takes {pool.gpu_count} GPUs, a node has {shelf.gpus_per_node_count}"
            raise BadInput.at("tensor_parallel", what, "replicas that span nodes take whole nodes: pack the others")
