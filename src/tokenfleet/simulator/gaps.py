"""Counts the token gaps of a replay."""

from tokenfleet.domain.run import GAP_BINS_PER_OCTAVE
from tokenfleet.simulator.bins import FLOOR_OCTAVE, GAP_BINS, GUESSES, OCTAVES
from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import BOUNDS_AT, GAPS_AT, GUESS_AT, PEAK_END, PEAK_GAPS_AT, PEAK_START
from tokenfleet.simulator.memory import Memory, float_bits
from tokenfleet.simulator.steptime import run_ps, steps_until


@compiled
def gap_bin(memory: Memory, gap_ps: int) -> int:
    """The bin of a gap: octave and 64th of it from the bits of a float, then a comparison of integers."""
    if gap_ps < 1 << FLOOR_OCTAVE:
        return 0
    bits = float_bits(gap_ps)
    octave = (bits >> 52) - (1023 + FLOOR_OCTAVE)
    if octave >= OCTAVES:
        return GAP_BINS - 1
    found = 1 + octave * GAP_BINS_PER_OCTAVE + memory[memory[GUESS_AT] + ((bits >> 46) & (GUESSES - 1))]
    bounds = memory[BOUNDS_AT]
    if gap_ps >= memory[bounds + found + 1]:
        return found + 1
    if gap_ps < memory[bounds + found]:
        return found - 1
    return found


@compiled
def count_gaps(memory: Memory, counts: int, each: int, step_ps: int, growth_ps: int, steps: int) -> None:
    """Count ``each`` gaps for every step of a run; the steps grow, so each bin takes a stretch of them."""
    done = 0
    while done < steps:
        found = gap_bin(memory, step_ps + growth_ps * done)
        bound_ps = memory[memory[BOUNDS_AT] + found + 1]
        until = steps
        if step_ps + growth_ps * (steps - 1) >= bound_ps and found < GAP_BINS - 1:
            until = (bound_ps - 1 - step_ps) // growth_ps + 1
        memory[counts + found] += each * (until - done)
        done = until


@compiled
def record_step(memory: Memory, each: int, gap_ps: int, end_ps: int) -> None:
    """Count ``each`` equal gaps that end at ``end_ps``."""
    found = gap_bin(memory, gap_ps)
    memory[memory[GAPS_AT] + found] += each
    if memory[PEAK_START] <= end_ps < memory[PEAK_END]:
        memory[memory[PEAK_GAPS_AT] + found] += each


@compiled
def record_run(memory: Memory, each: int, step_ps: int, growth_ps: int, steps: int, start_ps: int) -> None:
    """Count the gaps of a run that starts at ``start_ps``, and those of its steps that end in the peak window."""
    count_gaps(memory, memory[GAPS_AT], each, step_ps, growth_ps, steps)
    if start_ps >= memory[PEAK_END] or start_ps + run_ps(step_ps, growth_ps, steps) < memory[PEAK_START]:
        return
    first = max(0, steps_until(step_ps, growth_ps, memory[PEAK_START] - start_ps) - 1)
    stop = min(steps, steps_until(step_ps, growth_ps, memory[PEAK_END] - start_ps) - 1)
    if stop > first:
        count_gaps(memory, memory[PEAK_GAPS_AT], each, step_ps + growth_ps * first, growth_ps, stop - first)
