"""From the keys of a scenario to what happens around its fleet."""

from dataclasses import replace
from typing import Final

from tokenfleet.app.quantities import shown_duration
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.taking import time_of_day_s
from tokenfleet.domain.slo import DAY_S
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import Admission, BatchLane, Clients


def too_late(asked: Scenario, trace: Trace) -> tuple[str, ...]:
    """Events that come when the traffic is over, as sentences."""
    end_s = float(trace.arrival_s[-1]) if trace.request_count else 0.0
    return tuple(
        f"The event at {shown_duration(event.at)} comes after the last arrival, at {shown_duration(end_s)}."
        for event in asked.events
        if event.at > end_s
    )


def lane_of(asked: Scenario, trace: Trace) -> BatchLane | None:
    """How batch is served, on the clock of the traffic; ``None`` where the scenario names none."""
    spec = asked.batch
    if spec is None:
        return None
    lane = BatchLane(slot_fraction=spec.slots, kept_count=spec.kept, patience_s=spec.patience, wait_s=spec.wait or 0.0)
    if spec.window is None:
        return lane
    opens_s = (spec.window.opens - time_of_day_s(trace)) % DAY_S
    return replace(lane, opens_s=opens_s, open_for_s=(spec.window.closes - spec.window.opens) % DAY_S or DAY_S)


def clients_of(asked: Scenario) -> Clients:
    """What clients do about a refusal, a loss, or a long wait."""
    spec = asked.clients
    if spec is None:
        return Clients()
    return Clients(
        attempt_count=spec.attempts,
        backoff_s=spec.backoff,
        longest_backoff_s=spec.longest_backoff,
        first_token_timeout_s=spec.first_token_timeout,
        timeout_s=spec.timeout,
        read_tokens_per_s=spec.reads,
    )


def gives_up(clients: Clients) -> bool:
    """Whether clients ever give an attempt up."""
    return clients.first_token_timeout_s is not None or clients.timeout_s is not None


USUAL_QUEUE_LIMIT: Final = 1_000
"""Requests that may wait at one replica where a door stands and nobody says how many: minutes of work, which only an
overload brings together."""


def door_of(asked: Scenario) -> Admission:
    """The bound of the queue in a simulation: the one written, or the usual one where somebody stands at a door.

    An autoscaler and clients that come back mean a gateway, and a gateway bounds its queues; how fast clients read
    does not concern it. A plan asks :func:`admission_of` instead: what nobody wrote is no part of a promise.
    """
    written = admission_of(asked)
    come_back = asked.clients is not None and bool(asked.clients.model_fields_set - {"reads"})
    if written.queue_limit_count is None and (asked.autoscaling is not None or come_back):
        return replace(written, queue_limit_count=USUAL_QUEUE_LIMIT)
    return written


def usual_door(asked: Scenario) -> tuple[str, ...]:
    """A sentence on the bound that nobody wrote; none where it is written, or where no door stands."""
    if door_of(asked) == admission_of(asked):
        return ()
    return (
        f"The door takes no more where {USUAL_QUEUE_LIMIT:,} requests wait at every replica; "
        "admission: {queue_limit: 50} sets another bound.",
    )


def admission_of(asked: Scenario) -> Admission:
    """The bound of the queue: that of the ladder, or the one that stands alone."""
    if asked.admission is not None:
        return Admission(
            queue_limit_count=asked.admission.queue_limit,
            deadline_s=asked.admission.deadline,
            retry_after_s=asked.admission.retry_after or 0.0,
        )
    if asked.ladder is None:
        return Admission()
    return Admission(queue_limit_count=asked.ladder.queue_limit, session_idle_s=asked.ladder.session_idle)
