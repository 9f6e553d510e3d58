"""One world around pools that are replayed at once, from the worlds around each of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import Happening, World
from tokenfleet.simulator.pools import berth_numbers

Worlds = Callable[[str, Trace], World | None]
"""The world around a pool, by its name and the calls to it; ``None``: a quiet one."""
OF_GPUS = ("fail", "ready", "back", "slow")
"""What becomes of the gpus that a replica stands on, and so of all replicas there."""


def gathered(worlds: Worlds, names: Sequence[str], calls: Sequence[Trace], fleet: Fleet) -> World | None:
    """What happens around all pools of a fleet; ``None`` where all is quiet.

    Args:
        worlds: The world around each pool.
        names: The pools, in the order of their numbers.
        calls: The calls to each of them.
        fleet: With the pools as numbered groups.

    Raises:
        BadInput: worlds that cannot be one.
    """
    around = {name: worlds(name, mine) for name, mine in zip(names, calls, strict=True)}
    known = {name: world for name, world in around.items() if world is not None}
    if not known:
        return None
    problems = [problem for name, world in known.items() for problem in _problems(name, world)]
    first = next(iter(known.values()))
    for name, world in known.items():
        if (world.clients, world.admission) != (first.clients, first.admission):
            what = "clients or bounds of queues differ from those of other pools, and some of them share gpus"
            problems.append(Problem(name, what, "write them for the whole scenario"))
    if problems:
        raise BadInput(problems)
    sizes = [sum(group.replica_count for group in fleet.groups if group.pool == number) for number in range(len(names))]
    begins = {name: sum(sizes[:number]) for number, name in enumerate(names)}
    happenings = [
        _on_gpus(replace(each, replicas=tuple(begins[name] + number for number in each.replicas)), fleet)
        for name, world in known.items()
        for each in world.happenings
    ]
    absent = [begins[name] + number for name, world in known.items() for number in world.absent]
    happenings.sort(key=lambda each: each.time_s)
    # What a client reads holds no call up: the next one is made by the chain.
    clients = replace(first.clients, read_tokens_per_s=None)
    return World(happenings=tuple(happenings), absent=tuple(absent), clients=clients, admission=first.admission)


def _problems(name: str, world: World) -> list[Problem]:
    """What a world has that pools which share gpus cannot have around them."""
    have = [
        what
        for what, is_there in (
            ("a controller", world.controller is not None),
            ("a batch lane", world.lane is not None),
            ("clients that come back", world.clients.attempt_count > 1),
        )
        if is_there
    ]
    return [
        Problem(name, f"{what}, and pools of the system share gpus", "give each pool its own gpus") for what in have
    ]


def _on_gpus(happening: Happening, fleet: Fleet) -> Happening:
    """A happening that strikes gpus strikes all replicas that stand on them."""
    if happening.kind not in OF_GPUS:
        return happening
    berths = berth_numbers(fleet)
    struck = {berths[number] for number in happening.replicas} - {None}
    beside = (number for number, berth in enumerate(berths) if berth in struck)
    return replace(happening, replicas=tuple(sorted({*happening.replicas, *beside})))
