"""Traffic from a handful of numbers, for when there is no log."""

import numpy as np

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.trace import Floats, Ints, Trace
from tokenfleet.workload.arrivals import (
    MINUTE_S,
    fit_into_minutes,
    gamma_gaps,
    minute_shape,
    peaked_counts,
    renewal_cv_for,
)
from tokenfleet.workload.joint import draw_joint
from tokenfleet.workload.lengths import Lengths
from tokenfleet.workload.streams import stream

LARGEST_COUNT = 200_000_000
"""More requests than this in one drawn trace is a slip of the pen."""


def draw_trace(
    input_lengths: Lengths,
    output_lengths: Lengths,
    *,
    mean_rate_per_s: float,
    peak_to_mean: float = 2.0,
    interarrival_cv: float = 2.0,
    duration_s: float = 1800.0,
    seed: int = 0,
) -> Trace:
    """Draw independent requests with bursty arrivals.

    Gaps are gamma distributed inside minutes whose counts follow a correlated random shape with exactly one busiest
    minute, ``peak_to_mean`` times the mean (the last, broken minute not counted).

    Args:
        input_lengths: Prompt tokens; with ``output_lengths`` of the same profile the joint shape is kept.
        output_lengths: Generated tokens.
        mean_rate_per_s: Requests per second over the whole trace.
        peak_to_mean: Requests in the busiest minute over the mean minute, 1 or more.
        interarrival_cv: Coefficient of variation of the gaps between requests; 1 is Poisson.
        duration_s: Length of the trace.
        seed: Same seed, same bytes.

    Raises:
        BadInput: a number out of range; all of them at once.
    """
    _check(mean_rate_per_s, interarrival_cv, duration_s, seed)
    shape = minute_shape(stream(seed, "minute shape"), duration_s, peak_to_mean, "peak_to_mean")
    count = round(mean_rate_per_s * duration_s)
    if count == 0:
        raise BadInput.at("duration_s", "no request falls into so short a trace", "make it longer or the rate higher")
    peak_count = mean_rate_per_s * MINUTE_S * peak_to_mean
    arrival_s = draw_arrivals(
        seed, shape, total=count, peak_count=peak_count, cv=interarrival_cv, duration_s=duration_s
    )
    input_tokens, output_tokens = draw_lengths(input_lengths, output_lengths, seed, count)
    return Trace(arrival_s=arrival_s, input_tokens=input_tokens, output_tokens=output_tokens)


def draw_arrivals(seed: int, load: Floats, *, total: int, peak_count: float, cv: float, duration_s: float) -> Floats:
    """Arrivals with the given load per minute and coefficient of variation of gaps over the whole trace."""
    counts = peaked_counts(load, total, peak_count, duration_s)
    gaps = gamma_gaps(stream(seed, "gaps"), total, renewal_cv_for(cv, load / load.mean()))
    return fit_into_minutes(np.cumsum(gaps), counts, duration_s)


def draw_lengths(input_lengths: Lengths, output_lengths: Lengths, seed: int, count: int) -> tuple[Ints, Ints]:
    """Input and output tokens: jointly when both are sides of one profile, else independently."""
    profile = input_lengths.profile
    if profile is not None or output_lengths.profile is not None:
        if profile is not output_lengths.profile or profile is None:
            raise BadInput.at("lengths", "one side is a profile, the other is not", "use the profile for both")
        return draw_joint(profile, seed, count)
    return (
        input_lengths.draw(stream(seed, "input tokens"), count),
        output_lengths.draw(stream(seed, "output tokens"), count),
    )


def _check(mean_rate_per_s: float, interarrival_cv: float, duration_s: float, seed: int) -> None:
    problems = []
    if not 0 < mean_rate_per_s < 1e7:
        problems.append(Problem("mean_rate_per_s", f"{mean_rate_per_s:g} requests/s", "give a rate above 0, below 1e7"))
    if not 0 <= interarrival_cv <= 100:
        problems.append(Problem("interarrival_cv", f"is {interarrival_cv:g}", "0 (a clock) to 100; 1 is Poisson"))
    if not 0 < duration_s <= 400 * 86_400:
        problems.append(Problem("duration_s", f"is {duration_s:g} s", "give a time above 0 and up to 400 days"))
    if seed < 0:
        problems.append(Problem("seed", f"is {seed}", "give 0 or a positive whole number"))
    if not problems and mean_rate_per_s * duration_s > LARGEST_COUNT:
        problems.append(Problem("duration_s", "more than 200 million requests", "draw a shorter trace"))
    if problems:
        raise BadInput(problems)
