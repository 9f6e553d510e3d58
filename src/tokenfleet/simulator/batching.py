"""Continuous batching: what the next step computes.

The rules are those of the vLLM V1 scheduler, first come first served, unless said otherwise: running sequences
first, in order of admission, each decode one token, an incomplete prefill what is left of the token budget; then,
unless somebody was preempted in this step, the waiting requests from the head of the queue, until one does not fit.
So a prefill that is not complete is the last of the running list, unless prompts are limited to a part of the budget:
then several are under way at once. By priority, a sequence that finds no block may be the one to be preempted, and
those behind it in the list pause for a step.

TensorRT-LLM differs in that it sets aside the blocks of a request up to its last token at admission, so it never
preempts. SGLang differs more: a step is either prefill or decode, prefill first.
"""

from tokenfleet.simulator.attention import forget_pairs
from tokenfleet.simulator.blocks import decode_blocks_now, growth_blocks, take_blocks
from tokenfleet.simulator.compiling import compiled, compiled_apart, compiled_within
from tokenfleet.simulator.decoding import (
    join_decodes,
)
from tokenfleet.simulator.estimating import expect_anew, expected_output, fits_estimate, least_advanced
from tokenfleet.simulator.layout import (
    AHEAD_BLOCKS,
    BLOCK_TOKENS,
    BUDGET,
    BY_LANE,
    BY_PRIORITY,
    CHUNK_LIMIT,
    CHUNKED,
    COMPUTED,
    DECODE_INTERVAL,
    DECODES_DUE,
    DECODING,
    EXPECTED,
    FIXED_BLOCKS,
    FREE_BLOCKS,
    FULL_PROMPT_GATE,
    GROUP,
    HISTORY,
    HIT,
    HIT_BLOCKS,
    HIT_UNUSED,
    IS_FULL,
    LONE_CHUNK,
    LONG_CHUNK,
    MAX_BATCHED_TOKENS,
    MAX_SEQUENCES,
    NO_CHUNK_LIMIT,
    NONE,
    PARTIAL,
    PREEMPTED,
    PREFILL,
    PREFIX,
    PROMISED,
    REQUEST,
    RULES,
    RUNNING,
    SGLANG,
    STATE,
    STEP_TOKENS,
    TARGET,
    TRTLLM,
    WAITING,
    WATERMARK_BLOCKS,
)
from tokenfleet.simulator.memory import (
    Memory,
    input_tokens,
    is_delivered,
    output_tokens,
    preemption_count,
    produced_tokens,
)
from tokenfleet.simulator.prefixes import (
    find_hits,
    hold_hits,
)
from tokenfleet.simulator.queues import (
    join_partial,
    leave_queue,
    next_waiting,
    ready_waiting,
    start_running,
)
from tokenfleet.simulator.serving import (
    chunk_tokens,
    give_way,
    preempt,
    prefill_chunk,
    prefill_partials,
    serve_running,
)
from tokenfleet.simulator.speculating import draft, draft_blocks
from tokenfleet.simulator.swapping import host_tokens, is_swapped, note_readmitted, swap_in
from tokenfleet.simulator.urgency import sort_ready
from tokenfleet.simulator.windows import (
    blocks_needed,
    decodes_due,
    give_back_decodes,
    has_window,
    held_blocks,
    hold_window,
    take_window,
)


@compiled_within
def finds_room(memory: Memory, replica: int, request: int, known: int) -> bool:
    """Whether there are blocks for the head of the queue, by the rules of its engine, after a look-up in the cache.

    TensorRT-LLM sets aside what is found here; SGLang notes what it expects; vLLM only looks.
    """
    group = memory[replica + GROUP]
    rules = memory[group + RULES]
    if rules == SGLANG:
        return fits_estimate(memory, replica, request, known)
    hit_blocks = memory[replica + HIT_BLOCKS]
    start = tokens = hit_blocks * memory[group + BLOCK_TOKENS]
    whole = memory[group + FULL_PROMPT_GATE] != 0 or is_delivered(memory, request) or is_swapped(memory, request)
    chunk = min(known - tokens, memory[replica + CHUNK_LIMIT], memory[replica + BUDGET])
    tokens = known if whole else tokens + chunk
    drafted = memory[group + STEP_TOKENS] - 1
    if rules == TRTLLM:
        start = 0
        tokens = input_tokens(memory, request) + output_tokens(memory, request) + drafted
    elif is_delivered(memory, request):
        start = known - 1
        tokens += drafted
    elif is_swapped(memory, request):
        start = host_tokens(memory, request)
    each = growth_blocks(memory, group)
    own = blocks_needed(memory, group, start, tokens) + memory[group + FIXED_BLOCKS] - hit_blocks * each
    need = own + memory[replica + HIT_UNUSED] * each
    need += memory[replica + PROMISED] if rules == TRTLLM else memory[replica + AHEAD_BLOCKS]
    if memory[replica + RUNNING] > 0:
        need += memory[group + WATERMARK_BLOCKS]
    if need > memory[replica + FREE_BLOCKS]:
        return False
    if rules == TRTLLM:
        memory[replica + PROMISED] += own
    return True


