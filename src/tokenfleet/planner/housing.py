"""Room for several pools in the same zones, all at once.

Each pool alone is spread evenly. Where that takes more GPUs of a zone than there are, the zones are dealt out to all
pools together, in the cheapest counts that leave of each what the losses asked for must leave. What a pool is dealt
are from then on the zones that it has: whatever is asked of it, its replicas stand there.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import inf

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.survival import Redundancy, Zone
from tokenfleet.planner.counting import smallest_enough
from tokenfleet.planner.dealing import Counts, Lot, Patience, dealt, may_be_dealt
from tokenfleet.planner.placement import (
    LOSSES,
    fewest_replicas,
    footprint,
    placed,
    standing,
    survivors,
    usable_zones,
)
from tokenfleet.planner.pool_counts import by_price

_MOST_TRIED = 2_000
"""Counts of all pools that are tried; where none of so many has room, none is taken to have, and that is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lodger:
    """A pool that needs room."""

    replica: ReplicaPhysics
    left_count: int
    """Replicas that each loss asked for must leave."""
    usd_per_hour: float
    """Price of one replica, or whatever else says how dear it is."""
    least_count: int = 1
    """It has no fewer replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a pool has while all pools stand in the same zones."""

    count: int
    """Its replicas."""
    zones: tuple[Zone, ...]
    """The zones as it has them: in these :func:`tokenfleet.planner.placement.placed` puts so many where they stand."""


def rooms_for(lodgers: Sequence[Lodger], redundancy: Redundancy) -> tuple[Room, ...] | None:
    """The fewest replicas of each pool, and where they stand while all pools do.

    Args:
        lodgers: All pools with GPUs of their own.
        redundancy: Zones, quota, and every loss asked for.

    Returns:
        With the zones as they are where each pool on its own leaves room for the others; ``None`` where no counts have
        room, or none were found to have before the search stopped: :func:`gave_up` tells which.
    """
    replicas, least = [each.replica for each in lodgers], _fewest(lodgers, redundancy)
    if least is None:
        return None
    if _spread(replicas, least, redundancy) is not None:
        return tuple(Room(count=count, zones=redundancy.zones) for count in least)
    ways = _cheapest(lodgers, least, redundancy, Patience())
    if ways is None:
        return None
    spread = _spread(replicas, tuple(map(sum, ways)), redundancy)
    return _rooms(replicas, spread or ways, redundancy)


def rooms_of(
    replicas: Sequence[ReplicaPhysics],
    counts: Counts,
    redundancy: Redundancy,
    left_counts: Sequence[int] | None = None,
) -> tuple[Room, ...] | None:
    """The same for pools whose counts are known.

    Args:
        replicas: Of each pool with GPUs of its own.
        counts: How many.
        redundancy: Zones, quota, and every loss asked for.
        left_counts: Replicas that each loss asked for must leave; ``None``: as many as it leaves of each pool that is
            spread on its own, or fewer by a number that is the same for all.
    """
    if _spread(replicas, counts, redundancy) is not None:
        return tuple(Room(count=count, zones=redundancy.zones) for count in counts)
    alone, quota = _alone(replicas, counts, redundancy), redundancy.gpu_quota_count
    if alone is None or (quota is not None and sum(_taken(replicas, alone)) > quota):
        return None
    most = [_left(each, own, redundancy) for each, own in zip(replicas, alone, strict=True)]
    less = ([max(0, left - fewer) for left in most] for fewer in range(max(most) + 1))
    wanted = less if left_counts is None else [left_counts]
    ways = (_dealt(replicas, counts, lefts, redundancy, Patience()) for lefts in wanted)
    found = next((way for way in ways if way is not None), None)
    return None if found is None else _rooms(replicas, found, redundancy)


