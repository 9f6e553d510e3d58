"""Freeing the KV blocks of whole sequences."""

from tokenfleet.simulator.blocks import full_blocks, growth_blocks
from tokenfleet.simulator.compiling import compiled_within
from tokenfleet.simulator.layout import (
    ENDING,
    FIXED_BLOCKS,
    FREE_BLOCKS,
    GROUP,
    HALF,
    HASHED,
    NONE,
    OLDEST,
    PREFIX,
    PREFIX_CACHING,
    REQUEST,
    STATE,
    UNHASHED,
    UNHASHED_LAST,
)
from tokenfleet.simulator.memory import Memory
from tokenfleet.simulator.prefixes import (
    first_order,
    path_blocks,
    release_nameless,
    release_own,
    release_path,
    write_up_to,
)
from tokenfleet.simulator.windows import held_blocks


@compiled_within
def free_sequence(memory: Memory, replica: int, sequence: int, tokens: int, named_tokens: int) -> None:
    """Free the blocks that a sequence holds for ``tokens``; those its first ``named_tokens`` fill stay in the cache."""
    group = memory[replica + GROUP]
    held = held_blocks(memory, replica, sequence, tokens) + memory[group + FIXED_BLOCKS]
    if memory[group + PREFIX_CACHING] == 0:
        memory[replica + FREE_BLOCKS] += held
        return
    request = memory[sequence + REQUEST]
    named = full_blocks(memory, group, named_tokens)
    path = path_blocks(memory, replica, request)
    if path > 0:
        write_up_to(memory, replica, sequence, named_tokens, first_order(memory, replica))
    each = growth_blocks(memory, group)
    own = held - memory[sequence + HASHED] * each
    own_named = max(0, named - path)
    if memory[sequence + STATE] == ENDING and memory[replica + OLDEST] == NONE:
        # Nobody finds its own tokens again, and nothing that is kept for anybody would be reused before them.
        own_named = 0
    memory[replica + FREE_BLOCKS] += own
    nameless = own - own_named * each
    if memory[group + UNHASHED_LAST] == 0:
        memory[replica + UNHASHED] += nameless
    elif nameless > 0:
        release_nameless(memory, replica, nameless)
    if own_named > 0:
        release_own(memory, replica, sequence, path, named)
    if memory[request + PREFIX] & HALF != NONE:
        release_path(memory, replica, sequence)
