"""Layers with a window: a sequence gives back the blocks behind it, one stretch of context after the other.

As in vLLM, a running sequence does so when it is served, before it takes what it needs; with async scheduling as far
as the step in flight needs nothing of it. So while a prompt is computed it holds the window before the chunk and the
chunk, and a decode holds its window in whole blocks. A decode gives back as regularly as it takes, once every
``block_tokens`` steps, so counters by remainder tell that of any run of steps, too; in its first steps it may give back
more, and is looked at. Under SGLang's rules all decodes of a round give back before any of them takes.

What is in a window is its sequence's own: the prefix cache keeps what the other layers hold.
"""

from tokenfleet.simulator.blocks import (
    decode_blocks,
    full_blocks,
    growth_blocks,
    rest_of_block,
    steps_that_fit,
    stretch_blocks,
    stretches,
    take_blocks,
)
from tokenfleet.simulator.compiling import compiled, compiled_apart
from tokenfleet.simulator.layout import (
    BEHIND_TOKENS,
    BLOCK_TOKENS,
    CHUNK,
    DECODE,
    DECODING,
    ENDING,
    FIRST_STEP,
    FREE_BLOCKS,
    FREE_LAG,
    GIVEN_BACK,
    GROUP,
    HELD_AT,
    INSIDE,
    LAST_RUNNING,
    LOOKED_AT,
    MAX_SEQUENCES,
    NONE,
    ORIGIN,
    PHASES_AT,
    PREFILL,
    PROMISED,
    RESUMED,
    RING_AT,
    RULES,
    RUNNING,
    RUNNING_PREVIOUS,
    SEQUENCE_WORDS,
    SETTLED,
    STATE,
    STEP,
    STEP_TOKENS,
    TRTLLM,
    UNHASHED,
    UNSETTLED,
    WINDOW_BLOCKS,
    WINDOW_ROW_WORDS,
    WINDOW_STATE,
    WINDOW_STRETCHES,
)
from tokenfleet.simulator.memory import Memory
from tokenfleet.simulator.patience import NO_STEP
from tokenfleet.simulator.prefixes import computed_tokens
from tokenfleet.simulator.queues import next_waiting


@compiled
def has_window(memory: Memory, group: int) -> bool:
    """Whether any layer has one."""
    return memory[group + WINDOW_BLOCKS] != 0


@compiled
def behind(memory: Memory, group: int, tokens: int) -> int:
    """Stretches that lie wholly behind the window of the token that follows ``tokens``."""
    return full_blocks(memory, group, max(0, tokens - memory[group + BEHIND_TOKENS]))


@compiled
def blocks_needed(memory: Memory, group: int, start: int, end: int) -> int:
    """The most blocks that a sequence holds at once while it gets from ``start`` computed tokens to ``end``."""
    if has_window(memory, group):
        return blocks_with_window(memory, group, start, end)
    return stretches(memory, group, end)


@compiled_apart
def blocks_with_window(memory: Memory, group: int, start: int, end: int) -> int:
    """The same where layers have a window."""
    count = stretches(memory, group, end)
    inside = min(count - behind(memory, group, start), memory[group + WINDOW_STRETCHES])
    return count * growth_blocks(memory, group) + inside * memory[group + WINDOW_BLOCKS]


@compiled_apart
def blocks_of(memory: Memory, group: int, tokens: int, given_back: int) -> int:
    """Blocks that hold ``tokens``, but for so many stretches in layers with a window."""
    count = stretches(memory, group, tokens)
    return count * stretch_blocks(memory, group) - given_back * memory[group + WINDOW_BLOCKS]


@compiled
def kept_blocks(memory: Memory, group: int, tokens: int) -> int:
    """Blocks of ``tokens`` once all behind the window of the next is given back."""
    if not has_window(memory, group):
        return stretches(memory, group, tokens)
    return blocks_of(memory, group, tokens, behind(memory, group, tokens))


@compiled
def window_row(memory: Memory, replica: int, sequence: int) -> int:
    """Index of the window row of a sequence."""
    from_ring = memory[replica + RING_AT] - sequence
    return memory[replica + HELD_AT] - from_ring // (SEQUENCE_WORDS // WINDOW_ROW_WORDS)


