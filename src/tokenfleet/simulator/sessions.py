"""Open sessions, as a door counts them: those with a request in flight, and those idle for less than a while."""

from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    DOOR_AT,
    EARLIER_IDLE,
    FIRST_IDLE,
    IS_OPEN,
    LAST_END,
    LAST_IDLE,
    LATER_IDLE,
    NONE,
    OPEN_SESSIONS,
    SESSION,
    SESSION_IDLE,
    SESSION_IN_FLIGHT,
)
from tokenfleet.simulator.memory import Memory
from tokenfleet.simulator.visits import visit_of


@compiled
def leave_idle(memory: Memory, door: int, session: int) -> None:
    """A session is idle no more."""
    earlier, later = memory[session + EARLIER_IDLE], memory[session + LATER_IDLE]
    if earlier == NONE:
        memory[door + FIRST_IDLE] = later
    else:
        memory[earlier + LATER_IDLE] = later
    if later == NONE:
        memory[door + LAST_IDLE] = earlier
    else:
        memory[later + EARLIER_IDLE] = earlier


@compiled
def open_sessions(memory: Memory, door: int, now_ps: int) -> int:
    """Sessions that are open; those idle for too long are closed first, and the longest idle is the first in line."""
    session = memory[door + FIRST_IDLE]
    while session != NONE and memory[session + LAST_END] + memory[door + SESSION_IDLE] <= now_ps:
        leave_idle(memory, door, session)
        memory[session + IS_OPEN] = 0
        memory[door + OPEN_SESSIONS] -= 1
        session = memory[door + FIRST_IDLE]
    return memory[door + OPEN_SESSIONS]


@compiled
def opens_session(memory: Memory, request: int) -> bool:
    """Whether a request belongs to no session that is open."""
    session = memory[visit_of(memory, request) + SESSION]
    return session == NONE or memory[session + IS_OPEN] == 0


@compiled
def begin_in_session(memory: Memory, request: int) -> None:
    """A replica takes a request."""
    door = memory[DOOR_AT]
    if door == NONE:
        return
    session = memory[visit_of(memory, request) + SESSION]
    if session == NONE:
        memory[door + OPEN_SESSIONS] += 1
        return
    if memory[session + IS_OPEN] == 0:
        memory[session + IS_OPEN] = 1
        memory[door + OPEN_SESSIONS] += 1
    elif memory[session + SESSION_IN_FLIGHT] == 0:
        leave_idle(memory, door, session)
    memory[session + SESSION_IN_FLIGHT] += 1


@compiled
def end_in_session(memory: Memory, request: int, time_ps: int) -> None:
    """A request that a replica took has ended, well or not. Ends come in order of time."""
    door = memory[DOOR_AT]
    if door == NONE:
        return
    session = memory[visit_of(memory, request) + SESSION]
    if session == NONE:
        memory[door + OPEN_SESSIONS] -= 1
        return
    memory[session + SESSION_IN_FLIGHT] -= 1
    if memory[session + SESSION_IN_FLIGHT] > 0:
        return
    memory[session + LAST_END] = time_ps
    last = memory[door + LAST_IDLE]
    memory[session + EARLIER_IDLE] = last
    memory[session + LATER_IDLE] = NONE
    if last == NONE:
        memory[door + FIRST_IDLE] = session
    else:
        memory[last + LATER_IDLE] = session
    memory[door + LAST_IDLE] = session
