"""What the running sequences get of a step: tokens and blocks, at the cost of others if need be.

Where both suffice for all, nobody is looked at one by one; else they are served in order of admission.
"""

from tokenfleet.simulator.attention import count_pairs
from tokenfleet.simulator.blocks import (
    blocks_between,
    decode_blocks_now,
    rest_of_block,
    stretch_blocks,
    take_blocks,
)
from tokenfleet.simulator.compiling import compiled, compiled_apart, compiled_within
from tokenfleet.simulator.decoding import (
    last_token_ps,
    leave_batch,
    pause_decoding,
    resume_decoding,
)
from tokenfleet.simulator.layout import (
    AHEAD_BLOCKS,
    BUDGET,
    BY_PRIORITY,
    CHUNK,
    CHUNK_LIMIT,
    CLOCK,
    COMPUTED,
    CONTENDED,
    DECODE,
    DECODING,
    DOOR_AT,
    ENDING,
    EVICTED,
    FINISH,
    FIRST_RUNNING,
    FIRST_TOKEN,
    FIXED_BLOCKS,
    FREE_BLOCKS,
    GROUP,
    HALF,
    IS_CONTENDED,
    IS_FULL,
    JOINED,
    LANE_WAIT,
    LAST_RUNNING,
    LEFT_OUT,
    LEFT_OUT_COUNT,
    MAX_BATCHED_TOKENS,
    MAX_SEQUENCES,
    NONE,
    ORDER,
    ORIGIN,
    PARTIAL,
    PREEMPTED,
    PREEMPTIONS,
    PREFILL,
    PREFIX,
    READY,
    REQUEST,
    RING_NEXT,
    RULES,
    RUNNING,
    RUNNING_NEXT,
    SGLANG,
    STATE,
    STEP,
    STEP_TOKENS,
    TARGET,
    WATERMARK_BLOCKS,
)
from tokenfleet.simulator.memory import (
    Memory,
    count_preemption,
    input_tokens,
    is_delivered,
    next_in_queue,
    produced_tokens,
    set_produced_tokens,
)
from tokenfleet.simulator.patience import note_server
from tokenfleet.simulator.pool import free_sequence
from tokenfleet.simulator.prefixes import (
    computed_tokens,
    first_order,
    hashed_tokens,
    write_up_to,
)
from tokenfleet.simulator.queues import (
    leave_partial,
    queue_first,
    queue_last,
    spare_slot,
    stop_running,
)
from tokenfleet.simulator.speculating import decoded_tokens, draft, draft_blocks, draft_blocks_of
from tokenfleet.simulator.swapping import note_preempted, swap_out
from tokenfleet.simulator.urgency import first_interactive, last_batch, least_urgent
from tokenfleet.simulator.windows import blocks_needed, due_blocks, give_back, give_back_decodes, room


@compiled
def chunk_tokens(memory: Memory, replica: int, sequence: int) -> int:
    """Tokens that an incomplete prefill gets in this step."""
    left = memory[sequence + TARGET] - memory[sequence + COMPUTED]
    return min(left, memory[replica + CHUNK_LIMIT], memory[replica + BUDGET])


@compiled
def chunk_blocks(memory: Memory, replica: int, sequence: int, tokens: int) -> int:
    """Blocks that an incomplete prefill needs for its next ``tokens``."""
    computed = memory[sequence + COMPUTED]
    return blocks_between(memory, memory[replica + GROUP], computed, computed + tokens)


@compiled_within
def prefill_chunk(memory: Memory, replica: int, sequence: int, tokens: int) -> None:
    """Give a prefill so many tokens, and blocks for them."""
    start = memory[sequence + COMPUTED]
    if tokens > 0:
        give_back(memory, replica, sequence)
    take_blocks(memory, replica, chunk_blocks(memory, replica, sequence, tokens))
    memory[sequence + CHUNK] = tokens
    count_pairs(memory, replica, sequence, start, tokens, 1)
    memory[replica + BUDGET] -= tokens
    memory[sequence + COMPUTED] = start + tokens
    in_tree = memory[memory[sequence + REQUEST] + PREFIX] & HALF != NONE
    if in_tree and memory[memory[replica + GROUP] + RULES] != SGLANG:
        write_up_to(memory, replica, sequence, start + tokens, memory[sequence + ORDER])


