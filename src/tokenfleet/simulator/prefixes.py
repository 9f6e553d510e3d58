"""The prefix cache as sequences use it: look up, hold, write, release.

A sequence follows a path of the prefix tree, as far as its tokens are shared with others; behind that its blocks
are its own, found again by nobody but itself after a preemption. Blocks are in the cache by name as soon as the
step that fills them is fixed.

The blocks that prefills fill are written at once. What decodes fill is written late, when somebody looks or when
the sequence ends, because nothing depends on it before; unless a sequence is *contended*: somebody else looked at,
or writes, or left blocks where it will write. Then its blocks are written step by step.
"""

from tokenfleet.simulator.blocks import full_blocks, growth_blocks
from tokenfleet.simulator.compiling import compiled, compiled_apart
from tokenfleet.simulator.extents import (
    extent_end,
    extent_start,
    insert_unused,
    link_extent,
    make_shadow,
    new_extent,
    owner_of,
    remove_unused,
    set_extent_end,
    set_owner,
    spare_extent,
    split_extent,
)
from tokenfleet.simulator.layout import (
    ADMITTED,
    CHAIN_WITH_A_HOLE,
    COMPUTED,
    CONTENDED,
    DECODE,
    ENDING,
    EXTENT_NEXT,
    EXTENT_PREVIOUS,
    FAULT,
    FIRST_EXTENT,
    FIRST_GROWER,
    FIRST_RUNNING,
    FIRST_SHADOW,
    FREE_BLOCKS,
    GROUP,
    GROWER_NEXT,
    GROWER_PREVIOUS,
    GROWS_IN,
    HALF,
    HASHED,
    HIT_BLOCKS,
    HIT_NODE,
    HIT_UNUSED,
    IS_CONTENDED,
    LAG,
    LAST_EXTENT,
    LAST_SHADOW,
    LEFT_OUT,
    NEWEST,
    NODE,
    NODE_END,
    NONE,
    OLDER,
    ORDER,
    ORIGIN,
    PARENT,
    PATH_AT,
    PREFILL,
    PREFIX,
    REQUEST,
    RULES,
    SGLANG,
    STATE,
    STEP,
    TARGET,
    USERS,
)
from tokenfleet.simulator.memory import Memory, input_tokens, output_tokens
from tokenfleet.simulator.residents import drop_if_empty, find_resident, make_resident, need_resident


@compiled
def node_ends(memory: Memory, replica: int) -> int:
    """Where nodes have the position behind their last block, in blocks of this replica."""
    return memory[memory[replica + GROUP] + NODE_END]


@compiled
def node_start(memory: Memory, node: int, ends: int) -> int:
    """Position of the first block that a node names."""
    parent = memory[node + PARENT]
    return 0 if parent == NONE else memory[parent + ends]


@compiled
def path_blocks(memory: Memory, replica: int, request: int) -> int:
    """Blocks on the path of a request: those it may share."""
    node = memory[request + PREFIX] & HALF
    return 0 if node == NONE else memory[node + node_ends(memory, replica)]


@compiled
def node_at(memory: Memory, request: int, position: int, ends: int) -> int:
    """The node on the path of a request that names the block at a position."""
    node = memory[request + PREFIX] & HALF
    while node_start(memory, node, ends) > position:
        node = memory[node + PARENT]
    return node


@compiled
def chain_end(memory: Memory, resident: int, start: int) -> int:
    """Position behind the last block of a chain that begins at ``start``."""
    last = memory[resident + LAST_EXTENT]
    return start if last == NONE else extent_end(memory, last)


@compiled
def computed_tokens(memory: Memory, replica: int, sequence: int) -> int:
    """Tokens of a sequence whose KV is computed by all steps fixed so far."""
    state = memory[sequence + STATE]
    if state in (PREFILL, LEFT_OUT):
        return memory[sequence + COMPUTED]
    if state == DECODE:
        return memory[sequence + ORIGIN] + memory[replica + STEP]
    request = memory[sequence + REQUEST]
    return input_tokens(memory, request) + max(output_tokens(memory, request) - 1, 0)


