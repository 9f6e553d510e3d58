"""What is compiled does what the same lines do in plain Python; what would not is refused."""

import math
import sys
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from calling import as_compiled
from reference.fleets import random_copies, random_fleet, random_trace
from tokenfleet.simulator import kernel
from tokenfleet.simulator import layout as at
from tokenfleet.simulator.building import build, empty_buffer
from tokenfleet.simulator.compiling import compiled, machine_code
from tokenfleet.simulator.entry import advance
from tokenfleet.simulator.memory import Memory, fetch_ahead, float_bits, lowest_bit
from tokenfleet.simulator.translating import definitions

WORDS = 40
LIMIT = 1 << 30


@compiled
def note(memory: Memory, word: int, value: int) -> bool:
    """Leave a trace of having been called; whether the value is odd."""
    memory[word] = memory[word] * 3 + value
    return value & 1 == 1


@compiled
def arithmetic(memory: Memory, left: int, right: int) -> int:
    """Every operator."""
    memory[0] = left + right
    memory[1] = left - right
    memory[2] = left * right
    memory[3] = left // right
    memory[4] = left % right
    memory[5] = left // 32
    memory[6] = left % 32
    memory[7] = left & right
    memory[8] = left | right
    memory[9] = left ^ right
    memory[10] = left << 7
    memory[11] = left >> 3
    memory[12] = -left
    memory[13] = ~left
    memory[14] = min(left, right, 5)
    memory[15] = max(left, right)
    memory[16] = int(math.sqrt(left * left + 0.5 * right * right))
    memory[17] = int(float(left) / right)
    memory[18] = float_bits(left)
    memory[19] = left == right
    memory[20] = (left < right) + (left <= right) * 2
    memory[21] = int(left > right) + (not left >= right)
    memory[22] = (left in (1, right)) | (left not in (2, 3))
    memory[23] += left
    memory[23] *= 3
    memory[24], memory[25] = right, left
    memory[26] = lowest_bit(left | 1 << 40)
    fetch_ahead(memory, right)
    return left if left != right else -1


@compiled
def decisions(memory: Memory, left: int, right: int) -> bool:
    """What is looked at, and in which order."""
    if (note(memory, 0, left) and note(memory, 1, right)) or not note(memory, 2, left + right):
        memory[3] = 1
    elif left < right:
        memory[3] = 2
    else:
        memory[3] = 3
    memory[4] = 1 if 0 <= note(memory, 5, left) < right <= 7 else memory[3]
    both = left > 3 and note(memory, 6, right)
    either = left > right or left % 3 == 0
    if left:
        return both
    return either != (0 < left <= right)


@compiled
def loops(memory: Memory, left: int, right: int) -> int:
    """Loops of all kinds."""
    total = 0
    for each in range(left & 15):
        if each == right & 7:
            continue
        total += each
        if total > 50:
            break
    for each in range(right & 7, -3, -2):
        total = total * 2 + each
    for each in range(2, left & 15):
        for _ in range(each & 3):
            total += 1
    while total > 20:
        total -= 7
        if total & 7 == 3:
            break
        while total > 90:
            total //= 2
    memory[each & 7] = total
    return total


PLAIN = {plain.__name__: plain for plain in (arithmetic, decisions, loops)}


@cache
def function(name: str) -> Callable:
    return as_compiled(PLAIN[name])


def run(name: str, left: int, right: int) -> tuple[int, list[int]]:
    """What a compiled function returns, and what it leaves."""
    memory = np.zeros(WORDS, dtype=np.int64)
    return function(name)(memory, left, right), memory.tolist()


numbers = st.integers(-LIMIT, LIMIT) | st.integers(-9, 9)


@pytest.mark.parametrize("name", PLAIN)
@settings(max_examples=300, deadline=None)
@given(left=numbers, right=numbers)
def test_compiled_does_what_plain_python_does(name: str, left: int, right: int) -> None:
    assume(name != "arithmetic" or right != 0)
    memory = [0] * WORDS
    assert (PLAIN[name](memory, left, right), memory) == run(name, left, right)


def test_what_is_divided_by_zero_gives_zero() -> None:
    memory = run("arithmetic", 7, 0)[1]
    assert (memory[3], memory[4]) == (0, 0)


@pytest.mark.parametrize("seed", range(12))
def test_the_kernel_leaves_every_word_as_plain_python_does(seed: int) -> None:
    """Its text, run line by line by Python, is a simulator too."""
    draw = np.random.default_rng(seed)
    rows, drawn = random_copies(draw) if seed % 3 == 0 else (random_trace(draw), random_fleet(draw))
    memory, _ = build(rows, drawn, (0.0, 1.0), detailed=seed % 2 == 0)
    plain = memory.tolist()
    assert kernel.advance(plain, at.NEVER_PS - 1) == advance(memory, at.NEVER_PS - 1)
    assert plain == memory.tolist()


REFUSED = {
    "memory[0] = [1, 2][0]": "no such expression",
    "memory[0] = value ** 2": "no such operator",
    "memory[0] = value / 2": "double where i64 is needed",
    "memory[0] = 9223372036854775808": "no number of 64 bits",
    "memory[0] = missing": "no number of 64 bits, and no variable",
    "memory[0] = value and 3": "a truth value is needed",
    "memory[0] = abs(value)": "not marked as compiled",
    "memory[0] = max(value, key=abs)": "arguments go by their place",
    "memory[0] = value is value": "no such comparison",
    "value[0] = 3": "only the buffer has an index",
    "for each in (1, 2): pass": "a loop goes over a range",
    "for each in range(0, 9, value): pass": "the step is a constant",
    "while value: value -= 1\n    else: value = 3": "nothing hangs on the end of a loop",
    "value = 0.5": "double where i64 is needed",
    "assert value": "no such statement",
    "return 0.5": "double where i64 is needed",
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_means_something_else_is_refused(line: str, tmp_path, monkeypatch) -> None:
    """With the file and the line."""
    file = tmp_path / "refused.py"
    file.write_text(
        "from tokenfleet.simulator.compiling import compiled\nfrom tokenfleet.simulator.memory import Memory\n\n\n"
        f"@compiled\ndef odd(memory: Memory, value: int) -> int:\n    {line}\n    return value\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "refused", raising=False)
    definitions.cache_clear()
    with pytest.raises(TypeError, match=rf"refused\.py:\d: .*{REFUSED[line]}"):
        machine_code("refused", "odd")


def test_only_numbers_and_the_buffer_go_in(tmp_path, monkeypatch) -> None:
    file = tmp_path / "refused.py"
    file.write_text(
        "from tokenfleet.simulator.compiling import compiled\n\n\n@compiled\ndef odd(text: str) -> int:\n    return 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "refused", raising=False)
    with pytest.raises(TypeError, match=r"refused\.odd: only int, bool, Memory, NoneType go in and come out"):
        machine_code("refused", "odd")


@pytest.mark.parametrize("sparse_words", [0, 700, 4096])
def test_a_buffer_is_empty_and_starts_on_a_cache_line(sparse_words: int) -> None:
    memory = empty_buffer(4096, sparse_words)
    assert len(memory) == 4096
    assert not memory.any()
    assert memory.ctypes.data % 64 == 0
    memory[-1] = 1
    assert memory.sum() == 1
