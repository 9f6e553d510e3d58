"""Everything a profile counts, in a form that adds up exactly: tallies of parts give the tally of the whole.

Lengths are counted by value, pairs on fixed bins, time on minutes of one agreed clock, gaps in whole nanoseconds. So no
sum depends on the order of its parts, and one file or a thousand give the same profile.
"""

from dataclasses import field, replace

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import LengthCounts, Trace
from tokenfleet.workload.arrivals import MINUTE_S
from tokenfleet.workload.client_tally import Clients, add_clients, client_tallies, gap_variation, square_sum
from tokenfleet.workload.fact_tally import FactTally, add_facts
from tokenfleet.workload.joint import BINS, add_values, bins_of, count_pairs, count_values, fixed_edges
from tokenfleet.workload.session_tally import SessionRows, add_sessions

Longs = npt.NDArray[np.int64]
NS = 1_000_000_000
WHOLE_MINUTE_SLACK_S = 1.0
"""A last minute counts as whole when the trace ends this close to its end: the next request was about due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts over some requests of one clock whose second 0 is the start of the whole trace."""

    request_count: int
    first_ns: int
    last_ns: int
    gap_square_sum_ns2: int | None
    """Sum of squared gaps between arrivals; ``None`` once parts that overlap in time were added."""
    input_counts: LengthCounts
    output_counts: LengthCounts
    pair_counts: Longs
    minute_requests: Longs
    """From :attr:`first_minute` of the clock; as long as needed."""
    minute_input_tokens: Longs
    minute_output_tokens: Longs
    tenant_requests: dict[str, int] = field(default_factory=dict)
    clients: Clients | None = field(default_factory=dict)
    """How each tenant sends; ``None`` when there are too many to tell them apart."""
    sessions: SessionRows | None = None
    """Requests of sessions; ``None`` when the source has no sessions, or a trace knows them itself."""
    facts: FactTally | None = None
    """What rows say beyond lengths and times; ``None`` when they say nothing, or a trace knows it itself."""
    first_minute: int = 0
    """Minute of the clock that the three columns begin with: a part of a long trace need not hold all before it."""


def tally_of(trace: Trace) -> Tally:
    """Count one trace.

    Args:
        trace: Its clock may start before its first request: parts of one trace share second 0.

    Raises:
        BadInput: no requests.
    """
    if trace.request_count == 0:
        raise BadInput.at("trace", "holds no requests", "see the rows dropped, by reason, in the quality report")
    arrival_ns = np.rint(trace.arrival_s * NS).astype(np.int64)
    edges = minute_edges(trace.arrival_s)
    tenants: dict[str, int] = {}
    clients: Clients | None = {}
    if trace.tenant is not None:
        cell = bins_of(trace.input_tokens) * BINS + bins_of(trace.output_tokens)
        code = np.where(trace.tenant >= 0, trace.tenant, len(trace.tenants))
        clients = client_tallies(code.astype(np.int64), (*trace.tenants, ""), arrival_ns, cell)
        known = trace.tenant[trace.tenant >= 0]
        seen = np.bincount(known, minlength=len(trace.tenants))
        tenants = {name: int(seen[index]) for index, name in enumerate(trace.tenants) if seen[index]}
        if len(known) < trace.request_count:
            tenants[""] = trace.request_count - len(known)
    return Tally(
        request_count=trace.request_count,
        first_ns=int(arrival_ns[0]),
        last_ns=int(arrival_ns[-1]),
        gap_square_sum_ns2=square_sum(np.diff(arrival_ns)),
        input_counts=count_values(trace.input_tokens),
        output_counts=count_values(trace.output_tokens),
        pair_counts=count_pairs(trace.input_tokens, trace.output_tokens, fixed_edges()),
        minute_requests=np.diff(edges).astype(np.int64),
        minute_input_tokens=_sum_by(edges, trace.input_tokens),
        minute_output_tokens=_sum_by(edges, trace.output_tokens),
        tenant_requests=tenants,
        clients=clients,
    )


