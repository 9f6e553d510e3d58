"""A replica in time: from one boundary to the next.

A *boundary* is a moment at which the replica fixes a step: the end of the step before, or, with async scheduling,
the start of the step before, as the engine then plans one step ahead of the gpu. Step ``s`` is fixed at the
``CLOCK`` and starts at the ``HORIZON``, the end of step ``s - 1``; without async scheduling the two are one.
A step with nothing in it takes no time: it stands for the engine waiting until the step in flight ends.
"""

from tokenfleet.simulator.attention import attention_ps, cached_attention_ps
from tokenfleet.simulator.batching import schedule
from tokenfleet.simulator.blocks import take_blocks
from tokenfleet.simulator.compiling import compiled, compiled_within
from tokenfleet.simulator.decoding import apply_outputs, correct_pauses, emit_first, emit_joined, record_resumed
from tokenfleet.simulator.estimating import expect_less
from tokenfleet.simulator.foresight import scout
from tokenfleet.simulator.gaps import record_run, record_step
from tokenfleet.simulator.giving_up import let_go
from tokenfleet.simulator.layout import (
    BERTH,
    BUDGET,
    BUSY_UNTIL,
    BY_LANE,
    BY_PRIORITY,
    CACHED_BUSY,
    CLOCK,
    COMPUTED,
    CONTENDED,
    CONTEXT,
    CONTEXT_PS,
    DECODE_BUSY,
    DECODED,
    DECODES_DUE,
    DECODING,
    DRAFTED,
    EVENTS_AT,
    FAULT,
    FIRST_GONE,
    FIRSTS_AT,
    GROUP,
    GROWING,
    GROWTH_PS,
    HALF,
    HORIZON,
    IDLE_WITH_WORK,
    JOINED,
    LAG,
    LEDGER_AT,
    LEFT_OUT_COUNT,
    LOOKED,
    MAX_BATCHED_TOKENS,
    MIXED_STEPS,
    MOVED_BLOCKS,
    NEVER_PS,
    NEW_TOKEN_RATIO,
    NONE,
    NUMBER,
    PATIENCE_AT,
    PENDING,
    PREEMPTED,
    PREFILL,
    PREFILL_BUSY,
    PREFIX,
    QUEUE_HEAD,
    READY,
    RECEIVE_INTERVAL,
    REQUEST,
    RESUMED_COUNT,
    RULES,
    RUN,
    RUNNING,
    RUNNING_NEXT,
    SGLANG,
    SHARED_PS,
    STATE,
    STEP,
    STEP_PS,
    STEP_TOKENS,
    STEPS,
    TARGET,
    UNSEEN_ROUNDS,
    UNSETTLED,
    WINDOW_CONTEXT,
    WINDOW_PS,
)
from tokenfleet.simulator.ledger import charge_prefills, share_equally
from tokenfleet.simulator.memory import Memory
from tokenfleet.simulator.prefixes import write_up_to
from tokenfleet.simulator.receiving import look, look_soon, rounds_to_look
from tokenfleet.simulator.ring import steps_to_next_event
from tokenfleet.simulator.rules import FIRST_RATIO
from tokenfleet.simulator.sharing import hold, is_held, let_go_of_step, shares, take_turn
from tokenfleet.simulator.speculating import decoded_tokens, keep_drafts
from tokenfleet.simulator.steptime import decode_step_ps, prefill_step_ps, run_ps, steps_until, token_ps
from tokenfleet.simulator.swapping import take_moving_time
from tokenfleet.simulator.urgency import lanes_meet
from tokenfleet.simulator.windows import has_window, run_blocks, steps_with_room
from tokenfleet.simulator.work import count_decodes, count_prefills


@compiled
def set_event(memory: Memory, replica: int, time_ps: int) -> None:
    """Say when the replica must be looked at next."""
    memory[memory[EVENTS_AT] + memory[replica + NUMBER]] = time_ps


@compiled
def run_boundary_ps(memory: Memory, replica: int, steps: int) -> int:
    """The boundary after ``steps`` steps of the current run."""
    ahead = steps - memory[memory[replica + GROUP] + LAG]
    return memory[replica + HORIZON] + run_ps(memory[replica + STEP_PS], memory[replica + GROWTH_PS], ahead)