@compiled
def hashed_tokens(memory: Memory, replica: int, sequence: int, step: int) -> int:
    """Tokens of a running sequence that are in the cache by name before a step, as far as they fill blocks.

    Those known when it was admitted, as far as they are computed; of those generated since, with async scheduling,
    all but the one in flight. SGLang names what was generated when the request ends.
    """
    if memory[sequence + STATE] == PREFILL:
        return memory[sequence + COMPUTED]
    if memory[memory[replica + GROUP] + RULES] == SGLANG:
        return memory[sequence + TARGET]
    computed = computed_tokens(memory, replica, sequence)
    lag = memory[memory[replica + GROUP] + LAG]
    if memory[sequence + STATE] == DECODE:
        computed = memory[sequence + ORIGIN] + step
    elif memory[sequence + STATE] == LEFT_OUT:
        computed = min(computed + lag, memory[sequence + ORIGIN] + step)
    return max(memory[sequence + TARGET], computed - lag)


# ---- decoding sequences that extend a chain


@compiled
def contend(memory: Memory, replica: int, sequence: int) -> None:
    """From now on the blocks of this sequence are written step by step."""
    if memory[sequence + IS_CONTENDED] == 0:
        memory[sequence + IS_CONTENDED] = 1
        memory[replica + CONTENDED] += 1


@compiled
def stop_growing(memory: Memory, replica: int, sequence: int) -> None:
    """A sequence extends the resident it grows in no more."""
    resident = memory[sequence + GROWS_IN]
    before = memory[sequence + GROWER_PREVIOUS]
    after = memory[sequence + GROWER_NEXT]
    if before == NONE:
        memory[resident + FIRST_GROWER] = after
    else:
        memory[before + GROWER_NEXT] = after
    if after != NONE:
        memory[after + GROWER_PREVIOUS] = before
    memory[sequence + GROWS_IN] = NONE
    drop_if_empty(memory, replica, resident)


@compiled
def grow_in(memory: Memory, sequence: int, resident: int) -> None:
    """A sequence extends this resident from now on."""
    first = memory[resident + FIRST_GROWER]
    memory[sequence + GROWS_IN] = resident
    memory[sequence + GROWER_PREVIOUS] = NONE
    memory[sequence + GROWER_NEXT] = first
    if first != NONE:
        memory[first + GROWER_PREVIOUS] = sequence
    memory[resident + FIRST_GROWER] = sequence


# ---- write


@compiled
def first_order(memory: Memory, replica: int) -> int:
    """Admission number before which nobody runs: none of the decodes is served yet."""
    return memory[memory[replica + FIRST_RUNNING] + ORDER]


@compiled
def next_resident(memory: Memory, replica: int, sequence: int, ends: int) -> int:
    """The resident of the node that names the next block that a sequence writes."""
    resident = memory[sequence + GROWS_IN]
    if resident != NONE:
        return resident
    node = node_at(memory, memory[sequence + REQUEST], memory[sequence + HASHED], ends)
    return need_resident(memory, replica, node)


@compiled
def write_blocks(memory: Memory, replica: int, sequence: int, until: int) -> None:
    """Put the blocks of a sequence up to position ``until`` on its path into the cache by name."""
    ends = node_ends(memory, replica)
    while memory[sequence + HASHED] < until:
        resident = next_resident(memory, replica, sequence, ends)
        write_in(memory, replica, sequence, resident, until)