@compiled
def prefill_partial(memory: Memory, replica: int, sequence: int, tokens: int) -> None:
    """Give an incomplete prefill its next chunk."""
    prefill_chunk(memory, replica, sequence, tokens)
    if memory[sequence + COMPUTED] == memory[sequence + TARGET]:
        leave_partial(memory, replica, sequence)


@compiled
def name_contended(memory: Memory, replica: int, sequence: int, until: int) -> None:
    """Name the tokens that contended decodes get in this step, from one place in the running list to another."""
    while sequence != until:
        if memory[sequence + STATE] == DECODE and memory[sequence + IS_CONTENDED] != 0:
            tokens = hashed_tokens(memory, replica, sequence, memory[replica + STEP] + 1)
            write_up_to(memory, replica, sequence, tokens, memory[sequence + ORDER])
        sequence = memory[sequence + RUNNING_NEXT]


@compiled
def prefill_partials(memory: Memory, replica: int) -> int:
    """Give all incomplete prefills their next chunks; the first of them, or ``NONE``."""
    first = memory[replica + PARTIAL]
    sequence = first
    while sequence != NONE:
        after = memory[sequence + RING_NEXT]
        prefill_partial(memory, replica, sequence, chunk_tokens(memory, replica, sequence))
        if memory[replica + CONTENDED] > 0:
            name_contended(memory, replica, memory[sequence + RUNNING_NEXT], after)
        sequence = after
    return first


@compiled
def preempt(memory: Memory, replica: int, sequence: int, served: int) -> None:
    """Take all blocks from a sequence; it computes prompt and output again, before all that wait.

    One whose last step is in flight gets its last token all the same, so it does not wait again. ``served``: tokens it
    was given in the step being fixed. The blocks for them are named in the cache, though nobody will compute them.
    """
    request = memory[sequence + REQUEST]
    state = memory[sequence + STATE]
    decoded = served if state == DECODE else 0
    count_preemption(memory, request)
    memory[replica + PREEMPTIONS] += 1
    memory[replica + PREEMPTED] = 1
    memory[replica + IS_FULL] = 0
    if is_delivered(memory, request):
        memory[request + FIRST_TOKEN] = -1
        memory[replica + JOINED] -= 1
    if state in (DECODE, LEFT_OUT):
        computed = computed_tokens(memory, replica, sequence)
        set_produced_tokens(memory, request, computed + 1 - input_tokens(memory, request))
        memory[request + FINISH] = last_token_ps(memory, replica, sequence)
        swap_out(memory, replica, request)
    note_preempted(memory, request, computed_tokens(memory, replica, sequence) + decoded - served)
    tokens = computed_tokens(memory, replica, sequence) + decoded
    named = hashed_tokens(memory, replica, sequence, memory[replica + STEP] + decoded)
    free_sequence(memory, replica, sequence, tokens, named)
    stop_running(memory, replica, sequence)
    if state == ENDING:
        memory[sequence + STATE] = EVICTED
        return
    leave_batch(memory, replica, sequence)
    note_server(memory, request, NONE)
    if memory[memory[replica + GROUP] + RULES] == SGLANG:
        queue_last(memory, replica, request)
    else:
        queue_first(memory, replica, request)
    spare_slot(memory, replica, sequence)


@compiled
def take_back(memory: Memory, replica: int, sequence: int) -> int:
    """Undo what a sequence was given in the step being fixed, which now goes on without it; the tokens it was given."""
    if memory[sequence + STATE] == DECODE:
        draft(memory, replica, sequence, memory[sequence + CHUNK], -1)
        return 1
    if memory[sequence + STATE] == ENDING:
        return 0
    tokens = memory[sequence + CHUNK]
    start = memory[sequence + COMPUTED] - tokens
    count_pairs(memory, replica, sequence, start, tokens, -1)
    memory[replica + BUDGET] += tokens
    return tokens


