"""The batch lane at the gateway: first come first served, sent when its window is open and a replica has room.

One request at most is on its way to a replica; once it is sent, the next one tries. Whoever finds no room goes back to
the head of the lane, until a request ends or a replica becomes ready.
"""

from tokenfleet.control import lanes
from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.late import push_late
from tokenfleet.simulator.layout import (
    BATCH_IN_FLIGHT,
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
from tokenfleet.simulator.visits import visit_of

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
def join_lane(memory: Memory, request: int) -> None:
    """Behind all that wait."""
    lane = memory[DOOR_AT]
    set_next_in_queue(memory, request, NONE)
    if memory[lane + LANE_FIRST] == NONE:
        memory[lane + LANE_FIRST] = request
    else:
        set_next_in_queue(memory, memory[lane + LANE_LAST], request)
    memory[lane + LANE_LAST] = request


@compiled
def head_lane(memory: Memory, request: int) -> None:
    """In front of all that wait."""
    lane = memory[DOOR_AT]
    set_next_in_queue(memory, request, memory[lane + LANE_FIRST])
    if memory[lane + LANE_FIRST] == NONE:
        memory[lane + LANE_LAST] = request
    memory[lane + LANE_FIRST] = request


@compiled
def leave_lane(memory: Memory) -> int:
    """The first in the lane waits there no more; ``NONE`` where nobody waits."""
    lane = memory[DOOR_AT]
    request = memory[lane + LANE_FIRST]
    if request != NONE:
        memory[lane + LANE_FIRST] = next_in_queue(memory, request)
        set_next_in_queue(memory, request, NONE)
    return request


@compiled
def waits_in_lane(memory: Memory, request: int) -> bool:
    """A batch request arrives, from its client or from the lane: whether it waits, for others, its window, or room."""
    lane = memory[DOOR_AT]
    visit = visit_of(memory, request)
    now_ps = memory[request + READY]
    if memory[visit + FIRST_ARRIVAL] < 0:
        memory[visit + FIRST_ARRIVAL] = now_ps
    if memory[lane + ON_ITS_WAY] == request:
        memory[lane + ON_ITS_WAY] = NONE
    elif memory[lane + LANE_FIRST] != NONE or memory[lane + ON_ITS_WAY] != NONE:
        join_lane(memory, request)
        return True
    wait_us = until_open_us(now_ps // PS_PER_US, memory[lane + LANE_OPENS], memory[lane + LANE_OPEN_FOR])
    if wait_us > 0:
        memory[lane + ON_ITS_WAY] = request
        push_late(memory, request, now_ps + wait_us * PS_PER_US)
        return True
    if somebody_serves(memory, request):
        return False
    head_lane(memory, request)
    return True


@compiled
def release_next(memory: Memory, now_ps: int) -> None:
    """There may be room: the first in the lane tries."""
    lane = memory[DOOR_AT]
    if memory[lane + ON_ITS_WAY] != NONE or memory[lane + LANE_FIRST] == NONE:
        return
    request = leave_lane(memory)
    memory[lane + ON_ITS_WAY] = request
    push_late(memory, request, now_ps + 1)


@compiled
def leave_slot(memory: Memory, replica: int, request: int, time_ps: int) -> None:
    """A request is in flight at a replica no more: there may be room for batch."""
    if not has_lane(memory):
        return
    if is_batch(memory, request):
        memory[memory[SCRAPES_AT] + memory[replica + NUMBER] * SCRAPE_WORDS + BATCH_IN_FLIGHT] -= 1
    release_next(memory, time_ps)
