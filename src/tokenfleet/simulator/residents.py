"""Which nodes of the prefix tree a replica has in its cache: from node to resident row.

A node knows the resident of one replica by itself. Conversations stay where their prefix is, so that is nearly all;
what several replicas have, the others find in a hash table of their own.

Open addressing with linear probing; a removal moves followers up, so that no tombstones pile up in a long replay. The
table grows with what is in it, because one for as many as there could be would be cold wherever it is touched. A
slot holds the node beside its resident, whose row need not be looked at.
"""

from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    FIRST_EXTENT,
    FIRST_GROWER,
    FIRST_SHADOW,
    FRESH_RESIDENT,
    HALF,
    HOLDER,
    IS_HOLDER,
    LAST_EXTENT,
    LAST_SHADOW,
    NODE,
    NONE,
    NUMBER,
    OTHERS,
    RESIDENT_WORDS,
    SLOTS_PER_RESIDENT,
    SPARE_RESIDENT,
    TABLE_AT,
    TABLE_COUNT,
    TABLE_MASK,
)
from tokenfleet.simulator.memory import Memory


@compiled
def home_slot(memory: Memory, replica: int, node: int) -> int:
    """Where a node belongs in the table if nobody is in the way."""
    return ((node * 0x9E3779B1 & 0xFFFFFFFF) >> 7) & memory[replica + TABLE_MASK]


@compiled
def find_resident(memory: Memory, replica: int, node: int) -> int:
    """The resident row of a node, or ``NONE``."""
    holder = memory[node + HOLDER]
    if holder != NONE and holder >> 32 == memory[replica + NUMBER]:
        return holder & HALF
    if memory[node + OTHERS] == 0:
        return NONE
    table = memory[replica + TABLE_AT]
    slot = home_slot(memory, replica, node)
    while memory[table + slot] != NONE:
        if memory[table + slot] >> 32 == node:
            return memory[table + slot] & HALF
        slot = (slot + 1) & memory[replica + TABLE_MASK]
    return NONE


@compiled
def enter_table(memory: Memory, replica: int, node: int, resident: int) -> None:
    """Put a resident into the table, which has room for it."""
    table = memory[replica + TABLE_AT]
    slot = home_slot(memory, replica, node)
    while memory[table + slot] != NONE:
        slot = (slot + 1) & memory[replica + TABLE_MASK]
    memory[table + slot] = node << 32 | resident


@compiled
def grow_table(memory: Memory, replica: int) -> None:
    """Move on to the next table, twice as large."""
    old = memory[replica + TABLE_AT]
    size = memory[replica + TABLE_MASK] + 1
    memory[replica + TABLE_AT] = old + size
    memory[replica + TABLE_MASK] = 2 * size - 1
    for slot in range(old, old + size):
        if memory[slot] != NONE:
            enter_table(memory, replica, memory[slot] >> 32, memory[slot] & HALF)


@compiled
def leave_table(memory: Memory, replica: int, node: int, resident: int) -> None:
    """Take a resident out of the table."""
    table = memory[replica + TABLE_AT]
    mask = memory[replica + TABLE_MASK]
    hole = home_slot(memory, replica, node)
    while memory[table + hole] & HALF != resident:
        hole = (hole + 1) & mask
    slot = (hole + 1) & mask
    while memory[table + slot] != NONE:
        home = home_slot(memory, replica, memory[table + slot] >> 32)
        if ((slot - home) & mask) >= ((slot - hole) & mask):
            memory[table + hole] = memory[table + slot]
            hole = slot
        slot = (slot + 1) & mask
    memory[table + hole] = NONE


@compiled
def make_known(memory: Memory, replica: int, node: int, resident: int) -> None:
    """From now on a replica finds this resident for a node."""
    if memory[node + HOLDER] == NONE:
        memory[node + HOLDER] = memory[replica + NUMBER] << 32 | resident
        memory[resident + IS_HOLDER] = 1
        return
    memory[resident + IS_HOLDER] = 0
    memory[node + OTHERS] += 1
    memory[replica + TABLE_COUNT] += 1
    if SLOTS_PER_RESIDENT * memory[replica + TABLE_COUNT] > memory[replica + TABLE_MASK] + 1:
        grow_table(memory, replica)
    enter_table(memory, replica, node, resident)


@compiled
def make_unknown(memory: Memory, replica: int, node: int, resident: int) -> None:
    """The replica finds nothing for a node any more."""
    if memory[resident + IS_HOLDER] != 0:
        memory[node + HOLDER] = NONE
        return
    memory[node + OTHERS] -= 1
    memory[replica + TABLE_COUNT] -= 1
    leave_table(memory, replica, node, resident)


@compiled
def new_resident(memory: Memory, replica: int) -> int:
    """A resident row that is in use by nobody."""
    resident = memory[replica + SPARE_RESIDENT]
    if resident != NONE:
        memory[replica + SPARE_RESIDENT] = memory[resident + NODE]
        return resident
    resident = memory[replica + FRESH_RESIDENT]
    memory[replica + FRESH_RESIDENT] += RESIDENT_WORDS
    return resident


@compiled
def need_resident(memory: Memory, replica: int, node: int) -> int:
    """The resident row of a node, made if there is none."""
    resident = find_resident(memory, replica, node)
    return make_resident(memory, replica, node) if resident == NONE else resident


@compiled
def make_resident(memory: Memory, replica: int, node: int) -> int:
    """A resident row for a node that has none."""
    resident = new_resident(memory, replica)
    memory[resident + NODE] = node
    memory[resident + FIRST_EXTENT] = NONE
    memory[resident + LAST_EXTENT] = NONE
    memory[resident + FIRST_SHADOW] = NONE
    memory[resident + LAST_SHADOW] = NONE
    memory[resident + FIRST_GROWER] = NONE
    make_known(memory, replica, node, resident)
    return resident


@compiled
def drop_if_empty(memory: Memory, replica: int, resident: int) -> None:
    """Forget a resident when nothing is left of it and nobody extends it."""
    kept = memory[resident + FIRST_EXTENT] | memory[resident + FIRST_SHADOW] | memory[resident + FIRST_GROWER]
    if kept != NONE:
        return
    make_unknown(memory, replica, memory[resident + NODE], resident)
    memory[resident + NODE] = memory[replica + SPARE_RESIDENT]
    memory[replica + SPARE_RESIDENT] = resident