@compiled
def preempt_for(memory: Memory, replica: int, sequence: int) -> bool:
    """Preempt somebody so that a running sequence finds its blocks; whether that was somebody else.

    First come first served, that is the sequence admitted last. By priority it may be one that was served before.
    """
    victim = memory[replica + LAST_RUNNING]
    served = 0
    if memory[memory[replica + GROUP] + BY_PRIORITY] != 0:
        victim = least_urgent(memory, replica)
        if memory[victim + ORDER] < memory[sequence + ORDER]:
            served = take_back(memory, replica, victim)
    preempt(memory, replica, victim, served)
    return victim != sequence


@compiled
def serve_decode(memory: Memory, replica: int, sequence: int, wanted: int, drafted: int) -> None:
    """Give one decoding sequence its token of this step and blocks for it, and so many drafted ones."""
    give_back(memory, replica, sequence)
    if memory[sequence + STATE] == LEFT_OUT:
        resume_decoding(memory, replica, sequence)
    draft(memory, replica, sequence, drafted, 1)
    take_blocks(memory, replica, wanted)
    if memory[sequence + IS_CONTENDED] != 0:
        name_contended(memory, replica, sequence, memory[sequence + RUNNING_NEXT])


@compiled
def blocks_wanted(memory: Memory, replica: int, sequence: int, tokens: int) -> int:
    """Blocks that one running sequence needs in this step; a prefill computes ``tokens`` in it."""
    state = memory[sequence + STATE]
    if state == DECODE:
        computed = memory[sequence + ORIGIN] + memory[replica + STEP]
    elif state == ENDING:
        return 0
    elif state == PREFILL:
        return chunk_blocks(memory, replica, sequence, tokens)
    else:
        computed = memory[sequence + COMPUTED]
    group = memory[replica + GROUP]
    return stretch_blocks(memory, group) if rest_of_block(memory, group, computed) == 0 else 0


@compiled
def name_paused(memory: Memory, replica: int) -> None:
    """With async scheduling, the last token of a paused sequence is known one step later than it was left out."""
    sequence = memory[replica + FIRST_RUNNING]
    while sequence != NONE and memory[replica + LEFT_OUT_COUNT] > 0:
        in_tree = memory[memory[sequence + REQUEST] + PREFIX] & HALF != NONE
        if in_tree and memory[sequence + STATE] == LEFT_OUT:
            tokens = hashed_tokens(memory, replica, sequence, memory[replica + STEP])
            write_up_to(memory, replica, sequence, tokens, first_order(memory, replica))
        sequence = memory[sequence + RUNNING_NEXT]


@compiled
def leave_out(memory: Memory, replica: int, sequence: int) -> None:
    """Nothing is left for this sequence and those behind it in the running list."""
    while sequence != NONE:
        memory[sequence + CHUNK] = 0
        if memory[sequence + STATE] == DECODE:
            pause_decoding(memory, replica, sequence)
        sequence = memory[sequence + RUNNING_NEXT]


@compiled
def first_prefill(memory: Memory, replica: int) -> int:
    """Where to look for prefills, when the budget was spent on more than decodes; else ``NONE``."""
    group = memory[replica + GROUP]
    spent = memory[group + MAX_BATCHED_TOKENS] - memory[replica + BUDGET]
    return memory[replica + FIRST_RUNNING] if spent > decoded_tokens(memory, replica) else NONE


