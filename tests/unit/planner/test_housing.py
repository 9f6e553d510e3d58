"""Pools that stand in the same zones, all at once, held against every placement there is."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from tokenfleet.domain.survival import Redundancy, Zone
from tokenfleet.planner import housing
from tokenfleet.planner.dealing import Patience
from tokenfleet.planner.housing import Lodger, gave_up, limits_for, no_room, rooms_at, rooms_for, rooms_of
from tokenfleet.planner.placement import (
    LOSSES,
    fewest_replicas,
    footprint,
    placed,
    standing,
    survivors,
    usable_zones,
)
from unit.planner import toy

KINDS = {size: toy.replica(tensor_parallel=size) for size in (1, 2, 4)}


def zones(**limits: int | None) -> tuple[Zone, ...]:
    return tuple(Zone(name=name, gpu_limit_count=limit) for name, limit in limits.items())


def pool(size: int, left: int, usd: float = 1.0) -> Lodger:
    return Lodger(replica=KINDS[size], left_count=left, usd_per_hour=usd)


def stands(lodgers, rooms, redundancy) -> list[tuple[int, ...]]:
    """Replicas of each pool in each zone."""
    names = [zone.name for zone in usable_zones(redundancy)]
    places = [
        placed(room.count, each.replica, replace(redundancy, zones=room.zones))
        for each, room in zip(lodgers, rooms, strict=True)
    ]
    return [tuple(place.by_zone.get(name, 0) for name in names) for place in places]


def is_left(each: Lodger, counts: tuple[int, ...], redundancy: Redundancy) -> bool:
    place = standing(counts, footprint(each.replica), redundancy)
    kinds = [kind for kind in LOSSES if redundancy.count_of(kind)]
    return sum(counts) >= each.left_count and all(
        survivors(place, kind, redundancy.count_of(kind), redundancy.zones) >= each.left_count for kind in kinds
    )


def fit(lodgers, ways, redundancy) -> bool:
    sizes = [each.replica.deployment.layout.gpu_count for each in lodgers]
    taken = [sum(size * count for size, count in zip(sizes, counts, strict=True)) for counts in zip(*ways, strict=True)]
    limits = [zone.gpu_limit_count for zone in usable_zones(redundancy)]
    quota = redundancy.gpu_quota_count
    within = all(limit is None or gpus <= limit for gpus, limit in zip(taken, limits, strict=True))
    return within and (quota is None or sum(taken) <= quota)


def ways_of(each: Lodger, redundancy: Redundancy) -> Iterator[tuple[int, ...]]:
    """Every way in which a pool alone survives; no more replicas than a way has that none can be left out of."""
    least = fewest_replicas(each.left_count, each.replica, redundancy)
    size = each.replica.deployment.layout.gpu_count
    most = (redundancy.zone_count + 1) * each.left_count + redundancy.replica_count + 2 * redundancy.node_count
    if least is None:
        return
    rooms = [
        most if zone.gpu_limit_count is None else min(most, zone.gpu_limit_count // size)
        for zone in usable_zones(redundancy)
    ]
    for counts in product(*(range(room + 1) for room in rooms)):
        if least <= sum(counts) <= most and is_left(each, counts, redundancy):
            yield counts


def cheapest(lodgers, redundancy) -> float | None:
    """By trying every way of every pool."""
    every = product(*([*ways_of(each, redundancy)] for each in lodgers))
    prices = (
        sum(sum(counts) * each.usd_per_hour for each, counts in zip(lodgers, ways, strict=True))
        for ways in every
        if fit(lodgers, ways, redundancy)
    )
    return min(prices, default=None)


def drawn(seed: int) -> tuple[list[Lodger], Redundancy]:
    draw = random.Random(seed)
    limits = [draw.choice([*range(7), None]) for _ in range(draw.choice((2, 3, 3)))]
    redundancy = Redundancy(
        replica_count=draw.randint(0, 1),
        node_count=draw.choice((0, 0, 1)),
        zone_count=draw.choice((0, 1, 1, 2)),
        zones=zones(**dict(zip("abc", limits, strict=False))),
        gpu_quota_count=draw.choice((None, None, None, draw.randint(4, 20))),
    )
    pools = [
        pool(draw.choice((1, 1, 2, 4)), draw.randint(1, 2), draw.choice((1.0, 2.0, 3.0)))
        for _ in range(draw.choice((2, 2, 3)))
    ]
    return pools, redundancy


def held_against_all(seed: int) -> bool:
    """Whether pools were dealt the zones, which none would have left for the others on its own."""
    lodgers, redundancy = drawn(seed)
    rooms, wanted = rooms_for(lodgers, redundancy), cheapest(lodgers, redundancy)
    if rooms is None:
        assert wanted is None
        check_limits(lodgers, redundancy)
        return False
    ways = stands(lodgers, rooms, redundancy)
    assert fit(lodgers, ways, redundancy)
    assert all(is_left(each, counts, redundancy) for each, counts in zip(lodgers, ways, strict=True))
    usd = sum(room.count * each.usd_per_hour for each, room in zip(lodgers, rooms, strict=True))
    assert usd == pytest.approx(wanted)
    replicas, counts = [each.replica for each in lodgers], tuple(room.count for room in rooms)
    assert rooms_of(replicas, counts, redundancy, [each.left_count for each in lodgers]) == rooms
    return any(room.zones != redundancy.zones for room in rooms)


def check_limits(lodgers, redundancy) -> None:
    """The limits that are said to do are enough, and no fewer GPUs more in all are."""
    limits = limits_for(lodgers, redundancy)
    if not limits:
        assert redundancy.zone_count >= len(redundancy.zones)
        return

    def with_limits(wanted: dict[str, int], quota: int | None) -> Redundancy:
        wider = tuple(
            replace(zone, gpu_limit_count=wanted.get(zone.name, zone.gpu_limit_count)) for zone in redundancy.zones
        )
        return replace(redundancy, zones=wider, gpu_quota_count=quota)

    assert rooms_for(lodgers, with_limits(limits, limits.get("", redundancy.gpu_quota_count))) is not None
    has = {zone.name: zone.gpu_limit_count for zone in redundancy.zones if zone.gpu_limit_count is not None}
    more = sum(limits[name] - limit for name, limit in has.items() if name in limits)
    if more:
        for counts in product(range(more), repeat=len(has)):
            if sum(counts) == more - 1:
                fewer = {name: limit + count for (name, limit), count in zip(has.items(), counts, strict=True)}
                assert rooms_for(lodgers, with_limits(fewer, None)) is None


def test_what_is_found_is_the_cheapest_of_all_placements() -> None:
    assert sum(held_against_all(seed) for seed in range(80)) > 3


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 900, 100))
def test_what_is_found_is_the_cheapest_of_all_placements_of_many(first: int) -> None:
    assert sum(held_against_all(seed) for seed in range(first, first + 100)) > 3


def test_where_each_on_its_own_leaves_room_the_zones_stay_as_they_are() -> None:
    even = Redundancy(zone_count=1, zones=zones(a=4, b=4, c=None))
    lodgers = [pool(2, 1), pool(2, 1)]
    assert [room.zones for room in rooms_for(lodgers, even)] == [even.zones] * 2
    assert stands(lodgers, rooms_for(lodgers, even), even) == [(1, 1, 0)] * 2


def test_pools_give_way_in_uneven_zones() -> None:
    uneven = Redundancy(zones=zones(a=3, b=1))
    lodgers = [pool(1, 2), pool(1, 2)]
    rooms = rooms_for(lodgers, uneven)
    assert sorted(stands(lodgers, rooms, uneven)) == [(1, 1), (2, 0)]
    assert rooms_for(lodgers, replace(uneven, zone_count=1)) is None


def test_more_spare_replicas_are_taken_where_fewer_have_no_room() -> None:
    wanted = Redundancy(zone_count=1, zones=zones(a=4, b=4, c=1))
    lodgers = [pool(1, 2, usd=2.0), pool(1, 2)]
    # Three replicas do where one stands in c; the other pool takes four.
    assert fewest_replicas(2, KINDS[1], wanted) == 3
    assert [room.count for room in rooms_for(lodgers, wanted)] == [3, 4]


def test_replicas_of_two_gpus_find_no_room_in_odd_halves() -> None:
    lodgers = [pool(2, 2), pool(2, 1)]
    assert rooms_for(lodgers, Redundancy(zones=zones(a=3, b=3))) is None
    assert limits_for(lodgers, Redundancy(zones=zones(a=3, b=3))) in ({"a": 4}, {"b": 4})


def test_room_is_said_in_words() -> None:
    lodgers = [pool(2, 1), pool(2, 1)]
    lacking = Redundancy(zone_count=1, zones=zones(a=4, b=3))
    assert no_room(lodgers, lacking) == ("they take 4 GPUs of zone b, which has 3", "gpu_limit: 4 in zone b")
    few = Redundancy(zone_count=1, zones=zones(a=4, b=4), gpu_quota_count=6)
    assert no_room(lodgers, few) == ("they take 8 GPUs, and the quota is 6", "gpu_quota: 8")


def test_counts_that_nobody_planned_stand_where_losses_leave_most_of_all() -> None:
    uneven = Redundancy(zone_count=1, zones=zones(a=4, b=2, c=2))
    kinds, counts = [KINDS[2]] * 2, (2, 2)
    rooms = rooms_of(kinds, counts, uneven)
    lodgers = [pool(2, 1), pool(2, 1)]
    assert stands(lodgers, rooms, uneven) == [(1, 1, 0), (1, 0, 1)]
    assert rooms_of(kinds, (3, 2), uneven) is None


def test_the_quota_that_would_do_is_the_smallest_and_not_that_of_the_cheapest_replicas() -> None:
    few = Redundancy(zone_count=1, zones=zones(a=1, b=5, c=4), gpu_quota_count=8)
    # One GPU more of a, or of c and with it one more of the large replicas, which cost next to nothing.
    lodgers = [pool(2, 2, usd=0.1), pool(1, 2, usd=8.0)]
    assert limits_for(lodgers, few) == {"a": 2, "": 10}
    assert limits_for(lodgers, replace(few, gpu_quota_count=10)) == {"a": 2}


def test_limits_that_are_said_to_do_let_the_pools_in() -> None:
    odd = Redundancy(node_count=1, replicas_per_node_count=3, zones=zones(a=2, b=15, c=0))
    lodgers = [pool(1, 3, usd=2.0), pool(4, 2, usd=2.0)]
    limits = limits_for(lodgers, odd)
    wider = tuple(replace(zone, gpu_limit_count=limits.get(zone.name, zone.gpu_limit_count)) for zone in odd.zones)
    assert rooms_for(lodgers, odd) is None
    assert rooms_for(lodgers, replace(odd, zones=wider)) is not None


@pytest.mark.parametrize("stop", ["steps", "counts"])
def test_a_search_that_was_stopped_is_said_to_be(monkeypatch, stop) -> None:
    uneven = Redundancy(zone_count=1, zones=zones(a=4, b=4, c=1))
    lodgers = [pool(1, 2, usd=2.0), pool(1, 2)]
    assert rooms_for(lodgers, uneven) is not None
    if stop == "steps":
        monkeypatch.setattr(housing, "Patience", lambda: Patience(step_count=3))
    else:
        monkeypatch.setattr(housing, "_MOST_TRIED", 1)
    assert rooms_for(lodgers, uneven) is None
    assert gave_up(lodgers, uneven)
    why, mend = no_room(lodgers, uneven)
    assert why == (
        "none was found before the search stopped, so that there may be some; placed as is known to do, "
        "they take 2 GPUs of zone c, which has 1"
    )
    assert mend == "gpu_limit: 2 in zone c"
    full = Redundancy(zones=zones(a=1))
    assert rooms_for(lodgers, full) is None
    assert not gave_up(lodgers, full)


def test_pools_of_which_it_is_known_where_they_stand_stay_there() -> None:
    uneven = Redundancy(zone_count=1, zones=zones(a=4, b=2, c=2))
    lodgers = [pool(2, 1), pool(2, 1)]
    kinds = [each.replica for each in lodgers]
    other = [{"a": 1, "c": 1}, {"a": 1, "b": 1}]
    assert stands(lodgers, rooms_for(lodgers, uneven), uneven) == [(1, 1, 0), (1, 0, 1)]
    assert stands(lodgers, rooms_at(kinds, other, uneven), uneven) == [(1, 0, 1), (1, 1, 0)]
    # As each alone is spread: the zones are as they were.
    wide = replace(uneven, zones=zones(a=4, b=4, c=2))
    assert [room.zones for room in rooms_at(kinds, [{"a": 1, "b": 1}] * 2, wide)] == [wide.zones] * 2
    # Zones of another name, too small ones, and a quota that holds less.
    assert rooms_at(kinds, [{"a": 1, "d": 1}, {"a": 1, "b": 1}], uneven) is None
    assert rooms_at(kinds, [{"a": 1, "b": 1}] * 2, uneven) is None
    assert rooms_at(kinds, other, replace(uneven, gpu_quota_count=7)) is None
