"""The compiled walk through the steps of a closed loop. Integers only, except for weights and pair counts.

Running requests advance together, so a request that starts decoding in round ``r`` with ``k`` tokens to go ends
in round ``r + k``: rounds have lists of those who end in them, and a step costs no more than what changes in it.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]

MIXED, PREFILL_FIRST, RESERVING = 0, 1, 2
"""Batching rules: decode first with chunked prompts in one step (vLLM); prefill alone, decode paused (SGLang);
unsplit prompts beside decode, memory reserved to completion (TensorRT-LLM)."""
_BINS_PER_OCTAVE = 4
BINS = _BINS_PER_OCTAVE * 20
"""Bins by token count, once for decode-only steps and once more for steps with prefill."""
_RUNNING_RESERVE_FRACTION = 0.3
"""Share of the outputs still to come that the prefill-first rule keeps free, between its start and steady value."""
_LONGEST_PROMISE_TOKENS = 4096
"""The prefill-first rule counts at most this much of a request's output when it asks whether it fits."""
_DECODING = 2
(
    _SEQUENCES,
    _CONTEXT,
    _HELD,
    _PROMISED,
    _TO_COME,
    _ROUND,
    _STEP,
    _PARTS,
    _TOP,
    _FIRST,
    _LAST,
    _BACK,
    _ARRIVED,
    _FRESH,
    _DONE,
    _BLOCKED,
    _SEEN,
    _COUNTERS,
) = range(18)

_Function = TypeVar("_Function", bound=Callable[..., object])


class Rules(NamedTuple):
    """Engine and load, as integers."""

    rule: int
    concurrency: int
    max_sequences: int
    budget: int
    capacity: int
    lag: int
    ranks: int
    poll: int


class _Requests(NamedTuple):
    """One entry per request, and the lists they stand in."""

    inputs: _Ints
    outputs: _Ints
    state: _Ints
    computed: _Ints
    produced: _Ints
    begun: _Ints
    entry: _Ints
    queue: _Ints
    returned: _Ints
    partial: _Ints
    order: _Ints
    head: _Ints
    link: _Ints
    before: _Ints
    at: _Ints
    """The counters, by their names above."""
    weight: _Floats
    """One number: sum of ``1 / (output - 1)`` over requests between first and last token."""


class _Prefill(NamedTuple):
    """Prompt work of one step."""

    tokens: int
    pairs: float
    largest_pairs: float


_NO_PREFILL = _Prefill(0, 0.0, 0.0)


def walk(inputs: _Ints, outputs: _Ints, rules: Rules) -> tuple[_Floats, int, int]:
    """Walk a closed loop to its end.

    Args:
        inputs: prompt tokens of each request, in order of arrival.
        outputs: output tokens, at least 1.
        rules: engine and load; the capacity must hold the longest request.

    Returns:
        Sums of shape (ttft, tpot, all; bin; weight, tokens, sequences, context, pairs), the number of steps in which
        a waiting request was kept out, and the number of steps.
    """
    count = len(inputs)

    def zeros(size: int = count) -> _Ints:
        table: _Ints = np.zeros(size, dtype=np.int64)
        return table

    lanes = int(outputs.max()) + 2
    requests = _Requests(
        inputs=inputs,
        outputs=outputs,
        state=zeros(),
        computed=zeros(),
        produced=zeros(),
        begun=zeros(),
        entry=zeros(),
        queue=zeros(),
        returned=zeros(),
        partial=zeros(),
        order=zeros(2 * count + 16),
        head=zeros(lanes) - 1,
        link=zeros() - 1,
        before=zeros() - 1,
        at=zeros(_COUNTERS),
        weight=np.zeros(1),
    )
    first = min(rules.concurrency, count)
    requests.at[[_ARRIVED, _LAST, _FRESH]] = first
    requests.queue[:first] = np.arange(first)
    sums = np.zeros((3, 2 * BINS, 5))
    _walk(requests, rules, max(int((outputs > 1).sum()), 1), sums)
    return sums, int(requests.at[_BLOCKED]), int(requests.at[_STEP])


def _inner(function: _Function) -> _Function:
    """Compile what compiled code alone calls: what other callers need takes as long again."""
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast("_Function", numba.njit(function, **options))