@compiled
def write_in(memory: Memory, replica: int, sequence: int, resident: int, until: int) -> None:
    """The same for the blocks that the node of one resident names; those before it are in the cache."""
    ends = node_ends(memory, replica)
    node = memory[resident + NODE]
    until = min(until, memory[node + ends])
    position = memory[sequence + HASHED]
    reach = chain_end(memory, resident, node_start(memory, node, ends))
    if position < reach:
        extent = new_extent(memory, replica, resident, position, min(until, reach), 1)
        make_shadow(memory, extent, sequence)
        link_extent(memory, extent, memory[resident + LAST_SHADOW])
        position = min(until, reach)
    if position < until:
        last = memory[resident + LAST_EXTENT]
        if last != NONE and memory[last + USERS] == 1 and memory[resident + FIRST_SHADOW] == NONE:
            set_extent_end(memory, last, until)
        else:
            link_extent(memory, new_extent(memory, replica, resident, position, until, 1), last)
    memory[sequence + HASHED] = until
    if memory[sequence + GROWS_IN] != NONE:
        stop_growing(memory, replica, sequence)
        request = memory[sequence + REQUEST]
        if until < path_blocks(memory, replica, request):
            grow_in(memory, sequence, need_resident(memory, replica, node_at(memory, request, until, ends)))


@compiled
def watch_growth(memory: Memory, replica: int, resident: int, reader: int, served: int) -> None:
    """Before ``reader`` looks at a resident or writes into it: write what decodes have added, and watch them.

    Decodes admitted before number ``served`` have their token of the step being fixed already.
    """
    grower = memory[resident + FIRST_GROWER]
    while grower != NONE:
        after = memory[grower + GROWER_NEXT]
        if memory[grower + IS_CONTENDED] == 0 and grower != reader:
            ahead = 1 if memory[grower + ORDER] < served else 0
            tokens = hashed_tokens(memory, replica, grower, memory[replica + STEP] + ahead)
            reach = path_blocks(memory, replica, memory[grower + REQUEST])
            contend(memory, replica, grower)
            write_blocks(memory, replica, grower, min(full_blocks(memory, memory[replica + GROUP], tokens), reach))
        grower = after


@compiled
def write_up_to(memory: Memory, replica: int, sequence: int, tokens: int, served: int) -> None:
    """Write what a sequence has computed of its path, after what others added to the same residents.

    ``served`` is as for :func:`watch_growth`. Of two decodes that share a path, the one that comes later looks
    at the other, so never two meet here of which neither is contended.
    """
    request = memory[sequence + REQUEST]
    ends = node_ends(memory, replica)
    until = min(full_blocks(memory, memory[replica + GROUP], tokens), path_blocks(memory, replica, request))
    while memory[sequence + HASHED] < until:
        resident = next_resident(memory, replica, sequence, ends)
        if memory[resident + FIRST_GROWER] != NONE:
            watch_growth(memory, replica, resident, sequence, served)
        write_in(memory, replica, sequence, resident, until)


@compiled
def start_growing(memory: Memory, replica: int, sequence: int) -> None:
    """A sequence that starts to decode may have shared tokens before it: then see who else is there."""
    if memory[sequence + HASHED] < path_blocks(memory, replica, memory[sequence + REQUEST]):
        grow_in_company(memory, replica, sequence)


@compiled_apart
def grow_in_company(memory: Memory, replica: int, sequence: int) -> None:
    """See who else writes, or has written, where a sequence that starts to decode will."""
    request = memory[sequence + REQUEST]
    position = memory[sequence + HASHED]
    ends = node_ends(memory, replica)
    resident = first = NONE
    node = memory[request + PREFIX] & HALF
    while node != NONE and memory[node + ends] > position:
        first = node
        resident = find_resident(memory, replica, node)
        if resident != NONE:
            start = node_start(memory, node, ends)
            grower = memory[resident + FIRST_GROWER]
            if grower != NONE or chain_end(memory, resident, start) > max(position, start):
                contend(memory, replica, sequence)
            if grower != NONE:
                watch_growth(memory, replica, resident, sequence, first_order(memory, replica))
        node = memory[node + PARENT]
    if resident == NONE:
        resident = make_resident(memory, replica, first)
    grow_in(memory, sequence, resident)


