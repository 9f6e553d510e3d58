"""What a replica has done: counts of its steps and tokens, and the gauges that a pause shows."""

from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    BUSY_UNTIL,
    CONTEXT,
    DECODE,
    DECODE_BUSY,
    DECODE_TOKENS,
    DECODING,
    FIRST_RUNNING,
    FREE_BLOCKS,
    GROUP,
    GROWTH_PS,
    HORIZON,
    KEPT_TOKENS,
    LAG,
    LEDGER_AT,
    NONE,
    PAIRS,
    PREEMPTIONS,
    PREFILL_BUSY,
    PREFILL_PAIRS,
    PREFILL_TOKENS,
    READ_TOKENS,
    RECOMPUTED_TOKENS,
    REPLICA_WORDS,
    REPLICAS_AT,
    RUN,
    RUNNING,
    RUNNING_NEXT,
    SAMPLE_ACTIVE_TOKENS,
    SAMPLE_BUSY,
    SAMPLE_DECODE_TOKENS,
    SAMPLE_FREE_BLOCKS,
    SAMPLE_KEPT_TOKENS,
    SAMPLE_PREEMPTIONS,
    SAMPLE_PREFILL_PAIRS,
    SAMPLE_PREFILL_TOKENS,
    SAMPLE_READ_TOKENS,
    SAMPLE_RECOMPUTED_TOKENS,
    SAMPLE_RUNNING,
    SAMPLE_STEPS,
    SAMPLE_STEPS_WITH_PREFILL,
    SAMPLE_SWAPPED_BLOCKS,
    SAMPLE_SWAPS,
    SAMPLE_WAITING,
    SAMPLE_WORDS,
    SAMPLES_AT,
    STATE,
    STEP,
    STEP_PS,
    STEPS,
    STEPS_WITH_PREFILL,
    SWAPPED_BLOCKS,
    SWAPS,
    WAITING,
)
from tokenfleet.simulator.memory import Memory
from tokenfleet.simulator.prefixes import computed_tokens
from tokenfleet.simulator.sharing import shares, step_to_come_ps
from tokenfleet.simulator.steptime import run_ps, steps_until
from tokenfleet.simulator.windows import run_blocks


@compiled
def count_decodes(memory: Memory, replica: int, steps: int) -> None:
    """A run of pure decode steps is over."""
    decoding = memory[replica + DECODING]
    memory[replica + DECODE_TOKENS] += decoding * steps
    memory[replica + READ_TOKENS] += run_ps(memory[replica + CONTEXT], decoding, steps)


@compiled
def count_prefills(memory: Memory, replica: int, tokens: int, decoding: int) -> None:
    """A step with prefill is fixed."""
    memory[replica + STEPS_WITH_PREFILL] += 1
    memory[replica + PREFILL_TOKENS] += tokens
    memory[replica + PREFILL_PAIRS] += memory[replica + PAIRS]
    if decoding > 0:
        memory[replica + DECODE_TOKENS] += decoding
        memory[replica + READ_TOKENS] += memory[replica + CONTEXT]


@compiled
def busy_ps(memory: Memory, replica: int, time_ps: int) -> int:
    """Time that a replica has spent in steps by now, those under way counted up to now."""
    spent_ps = memory[replica + PREFILL_BUSY] + memory[replica + DECODE_BUSY]
    if shares(memory, replica):
        spent_ps += memory[replica + STEP_PS] if memory[replica + RUN] > 0 else 0
        return spent_ps - step_to_come_ps(memory, replica, time_ps)
    if memory[replica + RUN] > 0:
        return spent_ps + time_ps - memory[replica + HORIZON]
    return spent_ps - max(memory[replica + BUSY_UNTIL] - time_ps, 0)


@compiled
def active_tokens(memory: Memory, replica: int) -> int:
    """Computed tokens of its running sequences before the current run; of those that decode the sum is known."""
    decoding = memory[replica + DECODING]
    active = memory[replica + CONTEXT] - decoding
    sequence = memory[replica + FIRST_RUNNING] if memory[replica + RUNNING] > decoding else NONE
    while sequence != NONE:
        if memory[sequence + STATE] != DECODE:
            active += computed_tokens(memory, replica, sequence)
        sequence = memory[sequence + RUNNING_NEXT]
    return active


@compiled
def gauge_work(memory: Memory, replica: int, sample: int, fixed: int, time_ps: int) -> None:
    """Write what a replica has done by now, where ``fixed`` steps of its current run are fixed."""
    decoding = memory[replica + DECODING]
    memory[sample + SAMPLE_ACTIVE_TOKENS] = active_tokens(memory, replica) + decoding * fixed
    memory[sample + SAMPLE_BUSY] = busy_ps(memory, replica, time_ps)
    memory[sample + SAMPLE_STEPS] = memory[replica + STEPS] + fixed
    memory[sample + SAMPLE_STEPS_WITH_PREFILL] = memory[replica + STEPS_WITH_PREFILL]
    memory[sample + SAMPLE_PREFILL_TOKENS] = memory[replica + PREFILL_TOKENS]
    memory[sample + SAMPLE_DECODE_TOKENS] = memory[replica + DECODE_TOKENS] + decoding * fixed
    read = run_ps(memory[replica + CONTEXT], decoding, fixed)
    memory[sample + SAMPLE_READ_TOKENS] = memory[replica + READ_TOKENS] + read
    memory[sample + SAMPLE_PREFILL_PAIRS] = memory[replica + PREFILL_PAIRS]
    memory[sample + SAMPLE_KEPT_TOKENS] = memory[replica + KEPT_TOKENS]
    memory[sample + SAMPLE_PREEMPTIONS] = memory[replica + PREEMPTIONS]
    memory[sample + SAMPLE_SWAPS] = memory[replica + SWAPS]
    memory[sample + SAMPLE_SWAPPED_BLOCKS] = memory[replica + SWAPPED_BLOCKS]
    memory[sample + SAMPLE_RECOMPUTED_TOKENS] = memory[replica + RECOMPUTED_TOKENS]


@compiled
def gauge(memory: Memory, number: int, time_ps: int) -> None:
    """Write the gauges of one replica as they stand after its last boundary up to ``time_ps``."""
    replica = memory[REPLICAS_AT] + number * REPLICA_WORDS
    sample = memory[SAMPLES_AT] + number * SAMPLE_WORDS
    free = memory[replica + FREE_BLOCKS]
    fixed = min(memory[replica + RUN], 1)
    if memory[replica + RUN] > 1:
        ahead_ps = time_ps + 1 - memory[replica + HORIZON]
        passed = steps_until(memory[replica + STEP_PS], memory[replica + GROWTH_PS], ahead_ps) - 1
        passed = min(passed + memory[memory[replica + GROUP] + LAG], memory[replica + RUN] - 1)
        if passed > 0:
            free -= run_blocks(memory, replica, memory[replica + STEP] + 1, passed)
            fixed += passed
    memory[sample + SAMPLE_RUNNING] = memory[replica + RUNNING]
    memory[sample + SAMPLE_WAITING] = memory[replica + WAITING]
    memory[sample + SAMPLE_FREE_BLOCKS] = free
    if memory[LEDGER_AT] != NONE:
        gauge_work(memory, replica, sample, fixed, time_ps)
