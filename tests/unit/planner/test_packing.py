from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.survival import Zone
from tokenfleet.planner import (
    Option,
    PackedNode,
    Packing,
    Pool,
    Quota,
    nodes_usd_per_hour,
    pack,
    pack_together,
    room_for_failover,
    what_holds_failover,
)


def pool(name, gpus, carrying, spare=1, **more):
    return Pool(name=name, gpu_count=gpus, carrying_count=carrying, spare_count=spare, **more)


def check(packing, pools):
    for node in packing.nodes:
        held = sum(each.gpu_count * node.replicas.get(each.name, 0) for each in pools)
        assert held <= packing.gpus_per_node_count
    for each in pools:
        assert packing.replica_count(each.name) >= each.carrying_count + each.spare_count
        lost = packing.lost_with_nodes(each.name, each.node_count)
        assert packing.replica_count(each.name) - lost >= each.carrying_count


def test_pools_fill_the_gaps_of_each_other():
    pools = [pool("big", 5, 2, spare=0), pool("small", 3, 2, spare=0)]
    packing = pack(pools, 8)
    check(packing, pools)
    assert packing.node_count == 2
    assert packing.free_gpu_count(pools) == 0
    assert packing.neighbours("big") == ("small",)
    assert packing.proved
    apart = [pool("big", 5, 2, spare=0, isolated=True), pool("small", 3, 2, spare=0)]
    assert pack(apart, 8).node_count == 3
    assert pack(apart, 8).neighbours("big") == ()
    assert pack(apart, 8).free_gpu_count(apart) == 8


def test_an_isolated_owner_keeps_its_pools_together():
    pools = [
        pool("desk.big", 5, 1, spare=0, isolated=True, owner="desk"),
        pool("desk.small", 3, 1, spare=0, isolated=True, owner="desk"),
        pool("other", 1, 1, spare=0),
    ]
    packing = pack(pools, 8)
    check(packing, pools)
    assert packing.node_count == 2
    assert packing.neighbours("desk.big") == ("desk.small",)
    assert packing.neighbours("other") == ()


def test_pools_of_one_way_are_taken_together():
    fleet = [option("h100_sxm", 2.0, 8, 1)]
    pools = [option("l40s", 1.0, 4, 1), option("h100_sxm", 2.0, 4, 1)]
    pools = [replace(each, pool=replace(each.pool, name=f"a.{at}")) for at, each in enumerate(pools)]
    other = [replace(option("l40s", 1.0, 4, 1), pool=pool("b", 4, 1, 0))]
    # Alone the pools need a node of each kind, for 24, and the fleet one for 16. Where the node of L40S is there for
    # the other scenario anyway both come to 24, and the replicas of the pools cost less.
    assert pack_together([[fleet, pools]]) == (0,)
    assert pack_together([[fleet, pools], [other]]) == (1, 0)


def test_sharing_makes_the_loss_of_a_node_cheap():
    alone = [pool("chat", 2, 3, spare=0, node_count=1)]
    # Two nodes with three replicas each, or four with one: two are fewer.
    assert pack(alone, 8).node_count == 2
    assert pack(alone, 8).replica_count("chat") == 6
    pools = [pool(name, 2, 3, spare=0, node_count=1) for name in ("chat", "search", "agents")]
    packing = pack(pools, 8)
    check(packing, pools)
    assert packing.node_count == 4
    assert sum(pack([each], 8).node_count for each in pools) == 6


def test_a_failover_finds_free_gpus_and_spare_replicas_and_starves_nobody():
    pools = [pool("hot", 2, 2), pool("batch", 4, 1, spare=2)]
    packing = pack(pools, 8)
    check(packing, pools)
    free = packing.free_gpu_count(pools)
    spare = 4 * (packing.replica_count("batch") - 1)
    assert room_for_failover(packing, pools, "hot") == (free + spare) // 2
    full = [pool("hot", 4, 1, spare=0), pool("other", 4, 1, spare=0)]
    assert room_for_failover(pack(full, 8), full, "hot") == 0
    assert what_holds_failover(pack(full, 8), full, "hot") == ("gpus",)


