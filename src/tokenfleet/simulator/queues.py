"""The two lists of a replica: requests that wait, and sequences that run."""

from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    ADMITTED,
    FIRST_RUNNING,
    GROWS_IN,
    HASHED,
    IS_CONTENDED,
    LAST_RUNNING,
    NONE,
    ORDER,
    PARTIAL,
    PREFILL,
    QUEUE_HEAD,
    QUEUE_TAIL,
    REQUEST,
    RUNNING,
    RUNNING_NEXT,
    RUNNING_PREVIOUS,
    SPARE_SLOT,
    STATE,
    WAITING,
)
from tokenfleet.simulator.memory import Memory, next_in_queue, set_next_in_queue


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
    """A request was preempted: in front of all that wait."""
    set_next_in_queue(memory, request, memory[replica + QUEUE_HEAD])
    if memory[replica + QUEUE_HEAD] == NONE:
        memory[replica + QUEUE_TAIL] = request
    memory[replica + QUEUE_HEAD] = request
    memory[replica + WAITING] += 1


@compiled
def leave_queue(memory: Memory, replica: int) -> None:
    """The head of the queue leaves it."""
    memory[replica + QUEUE_HEAD] = next_in_queue(memory, memory[replica + QUEUE_HEAD])
    memory[replica + WAITING] -= 1


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
    memory[sequence + REQUEST] = request
    memory[sequence + RUNNING_NEXT] = NONE
    memory[sequence + RUNNING_PREVIOUS] = last
    memory[sequence + ORDER] = memory[replica + ADMITTED]
    memory[sequence + STATE] = PREFILL
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
    if memory[replica + PARTIAL] == sequence:
        memory[replica + PARTIAL] = NONE
    memory[replica + RUNNING] -= 1


@compiled
def spare_slot(memory: Memory, replica: int, sequence: int) -> None:
    """Hand back the row of a sequence."""
    memory[sequence + RUNNING_NEXT] = memory[replica + SPARE_SLOT]
    memory[replica + SPARE_SLOT] = sequence
