"""Replicas that stand on the same gpus: one step at a time, first come first served among engines that are ready.

A step is ready when it is fixed and the one before it of the same replica has ended. It starts when the steps that
were ready before it have ended; among those ready at the same time the lower replica number is first. Its wait makes
it longer for whoever counts gaps, and takes nothing of the gpus. With async scheduling a step is fixed before it is
ready: it is *held* until then.
"""

from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    BERTH,
    BUSY_UNTIL,
    CLOCK,
    DECODING,
    FREE_AT,
    HELD,
    HOLDS_DECODES,
    HORIZON,
    NONE,
    OWN_PS,
    RUN,
    STEP_PS,
)
from tokenfleet.simulator.memory import Memory


@compiled
def shares(memory: Memory, replica: int) -> bool:
    """Whether the gpus of a replica are those of others, too."""
    return memory[replica + BERTH] != NONE


@compiled
def take_turn(memory: Memory, replica: int, own_ps: int) -> int:
    """A step that is ready at the horizon and takes so long gets its turn on the gpus; how long it waits for that."""
    berth = memory[replica + BERTH]
    free_at = memory[berth + FREE_AT]
    start_ps = max(memory[replica + HORIZON], memory[free_at])
    memory[free_at] = start_ps + own_ps
    memory[berth + OWN_PS] = own_ps
    return start_ps - memory[replica + HORIZON]


@compiled
def hold(memory: Memory, replica: int, first: int) -> bool:
    """Hold a step that prefills from sequence ``first`` on and is fixed before it is ready; whether it is."""
    is_early = memory[replica + HORIZON] > memory[replica + CLOCK]
    if is_early and (first != NONE or memory[replica + DECODING] > 0):
        memory[memory[replica + BERTH] + HELD] = HOLDS_DECODES if first == NONE else first
        return True
    return False


@compiled
def is_held(memory: Memory, replica: int) -> bool:
    """Whether a step of a replica is fixed and not on the gpus yet."""
    return memory[memory[replica + BERTH] + HELD] != NONE


@compiled
def let_go_of_step(memory: Memory, replica: int) -> int:
    """The held step is ready: from which sequence on it prefills, or ``NONE``."""
    berth = memory[replica + BERTH]
    first = memory[berth + HELD]
    memory[berth + HELD] = NONE
    return NONE if first == HOLDS_DECODES else first


@compiled
def step_to_come_ps(memory: Memory, replica: int, time_ps: int) -> int:
    """What is still to come of the step that a sharing replica started, or waits to start, last."""
    end_ps = memory[replica + BUSY_UNTIL]
    if memory[replica + RUN] > 0:
        end_ps = memory[replica + HORIZON] + memory[replica + STEP_PS]
    return min(memory[memory[replica + BERTH] + OWN_PS], max(end_ps - time_ps, 0))
