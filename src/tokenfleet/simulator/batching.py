"""Continuous batching: what the next step computes.

The rules are those of the vLLM V1 scheduler, first come first served, unless said otherwise: running sequences
first, in order of admission, each decode one token, an incomplete prefill what is left of the token budget; then,
unless somebody was preempted in this step, the waiting requests from the head of the queue, until one does not fit.
So a prefill that is not complete is always the last of the running list.

TensorRT-LLM differs in that it sets aside the blocks of a request up to its last token at admission, so it never
preempts. SGLang differs more: a step is either prefill or decode, prefill first.
"""

from tokenfleet.simulator.blocks import blocks_for, decode_blocks_now, take_blocks
from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.decoding import join_decodes, last_token_ps, stop_decoding
from tokenfleet.simulator.estimating import expect_anew, expected_output, fits_estimate, least_advanced
from tokenfleet.simulator.layout import (
    BLOCK_TOKENS,
    BUDGET,
    CACHED_PAIRS,
    CHUNKED,
    CLOCK,
    COMPUTED,
    CONTENDED,
    DECODE,
    DECODING,
    ENDING,
    EVICTED,
    EXPECTED,
    FINISH,
    FIRST_RUNNING,
    FIRST_TOKEN,
    FIXED_BLOCKS,
    FREE_BLOCKS,
    FULL_PROMPT_GATE,
    GROUP,
    HALF,
    HISTORY,
    HIT,
    HIT_BLOCKS,
    HIT_UNUSED,
    IS_CONTENDED,
    IS_FULL,
    JOINED,
    LAST_RUNNING,
    MAX_BATCHED_TOKENS,
    MAX_SEQUENCES,
    NONE,
    ORDER,
    ORIGIN,
    PAIRS,
    PARTIAL,
    PREEMPTED,
    PREEMPTIONS,
    PREFILL,
    PREFIX,
    PROMISED,
    QUEUE_HEAD,
    READY,
    REQUEST,
    RULES,
    RUNNING,
    RUNNING_NEXT,
    SGLANG,
    STATE,
    STEP,
    TARGET,
    TRTLLM,
    WATERMARK_BLOCKS,
)
from tokenfleet.simulator.memory import (
    Memory,
    count_preemption,
    input_tokens,
    is_delivered,
    output_tokens,
    produced_tokens,
    set_produced_tokens,
    was_preempted,
)
from tokenfleet.simulator.pool import free_sequence
from tokenfleet.simulator.prefixes import find_hits, hashed_tokens, hold_hits, write_up_to
from tokenfleet.simulator.queues import leave_queue, queue_first, queue_last, spare_slot, start_running, stop_running
from tokenfleet.simulator.ring import take_from_ring


@compiled
def chunk_tokens(memory: Memory, replica: int, sequence: int) -> int:
    """Tokens that an incomplete prefill gets in this step."""
    return min(memory[sequence + TARGET] - memory[sequence + COMPUTED], memory[replica + BUDGET])


@compiled
def chunk_blocks(memory: Memory, replica: int, sequence: int) -> int:
    """Blocks that it needs for them."""
    group = memory[replica + GROUP]
    computed = memory[sequence + COMPUTED]
    after = computed + chunk_tokens(memory, replica, sequence)
    return blocks_for(memory, group, after) - blocks_for(memory, group, computed)


@compiled
def prefill_chunk(memory: Memory, replica: int, sequence: int) -> None:
    """Give a prefill its tokens and blocks."""
    tokens = chunk_tokens(memory, replica, sequence)
    start = memory[sequence + COMPUTED]
    take_blocks(memory, replica, chunk_blocks(memory, replica, sequence))
    memory[replica + PAIRS] += tokens * start + tokens * (tokens + 1) // 2
    memory[replica + CACHED_PAIRS] += tokens * memory[sequence + HIT]
    memory[replica + BUDGET] -= tokens
    memory[sequence + COMPUTED] = start + tokens
    in_tree = memory[memory[sequence + REQUEST] + PREFIX] & HALF != NONE
    if in_tree and memory[memory[replica + GROUP] + RULES] != SGLANG:
        write_up_to(memory, replica, sequence, start + tokens, memory[sequence + ORDER])
    memory[replica + PARTIAL] = sequence if start + tokens < memory[sequence + TARGET] else NONE


