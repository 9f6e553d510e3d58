"""The pools of a fleet, one for each model it serves, the bounds of its groups, and who shares gpus with whom."""

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
    """Replicas of each model that is asked for, and of the smaller one where there is one."""
    sizes: dict[tuple[int, bool], int] = {}
    for group in fleet.groups:
        key = (group.pool, group.is_smaller_model)
        sizes[key] = sizes.get(key, 0) + group.replica_count
    return tuple(sizes.values())


def write_pools(memory: Buffer, pools: int, fleet: Fleet) -> None:
    """The pools from an index of the buffer on, all of them ready."""
    first = 0
    for row, size in enumerate(pool_sizes(fleet)):
        start = pools + row * at.POOL_WORDS
        memory[start + at.FIRST_REPLICA] = first
        memory[start + at.LAST_REPLICA] = first + size - 1
        memory[start + at.READY_COUNT] = size
        memory[start + at.TURN] = first
        first += size
    if any(group.is_smaller_model for group in fleet.groups):
        memory[at.SMALLER_AT] = pools + at.POOL_WORDS


def berth_numbers(fleet: Fleet) -> list[int | None]:
    """The berth of each replica, ``None`` for those that have their gpus to themselves."""
    return [
        None if group.berth is None else group.berth + number
        for group in fleet.groups
        for number in range(group.replica_count)
    ]


def berth_words(fleet: Fleet) -> int:
    """Words of the berths of all replicas, and of the clocks of the gpus behind them; none where nobody shares."""
    numbers = berth_numbers(fleet)
    clocks = len({number for number in numbers if number is not None})
    return len(numbers) * at.BERTH_WORDS + clocks if clocks else 0


def write_berths(memory: Buffer, berths: int, fleet: Fleet) -> None:
    """Which clock each replica goes by, from an index of the buffer on; the gpus are free."""
    numbers = berth_numbers(fleet)
    shared = sorted({number for number in numbers if number is not None})
    for replica, number in enumerate(numbers):
        if number is not None:
            clock = berths + len(numbers) * at.BERTH_WORDS + shared.index(number)
            memory[berths + replica * at.BERTH_WORDS + at.FREE_AT] = clock