@compiled_apart
def admit_delivered(memory: Memory, replica: int, request: int) -> int:
    """Admit the head of the queue, which brings the KV of its prompt along, if blocks allow it.

    It decodes at once. SGLang takes the blocks that a round computes when it comes to the decodes, vLLM here.
    """
    group = memory[replica + GROUP]
    tokens = input_tokens(memory, request)
    pauses = memory[group + RULES] == SGLANG
    if not pauses and memory[replica + BUDGET] < memory[group + STEP_TOKENS]:
        return NONE
    if not finds_room(memory, replica, request, tokens):
        return NONE
    leave_queue(memory, replica, request)
    sequence = start_running(memory, replica, request)
    if has_window(memory, group):
        hold_window(memory, replica, sequence, tokens - 1)
    take_blocks(memory, replica, memory[group + FIXED_BLOCKS])
    take_blocks(memory, replica, held_blocks(memory, replica, sequence, tokens - 1 if pauses else tokens))
    join_decodes(memory, replica, sequence)
    if not pauses:
        draft(memory, replica, sequence, memory[group + STEP_TOKENS] - 1, 1)
    return sequence


@compiled
def take_start(memory: Memory, replica: int, sequence: int, start: int) -> None:
    """Take what a sequence holds with its first ``start`` tokens, beside what it found in the prefix cache."""
    group = memory[replica + GROUP]
    request = memory[sequence + REQUEST]
    take_blocks(memory, replica, memory[group + FIXED_BLOCKS])
    if has_window(memory, group):
        hold_window(memory, replica, sequence, start)
    if is_swapped(memory, request):
        swap_in(memory, replica, request)
    elif has_window(memory, group):
        take_window(memory, replica, start)


@compiled
def admit(memory: Memory, replica: int, request: int) -> int:
    """Admit the head of the queue if tokens, blocks and the gate allow it; its sequence, or ``NONE``.

    Nothing is set aside for output, nor for the rest of a prompt that is let in whole: the gate only looks.
    """
    group = memory[replica + GROUP]
    known = input_tokens(memory, request) + produced_tokens(memory, request)
    memory[replica + HIT_BLOCKS] = 0
    memory[replica + HIT_UNUSED] = 0
    if is_delivered(memory, request):
        return admit_delivered(memory, replica, request)
    if memory[request + PREFIX] != NONE:
        find_hits(memory, replica, request, known)
    hit_blocks = memory[replica + HIT_BLOCKS]
    hit = hit_blocks * memory[group + BLOCK_TOKENS]
    start = host_tokens(memory, request) if is_swapped(memory, request) else hit
    if memory[group + CHUNKED] == 0 and min(known - start, memory[replica + CHUNK_LIMIT]) > memory[replica + BUDGET]:
        return NONE
    if not finds_room(memory, replica, request, known):
        return NONE
    leave_queue(memory, replica, request)
    sequence = start_running(memory, replica, request)
    if hit > 0:
        hold_hits(memory, replica, sequence)
        if preemption_count(memory, request) == 0:
            memory[request + HISTORY] |= hit
    note_readmitted(memory, replica, request, hit)
    take_start(memory, replica, sequence, start)
    memory[sequence + COMPUTED] = start
    memory[sequence + HIT] = hit
    memory[sequence + TARGET] = known
    prefill_chunk(memory, replica, sequence, chunk_tokens(memory, replica, sequence))
    if memory[sequence + COMPUTED] < known:
        join_partial(memory, replica, sequence)
    return sequence


