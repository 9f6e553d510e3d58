"""The two lists of a replica: requests that wait, and sequences that run."""

from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    ADMITTED,
    BY_PRIORITY,
    CLOCK,
    COMPUTED,
    FIRST_RUNNING,
    GROUP,
    GROWS_IN,
    HASHED,
    IS_CONTENDED,
    LAST_RUNNING,
    LOOKED,
    NEVER_RESUMED,
    NONE,
    ORDER,
    PARTIAL,
    PREFILL,
    QUEUE_HEAD,
    QUEUE_TAIL,
    READY,
    RECEIVE_INTERVAL,
    REQUEST,
    RESUMED,
    RING_NEXT,
    RUNNING,
    RUNNING_NEXT,
    RUNNING_PREVIOUS,
    SPARE_SLOT,
    STATE,
    TARGET,
    WAITING,
)
from tokenfleet.simulator.ledger import note_scheduled
from tokenfleet.simulator.memory import Memory, next_in_queue, set_next_in_queue
from tokenfleet.simulator.patience import note_server
from tokenfleet.simulator.urgency import leave_level, most_urgent, wait_in_level, waiting_in_levels


@compiled
def queue_last(memory: Memory, replica: int, request: int) -> None:
    """A request arrives: behind all that wait."""
    set_next_in_queue(memory, request, NONE)
    if memory[replica + QUEUE_HEAD] == NONE:
        memory[replica + QUEUE_HEAD] = request
    else:
        set_next_in_queue(memory, memory[replica + QUEUE_TAIL], request)
    memory[replica + QUEUE_TAIL] = request
    memory[replica + WAITING] += 1


@compiled
def queue_first(memory: Memory, replica: int, request: int) -> None:
    """A request was preempted: in front of all that wait, as far as its priority allows."""
    memory[replica + WAITING] += 1
    if memory[memory[replica + GROUP] + BY_PRIORITY] != 0:
        wait_in_level(memory, replica, request)
        return
    set_next_in_queue(memory, request, memory[replica + QUEUE_HEAD])
    if memory[replica + QUEUE_HEAD] == NONE:
        memory[replica + QUEUE_TAIL] = request
    memory[replica + QUEUE_HEAD] = request


@compiled
def next_waiting(memory: Memory, replica: int) -> int:
    """The request that is to be admitted next, ``NONE`` while none is ready."""
    if memory[memory[replica + GROUP] + BY_PRIORITY] != 0:
        return most_urgent(memory, replica)
    head = memory[replica + QUEUE_HEAD]
    if head == NONE or memory[head + READY] > memory[replica + CLOCK]:
        return NONE
    if memory[memory[replica + GROUP] + RECEIVE_INTERVAL] > 1 and memory[head + READY] > memory[replica + LOOKED]:
        return NONE
    return head


@compiled
def ready_waiting(memory: Memory, replica: int) -> int:
    """Requests that wait and are ready, counted up to 2."""
    if memory[memory[replica + GROUP] + BY_PRIORITY] != 0:
        return waiting_in_levels(memory, replica)
    head = next_waiting(memory, replica)
    if head == NONE:
        return 0
    follower = next_in_queue(memory, head)
    return 2 if follower != NONE and memory[follower + READY] <= memory[replica + CLOCK] else 1


@compiled
def leave_queue(memory: Memory, replica: int, request: int) -> None:
    """The request that is to be admitted next waits no more."""
    memory[replica + WAITING] -= 1
    if memory[memory[replica + GROUP] + BY_PRIORITY] != 0:
        leave_level(memory, replica, request)
    else:
        memory[replica + QUEUE_HEAD] = next_in_queue(memory, request)


@compiled
def start_running(memory: Memory, replica: int, request: int) -> int:
    """Give a request a sequence row at the end of the running list."""
    sequence = memory[replica + SPARE_SLOT]
    memory[replica + SPARE_SLOT] = memory[sequence + RUNNING_NEXT]
    last = memory[replica + LAST_RUNNING]
    if last == NONE:
        memory[replica + FIRST_RUNNING] = sequence
    else:
        memory[last + RUNNING_NEXT] = sequence
    memory[replica + LAST_RUNNING] = sequence
    memory[replica + RUNNING] += 1
    memory[replica + ADMITTED] += 1
    note_scheduled(memory, replica, request)
    note_server(memory, request, sequence)
    memory[sequence + REQUEST] = request
    memory[sequence + RUNNING_NEXT] = NONE
    memory[sequence + RUNNING_PREVIOUS] = last
    memory[sequence + ORDER] = memory[replica + ADMITTED]
    memory[sequence + STATE] = PREFILL
    memory[sequence + RESUMED] = NEVER_RESUMED
    memory[sequence + HASHED] = 0
    memory[sequence + GROWS_IN] = NONE
    memory[sequence + IS_CONTENDED] = 0
    return sequence


@compiled
def stop_running(memory: Memory, replica: int, sequence: int) -> None:
    """Take a sequence out of the running list; its row stays in use until it is spared."""
    before = memory[sequence + RUNNING_PREVIOUS]
    after = memory[sequence + RUNNING_NEXT]
    if before == NONE:
        memory[replica + FIRST_RUNNING] = after
    else:
        memory[before + RUNNING_NEXT] = after
    if after == NONE:
        memory[replica + LAST_RUNNING] = before
    else:
        memory[after + RUNNING_PREVIOUS] = before
    if memory[sequence + STATE] == PREFILL and memory[sequence + COMPUTED] < memory[sequence + TARGET]:
        leave_partial(memory, replica, sequence)
    memory[replica + RUNNING] -= 1


@compiled
def join_partial(memory: Memory, replica: int, sequence: int) -> None:
    """The prefill of the sequence admitted last goes on after this step."""
    memory[sequence + RING_NEXT] = NONE
    last = memory[replica + PARTIAL]
    if last == NONE:
        memory[replica + PARTIAL] = sequence
        return
    while memory[last + RING_NEXT] != NONE:
        last = memory[last + RING_NEXT]
    memory[last + RING_NEXT] = sequence


@compiled
def leave_partial(memory: Memory, replica: int, sequence: int) -> None:
    """The prefill of a sequence is complete, or given up."""
    before = memory[replica + PARTIAL]
    if before == sequence:
        memory[replica + PARTIAL] = memory[sequence + RING_NEXT]
        return
    while memory[before + RING_NEXT] != sequence:
        before = memory[before + RING_NEXT]
    memory[before + RING_NEXT] = memory[sequence + RING_NEXT]


@compiled
def spare_slot(memory: Memory, replica: int, sequence: int) -> None:
    """Hand back the row of a sequence."""
    memory[sequence + RUNNING_NEXT] = memory[replica + SPARE_SLOT]
    memory[replica + SPARE_SLOT] = sequence
