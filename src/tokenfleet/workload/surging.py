"""A stretch of a trace with more demand than usual: a launch, a campaign, a burst nobody foresaw."""

from dataclasses import replace
from typing import Final, Literal

import numpy as np

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.trace import Floats, Ints, Observed, Trace, rows_of
from tokenfleet.workload.scale import Grower, Longs

Shape = Literal["flat", "ramp", "hill", "front"]
"""How what comes on top of the usual fills its time: as the usual does; rising to its end; rising to its middle and
falling; all of it in the first tenth."""
FRONT_FRACTION: Final = 0.1
"""Part of its time in which a surge of shape ``front`` asks for all it wants."""


def surge(trace: Trace, *, start_s: float, length_s: float, factor: float, shape: Shape = "flat") -> Trace:
    """As :func:`surge_with_rows`, the trace alone."""
    return surge_with_rows(trace, start_s=start_s, length_s=length_s, factor=factor, shape=shape)[0]


def surge_with_rows(
    trace: Trace, *, start_s: float, length_s: float, factor: float, shape: Shape = "flat"
) -> tuple[Trace, Longs]:
    """The same trace with ``factor`` times its demand for a while.

    More users who behave as those of that stretch do: copies share what several of them shared before, such as system
    prompts, and nothing else. The usual requests stay where they are.

    Args:
        trace: Any trace.
        start_s: Second of the trace at which it begins.
        length_s: How long it lasts.
        factor: Demand of that stretch against the usual, above 1.
        shape: How the requests on top fill that stretch.

    Returns:
        The new trace, and of each of its requests the row of ``trace`` that it is, or behaves as.

    Raises:
        BadInput: a factor of 1 or less or above 1,000, or a stretch in which nobody asks for anything.
    """
    if not 1.0 < factor <= 1000.0:
        raise BadInput.at("surge", f"is {factor:g} times the usual demand", "give a factor above 1, up to 1000")
    end_s = start_s + length_s
    first, last = (int(row) for row in np.searchsorted(trace.arrival_s, [start_s, end_s]))
    if length_s <= 0.0 or first == last:
        raise BadInput.at(
            "surge",
            f"from {start_s:g} s to {end_s:g} s holds no request to take for a pattern",
            f"the demand lasts {trace.duration_s:g} s: choose a time inside",
        )
    grown, copy, pattern = Grower(rows_of(trace, np.arange(first, last))).grown_with_rows(factor)
    # Copies come seconds before or after their original; those that would leave the stretch come in at its other end.
    inside = np.mod(grown.arrival_s - start_s, length_s) / length_s
    placed = np.minimum(start_s + length_s * _placed(inside, shape), np.nextafter(end_s, start_s))
    arrival_s = np.where(copy == 0, grown.arrival_s, placed)
    rest = np.concatenate([np.arange(first), np.arange(last, trace.request_count)])
    surged, order = _joined(rows_of(trace, rest), replace(grown, arrival_s=arrival_s), trace)
    return surged, np.concatenate([rest, first + pattern])[order]


def _placed(share: Floats, shape: Shape) -> Floats:
    """Places from 0 to 1 in the stretch, of requests spread evenly over it at ``share``."""
    if shape == "ramp":
        return np.sqrt(share)
    if shape == "hill":
        return np.where(share < 0.5, np.sqrt(share / 2.0), 1.0 - np.sqrt((1.0 - share) / 2.0))
    return share * FRONT_FRACTION if shape == "front" else share


def _joined(usual: Trace, grown: Trace, before: Trace) -> tuple[Trace, Longs]:
    """Both on one clock, and their order.

    The tree of ``grown`` begins with that of ``usual``, so its numbers hold for both.
    """
    arrival_s = np.concatenate([usual.arrival_s, grown.arrival_s])
    order = np.argsort(arrival_s, kind="stable")

    def column(left: Ints | None, right: Ints | None, shift: int = 0) -> Ints | None:
        if left is None or right is None:
            return None
        moved = np.where(right >= 0, right + shift, right)
        return np.concatenate([left, moved])[order].astype(np.int32)

    delivered, priority = (
        None if left is None or right is None else np.concatenate([left, right])
        for left, right in ((usual.kv_delivered, grown.kv_delivered), (usual.priority, grown.priority))
    )
    sessions = 0 if before.session is None else int(before.session.max(initial=-1)) + 1
    joined = Trace(
        arrival_s=arrival_s[order],
        input_tokens=np.concatenate([usual.input_tokens, grown.input_tokens])[order],
        output_tokens=np.concatenate([usual.output_tokens, grown.output_tokens])[order],
        prefix_node=column(usual.prefix_node, grown.prefix_node),
        prefixes=grown.prefixes,
        session=column(usual.session, grown.session, sessions),
        tenant=column(usual.tenant, grown.tenant),
        tenants=before.tenants,
        kv_delivered=None if delivered is None else delivered[order],
        priority=None if priority is None else priority[order],
        class_bits=column(usual.class_bits, grown.class_bits),
        classes=before.classes,
        start_utc=before.start_utc,
        time_of_day_s=before.time_of_day_s,
        observed=None
        if usual.observed is None or grown.observed is None
        else Observed(
            model=column(usual.observed.model, grown.observed.model),
            models=usual.observed.models,
            label=column(usual.observed.label, grown.observed.label),
            labels=usual.observed.labels,
        ),
    )
    return joined, order
