"""Sequences that decode: how they join the batch, change in it and leave it.

The batch is kept as sums (how many sequences, how much context), so that a run of steps costs the same as one.
A decoding sequence has ``ORIGIN + step`` computed tokens before each step, and attends to one more in it.
"""

from tokenfleet.simulator.blocks import count_phase
from tokenfleet.simulator.compiling import compiled, compiled_apart, compiled_within
from tokenfleet.simulator.gaps import record_gap, record_step
from tokenfleet.simulator.lane import leave_slot
from tokenfleet.simulator.layout import (
    BOND,
    CLASS_COUNT,
    CLASSES_AT,
    CLOCK,
    COMPUTED,
    CONTEXT,
    DECODE,
    DECODED,
    DECODING,
    EMITTED,
    EMPTIED,
    ENDING,
    EVENT_STEP,
    EVICTED,
    FINISH,
    FIRST_RUNNING,
    FIRST_STEP,
    FIRST_TOKEN,
    GROUP,
    GROWING,
    HORIZON,
    IN_FLIGHT_AT,
    IS_FULL,
    JOINED,
    LAG,
    LAST_RUNNING,
    LAST_STEP,
    LEFT_OUT,
    LEFT_OUT_COUNT,
    NONE,
    NUMBER,
    ORIGIN,
    PENDING,
    PREFILL,
    PREFIX_CACHING,
    PROMISED,
    REQUEST,
    RESUMED,
    RESUMED_COUNT,
    RING_MASK,
    RING_NEXT,
    RULES,
    RUNNING_NEXT,
    RUNNING_PREVIOUS,
    SGLANG,
    STATE,
    STEP,
    STEP_TOKENS,
    TARGET,
    TOTAL_IN_FLIGHT,
    UNREAD,
    VISITS_AT,
    WINDOW_CONTEXT,
    WINDOW_TOKENS,
)
from tokenfleet.simulator.ledger import close_account, open_account
from tokenfleet.simulator.memory import (
    Memory,
    class_of,
    input_tokens,
    is_delivered,
    output_tokens,
    produced_tokens,
    set_produced_tokens,
)
from tokenfleet.simulator.patience import leave_with_token, leaving_step, note_token, reads_on
from tokenfleet.simulator.pool import free_sequence
from tokenfleet.simulator.prefixes import computed_tokens, start_growing
from tokenfleet.simulator.queues import spare_slot, stop_running
from tokenfleet.simulator.ring import bucket_of, put_in_ring, take_from_ring
from tokenfleet.simulator.sessions import end_in_session
from tokenfleet.simulator.visits import free_user, note_end, note_first, visit_of
from tokenfleet.simulator.windows import (
    blocks_needed,
    close_window,
    held_blocks,
    open_window,
    settle,
    settling_step,
)


@compiled
def window_full_step(memory: Memory, replica: int, sequence: int) -> int:
    """The last step of a decoding sequence in which its window still grows."""
    return memory[memory[replica + GROUP] + WINDOW_TOKENS] - memory[sequence + ORIGIN] - 2


@compiled_within
def await_event(memory: Memory, replica: int, sequence: int, step: int) -> None:
    """Put a decoding sequence into the ring at the next step, from ``step`` on, that changes something about it."""
    group = memory[replica + GROUP]
    event = min(memory[sequence + LAST_STEP], step + memory[group + RING_MASK] - 1)
    window_full = window_full_step(memory, replica, sequence)
    if step <= window_full < event:
        event = window_full
    leaving = leaving_step(memory, sequence)
    if step <= leaving < event:
        event = leaving
    settling = settling_step(memory, replica, sequence)
    if step <= settling < event:
        event = settling
    put_in_ring(memory, replica, sequence, event)


@compiled
def count_class(memory: Memory, replica: int, sequence: int, change: int) -> None:
    """Add a decoding sequence to those of its class, or take it away; a single class needs no count of its own."""
    if memory[CLASS_COUNT] > 1:
        memory[memory[replica + CLASSES_AT] + class_of(memory, memory[sequence + REQUEST])] += change


