"""How SGLang guards its memory: an estimate of the output to come at admission, and whom to retract if it was wrong.

Each decode is expected to need a share of the output it declared, the new-token ratio. The ratio falls with every
round of decode, and is set anew by what a retraction shows.
"""

from tokenfleet.simulator.blocks import growth_blocks
from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    BLOCK_TOKENS,
    DECODE,
    EXPECTED,
    FIRST_RUNNING,
    FIXED_BLOCKS,
    FREE_BLOCKS,
    GROUP,
    HIT_BLOCKS,
    HIT_UNUSED,
    IS_FULL,
    LAST_STEP,
    NEW_TOKEN_RATIO,
    NONE,
    PREFILL,
    REQUEST,
    RUNNING_NEXT,
    STATE,
    STEP,
)
from tokenfleet.simulator.memory import Memory, input_tokens, is_delivered, output_tokens, produced_tokens
from tokenfleet.simulator.rules import (
    LEAST_RATIO,
    MOST_EXPECTED_TOKENS,
    RATIO_FALL,
    RATIO_ONE,
    RETRACTION_MARGIN_TOKENS,
)
from tokenfleet.simulator.windows import blocks_needed, has_window


@compiled
def steps_left(memory: Memory, replica: int, sequence: int) -> int:
    """Output tokens that a decoding sequence has still to be scheduled for."""
    return memory[sequence + LAST_STEP] - memory[replica + STEP] + 1


@compiled
def expected_output(memory: Memory, replica: int) -> int:
    """Output that running sequences are expected to need, in tokens times ``RATIO_ONE``; of new ones, all of it."""
    expected = 0
    sequence = memory[replica + FIRST_RUNNING]
    while sequence != NONE:
        request = memory[sequence + REQUEST]
        if memory[sequence + STATE] == DECODE and not is_delivered(memory, request):
            left = min(steps_left(memory, replica, sequence), MOST_EXPECTED_TOKENS)
            expected += left * memory[replica + NEW_TOKEN_RATIO]
        elif memory[sequence + STATE] == DECODE or memory[sequence + STATE] == PREFILL:
            left = output_tokens(memory, request) - produced_tokens(memory, request)
            expected += min(left, MOST_EXPECTED_TOKENS) * RATIO_ONE
        sequence = memory[sequence + RUNNING_NEXT]
    return expected


@compiled
def fits_estimate(memory: Memory, replica: int, request: int, known: int) -> bool:
    """Whether prompt, declared output and a page fit into less than what is free and not expected to be needed.

    A miss closes admission until somebody leaves; a fit is added to what is expected. Where layers have a window, what
    the request itself takes is known to the block, and of the others the layers count that keep everything.
    """
    group = memory[replica + GROUP]
    block_tokens = memory[group + BLOCK_TOKENS]
    left = output_tokens(memory, request) - produced_tokens(memory, request)
    left = min(left, MOST_EXPECTED_TOKENS)
    windowed = has_window(memory, group)
    end = known + left if windowed else known
    each = growth_blocks(memory, group)
    blocks = blocks_needed(memory, group, memory[replica + HIT_BLOCKS] * block_tokens, end)
    blocks += memory[group + FIXED_BLOCKS] + 1 + (memory[replica + HIT_UNUSED] - memory[replica + HIT_BLOCKS]) * each
    free = (memory[replica + FREE_BLOCKS] - blocks) * block_tokens - (0 if windowed else left)
    # Not free times the ratio's one: with an encoder's boundless memory the product is beyond 64 bits.
    if free <= memory[replica + EXPECTED] * max(each, 1) // RATIO_ONE:
        memory[replica + IS_FULL] = 1
        return False
    memory[replica + EXPECTED] += left * RATIO_ONE
    return True


@compiled
def least_advanced(memory: Memory, replica: int) -> int:
    """The decode with the fewest output tokens; of those the longest prompt, of those the one admitted last."""
    found = NONE
    found_produced = 0
    found_input = 0
    sequence = memory[replica + FIRST_RUNNING]
    while sequence != NONE:
        if memory[sequence + STATE] == DECODE:
            request = memory[sequence + REQUEST]
            produced = output_tokens(memory, request) - steps_left(memory, replica, sequence)
            prompt = input_tokens(memory, request)
            if found == NONE or produced < found_produced or (produced == found_produced and prompt >= found_input):
                found = sequence
                found_produced = produced
                found_input = prompt
        sequence = memory[sequence + RUNNING_NEXT]
    return found


@compiled
def expect_anew(memory: Memory, replica: int) -> None:
    """After a retraction: the ratio is what the remaining decodes have produced of their output, and a margin."""
    produced = 0
    declared = 1
    sequence = memory[replica + FIRST_RUNNING]
    while sequence != NONE:
        if memory[sequence + STATE] == DECODE:
            output = output_tokens(memory, memory[sequence + REQUEST])
            produced += output - steps_left(memory, replica, sequence) + RETRACTION_MARGIN_TOKENS
            declared += output
        sequence = memory[sequence + RUNNING_NEXT]
    memory[replica + NEW_TOKEN_RATIO] = min(RATIO_ONE, RATIO_ONE * produced // declared)


@compiled
def expect_less(memory: Memory, replica: int, steps: int) -> None:
    """Rounds of decode went by without a retraction: expect less of each, down to the least share."""
    ratio = memory[replica + NEW_TOKEN_RATIO]
    memory[replica + NEW_TOKEN_RATIO] = max(ratio - RATIO_FALL * steps, LEAST_RATIO)
