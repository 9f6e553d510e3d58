"""What happened around a fleet, as a person and as a machine reads it."""

from typing import Final

import numpy as np
import numpy.typing as npt

from tokenfleet import contract
from tokenfleet.app.quantities import shown_duration
from tokenfleet.app.simulate_run import Simulated
from tokenfleet.contract.quantile import order_statistic
from tokenfleet.domain.run import Decision, Degraded, RunRecord, Status, Telemetry, Turmoil
from tokenfleet.domain.trace import Floats

_MOST_EVENTS: Final = 8
_ENDS: Final = {
    Status.REJECTED_QUEUE_FULL: "found every queue full",
    Status.REJECTED_NOBODY_READY: "found no replica ready",
    Status.REJECTED_DEADLINE: "waited until the deadline",
    Status.LOST: "lost with a replica",
    Status.TIMED_OUT: "timed out",
}
_BECAME: Final = {
    "start": "started loading",
    "ready": "took requests",
    "drain": "took no more",
    "stop": "left the fleet",
    "fail": "failed",
    "back": "took requests",
    "slow": "changed speed",
    "wait": "held the rollout up",
}


def world_lines(run: Simulated) -> list[str]:
    """Attempts that came to nothing, how requests ended without an answer, and what became of replicas."""
    turmoil = run.record.turmoil
    if turmoil is None:
        return []
    again = int((turmoil.attempt_count > 1).sum())
    lines = [
        f"{turmoil.refused_count:,} attempts refused, {turmoil.lost_count:,} lost with a replica; "
        f"{again:,} requests were sent more than once"
    ]
    if turmoil.cancelled_count or turmoil.timed_out_count:
        lines.append(
            f"{turmoil.timed_out_count:,} attempts timed out, {turmoil.cancelled_count:,} were left by their users; "
            f"{turmoil.wasted_output_tokens:,} output tokens were generated for nobody"
        )
    ends = [(int((run.record.status == status).sum()), words) for status, words in _ENDS.items()]
    if any(count for count, _ in ends):
        last = ", ".join(f"{count:,} {words}" for count, words in ends if count)
        lines.append(f"without an answer: {last}")
    if run.controller.scaler is None:
        # What the ladder does to the door has lines of its own.
        events = [each for each in turmoil.decisions if each.kind != "door"]
        lines += [event_words(each) for each in events[:_MOST_EVENTS]]
        if len(events) > _MOST_EVENTS:
            lines.append(f"... and {len(events) - _MOST_EVENTS} more; all are in decisions.json")
    return lines


def reading_lines(record: RunRecord, rate: float | None, gauges: Telemetry | None) -> list[str]:
    """What slow readers make of answers, and of connections."""
    found = reading_document(record, rate, gauges)
    if found is None:
        return []
    return [
        f"clients read {found['tokens_per_s']:g} tokens/s: {found['open_peak_count']:,} connections at most, where "
        f"{found['in_flight_peak_count']:,} requests were in flight at most"
    ]


def reading_document(
    record: RunRecord, rate: float | None, gauges: Telemetry | None
) -> dict[str, float | int | None] | None:
    """Answers as clients read them, and connections; ``None`` where all read as fast as they come.

    Args:
        record: The requests.
        rate: Tokens that a client reads in a second.
        gauges: Samples of the fleet that has them all; ``None``: several pools have parts of them.
    """
    if rate is None:
        return None
    until_s = contract.read_s(record, rate)
    # Of an attempt that came to nothing nobody notes the end; the gauges have counted it.
    inside, read = _sampled(record, gauges, until_s)
    taken_s = (until_s - record.arrival_s)[np.isfinite(until_s)]
    return {
        "tokens_per_s": rate,
        **{f"e2e_p{quantile:.0f}_s": order_statistic(taken_s, quantile / 100.0) for quantile in (50.0, 95.0, 99.0)},
        "in_flight_peak_count": max(contract.most_at_once(record.arrival_s, record.finish_s), _most(inside)),
        "open_peak_count": max(contract.most_at_once(record.arrival_s, until_s), _most(inside + read)),
    }


def _most(counts: npt.NDArray[np.int64]) -> int:
    return int(counts.max(initial=0))


def _sampled(
    record: RunRecord, gauges: Telemetry | None, until_s: Floats
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """At each sample: requests inside the fleet, those that come to nothing too, and answers still being read."""
    if gauges is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    known = np.isfinite(until_s)
    ended = np.searchsorted(np.sort(record.finish_s[known]), gauges.time_s, side="right")
    left = np.searchsorted(np.sort(until_s[known]), gauges.time_s, side="right")
    return (gauges.running + gauges.waiting).sum(axis=1, dtype=np.int64), ended - left


def event_words(decision: Decision) -> str:
    """What became of replicas, and when."""
    word = "replica" if len(decision.replicas) == 1 else "replicas"
    named = ", ".join(map(str, decision.replicas))
    return f"{shown_duration(decision.time_s)}: {word} {named} {_BECAME[decision.kind]} ({decision.reason})"


def world_document(turmoil: Turmoil | None) -> dict[str, object] | None:
    """The summary of what happened; ``None`` in a quiet world."""
    if turmoil is None:
        return None
    counts = np.bincount(turmoil.attempt_count)
    moved = int((turmoil.degraded == Degraded.SMALLER_MODEL).sum())
    return {
        "refused_attempt_count": turmoil.refused_count,
        "lost_attempt_count": turmoil.lost_count,
        "timed_out_attempt_count": turmoil.timed_out_count,
        "cancelled_attempt_count": turmoil.cancelled_count,
        "wasted_output_tokens": turmoil.wasted_output_tokens,
        "smaller_model_count": moved,
        "requests_by_attempts": {str(tries): int(count) for tries, count in enumerate(counts) if count},
    }
