"""How often SGLang looks for new requests: at once while prompts are computed or nobody decodes, else by its setting.

``scheduler_recv_interval`` rounds of decode lie between two looks. What clients have said meanwhile, be it that they
have given up, is heard at the next look; who waits already and gives up is gone at once all the same.
"""

from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import CLOCK, GROUP, LOOKED, RECEIVE_INTERVAL, UNSEEN_ROUNDS
from tokenfleet.simulator.memory import Memory


@compiled
def look(memory: Memory, replica: int) -> None:
    """At a boundary: see all that have come, if it is time for it."""
    if memory[replica + UNSEEN_ROUNDS] >= memory[memory[replica + GROUP] + RECEIVE_INTERVAL]:
        memory[replica + LOOKED] = memory[replica + CLOCK]
        memory[replica + UNSEEN_ROUNDS] = 0


@compiled
def looks_now(memory: Memory, replica: int) -> bool:
    """Whether it has looked at this boundary."""
    return memory[replica + LOOKED] == memory[replica + CLOCK]


@compiled
def look_soon(memory: Memory, replica: int) -> None:
    """The next boundary is one to look at: a prompt is computed, or nothing is."""
    memory[replica + UNSEEN_ROUNDS] = memory[memory[replica + GROUP] + RECEIVE_INTERVAL]


@compiled
def rounds_to_look(memory: Memory, replica: int) -> int:
    """Rounds of decode up to the next boundary to look at, at least 1."""
    return max(1, memory[memory[replica + GROUP] + RECEIVE_INTERVAL] - memory[replica + UNSEEN_ROUNDS])