@compiled_apart
def given_back(memory: Memory, replica: int, sequence: int, tokens: int) -> int:
    """Stretches that a sequence with so many computed tokens has given back."""
    row = window_row(memory, replica, sequence)
    if memory[row + WINDOW_STATE] == SETTLED:
        group = memory[replica + GROUP]
        return behind(memory, group, tokens - 1 - memory[group + FREE_LAG])
    return memory[row + GIVEN_BACK]


@compiled
def held_blocks(memory: Memory, replica: int, sequence: int, tokens: int) -> int:
    """Blocks that a running sequence with so many computed tokens holds."""
    group = memory[replica + GROUP]
    if not has_window(memory, group):
        return stretches(memory, group, tokens)
    return blocks_of(memory, group, tokens, given_back(memory, replica, sequence, tokens))


# ---- give back


@compiled
def put_back(memory: Memory, replica: int, blocks: int) -> None:
    """Blocks are free again, and hold nothing."""
    memory[replica + FREE_BLOCKS] += blocks
    memory[replica + UNHASHED] += blocks
    if memory[memory[replica + GROUP] + RULES] == TRTLLM:
        memory[replica + PROMISED] += blocks


@compiled
def processed_tokens(memory: Memory, replica: int, sequence: int) -> int:
    """Computed tokens of a sequence that is about to be served, less those in flight."""
    computed = computed_tokens(memory, replica, sequence)
    if memory[memory[replica + GROUP] + FREE_LAG] == 0:
        return computed
    decodes = memory[sequence + STATE] == DECODE
    if memory[sequence + STATE] == PREFILL or (decodes and memory[sequence + FIRST_STEP] == memory[replica + STEP]):
        return computed - memory[sequence + CHUNK]
    return computed - 1 if decodes else computed


@compiled_apart
def due_stretches(memory: Memory, replica: int, sequence: int) -> int:
    """Stretches that a sequence gives back when it is served in the step being fixed."""
    group = memory[replica + GROUP]
    if memory[sequence + STATE] == ENDING:
        return 0
    before = given_back(memory, replica, sequence, computed_tokens(memory, replica, sequence))
    return max(0, behind(memory, group, processed_tokens(memory, replica, sequence)) - before)


@compiled
def due_blocks(memory: Memory, replica: int, sequence: int) -> int:
    """The same in blocks."""
    group = memory[replica + GROUP]
    if has_window(memory, group):
        return due_stretches(memory, replica, sequence) * memory[group + WINDOW_BLOCKS]
    return 0


@compiled
def give_back(memory: Memory, replica: int, sequence: int) -> None:
    """A sequence is served: what lies behind its window is free."""
    if has_window(memory, memory[replica + GROUP]):
        give_back_now(memory, replica, sequence)


@compiled_apart
def give_back_now(memory: Memory, replica: int, sequence: int) -> None:
    """The same where layers have a window."""
    due = due_stretches(memory, replica, sequence)
    if due == 0:
        return
    row = window_row(memory, replica, sequence)
    if memory[row + WINDOW_STATE] != SETTLED:
        memory[row + GIVEN_BACK] += due
    put_back(memory, replica, due * memory[memory[replica + GROUP] + WINDOW_BLOCKS])


@compiled
def freeing_at(memory: Memory, replica: int, step: int) -> int:
    """Where the blocks are counted that settled decodes give back in a step."""
    group = memory[replica + GROUP]
    return memory[replica + PHASES_AT] + memory[group + BLOCK_TOKENS] + rest_of_block(memory, group, step)


@compiled
def decodes_due(memory: Memory, replica: int) -> int:
    """Blocks that all decodes give back when they are served in the step being fixed."""
    return count_due(memory, replica) if has_window(memory, memory[replica + GROUP]) else 0