@compiled_apart
def serve_by_order(memory: Memory, replica: int) -> int:
    """Serve the running sequences one by one, each at the cost of others if need be; where to look for prefills."""
    name_paused(memory, replica)
    sequence = memory[replica + FIRST_RUNNING]
    while sequence != NONE and memory[replica + BUDGET] > 0:
        state = memory[sequence + STATE]
        tokens = chunk_tokens(memory, replica, sequence) if state == PREFILL else 1
        wanted = blocks_wanted(memory, replica, sequence, tokens)
        drafted = min(memory[memory[replica + GROUP] + STEP_TOKENS], memory[replica + BUDGET]) - 1
        ahead = draft_blocks_of(memory, replica, sequence, drafted)
        wanted_ahead = wanted + ahead - due_blocks(memory, replica, sequence)
        while wanted_ahead + memory[replica + AHEAD_BLOCKS] > memory[replica + FREE_BLOCKS]:
            after = memory[sequence + RUNNING_NEXT]
            if not preempt_for(memory, replica, sequence):
                leave_out(memory, replica, after)
                return first_prefill(memory, replica)
        if state == PREFILL:
            prefill_partial(memory, replica, sequence, tokens)
        elif state != ENDING:
            serve_decode(memory, replica, sequence, wanted, drafted)
        sequence = memory[sequence + RUNNING_NEXT]
    leave_out(memory, replica, sequence)
    return first_prefill(memory, replica)


@compiled
def fits_at_once(memory: Memory, replica: int, blocks: int) -> bool:
    """Whether tokens and blocks suffice for all that run, so that the order in which they are served does not matter.

    The prefill at the end of the running list may be cut short by the budget: nobody is served after it. ``blocks``:
    those that the decodes need.
    """
    if memory[replica + CONTENDED] + memory[replica + LEFT_OUT_COUNT] > 0:
        return False
    budget = memory[replica + BUDGET] - memory[replica + DECODING] * memory[memory[replica + GROUP] + STEP_TOKENS]
    sequence = memory[replica + PARTIAL]
    while sequence != NONE:
        tokens = min(memory[sequence + TARGET] - memory[sequence + COMPUTED], memory[replica + CHUNK_LIMIT])
        if tokens > budget:
            if memory[sequence + RUNNING_NEXT] != NONE:
                return False
            tokens = budget
        budget -= tokens
        blocks += chunk_blocks(memory, replica, sequence, tokens)
        sequence = memory[sequence + RING_NEXT]
    return blocks <= room(memory, replica)


@compiled
def serve_running(memory: Memory, replica: int) -> int:
    """Give the running sequences their tokens and blocks; where to look for prefills in the running list."""
    blocks = decode_blocks_now(memory, replica)
    ahead = draft_blocks(memory, replica)
    if not fits_at_once(memory, replica, blocks + ahead):
        return serve_by_order(memory, replica)
    memory[replica + BUDGET] -= memory[replica + DECODING] * memory[memory[replica + GROUP] + STEP_TOKENS]
    memory[replica + AHEAD_BLOCKS] = ahead
    take_blocks(memory, replica, blocks)
    give_back_decodes(memory, replica)
    return NONE if memory[replica + PARTIAL] == NONE else prefill_partials(memory, replica)


@compiled_apart
def give_way(memory: Memory, replica: int) -> None:
    """Where batch has a lane, its running sequences give way to interactive requests that wait for a slot or blocks.

    As many of those as a step can take are made room for, each once it has waited for the lane's wait. Their whole
    prompts are looked at, whatever the prefix cache may save.
    """
    group = memory[replica + GROUP]
    slots = memory[group + MAX_SEQUENCES] - memory[replica + RUNNING]
    blocks = memory[replica + FREE_BLOCKS] - memory[group + WATERMARK_BLOCKS]
    budget = memory[group + MAX_BATCHED_TOKENS]
    latest_ps = memory[replica + CLOCK] - memory[memory[DOOR_AT] + LANE_WAIT]
    request = first_interactive(memory, replica)
    while request != NONE and memory[request + READY] <= latest_ps and budget > 0:
        tokens = input_tokens(memory, request) + produced_tokens(memory, request)
        slots -= 1
        blocks -= blocks_needed(memory, group, 0, tokens) + memory[group + FIXED_BLOCKS]
        budget -= tokens
        while slots < 0 or blocks < 0:
            victim = last_batch(memory, replica, request)
            if victim == NONE:
                return
            name_paused(memory, replica)
            free = memory[replica + FREE_BLOCKS]
            preempt(memory, replica, victim, 0)
            slots += 1
            blocks += memory[replica + FREE_BLOCKS] - free
        request = next_in_queue(memory, request)
