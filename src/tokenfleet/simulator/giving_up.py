"""What becomes of a request whose client has given up, or that the door refuses at its deadline.

One that waits is gone at once. One that runs is let go at the next boundary, before the tokens of the step that ends
there are looked at, as vLLM does it; steps fixed by then are paid for. SGLang hears of it at that boundary and lets a
request go with the next token that it yields, so it runs one more round. Full blocks stay in the prefix cache.
"""

from tokenfleet.simulator.compiling import compiled, compiled_apart
from tokenfleet.simulator.decoding import last_token_ps, leave_batch, leave_replica, unused_promise, window_full_step
from tokenfleet.simulator.lane import leave_slot
from tokenfleet.simulator.layout import (
    ALARM,
    ALARMS_AT,
    BY_PRIORITY,
    CANCELLED_COUNT,
    CLOCK,
    DECODE,
    EMITTED,
    ENDING,
    EVENT_STEP,
    EVICTED,
    FIRST_GONE,
    FIRST_TOKEN,
    GROUP,
    GROWING,
    HALF,
    IS_FULL,
    JOINED,
    LAG,
    LAST_STEP,
    LEAVES,
    LEFT_OUT,
    LEVELS_AT,
    NEVER_PS,
    NONE,
    NUMBER,
    OVERDUE_COUNT,
    PENDING,
    PLACE,
    PREFILL,
    PROMISED,
    QUEUE_HEAD,
    REPLICA_WORDS,
    REPLICAS_AT,
    REQUEST,
    RETRY_AFTER,
    RING_NEXT,
    RULES,
    SENT,
    SERVED_BY,
    SGLANG,
    STATE,
    STATUS_CANCELLED,
    STATUS_DEADLINE,
    STATUS_TIMED_OUT,
    STEP,
    TIMED_OUT_COUNT,
    VERDICT,
    WAITING,
)
from tokenfleet.simulator.memory import (
    Memory,
    input_tokens,
    is_delivered,
    next_in_queue,
    output_tokens,
    priority_level,
    produced_tokens,
    set_next_in_queue,
    set_produced_tokens,
)
from tokenfleet.simulator.patience import (
    READING,
    STAYS_ON,
    clear_alarm,
    next_alarm_ps,
    request_of,
    set_alarm,
    verdict,
)
from tokenfleet.simulator.pool import free_sequence
from tokenfleet.simulator.prefixes import computed_tokens, hashed_tokens, orphan_own
from tokenfleet.simulator.queues import spare_slot, stop_running
from tokenfleet.simulator.receiving import looks_now
from tokenfleet.simulator.ring import take_from_ring
from tokenfleet.simulator.sessions import end_in_session
from tokenfleet.simulator.swapping import leave_host
from tokenfleet.simulator.visits import come_to_nothing, free_user, pool_called

NOT_HEARD = -1
"""Of ``SENT``, once a client has given up: its engine does not know yet."""


@compiled
def end_attempt(memory: Memory, replica: int, row: int, time_ps: int) -> None:
    """An attempt leaves its replica unfinished. A first token that was there before its client gave up stays known."""
    request = request_of(memory, row)
    status = memory[row + VERDICT] >> 32
    first_ps = memory[request + FIRST_TOKEN]
    leave_replica(memory, replica, time_ps)
    end_in_session(memory, request, time_ps)
    least_ps = memory[RETRY_AFTER] if status == STATUS_DEADLINE else 0
    number = HALF if status == STATUS_DEADLINE else memory[replica + NUMBER]
    is_last = come_to_nothing(memory, request, time_ps, least_ps, number | status << 32)
    if is_last and 0 <= first_ps < memory[row + ALARM]:
        memory[request + FIRST_TOKEN] = first_ps
    leave_slot(memory, replica, request, time_ps)


# ---- those that wait


@compiled
def take_out(memory: Memory, ends: int, request: int) -> bool:
    """Take a request out of a list, whose ends are two neighbouring words; whether it was in it."""
    before = NONE
    other = memory[ends]
    while other != NONE and other != request:
        before = other
        other = next_in_queue(memory, other)
    if other == NONE:
        return False
    after = next_in_queue(memory, request)
    if before == NONE:
        memory[ends] = after
    else:
        set_next_in_queue(memory, before, after)
    if after == NONE:
        memory[ends + 1] = before
    return True


