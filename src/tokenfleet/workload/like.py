"""Traffic like a measured one: its lengths, its minutes, its burstiness, drawn anew."""

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.trace import Floats, Ints, Trace, Workload
from tokenfleet.workload.arrivals import MINUTE_S, fit_into_minutes, gamma_gaps
from tokenfleet.workload.like_parties import parties_of
from tokenfleet.workload.like_prompts import prompts_like
from tokenfleet.workload.like_slots import Slots, slots_of
from tokenfleet.workload.prefixes import renumbered
from tokenfleet.workload.streams import stream

Longs = npt.NDArray[np.int64]

_TRIES = 24
_ORDERS, _NEAR, _MOST_PLACED = 12, 0.01, 3_000_000
"""Orders of sessions that are tried, how near their peak must come, and requests placed in all tries together."""


def synthesize_like(
    workload: Workload,
    *,
    rate_factor: float = 1.0,
    duration_s: float | None = None,
    seed: int = 0,
) -> Trace:
    """Draw a trace whose profile matches ``workload``.

    Kept: both length distributions exactly, how they go together bin by bin, the load of every minute, the
    peak over the mean by requests and by tokens, the coefficient of variation of gaps (as far as the minutes leave
    room). Of each of the fifty largest tenants: its share, its load over time, how it bunches (a gamma or Weibull
    renewal process of its own), its joint lengths. Of sessions: turns, growth at each length, pauses. Of prompts:
    common beginnings, what sessions repeat, and so the share of input that an endless cache would serve.

    Args:
        workload: A profile with at least one request.
        rate_factor: Requests per second as a multiple of the measured ones.
        duration_s: Length of the new trace. Shorter cuts the minutes, longer repeats them. Default: as measured.
        seed: Same seed, same bytes.

    Raises:
        BadInput: an empty profile, or numbers out of range.
    """
    length_s = workload.duration_s if duration_s is None else duration_s
    _check(workload, rate_factor, length_s, seed)
    counts = _minute_counts(workload, rate_factor, length_s, seed)
    total = int(counts.sum())
    if total == 0:
        raise BadInput.at("duration_s", "no request falls into so short a trace", "make it longer or the rate higher")
    slots, input_tokens, output_tokens = _lengths(workload, counts, length_s, seed)
    shape = workload.sessions
    tree, node = None, None
    if workload.prompts is not None and workload.shareable_input_fraction is not None:
        share = workload.shareable_input_fraction
        tree, node = prompts_like(workload.prompts, share, slots.session, input_tokens, output_tokens, seed)
    names = tuple(workload.tenant_request_counts)
    return Trace(
        arrival_s=_arrivals(workload.interarrival_cv, counts, length_s, seed),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        prefix_node=node,
        prefixes=tree,
        session=renumbered(slots.session) if shape is not None and shape.labelled else None,
        tenant=slots.tenant if names else None,
        tenants=names,
    )


def _check(workload: Workload, rate_factor: float, duration_s: float, seed: int) -> None:
    problems = []
    if workload.request_count == 0:
        problems.append(Problem("profile", "holds no requests", "profile a trace with requests in it"))
    if not 0 < rate_factor <= 1e4:
        problems.append(Problem("rate_factor", f"is {rate_factor:g}", "give a factor above 0"))
    if not 0 < duration_s <= 400 * 86_400:
        problems.append(Problem("duration_s", f"is {duration_s:g} s", "give a time above 0 and up to 400 days"))
    if seed < 0:
        problems.append(Problem("seed", f"is {seed}", "give 0 or a positive whole number"))
    if problems:
        raise BadInput(problems)


