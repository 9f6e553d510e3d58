"""What a trace should make a person wary of before anything is planned from it."""

import numpy as np

from tokenfleet.domain.trace import Ints, Trace
from tokenfleet.workload.arrivals import MINUTE_S
from tokenfleet.workload.tally import minute_edges
from tokenfleet.workload.time_facts import Longs, regime

_FEW = 500
_FEW_SESSIONS = 10
_TOGETHER_FRACTION = 0.001


def look(trace: Trace) -> list[str]:
    """Warnings about a trace: names that cannot be read, too short, length caps, load that grows or has gaps."""
    found = [
        *_unreadable_names(trace),
        *_own_clocks(trace),
        *_too_short(trace),
        *_cap("input", trace.input_tokens),
        *_cap("output", trace.output_tokens),
    ]
    return found + look_at_minutes(np.diff(minute_edges(trace.arrival_s)))


def look_at_minutes(minutes: Longs) -> list[str]:
    """Warnings that the counts per minute alone give: load that changes for good, gaps."""
    return _moving(minutes) + _gaps(minutes)


def _unreadable_names(trace: Trace) -> list[str]:
    """Names with bytes that are no text: each such byte is the same mark, so different names may have become one."""
    seen = trace.observed
    named = (("tenant", trace.tenants), *(() if seen is None else (("label", seen.labels), ("model", seen.models))))
    broken = [f"{kind} {name!r}" for kind, names in named for name in names if "\N{REPLACEMENT CHARACTER}" in name]
    if not broken:
        return []
    more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
    return [
        f"{broken[0]}{more} held bytes that are no UTF-8: names that differ in those alone count as one; save the log "
        "as UTF-8"
    ]


def _own_clocks(trace: Trace) -> list[str]:
    """Sessions that all begin at second 0 each count time from their own start."""
    if trace.session is None or trace.start_utc is not None:
        return []
    first = np.unique(trace.session, return_index=True)[1]
    first = first[trace.session[first] >= 0]
    if len(first) < _FEW_SESSIONS or trace.duration_s < MINUTE_S:
        return []
    if float(np.mean(trace.arrival_s[first] <= _TOGETHER_FRACTION * trace.duration_s)) < 0.9:
        return []
    return [
        f"nearly all of the {len(first)} sessions begin at second 0: each counts time from a start of its own, so that "
        "rates, peaks and gaps between requests mean nothing; turns, growth and pauses do"
    ]


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
    if top == 0 or share < 0.005 or at_top < 3 * max(just_below, 1):
        return []
    return [
        f"{share:.1%} of requests have exactly {top} {side} tokens: a limit cuts them; a higher one changes the demand"
    ]


def _moving(minutes: Longs) -> list[str]:
    """A ramp or a change of regime makes the mean, and any window cut from the head, mean nothing."""
    change = regime(minutes)
    if change is None:
        return []
    ratio, minute = change
    rises = minutes[minute:].mean() > minutes[:minute].mean()
    return [
        f"load is not stationary: at minute {minute} its mean {'rises' if rises else 'falls'} {ratio:.1f}-fold; "
        "size from the stretch that stands for the future, not from the whole or its head"
    ]


def _gaps(minutes: Longs) -> list[str]:
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
