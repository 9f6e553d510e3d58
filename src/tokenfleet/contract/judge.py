"""Judges a run, simulated or measured, against a promise, clause by clause."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial

import numpy as np

from tokenfleet.contract.quantile import histogram_quantile, order_statistic
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import GapHistogram, RunRecord, Status
from tokenfleet.domain.slo import DAY_S, Deadline, LatencyTarget, Metric, RateTarget, Slo, SloResult
from tokenfleet.domain.trace import Bools, Floats

QUEUE_LIMIT = "queue_limit"
Rows = slice | Bools
"""Some of the requests of a record."""
Found = tuple[float | None, int]
"""The judged value, and of how many samples."""


class _Reading:
    """A record, and what one clause after the other reads off it, worked out once."""

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        self._times_s: dict[Metric, Floats] = {}
        self._bad: dict[tuple[str, bool], Bools] = {}

    @cached_property
    def finished(self) -> Bools:
        """Requests that got their whole answer."""
        finished: Bools = (self.record.status == int(Status.FINISHED)) & np.isfinite(self.record.finish_s)
        return finished

    @cached_property
    def stayed(self) -> Bools | None:
        """Requests that their user did not leave; ``None``: all."""
        stayed: Bools = self.record.status != int(Status.CANCELLED)
        return None if stayed.all() else stayed

    @cached_property
    def in_order(self) -> bool:
        """Whether no request comes before the one in front of it."""
        arrival_s = self.record.arrival_s
        return bool((arrival_s[1:] >= arrival_s[:-1]).all())

    def of(self, window_s: tuple[float, float] | None) -> Rows:
        """Requests to be judged: those that arrive in a window, of ``None`` all."""
        if window_s is None:
            return slice(None) if self.stayed is None else self.stayed
        arrival_s = self.record.arrival_s
        if self.in_order and self.stayed is None:
            return slice(*(int(row) for row in np.searchsorted(arrival_s, window_s)))
        inside: Bools = (arrival_s >= window_s[0]) & (arrival_s < window_s[1])
        return inside if self.stayed is None else inside & self.stayed

    def time_s(self, metric: Metric) -> Floats:
        """One time per request, ``inf`` for those that never finished."""
        if metric not in self._times_s:
            record = self.record
            time_s = record.ttft_s if metric == "ttft" else record.tpot_s if metric == "tpot" else record.e2e_s
            self._times_s[metric] = np.where(self.finished & np.isfinite(time_s), time_s, np.inf)
        return self._times_s[metric]

    def without(self, metric: Metric) -> Bools | None:
        """Requests that have no such time and are not late for it; ``None``: nobody."""
        if metric == "tpot":
            short: Bools = self.record.output_tokens < 2
            return short
        if metric == "ttft" and (self.record.output_tokens == 0).any():
            # A prefill-only request that finished has no first token to be late.
            alone: Bools = self.finished & (self.record.output_tokens == 0) & np.isnan(self.record.first_token_s)
            return alone
        return None

    def bad(self, rate: RateTarget, *, apart: bool) -> Bools:
        """See :func:`ended`."""
        key = rate.kind, apart
        if key not in self._bad:
            self._bad[key] = ended(self.record, self.finished, rate, apart=apart)
        return self._bad[key]


@dataclass(frozen=True, slots=True)
class _View:
    """The part of a record that is judged."""

    read: _Reading
    rows: Rows
    gaps: GapHistogram
    peak_only: bool

    @property
    def record(self) -> RunRecord:
        """All of it."""
        return self.read.record

    def gaps_of(self, name: str | None) -> GapHistogram | None:
        """The judged gaps of a traffic class; ``None`` where they were not counted apart."""
        if name is None:
            return self.gaps
        found = self.record.class_gaps.get(name)
        return None if found is None else found.peak_gaps if self.peak_only else found.gaps

    def of_class(self, name: str | None, without: Bools | None = None) -> Rows:
        """The judged requests of a traffic class, but for some."""
        if name is None and without is None:
            return self.rows
        chosen = np.zeros(len(self.record.arrival_s), dtype=np.bool_)
        chosen[self.rows] = True
        if name is not None:
            chosen &= self.record.of_class(name)
        return chosen if without is None else chosen & ~without


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
    return Judging(record, low=low, high=high, first_token_factor=first_token_factor).of(
        slo, peak_only=peak_only, window_s=window_s
    )


class Judging:
    """A run that is held against promises: :func:`judge`, which reads the run once for all of them."""

    def __init__(
        self,
        record: RunRecord,
        *,
        low: RunRecord | None = None,
        high: RunRecord | None = None,
        first_token_factor: float = 1.0,
    ) -> None:
        """Arguments as those of :func:`judge`."""
        self._read = _Reading(record)
        self._low = None if low is None else _Reading(low)
        self._high = None if high is None else _Reading(high)
        self._first_token_factor = first_token_factor

    def of(
        self, slo: Slo, *, peak_only: bool = False, window_s: tuple[float, float] | None = None
    ) -> tuple[SloResult, ...]:
        """As :func:`judge` does."""
        view = _view(self._read, slo, peak_only, window_s)
        # A record is one run of a chaotic system: the band is widened to hold the prediction itself.
        low = None if self._low is None else _view(self._low, slo, peak_only, window_s)
        high = None if self._high is None else _view(self._high, slo, peak_only, window_s)
        results = []
        for clause in _clauses(slo):
            found = clause.measure(view)
            wider = self._first_token_factor if clause.first_token else 1.0
            lowest = _lower(found[0], clause.measure(low)[0], wider) if low else None
            highest = _upper(found[0], clause.measure(high)[0], wider) if high else None
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


def measured(results: Sequence[SloResult]) -> tuple[Found, ...]:
    """Value and samples of every clause that was judged, for :func:`judged_again`."""
    return tuple((result.predicted, result.sample_count) for result in results)


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


def _view(read: _Reading, slo: Slo, peak_only: bool, window_s: tuple[float, float] | None) -> _View:
    if not peak_only:
        return _View(read, read.of(None), read.record.gaps, peak_only)
    if window_s is None:
        raise ValueError("a peak needs its window")
    gaps = read.record.peak_gaps
    if gaps is None:
        if any(target.metric == "itl" for target in slo.latency):
            raise ValueError("the record has no gaps of the peak window")
        gaps = read.record.gaps
    return _View(read, read.of(window_s), gaps, peak_only)


def _latency(view: _View, target: LatencyTarget) -> Found:
    if target.metric == "itl":
        gaps = view.gaps_of(target.traffic_class)
        return (None, 0) if gaps is None else (histogram_quantile(gaps, target.quantile), int(gaps.count.sum()))
    samples = _samples(view, target)
    return order_statistic(samples, target.quantile), len(samples)


def _samples(view: _View, target: LatencyTarget) -> Floats:
    """One time per judged request, ``inf`` for those that never finished."""
    rows = view.of_class(target.traffic_class, view.read.without(target.metric))
    return view.read.time_s(target.metric)[rows]


def _rate(view: _View, rate: RateTarget, *, apart: bool) -> Found:
    """Share of the judged requests that ended so."""
    bad = view.read.bad(rate, apart=apart)[view.of_class(rate.traffic_class)]
    return (int(bad.sum()) / len(bad) if len(bad) else None), len(bad)


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
    chosen = np.zeros(len(asked), dtype=np.bool_)
    chosen[view.rows] = True
    for replica in np.unique(record.replica[asked & chosen]):
        here = asked & (record.replica == replica)
        came = np.sort(record.arrival_s[here])
        served = np.sort(record.first_token_s[here])
        moments = record.arrival_s[here & chosen]
        waiting = np.searchsorted(came, moments, side="right") - np.searchsorted(served, moments, side="right")
        longest = max(longest, int(waiting.max()))
    count = int(chosen.sum())
    return (float(longest) if count else None), count


def _time_taken(view: _View, deadline: Deadline) -> Found:
    """The share of its time that a request takes, at the quantile of those that may not fail."""
    rows = view.of_class(deadline.traffic_class)
    taken_s = np.where(view.read.finished, view.record.e2e_s, np.inf)[rows]
    given_s = time_given_s(deadline, view.record.arrival_s[rows] + view.record.time_of_day_s)
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
