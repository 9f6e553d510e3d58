"""What each request of a run took from its replica: gpu time by the step time model, not tokens.

A token of a long prompt costs more than one of a short prompt, for it looks back on more; a token generated on a long
context reads more. Inside a line of the bill, requests are charged by this.
"""

from dataclasses import dataclass

import numpy as np

from tokenfleet.domain.replica import StepTimeModel
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.trace import Floats

_S_PER_PS = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestWork:
    """Gpu time of each request in seconds, by line of the bill; arrays in the order of the run.

    Only ratios within a column mean something: the bill says what a line costs as a whole.
    """

    input_s: Floats
    """Prompt tokens that no cache served, and their attention to one another."""
    cached_s: Floats
    """Their attention to the cached part of the prompt."""
    output_s: Floats
    """Tokens generated, at the mean number of sequences in a step, and the contexts they read."""


def request_work(record: RunRecord, step_time: StepTimeModel) -> RequestWork:
    """Takes the terms of the step time model apart by request.

    With n uncached and c cached prompt tokens, and o tokens generated after the first::

        input  = n * (time of a full step / its tokens) + pair * n (n + 1) / 2
        cached = pair * n * c
        output = o * (token[m] / m + sequence) + context * (sum of contexts) + window * (sum of cut contexts)

    with m the mean number of sequences that a step of the run decoded. Every term of a step is shared by what it
    counts, so the work of two requests together is the sum of both.

    Args:
        record: the run.
        step_time: of the replicas it ran on.
    """
    cached = record.cached_tokens.astype(np.float64)
    new = record.input_tokens.astype(np.float64) - cached
    later = np.maximum(record.output_tokens.astype(np.float64) - 1.0, 0.0)
    full = len(step_time.token_ps) - 1
    token = float(step_time.token_ps[full]) / full
    sequences = _decoded_per_step(later, record.busy.step_count, full)
    each = float(np.interp(sequences, np.arange(full + 1), step_time.token_ps)) / sequences + step_time.sequence_ps
    first = record.input_tokens.astype(np.float64) + 1.0
    reading = step_time.context_ps * _sum_of_run(first, later)
    if step_time.window_tokens:
        reading = reading + step_time.window_ps * _sum_of_cut_run(first, later, float(step_time.window_tokens))
    return RequestWork(
        input_s=(token * new + step_time.pair_ps * new * (new + 1.0) / 2.0) * _S_PER_PS,
        cached_s=step_time.pair_ps * new * cached * _S_PER_PS,
        output_s=(each * later + reading) * _S_PER_PS,
    )


def _decoded_per_step(later: Floats, step_count: int, most: int) -> float:
    """Mean sequences decoded in a step, at least one and at most what a step holds."""
    return float(np.clip(later.sum() / step_count, 1.0, most)) if step_count else 1.0


def _sum_of_run(first: Floats, count: Floats) -> Floats:
    """``first + (first + 1) + ...``, ``count`` terms."""
    return count * first + count * (count - 1.0) / 2.0


def _sum_of_cut_run(first: Floats, count: Floats, most: float) -> Floats:
    """The same with each term cut at ``most``."""
    below = np.clip(most - first, 0.0, count)
    return _sum_of_run(first, below) + (count - below) * most