@compiled
def cut_run(memory: Memory, replica: int, ready_ps: int) -> None:
    """End the current run at the first boundary that is not before ``ready_ps``, where the head may be admitted."""
    lag = memory[memory[replica + GROUP] + LAG]
    ahead = steps_until(memory[replica + STEP_PS], memory[replica + GROWTH_PS], ready_ps - memory[replica + HORIZON])
    memory[replica + RUN] = min(memory[replica + RUN], max(1, ahead + lag))
    set_event(memory, replica, run_boundary_ps(memory, replica, memory[replica + RUN]))


@compiled
def is_settled(memory: Memory, replica: int) -> bool:
    """Whether the steps after the next are like it, until an event of the ring."""
    unsettled = memory[replica + PREEMPTED] | memory[replica + PENDING] | memory[replica + CONTENDED]
    # On shared gpus others may come between any two steps.
    unsettled |= memory[replica + MOVED_BLOCKS] | memory[replica + BERTH]
    if has_window(memory, memory[replica + GROUP]):
        unsettled |= memory[replica + UNSETTLED]
    if memory[FIRSTS_AT] | memory[PATIENCE_AT] != NONE:
        # A controller and a client must see a first token when it leaves, so the run that yields it does not hide it.
        unsettled |= memory[replica + JOINED] | memory[replica + FIRST_GONE]
    if memory[memory[replica + GROUP] + BY_PRIORITY] == BY_LANE and lanes_meet(memory, replica):
        return False
    return unsettled | memory[replica + LEFT_OUT_COUNT] == 0


@compiled
def start_run(memory: Memory, replica: int) -> None:
    """Fix as many pure decode steps as nothing can interrupt but an arrival."""
    group = memory[replica + GROUP]
    decoding = memory[replica + DECODING]
    growing = memory[replica + GROWING]
    steps = 1
    drafts = memory[group + STEP_TOKENS] > 1
    if drafts:
        memory[replica + DRAFTED] = 1
    elif is_settled(memory, replica):
        steps = steps_to_next_event(memory, replica)
        steps = 1 + steps_with_room(memory, replica, memory[replica + STEP] + 1, steps - 1)
        if memory[replica + DECODES_DUE] > 0:
            steps = min(steps, memory[replica + DECODES_DUE])
        if memory[group + RECEIVE_INTERVAL] > 1:
            steps = min(steps, rounds_to_look(memory, replica))
    memory[replica + RUN] = steps
    moving_ps = take_moving_time(memory, replica)
    decoded = decoded_tokens(memory, replica)
    memory[replica + SHARED_PS] = token_ps(memory, group, decoded, decoding) + moving_ps
    memory[replica + STEP_PS] = moving_ps + decode_step_ps(
        memory, group, decoded, decoding, memory[replica + CONTEXT], memory[replica + WINDOW_CONTEXT]
    )
    if shares(memory, replica):
        waited_ps = take_turn(memory, replica, memory[replica + STEP_PS])
        memory[replica + STEP_PS] += waited_ps
        memory[replica + DECODE_BUSY] -= waited_ps
    memory[replica + GROWTH_PS] = memory[group + CONTEXT_PS] * decoding + memory[group + WINDOW_PS] * growing
    head = memory[replica + QUEUE_HEAD]
    if head != NONE and memory[head + READY] > memory[replica + CLOCK]:
        cut_run(memory, replica, memory[head + READY])
    else:
        set_event(memory, replica, run_boundary_ps(memory, replica, steps))


@compiled
def record_first(memory: Memory, replica: int, step_ps: int) -> None:
    """Count the gaps that end with the first step of a run; some have begun before it."""
    end_ps = memory[replica + HORIZON] + step_ps
    record_step(memory, replica, step_ps, end_ps)
    if memory[replica + RESUMED_COUNT] > 0:
        correct_pauses(memory, replica, step_ps, end_ps)