@compiled_apart
def count_due(memory: Memory, replica: int) -> int:
    """The same where layers have a window."""
    blocks = memory[freeing_at(memory, replica, memory[replica + STEP])]
    left = memory[replica + UNSETTLED]
    sequence = memory[replica + LAST_RUNNING]
    while left > 0:
        if memory[window_row(memory, replica, sequence) + WINDOW_STATE] == LOOKED_AT:
            blocks += due_blocks(memory, replica, sequence)
            left -= 1
        sequence = memory[sequence + RUNNING_PREVIOUS]
    return blocks


@compiled
def give_back_decodes(memory: Memory, replica: int) -> None:
    """All decodes are served: what lies behind their windows is free."""
    if has_window(memory, memory[replica + GROUP]):
        give_back_all(memory, replica)


@compiled_apart
def give_back_all(memory: Memory, replica: int) -> None:
    """The same where layers have a window."""
    put_back(memory, replica, memory[freeing_at(memory, replica, memory[replica + STEP])])
    left = memory[replica + UNSETTLED]
    sequence = memory[replica + LAST_RUNNING]
    while left > 0:
        if memory[window_row(memory, replica, sequence) + WINDOW_STATE] == LOOKED_AT:
            give_back(memory, replica, sequence)
            left -= 1
        sequence = memory[sequence + RUNNING_PREVIOUS]


# ---- sequences


@compiled_apart
def hold_window(memory: Memory, replica: int, sequence: int, start: int) -> None:
    """A sequence is admitted with ``start`` tokens computed: it holds nothing behind its window."""
    row = window_row(memory, replica, sequence)
    memory[row + GIVEN_BACK] = behind(memory, memory[replica + GROUP], start)
    memory[row + WINDOW_STATE] = INSIDE


@compiled_apart
def take_window(memory: Memory, replica: int, start: int) -> None:
    """Take the blocks of a window of its own for a sequence whose ``start`` tokens came from the prefix cache."""
    group = memory[replica + GROUP]
    count = stretches(memory, group, start) - behind(memory, group, start)
    take_blocks(memory, replica, count * memory[group + WINDOW_BLOCKS])


@compiled
def open_window(memory: Memory, replica: int, sequence: int) -> None:
    """A sequence decodes from the next step on."""
    if has_window(memory, memory[replica + GROUP]):
        look_at(memory, replica, sequence)


@compiled_apart
def look_at(memory: Memory, replica: int, sequence: int) -> None:
    """The same where layers have a window: with something behind it, it is looked at in its first steps."""
    group = memory[replica + GROUP]
    past = memory[sequence + ORIGIN] + memory[replica + STEP] > memory[group + BEHIND_TOKENS]
    if past or memory[group + STEP_TOKENS] > 1:
        memory[window_row(memory, replica, sequence) + WINDOW_STATE] = LOOKED_AT
        memory[replica + UNSETTLED] += 1


@compiled
def settling_step(memory: Memory, replica: int, sequence: int) -> int:
    """The last step of a decode before it gives back by its step number alone; of those with drafts none does."""
    if has_window(memory, memory[replica + GROUP]):
        return last_irregular_step(memory, replica, sequence)
    return NO_STEP


@compiled_apart
def last_irregular_step(memory: Memory, replica: int, sequence: int) -> int:
    """The same where layers have a window."""
    group = memory[replica + GROUP]
    if memory[group + STEP_TOKENS] > 1:
        return NO_STEP
    if memory[window_row(memory, replica, sequence) + WINDOW_STATE] == SETTLED:
        return NO_STEP
    joined = max(memory[sequence + FIRST_STEP], memory[sequence + RESUMED])
    return memory[group + FREE_LAG] + max(joined, memory[group + BEHIND_TOKENS] - memory[sequence + ORIGIN])


@compiled
def count_freeing(memory: Memory, replica: int, sequence: int, sign: int) -> None:
    """Add a settled decode to the remainder at which it gives back, or take it away."""
    group = memory[replica + GROUP]
    seen = memory[group + BEHIND_TOKENS] + memory[group + FREE_LAG]
    at = freeing_at(memory, replica, seen - memory[sequence + ORIGIN])
    memory[at] += sign * memory[group + WINDOW_BLOCKS]


