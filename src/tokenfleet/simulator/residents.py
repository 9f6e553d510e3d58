"""Which nodes of the prefix tree a replica has in its cache: a hash table from node to resident row.

Open addressing with linear probing; a removal moves followers up, so that no tombstones pile up in a long replay. The
table grows with the residents, because one for as many as there could be would be cold wherever it is touched.
"""

from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    FIRST_EXTENT,
    FIRST_GROWER,
    FIRST_SHADOW,
    FOUND,
    FRESH_RESIDENT,
    LAST_EXTENT,
    LAST_SHADOW,
    NODE,
    NONE,
    RESIDENT_COUNT,
    RESIDENT_WORDS,
    SLOTS_PER_RESIDENT,
    SPARE_RESIDENT,
    TABLE_AT,
    TABLE_MASK,
)
from tokenfleet.simulator.memory import Memory


@compiled
def home_slot(memory: Memory, replica: int, node: int) -> int:
    """Where a node belongs in the table if nobody is in the way."""
    return ((node * 0x9E3779B1 & 0xFFFFFFFF) >> 7) & memory[replica + TABLE_MASK]


@compiled
def find_resident(memory: Memory, replica: int, node: int) -> int:
    """The resident row of a node, or ``NONE``. Mostly it is the one that was found last."""
    resident = memory[replica + FOUND]
    if resident != NONE and memory[resident + NODE] == node:
        return resident
    table = memory[replica + TABLE_AT]
    slot = home_slot(memory, replica, node)
    while memory[table + slot] != NONE:
        resident = memory[table + slot]
        if memory[resident + NODE] == node:
            memory[replica + FOUND] = resident
            return resident
        slot = (slot + 1) & memory[replica + TABLE_MASK]
    return NONE


@compiled
def enter_resident(memory: Memory, replica: int, resident: int) -> None:
    """Put a resident that is not in the table into it."""
    table = memory[replica + TABLE_AT]
    slot = home_slot(memory, replica, memory[resident + NODE])
    while memory[table + slot] != NONE:
        slot = (slot + 1) & memory[replica + TABLE_MASK]
    memory[table + slot] = resident


@compiled
def grow_table(memory: Memory, replica: int) -> None:
    """Move on to the next table, twice as large."""
    old = memory[replica + TABLE_AT]
    size = memory[replica + TABLE_MASK] + 1
    memory[replica + TABLE_AT] = old + size
    memory[replica + TABLE_MASK] = 2 * size - 1
    for slot in range(old, old + size):
        if memory[slot] != NONE:
            enter_resident(memory, replica, memory[slot])


@compiled
def new_resident(memory: Memory, replica: int) -> int:
    """A resident row that is in use by nobody."""
    resident = memory[replica + SPARE_RESIDENT]
    if resident != NONE:
        memory[replica + SPARE_RESIDENT] = memory[resident + NODE]
        return resident
    resident = memory[replica + FRESH_RESIDENT]
    memory[replica + FRESH_RESIDENT] += RESIDENT_WORDS
    memory[replica + RESIDENT_COUNT] += 1
    if SLOTS_PER_RESIDENT * memory[replica + RESIDENT_COUNT] > memory[replica + TABLE_MASK] + 1:
        grow_table(memory, replica)
    return resident


@compiled
def need_resident(memory: Memory, replica: int, node: int) -> int:
    """The resident row of a node, made if there is none."""
    resident = find_resident(memory, replica, node)
    if resident != NONE:
        return resident
    resident = new_resident(memory, replica)
    memory[resident + NODE] = node
    memory[resident + FIRST_EXTENT] = NONE
    memory[resident + LAST_EXTENT] = NONE
    memory[resident + FIRST_SHADOW] = NONE
    memory[resident + LAST_SHADOW] = NONE
    memory[resident + FIRST_GROWER] = NONE
    enter_resident(memory, replica, resident)
    return resident


@compiled
def drop_if_empty(memory: Memory, replica: int, resident: int) -> None:
    """Take a resident out of the table when nothing is left of it and nobody extends it."""
    kept = memory[resident + FIRST_EXTENT] | memory[resident + FIRST_SHADOW] | memory[resident + FIRST_GROWER]
    if kept != NONE:
        return
    table = memory[replica + TABLE_AT]
    mask = memory[replica + TABLE_MASK]
    hole = home_slot(memory, replica, memory[resident + NODE])
    while memory[table + hole] != resident:
        hole = (hole + 1) & mask
    slot = (hole + 1) & mask
    while memory[table + slot] != NONE:
        home = home_slot(memory, replica, memory[memory[table + slot] + NODE])
        if ((slot - home) & mask) >= ((slot - hole) & mask):
            memory[table + hole] = memory[table + slot]
            hole = slot
        slot = (slot + 1) & mask
    memory[table + hole] = NONE
    memory[resident + NODE] = memory[replica + SPARE_RESIDENT]
    memory[replica + SPARE_RESIDENT] = resident
