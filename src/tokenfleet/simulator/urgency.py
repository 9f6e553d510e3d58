"""Scheduling by priority, as vLLM does it: who waits is admitted by priority, then by arrival; nobody ages.

Where batch has a lane there are two levels, interactive and batch, and batch ages: after its patience it comes before
whoever arrives later.

A request keeps its place in the plain queue until it is ready. Then it waits in the list of its priority level, and
each level is in order of arrival. Who was preempted goes back to its place in that order, which is near the front.
"""

from tokenfleet.control import admission
from tokenfleet.simulator.compiling import compiled, compiled_apart
from tokenfleet.simulator.lane import PS_PER_US, is_batch
from tokenfleet.simulator.layout import (
    BY_LANE,
    BY_PRIORITY,
    CLOCK,
    DOOR_AT,
    ENDING,
    FIRST_RUNNING,
    GROUP,
    LEVEL_COUNT,
    LEVELS_AT,
    NONE,
    PATIENCE,
    QUEUE_HEAD,
    READY,
    REQUEST,
    RUNNING_NEXT,
    STATE,
)
from tokenfleet.simulator.memory import Memory, next_in_queue, priority_level, set_next_in_queue

queue_turn = compiled(admission.queue_turn)


@compiled
def came_before(memory: Memory, request: int, other: int) -> bool:
    """Whether a request was ready before another; the row decides between two that were ready at once."""
    if memory[request + READY] == memory[other + READY]:
        return request < other
    return memory[request + READY] < memory[other + READY]


@compiled
def wait_in_level(memory: Memory, replica: int, request: int) -> None:
    """Put a request into the list of its level, by arrival."""
    ends = memory[replica + LEVELS_AT] + 2 * priority_level(memory, request)
    before = memory[ends + 1]
    if before == NONE or not came_before(memory, before, request):
        before = NONE
        after = memory[ends]
        while after != NONE and came_before(memory, after, request):
            before = after
            after = next_in_queue(memory, after)
    else:
        after = NONE
    set_next_in_queue(memory, request, after)
    if before == NONE:
        memory[ends] = request
    else:
        set_next_in_queue(memory, before, request)
    if after == NONE:
        memory[ends + 1] = request


@compiled
def sort_ready(memory: Memory, replica: int) -> None:
    """Move the requests that are ready by now from the queue to their levels."""
    request = memory[replica + QUEUE_HEAD]
    while request != NONE and memory[request + READY] <= memory[replica + CLOCK]:
        after = next_in_queue(memory, request)
        memory[replica + QUEUE_HEAD] = after
        wait_in_level(memory, replica, request)
        request = after


@compiled
def turn_us(memory: Memory, request: int) -> int:
    """Place of a request in the queue where batch has a lane, lowest first."""
    return queue_turn(
        memory[request + READY] // PS_PER_US, is_batch(memory, request), memory[memory[DOOR_AT] + PATIENCE]
    )


@compiled
def comes_later(memory: Memory, request: int, other: int) -> bool:
    """Whether a request is less urgent than another, where batch has a lane."""
    turn, others_turn = turn_us(memory, request), turn_us(memory, other)
    if turn != others_turn:
        return turn > others_turn
    if is_batch(memory, request) != is_batch(memory, other):
        return is_batch(memory, request)
    return came_before(memory, other, request)


@compiled
def first_in_lanes(memory: Memory, replica: int) -> int:
    """The request to be admitted next where batch has a lane, or ``NONE``."""
    first = NONE
    for level in range(memory[LEVEL_COUNT]):
        request = memory[memory[replica + LEVELS_AT] + 2 * level]
        if request != NONE and (first == NONE or comes_later(memory, first, request)):
            first = request
    return first


@compiled
def first_interactive(memory: Memory, replica: int) -> int:
    """The interactive request that has waited for longest, or ``NONE``."""
    for level in range(memory[LEVEL_COUNT]):
        request = memory[memory[replica + LEVELS_AT] + 2 * level]
        if request != NONE and not is_batch(memory, request):
            return request
    return NONE


