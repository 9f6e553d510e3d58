"""Taking and freeing KV blocks of whole sequences."""

from tokenfleet.simulator.blocks import blocks_for
from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    COMPUTED,
    DECODE,
    FIXED_BLOCKS,
    FREE_BLOCKS,
    GROUP,
    ORIGIN,
    PREFILL,
    REQUEST,
    STATE,
    STEP,
)
from tokenfleet.simulator.memory import Memory, input_tokens, output_tokens


@compiled
def computed_tokens(memory: Memory, replica: int, sequence: int) -> int:
    """Tokens of a sequence whose KV is computed by all steps fixed so far."""
    state = memory[sequence + STATE]
    if state == PREFILL:
        return memory[sequence + COMPUTED]
    if state == DECODE:
        return memory[sequence + ORIGIN] + memory[replica + STEP]
    request = memory[sequence + REQUEST]
    return input_tokens(memory, request) + max(output_tokens(memory, request) - 1, 0)


@compiled
def free_sequence(memory: Memory, replica: int, sequence: int) -> None:
    """Free all blocks of a sequence."""
    group = memory[replica + GROUP]
    held = blocks_for(memory, group, computed_tokens(memory, replica, sequence)) + memory[group + FIXED_BLOCKS]
    memory[replica + FREE_BLOCKS] += held
