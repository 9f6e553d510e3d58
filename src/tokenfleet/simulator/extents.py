"""The prefix cache in extents: runs of neighbouring blocks, all with the same users, freed and reused together.

The engine's free list is its LRU: freed blocks that nobody can find again are in front (in vLLM before 0.24, in turn
with the others, as extents of no resident and no owner), the others behind, in the order of their release, of one
sequence the last block first. So whoever releases a block has released its
followers before, and eviction takes an extent from its end. A block list would say the same at fifty times the cost.

Two blocks may hold the same tokens: a prompt that is wholly cached computes its last block again, and two
sequences may write the same text. A look-up finds the older copy while it lives. The chain of a resident holds
the copies that look-ups find; the others are *shadows*, and the oldest shadow of a block takes its place in the
chain when it is evicted.
"""

from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    EXTENT_NEXT,
    EXTENT_PREVIOUS,
    EXTENT_WORDS,
    FAULT,
    FIRST_EXTENT,
    FIRST_SHADOW,
    FRESH_EXTENT,
    HALF,
    LEAD,
    NEWER,
    NEWEST,
    NONE,
    NOTHING_TO_EVICT,
    OLDER,
    OLDEST,
    OWNER,
    PREFIX,
    RESIDENT,
    SCOUT,
    SPAN,
    SPARE_EXTENT,
    USERS,
)
from tokenfleet.simulator.memory import Memory
from tokenfleet.simulator.residents import drop_if_empty


@compiled
def extent_start(memory: Memory, extent: int) -> int:
    """Position of its first block on the path from the root."""
    return memory[extent + SPAN] & HALF


@compiled
def extent_end(memory: Memory, extent: int) -> int:
    """Position behind its last block."""
    return memory[extent + SPAN] >> 32


@compiled
def set_extent_end(memory: Memory, extent: int, position: int) -> None:
    """See :func:`extent_end`."""
    memory[extent + SPAN] = memory[extent + SPAN] & HALF | position << 32


@compiled
def is_shadow(memory: Memory, extent: int) -> bool:
    """Whether look-ups find older copies of its blocks."""
    return memory[extent + OWNER] & 1 != 0


@compiled
def owner_of(memory: Memory, extent: int) -> int:
    """The sequence that made a shadow, or the preempted request whose tokens these are, or ``NONE``."""
    return memory[extent + OWNER] >> 1


@compiled
def set_owner(memory: Memory, extent: int, owner: int) -> None:
    """See :func:`owner_of`."""
    memory[extent + OWNER] = memory[extent + OWNER] & 1 | owner << 1


@compiled
def make_shadow(memory: Memory, extent: int, sequence: int) -> None:
    """What a sequence writes here is in the cache by now."""
    memory[extent + OWNER] = sequence << 1 | 1


@compiled
def new_extent(memory: Memory, replica: int, resident: int, low: int, high: int, users: int) -> int:
    """An extent that is in no list yet."""
    extent = memory[replica + SPARE_EXTENT]
    if extent == NONE:
        extent = memory[replica + FRESH_EXTENT]
        memory[replica + FRESH_EXTENT] += EXTENT_WORDS
    else:
        memory[replica + SPARE_EXTENT] = memory[extent + EXTENT_NEXT]
    memory[extent + SPAN] = low | high << 32
    memory[extent + USERS] = users
    memory[extent + RESIDENT] = resident
    memory[extent + OWNER] = NONE
    return extent


@compiled
def spare_extent(memory: Memory, replica: int, extent: int) -> None:
    """Hand back a row that is in no list."""
    memory[extent + EXTENT_NEXT] = memory[replica + SPARE_EXTENT]
    memory[replica + SPARE_EXTENT] = extent


@compiled
def insert_unused(memory: Memory, replica: int, extent: int, older: int) -> None:
    """Put an extent among those nobody uses, right after ``older``; ``NONE`` makes it the oldest."""
    newer = memory[replica + OLDEST] if older == NONE else memory[older + NEWER]
    memory[extent + OLDER] = older
    memory[extent + NEWER] = newer
    if older == NONE:
        memory[replica + OLDEST] = extent
    else:
        memory[older + NEWER] = extent
    if newer == NONE:
        memory[replica + NEWEST] = extent
    else:
        memory[newer + OLDER] = extent


@compiled
def remove_unused(memory: Memory, replica: int, extent: int) -> None:
    """Take an extent out from among those nobody uses."""
    older = memory[extent + OLDER]
    newer = memory[extent + NEWER]
    if memory[replica + SCOUT] == extent:
        memory[replica + SCOUT] = newer
    if older == NONE:
        memory[replica + OLDEST] = newer
        memory[replica + LEAD] -= 1
    else:
        memory[older + NEWER] = newer
    if newer == NONE:
        memory[replica + NEWEST] = older
    else:
        memory[newer + OLDER] = older


