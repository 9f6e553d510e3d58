"""Freeing the KV blocks of whole sequences."""

from tokenfleet.simulator.blocks import blocks_for
from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    BLOCK_TOKENS,
    FIXED_BLOCKS,
    FREE_BLOCKS,
    GROUP,
    HALF,
    HASHED,
    NONE,
    PREFIX,
    PREFIX_CACHING,
    REQUEST,
    UNHASHED,
)
from tokenfleet.simulator.memory import Memory
from tokenfleet.simulator.prefixes import (
    computed_tokens,
    hashed_tokens,
    path_blocks,
    release_own,
    release_path,
    write_up_to,
)


@compiled
def free_sequence(memory: Memory, replica: int, sequence: int, ended: bool) -> None:
    """Free all blocks of a sequence that has ended or is preempted; those with a name stay in the cache."""
    group = memory[replica + GROUP]
    computed = computed_tokens(memory, replica, sequence)
    held = blocks_for(memory, group, computed) + memory[group + FIXED_BLOCKS]
    if memory[group + PREFIX_CACHING] == 0:
        memory[replica + FREE_BLOCKS] += held
        return
    request = memory[sequence + REQUEST]
    named_tokens = computed if ended else hashed_tokens(memory, replica, sequence, 0)
    named = named_tokens // memory[group + BLOCK_TOKENS]
    path = path_blocks(memory, replica, request)
    if path > 0:
        write_up_to(memory, replica, sequence, named_tokens)
    own = held - memory[sequence + HASHED]
    own_named = max(0, named - path)
    memory[replica + FREE_BLOCKS] += own
    memory[replica + UNHASHED] += own - own_named
    if own_named > 0:
        release_own(memory, replica, sequence, path, named)
    if memory[request + PREFIX] & HALF != NONE:
        release_path(memory, replica, sequence)
