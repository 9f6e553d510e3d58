"""Where replicas stand, and what the worst loss leaves of them: arithmetic of nodes and zones."""

from collections.abc import Sequence
from functools import lru_cache

from tokenfleet import catalog
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.survival import LossKind, PlacedNode, Placement, Redundancy, Zone
from tokenfleet.planner.counting import smallest_enough

LOSSES: tuple[LossKind, ...] = ("replica", "node", "zone")
ANYWHERE = Zone(name="")
"""The only place where nobody named zones."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """All of a replica that matters to where it stands."""

    gpu_count: int
    per_node_count: int
    """See :func:`node_room`."""


def footprint(replica: ReplicaPhysics) -> Footprint:
    """That of a replica."""
    return Footprint(replica.deployment.layout.gpu_count, node_room(replica))


def node_room(replica: ReplicaPhysics) -> int:
    """Replicas that a whole node holds; one that spans several nodes counts as alone on each."""
    gpus = catalog.gpu(replica.deployment.gpu).gpus_per_node_count
    return max(1, gpus // replica.deployment.layout.gpu_count)


def _replicas_per_node(counts: Sequence[int], room: int, redundancy: Redundancy) -> int:
    """Replicas that share a node, and its fate, where each zone has so many.

    As many as its GPUs hold, or as somebody said. Where a node may be lost and nobody said, fewer, as far as that
    leaves more: the most with which lost nodes take no more than the other losses asked for do.
    """
    if redundancy.replicas_per_node_count or not redundancy.node_count:
        return min(room, redundancy.replicas_per_node_count or room)
    taken = redundancy.replica_count
    if redundancy.zone_count:
        taken = max(taken, sum(sorted(counts, reverse=True)[: redundancy.zone_count]))
    fits = (each for each in range(room, 1, -1) if _on_nodes(counts, each, redundancy.node_count) <= taken)
    return next(fits, 1)


def _on_nodes(counts: Sequence[int], per_node: int, node_count: int) -> int:
    """Replicas on the fullest ``node_count`` nodes."""
    fullest = [each for count in counts for each in _evenly(count, -(-count // per_node))[:node_count]]
    return sum(sorted(fullest, reverse=True)[:node_count])


def usable_zones(redundancy: Redundancy) -> tuple[Zone, ...]:
    """Zones that replicas are placed in.

    Where a zone must be survivable, one without weights or ingress of its own would never count as a survivor; a
    replica there would only be paid for.
    """
    zones = redundancy.zones or (ANYWHERE,)
    return tuple(zone for zone in zones if zone.stands_alone) if redundancy.zone_count else zones


def placed(replica_count: int, replica: ReplicaPhysics, redundancy: Redundancy) -> Placement | None:
    """Spreads replicas evenly over the zones, and in each evenly over as few nodes as hold them.

    Where a node may be lost, nodes are filled only as far as its loss takes no more than the others asked for.

    Args:
        replica_count: at least 1.
        replica: What each of them is.
        redundancy: Zones, and how many may share a node.

    Returns:
        ``None`` when the zones have no room for so many, or they are more than the quota.
    """
    return _placed(replica_count, footprint(replica), redundancy)


def _placed(replica_count: int, each: Footprint, redundancy: Redundancy) -> Placement | None:
    if not _within_quota(replica_count, each, redundancy):
        return None
    counts = _spread(replica_count, [_room(zone, each) for zone in usable_zones(redundancy)])
    return None if counts is None else standing(counts, each, redundancy)


def standing(counts: Sequence[int], each: Footprint, redundancy: Redundancy) -> Placement:
    """So many replicas in each of :func:`usable_zones`, evenly on as few nodes as hold them.

    Where a node may be lost, nodes are filled only as far as its loss takes no more than the others asked for.
    """
    per_node = _replicas_per_node(counts, each.per_node_count, redundancy)
    nodes = [
        PlacedNode(zone=zone.name, replica_count=held)
        for zone, count in zip(usable_zones(redundancy), counts, strict=True)
        for held in _evenly(count, -(-count // per_node))
    ]
    return Placement(nodes=tuple(nodes), replicas_per_node_count=per_node)


def within_quota(replica_count: int, replica: ReplicaPhysics, redundancy: Redundancy) -> bool:
    """Whether so many replicas take no more GPUs than may be held."""
    return _within_quota(replica_count, footprint(replica), redundancy)


def _within_quota(replica_count: int, each: Footprint, redundancy: Redundancy) -> bool:
    quota = redundancy.gpu_quota_count
    return quota is None or replica_count * each.gpu_count <= quota


def survivors(placement: Placement, kind: LossKind, count: int, zones: Sequence[Zone] = ()) -> int:
    """Replicas that still serve when the worst ``count`` of ``kind`` are gone.

    With a zone gone only those zones count that have weights and ingress of their own.
    """
    total = placement.replica_count
    if kind == "node":
        return total - sum(sorted((node.replica_count for node in placement.nodes), reverse=True)[:count])
    if kind == "zone":
        alone = {zone.name for zone in zones or (ANYWHERE,) if zone.stands_alone}
        left = [size for name, size in placement.by_zone.items() if name in alone]
        # Losing a zone that cannot stand alone first would leave more: the worst loss takes the largest that can.
        return sum(sorted(left, reverse=True)[count:])
    return max(0, total - count)


def fewest_replicas(carrying_count: int, replica: ReplicaPhysics, redundancy: Redundancy) -> int | None:
    """The smallest fleet that leaves ``carrying_count`` replicas after each of the losses asked for.

    One more replica, evenly placed, never leaves fewer, so the border is a single one.

    Returns:
        ``None`` when no number does: too few zones stand alone, or they have no room.
    """
    return _fewest(carrying_count, footprint(replica), redundancy)


@lru_cache(maxsize=4096)
def _fewest(carrying_count: int, each: Footprint, redundancy: Redundancy) -> int | None:
    """A search asks this of hundreds of replicas that take as much room as others do."""
    usable = usable_zones(redundancy)
    if redundancy.zone_count >= len(usable):
        return None

    def enough(total: int) -> bool:
        placement = _placed(total, each, redundancy)
        return placement is not None and all(
            survivors(placement, kind, redundancy.count_of(kind), redundancy.zones) >= carrying_count
            for kind in LOSSES
            if redundancy.count_of(kind)
        )

    # A lost node takes a node's worth at most, and lost zones their even share of all.
    taken = redundancy.replica_count + (redundancy.node_count + 1) * each.per_node_count
    most = (redundancy.zone_count + 1) * (carrying_count + taken * len(usable))
    rooms = [_room(zone, each) for zone in usable]
    limited = sum(room for room in rooms if room is not None) if None not in rooms else most
    if redundancy.gpu_quota_count is not None:
        limited = min(limited, redundancy.gpu_quota_count // each.gpu_count)
    if min(most, limited) < carrying_count:
        return None
    found = smallest_enough(enough, carrying_count, min(most, limited))
    return None if found is None else max(found, carrying_count)


def _room(zone: Zone, each: Footprint) -> int | None:
    return None if zone.gpu_limit_count is None else zone.gpu_limit_count // each.gpu_count


def _spread(count: int, rooms: Sequence[int | None]) -> list[int] | None:
    """As even a split of ``count`` as the rooms allow; ``None`` when they are too small together."""
    given = [0] * len(rooms)
    left = count
    while left:
        open_ones = [i for i, room in enumerate(rooms) if room is None or given[i] < room]
        if not open_ones:
            return None
        open_ones.sort(key=lambda i: given[i])
        for i, share in zip(open_ones, _evenly(left, len(open_ones)), strict=True):
            room = rooms[i]
            taken = share if room is None else min(share, room - given[i])
            given[i] += taken
            left -= taken
    return given


def _evenly(count: int, parts: int) -> list[int]:
    """``count`` in ``parts`` that differ by one at most, the largest first."""
    return [count // parts + (index < count % parts) for index in range(parts)]
