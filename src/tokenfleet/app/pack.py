"""``pack``: the fleets of several scenarios on shared nodes, and whose bill the nodes are."""

from collections.abc import Iterator, Sequence

from tokenfleet import catalog, planner
from tokenfleet.app.compose import Teller
from tokenfleet.app.pack_ways import Part, Way, refuse_unpackable, ways_of
from tokenfleet.app.quantities import shown_usd
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.summary import Block, deployment_name
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Pools of one gpu on nodes of one kind."""

    gpu: str
    price_usd_per_gpu_hour: float
    pools: tuple[planner.Pool, ...]
    packing: planner.Packing
    apart_node_count: int
    """Nodes if no pool shared any."""

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
        return planner.room_for_failover(self.packing, self.pools, self.hottest.name)

    @property
    def more_nodes_for_hottest_count(self) -> int:
        """Empty nodes more with which all replicas that carry the hottest pool find room."""
        each = self.packing.gpus_per_node_count // self.hottest.gpu_count
        return -(-(self.hottest.carrying_count - min(self.hottest.carrying_count, self.hottest_room_count)) // each)

    @property
    def hottest(self) -> planner.Pool:
        """The pool with most GPUs in use: the one whose move would ask for most."""
        return max(self.pools, key=lambda pool: pool.carrying_count * pool.gpu_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """All scenarios."""

    chosen: dict[str, Way]
    """Chosen together: the fleets and pools whose whole nodes cost least."""
    alone: dict[str, Way]
    """What is cheapest for each scenario, for itself."""
    alone_usd_per_hour: float
    """Whole nodes of those, packed as well as they can be."""
    shared: tuple[Shared, ...]
    infeasible: dict[str, tuple[str, ...]]
    """Scenarios that no fleet serves, and why."""

    @property
    def parts(self) -> dict[str, Part]:
        """What was chosen, by name."""
        return {part.name: part for way in self.chosen.values() for part in way}

    def alone_of(self, part: Part) -> Part | None:
        """The same part where its scenario is cheapest; ``None`` where that has other pools."""
        return next((each for each in self.alone[part.scenario] if each.name == part.name), None)


def packed(
    scenarios: Sequence[Scenario], isolated: Sequence[str], teller: Teller, replay: planner.Replay | None = None
) -> Packed:
    """Plans each scenario on each of its gpus, then takes the fleets that together need the cheapest whole nodes.

    Pools that a scenario names are sized as they are, each on its own gpu, and stand on nodes one by one; so do the
    pools of a plan that buys pools.

    Raises:
        BadInput: as for a plan; two scenarios of one name, an isolated one that is not among them, or one that is to
            survive more than a node.
    """
    from tokenfleet import simulator

    _check_names(scenarios)
    refuse_unpackable(scenarios)
    simulator.warm_up(announce=teller.announce)
    ways: dict[str, list[Way]] = {}
    infeasible: dict[str, tuple[str, ...]] = {}
    for scenario in scenarios:
        found, reasons = ways_of(scenario, teller, replay)
        if found:
            ways[scenario.name] = found
        else:
            infeasible[scenario.name] = reasons
    teller.say("packing nodes")
    asked = {scenario.name: scenario for scenario in scenarios}
    apart = _isolated(isolated, scenarios, ways)
    options = [[[part.option(asked[name], apart) for part in way] for way in found] for name, found in ways.items()]
    choice = planner.pack_together(options) if options else ()
    chosen = {name: found[at] for (name, found), at in zip(ways.items(), choice, strict=True)}
    parts = [part for way in chosen.values() for part in way]
    gpus = dict.fromkeys(part.deployment.gpu for part in parts)
    return Packed(
        chosen=chosen,
        alone={name: found[0] for name, found in ways.items()},
        alone_usd_per_hour=planner.nodes_usd_per_hour([option for each in options for option in each[0]]),
        shared=tuple(
            _shared(gpu, [part for part in parts if part.deployment.gpu == gpu], asked, apart) for gpu in gpus
        ),
        infeasible=infeasible,
    )


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


def _shared(gpu: str, parts: Sequence[Part], asked: dict[str, Scenario], isolated: frozenset[str]) -> Shared:
    pools = tuple(part.pool(asked[part.scenario], isolated) for part in parts)
    per_node = catalog.gpu(gpu).gpus_per_node_count
    return Shared(
        gpu=gpu,
        price_usd_per_gpu_hour=max(part.price.price_usd_per_gpu_hour for part in parts),
        pools=pools,
        packing=planner.pack(pools, per_node),
        apart_node_count=sum(planner.pack([pool], per_node).node_count for pool in pools),
    )


def pack_document(found: Packed) -> dict[str, object]:
    """For machines."""
    return {
        "nodes": [_document(shared, found) for shared in found.shared],
        "usd_per_hour": sum(shared.usd_per_hour for shared in found.shared),
        "alone_usd_per_hour": found.alone_usd_per_hour,
        "infeasible": {name: list(reasons) for name, reasons in found.infeasible.items()},
    }


def _document(shared: Shared, found: Packed) -> dict[str, object]:
    packing, hottest = shared.packing, shared.hottest
    return {
        "gpu": shared.gpu,
        "gpus_per_node_count": packing.gpus_per_node_count,
        "node_count": packing.node_count,
        "apart_node_count": shared.apart_node_count,
        "proved": packing.proved,
        "free_gpu_count": packing.free_gpu_count(shared.pools),
        "usd_per_hour": shared.usd_per_hour,
        "mixes": [{"node_count": node.node_count, "replicas": node.replicas} for node in packing.nodes],
        "pools": [_pool_document(pool, shared, found) for pool in shared.pools],
        "failover": {
            "pool": hottest.name,
            "replica_count": shared.hottest_room_count,
            "wanted_count": hottest.carrying_count,
            "more_node_count": shared.more_nodes_for_hottest_count,
        },
    }


def _pool_document(pool: planner.Pool, shared: Shared, found: Packed) -> dict[str, object]:
    part, packing = found.parts[pool.name], shared.packing
    alone = found.alone_of(part)
    return {
        "name": pool.name,
        "scenario": part.scenario,
        "model": part.deployment.model,
        "gpu_count_per_replica": pool.gpu_count,
        "replica_count": packing.replica_count(pool.name),
        "carrying_replica_count": pool.carrying_count,
        "lost_with_a_node_count": packing.lost_with_a_node(pool.name),
        "survives_node": _survives(packing, pool),
        "neighbours": list(packing.neighbours(pool.name)),
        "usd_per_hour": shared.share_usd_per_hour(pool),
        "usd_per_hour_alone": None if alone is None else alone.price_usd_per_hour,
        "gpu_alone": None if alone is None else alone.deployment.gpu,
    }


def _survives(packing: planner.Packing, pool: planner.Pool) -> bool:
    return packing.replica_count(pool.name) - packing.lost_with_a_node(pool.name) >= pool.carrying_count


def pack_blocks(found: Packed) -> list[Block]:
    """The same for a person."""
    blocks: list[Block] = []
    for shared in found.shared:
        blocks.append(("Nodes", list(_nodes(shared))))
        blocks.append(("Pools", [_pool_line(shared, pool, found) for pool in shared.pools]))
        blocks.append(("Move", [_failover(shared)]))
    if found.shared:
        blocks.append(("Cost", list(_cost(found))))
    blocks += [("Without", [f"{name}: no fleet keeps its promise", *why]) for name, why in found.infeasible.items()]
    return blocks


def _cost(found: Packed) -> Iterator[str]:
    total = sum(shared.usd_per_hour for shared in found.shared)
    yield f"{shown_usd(total)}/h for whole nodes, whatever stays free on them"
    for name, way in found.chosen.items():
        usual = found.alone[name]
        if way != usual:
            yield f"{name} alone would be cheapest on {_gpus(usual)}; beside the others it is on {_gpus(way)}"
    saved = found.alone_usd_per_hour - total
    if saved > 0.005:
        yield f"{shown_usd(saved)}/h less than the cheapest fleet of each, packed as well as they can be"


def _gpus(way: Way) -> str:
    """Which gpus, pool by pool where there are several."""
    if len(way) == 1:
        return way[0].deployment.gpu
    return ", ".join(f"{part.deployment.gpu} ({part.name.removeprefix(f'{part.scenario}.')})" for part in way)


def _nodes(shared: Shared) -> Iterator[str]:
    packing = shared.packing
    free = packing.free_gpu_count(shared.pools)
    best = "" if packing.proved else "; the search ran out of time, fewer may do"
    saved = shared.apart_node_count - packing.node_count
    less = f", {saved} fewer than apart" if saved > 0 else ", as many as apart"
    nodes = f"{_plural(packing.node_count, 'node')} of {packing.gpus_per_node_count} x {shared.gpu}"
    yield (
        f"{nodes}{less}; {_plural(free, 'GPU')} stay free{best}" if free else f"{nodes}{less}; no GPU stays free{best}"
    )
    for node in packing.nodes:
        held = ", ".join(f"{count} {name}" for name, count in node.replicas.items())
        yield f"{node.node_count} x ({held})"


def _pool_line(shared: Shared, pool: planner.Pool, found: Packed) -> str:
    packing = shared.packing
    lost = packing.lost_with_a_node(pool.name)
    keeps = "keeps its promise" if _survives(packing, pool) else "breaks its promise"
    beside = packing.neighbours(pool.name)
    shares = f"shares nodes with {', '.join(beside)}" if beside else "alone on its nodes"
    deployment = found.parts[pool.name].deployment
    carry = "carries" if pool.carrying_count == 1 else "carry"
    replicas = f"{_plural(packing.replica_count(pool.name), 'replica')} of {deployment_name(deployment)}"
    return (
        f"{pool.name}: {replicas}, {pool.carrying_count} {carry}; a lost node takes {lost} and it {keeps}; {shares}; "
        f"{shown_usd(shared.share_usd_per_hour(pool))}/h"
    )


def _failover(shared: Shared) -> str:
    pool, more = shared.hottest, shared.more_nodes_for_hottest_count
    usd = more * shared.packing.gpus_per_node_count * shared.price_usd_per_gpu_hour
    room = "all" if not more else f"{shared.hottest_room_count} of the"
    rest = f"; {_plural(more, 'node')} more ({shown_usd(usd)}/h) would hold them all" if more else ""
    return (
        f"if {pool.name} came over from another region: room for {room} "
        f"{pool.carrying_count} replicas that carry it, in free GPUs and those of spare replicas, while every other "
        f"pool keeps its promise; they would have to start first{rest}"
    )


def _plural(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"
