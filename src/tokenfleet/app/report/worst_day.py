"""Fourth section: the replay of the peak with the spare gone."""

import numpy as np

from tokenfleet.app.loss_words import loss_lines, places
from tokenfleet.app.obtaining import obtainable_lines
from tokenfleet.app.report.charts import Absent, Chart, Table, TimeAxis
from tokenfleet.app.report.decision import predicted, promise_name
from tokenfleet.app.report.gauges import Window, gauge_charts, ttft_chart
from tokenfleet.app.report.moment import moment_charts
from tokenfleet.app.report.words import amount, duration, exact, percent, plural, promise
from tokenfleet.app.summary import verdict
from tokenfleet.domain.plan import Plan
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.trace import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstDay:
    """The fourth section."""

    sentence: str
    table: Table
    promises: Table | None
    """The promises over the whole run, where the plan judged them; the first section holds the peak."""
    losses: Table | None
    """Every loss that was examined."""
    obtainable: tuple[str, ...]
    """Whether the GPUs can be had, the most of them, and the start-up budget."""
    charts: tuple[Chart | Absent, ...]


def replayed(plan: Plan, whole: RunRecord, degraded: RunRecord) -> WorstDay:
    """The timeline of ``degraded``, beside the whole fleet."""
    start_s = float(degraded.arrival_s[0]) if len(degraded.arrival_s) else 0.0
    scale = TimeAxis.spanning(degraded.end_s - start_s)
    window = Window(plan.peak_start_s / scale.unit_s, plan.peak_end_s / scale.unit_s)
    gone = (
        f"{plural(plan.spare_count, 'replica')} of {exact(sum(sized.replica_count for sized in plan.fleets))} gone"
        if plan.spare_count
        else "no replica to spare, so the whole fleet"
    )
    return WorstDay(
        sentence=f"{exact(len(degraded.arrival_s))} requests replayed with {gone}.{_fullest(plan)}",
        table=_totals(whole, degraded, plan.spare_count > 0),
        promises=_overall(plan),
        losses=_losses(plan),
        obtainable=() if plan.obtainable is None else tuple(obtainable_lines(plan.obtainable)),
        charts=(
            *moment_charts(plan),
            *gauge_charts(degraded.telemetry, scale, window),
            ttft_chart(plan.question.slo, degraded, scale, window),
        ),
    )


def _losses(plan: Plan) -> Table | None:
    rows = tuple((line.lost, line.serving, line.verdict, line.spare, line.note) for line in loss_lines(plan))
    where = places(plan)
    caption = f"The worst of its kind, while the peak arrives; nothing that would still have to start counts; {where}"
    head = ("What is gone", "Left", "Promise", "Spare for it", "Note")
    return Table(head=head, rows=rows, numeric=frozenset(), caption=f"{caption}.") if rows else None


def _fullest(plan: Plan) -> str:
    """How full the fullest replica is in the judged window, where the plan says so."""
    parts = []
    if plan.sequence_peak_count is not None:
        parts.append(f"holds {plural(plan.sequence_peak_count, 'sequence')}")
    if plan.kv_peak_fraction is not None:
        parts.append(f"uses {percent(plan.kv_peak_fraction)} of its KV memory")
    return f" At the judged peak the fullest replica {' and '.join(parts)}." if parts else ""


def _overall(plan: Plan) -> Table | None:
    rows = tuple(
        (
            promise_name(result.name),
            f"≤ {promise(result.promised, result.unit)}",
            predicted(result),
            f"{amount(result.sample_count)}",
            verdict(result),
        )
        for result in plan.slo_degraded_overall
    )
    head = ("The whole run, spare gone", "Promised", "Predicted", "Samples", "Verdict")
    return Table(head=head, rows=rows, numeric=frozenset({1, 2, 3})) if rows else None


def _totals(whole: RunRecord, degraded: RunRecord, has_spare: bool) -> Table:
    names = (
        "Replicas",
        "Requests finished",
        "Refused: too long",
        "Pushed out of KV memory and redone",
        "Input tokens from the prefix cache",
        "Most requests waiting at once",
        "Fullest KV memory",
        "TTFT median",
        "Slowest first token",
        "Last token",
    )
    columns = [_column(whole), _column(degraded)] if has_spare else [_column(degraded)]
    head = ("Whole run", "Whole fleet", "Spare gone") if has_spare else ("Whole run", "Fleet")
    return Table(
        head=head,
        rows=tuple(zip(names, *columns, strict=True)),
        numeric=frozenset(range(1, len(head))),
    )


def _column(record: RunRecord) -> tuple[str, ...]:
    telemetry = record.telemetry
    refused = int((record.status == Status.REJECTED_TOO_LONG).sum())
    finished = int((record.status == Status.FINISHED).sum())
    ttft = record.ttft_s[np.isfinite(record.ttft_s)]
    unsampled = "not sampled"
    return (
        exact(record.replica_count),
        exact(finished),
        exact(refused),
        exact(int(record.preemption_count.sum())),
        _cached(record),
        unsampled if telemetry is None else amount(int(_most(telemetry.waiting.sum(axis=1)))),
        unsampled if telemetry is None else percent(_most(telemetry.kv_used_fraction)),
        duration(float(np.median(ttft))) if len(ttft) else "no first token",
        duration(float(ttft.max())) if len(ttft) else "no first token",
        f"{duration(record.end_s)} after the start",
    )


def _most(values: Floats) -> float:
    return float(values.max()) if values.size else float("nan")


def _cached(record: RunRecord) -> str:
    total = int(record.input_tokens.sum(dtype=np.int64))
    return percent(int(record.cached_tokens.sum(dtype=np.int64)) / total) if total else "no input tokens"
