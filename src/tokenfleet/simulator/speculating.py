"""Speculative decoding: how many of the drafted tokens each sequence keeps, known when the step has ended.

A step computes the next token of each decoding sequence and as many drafted ones. What is kept of them is a beginning,
so one draw for a request at a place in its text decides it: the same whenever and wherever it gets there. While the
step runs, blocks for all drafts are free and nobody else takes them.
"""

from tokenfleet.simulator.blocks import blocks_between, count_phase, decode_blocks, take_blocks
from tokenfleet.simulator.compiling import compiled, compiled_apart
from tokenfleet.simulator.decoding import await_event
from tokenfleet.simulator.layout import (
    AHEAD_BLOCKS,
    BUDGET,
    CHUNK,
    CONTEXT,
    CUT_TOKENS,
    DECODE,
    DECODING,
    DRAFTED,
    FIRST_RUNNING,
    FIRST_STEP,
    GROUP,
    GROWING,
    IS_CONTENDED,
    KEPT_AT,
    KEPT_TOKENS,
    LAST_STEP,
    LEDGER_AT,
    LEFT_OUT,
    NONE,
    ORIGIN,
    REQUEST,
    REQUEST_WORDS,
    REQUESTS_AT,
    ROW,
    RUNNING_NEXT,
    STATE,
    STEP,
    STEP_TOKENS,
    VISITS_AT,
    WINDOW_CONTEXT,
    WINDOW_TOKENS,
)
from tokenfleet.simulator.ledger import charge_own
from tokenfleet.simulator.memory import Memory
from tokenfleet.simulator.prefixes import computed_tokens, first_order, write_up_to
from tokenfleet.simulator.ring import take_from_ring
from tokenfleet.simulator.visits import scrambled, visit_of


@compiled
def draft_blocks(memory: Memory, replica: int) -> int:
    """Blocks that the drafts of the next step need, if all are kept."""
    drafted = memory[memory[replica + GROUP] + STEP_TOKENS] - 1
    return 0 if drafted == 0 else decode_blocks(memory, replica, memory[replica + STEP] + 1, drafted)


@compiled
def draft_blocks_of(memory: Memory, replica: int, sequence: int, drafted: int) -> int:
    """Blocks that so many drafted tokens of one running sequence need behind the token of its own, if it decodes."""
    if drafted == 0 or memory[sequence + STATE] not in (DECODE, LEFT_OUT):
        return 0
    group = memory[replica + GROUP]
    tokens = computed_tokens(memory, replica, sequence) + 1
    return blocks_between(memory, group, tokens, tokens + drafted)


@compiled
def draft(memory: Memory, replica: int, sequence: int, drafted: int, sign: int) -> None:
    """Count a decoding sequence among those served, with so many drafted tokens, or no more."""
    memory[sequence + CHUNK] = drafted
    memory[replica + CUT_TOKENS] += sign * (memory[memory[replica + GROUP] + STEP_TOKENS] - 1 - drafted)
    memory[replica + BUDGET] -= sign * (1 + drafted)
    memory[replica + AHEAD_BLOCKS] += sign * draft_blocks_of(memory, replica, sequence, drafted)


@compiled
def decoded_tokens(memory: Memory, replica: int) -> int:
    """Tokens that the decoding sequences compute in the step being fixed, drafted ones included."""
    return memory[replica + DECODING] * memory[memory[replica + GROUP] + STEP_TOKENS] - memory[replica + CUT_TOKENS]


@compiled
def kept_tokens(memory: Memory, group: int, request: int, computed: int) -> int:
    """Drafted tokens that a request keeps behind its first ``computed`` ones."""
    row = (request - memory[REQUESTS_AT]) // REQUEST_WORDS
    if memory[VISITS_AT] != NONE:
        row = memory[visit_of(memory, request) + ROW]
    drawn = scrambled(scrambled(row, computed), computed)
    kept = 0
    while kept < memory[group + STEP_TOKENS] - 1 and drawn < memory[memory[group + KEPT_AT] + kept]:
        kept += 1
    return kept


@compiled
def leap(memory: Memory, replica: int, sequence: int, tokens: int) -> None:
    """A decoding sequence is further by so many tokens than its last step alone has brought it."""
    memory[replica + KEPT_TOKENS] += tokens
    group = memory[replica + GROUP]
    computed = memory[sequence + ORIGIN] + memory[replica + STEP]
    further = computed + tokens
    window = memory[group + WINDOW_TOKENS]
    if memory[LEDGER_AT] != NONE:
        charge_own(memory, replica, sequence, memory[replica + STEP])
    take_from_ring(memory, replica, sequence)
    count_phase(memory, replica, sequence, -1)
    if computed < window <= further:
        memory[replica + GROWING] -= 1
    memory[replica + CONTEXT] += tokens
    memory[replica + WINDOW_CONTEXT] += min(further + 1, window) - min(computed + 1, window)
    memory[sequence + ORIGIN] += tokens
    memory[sequence + LAST_STEP] -= tokens
    count_phase(memory, replica, sequence, 1)
    await_event(memory, replica, sequence, memory[replica + STEP] - 1)
    take_blocks(memory, replica, blocks_between(memory, group, computed, further))
    if memory[sequence + IS_CONTENDED] != 0:
        write_up_to(memory, replica, sequence, further, first_order(memory, replica))


@compiled_apart
def keep_drafts(memory: Memory, replica: int) -> None:
    """The step that drafted has ended: each sequence in it keeps what is right, and no more than it has to say."""
    memory[replica + DRAFTED] = 0
    group = memory[replica + GROUP]
    step = memory[replica + STEP]
    sequence = memory[replica + FIRST_RUNNING]
    while sequence != NONE:
        if memory[sequence + STATE] == DECODE and memory[sequence + FIRST_STEP] < step:
            computed = memory[sequence + ORIGIN] + step
            kept = kept_tokens(memory, group, memory[sequence + REQUEST], computed)
            kept = min(kept, memory[sequence + LAST_STEP] - step + 1)
            if memory[replica + CUT_TOKENS] > 0:
                kept = min(kept, memory[sequence + CHUNK])
            if kept > 0:
                leap(memory, replica, sequence, kept)
        sequence = memory[sequence + RUNNING_NEXT]
    memory[replica + CUT_TOKENS] = 0