@compiled
def lanes_meet(memory: Memory, replica: int) -> bool:
    """Whether an interactive request waits where batch runs or waits: who comes first may change with time."""
    if first_interactive(memory, replica) == NONE:
        return False
    for level in range(memory[LEVEL_COUNT]):
        request = memory[memory[replica + LEVELS_AT] + 2 * level]
        if request != NONE and is_batch(memory, request):
            return True
    sequence = memory[replica + FIRST_RUNNING]
    while sequence != NONE and not is_batch(memory, memory[sequence + REQUEST]):
        sequence = memory[sequence + RUNNING_NEXT]
    return sequence != NONE


@compiled
def last_batch(memory: Memory, replica: int, request: int) -> int:
    """The least urgent running batch sequence of those that give way to a waiting request, or ``NONE``."""
    found = NONE
    sequence = memory[replica + FIRST_RUNNING]
    while sequence != NONE:
        other = memory[sequence + REQUEST]
        gives_way = is_batch(memory, other) and turn_us(memory, other) > turn_us(memory, request)
        if not gives_way or memory[sequence + STATE] == ENDING:
            sequence = memory[sequence + RUNNING_NEXT]
            continue
        if found == NONE or comes_later(memory, other, memory[found + REQUEST]):
            found = sequence
        sequence = memory[sequence + RUNNING_NEXT]
    return found


@compiled_apart
def most_urgent(memory: Memory, replica: int) -> int:
    """The request to be admitted next, or ``NONE``."""
    if memory[memory[replica + GROUP] + BY_PRIORITY] == BY_LANE:
        return first_in_lanes(memory, replica)
    for level in range(memory[LEVEL_COUNT]):
        request = memory[memory[replica + LEVELS_AT] + 2 * level]
        if request != NONE:
            return request
    return NONE


@compiled
def waiting_in_levels(memory: Memory, replica: int) -> int:
    """Requests in all levels, counted up to 2."""
    count = 0
    for level in range(memory[LEVEL_COUNT]):
        request = memory[memory[replica + LEVELS_AT] + 2 * level]
        while request != NONE and count < 2:
            count += 1
            request = next_in_queue(memory, request)
    return count


@compiled
def leave_level(memory: Memory, replica: int, request: int) -> None:
    """The first of a level leaves it."""
    ends = memory[replica + LEVELS_AT] + 2 * priority_level(memory, request)
    memory[ends] = next_in_queue(memory, request)
    if memory[ends] == NONE:
        memory[ends + 1] = NONE


@compiled
def queue_levels(memory: Memory, replica: int) -> None:
    """Put all levels in front of the plain queue, when it does not matter any more who is first."""
    for level in range(memory[LEVEL_COUNT]):
        ends = memory[replica + LEVELS_AT] + 2 * level
        if memory[ends] != NONE:
            set_next_in_queue(memory, memory[ends + 1], memory[replica + QUEUE_HEAD])
            memory[replica + QUEUE_HEAD] = memory[ends]


@compiled
def least_urgent(memory: Memory, replica: int) -> int:
    """The running sequence to be preempted first: of the last priority that runs, the one that arrived last."""
    in_lanes = memory[memory[replica + GROUP] + BY_PRIORITY] == BY_LANE
    found = memory[replica + FIRST_RUNNING]
    sequence = memory[found + RUNNING_NEXT]
    while sequence != NONE:
        request = memory[sequence + REQUEST]
        other = memory[found + REQUEST]
        level = priority_level(memory, request) - priority_level(memory, other)
        if in_lanes:
            level = 1 if comes_later(memory, request, other) else -1
        if level > 0 or (level == 0 and came_before(memory, other, request)):
            found = sequence
        sequence = memory[sequence + RUNNING_NEXT]
    return found
