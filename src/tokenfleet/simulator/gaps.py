"""Counts the token gaps of a replay."""

from tokenfleet.domain.run import GAP_BINS_PER_OCTAVE
from tokenfleet.simulator.bins import FLOOR_OCTAVE, GAP_BINS, GUESSES, OCTAVES
from tokenfleet.simulator.compiling import compiled, compiled_apart, compiled_within
from tokenfleet.simulator.layout import (
    BOUNDS_AT,
    CLASS_COUNT,
    CLASSES_AT,
    GAPS_AT,
    GUESS_AT,
    PEAK_END,
    PEAK_GAPS_AT,
    PEAK_START,
)
from tokenfleet.simulator.memory import Memory, class_of, float_bits
from tokenfleet.simulator.steptime import run_ps, steps_until


@compiled
def gap_bin(memory: Memory, gap_ps: int) -> int:
    """The bin of a gap: octave and 64th of it from the bits of a float, then a comparison of integers.

    Which of its bounds a gap is beyond is left to chance, so nothing branches there.
    """
    if gap_ps < 1 << FLOOR_OCTAVE:
        return 0
    bits = float_bits(gap_ps)
    octave = (bits >> 52) - (1023 + FLOOR_OCTAVE)
    if octave >= OCTAVES:
        return GAP_BINS - 1
    found = 1 + octave * GAP_BINS_PER_OCTAVE + memory[memory[GUESS_AT] + ((bits >> 46) & (GUESSES - 1))]
    bounds = memory[BOUNDS_AT]
    return found + (gap_ps >= memory[bounds + found + 1]) - (gap_ps < memory[bounds + found])


@compiled
def add_gaps(memory: Memory, counts: int, replica: int, found: int, steps: int) -> None:
    """Count a gap in bin ``found`` for each decoding sequence and each of ``steps``, class by class."""
    decoding = memory[replica + CLASSES_AT]
    memory[counts + found] += memory[decoding] * steps
    for number in range(1, memory[CLASS_COUNT]):
        memory[counts + number * GAP_BINS + found] += memory[decoding + number] * steps


@compiled_within
def count_gaps(memory: Memory, counts: int, replica: int, step_ps: int, growth_ps: int, steps: int) -> None:
    """Count the gaps of every step of a run; the steps grow, so each bin takes a stretch of them."""
    done = 0
    while done < steps:
        found = gap_bin(memory, step_ps + growth_ps * done)
        bound_ps = memory[memory[BOUNDS_AT] + found + 1]
        until = steps
        if step_ps + growth_ps * (steps - 1) >= bound_ps and found < GAP_BINS - 1:
            until = (bound_ps - 1 - step_ps) // growth_ps + 1
        add_gaps(memory, counts, replica, found, until - done)
        done = until


@compiled
def record_gap(memory: Memory, request: int, gap_ps: int, end_ps: int, change: int) -> None:
    """Count a gap of one request that ends at ``end_ps``; a ``change`` of -1 takes back what was counted for all."""
    found = class_of(memory, request) * GAP_BINS + gap_bin(memory, gap_ps)
    memory[memory[GAPS_AT] + found] += change
    if memory[PEAK_START] <= end_ps < memory[PEAK_END]:
        memory[memory[PEAK_GAPS_AT] + found] += change


@compiled_within
def record_step(memory: Memory, replica: int, gap_ps: int, end_ps: int) -> None:
    """Count a gap that ends at ``end_ps`` for each decoding sequence of a replica."""
    found = gap_bin(memory, gap_ps)
    add_gaps(memory, memory[GAPS_AT], replica, found, 1)
    if memory[PEAK_START] <= end_ps < memory[PEAK_END]:
        add_gaps(memory, memory[PEAK_GAPS_AT], replica, found, 1)


@compiled_within
def record_run(memory: Memory, replica: int, step_ps: int, growth_ps: int, steps: int, start_ps: int) -> None:
    """Count the gaps of a run that starts at ``start_ps``, over all and in the peak window."""
    count_gaps(memory, memory[GAPS_AT], replica, step_ps, growth_ps, steps)
    if start_ps < memory[PEAK_END] and start_ps + run_ps(step_ps, growth_ps, steps) >= memory[PEAK_START]:
        record_peak(memory, replica, step_ps, growth_ps, steps, start_ps)


@compiled_apart
def record_peak(memory: Memory, replica: int, step_ps: int, growth_ps: int, steps: int, start_ps: int) -> None:
    """Count the gaps of those steps of a run that end in the peak window."""
    first = max(0, steps_until(step_ps, growth_ps, memory[PEAK_START] - start_ps) - 1)
    stop = min(steps, steps_until(step_ps, growth_ps, memory[PEAK_END] - start_ps) - 1)
    if stop > first:
        count_gaps(memory, memory[PEAK_GAPS_AT], replica, step_ps + growth_ps * first, growth_ps, stop - first)
