"""Paged KV memory: how many blocks the running sequences need in which step.

A decoding sequence takes a block in every step in which its computed tokens fill the blocks it has. So it needs
one each ``block_tokens`` steps, always at the same remainder of the step number: counting the sequences at each
remainder tells the need of any run of steps without looking at them one by one.
"""

from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.extents import evict
from tokenfleet.simulator.layout import (
    BLOCK_TOKENS,
    DECODING,
    FREE_BLOCKS,
    GROUP,
    ORIGIN,
    PHASES_AT,
    PROMISED,
    STEP,
    UNHASHED,
)
from tokenfleet.simulator.memory import Memory


@compiled
def blocks_for(memory: Memory, group: int, tokens: int) -> int:
    """Blocks that hold ``tokens``."""
    block_tokens = memory[group + BLOCK_TOKENS]
    return (tokens + block_tokens - 1) // block_tokens


@compiled
def take_blocks(memory: Memory, replica: int, blocks: int) -> None:
    """Take free blocks, those first that hold nothing; the caller has made sure that there are as many."""
    memory[replica + FREE_BLOCKS] -= blocks
    memory[replica + UNHASHED] -= blocks
    if memory[replica + PROMISED] > 0:
        memory[replica + PROMISED] -= blocks
    if memory[replica + UNHASHED] < 0:
        evict(memory, replica, -memory[replica + UNHASHED])
        memory[replica + UNHASHED] = 0


@compiled
def count_phase(memory: Memory, replica: int, sequence: int, change: int) -> None:
    """Add a decoding sequence to the remainder at which it needs blocks, or take it away."""
    phase = -memory[sequence + ORIGIN] % memory[memory[replica + GROUP] + BLOCK_TOKENS]
    memory[memory[replica + PHASES_AT] + phase] += change


@compiled
def decode_blocks_now(memory: Memory, replica: int) -> int:
    """Blocks that the decoding sequences need in the next step."""
    return memory[memory[replica + PHASES_AT] + memory[replica + STEP] % memory[memory[replica + GROUP] + BLOCK_TOKENS]]


@compiled
def decode_blocks(memory: Memory, replica: int, step: int, steps: int) -> int:
    """Blocks that they need in ``steps`` steps from ``step`` on, together."""
    block_tokens = memory[memory[replica + GROUP] + BLOCK_TOKENS]
    blocks = steps // block_tokens * memory[replica + DECODING]
    phase = step % block_tokens
    for _ in range(steps % block_tokens):
        blocks += memory[memory[replica + PHASES_AT] + phase]
        phase += 1
        if phase == block_tokens:
            phase = 0
    return blocks


@compiled
def steps_that_fit(memory: Memory, replica: int, step: int, steps: int) -> int:
    """How many of the ``steps`` steps from ``step`` on find the blocks they need."""
    block_tokens = memory[memory[replica + GROUP] + BLOCK_TOKENS]
    free = memory[replica + FREE_BLOCKS]
    decoding = memory[replica + DECODING]
    if free >= decoding * (steps // block_tokens + 1):
        return steps
    cycles = min(steps // block_tokens, free // decoding)
    free -= cycles * decoding
    fitting = cycles * block_tokens
    phase = step % block_tokens
    while fitting < steps:
        free -= memory[memory[replica + PHASES_AT] + phase]
        if free < 0:
            break
        fitting += 1
        phase += 1
        if phase == block_tokens:
            phase = 0
    return fitting
