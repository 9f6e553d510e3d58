"""When users of several pools send their requests, found in one replay of all pools on one clock.

Replayed pool after pool, it is found once more for each time that users wait and send. This foresees what these
replays end with, so that they only have to confirm it. It may be wrong where requests come to nothing on their way, two
come to a pool at the same moment or routers draw lots; then the replays find out as they do without it.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.stages import Call, Pools, Wait
from tokenfleet.domain.trace import Trace, rows_of
from tokenfleet.domain.world import BY_CLOCK, ClosedLoop, World
from tokenfleet.simulator.gathering import Worlds
from tokenfleet.simulator.passing import to_ps_column
from tokenfleet.simulator.replaying import replay
from tokenfleet.simulator.together import side_by_side
from tokenfleet.simulator.ways import calls_of_all, rows_of_calls

Buffer = npt.NDArray[np.int64]


def arrivals_foreseen_ps(trace: Trace, pools: Pools, worlds: Worlds, users: ClosedLoop) -> Buffer | None:
    """When each request will come, in picoseconds; -1 for those that are never sent.

    Args:
        trace: The requests.
        pools: A checked system.
        worlds: The world around each pool.
        users: Who waits for whom.

    Returns:
        ``None`` where one clock does not tell.
    """
    if not is_plain(pools) or users.end_count is not None:
        return None
    stages = [stage for stage in pools.stages if isinstance(stage, Call)]
    calls = calls_of_all(trace, pools, users)
    rows = replace(rows_of_calls(trace, stages, calls), class_bits=None, classes=())
    if any(worlds(stage.pool, rows_of(rows, calls.pool == number)) for number, stage in enumerate(stages)):
        return None
    fleet = side_by_side([pools.fleets[stage.pool] for stage in stages])
    world = World(calls=np.maximum(calls.pool, 0).astype(np.int32), closed_loop=calls.loop)
    try:
        came_s = replay(rows, fleet, world=world).arrival_s[calls.opens]
    except BadInput:
        # What is wrong with a pool is said when it is replayed by its name.
        return None
    found_ps = to_ps_column(trace.arrival_s)
    waits = np.asarray(users.after)[calls.caller[calls.opens]] != BY_CLOCK
    found_ps[calls.caller[calls.opens][waits]] = to_ps_column(came_s[waits])
    return found_ps


def is_plain(pools: Pools) -> bool:
    """Whether there are calls alone, and waits between them, and one router for all pools."""
    routers = {(fleet.router, fleet.scrape_s) for fleet in pools.fleets.values()}
    calls = [stage for stage in pools.stages if isinstance(stage, Call)]
    odd = [stage for stage in pools.stages if not isinstance(stage, (Call, Wait))]
    apart = any(stage.kv_delivered or stage.is_announced for stage in calls)
    return not odd and not apart and len(routers) == 1 and not pools.shares_gpus
