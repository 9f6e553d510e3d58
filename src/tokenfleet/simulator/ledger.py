"""What each request takes of the gpus: an additive share of every step, in constant time for each change of the batch.

The decode part of a step is what its sequences read and hold themselves, which each pays alone, and a rest (matrices,
launches, what prefill adds), which they share equally. The own part is a closed form of the contexts of a sequence, so
it is charged when the sequence leaves the batch. The equal part is the same for all, so one clock for each replica
runs by it, and a sequence that leaves is charged what the clock has advanced since it joined. What does not divide
evenly is carried to the next step: nothing is lost, and a jump over many steps charges what stepping would.

The prefill part of a step is the attention of each chunk, and a rest by their tokens.
"""

from tokenfleet.simulator.attention import attention_ps, cached_chunk_ps, chunk_attention_ps
from tokenfleet.simulator.compiling import compiled, compiled_apart
from tokenfleet.simulator.layout import (
    CACHED_GPU,
    CHARGED_STEP,
    CHUNK,
    CLOCK,
    COMPUTED,
    CONTEXT_PS,
    DECODE,
    DECODE_GPU,
    FIRST_RUNNING,
    GPU_COUNT,
    GROUP,
    HIT,
    JOINED_CLOCK,
    LEDGER_AT,
    LEDGER_WORDS,
    LOST_TOKENS,
    NONE,
    ORIGIN,
    PREFILL,
    PREFILL_GPU,
    REQUEST,
    REQUEST_WORDS,
    REQUESTS_AT,
    RUN,
    RUNNING_NEXT,
    SCHEDULED,
    SEQUENCE_PS,
    SHARE_CARRY,
    SHARE_CLOCK,
    STATE,
    STEP,
    WINDOW_PS,
    WINDOW_TOKENS,
)
from tokenfleet.simulator.memory import Memory
from tokenfleet.simulator.steptime import run_ps


@compiled
def ledger_of(memory: Memory, request: int) -> int:
    """The ledger row of a request."""
    return memory[LEDGER_AT] + (request - memory[REQUESTS_AT]) // REQUEST_WORDS * LEDGER_WORDS


@compiled
def note_scheduled(memory: Memory, replica: int, request: int) -> None:
    """A request is admitted; the first time counts."""
    if memory[LEDGER_AT] == NONE:
        return
    row = ledger_of(memory, request)
    if memory[row + SCHEDULED] < 0:
        memory[row + SCHEDULED] = memory[replica + CLOCK]


@compiled
def forget_scheduled(memory: Memory, request: int) -> None:
    """An attempt came to nothing. What it took stays charged."""
    if memory[LEDGER_AT] != NONE:
        row = ledger_of(memory, request)
        memory[row + SCHEDULED] = -1
        memory[row + LOST_TOKENS] = 0


@compiled
def share_equally(memory: Memory, replica: int, sequences: int, shared_ps: int) -> None:
    """The sequences of a step, or of a run of equal ones, share a time equally."""
    total_ps = shared_ps + memory[replica + SHARE_CARRY]
    each_ps = total_ps // sequences
    memory[replica + SHARE_CLOCK] += each_ps
    memory[replica + SHARE_CARRY] = total_ps - each_ps * sequences


@compiled
def open_account(memory: Memory, replica: int, sequence: int) -> None:
    """A sequence decodes from the next step on."""
    memory[sequence + CHARGED_STEP] = memory[replica + STEP]
    memory[sequence + JOINED_CLOCK] = memory[replica + SHARE_CLOCK]


@compiled
def charge_own(memory: Memory, replica: int, sequence: int, step: int) -> None:
    """Charge a decoding sequence its own part of the steps before ``step``."""
    group = memory[replica + GROUP]
    steps = step - memory[sequence + CHARGED_STEP]
    first = memory[sequence + ORIGIN] + memory[sequence + CHARGED_STEP] + 1
    window = memory[group + WINDOW_TOKENS]
    growing = min(steps, max(window - first, 0))
    own_ps = (
        memory[group + SEQUENCE_PS] * steps
        + memory[group + CONTEXT_PS] * run_ps(first, 1, steps)
        + memory[group + WINDOW_PS] * (run_ps(first, 1, growing) + (steps - growing) * window)
    )
    memory[ledger_of(memory, memory[sequence + REQUEST]) + DECODE_GPU] += own_ps * memory[group + GPU_COUNT]
    memory[sequence + CHARGED_STEP] = step


@compiled
def close_account(memory: Memory, replica: int, sequence: int) -> None:
    """A sequence decodes no more from the next step on."""
    if memory[LEDGER_AT] != NONE:
        charge_since_joined(memory, replica, sequence)


@compiled_apart
def charge_since_joined(memory: Memory, replica: int, sequence: int) -> None:
    """Charge a decoding sequence what it took since it joined the batch."""
    charge_own(memory, replica, sequence, memory[replica + STEP])
    equal_ps = memory[replica + SHARE_CLOCK] - memory[sequence + JOINED_CLOCK]
    row = ledger_of(memory, memory[sequence + REQUEST])
    memory[row + DECODE_GPU] += equal_ps * memory[memory[replica + GROUP] + GPU_COUNT]


@compiled
def close_accounts(memory: Memory, replica: int) -> None:
    """A replica fails, and with it all that decode."""
    if memory[LEDGER_AT] == NONE:
        return
    sequence = memory[replica + FIRST_RUNNING]
    while sequence != NONE:
        if memory[sequence + STATE] == DECODE:
            close_account(memory, replica, sequence)
        sequence = memory[sequence + RUNNING_NEXT]


@compiled
def charge_before_change(memory: Memory, replica: int) -> None:
    """The physics of a replica change after the steps that are fixed: charge those at the old ones."""
    if memory[LEDGER_AT] == NONE:
        return
    sequence = memory[replica + FIRST_RUNNING]
    while sequence != NONE:
        if memory[sequence + STATE] == DECODE:
            charge_own(memory, replica, sequence, memory[replica + STEP] + memory[replica + RUN])
        sequence = memory[sequence + RUNNING_NEXT]


@compiled
def charge_prefills(memory: Memory, replica: int, first: int, tokens: int, prefill_ps: int) -> None:
    """Charge the prefill part of a step to its chunks, which are not before ``first`` in the running list.

    Args:
        memory: The buffer.
        replica: In whose step they are.
        first: A sequence of the running list.
        tokens: Of all chunks together.
        prefill_ps: The part, at least the attention of all.
    """
    group = memory[replica + GROUP]
    gpus = memory[group + GPU_COUNT]
    rest_ps = prefill_ps - attention_ps(memory, replica)
    passed = charged_ps = 0
    sequence = first
    while sequence != NONE:
        if memory[sequence + STATE] == PREFILL:
            chunk = memory[sequence + CHUNK]
            start = memory[sequence + COMPUTED] - chunk
            own_ps = chunk_attention_ps(memory, group, start, chunk)
            passed += chunk
            # What all chunks up to this one pay together is rounded, so that nothing is lost.
            together_ps = rest_ps if passed == tokens else rest_ps * passed // tokens
            row = ledger_of(memory, memory[sequence + REQUEST])
            memory[row + PREFILL_GPU] += (own_ps + together_ps - charged_ps) * gpus
            memory[row + CACHED_GPU] += cached_chunk_ps(memory, group, start, chunk, memory[sequence + HIT]) * gpus
            charged_ps = together_ps
        sequence = memory[sequence + RUNNING_NEXT]