@compiled
def finds_room(memory: Memory, replica: int, request: int, known: int) -> bool:
    """Whether there are blocks for the head of the queue, by the rules of its engine, after a look-up in the cache.

    TensorRT-LLM sets aside what is found here; SGLang notes what it expects; vLLM only looks.
    """
    group = memory[replica + GROUP]
    rules = memory[group + RULES]
    if rules == SGLANG:
        return fits_estimate(memory, replica, request, known)
    hit_blocks = memory[replica + HIT_BLOCKS]
    tokens = hit_blocks * memory[group + BLOCK_TOKENS]
    whole = memory[group + FULL_PROMPT_GATE] != 0 or is_delivered(memory, request)
    tokens = known if whole else tokens + min(known - tokens, memory[replica + BUDGET])
    if rules == TRTLLM:
        tokens = input_tokens(memory, request) + output_tokens(memory, request)
    own = blocks_for(memory, group, tokens) + memory[group + FIXED_BLOCKS] - hit_blocks
    need = own + memory[replica + HIT_UNUSED] + memory[replica + PROMISED]
    if memory[replica + RUNNING] > 0:
        need += memory[group + WATERMARK_BLOCKS]
    if need > memory[replica + FREE_BLOCKS]:
        return False
    if rules == TRTLLM:
        memory[replica + PROMISED] += own
    return True


@compiled
def admit_delivered(memory: Memory, replica: int, request: int) -> int:
    """Admit the head of the queue, which brings the KV of its prompt along, if blocks allow it.

    It decodes at once. SGLang takes the blocks that a round computes when it comes to the decodes, vLLM here.
    """
    group = memory[replica + GROUP]
    tokens = input_tokens(memory, request)
    if not finds_room(memory, replica, request, tokens):
        return NONE
    leave_queue(memory, replica)
    sequence = start_running(memory, replica, request)
    if memory[group + RULES] == SGLANG:
        tokens -= 1
    else:
        memory[replica + BUDGET] -= 1
    take_blocks(memory, replica, memory[group + FIXED_BLOCKS])
    take_blocks(memory, replica, blocks_for(memory, group, tokens))
    join_decodes(memory, replica, sequence)
    return sequence


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
    if memory[group + CHUNKED] == 0 and known - hit > memory[replica + BUDGET]:
        return NONE
    if not finds_room(memory, replica, request, known):
        return NONE
    leave_queue(memory, replica)
    sequence = start_running(memory, replica, request)
    if hit > 0:
        hold_hits(memory, replica, sequence)
        if not was_preempted(memory, request):
            memory[request + HISTORY] |= hit
    take_blocks(memory, replica, memory[group + FIXED_BLOCKS])
    memory[sequence + COMPUTED] = hit
    memory[sequence + HIT] = hit
    memory[sequence + TARGET] = known
    prefill_chunk(memory, replica, sequence)
    return sequence


@compiled
def admit_waiting(memory: Memory, replica: int) -> int:
    """Admit from the head of the queue until one does not fit; the first that prefills, or ``NONE``."""
    first = NONE
    most = memory[memory[replica + GROUP] + MAX_SEQUENCES]
    while memory[replica + BUDGET] > 0 and memory[replica + RUNNING] < most:
        request = memory[replica + QUEUE_HEAD]
        if request == NONE or memory[request + READY] > memory[replica + CLOCK]:
            break
        sequence = admit(memory, replica, request)
        if sequence == NONE:
            break
        if first == NONE and memory[sequence + STATE] == PREFILL:
            first = sequence
    return first


@compiled
def preempt(memory: Memory, replica: int, sequence: int) -> None:
    """Take all blocks from a sequence; it computes prompt and output again, before all that wait.

    One whose last step is in flight gets its last token all the same, so it does not wait again.
    """
    request = memory[sequence + REQUEST]
    count_preemption(memory, request)
    memory[replica + PREEMPTIONS] += 1
    memory[replica + PREEMPTED] = 1
    memory[replica + IS_FULL] = 0
    if is_delivered(memory, request):
        memory[request + FIRST_TOKEN] = -1
        memory[replica + JOINED] -= 1
    free_sequence(memory, replica, sequence, hashed_tokens(memory, replica, sequence, memory[replica + STEP]))
    stop_running(memory, replica, sequence)
    if memory[sequence + STATE] == ENDING:
        memory[sequence + STATE] = EVICTED
        return
    if memory[sequence + STATE] == DECODE:
        computed = memory[sequence + ORIGIN] + memory[replica + STEP]
        set_produced_tokens(memory, request, computed + 1 - input_tokens(memory, request))
        memory[request + FINISH] = last_token_ps(memory, replica, sequence)
        stop_decoding(memory, replica, sequence)
        take_from_ring(memory, replica, sequence)
    if memory[memory[replica + GROUP] + RULES] == SGLANG:
        queue_last(memory, replica, request)
    else:
        queue_first(memory, replica, request)
    spare_slot(memory, replica, sequence)