@pytest.mark.parametrize(
    ("changes", "left", "held"),
    [
        ({"most_per_node_count": 2}, None, "replicas_per_node"),
        ({"quota": Quota(scenario="hot", gpu_count=2)}, 0, "gpu_quota"),
        ({"zones": (Zone(name="a", weights=False), Zone(name="b")), "zone_count": 1}, None, "zones"),
    ],
)
def test_what_leaves_a_failover_no_more_room_is_named(changes, left, held):
    """One replica of its own, six GPUs free beside it: whatever keeps others away is what would have to change."""
    hot = replace(pool("hot", 1, 2, spare=0), **changes)
    others = pool("other", 1, 1, spare=0)
    node = PackedNode(node_count=1, replicas={"hot": 2, "other": 1}, zone="a")
    packing = Packing(gpus_per_node_count=8, nodes=(node,), proved=True)
    assert room_for_failover(packing, (hot, others), "hot", quota_left_count=left) == 0
    assert what_holds_failover(packing, (hot, others), "hot", quota_left_count=left) == (held,)
    free = replace(hot, most_per_node_count=None, quota=None, zones=())
    assert room_for_failover(packing, (free, others), "hot") == 5


def test_who_is_isolated_is_kept_away_by_that():
    pools = (replace(pool("hot", 1, 2, spare=0), isolated=True), pool("other", 1, 1, spare=0))
    node = PackedNode(node_count=1, replicas={"hot": 2, "other": 1})
    packing = Packing(gpus_per_node_count=8, nodes=(node,), proved=True)
    assert room_for_failover(packing, pools, "hot") == 0
    assert what_holds_failover(packing, pools, "hot") == ("isolation",)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=2
    )
)
def test_no_brute_force_finds_fewer_nodes(drawn):
    pools = [
        pool(str(index), gpus, carrying, spare, node_count=lost)
        for index, (gpus, carrying, spare, lost) in enumerate(drawn)
    ]
    packing = pack(pools, 6)
    check(packing, pools)
    assert packing.proved
    mixes = [
        mix
        for mix in product(*(range(6 // each.gpu_count + 1) for each in pools))
        if sum(n * each.gpu_count for n, each in zip(mix, pools, strict=True)) <= 6
    ]

    def enough(nodes):
        for index, each in enumerate(pools):
            held = [node[index] for node in nodes]
            if sum(held) < each.carrying_count + each.spare_count:
                return False
            if sum(sorted(held)[: len(held) - each.node_count]) < each.carrying_count:
                return False
        return True

    fewer = packing.node_count - 1
    if fewer <= 3:
        assert not any(enough(nodes) for nodes in product(mixes, repeat=fewer))


def test_what_no_node_holds_is_bad_input():
    with pytest.raises(BadInput, match="takes 16 GPUs"):
        pack([pool("huge", 16, 1)], 8)
    with pytest.raises(BadInput, match="several pools"):
        pack([pool("chat", 1, 1), pool("chat", 2, 1)], 8)
    with pytest.raises(BadInput, match="too many ways"):
        pack([pool(str(number), 1, 1) for number in range(8)], 8)


def option(gpu, usd, gpus, carrying, spare=0, **how):
    return Option(gpu=gpu, gpus_per_node_count=8, usd_per_gpu_hour=usd, pool=pool("", gpus, carrying, spare, **how))


def ways(options):
    """Each fleet as the only pool of its way."""
    return [[(each,) for each in those] for those in options]


def named(options):
    """The same, each scenario's pool by its own name."""
    return [
        [replace(each, pool=replace(each.pool, name=str(at))) for each in those] for at, those in enumerate(options)
    ]


def test_a_fleet_that_is_dearer_alone_fills_nodes_that_others_leave_half_empty():
    small = [option("l40s", 1.0, 1, 3), option("h100_sxm", 2.0, 1, 2)]
    large = [option("h100_sxm", 2.0, 2, 2), option("l40s", 1.0, 8, 4)]
    options = named([small, large])
    # Apart: a node of eight L40S for three, and one of eight H100 for four. The H100 node has room for both.
    assert nodes_usd_per_hour([options[0][0], options[1][0]]) == 8.0 + 16.0
    assert pack_together(ways(options)) == (1, 0)
    assert nodes_usd_per_hour([options[0][1], options[1][0]]) == 16.0


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from(["l40s", "h100_sxm"]), st.integers(1, 4), st.integers(1, 4)),
            min_size=1,
            max_size=2,
        ),
        min_size=1,
        max_size=3,
    )
)
def test_no_other_choice_of_fleets_needs_cheaper_nodes(drawn):
    usd = {"l40s": 1.0, "h100_sxm": 2.5}
    options = named([[option(gpu, usd[gpu], gpus, carrying) for gpu, gpus, carrying in those] for those in drawn])
    chosen = nodes_usd_per_hour([those[at] for those, at in zip(options, pack_together(ways(options)), strict=True)])
    assert chosen == pytest.approx(min(nodes_usd_per_hour(choice) for choice in product(*options)))


def test_more_choices_than_can_be_tried_are_bad_input():
    with pytest.raises(BadInput, match="choices of fleets"):
        pack_together(ways(named([[option("l40s", 1.0, 1, 1)] * 12] * 5)))
