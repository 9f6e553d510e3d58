"""Judges a run, simulated or measured, against a promise, clause by clause."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from tokenfleet.contract.quantile import histogram_quantile, order_statistic
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import GapHistogram, RunRecord, Status
from tokenfleet.domain.slo import DAY_S, Deadline, LatencyTarget, RateTarget, Slo, SloResult
from tokenfleet.domain.trace import Bools, Floats

QUEUE_LIMIT = "queue_limit"
Found = tuple[float | None, int]
"""The judged value, and of how many samples."""


@dataclass(frozen=True, slots=True)
class _View:
    """The part of a record that is judged."""

    record: RunRecord
    chosen: Bools
    finished: Bools
    gaps: GapHistogram
    peak_only: bool

    def gaps_of(self, name: str | None) -> GapHistogram | None:
        """The judged gaps of a traffic class; ``None`` where they were not counted apart."""
        if name is None:
            return self.gaps
        found = self.record.class_gaps.get(name)
        return None if found is None else found.peak_gaps if self.peak_only else found.gaps

    def of_class(self, name: str | None) -> Bools:
        """The judged requests of a traffic class."""
        return self.chosen if name is None else self.chosen & self.record.of_class(name)


@dataclass(frozen=True, slots=True)
class _Clause:
    """One line of the promise, and how it is measured."""

    name: str
    unit: str
    promised: float
    measure: Callable[[_View], Found]
    traffic_class: str | None = None
    first_token: bool = False
    """What a first token may be wrong by as a whole is part of its interval."""


def judge(
    record: RunRecord,
    slo: Slo,
    *,
    peak_only: bool = False,
    window_s: tuple[float, float] | None = None,
    low: RunRecord | None = None,
    high: RunRecord | None = None,
    first_token_factor: float = 1.0,
) -> tuple[SloResult, ...]:
    """Compares what a run did with what was promised.

    TTFT, TPOT and E2E are order statistics (rank ``ceil(q * n)``) over requests; a request that never finished
    counts as slower than any that did. TPOT counts requests of two tokens or more. ITL is the upper edge of the
    histogram bin with the quantile, at most 2.2 % above it. The error rate counts every request that did not
    finish, less those turned away where these have a limit of their own. The queue is the most requests that wait for
    their first token at one replica when another comes. A deadline is the share of its time that a request takes.
    Clauses of a traffic class see its requests alone. A request that its user left is not judged: nobody failed it.

    Args:
        record: What happened.
        slo: What was promised.
        peak_only: Judge only requests that arrive in ``window_s``, and the gaps of ``record.peak_gaps``.
        window_s: ``(start, end)`` in seconds of the record, end excluded; needed with ``peak_only``.
        low: The same traffic with faster steps, for the lower end of the error band.
        high: The same traffic with slower steps.
        first_token_factor: What a predicted time to first token may be wrong by as a whole, 1 or more. It holds what
            slow steps do to a first token that does not queue, so the wider of it and the two replays counts.

    Returns:
        One result per latency target, in their order, then the error rate, then what else is promised. ``predicted``
        is ``None`` and ``kept`` false where nothing can be said; ``predicted_low`` and ``predicted_high`` are ``None``
        without ``low`` and ``high``.

    Raises:
        ValueError: ``peak_only`` without a window, or a record without peak gaps although ITL is promised.
    """
    view = _view(record, slo, peak_only, window_s)
    # A record is one run of a chaotic system: the band is widened to hold the prediction itself.
    low_view = None if low is None else _view(low, slo, peak_only, window_s)
    high_view = None if high is None else _view(high, slo, peak_only, window_s)
    results = []
    for clause in _clauses(slo):
        found = clause.measure(view)
        wider = first_token_factor if clause.first_token else 1.0
        lowest = _lower(found[0], clause.measure(low_view)[0], wider) if low_view else None
        highest = _upper(found[0], clause.measure(high_view)[0], wider) if high_view else None
        results.append(_result(clause, found, lowest, highest))
    return tuple(results)


def judged_again(slo: Slo, found: Sequence[Found]) -> tuple[SloResult, ...]:
    """The results of :func:`judge` from what was measured, for a promise of the same clauses whatever its limits.

    Args:
        slo: What is promised now.
        found: Value and samples of every clause, in order.

    Raises:
        ValueError: there are more or fewer clauses.
    """
    return tuple(_result(clause, measured) for clause, measured in zip(_clauses(slo), found, strict=True))


def without_limits(slo: Slo) -> Slo:
    """The clauses of a promise, their limits aside: what :func:`judge` measures hangs on nothing else."""
    return replace(
        slo,
        latency=tuple(replace(target, limit_s=0.0) for target in slo.latency),
        error_rate_fraction=0.0,
        rejection_rate_fraction=None if slo.rejection_rate_fraction is None else 0.0,
        queue_limit_count=None if slo.queue_limit_count is None else 0,
        class_rates=tuple(replace(rate, limit_fraction=0.0) for rate in slo.class_rates),
        deadlines=tuple(replace(each, stretch_factor=1.0) for each in slo.deadlines),
    )


def _result(clause: _Clause, found: Found, lowest: float | None = None, highest: float | None = None) -> SloResult:
    predicted, sample_count = found
    return SloResult(
        name=clause.name,
        unit=clause.unit,
        promised=clause.promised,
        predicted=predicted,
        predicted_low=lowest,
        predicted_high=highest,
        sample_count=sample_count,
        kept=predicted is not None and predicted <= clause.promised,
        traffic_class=clause.traffic_class,
    )


def clauses_of(slo: Slo) -> tuple[tuple[str, str, float], ...]:
    """Name, unit and limit of every clause, in the order of :func:`judge`."""
    return tuple((each.name, each.unit, each.promised) for each in _clauses(slo))


@lru_cache(maxsize=64)
def _clauses(slo: Slo) -> tuple[_Clause, ...]:
    clauses = [
        _Clause(
            target.name,
            "s",
            target.limit_s,
            partial(_latency, target=target),
            target.traffic_class,
            target.metric == "ttft",
        )
        for target in slo.latency
    ]
    clauses += [
        _Clause(
            rate.name,
            "fraction",
            rate.limit_fraction,
            partial(_rate, rate=rate, apart=slo.counts_rejections(rate.traffic_class)),
            rate.traffic_class,
        )
        for rate in slo.rates
    ]
    if slo.queue_limit_count is not None:
        clauses.append(_Clause(QUEUE_LIMIT, "count", float(slo.queue_limit_count), _longest_queue))
    clauses += [
        _Clause(each.name, "fraction", each.stretch_factor, partial(_time_taken, deadline=each), each.traffic_class)
        for each in slo.deadlines
    ]
    return tuple(clauses)


def _lower(predicted: float | None, low: float | None, factor: float) -> float | None:
    return low if predicted is None or low is None else min(predicted / factor, low)


def _upper(predicted: float | None, high: float | None, factor: float) -> float | None:
    return None if predicted is None or high is None else max(predicted * factor, high)


def _view(record: RunRecord, slo: Slo, peak_only: bool, window_s: tuple[float, float] | None) -> _View:
    finished = (record.status == Status.FINISHED) & np.isfinite(record.finish_s)
    stayed = record.status != Status.CANCELLED
    if not peak_only:
        return _View(record, stayed, finished, record.gaps, peak_only)
    if window_s is None:
        raise ValueError("a peak needs its window")
    gaps = record.peak_gaps
    if gaps is None:
        if any(target.metric == "itl" for target in slo.latency):
            raise ValueError("the record has no gaps of the peak window")
        gaps = record.gaps
    start_s, end_s = window_s
    inside = (record.arrival_s >= start_s) & (record.arrival_s < end_s)
    return _View(record, inside & stayed, finished, gaps, peak_only)


def _latency(view: _View, target: LatencyTarget) -> Found:
    if target.metric == "itl":
        gaps = view.gaps_of(target.traffic_class)
        return (None, 0) if gaps is None else (histogram_quantile(gaps, target.quantile), int(gaps.count.sum()))
    samples = _samples(view, target)
    return order_statistic(samples, target.quantile), len(samples)


def _samples(view: _View, target: LatencyTarget) -> Floats:
    """One time per judged request, ``inf`` for those that never finished."""
    record, chosen = view.record, view.of_class(target.traffic_class)
    time_s = {"ttft": record.ttft_s, "tpot": record.tpot_s, "e2e": record.e2e_s}[target.metric]
    if target.metric == "tpot":
        chosen = chosen & (record.output_tokens > 1)
    elif target.metric == "ttft":
        # A prefill-only request that finished has no first token to be late.
        chosen = chosen & ~(view.finished & (record.output_tokens == 0) & np.isnan(time_s))
    return np.where(view.finished & np.isfinite(time_s), time_s, np.inf)[chosen]


def _rate(view: _View, rate: RateTarget, *, apart: bool) -> Found:
    """Share of the judged requests that ended so."""
    chosen = view.of_class(rate.traffic_class)
    count = int(chosen.sum())
    return (
        int((chosen & ended(view.record, view.finished, rate, apart=apart)).sum()) / count if count else None
    ), count


def ended(record: RunRecord, finished: Bools, rate: RateTarget, *, apart: bool) -> Bools:
    """Which requests ended in the way that a rate is about; ``apart``: those turned away are no errors."""
    turned_away = record.turned_away
    if rate.kind == "rejection_rate":
        return turned_away
    failed: Bools = ~finished & ~(turned_away & apart)
    return failed


def _longest_queue(view: _View) -> Found:
    """Most requests at one replica without a first token when a judged one has come, itself included."""
    record = view.record
    asked = np.isfinite(record.first_token_s) & (record.replica >= 0)
    longest = 0
    for replica in np.unique(record.replica[asked & view.chosen]):
        here = asked & (record.replica == replica)
        came = np.sort(record.arrival_s[here])
        served = np.sort(record.first_token_s[here])
        moments = record.arrival_s[here & view.chosen]
        waiting = np.searchsorted(came, moments, side="right") - np.searchsorted(served, moments, side="right")
        longest = max(longest, int(waiting.max()))
    count = int(view.chosen.sum())
    return (float(longest) if count else None), count


def _time_taken(view: _View, deadline: Deadline) -> Found:
    """The share of its time that a request takes, at the quantile of those that may not fail."""
    chosen = view.of_class(deadline.traffic_class)
    taken_s = np.where(view.finished, view.record.e2e_s, np.inf)[chosen]
    given_s = time_given_s(deadline, view.record.arrival_s[chosen] + view.record.time_of_day_s)
    return order_statistic(taken_s / given_s, deadline.quantile), len(taken_s)


def time_given_s(deadline: Deadline, arrival_s: Floats) -> Floats:
    """Time from each arrival to its deadline, above 0.

    Args:
        deadline: By the clock, or so long after the arrival.
        arrival_s: Arrivals in seconds since some midnight.
    """
    if deadline.at_s is None:
        return np.full(len(arrival_s), deadline.within_s, dtype=np.float64)
    last_s = deadline.at_s if deadline.cut_off_s is None else deadline.cut_off_s
    # Who comes at the cut-off itself is due on the following day.
    since_s = np.mod(arrival_s - last_s, DAY_S)
    left: Floats = DAY_S - since_s + (deadline.at_s - last_s) % DAY_S
    return left
