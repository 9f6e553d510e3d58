"""Shared nodes in zones: what a lost one leaves, GPUs to be had, brute force, and what a plan would place."""

from collections import Counter
from dataclasses import replace
from itertools import combinations, combinations_with_replacement, product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tokenfleet.domain.survival import PlacedNode, Placement, Redundancy, Zone
from tokenfleet.planner import Option, Pool, Quota, Shelf, conflict, nodes_usd_per_hour, pack, pack_all, pack_together
from tokenfleet.planner.failover import room_for_failover
from tokenfleet.planner.placement import fewest_replicas, placed, survivors
from unit.planner import toy


def zones(names="abc", limit=None, lame=""):
    return tuple(Zone(name=name, gpu_limit_count=limit, weights=name not in lame) for name in names)


ABC = zones()


def pool(name, gpus, carrying, spare=0, *, lost=1, at=ABC, **more):
    return Pool(
        name=name, gpu_count=gpus, carrying_count=carrying, spare_count=spare, zone_count=lost, zones=at, **more
    )


def check(packing, pools):
    """Everything that was asked for, counted node by node."""
    nodes = [node for node in packing.nodes for _ in range(node.node_count)]
    for node in nodes:
        assert sum(each.gpu_count * node.replicas.get(each.name, 0) for each in pools) <= packing.gpus_per_node_count
    for zone in packing.zones:
        held = sum(packing.gpus_per_node_count for node in nodes if node.zone == zone.name)
        assert zone.gpu_limit_count is None or held <= zone.gpu_limit_count
    for each in pools:
        assert all(each.may_stand_in(node.zone) for node in nodes if each.name in node.replicas)
        assert kept(each, [(node.zone, node.replicas.get(each.name, 0)) for node in nodes])
        if each.isolated:
            assert packing.neighbours(each.name) == ()
        if each.zone_count:
            worst = min(loss.serving_count for loss in packing.zone_losses(each))
            assert worst >= each.carrying_count


def kept(each, nodes):
    """Whether replicas of a pool on nodes of zones are enough, the obvious way."""
    total = sum(count for _, count in nodes)
    if total < each.carrying_count + each.spare_count:
        return False
    if total - sum(sorted((count for _, count in nodes), reverse=True)[: each.node_count]) < each.carrying_count:
        return False
    if not each.zone_count:
        return True
    named = each.zones or zones()
    for lost in combinations([zone.name for zone in named], each.zone_count):
        alone = [zone.name for zone in named if zone.stands_alone and zone.name not in lost]
        if sum(count for zone, count in nodes if zone in alone) < each.carrying_count:
            return False
    return True


def test_a_lost_zone_leaves_what_carries():
    pools = [pool("chat", 2, 4, 1), pool("search", 1, 3)]
    packing = pack(pools, 8)
    check(packing, pools)
    # Two zones with everything need two nodes (11 of 16 GPUs twice is too much), three with half of it one each.
    assert packing.node_count == 3
    assert [sum(node.node_count for node in packing.nodes_in(name)) for name in "abc"] == [1, 1, 1]
    assert packing.proved
    assert packing.by_zone("chat") == {"a": 2, "b": 2, "c": 2}
    assert {loss.zones: loss.serving_count for loss in packing.zone_losses(pools[0])} == {
        ("a",): 4,
        ("b",): 4,
        ("c",): 4,
    }


def test_two_lost_zones_leave_what_carries():
    pools = [pool("chat", 8, 2, lost=2, at=zones("abcd"))]
    packing = pack(pools, 8)
    check(packing, pools)
    assert packing.node_count == 4
    assert len(packing.zone_losses(pools[0])) == 6


def test_a_zone_that_cannot_stand_alone_is_no_survivor():
    lame = zones(lame="c")
    pools = [pool("chat", 4, 2, at=lame)]
    packing = pack(pools, 4)
    check(packing, pools)
    # Half in each of three would be three nodes; c has no weights of its own, so a and b hold everything each.
    assert packing.by_zone("chat") == {"a": 2, "b": 2}
    # Where no zone has to be survived c holds replicas as well, and they do not count when another is gone.
    full = (Zone(name="a", gpu_limit_count=4), Zone(name="c", ingress=False))
    bare = pool("chat", 4, 2, lost=0, at=full)
    packing = pack([bare], 4)
    assert {loss.zones: loss.serving_count for loss in packing.zone_losses(bare)}[("a",)] == 0
    assert pack([pool("chat", 4, 1, at=zones("ab", lame="b"))], 4) is None


