"""Scheduling by priority, as vLLM does it: who waits is admitted by priority, then by arrival; nobody ages.

A request keeps its place in the plain queue until it is ready. Then it waits in the list of its priority level, and
each level is in order of arrival. Who was preempted goes back to its place in that order, which is near the front.
"""

from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    CLOCK,
    FIRST_RUNNING,
    LEVEL_COUNT,
    LEVELS_AT,
    NONE,
    QUEUE_HEAD,
    READY,
    REQUEST,
    RUNNING_NEXT,
)
from tokenfleet.simulator.memory import Memory, next_in_queue, priority_level, set_next_in_queue


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
def most_urgent(memory: Memory, replica: int) -> int:
    """The request to be admitted next, or ``NONE``."""
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
    found = memory[replica + FIRST_RUNNING]
    sequence = memory[found + RUNNING_NEXT]
    while sequence != NONE:
        request = memory[sequence + REQUEST]
        other = memory[found + REQUEST]
        level = priority_level(memory, request) - priority_level(memory, other)
        if level > 0 or (level == 0 and came_before(memory, other, request)):
            found = sequence
        sequence = memory[sequence + RUNNING_NEXT]
    return found