@compiled
def list_ends(memory: Memory, extent: int) -> int:
    """Index of the first of the two words that hold the ends of the list an extent belongs to."""
    return memory[extent + RESIDENT] + (FIRST_SHADOW if is_shadow(memory, extent) else FIRST_EXTENT)


@compiled
def link_extent(memory: Memory, extent: int, before: int) -> None:
    """Put an extent into the chain or among the shadows of its resident, right after ``before``, or first."""
    ends = list_ends(memory, extent)
    after = memory[ends] if before == NONE else memory[before + EXTENT_NEXT]
    memory[extent + EXTENT_PREVIOUS] = before
    memory[extent + EXTENT_NEXT] = after
    if before == NONE:
        memory[ends] = extent
    else:
        memory[before + EXTENT_NEXT] = extent
    if after == NONE:
        memory[ends + 1] = extent
    else:
        memory[after + EXTENT_PREVIOUS] = extent


@compiled
def unlink_extent(memory: Memory, extent: int) -> None:
    """Take an extent out of the chain or the shadows of its resident."""
    ends = list_ends(memory, extent)
    before = memory[extent + EXTENT_PREVIOUS]
    after = memory[extent + EXTENT_NEXT]
    if before == NONE:
        memory[ends] = after
    else:
        memory[before + EXTENT_NEXT] = after
    if after == NONE:
        memory[ends + 1] = before
    else:
        memory[after + EXTENT_PREVIOUS] = before


@compiled
def split_extent(memory: Memory, replica: int, extent: int, position: int) -> int:
    """Cut an extent of a resident in two; it keeps the blocks before ``position``.

    Returns:
        The extent with the blocks from ``position`` on, next to the other in every list, to be evicted before it.
    """
    users = memory[extent + USERS]
    rest = new_extent(memory, replica, memory[extent + RESIDENT], position, extent_end(memory, extent), users)
    set_extent_end(memory, extent, position)
    memory[rest + OWNER] = memory[extent + OWNER]
    link_extent(memory, rest, extent)
    if users == 0:
        insert_unused(memory, replica, rest, memory[extent + OLDER])
    return rest


@compiled
def promote_shadow(memory: Memory, replica: int, resident: int, position: int, before: int) -> None:
    """A block of the chain is gone: the oldest shadow of it, if any, takes its place behind extent ``before``."""
    shadow = memory[resident + FIRST_SHADOW]
    while shadow != NONE and not extent_start(memory, shadow) <= position < extent_end(memory, shadow):
        shadow = memory[shadow + EXTENT_NEXT]
    if shadow == NONE:
        return
    if position + 1 < extent_end(memory, shadow):
        split_extent(memory, replica, shadow, position + 1)
    if extent_start(memory, shadow) < position:
        shadow = split_extent(memory, replica, shadow, position)
    unlink_extent(memory, shadow)
    memory[shadow + OWNER] = NONE
    link_extent(memory, shadow, before)


@compiled
def shrink_extent(memory: Memory, replica: int, extent: int, blocks: int) -> int:
    """Drop blocks from the end of an extent nobody uses, the whole of it if need be; returns the extent left before.

    That is the extent itself, or the one before it in its list once it is empty.
    """
    set_extent_end(memory, extent, extent_end(memory, extent) - blocks)
    if extent_end(memory, extent) > extent_start(memory, extent):
        return extent
    remove_unused(memory, replica, extent)
    before = NONE
    if memory[extent + RESIDENT] != NONE:
        before = memory[extent + EXTENT_PREVIOUS]
        unlink_extent(memory, extent)
    elif owner_of(memory, extent) != NONE:
        memory[owner_of(memory, extent) + PREFIX] &= HALF
    spare_extent(memory, replica, extent)
    return before


@compiled
def is_worthless(memory: Memory, extent: int) -> bool:
    """Whether nobody can find its blocks again."""
    return memory[extent + RESIDENT] | memory[extent + OWNER] == NONE


@compiled
def evict(memory: Memory, replica: int, blocks: int) -> int:
    """Forget the blocks that were released first, at least so many, and how many that are.

    What is worthless goes at once as a whole: nothing else would be reused before the rest of it.
    """
    gone = 0
    while gone < blocks:
        extent = memory[replica + OLDEST]
        if extent == NONE:
            memory[FAULT] = NOTHING_TO_EVICT
            return blocks
        resident = memory[extent + RESIDENT]
        in_chain = resident != NONE and not is_shadow(memory, extent)
        if in_chain and memory[resident + FIRST_SHADOW] != NONE:
            position = extent_end(memory, extent) - 1
            before = shrink_extent(memory, replica, extent, 1)
            promote_shadow(memory, replica, resident, position, before)
            gone += 1
        else:
            held = extent_end(memory, extent) - extent_start(memory, extent)
            taken = held if is_worthless(memory, extent) else min(blocks - gone, held)
            shrink_extent(memory, replica, extent, taken)
            gone += taken
        if resident != NONE and memory[replica + OLDEST] != extent:
            drop_if_empty(memory, replica, resident)
    return gone
