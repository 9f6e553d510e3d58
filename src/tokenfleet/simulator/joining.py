"""One record of several pools: what users saw, what was taken, what happened around the replicas of all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.run import (
    BusyTime,
    ClassGaps,
    Decision,
    Degraded,
    GapHistogram,
    Ledger,
    RunRecord,
    Spell,
    Status,
    Telemetry,
    Turmoil,
    WorkDone,
)
from tokenfleet.domain.stages import GateRun, PoolRun
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import ReplicaState
from tokenfleet.simulator.bins import gap_bounds_ps
from tokenfleet.simulator.building import PS_PER_S

Buffer = npt.NDArray[np.int64]


@dataclass(slots=True)
class Journey:
    """Where the requests are by now; one entry per request."""

    now_ps: Buffer
    status: npt.NDArray[np.int8]
    first_ps: Buffer
    """First token that the user has seen; -1 before it."""
    last_ps: Buffer
    """Last token that the user has seen; -1 before the first."""
    replica: Buffer
    """Of the last call, counted over all pools."""
    sender: Buffer
    cached_tokens: Buffer
    preemption_count: Buffer
    transfer_ps: Buffer
    moved: Buffer
    """Number of the answer to which a gate has sent it, counted from 1 over the smaller answers; 0: its own."""


def joined(trace: Trace, journey: Journey, runs: Mapping[str, PoolRun], gates: Sequence[GateRun]) -> RunRecord:
    """One record of all pools, one row per request of the trace."""
    ended = journey.status == Status.FINISHED
    records = [run.record for run in runs.values()]
    peaks = [run.peak_gaps for run in runs.values() if run.peak_gaps is not None]
    return RunRecord(
        arrival_s=trace.arrival_s,
        first_token_s=np.where(ended & (journey.first_ps >= 0), journey.first_ps / PS_PER_S, np.nan),
        finish_s=np.where(ended, journey.now_ps / PS_PER_S, np.nan),
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
        cached_tokens=journey.cached_tokens.astype(np.int32),
        preemption_count=journey.preemption_count.astype(np.int32),
        replica=journey.replica.astype(np.int32),
        status=journey.status,
        gaps=added([run.gaps for run in runs.values() if run.gaps is not None]),
        peak_gaps=added(peaks) if any(record.peak_gaps is not None for record in records) else None,
        busy=BusyTime(
            prefill_s=sum(record.busy.prefill_s for record in records),
            decode_s=sum(record.busy.decode_s for record in records),
            cached_prefix_s=sum(record.busy.cached_prefix_s for record in records),
            step_count=sum(record.busy.step_count for record in records),
            mixed_step_count=sum(record.busy.mixed_step_count for record in records),
        ),
        replica_count=sum(record.replica_count for record in records),
        end_s=float(np.max(journey.now_ps[ended], initial=0)) / PS_PER_S,
        telemetry=side_by_side([record.telemetry for record in records if record.telemetry is not None]),
        class_gaps=classes_in([run.class_gaps for run in runs.values()]),
        class_bits=trace.class_bits,
        classes=trace.classes,
        time_of_day_s=trace.time_of_day_s,
        ledger=in_all(trace.request_count, list(runs.values())),
        turmoil=turmoil_of(journey, runs, gates),
    )


def classes_in(pools: Sequence[Mapping[str, ClassGaps]]) -> dict[str, ClassGaps]:
    """The gaps of each class, those of several pools as one."""
    found = {}
    for name in dict.fromkeys(name for gaps in pools for name in gaps):
        mine = [gaps[name] for gaps in pools if name in gaps]
        peaks = [each.peak_gaps for each in mine if each.peak_gaps is not None]
        found[name] = ClassGaps(gaps=added([each.gaps for each in mine]), peak_gaps=added(peaks) if peaks else None)
    return found


_TOTALS = ("refused_count", "lost_count", "cancelled_count", "timed_out_count", "wasted_output_tokens")
"""What is added up over pools."""


def turmoil_of(journey: Journey, runs: Mapping[str, PoolRun], gates: Sequence[GateRun]) -> Turmoil | None:
    """What happened around all pools; ``None`` where all was quiet.

    A request counts as sent once more for each time that it was to a gate, and that its slowest call to a pool was.
    """
    if not gates and all(run.record.turmoil is None for run in runs.values()):
        return None
    request_count = len(journey.now_ps)
    attempt_count = np.ones(request_count, dtype=np.int32)
    for gate in gates:
        attempt_count += np.maximum(gate.attempt_count - 1, 0)
    partial_tokens = np.zeros(request_count, dtype=np.int32)
    totals = dict.fromkeys(_TOTALS, 0)
    state_s, before = [], 0
    spells: list[Spell] = []
    decisions = [_of_pool(each, gate.name, 0) for gate in gates for each in gate.decisions]
    for name, run in runs.items():
        record, turmoil = run.record, run.record.turmoil
        if turmoil is None:
            quiet_s = np.zeros((record.replica_count, len(ReplicaState)))
            quiet_s[:, ReplicaState.READY] = record.end_s
            state_s.append(quiet_s)
            numbers = range(before, before + record.replica_count)
            spells += [Spell(replica=each, state=int(ReplicaState.READY), start_s=0.0, end_s=inf) for each in numbers]
        else:
            again = np.zeros(request_count, dtype=np.int32)
            np.maximum.at(again, run.caller, turmoil.attempt_count - 1)
            attempt_count += again
            np.add.at(partial_tokens, run.caller, turmoil.partial_output_tokens)
            state_s.append(turmoil.state_s)
            spells += [replace(each, replica=before + each.replica) for each in turmoil.spells]
            totals = {key: total + getattr(turmoil, key) for key, total in totals.items()}
            decisions += [_of_pool(each, name, before) for each in turmoil.decisions]
        before += record.replica_count
    totals["refused_count"] += sum(gate.refused_count for gate in gates)
    return Turmoil(
        attempt_count=attempt_count,
        degraded=np.where(journey.moved > 0, int(Degraded.SMALLER_MODEL), int(Degraded.NOTHING)).astype(np.int8),
        left_s=journey.now_ps / PS_PER_S,
        partial_output_tokens=partial_tokens,
        state_s=np.concatenate(state_s),
        spells=tuple(spells),
        decisions=tuple(sorted(decisions, key=lambda each: each.time_s)),
        **totals,
    )


def _of_pool(decision: Decision, name: str, before: int) -> Decision:
    """A decision in a pool, with replicas counted over all pools."""
    replicas = tuple(before + number for number in decision.replicas)
    return replace(decision, replicas=replicas, reason=f"{name}: {decision.reason}")


def in_all(request_count: int, runs: list[PoolRun]) -> Ledger | None:
    """What each request took in all pools together; its turn came when one of its calls was admitted first."""
    scheduled_s = np.full(request_count, np.nan)
    names = ("prefill_gpu_s", "cached_gpu_s", "decode_gpu_s")
    took = {name: np.zeros(request_count) for name in names}
    again, swaps = np.zeros(request_count, dtype=np.int64), np.zeros(request_count, dtype=np.int32)
    for run in runs:
        if run.record.ledger is None:
            return None
        np.fmin.at(scheduled_s, run.caller, run.record.ledger.scheduled_s)
        for name, total_s in took.items():
            np.add.at(total_s, run.caller, getattr(run.record.ledger, name))
        np.add.at(again, run.caller, run.record.ledger.recomputed_tokens)
        np.add.at(swaps, run.caller, run.record.ledger.swap_count)
    return Ledger(scheduled_s=scheduled_s, recomputed_tokens=again, swap_count=swaps, **took)


NO_GAPS = np.zeros(0, dtype=np.int64)


def added(histograms: list[GapHistogram], gaps_ps: Buffer = NO_GAPS) -> GapHistogram:
    """Histograms as one, and single gaps with them."""
    bounds_ps = gap_bounds_ps()
    lower_s = bounds_ps / PS_PER_S
    lower_s[-1] = np.inf
    places = np.clip(np.searchsorted(bounds_ps, gaps_ps, side="right") - 1, 0, len(bounds_ps) - 2)
    counts = np.bincount(places, minlength=len(bounds_ps) - 1).astype(np.int64)
    return GapHistogram(lower_s=lower_s, count=counts + sum(each.count for each in histograms))


def side_by_side(gauges: list[Telemetry]) -> Telemetry | None:
    """Gauges of several pools as those of one fleet; whoever has ended reads as idle, and does no more."""
    if not gauges:
        return None
    longest = max(gauges, key=lambda each: len(each.time_s))

    def stacked(columns: list[npt.NDArray[Any]], mode: Literal["constant", "edge"] = "constant") -> npt.NDArray[Any]:
        missing = [len(longest.time_s) - len(column) for column in columns]
        padded = (np.pad(column, ((0, rows), (0, 0)), mode) for column, rows in zip(columns, missing, strict=True))
        return np.hstack(list(padded))

    counters = {
        field.name: stacked([getattr(each.done, field.name) for each in gauges], "edge") for field in fields(WorkDone)
    }
    ready = int(ReplicaState.READY)
    states = [
        np.full(each.running.shape, ready, dtype=np.int8) if each.state is None else each.state for each in gauges
    ]
    return Telemetry(
        time_s=longest.time_s,
        running=stacked([each.running for each in gauges]),
        waiting=stacked([each.waiting for each in gauges]),
        kv_used_fraction=stacked([each.kv_used_fraction for each in gauges]),
        active_tokens=stacked([each.active_tokens for each in gauges]),
        done=WorkDone(**counters),
        state=stacked(states, "edge") if any(each.state is not None for each in gauges) else None,
    )
