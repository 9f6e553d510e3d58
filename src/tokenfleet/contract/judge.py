"""Judges a run, simulated or measured, against a promise, clause by clause."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenfleet.contract.quantile import histogram_quantile, order_statistic
from tokenfleet.domain.run import GapHistogram, RunRecord, Status
from tokenfleet.domain.slo import LatencyTarget, Slo, SloResult
from tokenfleet.domain.trace import Floats

ERROR_RATE = "error_rate"


@dataclass(frozen=True, slots=True)
class _View:
    """The part of a record that is judged."""

    record: RunRecord
    chosen: npt.NDArray[np.bool_]
    finished: npt.NDArray[np.bool_]
    gaps: GapHistogram


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
    finish.

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
        One result per latency target, in their order, then the error rate. ``predicted`` is ``None`` and ``kept``
        false where nothing can be said; ``predicted_low`` and ``predicted_high`` are ``None`` without ``low`` and
        ``high``.

    Raises:
        ValueError: ``peak_only`` without a window, or a record without peak gaps although ITL is promised.
    """
    view = _view(record, slo, peak_only, window_s)
    values = _values(view, slo)
    # A record is one run of a chaotic system: the band is widened to hold the prediction itself.
    low_values = _values(_view(low, slo, peak_only, window_s), slo) if low is not None else None
    high_values = _values(_view(high, slo, peak_only, window_s), slo) if high is not None else None
    wider = [first_token_factor if target.metric == "ttft" else 1.0 for target in slo.latency]
    results = []
    for index, ((name, unit, promised), factor) in enumerate(zip(_clauses(slo), [*wider, 1.0], strict=True)):
        predicted, sample_count = values[index]
        results.append(
            SloResult(
                name=name,
                unit=unit,
                promised=promised,
                predicted=predicted,
                predicted_low=_lower(predicted, low_values[index][0], factor) if low_values else None,
                predicted_high=_upper(predicted, high_values[index][0], factor) if high_values else None,
                sample_count=sample_count,
                kept=predicted is not None and predicted <= promised,
            )
        )
    return tuple(results)


def _clauses(slo: Slo) -> list[tuple[str, str, float]]:
    latency = [(target.name, "s", target.limit_s) for target in slo.latency]
    return [*latency, (ERROR_RATE, "fraction", slo.error_rate_fraction)]


def _lower(predicted: float | None, low: float | None, factor: float) -> float | None:
    return low if predicted is None or low is None else min(predicted / factor, low)


def _upper(predicted: float | None, high: float | None, factor: float) -> float | None:
    return None if predicted is None or high is None else max(predicted * factor, high)


def _view(record: RunRecord, slo: Slo, peak_only: bool, window_s: tuple[float, float] | None) -> _View:
    finished = (record.status == Status.FINISHED) & np.isfinite(record.finish_s)
    if not peak_only:
        return _View(record, np.ones(len(finished), dtype=np.bool_), finished, record.gaps)
    if window_s is None:
        raise ValueError("a peak needs its window")
    gaps = record.peak_gaps
    if gaps is None:
        if any(target.metric == "itl" for target in slo.latency):
            raise ValueError("the record has no gaps of the peak window")
        gaps = record.gaps
    start_s, end_s = window_s
    inside = (record.arrival_s >= start_s) & (record.arrival_s < end_s)
    return _View(record, inside, finished, gaps)


def _values(view: _View, slo: Slo) -> list[tuple[float | None, int]]:
    """The judged value and its sample count, clause by clause."""
    values = [_latency(view, target) for target in slo.latency]
    count = int(view.chosen.sum())
    failed = int((view.chosen & ~view.finished).sum())
    return [*values, (failed / count if count else None, count)]


def _latency(view: _View, target: LatencyTarget) -> tuple[float | None, int]:
    if target.metric == "itl":
        total = int(view.gaps.count.sum(dtype=np.int64))
        return histogram_quantile(view.gaps, target.quantile), total
    samples = _samples(view, target.metric)
    return order_statistic(samples, target.quantile), len(samples)


def _samples(view: _View, metric: str) -> Floats:
    """One time per judged request, ``inf`` for those that never finished."""
    record, chosen = view.record, view.chosen
    time_s = {"ttft": record.ttft_s, "tpot": record.tpot_s, "e2e": record.e2e_s}[metric]
    if metric == "tpot":
        chosen = chosen & (record.output_tokens > 1)
    elif metric == "ttft":
        # A prefill-only request that finished has no first token to be late.
        chosen = chosen & ~(view.finished & (record.output_tokens == 0) & np.isnan(time_s))
    return np.where(view.finished & np.isfinite(time_s), time_s, np.inf)[chosen]