def rooms_at(
    replicas: Sequence[ReplicaPhysics], stand: Sequence[Mapping[str, int]], redundancy: Redundancy
) -> tuple[Room, ...] | None:
    """The same for pools of which it is known where they stand.

    Args:
        replicas: Of each pool with GPUs of its own.
        stand: How many of each are in each zone, by its name.
        redundancy: Zones, quota, and every loss asked for.

    Returns:
        ``None`` where they cannot stand there: zones are called otherwise, or they or the quota hold too few.
    """
    names = [zone.name for zone in usable_zones(redundancy)]
    ways = [tuple(counts.get(name, 0) for name in names) for counts in stand]
    counts, quota = tuple(map(sum, ways)), redundancy.gpu_quota_count
    if not all(counts) or counts != tuple(sum(each.values()) for each in stand):
        return None
    if _spread(replicas, counts, redundancy) == tuple(ways):
        return tuple(Room(count=count, zones=redundancy.zones) for count in counts)
    if _over(replicas, ways, redundancy) or (quota is not None and sum(_taken(replicas, ways)) > quota):
        return None
    return _rooms(replicas, ways, redundancy)


def limits_for(lodgers: Sequence[Lodger], redundancy: Redundancy) -> dict[str, int]:
    """GPUs that zones, and the quota, would have to allow for pools that have no room: as few more as are found to do.

    Returns:
        By the name of each zone that has too few, and under ``""`` where the quota allows too few; empty where no
        limits help.
    """
    replicas = [each.replica for each in lodgers]
    endless = _unpaid(redundancy, {zone.name: None for zone in redundancy.zones})
    least = _fewest(lodgers, endless)
    alone = None if least is None else _alone(replicas, least, endless)
    if least is None or alone is None:
        return {}
    found = _with_fewest_more(lodgers, least, alone, redundancy)
    limits = {} if found is None else _limits(replicas, found, redundancy)
    # Spread on its own each has room with the most of them.
    does = bool(limits) and rooms_for(lodgers, _widened(redundancy, limits)) is not None
    return limits if does else _limits(replicas, alone, redundancy)


def _with_fewest_more(
    lodgers: Sequence[Lodger], least: Counts, alone: Sequence[Counts], redundancy: Redundancy
) -> tuple[Counts, ...] | None:
    """Where all stand with the fewest GPUs beyond what zones have, and of these ways that with the fewest GPUs."""
    replicas, unpaid = [each.replica for each in lodgers], _unpaid(redundancy, {})
    by_gpus = [replace(each, usd_per_hour=float(each.replica.deployment.layout.gpu_count)) for each in lodgers]

    @cache
    def with_more(gpu_count: int) -> tuple[Counts, ...] | None:
        return _cheapest(by_gpus, least, unpaid, Patience(), beyond_gpu_count=gpu_count)

    most = sum(taken - limit for taken, limit in _over(replicas, alone, unpaid).values())
    more = smallest_enough(lambda count: with_more(count - 1) is not None, 1, most + 1)
    return None if more is None else with_more(more - 1)


def _unpaid(redundancy: Redundancy, limits: Mapping[str, int | None]) -> Redundancy:
    """Without a quota, and with other limits of some zones."""
    zones = (replace(zone, gpu_limit_count=limits.get(zone.name, zone.gpu_limit_count)) for zone in redundancy.zones)
    return replace(redundancy, zones=tuple(zones), gpu_quota_count=None)


def _widened(redundancy: Redundancy, limits: Mapping[str, int]) -> Redundancy:
    """With what :func:`limits_for` says that zones and quota must allow."""
    return replace(_unpaid(redundancy, limits), gpu_quota_count=limits.get("", redundancy.gpu_quota_count))


def _limits(replicas: Sequence[ReplicaPhysics], ways: Sequence[Counts], redundancy: Redundancy) -> dict[str, int]:
    """What zones and quota must allow for that and do not."""
    limits = {name: taken for name, (taken, _) in _over(replicas, ways, redundancy).items()}
    total, quota = sum(_taken(replicas, ways)), redundancy.gpu_quota_count
    return limits if quota is None or total <= quota else {**limits, "": total}


def no_room(lodgers: Sequence[Lodger], redundancy: Redundancy) -> tuple[str, str]:
    """Why zones or quota have no room for all pools, and the limits that would do, in words: see :func:`limits_for`."""
    limits, why = limits_for(lodgers, redundancy), ""
    if gave_up(lodgers, redundancy):
        why = "none was found before the search stopped, so that there may be some; placed as is known to do, "
    return why + lacking(limits, redundancy), limits_said(limits)


