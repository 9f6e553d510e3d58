"""What ``pack`` says: for machines, and for a person."""

from collections.abc import Iterator

from tokenfleet import planner
from tokenfleet.app.pack import Crowd, Packed, Shared
from tokenfleet.app.pack_ways import Way
from tokenfleet.app.quantities import shown_usd
from tokenfleet.app.summary import Block, deployment_name

# ---- for machines


def pack_document(found: Packed) -> dict[str, object]:
    """Everything that was found, ready for JSON; ``null`` is unknown or not to be had, never 0."""
    crowded = {name: [_why(crowd)] for crowd in found.crowds for name in crowd.scenarios}
    return {
        "nodes": [_nodes_document(shared, found) for shared in found.shared],
        "zones": [
            {
                "name": zone.name,
                "gpu_limit_count": zone.gpu_limit_count,
                "node_count": _node_count(found, zone.name),
                "gpu_count": _gpu_count(found, zone.name),
            }
            for zone in found.zones
        ],
        "usd_per_hour": sum(shared.usd_per_hour for shared in found.shared),
        "alone_usd_per_hour": found.alone_usd_per_hour,
        "infeasible": {name: list(reasons) for name, reasons in found.infeasible.items()} | crowded,
        "no_room": [
            {
                "scenarios": list(crowd.scenarios),
                "zones": [
                    {
                        "name": short.zone,
                        "gpu_limit_count": short.gpu_limit_count,
                        "needed_gpu_count": short.needed_gpu_count,
                    }
                    for short in crowd.short
                ],
                "proved": crowd.proved,
                "relax": _relax(crowd),
            }
            for crowd in found.crowds
        ],
    }


def _nodes_document(shared: Shared, found: Packed) -> dict[str, object]:
    packing, hottest = shared.packing, shared.hottest
    return {
        "gpu": shared.gpu,
        "gpus_per_node_count": packing.gpus_per_node_count,
        "node_count": packing.node_count,
        "apart_node_count": shared.apart_node_count,
        "proved": packing.proved,
        "free_gpu_count": packing.free_gpu_count(shared.pools),
        "usd_per_hour": shared.usd_per_hour,
        "mixes": [
            {"zone": node.zone or None, "node_count": node.node_count, "replicas": node.replicas}
            for node in packing.nodes
        ],
        "pools": [_pool_document(pool, shared, found) for pool in shared.pools],
        "failover": {
            "pool": hottest.name,
            "replica_count": shared.hottest_room_count,
            "wanted_count": hottest.carrying_count,
            "held_by": list(shared.hottest_held_by),
            "more_node_count": shared.more_nodes_for_hottest_count,
        },
    }


def _pool_document(pool: planner.Pool, shared: Shared, found: Packed) -> dict[str, object]:
    part, packing = found.parts[pool.name], shared.packing
    alone = found.alone_of(part)
    losses = packing.zone_losses(pool) if found.zones else ()
    return {
        "name": pool.name,
        "scenario": part.scenario,
        "model": part.deployment.model,
        "gpu_count_per_replica": pool.gpu_count,
        "replica_count": packing.replica_count(pool.name),
        "carrying_replica_count": pool.carrying_count,
        "by_zone": packing.by_zone(pool.name) if found.zones else {},
        "lost_with_a_node_count": packing.lost_with_nodes(pool.name),
        "survives_node": _survives_node(packing, pool),
        "zone_losses": [
            {
                "zones": list(loss.zones),
                "serving_replica_count": loss.serving_count,
                "kept": loss.serving_count >= pool.left_count,
            }
            for loss in losses
        ],
        "survives_zone": all(loss.serving_count >= pool.left_count for loss in losses) if losses else None,
        "neighbours": list(packing.neighbours(pool.name)),
        "usd_per_hour": shared.share_usd_per_hour(pool),
        "usd_per_hour_alone": None if alone is None else alone.alone_usd_per_hour,
        "gpu_alone": None if alone is None else alone.deployment.gpu,
    }


