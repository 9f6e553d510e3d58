from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.domain.survival import Redundancy, Zone
from tokenfleet.planner.placement import LOSSES, fewest_replicas, node_room, placed, survivors
from unit.planner import toy

TWO = toy.replica(tensor_parallel=2)
"""Two GPUs, four of these on a node of eight."""
ABC = (Zone(name="a"), Zone(name="b"), Zone(name="c"))


def left(redundancy, total, replica=TWO):
    """What the worst of each loss leaves, counted by trying every node and zone."""
    placement = placed(total, replica, redundancy)
    nodes = [total - node.replica_count for node in placement.nodes]
    alone = {zone.name for zone in redundancy.zones if zone.stands_alone}
    sizes = placement.by_zone
    zones = [sum(size for name, size in sizes.items() if name != gone and name in alone) for gone in sizes]
    return total - 1, min(nodes), min(zones)


def test_a_node_takes_all_its_replicas_with_it():
    wanted = Redundancy(node_count=1, replicas_per_node_count=4)
    assert node_room(TWO) == 4
    # Four on one node and one on another would leave one; five are spread as 3 and 2.
    assert [node.replica_count for node in placed(5, TWO, wanted).nodes] == [3, 2]
    assert fewest_replicas(3, TWO, wanted) == 6
    assert fewest_replicas(3, TWO, replace(wanted, replicas_per_node_count=1)) == 4
    assert fewest_replicas(3, TWO, Redundancy(replica_count=1)) == 4


def test_a_replica_that_fills_or_spans_nodes_is_alone_on_each():
    assert node_room(toy.replica(tensor_parallel=8)) == 1
    assert node_room(toy.replica(tensor_parallel=16)) == 1


def test_nodes_are_filled_only_as_far_as_their_loss_costs_nothing_more():
    thin = Redundancy(replica_count=1, node_count=1)
    assert fewest_replicas(1, TWO, thin) == 2
    assert [node.replica_count for node in placed(2, TWO, thin).nodes] == [1, 1]
    assert fewest_replicas(6, TWO, thin) == 7
    assert placed(7, TWO, replace(thin, replica_count=2)).replicas_per_node_count == 2
    # A lost zone takes two of six, so may a node.
    zones = replace(thin, zone_count=1, zones=ABC)
    assert fewest_replicas(4, TWO, zones) == 6
    assert [node.replica_count for node in placed(6, TWO, zones).nodes] == [2, 2, 2]
    # Nobody asks for the loss of a node: as few nodes as hold them.
    assert [node.replica_count for node in placed(5, TWO, Redundancy(replica_count=1)).nodes] == [3, 2]


def test_the_worst_zone_is_the_largest():
    wanted = Redundancy(zone_count=1, zones=ABC)
    assert fewest_replicas(4, TWO, wanted) == 6
    placement = placed(7, TWO, wanted)
    assert placement.by_zone == {"a": 3, "b": 2, "c": 2}
    assert survivors(placement, "zone", 1, ABC) == 4
    assert fewest_replicas(4, TWO, replace(wanted, zones=ABC[:2])) == 8


def test_a_zone_without_ingress_or_weights_is_no_survivor():
    lame = (*ABC[:2], Zone(name="c", ingress=False), Zone(name="d", weights=False))
    wanted = Redundancy(zone_count=1, zones=lame)
    assert set(placed(8, TWO, wanted).by_zone) == {"a", "b"}
    assert fewest_replicas(4, TWO, wanted) == 8
    assert fewest_replicas(1, TWO, replace(wanted, zones=lame[1:])) is None
    # Nobody asks for the loss of a zone: all of them hold replicas, and the worst loss leaves those that stand alone.
    anywhere = replace(wanted, zone_count=0)
    placement = placed(8, TWO, anywhere)
    assert set(placement.by_zone) == {"a", "b", "c", "d"}
    assert survivors(placement, "zone", 1, lame) == 2


def test_zones_with_too_few_gpus_make_the_spread_uneven_and_then_impossible():
    small = (Zone(name="a", gpu_limit_count=4), Zone(name="b"), Zone(name="c"))
    placement = placed(10, TWO, Redundancy(zones=small))
    assert placement.by_zone == {"a": 2, "b": 4, "c": 4}
    only = (Zone(name="a", gpu_limit_count=4), Zone(name="b", gpu_limit_count=6))
    assert placed(6, TWO, Redundancy(zones=only)) is None
    assert fewest_replicas(2, TWO, Redundancy(zone_count=1, zones=only)) == 4
    assert fewest_replicas(3, TWO, Redundancy(zone_count=1, zones=only)) is None


def test_zones_are_lost_two_at_a_time():
    wanted = Redundancy(zone_count=2, zones=ABC)
    assert fewest_replicas(2, TWO, wanted) == 6
    assert fewest_replicas(2, TWO, replace(wanted, zones=ABC[:2])) is None


@given(
    carrying=st.integers(1, 40),
    tensor_parallel=st.sampled_from([1, 2, 4, 8]),
    zones=st.integers(2, 5),
    asked=st.tuples(*[st.integers(0, 1)] * 3),
)
def test_the_smallest_fleet_survives_and_one_fewer_does_not(carrying, tensor_parallel, zones, asked):
    replica = toy.replica(tensor_parallel=tensor_parallel)
    wanted = Redundancy(
        replica_count=asked[0],
        node_count=asked[1],
        zone_count=asked[2],
        zones=tuple(Zone(name=str(number)) for number in range(zones)),
    )
    total = fewest_replicas(carrying, replica, wanted)

    def survives(count):
        return all(each >= carrying for each, want in zip(left(wanted, count, replica), asked, strict=True) if want)

    assert survives(total)
    assert total == carrying or not survives(total - 1)
    placement = placed(total, replica, wanted)
    assert placement.replica_count == total
    counted = [survivors(placement, kind, 1, wanted.zones) for kind in LOSSES]
    assert counted == list(left(wanted, total, replica))


def test_no_zone_no_node_no_replica_asked_for_is_no_spare():
    assert fewest_replicas(3, TWO, Redundancy()) == 3