def add(left: Tally, right: Tally) -> Tally:
    """The tally of both parts together, exactly as if they had been counted as one."""
    early, late = (left, right) if left.first_ns <= right.first_ns else (right, left)
    squares: int | None = None
    if early.gap_square_sum_ns2 is not None and late.gap_square_sum_ns2 is not None and early.last_ns <= late.first_ns:
        between = late.first_ns - early.last_ns
        squares = early.gap_square_sum_ns2 + late.gap_square_sum_ns2 + between * between
    tenants = dict(left.tenant_requests)
    for name, count in right.tenant_requests.items():
        tenants[name] = tenants.get(name, 0) + count
    return Tally(
        request_count=left.request_count + right.request_count,
        first_ns=early.first_ns,
        last_ns=max(left.last_ns, right.last_ns),
        gap_square_sum_ns2=squares,
        input_counts=add_values(left.input_counts, right.input_counts),
        output_counts=add_values(left.output_counts, right.output_counts),
        pair_counts=left.pair_counts + right.pair_counts,
        minute_requests=_joined(left, left.minute_requests, right, right.minute_requests),
        minute_input_tokens=_joined(left, left.minute_input_tokens, right, right.minute_input_tokens),
        minute_output_tokens=_joined(left, left.minute_output_tokens, right, right.minute_output_tokens),
        tenant_requests=tenants,
        clients=add_clients(left.clients, right.clients),
        sessions=add_sessions(left.sessions, right.sessions),
        facts=add_facts(left.facts, right.facts),
        first_minute=min(left.first_minute, right.first_minute),
    )


def from_the_start(tally: Tally) -> Tally:
    """The same counts with minutes from minute 0 of the clock on, empty ones included.

    Args:
        tally: No request before second 0.
    """
    empty = np.zeros(tally.first_minute, dtype=np.int64)
    return replace(
        tally,
        minute_requests=np.concatenate((empty, tally.minute_requests)),
        minute_input_tokens=np.concatenate((empty, tally.minute_input_tokens)),
        minute_output_tokens=np.concatenate((empty, tally.minute_output_tokens)),
        first_minute=0,
    )


def interarrival_cv(tally: Tally) -> float:
    """Standard deviation over mean of the gaps; NaN when unknown (fewer than two gaps, or parts that overlap)."""
    return gap_variation(tally.request_count, tally.last_ns - tally.first_ns, tally.gap_square_sum_ns2)


def minute_edges(arrival_s: npt.NDArray[np.float64]) -> Longs:
    """Where each minute from second 0 begins in sorted arrivals, and where the last one ends."""
    size = int(arrival_s[-1] // MINUTE_S) + 1
    return np.searchsorted(arrival_s, np.arange(size + 1) * MINUTE_S).astype(np.int64)


def _sum_by(edges: Longs, tokens: npt.NDArray[np.int32]) -> Longs:
    # Arrivals are sorted, so each minute is one slice and sums stay whole numbers.
    upto = np.concatenate(([0], np.cumsum(tokens, dtype=np.int64)))
    return np.asarray(upto[edges[1:]] - upto[edges[:-1]], dtype=np.int64)


def _joined(left: Tally, mine: Longs, right: Tally, yours: Longs) -> Longs:
    start = min(left.first_minute, right.first_minute)
    ends = (left.first_minute + len(mine), right.first_minute + len(yours))
    out = np.zeros(max(ends) - start, dtype=np.int64)
    out[left.first_minute - start : ends[0] - start] += mine
    out[right.first_minute - start : ends[1] - start] += yours
    return out


def whole_minutes(tally: Tally) -> int:
    """Minutes from second 0 that the trace covers to the end; never so few that they hold no request."""
    mean_gap_s = (tally.last_ns - tally.first_ns) / NS / max(tally.request_count - 1, 1)
    end_s = tally.last_ns / NS + max(WHOLE_MINUTE_SLACK_S, min(mean_gap_s, MINUTE_S / 2))
    first_minute = int(tally.first_ns // (MINUTE_S * NS))
    return max(first_minute + 1, min(int(end_s // MINUTE_S), len(tally.minute_requests)))
