"""The pools of a fleet, one for each model it serves, and the bounds of its groups."""

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.fleet import Fleet
from tokenfleet.simulator import layout as at

Buffer = npt.NDArray[np.int64]


def bounds_of(fleet: Fleet, levels: npt.NDArray[np.integer]) -> tuple[Buffer, Buffer]:
    """Of each replica, the largest value that it serves by length or by tier, and the rank of its group by that.

    Args:
        fleet: Whose groups have bounds.
        levels: The priorities that occur, rising.
    """
    bounds = [at.UNLIMITED if group.up_to is None else group.up_to for group in fleet.groups]
    order = sorted(set(bounds))
    ranks = [order.index(bound) for bound in bounds]
    if fleet.router == "by_tier":
        # Requests carry the place of their priority among those that occur; a bound below all serves nobody.
        bounds = [int(np.searchsorted(levels, bound, side="right")) - 1 for bound in bounds]
    counts = [group.replica_count for group in fleet.groups]
    return np.repeat(bounds, counts), np.repeat(ranks, counts)


def pool_sizes(fleet: Fleet) -> tuple[int, ...]:
    """Replicas of the model that is asked for, and of the smaller one where there is one."""
    sizes = [sum(g.replica_count for g in fleet.groups if g.is_smaller_model == smaller) for smaller in (False, True)]
    return tuple(size for size in sizes if size > 0)


def write_pools(memory: Buffer, pools: int, fleet: Fleet) -> None:
    """The pools from an index of the buffer on, all of them ready."""
    first = 0
    for row, size in enumerate(pool_sizes(fleet)):
        start = pools + row * at.POOL_WORDS
        memory[start + at.FIRST_REPLICA] = first
        memory[start + at.LAST_REPLICA] = first + size - 1
        memory[start + at.READY_COUNT] = size
        memory[start + at.TURN] = first
        if row == 1:
            memory[at.SMALLER_AT] = start
        first += size