def gave_up(lodgers: Sequence[Lodger], redundancy: Redundancy) -> bool:
    """Whether :func:`rooms_for` stopped before it had seen all: that it found no room is then not certain."""
    least, patience = _fewest(lodgers, redundancy), Patience()
    found = None if least is None else _cheapest(lodgers, least, redundancy, patience)
    return found is None and patience.is_lost


def lacking(limits: Mapping[str, int], redundancy: Redundancy) -> str:
    """``they take 4 GPUs of zone b, which has 3``: what zones or quota do not hold, of which so much is needed."""
    has = {zone.name: zone.gpu_limit_count for zone in redundancy.zones}
    why = [
        f"{gpus} GPUs of zone {name}, which has {has[name]}"
        if name
        else f"{gpus} GPUs, and the quota is {redundancy.gpu_quota_count}"
        for name, gpus in limits.items()
    ]
    return f"they take {', and '.join(why)}" if why else "no way to place all of them is known"


def limits_said(limits: Mapping[str, int]) -> str:
    """``gpu_limit: 2 in zone b and gpu_quota: 8``: what zones and quota must hold."""
    return " and ".join(
        f"gpu_limit: {limit} in zone {name}" if name else f"gpu_quota: {limit}" for name, limit in limits.items()
    )


def _fewest(lodgers: Sequence[Lodger], redundancy: Redundancy) -> Counts | None:
    """The fewest replicas of each pool, had it all zones to itself; ``None`` where no number of one will do."""
    found = [fewest_replicas(each.left_count, each.replica, redundancy) for each in lodgers]
    known = [max(count, each.least_count) for count, each in zip(found, lodgers, strict=True) if count is not None]
    return tuple(known) if len(known) == len(found) else None


def _alone(replicas: Sequence[ReplicaPhysics], counts: Counts, redundancy: Redundancy) -> tuple[Counts, ...] | None:
    """Where replicas of each pool stand that has all zones to itself; ``None`` where one has no room."""
    spread = [placed(count, each, redundancy) for each, count in zip(replicas, counts, strict=True)]
    names = [zone.name for zone in usable_zones(redundancy)]
    known = [tuple(place.by_zone.get(name, 0) for name in names) for place in spread if place is not None]
    return tuple(known) if len(known) == len(spread) else None


def _taken(replicas: Sequence[ReplicaPhysics], ways: Sequence[Counts]) -> list[int]:
    """GPUs of each zone."""
    sizes = [each.deployment.layout.gpu_count for each in replicas]
    return [sum(size * count for size, count in zip(sizes, counts, strict=True)) for counts in zip(*ways, strict=True)]


def _over(
    replicas: Sequence[ReplicaPhysics], ways: Sequence[Counts], redundancy: Redundancy
) -> dict[str, tuple[int, int]]:
    """Zones that have too few GPUs: how many are taken, and how many there are."""
    zones = zip(usable_zones(redundancy), _taken(replicas, ways), strict=True)
    has = ((zone.name, taken, zone.gpu_limit_count) for zone, taken in zones)
    return {name: (taken, limit) for name, taken, limit in has if limit is not None and taken > limit}


def _spread(replicas: Sequence[ReplicaPhysics], counts: Counts, redundancy: Redundancy) -> tuple[Counts, ...] | None:
    """Where they stand, each on its own; ``None`` where zones or quota do not have room for all."""
    alone, quota = _alone(replicas, counts, redundancy), redundancy.gpu_quota_count
    if alone is None or _over(replicas, alone, redundancy):
        return None
    return alone if quota is None or sum(_taken(replicas, alone)) <= quota else None


def _rooms(replicas: Sequence[ReplicaPhysics], ways: Sequence[Counts], redundancy: Redundancy) -> tuple[Room, ...]:
    """The zones with no more GPUs than each pool was dealt."""
    names = [zone.name for zone in usable_zones(redundancy)]
    rooms = []
    for each, counts in zip(replicas, ways, strict=True):
        size, mine = each.deployment.layout.gpu_count, dict(zip(names, counts, strict=True))
        zones = (replace(zone, gpu_limit_count=size * mine.get(zone.name, 0)) for zone in redundancy.zones)
        rooms.append(Room(count=sum(counts), zones=tuple(zones)))
    return tuple(rooms)


