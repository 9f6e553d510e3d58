"""Preemption by swap: the KV of a preempted decode waits in host memory, and its way back takes time instead of steps.

As in vLLM V0, the copies run before the step in whose making they were decided, and that step takes so much longer.
"""

from tokenfleet.simulator.blocks import growth_blocks, take_blocks
from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    COMPUTED_AGAIN,
    GROUP,
    HISTORY,
    HIT_BLOCKS,
    HOST_BLOCKS,
    LEDGER_AT,
    LOST_TOKENS,
    MOVED_BLOCKS,
    NONE,
    RECOMPUTED_TOKENS,
    SWAP_BLOCK_PS,
    SWAP_BLOCKS,
    SWAP_COUNT,
    SWAPPED,
    SWAPPED_BLOCKS,
    SWAPS,
)
from tokenfleet.simulator.ledger import ledger_of
from tokenfleet.simulator.memory import Memory, input_tokens, preemption_count, produced_tokens
from tokenfleet.simulator.windows import kept_blocks


@compiled
def is_swapped(memory: Memory, request: int) -> bool:
    """Whether the KV of a waiting request is in host memory."""
    return memory[request + HISTORY] & SWAPPED != 0


@compiled
def host_tokens(memory: Memory, request: int) -> int:
    """Tokens of a swapped request whose KV is in host memory: all but the last that it knows."""
    return input_tokens(memory, request) + produced_tokens(memory, request) - 1


@compiled
def swap_out(memory: Memory, replica: int, request: int) -> None:
    """Move the KV of a preempted decode to host memory, if there is room for all of it."""
    group = memory[replica + GROUP]
    blocks = kept_blocks(memory, group, host_tokens(memory, request))
    if memory[replica + HOST_BLOCKS] + blocks > memory[group + SWAP_BLOCKS]:
        return
    memory[request + HISTORY] |= SWAPPED
    memory[replica + HOST_BLOCKS] += blocks
    memory[replica + MOVED_BLOCKS] += blocks
    memory[replica + SWAPPED_BLOCKS] += blocks
    memory[replica + SWAPS] += 1


@compiled
def leave_host(memory: Memory, replica: int, request: int) -> int:
    """Give back what a request holds of host memory; how many blocks that was."""
    if not is_swapped(memory, request):
        return 0
    blocks = kept_blocks(memory, memory[replica + GROUP], host_tokens(memory, request))
    memory[replica + HOST_BLOCKS] -= blocks
    memory[request + HISTORY] ^= SWAPPED
    return blocks


@compiled
def swap_in(memory: Memory, replica: int, request: int) -> None:
    """Move the KV of a request that is admitted back, but for what the prefix cache has."""
    cached = memory[replica + HIT_BLOCKS] * growth_blocks(memory, memory[replica + GROUP])
    blocks = leave_host(memory, replica, request) - cached
    take_blocks(memory, replica, blocks)
    memory[replica + MOVED_BLOCKS] += blocks
    memory[replica + SWAPPED_BLOCKS] += blocks


@compiled
def take_moving_time(memory: Memory, replica: int) -> int:
    """By how much the step being fixed is longer for what is moved before it."""
    moved = memory[replica + MOVED_BLOCKS]
    memory[replica + MOVED_BLOCKS] = 0
    return moved * memory[memory[replica + GROUP] + SWAP_BLOCK_PS]


@compiled
def note_preempted(memory: Memory, request: int, tokens: int) -> None:
    """A request with so many computed tokens was preempted: where nobody keeps their KV, they may be computed again."""
    if memory[LEDGER_AT] == NONE:
        return
    row = ledger_of(memory, request)
    memory[row + LOST_TOKENS] = 0 if is_swapped(memory, request) else tokens
    memory[row + SWAP_COUNT] += 1 if is_swapped(memory, request) else 0


@compiled
def note_readmitted(memory: Memory, replica: int, request: int, hit: int) -> None:
    """A request is admitted: after a preemption, what it lost is computed again, but for what the cache has kept."""
    if memory[LEDGER_AT] == NONE or preemption_count(memory, request) == 0:
        return
    row = ledger_of(memory, request)
    again = max(0, memory[row + LOST_TOKENS] - hit)
    memory[row + COMPUTED_AGAIN] += again
    memory[row + LOST_TOKENS] = 0
    memory[replica + RECOMPUTED_TOKENS] += again
