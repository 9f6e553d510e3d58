"""Changes to a trace's time: slower or faster, and events that come on top."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.trace import Ints, PrefixTree, Trace


def stretch(trace: Trace, factor: float) -> Trace:
    """The same requests over ``factor`` times the time: every gap and pause grows with it.

    Unlike :func:`tokenfleet.workload.grow`, which keeps the clock and changes who is there.

    Raises:
        BadInput: a factor of 0 or less, or above 1,000.
    """
    if not 0 < factor <= 1000:
        raise BadInput.at("stretch", f"is {factor:g}", "give a factor above 0: 2 doubles the time")
    return replace(trace, arrival_s=trace.arrival_s * factor)


def splice(trace: Trace, event: Trace, at_s: float) -> Trace:
    """Put an event, such as a launch or a batch job, on top of a trace.

    Its sessions are other sessions, its tenants are those of the same name, and its prefixes are its own: nothing is
    shared between the two.

    Args:
        trace: What goes on as usual.
        event: Requests on a clock of their own.
        at_s: Second of the trace at which the event's second 0 falls.

    Raises:
        BadInput: an event that starts before the trace.
    """
    if at_s < 0:
        raise BadInput.at("splice", f"starts at {at_s:g} s", "an event starts at second 0 of the trace or later")
    arrival_s = np.concatenate((trace.arrival_s, event.arrival_s + at_s))
    order = np.argsort(arrival_s, kind="stable")
    tenants = tuple(dict.fromkeys((*trace.tenants, *event.tenants)))
    renamed = np.array([tenants.index(name) for name in event.tenants] + [-1], dtype=np.int32)
    sessions = 0 if trace.session is None else int(trace.session.max(initial=-1)) + 1
    nodes = 0 if trace.prefixes is None else len(trace.prefixes.parent)
    tree = _side_by_side(trace.prefixes, event.prefixes)
    return Trace(
        arrival_s=arrival_s[order],
        input_tokens=np.concatenate((trace.input_tokens, event.input_tokens))[order],
        output_tokens=np.concatenate((trace.output_tokens, event.output_tokens))[order],
        prefix_node=_joined(trace.prefix_node, event.prefix_node, nodes, trace, event, order),
        prefixes=tree,
        session=_joined(trace.session, event.session, sessions, trace, event, order),
        tenant=_joined(trace.tenant, None if event.tenant is None else renamed[event.tenant], 0, trace, event, order),
        tenants=tenants,
        priority=_priority(trace, event, order),
        start_utc=trace.start_utc,
        time_of_day_s=trace.time_of_day_s,
    )


def _priority(trace: Trace, event: Trace, order: npt.NDArray[np.int64]) -> Ints | None:
    """Priorities of both; where one side has none, 0."""
    if trace.priority is None and event.priority is None:
        return None
    sides = [
        np.zeros(each.request_count, np.int32) if each.priority is None else each.priority for each in (trace, event)
    ]
    return np.concatenate(sides)[order]


def _joined(
    left: Ints | None, right: Ints | None, shift: int, trace: Trace, event: Trace, order: npt.NDArray[np.int64]
) -> Ints | None:
    """Indices of both; those of the event move up by ``shift``, unknown ones stay -1."""
    if left is None and right is None:
        return None
    one = np.full(trace.request_count, -1, dtype=np.int32) if left is None else left
    two = np.full(event.request_count, -1, dtype=np.int32) if right is None else np.where(right >= 0, right + shift, -1)
    return np.concatenate((one, two))[order].astype(np.int32)


def _side_by_side(left: PrefixTree | None, right: PrefixTree | None) -> PrefixTree | None:
    if left is None or right is None:
        return left or right
    moved = np.where(right.parent >= 0, right.parent + len(left.parent), -1).astype(np.int32)
    return PrefixTree(
        parent=np.concatenate((left.parent, moved)), token_count=np.concatenate((left.token_count, right.token_count))
    )
