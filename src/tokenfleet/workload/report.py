"""Profiles in words and for machines, and what moved between two of them."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from tokenfleet.domain.trace import LengthSummary, Quality, Workload

_SMALL = 0.05
"""Changes below 5 % are not worth a line."""

_FEW_TOKENS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One figure that moved."""

    name: str
    unit: str
    old: float | None
    """``None``: it was not there, or not known."""
    new: float | None
    text: str
    """For a person."""
    demand: Literal["up", "down", "same"]
    """What it does to the work the fleet has to do."""


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


def compare(old: Workload, new: Workload) -> tuple[Change, ...]:
    """What moved from one profile to another by 5 % or more, the largest effect on demand first.

    Args:
        old: The profile that a plan was made from.
        new: The traffic of now.
    """
    changes = [
        *_rates(old, new),
        *_lengths("input", old.input_tokens, new.input_tokens),
        *_lengths("output", old.output_tokens, new.output_tokens),
        *_reuse(old, new),
        *_tenants(old, new),
    ]
    return tuple(sorted(changes, key=lambda change: -_size(change)))


def _rates(old: Workload, new: Workload) -> list[Change]:
    pairs = (
        ("mean rate", "requests/s", old.mean_rate_per_s, new.mean_rate_per_s),
        ("peak minute rate", "requests/s", old.peak_minute_rate_per_s, new.peak_minute_rate_per_s),
        ("token rate", "tokens/s", _token_rate(old), _token_rate(new)),
        ("peak over mean by tokens", "", old.peak_to_mean_minute_tokens, new.peak_to_mean_minute_tokens),
        ("variation of gaps", "", old.interarrival_cv, new.interarrival_cv),
    )
    return [change for pair in pairs if (change := _moved(*pair)) is not None]


def _token_rate(workload: Workload) -> float:
    tokens = float(workload.minute_input_tokens.sum() + workload.minute_output_tokens.sum())
    return tokens / max(workload.duration_s, 1.0)


def _lengths(side: str, old: LengthSummary, new: LengthSummary) -> list[Change]:
    found = [
        _moved(f"{side} tokens {name}", "tokens", getattr(old, name), getattr(new, name))
        for name in ("mean", "p50", "p95", "p99")
    ]
    return [change for change in found if change is not None]


def _reuse(old: Workload, new: Workload) -> list[Change]:
    changes = []
    pairs = [("shareable input", old.shareable_input_fraction, new.shareable_input_fraction)]
    pairs.append(("cached input", _cached(old), _cached(new)))
    for name, before, after in pairs:
        if before is None or after is None or abs(after - before) < 0.02:
            continue
        text = f"{name} went from {before:.0%} to {after:.0%} of input tokens"
        demand: Literal["up", "down"] = "up" if after < before else "down"
        changes.append(Change(name=name, unit="fraction", old=before, new=after, text=text, demand=demand))
    return changes


def _cached(workload: Workload) -> float | None:
    cached = workload.extra.get("cached_tokens")
    return _known(cached["fraction"]) if isinstance(cached, dict) and "fraction" in cached else None


def _tenants(old: Workload, new: Workload) -> list[Change]:
    """Tenants that came or left with at least 1 % of the requests, and shares that moved by 5 points."""
    changes = []
    for name in sorted({*old.tenant_request_counts, *new.tenant_request_counts}):
        before = old.tenant_request_counts.get(name, 0) / max(old.request_count, 1)
        after = new.tenant_request_counts.get(name, 0) / max(new.request_count, 1)
        label = f"tenant {name or 'unknown'}"
        if before == 0 and after >= 0.01:
            text, demand = f"{label} is new and sends {after:.0%} of the requests", "up"
        elif after == 0 and before >= 0.01:
            text, demand = f"{label} is gone; it sent {before:.0%} of the requests", "down"
        elif abs(after - before) >= 0.05:
            text, demand = f"{label} went from {before:.0%} to {after:.0%} of the requests", "same"
        else:
            continue
        changes.append(
            Change(name=label, unit="fraction", old=before or None, new=after or None, text=text, demand=demand)  # type: ignore[arg-type]
        )
    return changes


def _moved(name: str, unit: str, old: float, new: float) -> Change | None:
    if math.isnan(old) or math.isnan(new) or max(abs(old), abs(new)) == 0:
        return None
    base = max(abs(old), _FEW_TOKENS if unit == "tokens" else 1e-9)
    if abs(new - old) / base < _SMALL:
        return None
    shown = f"{name} went from {old:,.4g} to {new:,.4g}{' ' + unit if unit else ''} ({(new - old) / base:+.0%})"
    return Change(name=name, unit=unit, old=old, new=new, text=shown, demand="up" if new > old else "down")


def _size(change: Change) -> float:
    if change.old is None or change.new is None:
        return max(change.old or 0.0, change.new or 0.0)
    return abs(math.log(max(change.new, 1e-12) / max(change.old, 1e-12)))


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
