"""Profiles in words and for machines."""

import math
from typing import Any

from tokenfleet.domain.trace import LengthSummary, Quality, Workload


def quality_lines(quality: Quality) -> list[str]:
    """The quality report, line by line: counts that add up first, then what was detected, then warnings."""
    dropped = sum(quality.rows_dropped.values())
    lines = [f"{quality.rows_read:,} rows read = {quality.rows_kept:,} kept + {dropped:,} dropped"]
    for reason, count in sorted(quality.rows_dropped.items(), key=lambda item: (-item[1], item[0])):
        lines.append(f"  {count:,} dropped: {reason}")
    lines += [f"{name}: {value}" for name, value in quality.detected.items()]
    return lines + [f"warning: {text}" for text in quality.warnings]


def profile_facts(workload: Workload) -> dict[str, Any]:
    """The figures that scripts read; unknown is ``None``."""
    return {
        "rows_read": workload.quality.rows_read,
        "rows_kept": workload.quality.rows_kept,
        "rows_dropped": dict(workload.quality.rows_dropped),
        "request_count": workload.request_count,
        "duration_s": workload.duration_s,
        "mean_rate_per_s": _known(workload.mean_rate_per_s),
        "peak_minute_rate_per_s": workload.peak_minute_rate_per_s,
        "peak_minute_start_s": workload.peak_minute_start_s,
        "input_tokens": _summary(workload.input_tokens),
        "output_tokens": _summary(workload.output_tokens),
        "peak_to_mean_minute_requests": workload.peak_to_mean_minute_requests,
        "peak_to_mean_minute_tokens": workload.peak_to_mean_minute_tokens,
        "interarrival_cv": _known(workload.interarrival_cv),
        "shareable_input_fraction": workload.shareable_input_fraction,
        "session_count": workload.session_count,
        "tenant_request_counts": dict(workload.tenant_request_counts),
        "detected": dict(workload.quality.detected),
        "warnings": list(workload.quality.warnings),
        "facts": _clean(workload.extra),
    }


def _summary(summary: LengthSummary) -> dict[str, float]:
    return {name: getattr(summary, name) for name in ("p50", "p90", "p95", "p99", "max", "mean")}


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _clean(value: Any) -> Any:  # noqa: ANN401 - plain data of any shape
    if isinstance(value, dict):
        return {key: _clean(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_clean(inner) for inner in value]
    return _known(value) if isinstance(value, float) else value
