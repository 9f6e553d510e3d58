"""What a trace should make a person wary of before anything is planned from it."""

import numpy as np

from tokenfleet.domain.trace import Ints, Trace
from tokenfleet.workload.arrivals import MINUTE_S

_FEW = 500


def look(trace: Trace) -> list[str]:
    """Warnings about a trace: too short, length caps, load that grows or has gaps."""
    found = [*_too_short(trace), *_cap("input", trace.input_tokens), *_cap("output", trace.output_tokens)]
    minutes = np.bincount((trace.arrival_s // MINUTE_S).astype(np.int64))
    return found + _moving(minutes) + _gaps(minutes)


def _too_short(trace: Trace) -> list[str]:
    if trace.duration_s < 2 * MINUTE_S:
        return [f"the trace lasts {trace.duration_s:.0f} s: no peak minute can be seen in it"]
    if trace.duration_s < 6 * 3600:
        return [f"the trace lasts {trace.duration_s / 60:.0f} minutes: the daily peak may lie outside it"]
    return []


def _cap(side: str, tokens: Ints) -> list[str]:
    """A pile of requests at the very top is a limit of the service, not of the demand."""
    if len(tokens) < _FEW:
        return []
    top = int(tokens.max())
    at_top = int((tokens == top).sum())
    share = at_top / len(tokens)
    just_below = int(((tokens < top) & (tokens >= 0.98 * top)).sum())
    if share < 0.005 or at_top < 3 * max(just_below, 1):
        return []
    return [
        f"{share:.1%} of requests have exactly {top} {side} tokens: a limit cuts them; a higher one changes the demand"
    ]


def _moving(minutes: np.ndarray) -> list[str]:
    """Compare the quarters of the trace: a ramp or a change of regime makes its mean mean nothing."""
    if len(minutes) < 40 or minutes.sum() < _FEW:
        return []
    quarters = np.array([part.mean() for part in np.array_split(minutes, 4)])
    low, high = max(float(quarters.min()), 1e-9), float(quarters.max())
    if high / low < 5:
        return []
    ratio = f"{high / low:.1f} times" if quarters.min() > 0 else "infinitely"
    return [f"load is not stationary: the busiest quarter carries {ratio} the quietest; choose a window before sizing"]


def _gaps(minutes: np.ndarray) -> list[str]:
    """Long silences in otherwise busy traffic are holes in the recording more often than idle service."""
    if len(minutes) < 20:
        return []
    usual = float(np.median(minutes[minutes > 0]))
    silent = minutes == 0
    if usual < 20 or not silent.any():
        return []
    return [
        f"{int(silent.sum())} of {len(minutes)} minutes have no request while the usual minute has {usual:.0f}: "
        "gaps in the recording, or traffic that stops"
    ]