@numba.njit(cache=True)
def _walk(requests: _Requests, rules: Rules, several: int, sums: _Floats) -> None:
    at = requests.at
    count = len(requests.inputs)
    looked = True
    decode = False
    while at[_DONE] < count:
        if looked or at[_STEP] - at[_SEEN] >= rules.poll or at[_SEQUENCES] + at[_PARTS] == 0:
            at[_SEEN] = at[_STEP]
        front = at[_BACK]
        if at[_HELD] + at[_SEQUENCES] > rules.capacity and rules.rule != RESERVING:
            _preempt(requests, rules)
        prompts = _NO_PREFILL
        if at[_PARTS] > 0 or front > 0 or at[_FIRST] < at[_LAST]:
            prompts = _prefill(requests, rules, front)
        looked = prompts.tokens > 0
        decode = at[_SEQUENCES] > 0 and not (rules.rule == PREFILL_FIRST and looked)
        if decode:
            at[_ROUND] += 1
            at[_CONTEXT] += at[_SEQUENCES]
            at[_HELD] += at[_SEQUENCES]
            at[_TO_COME] -= at[_SEQUENCES]
        running = at[_SEQUENCES] if decode else 0.0
        context = at[_CONTEXT] if decode else 0.0
        tokens = running + float(prompts.tokens)
        # One prompt lies on one rank, and the others wait for its attention.
        pairs = max(prompts.pairs, prompts.largest_pairs * rules.ranks)
        weights = (at[_FRESH] / count, requests.weight[0] / several, 1.0)
        _add(sums, weights, (tokens, running, context, pairs), looked)
        leaving = 0
        if decode and requests.head[at[_ROUND] % len(requests.head)] >= 0:
            leaving = _end_round(requests)
        if at[_PARTS] > 0:
            leaving += _end_prefill(requests)
        at[_STEP] += 1
        if leaving > 0:
            at[_DONE] += leaving
            _arrive(requests, leaving, rules.lag)


@_inner
def _add(
    sums: _Floats,
    weights: tuple[float, float, float],
    features: tuple[float, float, float, float],
    prefill: bool,
) -> None:
    place = min(int(math.log2(max(features[0], 1.0)) * _BINS_PER_OCTAVE), BINS - 1)
    if prefill:
        place += BINS
    for metric in range(3):
        cell = sums[metric, place]
        cell[0] += weights[metric]
        for feature in range(4):
            cell[1 + feature] += weights[metric] * features[feature]


@_inner
def _preempt(requests: _Requests, rules: Rules) -> None:
    """Take the last admitted sequences back until the next round fits."""
    at = requests.at
    while at[_SEQUENCES] > 1 and at[_HELD] + at[_SEQUENCES] > rules.capacity:
        while requests.state[requests.order[at[_TOP] - 1]] != _DECODING:
            at[_TOP] -= 1
        at[_TOP] -= 1
        _take_back(requests, requests.order[at[_TOP]])


@_inner
def _take_back(requests: _Requests, victim: int) -> None:
    """Free a decoding sequence; it keeps its outputs and waits at the front of the queue."""
    at = requests.at
    lane = (requests.begun[victim] + requests.outputs[victim] - requests.produced[victim]) % len(requests.head)
    if requests.before[victim] >= 0:
        requests.link[requests.before[victim]] = requests.link[victim]
    else:
        requests.head[lane] = requests.link[victim]
    if requests.link[victim] >= 0:
        requests.before[requests.link[victim]] = requests.before[victim]
    requests.produced[victim] += at[_ROUND] - requests.begun[victim]
    size = requests.inputs[victim] + requests.produced[victim]
    requests.state[victim] = 0
    requests.computed[victim] = 0
    at[_SEQUENCES] -= 1
    at[_CONTEXT] -= size
    at[_HELD] -= size
    at[_TO_COME] -= requests.outputs[victim] - requests.produced[victim]
    requests.returned[at[_BACK]] = victim
    at[_BACK] += 1


@_inner
def _prefill(requests: _Requests, rules: Rules, front: int) -> _Prefill:
    """Prompts of one step: unfinished ones first, then the head of the queue while it fits."""
    at = requests.at
    room = rules.budget - (at[_SEQUENCES] if rules.rule != PREFILL_FIRST else 0)
    tokens, total_pairs, largest_pairs = 0, 0.0, 0.0
    taken = 0
    while room > 0:
        if taken >= at[_PARTS] and not _admit(requests, rules, room, taken, front):
            break
        chosen = requests.partial[taken]
        left = requests.inputs[chosen] + requests.produced[chosen] - requests.computed[chosen]
        chunk = left if rules.rule == RESERVING else min(left, room)
        pairs = chunk * (requests.computed[chosen] + 0.5 * (chunk + 1))
        requests.computed[chosen] += chunk
        tokens += chunk
        total_pairs += pairs
        largest_pairs = max(largest_pairs, pairs)
        room -= chunk
        taken += 1
    return _Prefill(tokens, total_pairs, largest_pairs)


