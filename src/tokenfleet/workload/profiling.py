"""From a trace to a workload: what the traffic looks like, in numbers that can be checked."""

from typing import Any

import numpy as np

from tokenfleet.domain.trace import PromptShape, Quality, SessionShape, Trace, Workload
from tokenfleet.workload.arrivals import MINUTE_S
from tokenfleet.workload.client_tally import client_shapes
from tokenfleet.workload.joint import fixed_edges, summary
from tokenfleet.workload.prefixes import shared_tokens
from tokenfleet.workload.request_facts import request_facts
from tokenfleet.workload.session_shape import shapes_of
from tokenfleet.workload.tally import NS, Tally, interarrival_cv, tally_of, whole_minutes
from tokenfleet.workload.time_facts import time_facts


def profile(trace: Trace, quality: Quality | None = None) -> Workload:
    """Describe a trace.

    Minutes are counted from second 0 of the trace, and a last, broken minute is left out of peak and mean alike: the
    convention behind the figures published for the public traces.

    Args:
        trace: At least one request.
        quality: What reading reported; a trace that was drawn has none.

    Raises:
        BadInput: no requests.
    """
    shareable = None
    if trace.prefixes is not None and trace.prefix_node is not None:
        served = shared_tokens(trace.prefixes, trace.prefix_node, trace.input_tokens)
        shareable = float(served.sum() / trace.input_tokens.sum(dtype=np.int64))
    sessions = None
    if trace.session is not None:
        sessions = len(np.unique(trace.session[trace.session >= 0]))
    shape, prompts = shapes_of(trace)
    return describe(
        tally_of(trace),
        quality or _drawn(trace.request_count),
        shareable=shareable,
        sessions=sessions,
        shapes=(shape, prompts),
        start_utc=trace.start_utc,
        extra=request_facts(trace),
    )


def describe(
    tally: Tally,
    quality: Quality,
    *,
    shareable: float | None = None,
    sessions: int | None = None,
    shapes: tuple[SessionShape | None, PromptShape | None] = (None, None),
    start_utc: str | None = None,
    extra: dict[str, Any] | None = None,
) -> Workload:
    """Turn counts into a workload; the counts may come from one trace or from the parts of one, added up."""
    whole = whole_minutes(tally)
    requests, tokens = tally.minute_requests[:whole], (tally.minute_input_tokens + tally.minute_output_tokens)[:whole]
    duration_s = tally.last_ns / NS
    span_s = max((tally.last_ns - tally.first_ns) / NS, 1e-9)
    rate = tally.request_count / span_s if tally.request_count > 1 else float("nan")
    return Workload(
        request_count=tally.request_count,
        duration_s=duration_s,
        mean_rate_per_s=rate,
        peak_minute_rate_per_s=float(requests.max()) / min(MINUTE_S, max(duration_s, 1.0)),
        peak_minute_start_s=float(np.argmax(tokens)) * MINUTE_S,
        peak_to_mean_minute_requests=float(requests.max() / requests.mean()),
        peak_to_mean_minute_tokens=float(tokens.max() / tokens.mean()),
        interarrival_cv=interarrival_cv(tally),
        input_tokens=summary(tally.input_counts),
        output_tokens=summary(tally.output_counts),
        joint_counts=tally.pair_counts,
        input_edges=fixed_edges(),
        output_edges=fixed_edges(),
        minute_requests=tally.minute_requests,
        minute_input_tokens=tally.minute_input_tokens,
        minute_output_tokens=tally.minute_output_tokens,
        shareable_input_fraction=shareable,
        session_count=sessions,
        tenant_request_counts=dict(sorted(tally.tenant_requests.items(), key=lambda item: (-item[1], item[0]))),
        quality=quality,
        extra={"start_utc": start_utc, **time_facts(requests, tokens, start_utc), **(extra or {})},
        input_counts=tally.input_counts,
        output_counts=tally.output_counts,
        sessions=shapes[0],
        prompts=shapes[1],
        clients=client_shapes(tally.clients),
    )


def _drawn(count: int) -> Quality:
    return Quality(rows_read=count, rows_kept=count, rows_dropped={}, detected={"format": "drawn"}, warnings=())