def _minute_counts(workload: Workload, rate_factor: float, duration_s: float, seed: int) -> Longs:
    """Requests of each minute: the measured ones times the factor, repeated or cut to the new length."""
    measured = workload.minute_requests.astype(np.float64) * rate_factor
    whole = max(1, int(workload.duration_s // MINUTE_S))
    minutes = max(1, int(np.ceil(duration_s / MINUTE_S)))
    wanted = measured[:minutes].copy() if minutes <= len(measured) else np.resize(measured[:whole], minutes)
    rest = duration_s / MINUTE_S - (minutes - 1)
    if rest < 1 and not (minutes == len(measured) and duration_s >= workload.duration_s):
        wanted[-1] *= rest
    whole_part = np.floor(wanted)
    extra = stream(seed, "minute rounding").random(len(wanted)) < wanted - whole_part
    return (whole_part + extra).astype(np.int64)


def _lengths(workload: Workload, counts: Longs, duration_s: float, seed: int) -> tuple[Slots, Ints, Ints]:
    """Places and lengths; of several orders of sessions the one whose token peak is nearest to the measured."""
    parties = parties_of(workload, counts, duration_s, seed)
    best: tuple[float, Slots, Ints, Ints] | None = None
    for attempt in range(max(1, min(_ORDERS, _MOST_PLACED // max(int(counts.sum()), 1)))):
        slots = slots_of(workload, parties, duration_s, seed, attempt)
        given, made = _placed(workload, counts, slots, seed)
        minute = np.repeat(np.arange(len(counts)), counts)
        sums = np.bincount(minute, weights=given.astype(np.float64) + made, minlength=len(counts))
        sums = sums[: max(1, min(len(counts), len(workload.minute_requests)))]
        off = abs(float(sums.max() / max(sums.mean(), 1e-12)) / workload.peak_to_mean_minute_tokens - 1)
        if best is None or off < best[0]:
            best = off, slots, given, made
        if best[0] < _NEAR or not (slots.session >= 0).any():
            break
    assert best is not None
    return best[1:]


def _placed(workload: Workload, counts: Longs, slots: Slots, seed: int) -> tuple[Ints, Ints]:
    """Put long requests into minutes whose requests were long, as closely as the token peak over the mean asks for.

    Requests outside sessions change places among those of their party. By length, and places, by the minute's mean
    length blurred with noise, they are matched by rank; the weight of the minute against the noise is searched.
    """
    given, made = slots.input_tokens, slots.output_tokens
    whole = max(1, min(len(counts), len(workload.minute_requests)))
    free = np.flatnonzero(slots.session < 0)
    if whole < 2 or not len(free):
        return given, made
    tokens = (workload.minute_input_tokens + workload.minute_output_tokens).astype(np.float64)
    mean_length = np.log(np.maximum(tokens, 1) / np.maximum(workload.minute_requests, 1))
    minute = np.repeat(np.arange(len(counts)), counts)
    place = np.resize(mean_length, len(counts))[minute[free]]
    spread = float(place.std())
    if spread == 0:
        return given, made
    level = (place - place.mean()) / spread
    noise = stream(seed, "placing").standard_normal(len(free))
    length = (given.astype(np.int64) + made).astype(np.float64)
    party = slots.party[free]
    by_length = np.lexsort((length[free] + stream(seed, "length ties").random(len(free)), party))
    fixed = np.bincount(minute[slots.session >= 0], weights=length[slots.session >= 0], minlength=len(counts))

    def matched(weight: float) -> tuple[float, Longs]:
        """How far above the measured peak a weight leads, and who goes where."""
        chosen = np.empty(len(free), dtype=np.int64)
        chosen[np.lexsort((weight * level + np.sqrt(1 - weight**2) * noise, party))] = free[by_length]
        sums = (fixed + np.bincount(minute[free], weights=length[chosen], minlength=len(counts)))[:whole]
        return float(sums.max() / sums.mean()) - workload.peak_to_mean_minute_tokens, chosen

    best_weight, (above, best) = 0.0, matched(0.0)
    # The peak by tokens neither rises nor falls all the way with the weight: look along it, then closer and closer.
    for step, reach in ((0.1, 9), (-0.1, 9), (0.025, 3), (-0.025, 3), (0.006, 3), (-0.006, 3)):
        if abs(above) < _NEAR / 4 * workload.peak_to_mean_minute_tokens:
            break
        for weight in np.clip(best_weight + step * np.arange(1, reach + 1), -0.999, 0.999):
            off, chosen = matched(float(weight))
            if abs(off) < abs(above):
                above, best, best_weight = off, chosen, float(weight)
    given, made = given.copy(), made.copy()
    given[free], made[free] = slots.input_tokens[best], slots.output_tokens[best]
    return given, made


def _arrivals(cv: float, counts: Longs, duration_s: float, seed: int) -> Floats:
    """Search the renewal process whose gaps, once fitted into the minutes, have the wanted variation."""
    total = int(counts.sum())
    if np.isnan(cv) or total < 3:
        return _fitted(1.0, counts, total, duration_s, seed)
    low, high = 0.05, 60.0
    best = _fitted(1.0, counts, total, duration_s, seed)
    for _ in range(_TRIES):
        middle = float(np.sqrt(low * high))
        tried = _fitted(middle, counts, total, duration_s, seed)
        reached = _cv_of(tried)
        if abs(reached - cv) < abs(_cv_of(best) - cv):
            best = tried
        if abs(reached - cv) <= 0.01 * cv:
            break
        low, high = (middle, high) if reached < cv else (low, middle)
    return best


def _fitted(cv: float, counts: Longs, total: int, duration_s: float, seed: int) -> Floats:
    return fit_into_minutes(np.cumsum(gamma_gaps(stream(seed, "gaps"), total, cv)), counts, duration_s)


def _cv_of(arrival_s: Floats) -> float:
    gaps = np.diff(arrival_s)
    return float(gaps.std() / max(float(gaps.mean()), 1e-12))
