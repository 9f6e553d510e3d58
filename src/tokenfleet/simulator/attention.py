"""Attention of prefill: query-key pairs of a step, and what they take.

Layers that keep their whole context pay for each pair of a query and a key before it, layers with a long window for
those inside the window only. Short windows are charged by tokens (``token_ps``).
"""

from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.layout import (
    CACHED_PAIRS,
    CACHED_WINDOW_PAIRS,
    GROUP,
    HIT,
    PAIR_PS,
    PAIRS,
    WINDOW_PAIR_PS,
    WINDOW_PAIRS,
    WINDOW_TOKENS,
)
from tokenfleet.simulator.memory import Memory


@compiled
def has_window_pairs(memory: Memory, group: int) -> bool:
    """Whether any layer has a long window."""
    return memory[group + WINDOW_PAIR_PS] != 0


@compiled
def pair_count(start: int, tokens: int) -> int:
    """Pairs of a chunk behind ``start`` computed tokens."""
    return tokens * start + tokens * (tokens + 1) // 2


@compiled
def window_pair_count(start: int, tokens: int, window: int) -> int:
    """Those of them inside the window; each query sees its own key."""
    growing = min(tokens, max(window - start, 0))
    return pair_count(start, growing) + (tokens - growing) * window


@compiled
def cached_window_pair_count(start: int, tokens: int, hit: int, window: int) -> int:
    """Those inside the window whose key is among the first ``hit`` tokens."""
    return window_pair_count(start, tokens, window) - window_pair_count(start - hit, tokens, window)


@compiled
def forget_pairs(memory: Memory, replica: int) -> None:
    """A new step is fixed."""
    memory[replica + PAIRS] = 0
    memory[replica + CACHED_PAIRS] = 0
    if has_window_pairs(memory, memory[replica + GROUP]):
        memory[replica + WINDOW_PAIRS] = 0
        memory[replica + CACHED_WINDOW_PAIRS] = 0


@compiled
def count_pairs(memory: Memory, replica: int, sequence: int, start: int, tokens: int, sign: int) -> None:
    """A sequence gets a chunk in the step being fixed (``sign`` 1), or does not get it after all (-1)."""
    group = memory[replica + GROUP]
    hit = memory[sequence + HIT]
    memory[replica + PAIRS] += sign * pair_count(start, tokens)
    memory[replica + CACHED_PAIRS] += sign * tokens * hit
    if has_window_pairs(memory, group):
        window = memory[group + WINDOW_TOKENS]
        memory[replica + WINDOW_PAIRS] += sign * window_pair_count(start, tokens, window)
        memory[replica + CACHED_WINDOW_PAIRS] += sign * cached_window_pair_count(start, tokens, hit, window)


@compiled
def attention_ps(memory: Memory, replica: int) -> int:
    """Attention of all prefills of the step being fixed."""
    group = memory[replica + GROUP]
    whole_ps = memory[group + PAIR_PS] * memory[replica + PAIRS]
    if has_window_pairs(memory, group):
        whole_ps += memory[group + WINDOW_PAIR_PS] * memory[replica + WINDOW_PAIRS]
    return whole_ps


@compiled
def cached_attention_ps(memory: Memory, replica: int) -> int:
    """The part of it whose keys came from the prefix cache."""
    group = memory[replica + GROUP]
    whole_ps = memory[group + PAIR_PS] * memory[replica + CACHED_PAIRS]
    if has_window_pairs(memory, group):
        whole_ps += memory[group + WINDOW_PAIR_PS] * memory[replica + CACHED_WINDOW_PAIRS]
    return whole_ps


@compiled
def chunk_attention_ps(memory: Memory, group: int, start: int, tokens: int) -> int:
    """Attention of one chunk."""
    whole_ps = memory[group + PAIR_PS] * pair_count(start, tokens)
    if has_window_pairs(memory, group):
        whole_ps += memory[group + WINDOW_PAIR_PS] * window_pair_count(start, tokens, memory[group + WINDOW_TOKENS])
    return whole_ps


@compiled
def cached_chunk_ps(memory: Memory, group: int, start: int, tokens: int, hit: int) -> int:
    """The part of it whose keys came from the prefix cache."""
    whole_ps = memory[group + PAIR_PS] * tokens * hit
    if has_window_pairs(memory, group):
        inside = cached_window_pair_count(start, tokens, hit, memory[group + WINDOW_TOKENS])
        whole_ps += memory[group + WINDOW_PAIR_PS] * inside
    return whole_ps
