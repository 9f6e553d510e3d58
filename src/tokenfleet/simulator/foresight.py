"""Has the memory brought near that will be looked at soon: what follows is decided by it in no way, only how fast.

A replay touches much that it has not seen for long, such as the next requests and the blocks that are forgotten next.
A replay that waits for each of them in turn takes an eighth longer.
"""

from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    HALF,
    LEAD,
    NEWER,
    NONE,
    OLDEST,
    PARENT,
    PREFIX,
    REQUEST_WORDS,
    RESIDENT,
    SCOUT,
)
from tokenfleet.simulator.memory import Memory, fetch_ahead

SCOUTED_EXTENTS = 8
"""How many of the oldest extents are brought near before they are evicted: more than one request takes as a rule."""
LONGEST_WALK = 4
"""Nodes of a path that are brought near before its request arrives: those of earlier requests, seen long ago."""


@compiled
def expect_arrivals(memory: Memory, request: int, end: int) -> None:
    """Have the rows of the requests behind this one brought near, and the ends of their paths.

    A path is walked a node at each arrival, as each step waits for the memory behind the last one. The row of no node
    names no node as its parent.
    """
    fetch_ahead(memory, request + 2 * LONGEST_WALK * REQUEST_WORDS)
    if request + LONGEST_WALK * REQUEST_WORDS >= end or memory[request + PREFIX] == NONE:
        return
    for steps in range(LONGEST_WALK):
        node = memory[request + (LONGEST_WALK - steps) * REQUEST_WORDS + PREFIX] & HALF
        for _ in range(steps):
            node = memory[node + PARENT]
        fetch_ahead(memory, node)


@compiled
def scout(memory: Memory, replica: int) -> None:
    """Have one more of the extents brought near that are evicted next, as nobody has looked at them for longest.

    Their list is walked a step at a time, well before it is needed: each step waits for the memory behind the last one.
    """
    if memory[replica + OLDEST] == NONE or memory[replica + LEAD] >= SCOUTED_EXTENTS:
        return
    extent = memory[replica + SCOUT]
    if extent == NONE:
        memory[replica + SCOUT] = memory[replica + OLDEST]
        memory[replica + LEAD] = 0
        return
    fetch_ahead(memory, memory[extent + RESIDENT])
    newer = memory[extent + NEWER]
    if newer != NONE:
        fetch_ahead(memory, newer)
        memory[replica + SCOUT] = newer
        memory[replica + LEAD] += 1
