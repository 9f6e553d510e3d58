"""A simulation as a document and as tables for machines. The names here are a promise: they do not change."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from tokenfleet import contract
from tokenfleet.app.intervals import BOUNDS, FleetIntervals, Intervals, Waits, in_interval
from tokenfleet.app.lane_queue import BATCH, of_lane
from tokenfleet.app.lane_words import lane_document
from tokenfleet.app.scaling_words import scaling_document
from tokenfleet.app.simulate_run import Judged, Simulated, goodput
from tokenfleet.app.world_words import reading_document, world_document
from tokenfleet.contract import Against, Diagnosis
from tokenfleet.contract.quantile import histogram_quantile, order_statistic
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import Degraded, GapHistogram, Ledger, RunRecord, Status, Telemetry, Turmoil
from tokenfleet.domain.slo import Slo
from tokenfleet.domain.trace import Bools, Trace
from tokenfleet.domain.world import ReplicaState

QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
STATUS_NAMES: Final = {int(status): status.name.lower() for status in Status}
Column = npt.NDArray[np.generic]
Columns = dict[str, tuple[Column, npt.NDArray[np.bool_] | None]]
"""Values, and where they are known (``None``: everywhere)."""


class SaysHow(Protocol):
    """Puts a diagnosis into words."""

    def __call__(self, judged: Judged, run: Simulated) -> list[str]:
        """Sentences, the verdict first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRow:
    """What one replica did. Gauges are as sampled: a peak between two samples is not seen."""

    replica: int
    gpu: str
    request_count: int
    input_tokens: int
    output_tokens: int
    preemption_count: int
    running_peak_count: int
    waiting_peak_count: int
    kv_peak_fraction: float


def latencies(record: RunRecord) -> dict[str, dict[str, float | None]]:
    """TTFT, TPOT, ITL and E2E in seconds, by quantile, of requests that finished; ITL over every gap."""
    found: dict[str, dict[str, float | None]] = {}
    for name, values in (("ttft", record.ttft_s), ("tpot", record.tpot_s), ("e2e", record.e2e_s)):
        known = values[np.isfinite(values)]
        found[name] = {key: order_statistic(known, quantile) for key, quantile in QUANTILES.items()}
    gaps = {key: histogram_quantile(record.gaps, quantile) for key, quantile in QUANTILES.items()}
    return {"ttft": found["ttft"], "tpot": found["tpot"], "itl": gaps, "e2e": found["e2e"]}


