"""What clients do: they send a request, try again when it came to nothing, and send the next when it has ended.

Whatever follows from an event happens a picosecond later at the earliest, so nothing is caused by what comes after
it among events at the same time.
"""

from tokenfleet.control import admission, hashing
from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.late import push_late
from tokenfleet.simulator.layout import (
    ATTEMPTS,
    BACKOFF,
    BOND,
    CALLED,
    DEEPEST,
    DEGRADED,
    DELAY,
    DOOMED,
    ENDED,
    ENDS_LEFT,
    ENTERED_COUNT,
    FAULT,
    FINISH,
    FIRST_ARRIVAL,
    FIRST_FOLLOWER,
    FIRST_TOKEN,
    FIRSTS_AT,
    FIRSTS_COUNT,
    FIRSTS_FULL,
    HISTORY,
    KEY,
    LEFT,
    LINE,
    LONGEST_BACKOFF,
    MARK,
    MOST_ATTEMPTS,
    MOST_FIRSTS,
    NEXT_FOLLOWER,
    NO_TOKEN,
    NONE,
    ON_SUCCESS,
    PLACE,
    PREFIX,
    READY,
    REQUEST_WORDS,
    REQUESTS_AT,
    ROW,
    STATUS_CANCELLED,
    VISIT_WORDS,
    VISITS_AT,
    WASTED_TOKENS,
)
from tokenfleet.simulator.ledger import forget_scheduled
from tokenfleet.simulator.memory import (
    Memory,
    first_history,
    produced_tokens,
    set_next_in_queue,
    set_produced_tokens,
)
from tokenfleet.simulator.patience import stop_waiting

scrambled = compiled(hashing.scrambled)
backoff_ps = compiled(admission.backoff_ps)


@compiled
def visit_of(memory: Memory, request: int) -> int:
    """The visit row of a request."""
    return memory[VISITS_AT] + (request - memory[REQUESTS_AT]) // REQUEST_WORDS * VISIT_WORDS


@compiled
def pool_called(memory: Memory, request: int) -> int:
    """The row of the pool that a request calls."""
    return memory[visit_of(memory, request) + CALLED]


@compiled
def enter(memory: Memory, request: int) -> None:
    """An attempt reaches the router."""
    visit = visit_of(memory, request)
    memory[pool_called(memory, request) + ENTERED_COUNT] += 1
    memory[visit + ATTEMPTS] += 1
    memory[visit + DEGRADED] = 0
    if memory[visit + FIRST_ARRIVAL] < 0:
        memory[visit + FIRST_ARRIVAL] = memory[request + READY]


@compiled
def leave(memory: Memory, request: int, time_ps: int) -> None:
    """A request has come to nothing, and its user is free."""
    note_end(memory, request, time_ps)
    stop_waiting(memory, request)
    tell(memory, request, time_ps, False)


@compiled
def note_end(memory: Memory, request: int, time_ps: int) -> None:
    """A request has ended, well or not."""
    memory[ENDED] = max(memory[ENDED], time_ps)
    memory[visit_of(memory, request) + LEFT] = time_ps


@compiled
def free_user(memory: Memory, request: int, time_ps: int) -> None:
    """An answer has been given, or read."""
    stop_waiting(memory, request)
    tell(memory, request, time_ps, True)


@compiled
def passes_by(memory: Memory, request: int) -> bool:
    """Whether nothing is sent for whatever would come now: it is a mark, or what it waited for came to nothing."""
    visit = visit_of(memory, request)
    bond = memory[visit + BOND]
    if bond & (DOOMED | MARK) == 0:
        return False
    if bond & MARK != 0:
        memory[visit + FIRST_ARRIVAL] = memory[request + READY]
    tell(memory, request, memory[request + READY], bond & DOOMED == 0)
    return True


@compiled
def tell(memory: Memory, request: int, time_ps: int, well: bool) -> None:
    """Those that waited for a request to end will come, or else the next in line.

    What comes only after success ends at once where there is none.
    """
    follower = memory[visit_of(memory, request) + FIRST_FOLLOWER]
    if follower == NONE and memory[LINE] != NONE:
        follower = memory[LINE]
        memory[LINE] = memory[visit_of(memory, follower) + NEXT_FOLLOWER]
        memory[visit_of(memory, follower) + NEXT_FOLLOWER] = NONE
    while follower != NONE:
        visit = visit_of(memory, follower)
        memory[visit + ENDS_LEFT] -= 1
        if not well and memory[visit + BOND] & ON_SUCCESS != 0:
            memory[visit + BOND] |= DOOMED
        if memory[visit + ENDS_LEFT] == 0:
            delay_ps = memory[visit + DELAY] if memory[visit + BOND] & DOOMED == 0 else 0
            push_late(memory, follower, time_ps + delay_ps)
        follower = memory[visit + NEXT_FOLLOWER]


@compiled
def come_to_nothing(memory: Memory, request: int, time_ps: int, least_ps: int, place: int) -> bool:
    """An attempt is over without success: the client waits and tries again, or the request ends.

    A user who has left does not come back.

    Args:
        memory: The buffer.
        request: Nobody else knows it any more.
        time_ps: Now.
        least_ps: What the client was told to wait at least.
        place: Where and how it ends when this was the last attempt, as in ``PLACE``.

    Returns:
        Whether it was. Then its output tokens so far stay known.
    """
    visit = visit_of(memory, request)
    attempt = memory[visit + ATTEMPTS]
    memory[request + FIRST_TOKEN] = memory[visit + NO_TOKEN]
    memory[request + FINISH] = -1
    memory[request + HISTORY] = first_history(memory, request)
    memory[request + PREFIX] = memory[visit + DEEPEST]
    forget_scheduled(memory, request)
    memory[pool_called(memory, request) + WASTED_TOKENS] += produced_tokens(memory, request)
    set_next_in_queue(memory, request, NONE)
    if attempt == memory[MOST_ATTEMPTS] or place >> 32 == STATUS_CANCELLED:
        memory[request + PLACE] = place
        leave(memory, request, time_ps)
        return True
    stop_waiting(memory, request)
    set_produced_tokens(memory, request, 0)
    memory[request + PLACE] = memory[visit + KEY]
    drawn = scrambled(memory[visit + ROW], attempt)
    wait_ps = backoff_ps(attempt, memory[BACKOFF], memory[LONGEST_BACKOFF], drawn)
    push_late(memory, request, time_ps + max(1, least_ps, wait_ps))
    return False


@compiled
def note_first(memory: Memory, request: int) -> None:
    """A first token is fixed: remember it for the controller."""
    if memory[FIRSTS_AT] == NONE:
        return
    memory[memory[FIRSTS_AT] + memory[FIRSTS_COUNT]] = request
    memory[FIRSTS_COUNT] += 1
    if memory[FIRSTS_COUNT] == MOST_FIRSTS:
        memory[FAULT] = FIRSTS_FULL