def _left(replica: ReplicaPhysics, counts: Counts, redundancy: Redundancy) -> int:
    """Replicas that the worst of the losses asked for leaves."""
    place = standing(counts, footprint(replica), redundancy)
    kinds = [kind for kind in LOSSES if redundancy.count_of(kind)]
    left = (survivors(place, kind, redundancy.count_of(kind), redundancy.zones) for kind in kinds)
    return min(left, default=sum(counts))


def _survives(replica: ReplicaPhysics, left_count: int, redundancy: Redundancy, counts: Counts) -> bool:
    return _left(replica, counts, redundancy) >= left_count


def _dealt(
    replicas: Sequence[ReplicaPhysics],
    counts: Counts,
    left_counts: Sequence[int],
    redundancy: Redundancy,
    patience: Patience,
    beyond_gpu_count: int = 0,
) -> tuple[Counts, ...] | None:
    """So many of each pool in the zones, all at once, that each loss leaves enough."""
    lots = [
        Lot(
            gpu_count=each.deployment.layout.gpu_count,
            count=count,
            loss_count=count - left,
            stands=partial(_survives, each, left, redundancy),
        )
        for each, count, left in zip(replicas, counts, left_counts, strict=True)
    ]
    rooms = [zone.gpu_limit_count for zone in usable_zones(redundancy)]
    return dealt(lots, rooms, redundancy.zone_count, patience, beyond_gpu_count=beyond_gpu_count)


def _cheapest(
    lodgers: Sequence[Lodger], least: Counts, redundancy: Redundancy, patience: Patience, *, beyond_gpu_count: int = 0
) -> tuple[Counts, ...] | None:
    """The cheapest counts, from the least ones on, with which all pools have room at once."""
    replicas, lefts = [each.replica for each in lodgers], [each.left_count for each in lodgers]
    most = [max(count, _most(each, redundancy)) for count, each in zip(least, lodgers, strict=True)]
    known = [zone.gpu_limit_count for zone in usable_zones(redundancy)]
    loosest = [
        Lot(each.replica.deployment.layout.gpu_count, few, many - each.left_count, lambda _: True)
        for each, few, many in zip(lodgers, least, most, strict=True)
    ]
    if not may_be_dealt(loosest, known, redundancy.zone_count, beyond_gpu_count=beyond_gpu_count):
        return None
    held = inf if None in known else sum(gpus or 0 for gpus in known) + beyond_gpu_count
    quota = inf if redundancy.gpu_quota_count is None else redundancy.gpu_quota_count
    tried = _in_order_of_price(lodgers, least, most, min(held, quota), patience)
    ways = (_dealt(replicas, counts, lefts, redundancy, patience, beyond_gpu_count) for counts in tried)
    return next((way for way in ways if way is not None), None)


def _most(lodger: Lodger, redundancy: Redundancy) -> int:
    """Replicas of a pool beyond which each one more could be left out, wherever all of them stand."""
    left, per_node = lodger.left_count, redundancy.replicas_per_node_count or 1
    lost = max(redundancy.replica_count, redundancy.node_count * per_node)
    return max((redundancy.zone_count + 1) * left, left + lost)


def _in_order_of_price(
    lodgers: Sequence[Lodger], least: Counts, most: Sequence[int], held_gpu_count: float, patience: Patience
) -> Iterator[Counts]:
    """Counts from the least to the most ones that so many GPUs hold, cheaper ones first, while there is patience."""
    sizes = [each.replica.deployment.layout.gpu_count for each in lodgers]

    def may_be(counts: Counts) -> bool:
        held = sum(size * count for size, count in zip(sizes, counts, strict=True)) <= held_gpu_count
        return held and all(count <= much for count, much in zip(counts, most, strict=True))

    usd = tuple(each.usd_per_hour for each in lodgers)
    for tried_count, counts in enumerate(by_price(least, usd, may_be)):
        patience.is_lost |= tried_count == _MOST_TRIED
        if patience.is_lost:
            return
        yield counts