@compiled
def stop_queueing(memory: Memory, replica: int, request: int) -> None:
    """A request waits no more, wherever in the queue it is."""
    memory[replica + WAITING] -= 1
    found = take_out(memory, replica + QUEUE_HEAD, request)
    if not found and memory[memory[replica + GROUP] + BY_PRIORITY] != 0:
        take_out(memory, memory[replica + LEVELS_AT] + 2 * priority_level(memory, request), request)
    orphan_own(memory, request)
    leave_host(memory, replica, request)


# ---- those that run


@compiled
def generated_tokens(memory: Memory, replica: int, sequence: int) -> int:
    """Output tokens of a sequence by all steps fixed so far."""
    request = memory[sequence + REQUEST]
    state = memory[sequence + STATE]
    if state == PREFILL:
        return produced_tokens(memory, request)
    if state in (DECODE, LEFT_OUT):
        return computed_tokens(memory, replica, sequence) + 1 - input_tokens(memory, request)
    return output_tokens(memory, request)


@compiled
def leave_pending(memory: Memory, replica: int, sequence: int) -> bool:
    """A sequence does not wait for its last token any more; whether it did."""
    before = memory[replica + PENDING]
    if before == sequence:
        memory[replica + PENDING] = memory[sequence + RING_NEXT]
        return True
    while before != NONE and memory[before + RING_NEXT] != sequence:
        before = memory[before + RING_NEXT]
    if before == NONE:
        return False
    memory[before + RING_NEXT] = memory[sequence + RING_NEXT]
    return True


@compiled
def stop_computing(memory: Memory, replica: int, sequence: int) -> None:
    """Take a running sequence out of the steps to come."""
    state = memory[sequence + STATE]
    if state == ENDING:
        if not leave_pending(memory, replica, sequence):
            take_from_ring(memory, replica, sequence)
        return
    last = memory[replica + STEP] - 1
    if state == DECODE and memory[sequence + EVENT_STEP] == last == window_full_step(memory, replica, sequence):
        # The events of the step that ends here are not handled yet: this window counts as growing still.
        memory[replica + GROWING] -= 1
    leave_batch(memory, replica, sequence)


@compiled
def abandoned_names(memory: Memory, replica: int, sequence: int, tokens: int) -> int:
    """Of the computed tokens of a sequence, those in the cache by name. SGLang keeps all, as at any other end."""
    if memory[memory[replica + GROUP] + RULES] == SGLANG:
        return tokens
    # The outputs of the step that ends here are not known yet, which matters to one that was left out of the last.
    step = memory[replica + STEP] - 1 if memory[sequence + STATE] == LEFT_OUT else memory[replica + STEP]
    return hashed_tokens(memory, replica, sequence, step)


@compiled
def stop_serving(memory: Memory, replica: int, sequence: int) -> None:
    """Free a running sequence, or one that was preempted with its last step in flight."""
    if memory[sequence + STATE] == EVICTED:
        leave_pending(memory, replica, sequence)
        spare_slot(memory, replica, sequence)
        return
    request = memory[sequence + REQUEST]
    memory[replica + IS_FULL] = 0
    if memory[replica + PROMISED] > 0:
        memory[replica + PROMISED] -= unused_promise(memory, replica, sequence)
    if is_delivered(memory, request):
        memory[replica + JOINED] -= 1
    tokens = computed_tokens(memory, replica, sequence)
    free_sequence(memory, replica, sequence, tokens, abandoned_names(memory, replica, sequence, tokens))
    orphan_own(memory, request)
    stop_running(memory, replica, sequence)
    stop_computing(memory, replica, sequence)
    spare_slot(memory, replica, sequence)


@compiled
def has_ended(memory: Memory, replica: int, sequence: int) -> bool:
    """Whether the last token of a running sequence has left by this boundary, at which nobody has looked yet."""
    if memory[sequence + STATE] == ENDING:
        return memory[sequence + EMITTED] <= memory[replica + CLOCK]
    is_last = memory[sequence + LAST_STEP] == memory[replica + STEP] - 1
    return is_last and memory[sequence + STATE] == DECODE and memory[memory[replica + GROUP] + LAG] == 0