@compiled_within
def admit_waiting(memory: Memory, replica: int) -> int:
    """Admit from the head of the queue until one does not fit; the first that prefills, or ``NONE``."""
    first = NONE
    most = memory[memory[replica + GROUP] + MAX_SEQUENCES]
    while memory[replica + BUDGET] > 0 and memory[replica + RUNNING] < most:
        request = next_waiting(memory, replica)
        if request == NONE:
            break
        sequence = admit(memory, replica, request)
        if sequence == NONE:
            break
        if first == NONE and memory[sequence + STATE] == PREFILL:
            first = sequence
    return first


@compiled
def decodes_fit(memory: Memory, replica: int) -> bool:
    """Whether all decodes find their blocks, those of drafts included (SGLang)."""
    wanted = decode_blocks_now(memory, replica) + draft_blocks(memory, replica)
    return wanted <= memory[replica + FREE_BLOCKS] + decodes_due(memory, replica)


@compiled
def retract(memory: Memory, replica: int) -> None:
    """Preempt decodes until the others find their blocks; then expect as much output of each as they have shown."""
    while not decodes_fit(memory, replica):
        preempt(memory, replica, least_advanced(memory, replica), 0)
    expect_anew(memory, replica)


@compiled
def decode_alone(memory: Memory, replica: int) -> None:
    """Nobody can prefill, so the round is one of decode (SGLang)."""
    if not decodes_fit(memory, replica):
        retract(memory, replica)
    give_back_decodes(memory, replica)
    take_blocks(memory, replica, decode_blocks_now(memory, replica))


@compiled
def chunk_limit(memory: Memory, replica: int) -> int:
    """Tokens that one prompt gets of a step at most."""
    group = memory[replica + GROUP]
    limit = memory[group + LONG_CHUNK]
    if limit == NO_CHUNK_LIMIT or memory[replica + RUNNING] > 1:
        return limit
    alone = memory[replica + RUNNING] + ready_waiting(memory, replica) <= 1
    return memory[group + LONE_CHUNK] if alone else limit


@compiled
def opens_admission(memory: Memory, replica: int, partial: int) -> bool:
    """Whether the queue is looked at in this round, and if so, what the running sequences need (SGLang)."""
    if next_waiting(memory, replica) == NONE:
        return False
    if memory[replica + IS_FULL] != 0 and partial == NONE:
        return False
    memory[replica + EXPECTED] = expected_output(memory, replica)
    return True


@compiled_apart
def schedule_round(memory: Memory, replica: int) -> int:
    """A round of prefill if there is anything to prefill, else one of decode (SGLang); see :func:`schedule`.

    After a round of prefill, as many rounds of decode come first as the engine is set to, if anybody decodes.
    """
    if memory[replica + DECODES_DUE] > 0 and memory[replica + DECODING] > 0:
        decode_alone(memory, replica)
        return NONE
    memory[replica + DECODES_DUE] = 0
    partial = memory[replica + PARTIAL]
    first = prefill_partials(memory, replica)
    if opens_admission(memory, replica, partial):
        admitted = admit_waiting(memory, replica)
        if first == NONE:
            first = admitted
    if first == NONE:
        decode_alone(memory, replica)
    else:
        memory[replica + DECODES_DUE] = memory[memory[replica + GROUP] + DECODE_INTERVAL]
    return first


@compiled
def schedule(memory: Memory, replica: int) -> int:
    """Fix what the next step computes besides its decodes, and take the blocks that all of it needs.

    Returns:
        A sequence of the running list; all that prefill in the step are not before it. ``NONE``: nobody prefills.
    """
    group = memory[replica + GROUP]
    forget_pairs(memory, replica)
    if memory[group + BY_PRIORITY] != 0:
        sort_ready(memory, replica)
        if memory[group + BY_PRIORITY] == BY_LANE:
            give_way(memory, replica)
    # Who gave way made room for somebody, who is admitted in this very step.
    memory[replica + PREEMPTED] = 0
    memory[replica + AHEAD_BLOCKS] = 0
    memory[replica + BUDGET] = memory[group + MAX_BATCHED_TOKENS]
    memory[replica + CHUNK_LIMIT] = chunk_limit(memory, replica)
    if memory[group + RULES] == SGLANG:
        return schedule_round(memory, replica)
    first = serve_running(memory, replica)
    if memory[replica + PREEMPTED] == 0 and memory[replica + WAITING] > 0:
        admitted = admit_waiting(memory, replica)
        if first == NONE:
            first = admitted
    return first
