"""A simulation of several pools as one page: where the time goes, then the replay over time."""

import numpy as np

from tokenfleet.app.ending_words import ending_counts
from tokenfleet.app.lane_words import lane_lines
from tokenfleet.app.pools_found import found_lines
from tokenfleet.app.pools_run import SimulatedPools, stage_words
from tokenfleet.app.pools_words import door_lines, time_lines
from tokenfleet.app.report.charts import FIRST, SECOND, Chart, Table, TimeAxis, axis, layout, line, plain
from tokenfleet.app.report.gauges import Window, ttft_chart
from tokenfleet.app.report.sampling import in_buckets
from tokenfleet.app.report.timeline import (
    Finding,
    TimelinePage,
    gaps_chart,
    in_lanes,
    latency_table,
    promises_table,
    rates_chart,
)
from tokenfleet.app.report.words import clock, duration, exact, percent
from tokenfleet.app.simulate_words import fleet_name, tenant_lines
from tokenfleet.app.summary import data
from tokenfleet.domain.run import Status
from tokenfleet.domain.stages import PoolRun


def pools_page(run: SimulatedPools) -> TimelinePage:
    """What the page of a simulation of several pools says."""
    record = run.record
    scale = TimeAxis.spanning(record.end_s - float(record.arrival_s[0]))
    window = Window(run.peak_window_s[0] / scale.unit_s, run.peak_window_s[1] / scale.unit_s)
    start_s, end_s = run.peak_window_s
    lanes = in_lanes(record, run.waited_for, run.batch)
    return TimelinePage(
        lead=f"{exact(len(record.arrival_s))} requests, each by {stage_words(run.pools)}, as far as it takes part. "
        f"The peak is {clock(start_s)} to {clock(end_s)} after the start of the traffic.",
        finding=_finding(run),
        whole=(*time_lines(run), *door_lines(run), *tenant_lines(run.fairness), *lane_lines(run.record, run.batch)),
        promises=promises_table(run.peak, run.whole),
        latency=latency_table(lanes),
        totals=_totals(run),
        replicas=_pools(run),
        charts=(
            rates_chart(record, scale, window),
            *(_gauges(name, pool, scale, window) for name, pool in run.staged.pools.items()),
            ttft_chart(run.slo, run.waited_for, scale, window, has_lane=run.batch is not None),
            gaps_chart(lanes, run.slo),
        ),
        notes=(*data(run.workload.quality), *run.assumptions),
        parts="Pool by pool",
    )


def _finding(run: SimulatedPools) -> Finding:
    kept = all(result.kept for result in run.peak)
    first, *rest = found_lines(run.found_at_peak, run.peak, run.limits)
    verdict = "the promise holds" if kept else "the promise breaks"
    return Finding(verdict=f"At the peak {verdict}. {first}", mood="good" if kept else "bad", lines=tuple(rest))


def _totals(run: SimulatedPools) -> Table:
    finished = run.record.status == Status.FINISHED
    rows = (
        ("Requests finished", exact(int(finished.sum()))),
        *((f"Requests {words}", exact(count)) for words, count in ending_counts(run.record.status).items()),
        ("GPUs of all pools", exact(run.pools.gpu_count)),
        ("Preemptions", exact(int(run.record.preemption_count.sum(dtype=np.int64)))),
    )
    return Table(head=("Whole run", ""), rows=rows, numeric=frozenset({1}))


def _pools(run: SimulatedPools) -> Table:
    def row(index: int) -> tuple[str, ...]:
        each = run.rows[index]
        return (
            each.named.name,
            "; ".join(fleet_name(group) for group in each.named.fleet.groups),
            exact(each.call_count),
            duration(each.stay_p95_s),
            "unknown" if each.slower_p95_factor is None else f"{each.slower_p95_factor:,.1f} x",
            percent(each.busy_fraction),
            exact(each.waiting_peak_count),
            "none kept" if each.kv_peak_fraction is None else percent(each.kv_peak_fraction),
        )

    head = ("Pool", "Fleet", "Calls", "p95 of a call", "Against alone", "Busy", "Waiting at most", "KV memory at most")
    return Table(
        head=head,
        rows=tuple(row(index) for index in range(len(run.rows))),
        numeric=frozenset(range(2, len(head))),
        caption="A call lasts from its arrival at the pool to its end. Peaks are of the sampled moments.",
    )


def _gauges(name: str, pool: PoolRun, scale: TimeAxis, window: Window) -> Chart:
    gauges = pool.record.telemetry
    if gauges is None:
        raise ValueError("the run sampled no gauges")
    joined = in_buckets(gauges.time_s)
    time = scale.of(gauges.time_s[joined.start])
    waiting, running = (in_buckets(each.sum(axis=1)).highest for each in (gauges.waiting, gauges.running))
    return Chart(
        key=f"pool-{name}",
        title=f"{name}: calls waiting and running",
        note=f"All replicas of {name} together.",
        figure={
            "data": [
                line("running", time, plain(running), FIRST, "%{y:,.0f} running"),
                line("waiting", time, plain(waiting), SECOND, "%{y:,.0f} waiting"),
            ],
            "layout": window.marks().onto(
                layout(axis(scale.title), axis("calls", rangemode="tozero"), hovermode="x unified")
            ),
        },
        height_px=240,
        wide=True,
    )