def _survives_node(packing: planner.Packing, pool: planner.Pool) -> bool:
    return (
        packing.replica_count(pool.name) - packing.lost_with_nodes(pool.name, max(1, pool.node_count))
        >= pool.left_count
    )


def _node_count(found: Packed, zone: str) -> int:
    return sum(node.node_count for shared in found.shared for node in shared.packing.nodes_in(zone))


def _gpu_count(found: Packed, zone: str) -> int:
    return sum(
        node.node_count * shared.packing.gpus_per_node_count
        for shared in found.shared
        for node in shared.packing.nodes_in(zone)
    )


# ---- for a person


def pack_blocks(found: Packed) -> list[Block]:
    """The same for a person."""
    blocks: list[Block] = []
    for shared in found.shared:
        blocks.append(("Nodes", list(_nodes(shared))))
        blocks.append(("Pools", [_pool_line(shared, pool, found) for pool in shared.pools]))
        blocks.append(("Move", [_failover(shared)]))
    if found.zones:
        blocks.append(("Zones", [_zone_line(found, zone.name, zone.gpu_limit_count) for zone in found.zones]))
    if found.shared:
        blocks.append(("Cost", list(_cost(found))))
    blocks += [("Without", [f"{name}: no fleet keeps its promise", *why]) for name, why in found.infeasible.items()]
    blocks += [("No room", [_why(crowd), f"{_enough(crowd)}: {_relax(crowd)}"]) for crowd in found.crowds]
    return blocks


def _why(crowd: Crowd) -> str:
    names = _listed(crowd.scenarios)
    short = ", and ".join(
        f"{each.needed_gpu_count} GPUs in zone {each.zone}, which has {each.gpu_limit_count}" for each in crowd.short
    )
    if len(crowd.scenarios) == 1:
        return f"{names} has no room: whole nodes that keep its promise whatever may be lost take {short}"
    apart = (
        "each has room without the other" if len(crowd.scenarios) == 2 else "without any of them the others have room"
    )
    return f"{names} have no room together, {apart}: whole nodes for all scenarios take {short}"


def _enough(crowd: Crowd) -> str:
    return "enough" if crowd.proved else "enough (the search ran out of time, fewer GPUs may do)"


def _relax(crowd: Crowd) -> str:
    limits = _listed([f"gpu_limit: {each.needed_gpu_count} in zone {each.zone}" for each in crowd.short])
    others = "less redundancy" if len(crowd.scenarios) == 1 else "less redundancy, or one of them elsewhere"
    return f"{limits}; or {others}"


def _listed(texts: "tuple[str, ...] | list[str]") -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _cost(found: Packed) -> Iterator[str]:
    total = sum(shared.usd_per_hour for shared in found.shared)
    yield f"{shown_usd(total)}/h for whole nodes, whatever stays free on them"
    for name, way in found.chosen.items():
        usual = found.alone[name]
        if way != usual:
            yield f"{name} alone would be cheapest on {_gpus(usual)}; beside the others it is on {_gpus(way)}"
    if found.alone_usd_per_hour is None:
        yield "the zones have no room for the cheapest fleet of each"
    elif found.alone_usd_per_hour - total > 0.005:
        saved = shown_usd(found.alone_usd_per_hour - total)
        yield f"{saved}/h less than the cheapest fleet of each, packed as well as they can be"


def _gpus(way: Way) -> str:
    """Which gpus, pool by pool where there are several."""
    if len(way) == 1:
        return way[0].deployment.gpu
    return ", ".join(f"{part.deployment.gpu} ({part.name.removeprefix(f'{part.scenario}.')})" for part in way)


def _nodes(shared: Shared) -> Iterator[str]:
    packing = shared.packing
    free = packing.free_gpu_count(shared.pools)
    stay = f"{_plural(free, 'GPU')} {'stays' if free == 1 else 'stay'} free" if free else "no GPU stays free"
    best = "" if packing.proved else "; the search ran out of time, fewer may do"
    nodes = f"{_plural(packing.node_count, 'node')} of {packing.gpus_per_node_count} x {shared.gpu}"
    yield f"{nodes}{_apart(shared)}; {stay}{best}"
    for node in packing.nodes:
        held = ", ".join(f"{count} {name}" for name, count in node.replicas.items())
        yield f"{node.node_count} x ({held}){f' in zone {node.zone}' if node.zone else ''}"