# ---- look up and hold


@compiled
def orphan_own(memory: Memory, request: int) -> None:
    """The blocks of the tokens that a request shares with nobody are left to be evicted."""
    own = memory[request + PREFIX] >> 32
    if own != NONE:
        set_owner(memory, own, NONE)
        memory[request + PREFIX] &= HALF


@compiled
def trim_own(memory: Memory, replica: int, request: int, limit: int) -> None:
    """Of its own blocks a request is served none from position ``limit`` on: leave those to be evicted.

    They hold its last token, which a request has computed that was preempted in the step that decoded it.
    """
    own = memory[request + PREFIX] >> 32
    if own == NONE or extent_end(memory, own) <= limit:
        return
    if extent_start(memory, own) >= limit:
        orphan_own(memory, request)
        return
    rest = new_extent(memory, replica, NONE, limit, extent_end(memory, own), 0)
    set_extent_end(memory, own, limit)
    insert_unused(memory, replica, rest, memory[own + OLDER])


@compiled_apart
def find_hits(memory: Memory, replica: int, request: int, known: int) -> None:
    """Look up the blocks of a waiting request, from its first to the first miss; the last token is never served.

    The result is in ``HIT_BLOCKS``, ``HIT_UNUSED`` and ``HIT_NODE``.
    """
    memory[replica + HIT_BLOCKS] = 0
    memory[replica + HIT_UNUSED] = 0
    memory[replica + HIT_NODE] = NONE
    ends = node_ends(memory, replica)
    limit = full_blocks(memory, memory[replica + GROUP], known - 1)
    path = memory[PATH_AT]
    count = 0
    node = memory[request + PREFIX] & HALF
    while node != NONE:
        memory[path + count] = node
        node = memory[node + PARENT]
        count += 1
    while count > 0:
        count -= 1
        node = memory[path + count]
        start = node_start(memory, node, ends)
        end = memory[node + ends]
        if end > start:
            memory[replica + HIT_NODE] = node
            if find_hits_in(memory, replica, request, node, start, min(end, limit)) < end:
                return
    trim_own(memory, replica, request, limit)
    own = memory[request + PREFIX] >> 32
    if own != NONE:
        blocks = extent_end(memory, own) - extent_start(memory, own)
        memory[replica + HIT_BLOCKS] += blocks
        memory[replica + HIT_UNUSED] += blocks


@compiled
def find_hits_in(memory: Memory, replica: int, request: int, node: int, start: int, limit: int) -> int:
    """Look up the blocks of one node before position ``limit``; returns the position behind the last hit."""
    resident = find_resident(memory, replica, node)
    if resident == NONE or limit <= start:
        return start
    if memory[resident + FIRST_GROWER] != NONE:
        watch_growth(memory, replica, resident, request, memory[replica + ADMITTED] + 1)
    extent = memory[resident + FIRST_EXTENT]
    reach = start
    while extent != NONE and extent_start(memory, extent) < limit:
        reach = min(extent_end(memory, extent), limit)
        if memory[extent + USERS] == 0:
            memory[replica + HIT_UNUSED] += reach - extent_start(memory, extent)
        extent = memory[extent + EXTENT_NEXT]
    memory[replica + HIT_BLOCKS] = reach
    return reach