def test_weights_are_a_matter_of_each_model():
    """A zone that has the weights of one model and not of another survives for one alone."""
    pools = [pool("chat", 4, 2, at=zones(lame="c")), pool("search", 4, 2, at=zones())]
    packing = pack(pools, 4)
    check(packing, pools)
    assert "c" not in packing.by_zone("chat")
    assert packing.by_zone("search") == {"a": 1, "b": 1, "c": 1}


def test_the_fewest_nodes_go_where_the_gpus_are():
    at = (Zone(name="a", gpu_limit_count=8), Zone(name="b", gpu_limit_count=24))
    pools = [pool("chat", 4, 4, lost=0, at=at), pool("search", 8, 2, lost=0, at=at)]
    packing = pack(pools, 8)
    check(packing, pools)
    assert packing.node_count == 4
    # Free GPUs are paid for with their node: 7 of a zone are no node, and 15 are one.
    short = (Zone(name="a", gpu_limit_count=7), Zone(name="b", gpu_limit_count=15))
    one = pool("chat", 4, 2, lost=0, at=short)
    assert pack([one], 8).by_zone("chat") == {"b": 2}
    assert pack([replace(one, carrying_count=3)], 8) is None


def test_a_limit_holds_for_nodes_of_all_gpus_together():
    at = zones("ab", limit=8)
    large = Shelf(gpus_per_node_count=8, usd_per_gpu_hour=3.0, pools=(pool("chat", 8, 1, lost=0, at=at),))
    small = Shelf(gpus_per_node_count=4, usd_per_gpu_hour=1.0, pools=(pool("search", 4, 2, lost=0, at=at),))
    first, second = pack_all([large, small])
    (held,) = first.by_zone("chat")
    (other,) = second.by_zone("search")
    assert {held, other} == {"a", "b"}
    assert pack_all([large, replace(small, pools=(pool("search", 4, 3, lost=0, at=at),))]) is None


def test_dear_nodes_are_saved_before_many_cheap_ones():
    """The third zone has 8 GPUs: there they save one node at $24 of a pool, or two at $4 of another."""
    at = (Zone(name="a"), Zone(name="b"), Zone(name="c", gpu_limit_count=8))
    dear = Shelf(gpus_per_node_count=8, usd_per_gpu_hour=3.0, pools=(pool("dear", 8, 2, at=at),))
    cheap = Shelf(gpus_per_node_count=4, usd_per_gpu_hour=1.0, pools=(pool("cheap", 4, 4, at=at),))
    first, second = pack_all([dear, cheap])
    assert first.by_zone("dear") == {"a": 1, "b": 1, "c": 1}
    assert second.by_zone("cheap") == {"a": 4, "b": 4}


def test_who_names_no_zones_stands_in_any():
    pools = [pool("chat", 6, 1, at=zones("ab")), Pool(name="search", gpu_count=2, carrying_count=2, spare_count=0)]
    packing = pack(pools, 8)
    check(packing, pools)
    assert packing.node_count == 2
    assert packing.free_gpu_count(pools) == 0


def test_isolated_pools_stand_apart_in_every_zone():
    pools = [pool("chat", 2, 2, isolated=True), pool("search", 2, 2), pool("batch", 2, 2, lost=0)]
    packing = pack(pools, 8)
    check(packing, pools)
    assert pack([replace(each, isolated=False) for each in pools], 8).node_count < packing.node_count


def test_at_most_so_many_on_a_node():
    alone = pool("chat", 1, 6, at=(), lost=0, most_per_node_count=2)
    assert pack([alone], 8).node_count == 3
    beside = [alone, pool("search", 6, 3, at=(), lost=0)]
    packing = pack(beside, 8)
    assert packing.node_count == 3
    assert packing.lost_with_nodes("chat") == 2


def test_a_loss_leaves_more_where_it_is_ridden_through():
    riding = pool("chat", 8, 2, 1, at=zones("abc"), more_left_count=1)
    packing = pack([riding], 8)
    assert packing.replica_count("chat") == 5
    assert min(loss.serving_count for loss in packing.zone_losses(riding)) == 3
    still = replace(riding, zone_count=0, node_count=1)
    assert pack([still], 8).replica_count("chat") == 4
    assert pack([replace(still, node_count=0)], 8).replica_count("chat") == 4