def _apart(shared: Shared) -> str:
    if shared.apart_node_count is None:
        return "; apart they would have no room"
    saved = shared.apart_node_count - shared.packing.node_count
    return f", {saved} fewer than apart" if saved > 0 else ", as many as apart"


def _pool_line(shared: Shared, pool: planner.Pool, found: Packed) -> str:
    packing = shared.packing
    nodes = max(1, pool.node_count)
    lost = "a lost node takes" if nodes == 1 else f"{nodes} lost nodes take"
    keeps = _keeps(_survives_node(packing, pool))
    beside = packing.neighbours(pool.name)
    shares = f"shares nodes with {', '.join(beside)}" if beside else "alone on its nodes"
    deployment = found.parts[pool.name].deployment
    carry = "carries" if pool.carrying_count == 1 else "carry"
    replicas = f"{_plural(packing.replica_count(pool.name), 'replica')} of {deployment_name(deployment)}"
    return (
        f"{pool.name}: {replicas}, {pool.carrying_count} {carry}; {lost} "
        f"{packing.lost_with_nodes(pool.name, nodes)} and it {keeps}; "
        f"{_worst_zone(packing, pool) if found.zones else ''}{shares}; {shown_usd(shared.share_usd_per_hour(pool))}/h"
    )


def _worst_zone(packing: planner.Packing, pool: planner.Pool) -> str:
    losses = packing.zone_losses(pool)
    worst = min(loss.serving_count for loss in losses)
    lost = "a lost zone leaves" if pool.zone_count < 2 else f"{pool.zone_count} lost zones leave"
    return f"{lost} {worst} and it {_keeps(worst >= pool.left_count)}; "


def _keeps(kept: bool) -> str:
    return "keeps its promise" if kept else "breaks its promise"


def _zone_line(found: Packed, zone: str, limit: int | None) -> str:
    gpus = _gpu_count(found, zone)
    if not gpus:
        return f"{zone}: nothing stands there"
    held = f"{_plural(gpus, 'GPU')} of {limit}" if limit is not None else _plural(gpus, "GPU")
    left = ", ".join(
        f"{pool.name} {shared.packing.left_without(pool, [zone])} of {shared.packing.replica_count(pool.name)}"
        for shared in found.shared
        for pool in shared.pools
    )
    return f"{zone}: {_plural(_node_count(found, zone), 'node')}, {held}; lost, it leaves {left}"


def _failover(shared: Shared) -> str:
    pool, more = shared.hottest, shared.more_nodes_for_hottest_count
    room = "all" if shared.hottest_room_count >= pool.carrying_count else f"{shared.hottest_room_count} of the"
    if more is None:
        which = "its zones" if shared.hottest.quota is None else "its zones or its quota"
        rest = f"; {which} have no GPUs left for all of them"
    elif more:
        usd = more * shared.packing.gpus_per_node_count * shared.price_usd_per_gpu_hour
        rest = f"; {_plural(more, 'node')} more ({shown_usd(usd)}/h) would hold them all"
    else:
        rest = ""
    return (
        f"if {pool.name} came over from another region: room for {room} "
        f"{pool.carrying_count} replicas that carry it, in free GPUs and those of spare replicas, while every other "
        f"pool keeps its promise; they would have to start first{_held(shared)}{rest}"
    )


def _held(shared: Shared) -> str:
    """What leaves it no more room; empty where it has room, or where the GPUs are in use."""
    pool = shared.hottest
    said = {
        "replicas_per_node": f"replicas_per_node ({pool.most_per_node_count} at most on a node)",
        "gpu_quota": f"its gpu_quota of {0 if pool.quota is None else pool.quota.gpu_count}",
        "isolation": "isolation (strangers share no node)",
        "zones": "the zones that it may not stand in",
    }
    named = [said[each] for each in shared.hottest_held_by if each in said]
    return f"; what leaves no more room is {_listed(named)}" if named else ""


def _plural(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"
