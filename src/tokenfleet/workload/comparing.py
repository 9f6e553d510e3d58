"""What moved between two profiles, and what it does to the work a fleet has to do."""

import math
from collections.abc import Sequence
from typing import Literal

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import LengthSummary, Workload
from tokenfleet.workload.joint import quantile

_SMALL = 0.05
"""Changes below 5 % are not worth a line."""

_FEW_TOKENS = 1.0

_MIDDLE = (0.1, 0.25, 0.4, 0.5, 0.6, 0.75)
_LEAST_STEP_TOKENS, _EVEN = 8.0, 0.1
"""A step is even when its parts differ by no more than a tenth."""
_FEWEST_REQUESTS = 200
_GROUP_LENGTHS = ("input_tokens_mean", "input_tokens_p50", "input_tokens_p95")


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


def compare(old: Workload, new: Workload) -> tuple[Change, ...]:
    """What moved from one profile to another by 5 % or more, the largest effect on demand first.

    Rates, token rates, the input that no cache serves, lengths, prefix and cache shares, tenants that came or left, and
    prompts that all grew by the same number of tokens.

    Args:
        old: The profile that a plan was made from.
        new: The traffic of now.
    """
    changes = [
        *_rates(old, new),
        *_lengths("input", old.input_tokens, new.input_tokens),
        *_lengths("output", old.output_tokens, new.output_tokens),
        *_prompt_versions(old, new),
        *_reuse(old, new),
        *_tenants(old, new),
    ]
    return tuple(sorted(changes, key=lambda change: -_size(change)))


def _rates(old: Workload, new: Workload) -> list[Change]:
    pairs = (
        ("mean rate", "requests/s", old.mean_rate_per_s, new.mean_rate_per_s),
        ("peak minute rate", "requests/s", old.peak_minute_rate_per_s, new.peak_minute_rate_per_s),
        ("token rate", "tokens/s", _token_rate(old), _token_rate(new)),
        ("input to compute", "tokens/s", _computed_rate(old), _computed_rate(new)),
        ("output to generate", "tokens/s", _output_rate(old), _output_rate(new)),
        ("peak over mean by tokens", "", old.peak_to_mean_minute_tokens, new.peak_to_mean_minute_tokens),
        ("variation of gaps", "", old.interarrival_cv, new.interarrival_cv),
    )
    return [change for pair in pairs if (change := _moved(*pair)) is not None]


def _token_rate(workload: Workload) -> float:
    tokens = float(workload.minute_input_tokens.sum() + workload.minute_output_tokens.sum())
    return tokens / max(workload.duration_s, 1.0)


def _output_rate(workload: Workload) -> float:
    return float(workload.minute_output_tokens.sum()) / max(workload.duration_s, 1.0)


def _computed_rate(workload: Workload) -> float:
    """Input that no cache serves, as far as the source tells what one serves: NaN when it does not."""
    served = _cached(workload)
    served = workload.shareable_input_fraction if served is None else served
    if served is None:
        return math.nan
    return float(workload.minute_input_tokens.sum()) * (1 - served) / max(workload.duration_s, 1.0)


def _prompt_versions(old: Workload, new: Workload) -> list[Change]:
    """Prompts that all grew or shrank by the same number of tokens, as they do when a system prompt is rewritten.

    Over all requests the middle of the distribution is looked at; for each model, label and tenant its mean, median
    and p95. A change of what users write stretches lengths, and does not move all of them by the same step.
    """
    found = []
    if old.input_counts is not None and new.input_counts is not None:
        shifts = [quantile(new.input_counts, fraction) - quantile(old.input_counts, fraction) for fraction in _MIDDLE]
        found.append(_step("all prompts", old.input_tokens.mean, new.input_tokens.mean, shifts))
    for kind in ("models", "labels", "tenants"):
        before, after = _groups(old, kind), _groups(new, kind)
        for name in sorted(before.keys() & after.keys()):
            mine, theirs = before[name], after[name]
            if min(mine["request_count"], theirs["request_count"]) >= _FEWEST_REQUESTS:
                shifts = [theirs[key] - mine[key] for key in _GROUP_LENGTHS]
                label = f"prompts of {kind[:-1]} {name or 'unknown'}"
                found.append(_step(label, mine[_GROUP_LENGTHS[0]], theirs[_GROUP_LENGTHS[0]], shifts))
    return [change for change in found if change is not None]


def _groups(workload: Workload, kind: str) -> dict[str, dict[str, float]]:
    found = workload.extra.get(kind)
    return found if isinstance(found, dict) else {}


def _step(name: str, before: float, after: float, shifts: Sequence[float]) -> Change | None:
    step = sorted(shifts)[len(shifts) // 2]
    if abs(step) < _LEAST_STEP_TOKENS or max(abs(shift - step) for shift in shifts) > max(3.0, _EVEN * abs(step)):
        return None
    way = "longer" if step > 0 else "shorter"
    text = f"{name} are {abs(step):,.0f} tokens {way}, short and long ones alike: another version of a system prompt"
    return Change(
        name=f"{name}, fixed part", unit="tokens", old=before, new=after, text=text, demand="up" if step > 0 else "down"
    )


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


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
