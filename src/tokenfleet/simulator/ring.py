"""What happens to sequences at which step: buckets by step number, a bit for each bucket that is not empty.

A sequence sits in the bucket of the last step before something about it changes: its end, its window becoming
full, or merely the far side of the ring, from where it is put in again.
"""

from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    BITMAP_AT,
    EVENT_STEP,
    GROUP,
    NONE,
    OCCUPIED,
    ORDER,
    RING_AT,
    RING_MASK,
    RING_NEXT,
    RING_PREVIOUS,
    STEP,
    WORD_BITS,
)
from tokenfleet.simulator.memory import Memory, lowest_bit


@compiled
def is_occupied(memory: Memory, replica: int, slot: int) -> bool:
    """Whether a bucket holds anybody; only then it is looked at, as its memory is cold while the bitmap is not."""
    return memory[memory[replica + BITMAP_AT] + slot // WORD_BITS] >> (slot % WORD_BITS) & 1 != 0


@compiled
def put_in_ring(memory: Memory, replica: int, sequence: int, step: int) -> None:
    """Put a sequence into the bucket of ``step``, sorted by admission.

    Sequences that leave in the same step must leave in order of admission, as their blocks are reused in that order.
    """
    memory[sequence + EVENT_STEP] = step
    slot = step & memory[memory[replica + GROUP] + RING_MASK]
    bucket = memory[replica + RING_AT] + slot
    if not is_occupied(memory, replica, slot):
        memory[bucket] = sequence
        memory[sequence + RING_NEXT] = sequence
        memory[sequence + RING_PREVIOUS] = sequence
        memory[memory[replica + BITMAP_AT] + slot // WORD_BITS] |= 1 << (slot % WORD_BITS)
        memory[replica + OCCUPIED] |= 1 << (slot // WORD_BITS)
        return
    head = memory[bucket]
    before = memory[head + RING_PREVIOUS]
    while memory[before + ORDER] > memory[sequence + ORDER] and before != head:
        before = memory[before + RING_PREVIOUS]
    if memory[before + ORDER] > memory[sequence + ORDER]:
        memory[bucket] = sequence
        before = memory[head + RING_PREVIOUS]
    after = memory[before + RING_NEXT]
    memory[sequence + RING_PREVIOUS] = before
    memory[sequence + RING_NEXT] = after
    memory[before + RING_NEXT] = sequence
    memory[after + RING_PREVIOUS] = sequence


@compiled
def take_from_ring(memory: Memory, replica: int, sequence: int) -> None:
    """Take one sequence out of its bucket."""
    slot = memory[sequence + EVENT_STEP] & memory[memory[replica + GROUP] + RING_MASK]
    bucket = memory[replica + RING_AT] + slot
    after = memory[sequence + RING_NEXT]
    if after == sequence:
        place = memory[replica + BITMAP_AT] + slot // WORD_BITS
        memory[place] ^= 1 << (slot % WORD_BITS)
        memory[replica + OCCUPIED] ^= (memory[place] == 0) << (slot // WORD_BITS)
        return
    before = memory[sequence + RING_PREVIOUS]
    memory[before + RING_NEXT] = after
    memory[after + RING_PREVIOUS] = before
    if memory[bucket] == sequence:
        memory[bucket] = after


@compiled
def bucket_of(memory: Memory, replica: int, step: int) -> int:
    """First sequence in the bucket of a step, or ``NONE``."""
    slot = step & memory[memory[replica + GROUP] + RING_MASK]
    return memory[memory[replica + RING_AT] + slot] if is_occupied(memory, replica, slot) else NONE


@compiled
def steps_to_next_event(memory: Memory, replica: int) -> int:
    """Steps from the next one up to and including the next occupied bucket. Some bucket must be occupied.

    Whether that is in the same word of the bitmap is left to chance, so nothing branches there.
    """
    mask = memory[memory[replica + GROUP] + RING_MASK]
    bitmap = memory[replica + BITMAP_AT]
    occupied = memory[replica + OCCUPIED]
    start = memory[replica + STEP] & mask
    here = start // WORD_BITS
    behind = occupied >> (here + 1) << (here + 1)
    there = lowest_bit(behind if behind != 0 else occupied)
    bits_there = memory[bitmap + there]
    bits_here = memory[bitmap + here] >> (start % WORD_BITS) << (start % WORD_BITS)
    index = here if bits_here != 0 else there
    bits = bits_here if bits_here != 0 else bits_there
    return ((index * WORD_BITS + lowest_bit(bits) - start) & mask) + 1
