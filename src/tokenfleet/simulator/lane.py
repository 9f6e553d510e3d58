"""The batch lane at the gateway: first come first served, sent when its window is open and a replica has room.

Each pool has its own. One request at most is on its way to a replica; once it is sent, the next one tries. Whoever
finds no room goes back to the head of the lane, until a request ends or a replica becomes ready.
"""

from tokenfleet.control import lanes
from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.late import push_late
from tokenfleet.simulator.layout import (
    BATCH_IN_FLIGHT,
    CALLED,
    DOOR_AT,
    FIRST_ARRIVAL,
    HAS_LANE,
    LANE_FIRST,
    LANE_LAST,
    LANE_OPEN_FOR,
    LANE_OPENS,
    NONE,
    NUMBER,
    ON_ITS_WAY,
    READY,
    SCRAPE_WORDS,
    SCRAPES_AT,
    WHO,
)
from tokenfleet.simulator.memory import Memory, next_in_queue, set_next_in_queue
from tokenfleet.simulator.routing import somebody_serves
from tokenfleet.simulator.visits import pool_called, visit_of

PS_PER_US = 1_000_000

until_open_us = compiled(lanes.until_open_us)


@compiled
def has_lane(memory: Memory) -> bool:
    """Whether batch requests wait in a lane of their own."""
    return memory[DOOR_AT] != NONE and memory[memory[DOOR_AT] + HAS_LANE] != 0


@compiled
def is_batch(memory: Memory, request: int) -> bool:
    """Whether a request is batch; only where there is a world."""
    return memory[visit_of(memory, request) + WHO] & 1 == 1


@compiled
def join_lane(memory: Memory, pool: int, request: int) -> None:
    """Behind all that wait for a pool."""
    set_next_in_queue(memory, request, NONE)
    if memory[pool + LANE_FIRST] == NONE:
        memory[pool + LANE_FIRST] = request
    else:
        set_next_in_queue(memory, memory[pool + LANE_LAST], request)
    memory[pool + LANE_LAST] = request


@compiled
def head_lane(memory: Memory, pool: int, request: int) -> None:
    """In front of all that wait for a pool."""
    set_next_in_queue(memory, request, memory[pool + LANE_FIRST])
    if memory[pool + LANE_FIRST] == NONE:
        memory[pool + LANE_LAST] = request
    memory[pool + LANE_FIRST] = request


@compiled
def leave_lane(memory: Memory, pool: int) -> int:
    """The first that waits for a pool waits no more; ``NONE`` where nobody does."""
    request = memory[pool + LANE_FIRST]
    if request != NONE:
        memory[pool + LANE_FIRST] = next_in_queue(memory, request)
        set_next_in_queue(memory, request, NONE)
    return request


@compiled
def waits_in_lane(memory: Memory, request: int) -> bool:
    """A batch request arrives, from its client or from the lane: whether it waits, for others, its window, or room."""
    lane = memory[DOOR_AT]
    visit = visit_of(memory, request)
    pool = memory[visit + CALLED]
    now_ps = memory[request + READY]
    if memory[visit + FIRST_ARRIVAL] < 0:
        memory[visit + FIRST_ARRIVAL] = now_ps
    if memory[pool + ON_ITS_WAY] == request:
        memory[pool + ON_ITS_WAY] = NONE
    elif memory[pool + LANE_FIRST] != NONE or memory[pool + ON_ITS_WAY] != NONE:
        join_lane(memory, pool, request)
        return True
    wait_us = until_open_us(now_ps // PS_PER_US, memory[lane + LANE_OPENS], memory[lane + LANE_OPEN_FOR])
    if wait_us > 0:
        memory[pool + ON_ITS_WAY] = request
        push_late(memory, request, now_ps + wait_us * PS_PER_US)
        return True
    if somebody_serves(memory, request):
        return False
    head_lane(memory, pool, request)
    return True


@compiled
def release_next(memory: Memory, pool: int, now_ps: int) -> None:
    """There may be room in a pool: the first that waits for it tries."""
    if memory[pool + ON_ITS_WAY] != NONE or memory[pool + LANE_FIRST] == NONE:
        return
    request = leave_lane(memory, pool)
    memory[pool + ON_ITS_WAY] = request
    push_late(memory, request, now_ps + 1)


@compiled
def leave_slot(memory: Memory, replica: int, request: int, time_ps: int) -> None:
    """A request is in flight at a replica no more: there may be room for batch."""
    if not has_lane(memory):
        return
    if is_batch(memory, request):
        memory[memory[SCRAPES_AT] + memory[replica + NUMBER] * SCRAPE_WORDS + BATCH_IN_FLIGHT] -= 1
    release_next(memory, pool_called(memory, request), time_ps)
