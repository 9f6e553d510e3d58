"""What one request of a shared batch costs: its share of a step, or weights learnt from counters without steps.

Tokens are no fair key inside a batch: prefill is bound by arithmetic, decode by reading memory, and a cached token
costs only its reading. The split below is additive, so any grouping of requests gets the sum of its members.
"""

import numpy as np

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.trace import Bools, Floats

_LARGEST_CONDITION = 1e4
"""Counters that move together beyond this cannot be told apart from a minute's worth of noise."""


def compute_bound_fraction(compute_s: float, memory_s: float) -> float:
    """How far a step is bound by arithmetic: 0 to 1.

    0 where arithmetic takes half as long as reading memory or less, 1 where it takes twice as long or more, and in
    proportion to the logarithm between, so that a step at the ridge counts half.

    Args:
        compute_s: time the arithmetic alone would take, > 0.
        memory_s: time reading weights and KV alone would take, > 0.
    """
    return float(np.clip((np.log2(compute_s / memory_s) + 1.0) / 2.0, 0.0, 1.0))


def split_step(
    duration_s: float,
    *,
    flop: Floats,
    kv_bytes: Floats,
    weight_bytes: float,
    compute_fraction: float,
) -> Floats:
    """Shares one step among its requests, in seconds; the shares add up to the step.

    ``t * [a * F_i / F + (1 - a) * (W / n + B_i) / (W + B)]``: arithmetic by its operations; reading weights equally,
    for everyone needs them all; reading KV by its own bytes. This is the additive roofline split, with cached prompt
    tokens appearing only in the bytes.

    Args:
        duration_s: t, of the step, >= 0.
        flop: F_i, operations of each request in the step; shape (request,).
        kv_bytes: B_i, KV bytes each reads and writes.
        weight_bytes: W, bytes of weights read in the step.
        compute_fraction: a, from :func:`compute_bound_fraction`.

    Raises:
        ValueError: no request, or a step that neither computes nor reads.
    """
    if len(flop) == 0 or len(flop) != len(kv_bytes):
        raise ValueError(f"{len(flop)} and {len(kv_bytes)} requests")
    moved = weight_bytes + float(kv_bytes.sum())
    worked = float(flop.sum())
    if moved <= 0.0 or worked <= 0.0:
        raise ValueError("a step reads weights and computes")
    reading = (weight_bytes / len(flop) + kv_bytes) / moved
    return duration_s * (compute_fraction * flop / worked + (1.0 - compute_fraction) * reading)


def counter_weights(busy_s: Floats, counters: Floats) -> Floats:
    """Seconds of gpu that one unit of each counter costs, learnt from metrics: least squares, none below 0.

    The fallback where no step log exists. Usual counters, summed over a minute: uncached input tokens, output tokens,
    cached tokens, KV token-seconds, and a column of ones for what a busy engine spends anyway.

    Args:
        busy_s: gpu-seconds of work in each interval; shape (interval,).
        counters: shape (interval, counter), more intervals than counters.

    Returns:
        One weight per counter, >= 0.

    Raises:
        BadInput: too few intervals, or counters that rise and fall together, whose weights nothing can tell apart.
    """
    size = np.linalg.norm(counters, axis=0)
    if counters.shape[0] <= counters.shape[1] or bool(np.any(size == 0.0)):
        raise BadInput.at(
            "counters",
            f"{counters.shape[0]} intervals for {counters.shape[1]} counters, or a counter that is always 0",
            "give more intervals, and only counters that count something",
        )
    scaled = counters / size
    if float(np.linalg.cond(scaled)) > _LARGEST_CONDITION:
        raise BadInput.at(
            "counters",
            "some of them rise and fall together, so what each costs cannot be told apart",
            "leave one out, or take hours in which the mix of traffic changes",
        )
    return np.asarray(_non_negative_least_squares(scaled, busy_s) / size)


def _non_negative_least_squares(design: Floats, target: Floats) -> Floats:
    """Lawson and Hanson's active set, fitted to the rows themselves: normal equations would lose half of the digits.

    The answer of scipy's ``nnls``, a library that the base install does without.

    A column enters while it brings the fit nearer; one that would fall below 0 leaves. A column that cannot bring it
    nearer than rounding ends the search, which therefore never sees the same set twice.
    """
    above = np.zeros(design.shape[1], dtype=bool)
    found = np.zeros(design.shape[1])
    distance = float(np.linalg.norm(target))
    while not above.all():
        pull = design.T @ (target - design @ found)
        entering = int(np.argmax(np.where(above, -np.inf, pull)))
        entered = above.copy()
        entered[entering] = True
        nearer = _down_to_zero(design, target, entered, found)
        left = float(np.linalg.norm(target - design @ nearer))
        if left >= distance:
            break
        above, found, distance = nearer > 0.0, nearer, left
    return found


def _down_to_zero(design: Floats, target: Floats, above: Bools, found: Floats) -> Floats:
    """The fit of the columns above 0, less those that reach 0 on the straight way to it from what was found before."""
    while True:
        fitted = np.zeros(len(found))
        fitted[above] = np.linalg.lstsq(design[:, above], target, rcond=None)[0]
        falling = above & (fitted < 0.0)
        if not falling.any():
            return fitted
        way = np.where(falling, found / np.where(falling, found - fitted, 1.0), np.inf)
        found = found + float(way.min()) * (fitted - found)
        above = above & (way > way.min())