@compiled
def may_go(memory: Memory, replica: int, row: int) -> bool:
    """Whether SGLang lets a request go at this boundary: with the first token that comes after it heard of it.

    A prompt that is under way is not finished, and who has said everything has ended. One that is retracted first
    goes on all the same once it is admitted again.
    """
    sequence = memory[row + SERVED_BY]
    if sequence != NONE and has_ended(memory, replica, sequence):
        return True
    hears = memory[row + SENT] == NOT_HEARD
    if hears and not looks_now(memory, replica):
        return False
    is_prompt = sequence != NONE and memory[sequence + STATE] == PREFILL
    if hears and is_prompt:
        return True
    if hears:
        memory[row + SENT] = memory[replica + CLOCK]
    if hears or sequence == NONE:
        # Of one that was retracted, a token that was under way does not count.
        memory[row + LEAVES] = NEVER_PS
    if sequence == NONE:
        return False
    if memory[row + LEAVES] == NEVER_PS and not is_prompt and not is_delivered(memory, memory[sequence + REQUEST]):
        token_ps = last_token_ps(memory, replica, sequence)
        if token_ps > memory[row + SENT]:
            memory[row + LEAVES] = token_ps
    return memory[row + LEAVES] <= memory[replica + CLOCK]


@compiled_apart
def let_go(memory: Memory, replica: int, time_ps: int) -> None:
    """Free the running requests whose clients have given up, in the order in which they did, as far as they may go."""
    row = memory[replica + FIRST_GONE]
    memory[replica + FIRST_GONE] = NONE
    while row != NONE:
        after = memory[row + VERDICT] & HALF
        if memory[memory[replica + GROUP] + RULES] == SGLANG and not may_go(memory, replica, row):
            memory[row + VERDICT] -= after
            put_with_gone(memory, replica, row)
        else:
            sequence = memory[row + SERVED_BY]
            set_produced_tokens(memory, request_of(memory, row), generated_tokens(memory, replica, sequence))
            stop_serving(memory, replica, sequence)
            end_attempt(memory, replica, row, time_ps)
        row = after


@compiled
def put_with_gone(memory: Memory, replica: int, row: int) -> None:
    """A running request will be let go, after those whose clients gave up before."""
    before = memory[replica + FIRST_GONE]
    if before == NONE:
        memory[replica + FIRST_GONE] = row
        return
    while memory[before + VERDICT] & HALF != NONE:
        before = memory[before + VERDICT] & HALF
    memory[before + VERDICT] |= row


# ---- the alarm


@compiled
def count_verdict(memory: Memory, request: int, status: int) -> None:
    """Count an attempt by who gave it up."""
    pool = pool_called(memory, request)
    if status == STATUS_CANCELLED:
        memory[pool + CANCELLED_COUNT] += 1
    elif status == STATUS_TIMED_OUT:
        memory[pool + TIMED_OUT_COUNT] += 1
    else:
        memory[pool + OVERDUE_COUNT] += 1


@compiled
def ring(memory: Memory) -> int:
    """The first alarm rings: its client gives up, has read the answer, or stays on until the next; its replica."""
    row = memory[memory[ALARMS_AT]]
    time_ps = memory[row + ALARM]
    request = request_of(memory, row)
    number = memory[request + PLACE] & HALF
    if memory[row + VERDICT] == READING:
        end_in_session(memory, request, time_ps)
        free_user(memory, request, time_ps)
        return number
    status = verdict(memory, row, time_ps)
    clear_alarm(memory, row)
    if status == STAYS_ON:
        again_ps = next_alarm_ps(memory, row, time_ps)
        if again_ps < NEVER_PS:
            set_alarm(memory, row, again_ps)
        return number
    count_verdict(memory, request, status)
    memory[row + VERDICT] = status << 32
    replica = memory[REPLICAS_AT] + number * REPLICA_WORDS
    if memory[row + SERVED_BY] == NONE:
        stop_queueing(memory, replica, request)
        end_attempt(memory, replica, row, time_ps)
    else:
        memory[row + SENT] = NOT_HEARD
        put_with_gone(memory, replica, row)
    return number