@compiled_apart
def settle(memory: Memory, replica: int, sequence: int) -> None:
    """From the next step on a decode gives back by its step number."""
    row = window_row(memory, replica, sequence)
    if memory[row + WINDOW_STATE] == LOOKED_AT:
        memory[replica + UNSETTLED] -= 1
    memory[row + WINDOW_STATE] = SETTLED
    count_freeing(memory, replica, sequence, 1)


@compiled
def close_window(memory: Memory, replica: int, sequence: int) -> None:
    """A sequence decodes no more from the next step on."""
    if has_window(memory, memory[replica + GROUP]):
        forget_window(memory, replica, sequence)


@compiled_apart
def forget_window(memory: Memory, replica: int, sequence: int) -> None:
    """The same where layers have a window: it is not counted any more."""
    row = window_row(memory, replica, sequence)
    if memory[row + WINDOW_STATE] == SETTLED:
        computed = memory[sequence + ORIGIN] + memory[replica + STEP]
        memory[row + GIVEN_BACK] = given_back(memory, replica, sequence, computed)
        count_freeing(memory, replica, sequence, -1)
    elif memory[row + WINDOW_STATE] == LOOKED_AT:
        memory[replica + UNSETTLED] -= 1
    memory[row + WINDOW_STATE] = INSIDE


# ---- runs of steps


@compiled
def run_blocks(memory: Memory, replica: int, step: int, steps: int) -> int:
    """Blocks that the decodes take in ``steps`` steps from ``step`` on, less those that they give back."""
    blocks = decode_blocks(memory, replica, step, steps)
    if has_window(memory, memory[replica + GROUP]):
        blocks -= blocks_given_back(memory, replica, step, steps)
    return blocks


@compiled_apart
def blocks_given_back(memory: Memory, replica: int, step: int, steps: int) -> int:
    """Blocks that settled decodes give back in ``steps`` steps from ``step`` on."""
    blocks = 0
    group = memory[replica + GROUP]
    whole = full_blocks(memory, group, steps)
    rest = rest_of_block(memory, group, steps)
    for index in range(memory[group + BLOCK_TOKENS] if whole > 0 else rest):
        times = whole + 1 if index < rest else whole
        blocks += times * memory[freeing_at(memory, replica, step + index)]
    return blocks


@compiled
def room(memory: Memory, replica: int) -> int:
    """Free blocks that running sequences can take in any order.

    Where windows give some back meanwhile, none of the others may have to be evicted before.
    """
    free = memory[replica + FREE_BLOCKS]
    return min(free, memory[replica + UNHASHED]) if has_window(memory, memory[replica + GROUP]) else free


@compiled
def steps_with_room(memory: Memory, replica: int, step: int, steps: int) -> int:
    """How many of the ``steps`` steps from ``step`` on find all blocks they take without those they give back.

    Somebody who waits for blocks has a look as soon as there are more.
    """
    if has_window(memory, memory[replica + GROUP]):
        return steps_between_windows(memory, replica, step, steps)
    return steps_that_fit(memory, replica, step, steps)


@compiled_apart
def steps_between_windows(memory: Memory, replica: int, step: int, steps: int) -> int:
    """The same where layers have a window."""
    group = memory[replica + GROUP]
    free = room(memory, replica)
    blocked = memory[replica + RUNNING] < memory[group + MAX_SEQUENCES] and next_waiting(memory, replica) != NONE
    most = full_blocks(memory, group, steps) + 1
    if not blocked and free >= memory[replica + DECODING] * stretch_blocks(memory, group) * most:
        return steps
    before = least = free
    block_tokens = memory[group + BLOCK_TOKENS]
    fitting = 0
    while fitting < steps:
        freeing = freeing_at(memory, replica, step + fitting)
        spare = free - memory[freeing - block_tokens]
        if spare < 0:
            return fitting
        least = min(least, spare)
        free = spare + memory[freeing]
        if blocked and free > before:
            return fitting
        fitting += 1
        if fitting == block_tokens:
            lost = before - free
            if lost <= 0:
                return steps
            # Each cycle is like the first, with less room.
            cycles = min(least // lost, full_blocks(memory, group, steps) - 1)
            fitting += cycles * block_tokens
            free -= cycles * lost
    return fitting