@compiled_within
def finish_run(memory: Memory, replica: int) -> None:
    """The current run is over: move the replica to the boundary behind it."""
    steps = memory[replica + RUN]
    decoding = memory[replica + DECODING]
    step_ps = memory[replica + STEP_PS]
    growth_ps = memory[replica + GROWTH_PS]
    horizon = memory[replica + HORIZON]
    duration_ps = run_ps(step_ps, growth_ps, steps)
    apart = 1 if memory[replica + JOINED] + memory[replica + RESUMED_COUNT] > 0 else 0
    counted_ps = step_ps
    if memory[memory[replica + GROUP] + RULES] == SGLANG and memory[replica + DECODED] < horizon:
        counted_ps = horizon + step_ps - memory[replica + DECODED]
        record_resumed(memory, replica, horizon + step_ps)
        apart = 1
    elif apart > 0:
        record_first(memory, replica, step_ps)
    if memory[replica + JOINED] > 0:
        emit_joined(memory, replica, counted_ps, horizon + step_ps)
    if memory[memory[replica + GROUP] + RULES] == SGLANG:
        memory[replica + DECODED] = horizon + duration_ps
        memory[replica + DECODES_DUE] = max(0, memory[replica + DECODES_DUE] - steps)
        memory[replica + UNSEEN_ROUNDS] += steps
        if memory[replica + PREEMPTED] == 0:
            expect_less(memory, replica, steps)
    start_ps = horizon + step_ps * apart
    record_run(memory, replica, step_ps + growth_ps * apart, growth_ps, steps - apart, start_ps)
    if steps > 1:
        take_blocks(memory, replica, run_blocks(memory, replica, memory[replica + STEP] + 1, steps - 1))
    if memory[LEDGER_AT] != NONE:
        share_equally(memory, replica, decoding, steps * memory[replica + SHARED_PS])
        count_decodes(memory, replica, steps)
    memory[replica + CLOCK] = run_boundary_ps(memory, replica, steps)
    memory[replica + HORIZON] = horizon + duration_ps
    memory[replica + BUSY_UNTIL] = horizon + duration_ps
    memory[replica + STEP] += steps
    memory[replica + CONTEXT] += decoding * steps
    memory[replica + WINDOW_CONTEXT] += memory[replica + GROWING] * steps
    memory[replica + DECODE_BUSY] += duration_ps
    memory[replica + STEPS] += steps
    memory[replica + RUN] = 0