@_inner
def _admit(requests: _Requests, rules: Rules, room: int, taken: int, front: int) -> bool:
    """Let the head of the queue in, unless it has not been seen yet or does not fit; nobody overtakes it."""
    at = requests.at
    if at[_BACK] > front or (at[_BACK] == 0 and at[_FIRST] >= at[_LAST]):
        return False
    chosen = requests.returned[at[_BACK] - 1] if at[_BACK] > 0 else requests.queue[at[_FIRST]]
    busy = at[_SEQUENCES] + at[_PARTS] > 0
    if requests.entry[chosen] > at[_SEEN] and busy:
        return False
    needed = requests.inputs[chosen] + requests.produced[chosen]
    output = requests.outputs[chosen] - requests.produced[chosen]
    if busy and (at[_SEQUENCES] + at[_PARTS] >= rules.max_sequences or not _fits(at, rules, needed, output)):
        at[_BLOCKED] += 1
        return False
    if rules.rule == RESERVING and needed > room and taken > 0:
        return False
    if at[_BACK] > 0:
        at[_BACK] -= 1
    else:
        at[_FIRST] += 1
    requests.partial[at[_PARTS]] = chosen
    requests.state[chosen] = 1
    at[_PARTS] += 1
    at[_HELD] += needed
    at[_PROMISED] += needed + output
    return True


@_inner
def _fits(at: _Ints, rules: Rules, needed: int, output: int) -> bool:
    if rules.rule == RESERVING:
        return bool(at[_PROMISED] + needed + output <= rules.capacity)
    if rules.rule == PREFILL_FIRST:
        kept = int(_RUNNING_RESERVE_FRACTION * at[_TO_COME])
        return bool(at[_HELD] + kept + needed + min(output, _LONGEST_PROMISE_TOKENS) < rules.capacity)
    return bool(at[_HELD] + needed <= rules.capacity)


@_inner
def _end_round(requests: _Requests) -> int:
    """Requests whose last token came out in this round leave."""
    at = requests.at
    lane = at[_ROUND] % len(requests.head)
    leaving = 0
    one = requests.head[lane]
    requests.head[lane] = -1
    while one >= 0:
        following = requests.link[one]
        requests.state[one] = 0
        at[_SEQUENCES] -= 1
        at[_CONTEXT] -= requests.inputs[one] + requests.outputs[one]
        _leave(requests, one)
        leaving += 1
        one = following
    return leaving


@_inner
def _leave(requests: _Requests, one: int) -> None:
    size = requests.inputs[one] + requests.outputs[one]
    requests.at[_HELD] -= size
    requests.at[_PROMISED] -= size
    if requests.outputs[one] > 1:
        requests.weight[0] -= 1.0 / (requests.outputs[one] - 1)


@_inner
def _end_prefill(requests: _Requests) -> int:
    """Prompts that are whole emit a token and decode from the next step; requests of one token leave."""
    at = requests.at
    keep, leaving = 0, 0
    for place in range(at[_PARTS]):
        one = requests.partial[place]
        if requests.computed[one] < requests.inputs[one] + requests.produced[one]:
            requests.partial[keep] = one
            keep += 1
            continue
        if requests.produced[one] == 0:
            at[_FRESH] -= 1
            if requests.outputs[one] > 1:
                requests.weight[0] += 1.0 / (requests.outputs[one] - 1)
        requests.produced[one] += 1
        at[_HELD] += 1
        if requests.produced[one] >= requests.outputs[one]:
            requests.state[one] = 0
            _leave(requests, one)
            leaving += 1
        else:
            _decode(requests, one)
    at[_PARTS] = keep
    return leaving


@_inner
def _decode(requests: _Requests, one: int) -> None:
    """A sequence starts decoding: into the list of the round in which it will end."""
    at = requests.at
    left = requests.outputs[one] - requests.produced[one]
    requests.state[one] = _DECODING
    requests.begun[one] = at[_ROUND]
    at[_SEQUENCES] += 1
    at[_CONTEXT] += requests.inputs[one] + requests.produced[one]
    at[_TO_COME] += left
    lane = (at[_ROUND] + left) % len(requests.head)
    requests.link[one] = requests.head[lane]
    requests.before[one] = -1
    if requests.head[lane] >= 0:
        requests.before[requests.head[lane]] = one
    requests.head[lane] = one
    if at[_TOP] >= len(requests.order):
        _shorten(requests)
    requests.order[at[_TOP]] = one
    at[_TOP] += 1


@_inner
def _shorten(requests: _Requests) -> None:
    """Forget admissions of requests that no longer decode."""
    kept = 0
    for place in range(requests.at[_TOP]):
        if requests.state[requests.order[place]] == _DECODING:
            requests.order[kept] = requests.order[place]
            kept += 1
    requests.at[_TOP] = kept


@_inner
def _arrive(requests: _Requests, leaving: int, lag: int) -> None:
    """Each request that left is replaced by the next one, if there is one."""
    at = requests.at
    for _ in range(leaving):
        if at[_ARRIVED] < len(requests.inputs):
            requests.queue[at[_LAST]] = at[_ARRIVED]
            requests.entry[at[_ARRIVED]] = at[_STEP] + lag
            at[_LAST] += 1
            at[_ARRIVED] += 1
            at[_FRESH] += 1
