"""Pools that a plan bought stand where that plan put them, whoever replays it."""

from dataclasses import replace

from tokenfleet.app.planned_pools import PlannedPools
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.survival import Redundancy, Zone
from unit.planner import toy

UNEVEN = Redundancy(
    zone_count=1,
    zones=(
        Zone(name="a", gpu_limit_count=4),
        Zone(name="b", gpu_limit_count=2),
        Zone(name="c", gpu_limit_count=2),
    ),
)


def planned(stand: dict[str, dict[str, int]]) -> PlannedPools:
    fleet = Fleet(
        groups=(ReplicaGroup(replica=toy.replica(tensor_parallel=2), replica_count=2),),
        router="least_work",
    )
    return PlannedPools(
        fleets=dict.fromkeys(stand, fleet),
        does=dict.fromkeys(stand, "answers"),
        takes=dict.fromkeys(stand),
        handover=None,
        carrying=dict.fromkeys(stand, 1),
        stand=stand,
    )


def limits(pools: PlannedPools, losses: Redundancy) -> dict[str, list[int | None]]:
    return {name: [zone.gpu_limit_count for zone in zones] for name, zones in pools.zones_of(losses).items()}


def test_pools_have_the_zones_that_their_plan_dealt_them() -> None:
    pools = planned({"short": {"a": 1, "c": 1}, "long": {"a": 1, "b": 1}})
    assert limits(pools, UNEVEN) == {"short": [2, 0, 2], "long": [2, 2, 0]}


def test_where_a_plan_does_not_say_or_zones_have_changed_they_are_dealt_anew() -> None:
    anew = {"short": [2, 2, 0], "long": [2, 0, 2]}
    assert limits(planned({"short": {}, "long": {}}), UNEVEN) == anew
    renamed = {"short": {"x": 1, "c": 1}, "long": {"x": 1, "b": 1}}
    assert limits(planned(renamed), UNEVEN) == anew
    free = replace(UNEVEN, zones=(Zone(name="a"), Zone(name="b")))
    assert limits(planned({"short": {"a": 1, "c": 1}, "long": {"a": 1, "b": 1}}), free) == {
        "short": [None, None],
        "long": [None, None],
    }