@compiled_apart
def hold_hits(memory: Memory, replica: int, sequence: int) -> None:
    """Hold the blocks that the last look-up found."""
    request = memory[sequence + REQUEST]
    hits = memory[replica + HIT_BLOCKS]
    shared = min(hits, path_blocks(memory, replica, request))
    memory[sequence + HASHED] = shared
    memory[replica + FREE_BLOCKS] -= memory[replica + HIT_UNUSED] * growth_blocks(memory, memory[replica + GROUP])
    if hits > shared:
        own = memory[request + PREFIX] >> 32
        remove_unused(memory, replica, own)
        spare_extent(memory, replica, own)
        memory[request + PREFIX] &= HALF
    ends = node_ends(memory, replica)
    node = memory[replica + HIT_NODE]
    while node != NONE:
        if node_start(memory, node, ends) < min(shared, memory[node + ends]):
            extent = memory[find_resident(memory, replica, node) + FIRST_EXTENT]
            while extent != NONE and extent_start(memory, extent) < shared:
                if extent_end(memory, extent) > shared:
                    split_extent(memory, replica, extent, shared)
                if memory[extent + USERS] == 0:
                    remove_unused(memory, replica, extent)
                memory[extent + USERS] += 1
                extent = memory[extent + EXTENT_NEXT]
        node = memory[node + PARENT]


# ---- release


@compiled
def own_shadow(memory: Memory, resident: int, sequence: int, position: int) -> int:
    """The shadow that a sequence made and that ends at a position, or ``NONE``."""
    shadow = memory[resident + FIRST_SHADOW]
    while shadow != NONE and (owner_of(memory, shadow) != sequence or extent_end(memory, shadow) != position):
        shadow = memory[shadow + EXTENT_NEXT]
    return shadow


@compiled
def release_in(memory: Memory, replica: int, sequence: int, resident: int, start: int, end: int) -> None:
    """Release the blocks that a sequence holds in one resident, from ``end`` back to ``start``."""
    chained = memory[resident + LAST_EXTENT]
    position = end
    while position > start:
        extent = own_shadow(memory, resident, sequence, position)
        if extent == NONE:
            while chained != NONE and extent_end(memory, chained) > position:
                chained = memory[chained + EXTENT_PREVIOUS]
            if chained == NONE or extent_end(memory, chained) != position:
                memory[FAULT] = CHAIN_WITH_A_HOLE
                return
            extent = chained
        else:
            set_owner(memory, extent, NONE)
        position = extent_start(memory, extent)
        memory[extent + USERS] -= 1
        if memory[extent + USERS] == 0:
            insert_unused(memory, replica, extent, memory[replica + NEWEST])
            each = growth_blocks(memory, memory[replica + GROUP])
            memory[replica + FREE_BLOCKS] += (extent_end(memory, extent) - position) * each


@compiled_apart
def release_path(memory: Memory, replica: int, sequence: int) -> None:
    """Release the blocks that a sequence holds on its path, the last first."""
    ends = node_ends(memory, replica)
    end = memory[sequence + HASHED]
    node = memory[memory[sequence + REQUEST] + PREFIX] & HALF
    while node != NONE:
        start = node_start(memory, node, ends)
        if end > start:
            release_in(memory, replica, sequence, find_resident(memory, replica, node), start, end)
            end = start
        node = memory[node + PARENT]
    if memory[sequence + GROWS_IN] != NONE:
        stop_growing(memory, replica, sequence)
    if memory[sequence + IS_CONTENDED] != 0:
        memory[sequence + IS_CONTENDED] = 0
        memory[replica + CONTENDED] -= 1


@compiled_apart
def release_nameless(memory: Memory, replica: int, blocks: int) -> None:
    """Put freed blocks that nobody can find again behind all that were freed before, as vLLM did before 0.24."""
    insert_unused(memory, replica, new_extent(memory, replica, NONE, 0, blocks, 0), memory[replica + NEWEST])


@compiled_apart
def release_own(memory: Memory, replica: int, sequence: int, low: int, high: int) -> None:
    """Release the named blocks of the tokens that a request shares with nobody."""
    extent = new_extent(memory, replica, NONE, low, high, 0)
    insert_unused(memory, replica, extent, memory[replica + NEWEST])
    request = memory[sequence + REQUEST]
    if memory[sequence + STATE] != ENDING:
        set_owner(memory, extent, request)
        memory[request + PREFIX] |= extent << 32
