"""Where the replicas of a simulated fleet stand, so that a node or a zone can be lost."""

from collections.abc import Sequence
from difflib import get_close_matches
from itertools import count, islice

from tokenfleet import simulator
from tokenfleet.app.pools_fleet import NamedPool
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.world_types import EventSpec
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.records import dataclass
from tokenfleet.planner.housing import Room, rooms_at, rooms_of
from tokenfleet.planner.placement import placed


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node and who stands on it."""

    zone: str
    """Empty where the scenario names no zones."""
    replicas: tuple[int, ...]


def nodes_of(asked: Scenario, fleet: Fleet) -> tuple[Node, ...]:
    """The nodes of a fleet, group by group, as a plan places them: evenly over the zones, on as few as hold them.

    Numbers are dealt out in turn, so that the first replicas, with which a scaled fleet starts, stand apart.

    Raises:
        BadInput: the zones have no room for the fleet, or there can be no such fleet.
    """
    simulator.check_fleet(fleet)
    nodes: list[Node] = []
    first = 0
    for group in fleet.groups:
        placement = placed(group.replica_count, group.replica, asked.losses)
        if placement is None:
            what = f"no room for {group.replica_count} replicas on {group.replica.deployment.gpu}"
            raise BadInput.at("zones", what, "raise gpu_limit, or name another zone")
        numbers = {zone: iter(dealt) for zone, dealt in _dealt(placement.by_zone, first).items()}
        for node in placement.nodes:
            mine = tuple(islice(numbers[node.zone], node.replica_count))
            nodes.append(Node(zone=node.zone, replicas=mine))
        first += group.replica_count
    return tuple(nodes)


def in_its_zones(asked: Scenario, named: Sequence[NamedPool]) -> dict[str, Scenario]:
    """The scenario as each pool has it: with no more GPUs of each zone than all pools leave it there.

    Args:
        asked: A scenario with ``pools``.
        named: Its pools. Those beside others stand where these do; those that are scaled, which seldom have all their
            replicas at once, each on its own.

    Returns:
        By the name of each pool: ``asked`` itself where each on its own leaves room for the others.

    Raises:
        BadInput: the zones have no room for all pools.
    """
    own = [each for each in named if each.beside is None and each.scaling is None]
    counts = tuple(_usual_count(asked, each) for each in own)
    left = [each.left_count for each in own if each.left_count is not None]
    replicas, stand = [each.replica for each in own], [each.stands for each in own if each.stands is not None]
    rooms = rooms_at(replicas, stand, asked.losses) if own and len(stand) == len(own) else None
    rooms = rooms or rooms_of(replicas, counts, asked.losses, left if len(left) == len(own) else None)
    if rooms is None:
        said = " and ".join(f"{count} replicas of {each.name}" for each, count in zip(own, counts, strict=True))
        raise BadInput.at("zones", f"no room is found for {said} at once", "raise gpu_limit, or name another zone")
    found = dict.fromkeys((each.name for each in named), asked)
    found |= {each.name: _with_zones(asked, each, room) for each, room in zip(own, rooms, strict=True)}
    return {each.name: found[each.beside or each.name] for each in named}


def _usual_count(asked: Scenario, pool: NamedPool) -> int:
    """Replicas of a pool, those of a new version aside."""
    count = sum(group.replica_count for group in pool.fleet.groups)
    return count // 2 if any((each.what, each.pool) == ("rollout", pool.name) for each in asked.events) else count


def _with_zones(asked: Scenario, pool: NamedPool, room: Room) -> Scenario:
    """A new version has as much room again, where the old one stands."""
    if room.zones == asked.losses.zones:
        return asked
    sizes = [group.replica.deployment.layout.gpu_count * group.replica_count for group in pool.fleet.groups]
    of_old = room.count * pool.replica.deployment.layout.gpu_count
    limits = {zone.name: (zone.gpu_limit_count or 0) * max(sizes) // of_old for zone in room.zones}
    zones = (zone.model_copy(update={"gpu_limit": limits.get(zone.name, zone.gpu_limit)}) for zone in asked.zones)
    return asked.model_copy(update={"zones": list(zones)})


def _dealt(sizes: dict[str, int], first: int) -> dict[str, list[int]]:
    """Numbers from ``first`` on, one for each zone in turn while it has room."""
    dealt: dict[str, list[int]] = {zone: [] for zone in sizes}
    numbers = count(first)
    while any(len(dealt[zone]) < size for zone, size in sizes.items()):
        for zone, size in sizes.items():
            if len(dealt[zone]) < size:
                dealt[zone].append(next(numbers))
    return dealt


def struck(event: EventSpec, where: str, nodes: Sequence[Node]) -> tuple[int, ...] | Problem:
    """The replicas that an event strikes, or what is wrong with it."""
    replica_count = sum(len(node.replicas) for node in nodes)
    if event.zone is not None:
        zones = list(dict.fromkeys(node.zone for node in nodes))
        if event.zone in zones:
            return tuple(sorted(number for node in nodes if node.zone == event.zone for number in node.replicas))
        if zones == [""]:
            return Problem(f"{where}.zone", "the scenario names no zones", "write zones: [a, b, c]")
        near = get_close_matches(event.zone, zones, n=1, cutoff=0.0)[0]
        return Problem(f"{where}.zone", f'no replica stands in a zone called "{event.zone}"', f"nearest: {near}")
    if event.node is not None:
        if event.node < len(nodes):
            return nodes[event.node].replicas
        return Problem(f"{where}.node", f"there is no node {event.node}", f"0 to {len(nodes) - 1}")
    if max(event.numbers) >= replica_count:
        what = f"there is no replica {max(event.numbers)}"
        return Problem(f"{where}.replicas", what, f"0 to {replica_count - 1}")
    return event.numbers
