"""When users of several pools send their requests, found in one replay of all pools on one clock.

Replayed pool after pool, it is found once more for each time that users wait and send. This foresees what these
replays end with, so that they only have to confirm it. It may be wrong where requests come to nothing on their way or
routers draw lots; then the replays find out as they do without it.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.stages import Call, Pools, Wait
from tokenfleet.domain.trace import Floats, Trace, rows_of
from tokenfleet.domain.world import BY_CLOCK, ClosedLoop, World
from tokenfleet.simulator.building import PS_PER_S
from tokenfleet.simulator.gathering import Worlds
from tokenfleet.simulator.passing import to_ps_column
from tokenfleet.simulator.replaying import replay
from tokenfleet.simulator.together import Calls, calls_of_all, side_by_side

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
    by_clock = np.asarray(users.after) == BY_CLOCK
    calls = calls_of_all(trace, pools, by_clock)
    opens = np.flatnonzero(np.diff(calls.caller, prepend=-1))
    closes = np.flatnonzero(np.diff(calls.caller, append=-1))
    stages = [stage for stage in pools.stages if isinstance(stage, Call)]
    at_ends = {*calls.pool[opens].tolist(), *calls.pool[closes].tolist()}
    crowded = any(stages[number].call_count > 1 for number in at_ends)
    if crowded or len(opens) < trace.request_count or waits_behind_s(trace, pools).any():
        return None
    rows = rows_of_calls(trace, stages, calls)
    if any(worlds(stage.pool, rows_of(rows, calls.pool == number)) for number, stage in enumerate(stages)):
        return None
    fleet = side_by_side([pools.fleets[stage.pool] for stage in stages])
    world = World(calls=calls.pool.astype(np.int32), closed_loop=with_users(calls, users, opens, closes))
    try:
        first_s = replay(rows, fleet, world=world).arrival_s[opens]
    except BadInput:
        # What is wrong with a pool is said when it is replayed by its name.
        return None
    found_ps = to_ps_column(trace.arrival_s)
    waits = ~by_clock[calls.caller[opens]]
    came_ps = to_ps_column(first_s) - whole_ps(calls.loop.delay_s[opens])
    found_ps[calls.caller[opens][waits]] = np.where(np.isnan(first_s), -1, came_ps)[waits]
    return found_ps


def is_plain(pools: Pools) -> bool:
    """Whether there are calls alone, and waits between them, and one router for all pools."""
    routers = {(fleet.router, fleet.scrape_s) for fleet in pools.fleets.values()}
    calls = [stage for stage in pools.stages if isinstance(stage, Call)]
    odd = [stage for stage in pools.stages if not isinstance(stage, (Call, Wait))]
    apart = any(stage.kv_delivered or stage.is_announced for stage in calls)
    return not odd and not apart and len(routers) == 1 and not pools.shares_gpus


def waits_behind_s(trace: Trace, pools: Pools) -> Floats:
    """What each request waits for when all its calls are answered."""
    left_s = np.zeros(trace.request_count)
    for stage in pools.stages:
        if isinstance(stage, Wait):
            left_s += np.where(stage.takes, stage.duration_s, 0.0)
        else:
            left_s[stage.takes] = 0.0
    return left_s


def rows_of_calls(trace: Trace, stages: list[Call], calls: Calls) -> Trace:
    """The calls as requests."""
    rows = replace(rows_of(trace, calls.caller), arrival_s=calls.arrival_s, kv_delivered=None)
    inputs, outputs = rows.input_tokens.copy(), rows.output_tokens.copy()
    node = None if rows.prefix_node is None else rows.prefix_node.copy()
    for number, stage in enumerate(stages):
        mine = calls.pool == number
        inputs[mine], outputs[mine] = stage.input_tokens[calls.caller[mine]], stage.output_tokens[calls.caller[mine]]
        if node is not None and not stage.shares_prefixes:
            node[mine] = -1
    return replace(rows, input_tokens=inputs, output_tokens=outputs, prefix_node=node, class_bits=None, classes=())


def whole_ps(times_s: Floats) -> Buffer:
    """Seconds as picoseconds."""
    return np.rint(times_s * PS_PER_S).astype(np.int64)


def with_users(calls: Calls, users: ClosedLoop, opens: Buffer, closes: Buffer) -> ClosedLoop:
    """The ways of the requests, whose first calls wait for the last ones of others.

    Args:
        calls: All of them.
        users: Who waits for whom.
        opens: The first call of each request.
        closes: The last one.
    """
    asked = calls.caller[opens]
    last_of = np.empty(len(opens), dtype=np.int64)
    last_of[asked] = closes
    cause = np.asarray(users.after)[asked]
    after, delay_s = calls.loop.after.copy(), calls.loop.delay_s.copy()
    after[opens] = np.where(cause >= 0, last_of[cause], cause)
    delay_s[opens] += np.maximum(1, whole_ps(np.asarray(users.delay_s)[asked])) / PS_PER_S
    return replace(calls.loop, after=after, delay_s=delay_s, only_after_success=len(opens) < len(after), at_once=True)