def test_a_quota_holds_for_all_pools_of_a_scenario():
    alone = pool("chat", 1, 3, lost=0, at=(), node_count=1)
    # Two nodes of three replicas each; with five GPUs three nodes, of two at most.
    assert pack([alone], 8).node_count == 2
    quota = Quota(scenario="chat", gpu_count=5)
    assert pack([replace(alone, quota=quota)], 8).node_count == 3
    assert pack([replace(alone, quota=replace(quota, gpu_count=3))], 8) is None
    both = [replace(alone, name=name, quota=quota) for name in ("chat.a", "chat.b")]
    shelves = [Shelf(gpus_per_node_count=8, usd_per_gpu_hour=1.0, pools=(each,)) for each in both]
    assert pack_all(shelves) is None
    roomier = replace(quota, gpu_count=9)
    shelves = [replace(each, pools=(replace(each.pools[0], quota=roomier),)) for each in shelves]
    found = pack_all(shelves)
    assert sum(packing.replica_count(each.name) for packing, each in zip(found, both, strict=True)) <= 9
    assert sum(packing.node_count for packing in found) == 7
    packed, free = pack([alone], 8), {"quota_left_count": 1}
    assert room_for_failover(packed, [alone], "chat") == 10
    assert room_for_failover(packed, [alone], "chat", **free) == 1


# ---- against every other way to stand


def arrangements(pools, per_node, limits, node_count):
    """Every way to put so many nodes into zones, each filled any way."""
    mixes = [
        mix
        for mix in product(*(range(per_node // each.gpu_count + 1) for each in pools))
        if 0 < sum(n * each.gpu_count for n, each in zip(mix, pools, strict=True)) <= per_node
    ]
    kinds = [(zone, mix) for zone in limits for mix in mixes]
    for nodes in combinations_with_replacement(kinds, node_count):
        held = Counter(zone for zone, _ in nodes)
        if all(limit is None or held[zone] * per_node <= limit for zone, limit in limits.items()):
            yield nodes


def fewest(pools, per_node, limits, most):
    """The fewest nodes that do, and of those the fewest GPUs in use; ``None`` where up to ``most`` do not."""
    for count in range(1, most + 1):
        used = []
        for nodes in arrangements(pools, per_node, limits, count):
            stands = [[(zone, mix[index]) for zone, mix in nodes if mix[index]] for index in range(len(pools))]
            if any(not each for each in stands) or not all(map(kept, pools, stands)):
                continue
            if any(not each.may_stand_in(zone) for each, at in zip(pools, stands, strict=True) for zone, _ in at):
                continue
            apart = [index for index, each in enumerate(pools) if each.isolated]
            if any(mix[index] and sum(map(bool, mix)) > 1 for _, mix in nodes for index in apart):
                continue
            used.append(sum(each.gpu_count * n for each, at in zip(pools, stands, strict=True) for _, n in at))
        if used:
            return count, min(used)
    return None


drawn_pools = st.lists(
    st.fixed_dictionaries(
        {
            "gpu_count": st.integers(1, 4),
            "carrying_count": st.integers(1, 2),
            "spare_count": st.integers(0, 1),
            "node_count": st.integers(0, 2),
            "zone_count": st.integers(0, 1),
            "lame": st.sampled_from(["", "", "b", "c"]),
            "isolated": st.booleans(),
        }
    ),
    min_size=1,
    max_size=2,
)


@settings(max_examples=60, deadline=None)
@given(drawn_pools, st.lists(st.sampled_from([None, None, 4, 8]), min_size=3, max_size=3))
def test_no_brute_force_finds_cheaper_nodes_in_zones(drawn, limits):
    limits = dict(zip("abc", limits, strict=True))
    pools = []
    for index, each in enumerate(drawn):
        lame = each.pop("lame")
        at = tuple(Zone(name=name, weights=name not in lame, gpu_limit_count=limits[name]) for name in "abc")
        pools.append(Pool(name=str(index), zones=at, **each))
    packing = pack(pools, 4)
    best = fewest(pools, 4, limits, most=4)
    if packing is None:
        assert best is None
        return
    check(packing, pools)
    assert packing.proved
    used = packing.node_count * 4 - packing.free_gpu_count(pools)
    if packing.node_count <= 4:
        assert best == (packing.node_count, used)
    else:
        assert best is None


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(0, 1), st.integers(0, 2)), min_size=2, max_size=2
    ),
    st.sampled_from([(1.0, 1.0), (1.0, 1.3), (2.0, 1.0)]),
    st.lists(st.sampled_from([None, 2, 4, 6, 8]), min_size=2, max_size=2),
)
def test_no_brute_force_finds_a_cheaper_bill_of_two_gpus(drawn, usd, limits):
    """Nodes of two and of four GPUs share what each zone has."""
    limits = dict(zip("ab", limits, strict=True))
    at = tuple(Zone(name=name, gpu_limit_count=limit) for name, limit in limits.items())
    sizes = (2, 4)
    pools = [
        pool(str(index), gpus, carrying, lost=lost, at=at, node_count=node)
        for index, (gpus, carrying, lost, node) in enumerate(drawn)
    ]
    shelves = [
        Shelf(gpus_per_node_count=size, usd_per_gpu_hour=price, pools=(each,))
        for size, price, each in zip(sizes, usd, pools, strict=True)
    ]
    found = pack_all(shelves)
    stands = []
    for each, size, price in zip(pools, sizes, usd, strict=True):
        mine = set()
        for count in range(1, 7):
            for nodes in arrangements([each], size, limits, count):
                if kept(each, [(zone, mix[0]) for zone, mix in nodes]):
                    held = Counter(zone for zone, _ in nodes)
                    mine.add((count * size * price, held["a"] * size, held["b"] * size))
        stands.append(mine)
    bills = [
        first[0] + second[0]
        for first, second in product(*stands)
        if all(limits[zone] is None or first[1 + i] + second[1 + i] <= limits[zone] for i, zone in enumerate("ab"))
    ]
    if found is None:
        assert not bills
        return
    for packing, each in zip(found, pools, strict=True):
        check(packing, [each])
    for zone, limit in limits.items():
        held = sum(
            node.node_count * packing.gpus_per_node_count for packing in found for node in packing.nodes_in(zone)
        )
        assert limit is None or held <= limit
    bill = sum(packing.node_count * size * price for packing, size, price in zip(found, sizes, usd, strict=True))
    if all(packing.node_count <= 6 for packing in found):
        assert bill == pytest.approx(min(bills))


