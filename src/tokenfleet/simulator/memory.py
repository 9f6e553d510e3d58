"""The type of the buffer, and the fields that share a word."""

from typing import Protocol

import numpy as np

from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import DELIVERED, FIRST_TOKEN, HALF, HISTORY, LENGTHS, LINK, MOST_PREEMPTIONS, SWAPPED


class Memory(Protocol):
    """A one-dimensional array of 64-bit integers, as both compiled and plain Python see it."""

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...


@compiled
def float_bits(value: int) -> int:
    """The bits of an integer as a float64: sign, 11 bits of exponent, 52 of mantissa."""
    return int(np.float64(value).view(np.int64))


@compiled
def lowest_bit(word: int) -> int:
    """Position of the lowest set bit of a word that is not zero."""
    return (word & -word).bit_length() - 1


@compiled
def fetch_ahead(memory: Memory, row: int) -> None:
    """Have the first cache line of a row brought near, where it will be looked at soon; nothing waits for it."""


@compiled
def input_tokens(memory: Memory, request: int) -> int:
    """Prompt length."""
    return memory[request + LENGTHS] & HALF


@compiled
def output_tokens(memory: Memory, request: int) -> int:
    """Tokens the request will have generated at its end."""
    return memory[request + LENGTHS] >> 32


@compiled
def is_delivered(memory: Memory, request: int) -> bool:
    """Whether it brought the KV of its prompt along, and has yielded no token and lost no block since."""
    return memory[request + FIRST_TOKEN] == DELIVERED


@compiled
def produced_tokens(memory: Memory, request: int) -> int:
    """Output tokens at the last prefill or preemption; a decoding sequence is ahead of it."""
    return memory[request + LINK] >> 32


@compiled
def set_produced_tokens(memory: Memory, request: int, tokens: int) -> None:
    """See :func:`produced_tokens`."""
    memory[request + LINK] = (memory[request + LINK] & HALF) | (tokens << 32)


@compiled
def next_in_queue(memory: Memory, request: int) -> int:
    """The request behind this one."""
    return memory[request + LINK] & HALF


@compiled
def set_next_in_queue(memory: Memory, request: int, follower: int) -> None:
    """See :func:`next_in_queue`."""
    memory[request + LINK] = (memory[request + LINK] >> 32 << 32) | follower


@compiled
def count_preemption(memory: Memory, request: int) -> None:
    """One more preemption of this request."""
    memory[request + HISTORY] += 1 << 32


@compiled
def preemption_count(memory: Memory, request: int) -> int:
    """How often it was preempted."""
    return (memory[request + HISTORY] >> 32) & MOST_PREEMPTIONS


@compiled
def first_history(memory: Memory, request: int) -> int:
    """Its history as it was when it first arrived: nothing but its class and its priority."""
    return memory[request + HISTORY] >> 51 << 51 & ~SWAPPED


@compiled
def class_of(memory: Memory, request: int) -> int:
    """Number of its class."""
    return (memory[request + HISTORY] >> 51) & 15


@compiled
def priority_level(memory: Memory, request: int) -> int:
    """Place of its priority among those that occur, 0 for the most urgent."""
    return memory[request + HISTORY] >> 56
