"""Arrivals that no clock foresees, in a binary heap: second attempts, and requests that follow the end of another.

The first is the one with the earliest time, among equals the one whose row comes first.
"""

from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import ALARM_PS, LATE_AT, LATE_COUNT, LATE_PS, NEVER_PS, NONE, READY
from tokenfleet.simulator.memory import Memory


@compiled
def comes_first(memory: Memory, entry: int, time_ps: int, request: int) -> bool:
    """Whether an entry of the heap comes before a request at a time."""
    return memory[entry] < time_ps or (memory[entry] == time_ps and memory[entry + 1] < request)


@compiled
def put_entry(memory: Memory, entry: int, time_ps: int, request: int) -> None:
    """Write an entry of the heap."""
    memory[entry] = time_ps
    memory[entry + 1] = request


@compiled
def note_earliest(memory: Memory) -> None:
    """The first arrival of the heap or the first alarm has changed."""
    arrival_ps = memory[memory[LATE_AT]] if memory[LATE_COUNT] > 0 else NEVER_PS
    memory[LATE_PS] = min(arrival_ps, memory[ALARM_PS])


@compiled
def push_late(memory: Memory, request: int, time_ps: int) -> None:
    """A request will arrive at a time."""
    heap = memory[LATE_AT]
    place = memory[LATE_COUNT]
    memory[LATE_COUNT] += 1
    memory[request + READY] = time_ps
    while place > 0:
        above = (place - 1) >> 1
        entry = heap + 2 * above
        if comes_first(memory, entry, time_ps, request):
            break
        put_entry(memory, heap + 2 * place, memory[entry], memory[entry + 1])
        place = above
    put_entry(memory, heap + 2 * place, time_ps, request)
    note_earliest(memory)


@compiled
def pop_late(memory: Memory) -> int:
    """Take out the request that arrives first; ``NONE`` when an alarm rings before."""
    heap = memory[LATE_AT]
    if memory[LATE_COUNT] == 0 or memory[heap] > memory[ALARM_PS]:
        return NONE
    first = memory[heap + 1]
    count = memory[LATE_COUNT] - 1
    memory[LATE_COUNT] = count
    time_ps = memory[heap + 2 * count]
    request = memory[heap + 2 * count + 1]
    place = 0
    while 2 * place + 1 < count:
        below = 2 * place + 1
        entry = heap + 2 * below
        if below + 1 < count and comes_first(memory, entry + 2, memory[entry], memory[entry + 1]):
            entry += 2
            below += 1
        if not comes_first(memory, entry, time_ps, request):
            break
        put_entry(memory, heap + 2 * place, memory[entry], memory[entry + 1])
        place = below
    put_entry(memory, heap + 2 * place, time_ps, request)
    note_earliest(memory)
    return first