# ---- against the placement of a plan


def redundancy(at, *, node=0, zone=0, replica=1):
    return Redundancy(replica_count=replica, node_count=node, zone_count=zone, zones=at)


def lone(carrying, size, wanted):
    return Pool(
        name="chat",
        gpu_count=size,
        carrying_count=carrying,
        spare_count=wanted.replica_count,
        node_count=wanted.node_count,
        zone_count=wanted.zone_count,
        zones=wanted.zones,
    )


@settings(max_examples=120, deadline=None)
@given(
    st.integers(1, 9),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(1, 4),
    st.lists(st.sampled_from([None, 8, 16, 24]), min_size=4, max_size=4),
    st.sampled_from(["", "a", "b", "ab"]),
)
def test_a_single_pool_stands_as_a_plan_places_it(carrying, size, spare, node, zone, count, limits, lame):
    at = tuple(
        Zone(name=name, gpu_limit_count=limit, ingress=name not in lame)
        for name, limit in zip("abcd"[:count], limits, strict=False)
    )
    wanted = redundancy(at, node=node, zone=zone, replica=spare)
    replica = toy.replica(tensor_parallel=size)
    total = fewest_replicas(carrying, replica, wanted)
    each = lone(carrying, size, wanted)
    # Nodes that hold one replica: as few nodes are as few replicas.
    narrow = pack([each], size)
    if total is None:
        assert narrow is None
    else:
        assert narrow is not None
        assert narrow.node_count == total
        assert each.least_count <= total
    # Whole nodes: never more than those of the plan, and the plan's own arithmetic finds as many left.
    packing = pack([each], 8)
    spread = None if total is None else placed(total, replica, wanted)
    if spread is None:
        assert packing is None
        return
    by_zone = Counter(node.zone for node in spread.nodes)
    fits = all(each.gpu_limit_count is None or by_zone[each.name] * 8 <= each.gpu_limit_count for each in at)
    assert packing is not None or not fits
    assume(packing is not None)
    assert packing.node_count <= len(spread.nodes) or not fits
    nodes = tuple(
        PlacedNode(zone=mine.zone, replica_count=mine.replicas["chat"])
        for mine in packing.nodes
        for _ in range(mine.node_count)
    )
    stood = Placement(nodes=nodes, replicas_per_node_count=8 // size)
    for kind in ("replica", "node", "zone"):
        if wanted.count_of(kind):
            assert survivors(stood, kind, wanted.count_of(kind), wanted.zones) >= carrying


# ---- where there is no room


def option(gpu, usd, each, per_node=8):
    return Option(gpu=gpu, gpus_per_node_count=per_node, usd_per_gpu_hour=usd, pool=each)


def test_a_fleet_that_has_room_is_taken_before_a_cheaper_one_that_has_none():
    at = zones("ab", limit=8)
    chat = [(option("l40s", 1.0, pool("chat", 4, 5, at=at)),), (option("h100_sxm", 3.0, pool("chat", 2, 2, at=at)),)]
    assert pack_together([chat[:1]]) is None
    assert pack_together([chat]) == (1,)
    assert nodes_usd_per_hour(chat[0]) is None
    assert nodes_usd_per_hour(chat[1]) == 48.0


def test_the_smallest_reason_is_one_scenario_then_two_then_as_many_as_it_takes():
    at = zones("ab", limit=8)
    chat, search, large, tiny = (
        [(option("h100_sxm", 3.0, pool(name, gpus, 1, lost=lost, at=at)),)]
        for name, gpus, lost in (("chat", 8, 1), ("search", 4, 1), ("large", 8, 0), ("tiny", 1, 0))
    )
    found = conflict([search, chat, tiny])
    # chat fills both zones: search is the first that does not go with it.
    assert found.places == (0, 1)
    assert sum(each.needed_gpu_count - each.gpu_limit_count for each in found.short) == 16
    wide = [(option("h100_sxm", 3.0, pool("wide", 8, 2, at=at)),)]
    alone = conflict([search, tiny, wide])
    assert alone.places == (2,)
    assert {(each.zone, each.gpu_limit_count, each.needed_gpu_count) for each in alone.short} == {
        ("a", 8, 16),
        ("b", 8, 16),
    }
    others = [[(option("h100_sxm", 3.0, pool(name, 8, 1, lost=0, at=at)),)] for name in ("one", "two")]
    three = conflict([tiny, *others])
    assert three.places == (0, 1, 2)
    assert sum(each.needed_gpu_count - each.gpu_limit_count for each in three.short) == 8
    assert pack_together([large, tiny]) == (0, 0)


def test_limits_that_would_do_are_few_gpus_more_before_they_are_few_nodes():
    """Two nodes in each zone would be six; seven take 7 GPUs more than there are, those six 15."""
    at = tuple(Zone(name=name, gpu_limit_count=limit) for name, limit in (("a", 24), ("b", 24), ("c", 1)))
    found = conflict([[(option("h100_sxm", 3.0, pool("chat", 8, 4, at=at)),)]])
    assert [(each.zone, each.needed_gpu_count) for each in found.short] == [("c", 8)]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 3), st.integers(0, 1)), min_size=1, max_size=4),
    st.sampled_from([8, 16]),
)
def test_a_reason_is_the_smallest_and_its_limits_do(drawn, limit):
    def ways(limits):
        at = tuple(Zone(name=name, gpu_limit_count=limits.get(name)) for name in "ab")
        return [
            [(option("h100_sxm", 3.0, pool(str(index), *each[:2], lost=each[2], at=at)),)]
            for index, each in enumerate(drawn)
        ]

    asked = ways(dict.fromkeys("ab", limit))
    assume(pack_together(asked) is None)
    found = conflict(asked)
    mine = [asked[at] for at in found.places]
    assert pack_together(mine) is None
    for without in range(len(mine)):
        assert len(mine) == 1 or pack_together([each for at, each in enumerate(mine) if at != without]) is not None
    needed = dict.fromkeys("ab", limit) | {each.zone: each.needed_gpu_count for each in found.short}
    enough = ways(needed)
    assert pack_together([enough[at] for at in found.places] if len(mine) == 1 else enough) is not None
    # One GPU less in any of them does not do.
    for each in found.short:
        tight = ways(needed | {each.zone: each.needed_gpu_count - 1})
        assert pack_together([tight[at] for at in found.places] if len(mine) == 1 else tight) is None


def test_a_failover_goes_neither_to_strangers_nor_to_other_zones():
    at = (Zone(name="a"), Zone(name="b"))
    hot = pool("hot", 4, 1, lost=0, at=at[:1])
    there = pool("there", 4, 1, lost=0, at=at[1:])
    pools = [hot, there]
    packing = pack(pools, 8)
    assert packing.node_count == 2
    assert room_for_failover(packing, pools, "hot") == 1
    apart = [replace(hot, zones=()), replace(there, zones=(), isolated=True)]
    assert room_for_failover(pack(apart, 8), apart, "hot") == 1
    assert room_for_failover(pack(apart, 8), apart, "there") == 1


@pytest.mark.parametrize("count", [2, 3, 5])
def test_zones_that_are_alike_are_filled_in_their_order(count):
    packing = pack([pool("chat", 3, 5, 1, at=zones("abcde"[:count]))], 8)
    sizes = [sum(node.node_count for node in packing.nodes_in(name)) for name in "abcde"[:count]]
    assert sizes == sorted(sizes, reverse=True)