@compiled
def blocks_wanted(memory: Memory, replica: int, sequence: int) -> int:
    """Blocks that one running sequence needs in this step."""
    state = memory[sequence + STATE]
    if state == DECODE:
        computed = memory[sequence + ORIGIN] + memory[replica + STEP]
        return 1 if computed % memory[memory[replica + GROUP] + BLOCK_TOKENS] == 0 else 0
    if state == ENDING:
        return 0
    return chunk_blocks(memory, replica, sequence)


@compiled
def serve_by_order(memory: Memory, replica: int) -> None:
    """Serve the decodes one by one, in order of admission, each at the cost of the last if need be.

    An incomplete prefill is the last, so it is preempted first, by another or because its own chunk does not fit.
    """
    sequence = memory[replica + FIRST_RUNNING]
    while sequence != NONE:
        wanted = blocks_wanted(memory, replica, sequence)
        while wanted > memory[replica + FREE_BLOCKS]:
            victim = memory[replica + LAST_RUNNING]
            preempt(memory, replica, victim)
            if victim == sequence:
                return
        if memory[sequence + STATE] == DECODE:
            take_blocks(memory, replica, wanted)
            if memory[sequence + IS_CONTENDED] != 0:
                tokens = hashed_tokens(memory, replica, sequence, memory[replica + STEP] + 1)
                write_up_to(memory, replica, sequence, tokens, memory[sequence + ORDER])
        sequence = memory[sequence + RUNNING_NEXT]


@compiled
def retract(memory: Memory, replica: int) -> None:
    """Preempt decodes until the others find their blocks; then expect as much output of each as they have shown."""
    while decode_blocks_now(memory, replica) > memory[replica + FREE_BLOCKS]:
        preempt(memory, replica, least_advanced(memory, replica))
    expect_anew(memory, replica)


@compiled
def decode_alone(memory: Memory, replica: int) -> None:
    """Nobody can prefill, so the round is one of decode (SGLang)."""
    if decode_blocks_now(memory, replica) > memory[replica + FREE_BLOCKS]:
        retract(memory, replica)
    take_blocks(memory, replica, decode_blocks_now(memory, replica))


@compiled
def serve_running(memory: Memory, replica: int, partial: int) -> bool:
    """Give the decodes their blocks, before the chunk of an incomplete prefill; whether nobody was preempted."""
    need = decode_blocks_now(memory, replica)
    chunk = chunk_blocks(memory, replica, partial) if partial != NONE else 0
    if need + chunk > memory[replica + FREE_BLOCKS] or memory[replica + CONTENDED] > 0:
        serve_by_order(memory, replica)
        return memory[replica + PREEMPTED] == 0
    take_blocks(memory, replica, need)
    return True


@compiled
def opens_admission(memory: Memory, replica: int, partial: int) -> bool:
    """Whether the queue is looked at in this round, and if so, what the running sequences need (SGLang)."""
    head = memory[replica + QUEUE_HEAD]
    if head == NONE or memory[head + READY] > memory[replica + CLOCK]:
        return False
    if memory[replica + IS_FULL] != 0 and partial == NONE:
        return False
    memory[replica + EXPECTED] = expected_output(memory, replica)
    return True


@compiled
def schedule(memory: Memory, replica: int) -> int:
    """Fix what the next step computes besides its decodes, and take the blocks that all of it needs.

    Returns:
        The first sequence that prefills in the step; all behind it in the running list prefill too, but for those
        that brought their KV along. Or ``NONE``.
    """
    group = memory[replica + GROUP]
    prefill_first = memory[group + RULES] == SGLANG
    memory[replica + PAIRS] = 0
    memory[replica + CACHED_PAIRS] = 0
    memory[replica + PREEMPTED] = 0
    memory[replica + BUDGET] = memory[group + MAX_BATCHED_TOKENS]
    partial = memory[replica + PARTIAL]
    if not prefill_first:
        memory[replica + BUDGET] -= memory[replica + DECODING]
        if not serve_running(memory, replica, partial):
            return NONE
    first = NONE
    if partial != NONE and memory[replica + BUDGET] > 0:
        prefill_chunk(memory, replica, partial)
        first = partial
    if not prefill_first or opens_admission(memory, replica, partial):
        admitted = admit_waiting(memory, replica)
        if first == NONE:
            first = admitted
    if prefill_first and first == NONE:
        decode_alone(memory, replica)
    return first
