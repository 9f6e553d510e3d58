"""How long clients wait: the alarm of each request in flight, in a heap from which it is taken when the request ends.

Clients may give up when the first token has not come in time, or the last; users may leave after a time, or with one
of their output tokens; the door may refuse who has not been admitted by its deadline. One alarm per request stands for
the earliest of these.
"""

from tokenfleet.control import admission
from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.late import note_earliest
from tokenfleet.simulator.layout import (
    ALARM,
    ALARM_COUNT,
    ALARM_PLACE,
    ALARM_PS,
    ALARMS_AT,
    DEADLINE,
    DUE,
    FIRST_PATIENCE,
    FIRST_TOKEN,
    IS_STARTED,
    LEAVES,
    NEVER_PS,
    NONE,
    ORIGIN,
    PATIENCE_AT,
    PATIENCE_WORDS,
    READ_PS,
    READY,
    REQUEST,
    REQUEST_WORDS,
    REQUESTS_AT,
    SENT,
    SERVED_BY,
    STATUS_CANCELLED,
    STATUS_DEADLINE,
    STATUS_TIMED_OUT,
    STAYS,
    STAYS_TOKENS,
    VERDICT,
    WHOLE_PATIENCE,
)
from tokenfleet.simulator.memory import Memory, input_tokens, is_delivered, output_tokens

is_overdue = compiled(admission.is_overdue)

STAYS_ON = 0
"""Of :func:`verdict`: the client does not give up."""
READING = 1 << 40
"""Of ``VERDICT``: the answer is there, and its client still reads."""
NO_STEP = -1
"""Of :func:`leaving_step`: none of its steps."""


@compiled
def patience_of(memory: Memory, request: int) -> int:
    """The patience row of a request."""
    return memory[PATIENCE_AT] + (request - memory[REQUESTS_AT]) // REQUEST_WORDS * PATIENCE_WORDS


@compiled
def request_of(memory: Memory, row: int) -> int:
    """The request of a patience row."""
    return memory[REQUESTS_AT] + (row - memory[PATIENCE_AT]) // PATIENCE_WORDS * REQUEST_WORDS


# ---- the heap


@compiled
def rings_first(memory: Memory, row: int, other: int) -> bool:
    """Whether one alarm comes before another; at equal times that of the request whose row comes first."""
    return memory[row + ALARM] < memory[other + ALARM] or (memory[row + ALARM] == memory[other + ALARM] and row < other)


@compiled
def put_alarm(memory: Memory, place: int, row: int) -> None:
    """Write an entry of the heap."""
    memory[memory[ALARMS_AT] + place] = row
    memory[row + ALARM_PLACE] = place + 1


@compiled
def settle_alarm(memory: Memory, place: int, row: int) -> None:
    """Put an alarm where it belongs, from a place in the heap that is free."""
    heap = memory[ALARMS_AT]
    while place > 0 and rings_first(memory, row, memory[heap + ((place - 1) >> 1)]):
        put_alarm(memory, place, memory[heap + ((place - 1) >> 1)])
        place = (place - 1) >> 1
    count = memory[ALARM_COUNT]
    while 2 * place + 1 < count:
        below = 2 * place + 1
        if below + 1 < count and rings_first(memory, memory[heap + below + 1], memory[heap + below]):
            below += 1
        if not rings_first(memory, memory[heap + below], row):
            break
        put_alarm(memory, place, memory[heap + below])
        place = below
    put_alarm(memory, place, row)
    memory[ALARM_PS] = memory[memory[heap] + ALARM]
    note_earliest(memory)


@compiled
def set_alarm(memory: Memory, row: int, time_ps: int) -> None:
    """A client looks at the clock at a time, and not at the one it had in mind before."""
    place = memory[row + ALARM_PLACE] - 1
    if place < 0:
        place = memory[ALARM_COUNT]
        memory[ALARM_COUNT] += 1
    memory[row + ALARM] = time_ps
    settle_alarm(memory, place, row)


@compiled
def clear_alarm(memory: Memory, row: int) -> None:
    """A client does not look at the clock any more."""
    place = memory[row + ALARM_PLACE] - 1
    if place < 0:
        return
    memory[row + ALARM_PLACE] = 0
    count = memory[ALARM_COUNT] - 1
    memory[ALARM_COUNT] = count
    if place < count:
        settle_alarm(memory, place, memory[memory[ALARMS_AT] + count])
    elif count == 0:
        memory[ALARM_PS] = NEVER_PS
        note_earliest(memory)


# ---- what a client waits for


