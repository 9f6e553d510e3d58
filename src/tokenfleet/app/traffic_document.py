"""What files say about traffic, for scripts: one set of names for every kind of input; what is unknown is ``None``."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from tokenfleet import workload
from tokenfleet.app.intake import Found, confidence, kind_of
from tokenfleet.domain.trace import Floats, Workload

_LENGTHS: Final = ("p50", "p90", "p95", "p99", "max", "mean")
_FRACTIONS: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_DETECTED: Final = {"time unit": "unit"}
"""Names that differ between the report for a person and the document."""


def traffic_document(found: Found, changes: Sequence[workload.Change] | None = None) -> dict[str, Any]:
    """The document of ``tokenfleet profile --json``.

    Args:
        found: What the files hold.
        changes: What moved since an older profile; ``None`` when nothing was compared.
    """
    level, why = confidence(found)
    document: dict[str, Any] = {"kind": kind_of(found), "confidence": {"level": level, "why": why}}
    if isinstance(found, Workload):
        document |= workload.profile_facts(found)
        document["detected"] = _detected(found.quality.detected)
    elif isinstance(found, workload.Aggregates):
        document |= _of_sums(found)
    else:
        document |= _of_metrics(found)
    if changes is not None:
        document["changes"] = [asdict(change) for change in changes]
    return document


def _detected(detected: Mapping[str, str]) -> dict[str, str | None]:
    """What reading found out, under names a script can write down; the four that always matter are always there."""
    named = {_DETECTED.get(name, name).replace(" ", "_"): value for name, value in detected.items()}
    return {**dict.fromkeys(("format", "unit", "zone", "cached_inside_input")), **named}


def peak_over_mean_range(series: Floats, within: tuple[float, float]) -> tuple[float, float] | None:
    """Busiest minute over the mean minute of all buckets, least and greatest.

    Args:
        series: Sums per bucket; NaN is unknown.
        within: The same ratio inside one bucket.
    """
    mean = float(np.nanmean(series)) if not np.isnan(series).all() else 0.0
    if mean <= 0:
        return None
    busiest = float(np.nanmax(series)) / mean
    return busiest * within[0], busiest * within[1]


def _of_sums(sums: workload.Aggregates) -> dict[str, Any]:
    known = int(np.count_nonzero(~np.isnan(sums.requests)))
    requests = float(np.nansum(sums.requests))
    within = sums.peak_over_mean()
    by_requests = peak_over_mean_range(sums.requests, within)
    by_tokens = peak_over_mean_range(sums.input_tokens + sums.output_tokens, within)
    rate = sums.peak_rate_range_per_s()
    return {
        "rows_read": known,
        "rows_kept": known,
        "rows_dropped": {},
        "request_count": requests,
        "duration_s": len(sums.requests) * sums.bucket_s,
        "start_utc": sums.start_utc,
        "bucket_s": sums.bucket_s,
        "mean_rate_per_s": requests / (known * sums.bucket_s),
        "peak_minute_rate_per_s": _one(rate),
        "peak_minute_rate_range_per_s": list(rate),
        "input_tokens": _only_mean(sums.input_tokens, sums.requests),
        "output_tokens": _only_mean(sums.output_tokens, sums.requests),
        "cached_fraction": _share(sums.cached_tokens, sums.input_tokens),
        "peak_to_mean_minute_requests": _one(by_requests),
        "peak_to_mean_minute_requests_range": by_requests and list(by_requests),
        "peak_to_mean_minute_tokens": _one(by_tokens),
        "peak_to_mean_minute_tokens_range": by_tokens and list(by_tokens),
        "interarrival_cv": None,
        "detected": _detected(
            {
                "format": sums.source,
                "time unit": f"sums over {sums.bucket_s:g} s",
                "zone": "UTC",
                "cached inside input": "yes",
            }
        ),
        "warnings": list(sums.warnings),
    }


def _one(span: tuple[float, float] | None) -> float | None:
    """The value of a range that is one value; a range never becomes a single number."""
    return span[0] if span is not None and math.isclose(span[0], span[1]) else None


def _share(part: Floats, whole: Floats) -> float | None:
    known = ~np.isnan(part) & ~np.isnan(whole)
    total = float(whole[known].sum())
    return float(part[known].sum()) / total if total > 0 else None


def _only_mean(tokens: Floats, requests: Floats) -> dict[str, float | None]:
    return {**dict.fromkeys(_LENGTHS), "mean": _share(tokens, requests)}


def _of_metrics(page: workload.MetricsSnapshot) -> dict[str, Any]:
    return {
        "rows_read": None,
        "rows_kept": None,
        "rows_dropped": {},
        "request_count": _finite(page.counters.get("finished_count", math.nan)),
        "input_tokens": _from_histogram(page, "input_tokens", "prompt_tokens"),
        "output_tokens": _from_histogram(page, "output_tokens", "generation_tokens"),
        "peak_to_mean_minute_requests": None,
        "peak_to_mean_minute_tokens": None,
        "interarrival_cv": None,
        "engine": page.engine,
        "models": list(page.models),
        "gauges": {name: _finite(value) for name, value in page.gauges.items()},
        "counters": {name: _finite(value) for name, value in page.counters.items()},
        "histograms": {name: _histogram(each) for name, each in page.histograms.items()},
        "metric_names": dict(page.names),
        "detected": _detected({"format": f"metrics of {page.engine}"}),
        "warnings": list(page.warnings),
    }


def _from_histogram(page: workload.MetricsSnapshot, name: str, counter: str) -> dict[str, Any]:
    """The mean, and between which bucket edges each quantile lies."""
    values: dict[str, Any] = dict.fromkeys(_LENGTHS)
    histogram = page.histograms.get(name)
    if histogram is not None:
        return values | _histogram(histogram)
    finished, tokens = page.counters.get("finished_count"), page.counters.get(counter)
    if finished and tokens is not None:
        values["mean"] = _finite(tokens / finished)
    return values


def _histogram(histogram: Any) -> dict[str, Any]:  # noqa: ANN401 - the room does not export the type of a histogram
    ranges = {f"{name}_range": histogram.quantile_range(fraction) for name, fraction in _FRACTIONS.items()}
    return {
        "count": _finite(histogram.count),
        "mean": _finite(histogram.mean),
        **{name: [_finite(low), _finite(high)] for name, (low, high) in ranges.items()},
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
