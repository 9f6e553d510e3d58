"""``pack``: the fleets of several scenarios on shared nodes, and whose bill the nodes are."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from tokenfleet import planner
from tokenfleet.app.compose import Teller
from tokenfleet.app.pack_ways import Part, Way, refuse_unpackable, ways_of
from tokenfleet.app.scenario import placed
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.yaml_lines import KeyPath
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.survival import Zone


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Pools of one gpu on nodes of one kind."""

    gpu: str
    price_usd_per_gpu_hour: float
    pools: tuple[planner.Pool, ...]
    packing: planner.Packing
    apart_node_count: int | None
    """Nodes if no pool shared any; ``None`` where the zones have no room for that."""
    free_by_zone: dict[str, int | None]
    """GPUs to be had in each zone beside those of all nodes; ``None``: as many as are wanted."""
    free_by_quota: dict[planner.Quota, int]
    """GPUs that each quota leaves beside those that are held under it, on nodes of all gpus."""

    @property
    def usd_per_hour(self) -> float:
        """Whole nodes, their free GPUs included."""
        return self.packing.node_count * self.packing.gpus_per_node_count * self.price_usd_per_gpu_hour

    def share_usd_per_hour(self, pool: planner.Pool) -> float:
        """What a pool pays: its GPUs, and of the free ones as much as its part of those in use."""
        used = sum(self.packing.replica_count(each.name) * each.gpu_count for each in self.pools)
        return self.usd_per_hour * self.packing.replica_count(pool.name) * pool.gpu_count / used

    @property
    def hottest_room_count(self) -> int:
        """Replicas of the hottest pool that find room beside what stands, if others' spare ones stop."""
        return planner.room_for_failover(
            self.packing, self.pools, self.hottest.name, quota_left_count=self._quota_left_count
        )

    @property
    def hottest_held_by(self) -> tuple[str, ...]:
        """What leaves the hottest pool no more room, in the words of a scenario; nothing where all of it has room."""
        if self.hottest_room_count >= self.hottest.carrying_count:
            return ()
        return planner.what_holds_failover(
            self.packing, self.pools, self.hottest.name, quota_left_count=self._quota_left_count
        )

    @property
    def _quota_left_count(self) -> int | None:
        quota = self.hottest.quota
        return None if quota is None else self.free_by_quota[quota]

    @property
    def more_nodes_for_hottest_count(self) -> int | None:
        """Empty nodes more with which all replicas that carry the hottest pool find room.

        ``None`` where zones have none, or its quota does not allow so many.
        """
        per_node = self.packing.gpus_per_node_count
        missing = max(0, self.hottest.carrying_count - self.hottest_room_count)
        if missing and not self._quota_allows_hottest:
            return None
        more = -(-missing // self.hottest.per_node_count(per_node))
        free = [gpus for zone, gpus in self.free_by_zone.items() if self.hottest.may_stand_in(zone)]
        limits = [gpus // per_node for gpus in free if gpus is not None]
        return more if len(limits) < len(free) or more <= sum(limits) else None

    @property
    def _quota_allows_hottest(self) -> bool:
        """Whether all that carry it could come if there were nodes enough, spare replicas under the quota stopped."""
        left = self._quota_left_count
        if left is None:
            return True
        for pool in self.pools:
            if pool.quota == self.hottest.quota and pool != self.hottest:
                left += (self.packing.replica_count(pool.name) - pool.carrying_count) * pool.gpu_count
        return left >= self.hottest.carrying_count * self.hottest.gpu_count

    @property
    def hottest(self) -> planner.Pool:
        """The pool with most GPUs in use: the one whose move would ask for most."""
        return max(self.pools, key=lambda pool: pool.carrying_count * pool.gpu_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """Scenarios for which the zones have no room, each or together."""

    scenarios: tuple[str, ...]
    """One that has none alone, or several that have none together: then nothing is packed."""
    short: tuple[planner.TooFewGpus, ...]
    """Limits that would do."""
    proved: bool
    """No fewer GPUs more would do; else the time was up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """All scenarios."""

    chosen: dict[str, Way]
    """Chosen together: the fleets and pools whose whole nodes cost least."""
    alone: dict[str, Way]
    """What is cheapest for each scenario, for itself."""
    alone_usd_per_hour: float | None
    """Whole nodes of those, packed as well as they can be; ``None`` where the zones have no room for them."""
    shared: tuple[Shared, ...]
    infeasible: dict[str, tuple[str, ...]]
    """Scenarios that no fleet serves, and why."""
    crowds: tuple[Crowd, ...]

    @property
    def parts(self) -> dict[str, Part]:
        """What was chosen, by name."""
        return {part.name: part for way in self.chosen.values() for part in way}

    @property
    def zones(self) -> tuple[Zone, ...]:
        """Where nodes may stand; none where no scenario that is packed names zones."""
        return tuple(zone for shared in self.shared[:1] for zone in shared.packing.zones if zone.name)

    def alone_of(self, part: Part) -> Part | None:
        """The same part where its scenario is cheapest; ``None`` where that has other pools."""
        return next((each for each in self.alone[part.scenario] if each.name == part.name), None)


def packed(
    scenarios: Sequence[Scenario],
    isolated: Sequence[str],
    teller: Teller,
    replay: planner.Replay | None = None,
    where: Sequence[Callable[[KeyPath], str]] = (),
) -> Packed:
    """Plans each scenario on each of its gpus, then takes the fleets that together need the cheapest whole nodes.

    Pools that a scenario names are sized as they are, each on its own gpu, and stand on nodes one by one; so do the
    pools of a plan that buys pools. A scenario for which its zones have no room even alone is left out.

    Args:
        scenarios: At least one.
        isolated: Scenarios and pools that share no node, by name.
        teller: Told what is being done.
        replay: Runs replays instead of the simulator.
        where: Of each scenario, where a key of it was written.

    Raises:
        BadInput: as for a plan; two scenarios of one name, an isolated one that is not among them, or two that
            contradict each other about a zone.
    """
    from tokenfleet import simulator

    _check_names(scenarios)
    refuse_unpackable(scenarios)
    simulator.warm_up(announce=teller.announce)
    ways: dict[str, list[Way]] = {}
    infeasible: dict[str, tuple[str, ...]] = {}
    for at, scenario in enumerate(scenarios):
        with placed(where[at]) if where else nullcontext():
            found, reasons = ways_of(scenario, teller, replay)
        if found:
            ways[scenario.name] = found
        else:
            infeasible[scenario.name] = reasons
    teller.say("packing nodes")
    asked = {scenario.name: scenario for scenario in scenarios}
    apart = _isolated(isolated, scenarios, ways)
    options = {
        name: [[part.option(asked[name], apart) for part in way] for way in found] for name, found in ways.items()
    }
    choice, crowds = _choice(options)
    chosen = {name: ways[name][at] for name, at in choice.items()}
    usual = [option for name in choice for option in options[name][0]]
    return Packed(
        chosen=chosen,
        alone={name: ways[name][0] for name in choice},
        alone_usd_per_hour=planner.nodes_usd_per_hour(usual),
        shared=_shared([option for name, at in choice.items() for option in options[name][at]]),
        infeasible=infeasible,
        crowds=crowds,
    )


def _choice(options: dict[str, list[list[planner.Option]]]) -> tuple[dict[str, int], tuple[Crowd, ...]]:
    """Which way serves each scenario that has room, and who has none; nothing is packed where only some would fit."""
    left = dict(options)
    crowds: list[Crowd] = []
    while left:
        found = planner.pack_together(list(left.values()))
        if found is not None:
            return dict(zip(left, found, strict=True)), tuple(crowds)
        conflict = planner.conflict(list(left.values()))
        names = tuple(list(left)[at] for at in conflict.places)
        crowds.append(Crowd(scenarios=names, short=conflict.short, proved=conflict.proved))
        left = {} if len(names) > 1 else {name: ways for name, ways in left.items() if name not in names}
    return {}, tuple(crowds)


def _check_names(scenarios: Sequence[Scenario]) -> None:
    names = [scenario.name for scenario in scenarios]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise BadInput.at("name", f"{', '.join(twice)} stands for several scenarios", "give each its own name")


def _isolated(names: Sequence[str], scenarios: Sequence[Scenario], ways: dict[str, list[Way]]) -> frozenset[str]:
    """Scenarios and pools that share with nobody.

    Raises:
        BadInput: a name of neither.
    """
    known = dict.fromkeys(
        [
            *(scenario.name for scenario in scenarios),
            *(part.name for found in ways.values() for way in found for part in way),
        ]
    )
    strangers = [name for name in names if name not in known]
    if strangers:
        what = f"no scenario or pool is called {strangers[0]}"
        raise BadInput.at("--isolate", what, f"there are {', '.join(known)}")
    return frozenset(names)


def _shared(chosen: Sequence[planner.Option]) -> tuple[Shared, ...]:
    """The nodes of each gpu."""
    gpus = dict.fromkeys(option.gpu for option in chosen)
    shelves = planner.shelves_of(chosen)
    packings = planner.pack_all(shelves)
    if packings is None:
        raise ValueError("fleets were chosen that have no room")
    apart = planner.pack_all([replace(shelf, pools=tuple(map(_alone, shelf.pools))) for shelf in shelves])
    zones, quotas = _free_by_zone(packings), _free_by_quota(shelves, packings)
    return tuple(
        Shared(
            gpu=gpu,
            price_usd_per_gpu_hour=shelf.usd_per_gpu_hour,
            pools=shelf.pools,
            packing=packing,
            apart_node_count=None if apart is None else apart[at].node_count,
            free_by_zone=zones,
            free_by_quota=quotas,
        )
        for at, (gpu, shelf, packing) in enumerate(zip(gpus, shelves, packings, strict=True))
    )


def _alone(pool: planner.Pool) -> planner.Pool:
    return replace(pool, isolated=True, owner=pool.name)


def _free_by_zone(packings: Sequence[planner.Packing]) -> dict[str, int | None]:
    zones = packings[0].zones if packings else ()
    taken = {
        zone.name: sum(
            node.node_count * packing.gpus_per_node_count
            for packing in packings
            for node in packing.nodes_in(zone.name)
        )
        for zone in zones
    }
    return {
        zone.name: None if zone.gpu_limit_count is None else zone.gpu_limit_count - taken[zone.name] for zone in zones
    }


def _free_by_quota(shelves: Sequence[planner.Shelf], packings: Sequence[planner.Packing]) -> dict[planner.Quota, int]:
    free: dict[planner.Quota, int] = {}
    for shelf, packing in zip(shelves, packings, strict=True):
        for pool in shelf.pools:
            if pool.quota is not None:
                held = packing.replica_count(pool.name) * pool.gpu_count
                free[pool.quota] = free.get(pool.quota, pool.quota.gpu_count) - held
    return free