@compiled_within
def join_batch(memory: Memory, replica: int, sequence: int, computed: int, remaining: int) -> None:
    """A sequence with ``computed`` tokens decodes from the next step on; at least one token is to come."""
    step = memory[replica + STEP]
    context = computed + 1
    window = memory[memory[replica + GROUP] + WINDOW_TOKENS]
    memory[sequence + STATE] = DECODE
    memory[sequence + ORIGIN] = context - 1 - step
    memory[sequence + LAST_STEP] = step + remaining - 1
    memory[replica + DECODING] += 1
    memory[replica + CONTEXT] += context
    if context < window:
        memory[replica + GROWING] += 1
    memory[replica + WINDOW_CONTEXT] += min(context, window)
    open_account(memory, replica, sequence)
    count_phase(memory, replica, sequence, 1)
    count_class(memory, replica, sequence, 1)
    open_window(memory, replica, sequence)
    await_event(memory, replica, sequence, step)


@compiled
def start_decoding(memory: Memory, replica: int, sequence: int, remaining: int) -> None:
    """A complete prefill joins the batch of the next step; ``remaining`` output tokens are to come, at least one."""
    memory[sequence + FIRST_STEP] = memory[replica + STEP]
    join_batch(memory, replica, sequence, memory[sequence + TARGET], remaining)
    group = memory[replica + GROUP]
    if memory[group + PREFIX_CACHING] != 0 and memory[group + RULES] != SGLANG:
        start_growing(memory, replica, sequence)


@compiled_within
def stop_decoding(memory: Memory, replica: int, sequence: int) -> None:
    """Take a decoding sequence out of the batch of the next step."""
    close_account(memory, replica, sequence)
    context = memory[sequence + ORIGIN] + memory[replica + STEP] + 1
    window = memory[memory[replica + GROUP] + WINDOW_TOKENS]
    memory[replica + DECODING] -= 1
    memory[replica + CONTEXT] -= context
    if context < window:
        memory[replica + GROWING] -= 1
    memory[replica + WINDOW_CONTEXT] -= min(context, window)
    count_phase(memory, replica, sequence, -1)
    count_class(memory, replica, sequence, -1)
    close_window(memory, replica, sequence)


@compiled
def pause_decoding(memory: Memory, replica: int, sequence: int) -> None:
    """A decoding sequence is left out of the next step."""
    memory[sequence + COMPUTED] = memory[sequence + ORIGIN] + memory[replica + STEP]
    memory[sequence + EMITTED] = memory[replica + HORIZON]
    stop_decoding(memory, replica, sequence)
    take_from_ring(memory, replica, sequence)
    memory[sequence + STATE] = LEFT_OUT
    memory[replica + LEFT_OUT_COUNT] += 1


@compiled
def resume_decoding(memory: Memory, replica: int, sequence: int) -> None:
    """A paused sequence is part of the next step again. By now all its tokens are known, and so can be named."""
    request = memory[sequence + REQUEST]
    computed = memory[sequence + COMPUTED]
    produced = computed + 1 - input_tokens(memory, request)
    memory[sequence + TARGET] = computed + 1
    memory[sequence + RESUMED] = memory[replica + STEP]
    memory[replica + LEFT_OUT_COUNT] -= 1
    memory[replica + RESUMED_COUNT] += 1
    join_batch(memory, replica, sequence, computed, output_tokens(memory, request) - produced)


@compiled
def leave_batch(memory: Memory, replica: int, sequence: int) -> None:
    """A sequence that decodes, or is paused, does so no more."""
    if memory[sequence + STATE] == DECODE:
        if is_resumed(memory, replica, sequence):
            memory[replica + RESUMED_COUNT] -= 1
        stop_decoding(memory, replica, sequence)
        take_from_ring(memory, replica, sequence)
    elif memory[sequence + STATE] == LEFT_OUT:
        memory[replica + LEFT_OUT_COUNT] -= 1


@compiled
def is_resumed(memory: Memory, replica: int, sequence: int) -> bool:
    """Whether a sequence decodes in the step being fixed after it was left out of the one before."""
    return memory[sequence + STATE] == DECODE and memory[sequence + RESUMED] == memory[replica + STEP]


@compiled
def correct_gap(memory: Memory, sequence: int, counted_ps: int, end_ps: int) -> None:
    """The gap that ends at ``end_ps`` began with the last token of a sequence, not with that of the others."""
    request = memory[sequence + REQUEST]
    record_gap(memory, request, counted_ps, end_ps, -1)
    record_gap(memory, request, end_ps - memory[sequence + EMITTED], end_ps, 1)


