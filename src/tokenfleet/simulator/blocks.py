"""Paged KV memory: how many blocks the running sequences need in which step.

A decoding sequence takes a block in every step in which its computed tokens fill the blocks it has. So it needs
one each ``block_tokens`` steps, always at the same remainder of the step number: counting the sequences at each
remainder tells the need of any run of steps without looking at them one by one.

A *stretch* of ``block_tokens`` of context takes one block in most models. Where layers have a window
(:mod:`tokenfleet.simulator.windows`) it takes some in these and some in the others.
"""

from tokenfleet.simulator.compiling import compiled, compiled_apart
from tokenfleet.simulator.extents import evict
from tokenfleet.simulator.layout import (
    BLOCK_SHIFT,
    BLOCK_TOKENS,
    DECODING,
    FREE_BLOCKS,
    GROUP,
    GROWTH_BLOCKS,
    NO_SHIFT,
    ORIGIN,
    PHASES_AT,
    PROMISED,
    STEP,
    STRETCH_BLOCKS,
    UNHASHED,
)
from tokenfleet.simulator.memory import Memory


@compiled
def full_blocks(memory: Memory, group: int, tokens: int) -> int:
    """Blocks that ``tokens`` fill. A shift where it will do: there is a division in every few lines else."""
    shift = memory[group + BLOCK_SHIFT]
    return tokens >> shift if shift != NO_SHIFT else tokens // memory[group + BLOCK_TOKENS]


@compiled
def rest_of_block(memory: Memory, group: int, tokens: int) -> int:
    """Tokens that lie beyond the full blocks."""
    block_tokens = memory[group + BLOCK_TOKENS]
    return tokens & (block_tokens - 1) if memory[group + BLOCK_SHIFT] != NO_SHIFT else tokens % block_tokens


@compiled
def stretches(memory: Memory, group: int, tokens: int) -> int:
    """Stretches of context that ``tokens`` reach into."""
    return full_blocks(memory, group, tokens + memory[group + BLOCK_TOKENS] - 1)


@compiled
def growth_blocks(memory: Memory, group: int) -> int:
    """Blocks of a stretch in layers that keep everything."""
    return memory[group + GROWTH_BLOCKS]


@compiled
def stretch_blocks(memory: Memory, group: int) -> int:
    """Blocks of a stretch in all layers."""
    return memory[group + STRETCH_BLOCKS]


@compiled
def blocks_between(memory: Memory, group: int, start: int, end: int) -> int:
    """Blocks to take for going on from ``start`` tokens to ``end``."""
    return (stretches(memory, group, end) - stretches(memory, group, start)) * stretch_blocks(memory, group)


@compiled
def take_blocks(memory: Memory, replica: int, blocks: int) -> None:
    """Take free blocks, those first that hold nothing; the caller has made sure that there are as many."""
    memory[replica + FREE_BLOCKS] -= blocks
    memory[replica + UNHASHED] -= blocks
    if memory[replica + PROMISED] > 0:
        memory[replica + PROMISED] -= blocks
    if memory[replica + UNHASHED] < 0:
        evict_missing(memory, replica)


@compiled_apart
def evict_missing(memory: Memory, replica: int) -> None:
    """More blocks were taken than hold nothing: the cache gives the others."""
    each = growth_blocks(memory, memory[replica + GROUP])
    missing = -memory[replica + UNHASHED]
    named = missing if each == 1 else (missing + each - 1) // each
    memory[replica + UNHASHED] = evict(memory, replica, named) * each - missing


@compiled
def count_phase(memory: Memory, replica: int, sequence: int, change: int) -> None:
    """Add a decoding sequence to the remainder at which it needs blocks, or take it away."""
    group = memory[replica + GROUP]
    phase = rest_of_block(memory, group, -memory[sequence + ORIGIN])
    memory[memory[replica + PHASES_AT] + phase] += change * stretch_blocks(memory, group)


@compiled
def decode_blocks_now(memory: Memory, replica: int) -> int:
    """Blocks that the decoding sequences need in the next step."""
    return memory[memory[replica + PHASES_AT] + rest_of_block(memory, memory[replica + GROUP], memory[replica + STEP])]


@compiled
def decode_blocks(memory: Memory, replica: int, step: int, steps: int) -> int:
    """Blocks that they need in ``steps`` steps from ``step`` on, together."""
    group = memory[replica + GROUP]
    block_tokens = memory[group + BLOCK_TOKENS]
    blocks = full_blocks(memory, group, steps) * memory[replica + DECODING] * stretch_blocks(memory, group)
    first = rest_of_block(memory, group, step)
    rest = rest_of_block(memory, group, steps)
    phases = memory[replica + PHASES_AT]
    for phase in range(block_tokens):
        ahead = phase - first + (block_tokens if phase < first else 0)
        needed = memory[phases + phase]
        blocks += needed if ahead < rest else 0
    return blocks


@compiled
def steps_that_fit(memory: Memory, replica: int, step: int, steps: int) -> int:
    """How many of the ``steps`` steps from ``step`` on find the blocks they need, where no layer has a window."""
    group = memory[replica + GROUP]
    block_tokens = memory[group + BLOCK_TOKENS]
    free = memory[replica + FREE_BLOCKS]
    decoding = memory[replica + DECODING]
    if free >= decoding * (full_blocks(memory, group, steps) + 1):
        return steps
    cycles = min(full_blocks(memory, group, steps), free // decoding)
    free -= cycles * decoding
    fitting = cycles * block_tokens
    phase = rest_of_block(memory, group, step)
    while fitting < steps:
        free -= memory[memory[replica + PHASES_AT] + phase]
        if free < 0:
            break
        fitting += 1
        phase += 1
        if phase == block_tokens:
            phase = 0
    return fitting
