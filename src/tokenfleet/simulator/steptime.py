"""How long steps take: one step, a run of pure decode steps, and how many of them fit into a time.

See :class:`tokenfleet.domain.replica.StepTimeModel` for the formula. All integers, but for the smooth maximum.
"""

import math

from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    CONTEXT_PS,
    DRAFT_TABLE_AT,
    EAGER_PS,
    NONE,
    SEQUENCE_PS,
    TOKEN_TABLE_AT,
    WINDOW_PS,
)
from tokenfleet.simulator.memory import Memory


@compiled
def smooth_maximum_ps(base_ps: int, floor_ps: int) -> int:
    """Fourth-power mean of two durations, rounded to a picosecond.

    Products, sums and square roots only: IEEE 754 rounds each of them exactly, so every machine agrees.
    """
    base = float(base_ps)
    floor = float(floor_ps)
    base_square = base * base
    floor_square = floor * floor
    return int(math.sqrt(math.sqrt(base_square * base_square + floor_square * floor_square)) + 0.5)


@compiled
def token_ps(memory: Memory, group: int, tokens: int, sequences: int) -> int:
    """The part of a step that depends on its number of tokens alone, and what drafting for its sequences takes."""
    drafting_at = memory[group + DRAFT_TABLE_AT]
    draft_ps = memory[drafting_at + sequences] if drafting_at != NONE else 0
    return memory[memory[group + TOKEN_TABLE_AT] + tokens] + draft_ps


@compiled
def base_step_ps(
    memory: Memory, group: int, tokens: int, sequences: int, context: int, window_context: int, attention_ps: int
) -> int:
    """A step before the floor that launches set: ``tokens`` in all, some of them of ``sequences`` that decode."""
    return (
        token_ps(memory, group, tokens, sequences)
        + memory[group + SEQUENCE_PS] * sequences
        + memory[group + CONTEXT_PS] * context
        + memory[group + WINDOW_PS] * window_context
        + attention_ps
    )


@compiled
def prefill_step_ps(
    memory: Memory, group: int, tokens: int, sequences: int, context: int, window_context: int, attention_ps: int
) -> int:
    """A step with prefill in it, whose attention takes ``attention_ps``."""
    base_ps = base_step_ps(memory, group, tokens, sequences, context, window_context, attention_ps)
    return smooth_maximum_ps(base_ps, memory[group + EAGER_PS])


@compiled
def decode_step_ps(memory: Memory, group: int, tokens: int, sequences: int, context: int, window_context: int) -> int:
    """A step that only decodes: ``tokens``, drafted ones included."""
    return base_step_ps(memory, group, tokens, sequences, context, window_context, 0)


@compiled
def run_ps(step_ps: int, growth_ps: int, steps: int) -> int:
    """Duration of ``steps`` steps, the first ``step_ps`` long and each next one ``growth_ps`` longer."""
    return steps * step_ps + growth_ps * (steps * (steps - 1) // 2)


@compiled
def steps_until(step_ps: int, growth_ps: int, time_ps: int) -> int:
    """The smallest number of steps that together last at least ``time_ps``; 0 when that is not positive.

    A float square root finds the neighbourhood, integers decide.
    """
    if time_ps <= 0:
        return 0
    if growth_ps == 0:
        return (time_ps + step_ps - 1) // step_ps
    slope = float(step_ps) - 0.5 * growth_ps
    steps = int((math.sqrt(slope * slope + 2.0 * growth_ps * time_ps) - slope) / growth_ps)
    while steps > 0 and run_ps(step_ps, growth_ps, steps - 1) >= time_ps:
        steps -= 1
    while run_ps(step_ps, growth_ps, steps) < time_ps:
        steps += 1
    return steps