@compiled_apart
def correct_pauses(memory: Memory, replica: int, counted_ps: int, end_ps: int) -> None:
    """The gaps of those that the step being fixed has resumed, and that ends at ``end_ps``, are longer."""
    memory[replica + RESUMED_COUNT] = 0
    sequence = memory[replica + FIRST_RUNNING]
    while sequence != NONE:
        if is_resumed(memory, replica, sequence):
            correct_gap(memory, sequence, counted_ps, end_ps)
        sequence = memory[sequence + RUNNING_NEXT]


@compiled
def last_token_ps(memory: Memory, replica: int, sequence: int) -> int:
    """When the last token of a decoding sequence left, of all steps fixed so far."""
    if memory[memory[replica + GROUP] + RULES] == SGLANG:
        return max(memory[sequence + EMITTED], memory[replica + DECODED])
    if memory[sequence + STATE] == LEFT_OUT or is_resumed(memory, replica, sequence):
        return memory[sequence + EMITTED]
    return memory[replica + HORIZON]


@compiled_apart
def record_resumed(memory: Memory, replica: int, end_ps: int) -> None:
    """Count the gaps that end with the first step of decode after rounds of prefill, in which decodes stood still.

    Those whose prefill was among these rounds waited less long; behind them in the running list are only prompts that
    are not complete.
    """
    counted_ps = end_ps - memory[replica + DECODED]
    record_step(memory, replica, counted_ps, end_ps)
    sequence = memory[replica + LAST_RUNNING]
    while sequence != NONE:
        silent = is_delivered(memory, memory[sequence + REQUEST]) or memory[sequence + STATE] == PREFILL
        if memory[sequence + EMITTED] <= memory[replica + DECODED] and not silent:
            break
        if memory[sequence + STATE] == DECODE and not silent:
            correct_gap(memory, sequence, counted_ps, end_ps)
        sequence = memory[sequence + RUNNING_PREVIOUS]


@compiled
def join_decodes(memory: Memory, replica: int, sequence: int) -> None:
    """A sequence that brought the KV of its prompt along decodes from the next step on: first its last prompt token."""
    request = memory[sequence + REQUEST]
    memory[sequence + TARGET] = input_tokens(memory, request) - 1
    memory[replica + JOINED] += 1
    start_decoding(memory, replica, sequence, output_tokens(memory, request))


@compiled_apart
def emit_joined(memory: Memory, replica: int, counted_ps: int, end_ps: int) -> None:
    """The step that ends at ``end_ps`` yields the first token of each sequence that brought its KV along.

    A first token ends no gap, though one of ``counted_ps`` was counted for everybody.
    """
    sequence = memory[replica + LAST_RUNNING]
    while memory[replica + JOINED] > 0:
        request = memory[sequence + REQUEST]
        if is_delivered(memory, request):
            memory[request + FIRST_TOKEN] = end_ps
            record_gap(memory, request, counted_ps, end_ps, -1)
            note_first(memory, request)
            memory[sequence + TARGET] = input_tokens(memory, request)
            memory[replica + JOINED] -= 1
        sequence = memory[sequence + RUNNING_PREVIOUS]


@compiled
def emit_first(memory: Memory, replica: int, sequence: int) -> None:
    """A prefill is complete, and its step is the one before the next: it yields a token, or the result.

    The token is the first, or the first since a preemption, which ends a long gap.
    """
    request = memory[sequence + REQUEST]
    horizon = memory[replica + HORIZON]
    memory[sequence + EMITTED] = horizon
    remaining = output_tokens(memory, request) - produced_tokens(memory, request) - 1
    if remaining >= 0:
        set_produced_tokens(memory, request, produced_tokens(memory, request) + 1)
        note_token(memory, request, produced_tokens(memory, request), horizon)
        if memory[request + FIRST_TOKEN] < 0:
            memory[request + FIRST_TOKEN] = horizon
            note_first(memory, request)
        else:
            record_gap(memory, request, horizon - memory[request + FINISH], horizon, 1)
            memory[request + FINISH] = -1
    if remaining > 0:
        start_decoding(memory, replica, sequence, remaining)
    else:
        memory[sequence + STATE] = ENDING
        put_in_ring(memory, replica, sequence, memory[replica + STEP] - 1)


