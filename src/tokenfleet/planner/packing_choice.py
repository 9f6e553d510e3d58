"""Which fleet of each scenario to put on shared nodes: the choice whose whole nodes are cheapest."""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass
from tokenfleet.planner.packing import Packing, Pool, Shelf, hang_together, pack_all

_MOST_CHOICES = 20_000
_SAME_USD = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One fleet that serves a scenario, or one pool of it."""

    gpu: str
    gpus_per_node_count: int
    usd_per_gpu_hour: float
    pool: Pool

    @property
    def least_usd_per_hour(self) -> float:
        """Price of the fewest replicas that it can have: no packing is cheaper."""
        return self.pool.gpu_count * self.pool.least_count * self.usd_per_gpu_hour


Ways = Sequence[Sequence[Sequence[Option]]]
"""Of each scenario, the ways to serve it: one fleet, or several pools."""
_Known = dict[tuple[Shelf, ...], tuple[Packing, ...] | None]


def pack_together(ways: Ways) -> tuple[int, ...] | None:
    """Which way to serve each scenario makes the whole nodes of all of them cheapest.

    A fleet that is dearer alone may share nodes that others leave half empty. Choices are packed in order of what their
    replicas cost, until that alone is more than the cheapest nodes found.

    Args:
        ways: Of each scenario, the ways to serve it.

    Returns:
        The place of the way chosen in each list; of equal prices, the choice whose replicas cost less. ``None`` where
        the zones have no room for any choice.

    Raises:
        BadInput: as for :func:`pack_all`, or more choices than can be tried.
    """
    if any(not each for each in ways):
        raise ValueError("a scenario without a fleet cannot be packed")
    best: tuple[float, tuple[int, ...]] | None = None
    known: _Known = {}
    for choice, chosen in choices(ways):
        if best is not None and _least_usd_per_hour(chosen) >= best[0]:
            break
        usd = _usd_per_hour(shelves_of(chosen), known)
        if usd is not None and (best is None or usd < best[0] - _SAME_USD):
            best = usd, choice
    return None if best is None else best[1]


def nodes_usd_per_hour(chosen: Sequence[Option]) -> float | None:
    """Price of the whole nodes that hold these fleets, each gpu on nodes of its own; ``None`` where no room is."""
    return _usd_per_hour(shelves_of(chosen), {})


def shelves_of(chosen: Sequence[Option]) -> tuple[Shelf, ...]:
    """These fleets by the gpu of their nodes, in the order in which the gpus come."""
    shelves = []
    for gpu in dict.fromkeys(option.gpu for option in chosen):
        mine = [option for option in chosen if option.gpu == gpu]
        shelves.append(
            Shelf(
                gpus_per_node_count=mine[0].gpus_per_node_count,
                usd_per_gpu_hour=max(option.usd_per_gpu_hour for option in mine),
                pools=tuple(option.pool for option in mine),
            )
        )
    return tuple(shelves)


def _usd_per_hour(shelves: tuple[Shelf, ...], known: _Known) -> float | None:
    """Price of all nodes; each gpu is asked for once where what stands on others leaves it no less."""
    together = hang_together([pool for shelf in shelves for pool in shelf.pools])
    total = 0.0
    for part in [shelves] if together else [(shelf,) for shelf in shelves]:
        if part not in known:
            known[part] = pack_all(part, sparing=False)
        packed = known[part]
        if packed is None:
            return None
        for found, shelf in zip(packed, part, strict=True):
            total += found.node_count * found.gpus_per_node_count * shelf.usd_per_gpu_hour
    return total


def choices(ways: Ways) -> Iterator[tuple[tuple[int, ...], list[Option]]]:
    """Every choice, in order of what its replicas cost at least.

    Raises:
        BadInput: more of them than can be tried.
    """
    count = int(np.prod([float(len(each)) for each in ways]))
    if count > _MOST_CHOICES:
        what = f"{len(ways)} scenarios have {count:,} choices of fleets together"
        raise BadInput.at("gpus", what, "name fewer gpus in each scenario")

    def chosen(choice: tuple[int, ...]) -> list[Option]:
        return [option for each, at in zip(ways, choice, strict=True) for option in each[at]]

    every = product(*(range(len(each)) for each in ways))
    for choice in sorted(every, key=lambda choice: (_least_usd_per_hour(chosen(choice)), choice)):
        yield choice, chosen(choice)


def _least_usd_per_hour(chosen: Sequence[Option]) -> float:
    return sum(option.least_usd_per_hour for option in chosen)
