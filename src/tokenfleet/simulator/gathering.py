"""One world around pools that are replayed at once, from the worlds around each of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.trace import Trace, rows_of
from tokenfleet.domain.world import Happening, World
from tokenfleet.simulator.pools import berth_numbers
from tokenfleet.simulator.ways import Calls

Worlds = Callable[[str, Trace], World | None]
"""The world around a pool, by its name and the calls to it; ``None``: a quiet one."""
OF_GPUS = ("fail", "ready", "back", "slow")
"""What becomes of the gpus that a replica stands on, and so of all replicas there."""


def gathered(worlds: Worlds, names: Sequence[str], rows: Trace, calls: Calls, fleet: Fleet) -> World | None:
    """What happens around all pools of a fleet; ``None`` where all is quiet.

    Args:
        worlds: The world around each pool.
        names: The pools, in the order of their numbers.
        rows: All calls.
        calls: Who makes each of them.
        fleet: With the pools as numbered groups.

    Raises:
        BadInput: worlds that cannot be one.
    """
    around = {name: worlds(name, rows_of(rows, calls.pool == number)) for number, name in enumerate(names)}
    known = {name: world for name, world in around.items() if world is not None}
    if not known:
        return None
    first = check_alike(known)
    sizes = [sum(group.replica_count for group in fleet.groups if group.pool == number) for number in range(len(names))]
    begins = {name: sum(sizes[:number]) for number, name in enumerate(names)}
    happenings = [
        _on_gpus(replace(each, replicas=tuple(begins[name] + number for number in each.replicas)), fleet)
        for name, world in known.items()
        for each in world.happenings
    ]
    absent = [begins[name] + number for name, world in known.items() for number in world.absent]
    happenings.sort(key=lambda each: each.time_s)
    lane = next((world.lane for world in known.values() if world.lane is not None), None)
    batch = np.zeros(len(calls.pool), dtype=np.bool_)
    for number, name in enumerate(names):
        if name in known and known[name].batch is not None:
            batch[calls.pool == number] = known[name].batch
    batch[~calls.is_call] = batch[calls.likeness]
    return World(
        happenings=tuple(happenings),
        absent=tuple(absent),
        # What a client reads holds no call up: the next one is made by the chain.
        clients=replace(first.clients, read_tokens_per_s=None),
        admission=first.admission,
        lane=lane,
        batch=None if lane is None else batch,
    )


def check_alike(known: Mapping[str, World]) -> World:
    """Refuse worlds that cannot be one.

    Returns:
        The one whose clients and bounds of queues hold for all: where there is a lane and nothing else, they are of no
        concern.

    Raises:
        BadInput: all that is in the way.
    """
    problems = []
    stormy = {name: world for name, world in known.items() if replace(world, batch=None, lane=None) != World()}
    first = next(iter(stormy.values()), World())
    lanes = {world.lane for world in known.values() if world.lane is not None}
    for name, world in known.items():
        if world.controller is not None:
            what = "a controller, and pools of the system share gpus"
            problems.append(Problem(name, what, "give each pool its own gpus"))
        if name in stormy and (world.clients, world.admission) != (first.clients, first.admission):
            what = "clients or bounds of queues differ from those of other pools, and some of them share gpus"
            problems.append(Problem(name, what, "write them for the whole scenario"))
    if len(lanes) > 1:
        what = f"{len(lanes)} lanes for batch, and pools of the system share gpus"
        problems.append(Problem("lane", what, "give all pools the same"))
    if problems:
        raise BadInput(problems)
    return first


def _on_gpus(happening: Happening, fleet: Fleet) -> Happening:
    """A happening that strikes gpus strikes all replicas that stand on them."""
    if happening.kind not in OF_GPUS:
        return happening
    berths = berth_numbers(fleet)
    struck = {berths[number] for number in happening.replicas} - {None}
    beside = (number for number, berth in enumerate(berths) if berth in struck)
    return replace(happening, replicas=tuple(sorted({*happening.replicas, *beside})))