def replica_rows(record: RunRecord, fleet: Fleet) -> tuple[ReplicaRow, ...]:
    """One row for each replica, in the order of the fleet."""
    gauges = record.telemetry
    if gauges is None:
        return ()
    served = record.status == Status.FINISHED
    count = record.replica_count

    def total(values: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        added = np.zeros(count, dtype=np.int64)
        np.add.at(added, record.replica[served], values[served])
        return added

    requests, prompts, answers, preempted = (
        total(each)
        for each in (
            np.ones(len(served), dtype=np.int64),
            record.input_tokens,
            record.output_tokens,
            record.preemption_count,
        )
    )
    names = [group.replica.deployment.gpu for group in fleet.groups for _ in range(group.replica_count)]
    return tuple(
        ReplicaRow(
            replica=index,
            gpu=names[index],
            request_count=int(requests[index]),
            input_tokens=int(prompts[index]),
            output_tokens=int(answers[index]),
            preemption_count=int(preempted[index]),
            running_peak_count=int(gauges.running[:, index].max(initial=0)),
            waiting_peak_count=int(gauges.waiting[:, index].max(initial=0)),
            kv_peak_fraction=float(gauges.kv_used_fraction[:, index].max(initial=0.0)),
        )
        for index in range(count)
    )


def simulation_document(run: Simulated, says: SaysHow) -> dict[str, object]:
    """Everything a simulation found, ready for JSON; ``null`` is unknown, never 0."""
    record = run.record
    return {
        "name": run.name,
        "model": run.model,
        "fleet": [group_document(group) for group in run.fleet.groups],
        "router": run.fleet.router,
        **totals_document(record, run.trace, run.at_max_output_count),
        "busy_fraction": run.whole.diagnosis.busy_fraction,
        **latency_document(record, run.slo, run.around.waiting_for(record), run.around.in_lane),
        "replicas": [asdict(row) for row in replica_rows(record, run.fleet)],
        "whole": _judged(run.whole, run, says),
        "peak": {"start_s": run.peak_window_s[0], "end_s": run.peak_window_s[1], **_judged(run.peak, run, says)},
        "diagnosis_limits": asdict(run.limits),
        "telemetry_interval_s": run.interval_s,
        "scaling": scaling_document(run),
        "world": world_document(record.turmoil),
        "reading": reading_document(record, run.around.reads_tokens_per_s, record.telemetry),
        "fairness": None if run.fairness is None else asdict(run.fairness),
        "batch": lane_document(record, run.around.in_lane),
        "assumptions": list(run.assumptions),
        "resolved": run.resolved,
    }


def totals_document(record: RunRecord, trace: Trace, at_max_output_count: int | None) -> dict[str, object]:
    """Requests, tokens and rates of a run."""
    count = len(record.arrival_s)
    finished = record.status == Status.FINISHED
    input_tokens = int(record.input_tokens[finished].sum(dtype=np.int64))
    return {
        "request_count": count,
        "finished_count": int(finished.sum()),
        **contract.unanswered_counts(record.status),
        "at_max_output_count": at_max_output_count,
        "preemption_count": int(record.preemption_count.sum(dtype=np.int64)),
        "preempted_request_count": int((record.preemption_count > 0).sum()),
        "swap_count": None if record.ledger is None else int(record.ledger.swap_count.sum(dtype=np.int64)),
        "recomputed_tokens": None if record.ledger is None else int(record.ledger.recomputed_tokens.sum()),
        "duration_s": record.span_s,
        "request_rate_per_s": _rate(count, trace.duration_s - float(record.arrival_s[0])) if count else None,
        "finish_rate_per_s": _rate(int(finished.sum()), record.span_s),
        "input_tokens_per_s": _rate(input_tokens, record.span_s),
        "output_tokens_per_s": _rate(int(record.output_tokens[finished].sum(dtype=np.int64)), record.span_s),
        "cached_input_fraction": _share(int(record.cached_tokens[finished].sum(dtype=np.int64)), input_tokens),
    }


def latency_document(record: RunRecord, slo: Slo, waited_for: RunRecord, batch: Bools | None) -> dict[str, object]:
    """What the replicas did, and how long requests took: those that somebody waits for, batch in a lane, and all."""
    good = goodput(waited_for, slo)
    return {
        "busy": asdict(record.busy),
        "latency_s": latencies(waited_for),
        "latency_batch_s": None if batch is None else latencies(of_lane(record, BATCH, batch)),
        "latency_all_s": latencies(record),
        "itl_by_class_s": {
            name: {key: histogram_quantile(apart.gaps, quantile) for key, quantile in QUANTILES.items()}
            for name, apart in record.class_gaps.items()
        },
        "goodput": asdict(good) | {"clauses": list(good.clauses)},
    }


def group_document(group: ReplicaGroup) -> dict[str, object]:
    """Equal replicas, by what a person would type to start them."""
    deployment = group.replica.deployment
    return {
        "gpu": deployment.gpu,
        **({"model": deployment.model} if group.is_smaller_model else {}),
        **({} if group.up_to is None else {"up_to": group.up_to}),
        "gpu_count": group.gpu_count,
        "replica_count": group.replica_count,
        "tensor_parallel": deployment.layout.tensor_parallel,
        "precision": deployment.precision,
        "kv_dtype": deployment.kv_precision,
        "engine": deployment.engine.name,
        "max_batched_tokens": deployment.engine.max_batched_tokens,
        "max_sequence_count": deployment.engine.max_sequence_count,
        "kv_capacity_tokens_per_replica": group.replica.memory.kv_capacity_tokens,
    }


def _judged(judged: Judged, run: Simulated, says: SaysHow) -> dict[str, object]:
    return {
        "request_count": judged.request_count,
        "slo": [asdict(result) for result in judged.slo],
        "diagnosis": diagnosis_document(judged.diagnosis, says(judged, run)),
    }


def diagnosis_document(found: Diagnosis, text: Sequence[str]) -> dict[str, object]:
    """What was found, with the figures that it rests on."""
    against = {
        name: against_document(each)
        for name, each in (
            ("ttft", found.ttft),
            ("itl", found.itl),
            ("client_ttft", found.client_ttft),
            ("client_e2e", found.client_e2e),
        )
    }
    return asdict(found) | against | {"text": list(text)}


def against_document(each: Against | None) -> dict[str, object] | None:
    """A latency against that of the same requests alone."""
    return None if each is None else asdict(each) | {"factor": each.factor}


def gaps_document(record: RunRecord) -> dict[str, object]:
    """Every token gap, in the bins that hold any."""
    peak = record.peak_gaps
    return {
        "whole": _bins(record.gaps),
        "peak": None if peak is None else _bins(peak),
        "classes": {
            name: {
                "whole": _bins(apart.gaps),
                "peak": None if apart.peak_gaps is None else _bins(apart.peak_gaps),
            }
            for name, apart in record.class_gaps.items()
        },
    }


def _bins(gaps: GapHistogram) -> list[dict[str, object]]:
    return [
        {
            "lower_s": float(gaps.lower_s[index]),
            "upper_s": float(gaps.lower_s[index + 1]) if math.isfinite(gaps.lower_s[index + 1]) else None,
            "count": int(gaps.count[index]),
        }
        for index in np.flatnonzero(gaps.count)
    ]


def request_columns(record: RunRecord, trace: Trace) -> Columns:
    """Column -> values, and where they are known (``None``: everywhere); one row per request in order of arrival."""
    served = record.status == Status.FINISHED
    return {
        "request": (np.arange(len(record.arrival_s), dtype=np.int64), None),
        "arrival_s": (record.arrival_s, None),
        **_queue_columns(record),
        "first_token_s": (record.first_token_s, np.isfinite(record.first_token_s)),
        "finish_s": (record.finish_s, np.isfinite(record.finish_s)),
        "status": (np.array([STATUS_NAMES[value] for value in range(len(STATUS_NAMES))])[record.status], None),
        "replica": (record.replica, served),
        "input_tokens": (record.input_tokens, None),
        "output_tokens": (record.output_tokens, None),
        "cached_tokens": (record.cached_tokens, served),
        "preemption_count": (record.preemption_count, served),
        **_share_columns(record.ledger),
        **({} if record.turmoil is None else _tried(record.turmoil)),
        **({} if trace.session is None else {"session": (trace.session, trace.session >= 0)}),
        **({} if trace.tenant is None else {"tenant": (trace.tenant, trace.tenant >= 0)}),
    }


def _queue_columns(record: RunRecord) -> Columns:
    """When each request reached the queue of the scheduler, and when it left it."""
    found: Columns = {}
    if record.ready_s is not None:
        found["queued_s"] = record.ready_s, np.isfinite(record.ready_s)
    if record.ledger is not None:
        found["scheduled_s"] = record.ledger.scheduled_s, np.isfinite(record.ledger.scheduled_s)
    return found


def _share_columns(ledger: Ledger | None) -> Columns:
    """What each request took of the gpus, rejected ones included: an attempt may have begun before."""
    if ledger is None:
        return {}
    names = ("swap_count", "recomputed_tokens", "prefill_gpu_s", "cached_gpu_s", "decode_gpu_s")
    return {name: (getattr(ledger, name), None) for name in names}


def _tried(turmoil: Turmoil) -> Columns:
    degraded = turmoil.degraded
    return {
        "attempt_count": (turmoil.attempt_count, None),
        "partial_output_tokens": (turmoil.partial_output_tokens, None),
        "degraded_by": (np.array([each.name.lower() for each in Degraded])[degraded], degraded != Degraded.NOTHING),
    }


def telemetry_columns(record: RunRecord, gauges: Telemetry, done: Intervals) -> Columns:
    """Column -> values, and where they are known; one row per sampled moment and replica.

    Gauges are as they stand at ``time_s``; the rest is of the interval that ends there.
    """
    samples, replicas = gauges.running.shape

    def counted(times_s: npt.NDArray[np.float64]) -> Column:
        known = np.isfinite(times_s) & (record.status == Status.FINISHED)
        place = in_interval(times_s[known], done.interval_s, samples) * replicas + record.replica[known]
        return np.bincount(place, minlength=samples * replicas)

    bound_by = done.bound_by.ravel()
    columns: dict[str, Column] = {
        "time_s": np.repeat(gauges.time_s, replicas),
        "replica": np.tile(np.arange(replicas, dtype=np.int32), samples),
        "running": gauges.running.ravel(),
        "waiting": gauges.waiting.ravel(),
        "kv_used_fraction": gauges.kv_used_fraction.ravel(),
        "active_tokens": gauges.active_tokens.ravel(),
        "arrived_count": counted(record.arrival_s),
        "first_token_count": counted(record.first_token_s),
        "finished_count": counted(record.finish_s),
        "prefill_tokens_per_s": done.prefill_tokens.ravel() / done.interval_s,
        "decode_tokens_per_s": done.decode_tokens.ravel() / done.interval_s,
        "preemption_count": done.preemption_count.ravel(),
        "swap_count": done.swap_count.ravel(),
        "recomputed_tokens": done.recomputed_tokens.ravel(),
        "swapped_bytes": done.swapped_bytes.ravel(),
        "busy_fraction": done.busy_fraction.ravel(),
        **{f"{name}_fraction": done.bound_fraction[name].ravel() for name in BOUNDS},
    }
    found: Columns = {name: (values, None) for name, values in columns.items()}
    found["bound_by"] = np.array([*BOUNDS, ""])[bound_by], bound_by >= 0
    if gauges.state is not None:
        names = np.array([state.name.lower() for state in ReplicaState])
        found["state"] = names[gauges.state.ravel()], None
    return found


def waits_columns(waits: Waits) -> Columns:
    """One row for each interval, replica and priority in which somebody left a queue."""
    priority = np.zeros(len(waits.replica), dtype=np.int32) if waits.priority is None else waits.priority
    return {
        "time_s": (waits.time_s, None),
        "replica": (waits.replica, None),
        "priority": (priority, np.full(len(priority), waits.priority is not None)),
        "scheduled_count": (waits.scheduled_count, None),
        "wait_mean_s": (waits.mean_s, None),
        "wait_longest_s": (waits.longest_s, None),
    }


def fleet_columns(gauges: Telemetry, whole: FleetIntervals, done: Intervals) -> Columns:
    """One row for each sampled moment: what the whole fleet was, did and cost in the interval that ends there."""
    price = whole.usd_per_million_output_tokens
    unknown = np.full(len(gauges.time_s), np.nan)
    values = unknown if price is None else price
    means = {"busy_fraction": done.of_fleet(done.busy_fraction)}
    means |= {f"{name}_fraction": done.of_fleet(done.bound_fraction[name]) for name in BOUNDS}
    return {
        "time_s": (gauges.time_s, None),
        "ready_count": (whole.ready_count, None),
        "starting_count": (whole.starting_count, None),
        **{name: (counts, None) for name, counts in whole.ended_counts.items()},
        "prefill_tokens_per_s": (done.prefill_tokens.sum(axis=1) / done.interval_s, None),
        "decode_tokens_per_s": (done.decode_tokens.sum(axis=1) / done.interval_s, None),
        **{name: (mean, np.isfinite(mean)) for name, mean in means.items()},
        "usd_per_million_output_tokens": (values, np.isfinite(values)),
    }


def _rate(count: int, span_s: float) -> float | None:
    return count / span_s if span_s > 0 else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
