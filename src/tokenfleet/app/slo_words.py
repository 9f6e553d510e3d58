"""How clauses of a promise and their values are written for a person."""

from tokenfleet.app.quantities import shown_count, shown_duration
from tokenfleet.domain.slo import SloResult

_SPOKEN = {"error_rate": "errors", "rejection_rate": "turned away", "queue_limit": "waiting at one replica"}


def spoken(name: str) -> str:
    """``ttft_p99`` as ``TTFT p99``, ``done_by_06:00 of nightly`` as ``done by 06:00 of nightly``."""
    clause, of, traffic_class = name.partition(" of ")
    if clause.startswith("done_"):
        said = f"time to be {clause.replace('_', ' ')}"
    else:
        metric, _, quantile = clause.partition("_")
        said = _SPOKEN.get(clause, f"{metric.upper()} {quantile}")
    return f"{said}{of}{traffic_class}"


def shown_value(unit: str, value: float) -> str:
    """A value in the unit of a clause: ``1.84 s``, ``0.25%``, ``12``."""
    if unit == "s":
        return shown_duration(value)
    return shown_count(value) if unit == "count" else f"{value:.2%}"


def value_of_limit(result: SloResult) -> str:
    """``1.84 s of 2.00 s``; ``unknown`` where nothing can be said."""
    if result.predicted is None:
        return "unknown"
    return f"{shown_value(result.unit, result.predicted)} of {shown_value(result.unit, result.promised)}"


def shown_limit(name: str, unit: str, limit: float) -> str:
    """``TTFT p99 <= 2.00 s``, ``done by 06:00 of nightly``."""
    if name.startswith("done_"):
        return spoken(name).removeprefix("time to be ")
    return f"{spoken(name)} <= {shown_value(unit, limit)}"
