"""A simulation as one page: what holds the fleet up, then the replay over time."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from tokenfleet.app.ending_words import ending_counts
from tokenfleet.app.intervals import mean_of, serving
from tokenfleet.app.lane_queue import BATCH, of_lane
from tokenfleet.app.report.charts import (
    BAD,
    FIRST,
    SECOND,
    Absent,
    Chart,
    Marks,
    Table,
    TimeAxis,
    axis,
    layout,
    line,
    plain,
)
from tokenfleet.app.report.decision import predicted, promise_name
from tokenfleet.app.report.gauges import Window, gauge_charts, ttft_chart
from tokenfleet.app.report.replicas import replica_charts
from tokenfleet.app.report.sampling import TIME_BUCKETS, in_buckets
from tokenfleet.app.report.words import amount, clock, digits, duration, exact, percent, promise
from tokenfleet.app.report.work import work_charts
from tokenfleet.app.scaling_words import ladder_lines, scaling_lines
from tokenfleet.app.simulate_document import QUANTILES, latencies, replica_rows
from tokenfleet.app.simulate_run import Simulated, goodput
from tokenfleet.app.simulate_words import diagnosis_words, fleet_name, tenant_lines, whole_words
from tokenfleet.app.summary import data, verdict
from tokenfleet.app.world_words import world_lines
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.slo import Slo, SloResult
from tokenfleet.domain.trace import Bools, Floats

_REPLICAS_SHOWN: Final = 64
_MOODS: Final = {"fine": "good", "unknown": "thin"}
_BINS_JOINED: Final = 4
"""Gap bins in one point of the chart: 9 % wide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The diagnosis on the page."""

    verdict: str
    mood: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePage:
    """All sections of the page."""

    lead: str
    finding: Finding
    whole: tuple[str, ...]
    """Queues and oddities of the whole run."""
    promises: Table
    latency: Table
    totals: Table
    replicas: Table
    charts: tuple[Chart | Absent, ...]
    notes: tuple[str, ...]
    parts: str = "Replica by replica"
    """What the table of replicas is called."""
    watched: tuple[str, ...] = ()
    """What the autoscaler did and the ladder gave up."""


def timeline_page(run: Simulated) -> TimelinePage:
    """What the page of a simulation says."""
    record = run.record
    waited_for = run.around.waiting_for(record)
    start_s = float(record.arrival_s[0])
    scale = TimeAxis.spanning(record.end_s - start_s)
    window = Window(run.peak_window_s[0] / scale.unit_s, run.peak_window_s[1] / scale.unit_s)
    return TimelinePage(
        lead=_lead(run),
        finding=_finding(run),
        whole=(*whole_words(run), *world_lines(run), *tenant_lines(run.fairness)),
        watched=(*scaling_lines(run), *ladder_lines(run)),
        promises=promises_table(run.peak.slo, run.whole.slo),
        latency=latency_table(in_lanes(record, waited_for, run.around.in_lane)),
        totals=_totals(run),
        replicas=_replicas(run),
        charts=(
            rates_chart(record, scale, window),
            *replica_charts(run, scale, window),
            *gauge_charts(record.telemetry, scale, window),
            _fullest_queue(run, scale, window),
            *work_charts(run, scale, window),
            ttft_chart(run.slo, waited_for, scale, window, has_lane=run.around.lane is not None),
            gaps_chart(in_lanes(record, waited_for, run.around.in_lane), run.slo),
        ),
        notes=(*data(run.workload.quality), *run.assumptions),
    )


def _lead(run: Simulated) -> str:
    fleet = "; ".join(fleet_name(group) for group in run.fleet.groups)
    start_s, end_s = run.peak_window_s
    return (
        f"{exact(len(run.record.arrival_s))} requests for {run.model} replayed on {fleet}. "
        f"The peak is {clock(start_s)} to {clock(end_s)} after the start of the traffic."
    )


def _finding(run: Simulated) -> Finding:
    found = run.peak.diagnosis
    first, *rest = diagnosis_words(run.peak, run)
    mood = "bad" if found.alarm == "emergency" else _MOODS.get(found.verdict, "bad")
    if mood == "good" and (found.alarm == "warning" or not all(result.kept for result in run.peak.slo)):
        mood = "thin"
    return Finding(verdict=f"At the peak: {first}", mood=mood, lines=tuple(rest))


def promises_table(peak: Sequence[SloResult], whole: Sequence[SloResult]) -> Table:
    """Each promise at the peak and over the whole run."""

    def row(at_peak: SloResult, over_all: SloResult) -> tuple[str, ...]:
        return (
            promise_name(at_peak.name),
            f"≤ {promise(at_peak.promised, at_peak.unit)}",
            predicted(at_peak),
            verdict(at_peak),
            predicted(over_all),
            verdict(over_all),
        )

    return Table(
        head=("Promise", "Promised", "At the peak", "Peak verdict", "Whole run", "Whole verdict"),
        rows=tuple(row(*pair) for pair in zip(peak, whole, strict=True)),
        numeric=frozenset({1, 2, 4}),
        caption="In brackets: the 90 % range, replayed at both ends of the error band.",
    )


def in_lanes(record: RunRecord, waited_for: RunRecord, batch: Bools | None) -> dict[str, RunRecord]:
    """Requests that somebody waits for and batch in a lane apart, by what is said of them; all as one without a lane.

    Args:
        record: Of all.
        waited_for: Of those that somebody waits for.
        batch: Who is in the lane.
    """
    return {"": record} if batch is None else {"interactive": waited_for, "batch": of_lane(record, BATCH, batch)}


def latency_table(lanes: Mapping[str, RunRecord]) -> Table:
    """Quantiles of every latency, lane by lane."""
    rows = tuple(
        (f"{name.upper()} {lane}".strip(), *(duration(value) for value in values.values()))
        for lane, record in lanes.items()
        for name, values in latencies(record).items()
    )
    return Table(head=("Whole run", "p50", "p95", "p99"), rows=rows, numeric=frozenset({1, 2, 3}))


def _totals(run: Simulated) -> Table:
    record = run.record
    finished = record.status == Status.FINISHED
    total = int(record.input_tokens.sum(dtype=np.int64))
    good = goodput(record, run.slo)
    busy = run.whole.diagnosis.busy_fraction
    rows = [
        ("Requests finished", exact(int(finished.sum()))),
        *((f"Requests {words}", exact(count)) for words, count in ending_counts(record.status).items()),
        ("Preemptions", exact(int(record.preemption_count.sum(dtype=np.int64)))),
        ("Input from the prefix cache", percent(int(record.cached_tokens.sum(dtype=np.int64)) / total)),
        ("Replicas busy", percent(busy)),
    ]
    if good.rate_per_s is not None and good.clauses:
        named = ", ".join(promise_name(each) for each in good.clauses)
        rows.append((f"Goodput: finished within the limits of {named}", f"{digits(good.rate_per_s)}/s"))
    return Table(head=("Whole run", ""), rows=tuple(rows), numeric=frozenset({1}))


def _replicas(run: Simulated) -> Table:
    rows = replica_rows(run.record, run.fleet)
    shown = sorted(rows, key=lambda row: (-row.waiting_peak_count, -row.kv_peak_fraction, row.replica))
    rest = len(rows) - _REPLICAS_SHOWN
    caption = "Peaks are of the sampled moments."
    if rest > 0:
        caption += f" {rest} replicas that are less full are left out."
    return Table(
        head=("Replica", "GPU", "Requests", "Running at most", "Waiting at most", "KV memory at most", "Preemptions"),
        rows=tuple(
            (
                str(row.replica),
                row.gpu,
                exact(row.request_count),
                exact(row.running_peak_count),
                exact(row.waiting_peak_count),
                percent(row.kv_peak_fraction),
                exact(row.preemption_count),
            )
            for row in shown[:_REPLICAS_SHOWN]
        ),
        numeric=frozenset(range(2, 7)),
        caption=caption,
    )


def rates_chart(record: RunRecord, scale: TimeAxis, window: Window) -> Chart:
    """Requests arriving and finishing over time."""
    last_s = max(record.end_s, float(record.arrival_s.max()))
    edges = np.linspace(float(record.arrival_s.min()), last_s + 1e-9, TIME_BUCKETS)
    width_s = float(edges[1] - edges[0])
    time = scale.of(edges[:-1] + width_s / 2)

    def rate(times_s: Floats) -> list[float | None]:
        return plain(np.histogram(times_s[np.isfinite(times_s)], edges)[0] / width_s)

    return Chart(
        key="rates",
        title="Requests arriving and finishing",
        note=f"Per second, in spans of {duration(width_s)}. Where fewer finish than arrive, work piles up.",
        figure={
            "data": [
                line("arriving", time, rate(record.arrival_s), SECOND, "%{y:.3~r}/s arriving", dash="dot"),
                line("finishing", time, rate(record.finish_s), FIRST, "%{y:.3~r}/s finishing"),
            ],
            "layout": window.marks().onto(
                layout(axis(scale.title), axis("requests per second", rangemode="tozero"), hovermode="x unified")
            ),
        },
        height_px=280,
        wide=True,
    )


def _fullest_queue(run: Simulated, scale: TimeAxis, window: Window) -> Chart | Absent:
    title = "Requests waiting on one replica"
    gauges = run.record.telemetry
    if gauges is None or len(gauges.time_s) < 2:
        return Absent(title=title, why="The replay sampled no gauges.")
    waiting = gauges.waiting.astype(np.float64)
    worst, mean = gauges.waiting.max(axis=1), mean_of(waiting, serving(gauges.state, waiting))
    joined = in_buckets(gauges.time_s)
    time = scale.of(gauges.time_s[joined.start])
    marks: Marks = window.marks()
    top = float(worst.max())
    levels = {"warning": run.limits.waiting_warning_count, "emergency": run.limits.waiting_emergency_count}
    for name, level in levels.items():
        # A level far above every queue would press the lines into the axis.
        if name == "warning" or top >= level / 2:
            marks.level(level, f"{name}: more than {level}", colour=BAD)
            top = max(top, level)
    return Chart(
        key="fullest-queue",
        title=title,
        note=joined.note("samples") or f"A sample every {duration(run.interval_s)}.",
        figure={
            "data": [
                line("longest queue", time, plain(in_buckets(worst).highest), SECOND, "longest queue: %{y:,.0f}"),
                line("mean of replicas", time, plain(in_buckets(mean).mean), FIRST, "mean: %{y:,.1f}", dash="dot"),
            ],
            "layout": marks.onto(
                layout(axis(scale.title), axis("requests", range=[0, 1.15 * top + 1]), hovermode="x unified")
            ),
        },
        height_px=280,
        wide=True,
    )


def gaps_chart(lanes: Mapping[str, RunRecord], slo: Slo) -> Chart | Absent:
    """Shares of the token gaps by length, lane by lane, with the promises on them."""
    title = "Time between tokens, every gap"
    counts = {lane: record.gaps.count for lane, record in lanes.items() if record.gaps.count.any()}
    if not counts:
        return Absent(title=title, why="No request has a second token.")
    total = np.sum([*counts.values()], axis=0)
    held = np.flatnonzero(total)
    first = int(held[0]) // _BINS_JOINED * _BINS_JOINED
    starts = np.arange(first, int(held[-1]) + 1, _BINS_JOINED)
    shares = {lane: 100 * np.add.reduceat(count, starts) / count.sum(dtype=np.int64) for lane, count in counts.items()}
    in_ms = plain(1e3 * next(iter(lanes.values())).gaps.lower_s[starts])
    top = max(float(share.max()) for share in shares.values())
    traces = []
    for (lane, share), colour in zip(shares.items(), (FIRST, SECOND), strict=False):
        hover = f"%{{y:.3~r}} % {lane}".rstrip() + " from %{x:.3~r} ms on"
        trace = line(f"gaps {lane}".rstrip(), in_ms, plain(share), colour, hover)
        traces.append({**trace, "line": {"color": colour, "width": 2, "shape": "hv"}})
    for target in slo.latency:
        if target.metric == "itl":
            at_ms = float(f"{1e3 * target.limit_s:.5g}")
            name = f"{promise_name(target.name)} {promise(target.limit_s, 's')}"
            traces.append(line(name, [at_ms, at_ms], [0.0, top], BAD, name, dash="dash"))
    quantiles = {lane: latencies(record)["itl"] for lane, record in lanes.items()}
    return Chart(
        key="gaps",
        title=title,
        note=f"{amount(int(total.sum(dtype=np.int64)))} gaps of the whole run, in bins 9 % wide.",
        figure={
            "data": traces,
            "layout": layout(axis("ms, log scale", type="log"), axis("share of gaps", ticksuffix=" %")),
        },
        table=Table(
            head=("ITL", *(lane.capitalize() or "Whole run" for lane in lanes)),
            rows=tuple((name, *(duration(of[name]) for of in quantiles.values())) for name in QUANTILES),
            numeric=frozenset(range(1, 1 + len(lanes))),
        ),
        height_px=280,
        wide=True,
    )