@compiled
def next_alarm_ps(memory: Memory, row: int, now_ps: int) -> int:
    """The next time after now at which a client or the door may give up; ``NEVER_PS`` for none."""
    time_ps = memory[row + LEAVES]
    first_ps = memory[row + SENT] + memory[FIRST_PATIENCE]
    if memory[FIRST_PATIENCE] > 0 and first_ps > now_ps:
        time_ps = min(time_ps, first_ps)
    if memory[WHOLE_PATIENCE] > 0:
        time_ps = min(time_ps, memory[row + SENT] + memory[WHOLE_PATIENCE])
    if memory[row + DUE] > 0 and memory[row + IS_STARTED] == 0:
        time_ps = min(time_ps, memory[row + SENT] + memory[row + DUE])
    return time_ps


@compiled
def verdict(memory: Memory, row: int, now_ps: int) -> int:
    """The status with which a client or the door gives up now, or ``STAYS_ON``.

    What comes at this very moment comes too late. Where both do, the client has gone first.
    """
    waited_ps = now_ps - memory[row + SENT]
    if memory[row + LEAVES] <= now_ps:
        return STATUS_CANCELLED
    if 0 < memory[WHOLE_PATIENCE] <= waited_ps:
        return STATUS_TIMED_OUT
    first_ps = memory[request_of(memory, row) + FIRST_TOKEN]
    if 0 < memory[FIRST_PATIENCE] <= waited_ps and not 0 <= first_ps < now_ps:
        return STATUS_TIMED_OUT
    if memory[row + IS_STARTED] == 0 and is_overdue(waited_ps, memory[row + DUE]):
        return STATUS_DEADLINE
    return STAYS_ON


@compiled
def start_waiting(memory: Memory, request: int) -> None:
    """A replica takes an attempt, at its arrival: its client waits from now on."""
    if memory[PATIENCE_AT] == NONE:
        return
    row = patience_of(memory, request)
    sent_ps = memory[request + READY]
    memory[row + SENT] = sent_ps
    memory[row + SERVED_BY] = NONE
    memory[row + VERDICT] = 0
    memory[row + DUE] = memory[DEADLINE]
    memory[row + IS_STARTED] = 1 if is_delivered(memory, request) else 0
    memory[row + LEAVES] = sent_ps + memory[row + STAYS] if memory[row + STAYS] > 0 else NEVER_PS
    time_ps = next_alarm_ps(memory, row, sent_ps)
    if time_ps < NEVER_PS:
        set_alarm(memory, row, time_ps)


@compiled
def reads_on(memory: Memory, request: int, time_ps: int) -> bool:
    """Whether a client has not read an answer to its end that has left whole; an alarm rings when it has.

    It reads at its rate from the first token on, and never ahead of the engine.
    """
    each_ps = memory[READ_PS]
    if each_ps == 0:
        return False
    later = min(output_tokens(memory, request) - 1, NEVER_PS // 2 // each_ps)
    read_ps = memory[request + FIRST_TOKEN] + later * each_ps
    if read_ps <= time_ps:
        return False
    row = patience_of(memory, request)
    memory[row + VERDICT] = READING
    set_alarm(memory, row, read_ps)
    return True


@compiled
def has_given_up(memory: Memory, request: int) -> bool:
    """Whether its client has, and its replica does not know yet."""
    return memory[PATIENCE_AT] != NONE and memory[patience_of(memory, request) + VERDICT] != 0


@compiled
def stop_waiting(memory: Memory, request: int) -> None:
    """An attempt is over."""
    if memory[PATIENCE_AT] != NONE:
        clear_alarm(memory, patience_of(memory, request))


@compiled
def note_server(memory: Memory, request: int, sequence: int) -> None:
    """A request runs as a sequence from now on; ``NONE``: it waits again."""
    if memory[PATIENCE_AT] != NONE:
        row = patience_of(memory, request)
        memory[row + SERVED_BY] = sequence
        memory[row + IS_STARTED] = 1


@compiled
def leaving_step(memory: Memory, sequence: int) -> int:
    """The step of the token with which the user of a decoding sequence leaves, ``NO_STEP`` where all stay."""
    if memory[PATIENCE_AT] == NONE:
        return NO_STEP
    request = memory[sequence + REQUEST]
    tokens = memory[patience_of(memory, request) + STAYS_TOKENS]
    return NO_STEP if tokens == 0 else input_tokens(memory, request) + tokens - 2 - memory[sequence + ORIGIN]


@compiled
def leave_with_token(memory: Memory, request: int, token_ps: int) -> None:
    """The token with which a user leaves will be there at a time."""
    row = patience_of(memory, request)
    if memory[row + VERDICT] != 0:
        return
    memory[row + LEAVES] = min(memory[row + LEAVES], token_ps + 1)
    if memory[row + ALARM_PLACE] == 0 or memory[row + LEAVES] < memory[row + ALARM]:
        set_alarm(memory, row, memory[row + LEAVES])


@compiled
def note_token(memory: Memory, request: int, tokens: int, token_ps: int) -> None:
    """The output token with a number is fixed to leave at a time, by a prefill."""
    if memory[PATIENCE_AT] != NONE and memory[patience_of(memory, request) + STAYS_TOKENS] == tokens:
        leave_with_token(memory, request, token_ps)