@compiled
def split_busy_time(memory: Memory, replica: int, first: int, decoding: int, step_ps: int) -> None:
    """Share a step with prefill between the phases: the mean of what each costs alone and what it adds.

    Decode pays at least what its sequences read and hold themselves.
    """
    group = memory[replica + GROUP]
    decoded = decoded_tokens(memory, replica) if decoding > 0 else 0
    tokens = memory[group + MAX_BATCHED_TOKENS] - memory[replica + BUDGET] - decoded
    prefill_ps = step_ps
    if decoding > 0:
        decode_alone_ps = decode_step_ps(
            memory, group, decoded, decoding, memory[replica + CONTEXT], memory[replica + WINDOW_CONTEXT]
        )
        prefill_alone_ps = prefill_step_ps(memory, group, tokens, 0, 0, 0, attention_ps(memory, replica))
        own_ps = decode_alone_ps - token_ps(memory, group, decoded, decoding)
        prefill_ps = min((prefill_alone_ps + step_ps - decode_alone_ps) // 2, step_ps - own_ps)
        memory[replica + MIXED_STEPS] += 1
        if memory[LEDGER_AT] != NONE:
            share_equally(memory, replica, decoding, step_ps - prefill_ps - own_ps)
    if memory[LEDGER_AT] != NONE:
        charge_prefills(memory, replica, first, tokens, prefill_ps)
        count_prefills(memory, replica, tokens, decoding)
    memory[replica + PREFILL_BUSY] += prefill_ps
    memory[replica + DECODE_BUSY] += step_ps - prefill_ps
    memory[replica + CACHED_BUSY] += min(prefill_ps, cached_attention_ps(memory, replica))
    memory[replica + STEPS] += 1


@compiled
def run_prefill_step(memory: Memory, replica: int, first: int) -> None:
    """Run one step with prefill in it, from sequence ``first`` of the running list on.

    Under SGLang's rules the decodes stand still meanwhile, and so does the step number, which counts their tokens.
    """
    group = memory[replica + GROUP]
    pauses = memory[group + RULES] == SGLANG
    if pauses:
        look_soon(memory, replica)
    decoding = 0 if pauses else memory[replica + DECODING]
    tokens = memory[group + MAX_BATCHED_TOKENS] - memory[replica + BUDGET]
    step_ps = prefill_step_ps(
        memory,
        group,
        tokens,
        decoding,
        0 if pauses else memory[replica + CONTEXT],
        0 if pauses else memory[replica + WINDOW_CONTEXT],
        attention_ps(memory, replica),
    )
    step_ps += take_moving_time(memory, replica)
    split_busy_time(memory, replica, first, decoding, step_ps)
    if shares(memory, replica):
        step_ps += take_turn(memory, replica, step_ps)
    start_ps = memory[replica + HORIZON]
    if decoding > 0:
        memory[replica + DRAFTED] = 1 if memory[group + STEP_TOKENS] > 1 else 0
        record_first(memory, replica, step_ps)
        if memory[replica + JOINED] > 0:
            emit_joined(memory, replica, step_ps, start_ps + step_ps)
    memory[replica + HORIZON] = start_ps + step_ps
    memory[replica + BUSY_UNTIL] = start_ps + step_ps
    memory[replica + CLOCK] = start_ps if memory[group + LAG] else start_ps + step_ps
    if not pauses:
        memory[replica + STEP] += 1
        memory[replica + CONTEXT] += decoding
        memory[replica + WINDOW_CONTEXT] += memory[replica + GROWING]
    sequence = first
    while sequence != NONE:
        if pauses and memory[memory[sequence + REQUEST] + PREFIX] & HALF != NONE:
            write_up_to(memory, replica, sequence, memory[sequence + COMPUTED], 0)
        if memory[sequence + STATE] == PREFILL and memory[sequence + COMPUTED] == memory[sequence + TARGET]:
            emit_first(memory, replica, sequence)
        sequence = memory[sequence + RUNNING_NEXT]
    set_event(memory, replica, memory[replica + CLOCK])


@compiled
def wake(memory: Memory, replica: int, ready_ps: int) -> None:
    """An idle replica will fix a step when the head of its queue is ready."""
    memory[replica + CLOCK] = ready_ps
    memory[replica + HORIZON] = ready_ps
    set_event(memory, replica, ready_ps)


@compiled
def run_nothing(memory: Memory, replica: int) -> None:
    """No sequence can compute anything: wait for the step in flight, for an arrival, or for ever."""
    head = memory[replica + QUEUE_HEAD]
    look_soon(memory, replica)
    # A step may be in flight for requests only whose clients have given up.
    in_flight = memory[replica + RUNNING] > 0 or memory[replica + PENDING] != NONE
    if in_flight or memory[replica + HORIZON] > memory[replica + CLOCK]:
        memory[replica + STEP] += 1
        memory[replica + CLOCK] = memory[replica + HORIZON]
        set_event(memory, replica, memory[replica + CLOCK])
        return
    memory[replica + NEW_TOKEN_RATIO] = FIRST_RATIO
    if head == NONE:
        set_event(memory, replica, NEVER_PS)
    elif memory[head + READY] > memory[replica + CLOCK]:
        wake(memory, replica, memory[head + READY])
    elif memory[head + READY] > memory[replica + LOOKED] and memory[memory[replica + GROUP] + RULES] == SGLANG:
        set_event(memory, replica, memory[replica + CLOCK])
    else:
        memory[FAULT] = IDLE_WITH_WORK
        set_event(memory, replica, NEVER_PS)


@compiled
def fix_step(memory: Memory, replica: int) -> int:
    """Apply what is done by now, and fix what comes next; from which sequence on it prefills, or ``NONE``."""
    if memory[replica + RUN] > 0:
        finish_run(memory, replica)
    if memory[memory[replica + GROUP] + RULES] == SGLANG:
        look(memory, replica)
    if memory[PATIENCE_AT] != NONE and memory[replica + FIRST_GONE] != NONE:
        if memory[memory[replica + GROUP] + RULES] == SGLANG and memory[replica + DRAFTED] != 0:
            keep_drafts(memory, replica)
        let_go(memory, replica, memory[replica + CLOCK])
    if memory[replica + DRAFTED] != 0:
        keep_drafts(memory, replica)
    apply_outputs(memory, replica)
    return schedule(memory, replica)


@compiled
def pass_boundary(memory: Memory, replica: int) -> None:
    """Everything that a replica does at one boundary: apply what is done, fix what comes next, run it when ready."""
    scout(memory, replica)
    if shares(memory, replica) and is_held(memory, replica):
        first = let_go_of_step(memory, replica)
    else:
        first = fix_step(memory, replica)
        if shares(memory, replica) and hold(memory, replica, first):
            set_event(memory, replica, memory[replica + HORIZON])
            return
    if first != NONE:
        run_prefill_step(memory, replica, first)
    elif memory[replica + DECODING] > 0:
        start_run(memory, replica)
    else:
        run_nothing(memory, replica)
