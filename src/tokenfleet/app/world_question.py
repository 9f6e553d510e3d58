"""From the keys of a scenario to what happens around its fleet."""

from dataclasses import replace

from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.taking import time_of_day_s
from tokenfleet.app.world_types import EventSpec
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.slo import DAY_S
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import Admission, BatchLane, Clients, Happening


def happenings_of(asked: Scenario, replica_count: int, pool: str | None = None) -> tuple[Happening, ...]:
    """The events of a scenario in order of time, each with its end.

    Args:
        asked: The scenario.
        replica_count: Replicas of the fleet.
        pool: Those of this pool alone; ``None``: the scenario has one fleet.

    Raises:
        BadInput: an event at a replica that the fleet does not have; all of them at once.
    """
    wrong = [
        Problem(f"events[{index}].replicas", f"there is no replica {max(event.numbers)}", f"0 to {replica_count - 1}")
        for index, event in enumerate(asked.events)
        if event.pool == pool and max(event.numbers) >= replica_count
    ]
    if wrong:
        raise BadInput(wrong)
    happenings = [happening for event in asked.events if event.pool == pool for happening in _of_event(event)]
    return tuple(sorted(happenings, key=lambda each: each.time_s))


def _of_event(event: EventSpec) -> list[Happening]:
    found = [
        Happening(
            time_s=event.at,
            kind=event.what,
            replicas=event.numbers,
            step_time_factor=event.factor,
            reason="as the scenario says",
        )
    ]
    if event.back_after is not None:
        found.append(
            Happening(
                time_s=event.at + event.back_after,
                kind="slow" if event.what == "slow" else "ready",
                replicas=event.numbers,
                reason="back, as the scenario says",
            )
        )
    return found


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
    )


def gives_up(clients: Clients) -> bool:
    """Whether clients ever give an attempt up."""
    return clients.first_token_timeout_s is not None or clients.timeout_s is not None


def admission_of(asked: Scenario) -> Admission:
    """The bound of the queue: that of the ladder, or the one that stands alone."""
    if asked.admission is not None:
        return Admission(
            queue_limit_count=asked.admission.queue_limit, retry_after_s=asked.admission.retry_after or 0.0
        )
    if asked.ladder is None:
        return Admission()
    return Admission(queue_limit_count=asked.ladder.queue_limit, session_idle_s=asked.ladder.session_idle)