@compiled
def unused_promise(memory: Memory, replica: int, sequence: int) -> int:
    """Blocks set aside for a sequence that has taken all it needs: one, if only the last output token would need it."""
    group = memory[replica + GROUP]
    request = memory[sequence + REQUEST]
    declared = input_tokens(memory, request) + output_tokens(memory, request) + memory[group + STEP_TOKENS] - 1
    computed = computed_tokens(memory, replica, sequence)
    return blocks_needed(memory, group, 0, declared) - held_blocks(memory, replica, sequence, computed)


@compiled
def leave_replica(memory: Memory, replica: int, time_ps: int) -> None:
    """A request is in flight at its replica no more."""
    memory[memory[IN_FLIGHT_AT] + memory[replica + NUMBER]] -= 1
    memory[TOTAL_IN_FLIGHT] -= 1
    memory[replica + EMPTIED] = time_ps


@compiled
def end_request(memory: Memory, replica: int, sequence: int) -> None:
    """The last token has left: record it, free what the sequence holds."""
    memory[memory[sequence + REQUEST] + FINISH] = memory[replica + CLOCK]
    leave_replica(memory, replica, memory[replica + CLOCK])
    memory[replica + IS_FULL] = 0
    if memory[replica + PROMISED] > 0:
        memory[replica + PROMISED] -= unused_promise(memory, replica, sequence)
    if memory[sequence + STATE] != EVICTED:
        tokens = computed_tokens(memory, replica, sequence)
        free_sequence(memory, replica, sequence, tokens, tokens)
        stop_running(memory, replica, sequence)
    spare_slot(memory, replica, sequence)
    if memory[VISITS_AT] != NONE:
        end_visit(memory, replica, memory[sequence + REQUEST])


@compiled_apart
def end_visit(memory: Memory, replica: int, request: int) -> None:
    """The world around the fleet hears of the end of a request."""
    now_ps = memory[replica + CLOCK]
    note_end(memory, request, now_ps)
    unread = memory[visit_of(memory, request) + BOND] & UNREAD != 0
    if unread or not reads_on(memory, request, now_ps):
        end_in_session(memory, request, now_ps)
        free_user(memory, request, now_ps)
    leave_slot(memory, replica, request, now_ps)


@compiled_within
def end_pending(memory: Memory, replica: int) -> None:
    """End the requests whose last step has run by now."""
    sequence = memory[replica + PENDING]
    memory[replica + PENDING] = NONE
    while sequence != NONE:
        after = memory[sequence + RING_NEXT]
        end_request(memory, replica, sequence)
        sequence = after


@compiled
def collect_events(memory: Memory, replica: int) -> None:
    """Handle the bucket of the step before the next one: last tokens, windows that are full."""
    step = memory[replica + STEP] - 1
    last = NONE
    sequence = bucket_of(memory, replica, step)
    while sequence != NONE and memory[sequence + EVENT_STEP] == step:
        take_from_ring(memory, replica, sequence)
        decodes = memory[sequence + STATE] == DECODE
        if decodes and window_full_step(memory, replica, sequence) == step:
            memory[replica + GROWING] -= 1
        if decodes and leaving_step(memory, sequence) == step:
            leave_with_token(memory, memory[sequence + REQUEST], memory[replica + HORIZON])
        if decodes and settling_step(memory, replica, sequence) == step:
            settle(memory, replica, sequence)
        if decodes and memory[sequence + LAST_STEP] > step:
            await_event(memory, replica, sequence, step + 1)
        else:
            if decodes:
                stop_decoding(memory, replica, sequence)
                memory[sequence + STATE] = ENDING
            memory[sequence + RING_NEXT] = NONE
            if last == NONE:
                memory[replica + PENDING] = sequence
            else:
                memory[last + RING_NEXT] = sequence
            last = sequence
        sequence = bucket_of(memory, replica, step)


@compiled
def apply_outputs(memory: Memory, replica: int) -> None:
    """At a boundary: end the requests whose last token is there, take those out of the batch whose last is fixed."""
    lag = memory[memory[replica + GROUP] + LAG]
    if lag > 0 and memory[replica + PENDING] != NONE:
        end_pending(memory, replica)
    collect_events(memory, replica)
    if lag == 0 and memory[replica + PENDING] != NONE:
        end_pending(memory, replica)
