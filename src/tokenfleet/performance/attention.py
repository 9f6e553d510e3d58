"""Attention of prompts: query-key pairs, those inside a long window apart."""

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.replica import StepTimeModel
from tokenfleet.domain.trace import Floats

Whole = int | npt.NDArray[np.int64]


def chunk_attention_ps(step_time: StepTimeModel, start: Whole, tokens: Whole) -> Whole:
    """Attention of a chunk of a prompt.

    Args:
        step_time: Of the replica.
        start: Tokens computed before it.
        tokens: Of the chunk; both may be arrays of one shape.

    Returns:
        Picoseconds.
    """
    whole: Whole = step_time.pair_ps * _pairs(start, tokens)
    if not step_time.window_pair_ps:
        return whole
    window = step_time.window_tokens
    growing = np.clip(window - np.asarray(start), 0, tokens)
    inside: npt.NDArray[np.int64] = _pairs(start, growing) + (tokens - growing) * window
    return whole + step_time.window_pair_ps * inside


def _pairs(start: Whole, tokens: Whole) -> Whole:
    return tokens * start + tokens * (tokens + 1) // 2


def mean_window_pairs(pairs: Floats, prompt_tokens: Floats, window_tokens: int) -> Floats:
    """Pairs inside a window where only all of them are known: each query sees the mean number of keys, or the window.

    The truth is at most that, and less where some queries see more than the window and others less.
    """
    inside: Floats = np.minimum(pairs, prompt_tokens * window_tokens)
    return inside
