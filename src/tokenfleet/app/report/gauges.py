"""A replay over time: queues, KV memory, first tokens, with the judged stretch marked."""

from dataclasses import replace

from tokenfleet.app.intervals import mean_of, serving
from tokenfleet.app.report.charts import (
    FIRST,
    SECOND,
    Absent,
    Chart,
    Figure,
    Marks,
    TimeAxis,
    axis,
    layout,
    line,
    plain,
)
from tokenfleet.app.report.latency import HeldAgainst
from tokenfleet.app.report.sampling import in_buckets, over_time
from tokenfleet.app.report.words import duration
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord, Telemetry
from tokenfleet.domain.slo import Slo


@dataclass(frozen=True, slots=True)
class Window:
    """The stretch that is judged, in units of the time axis."""

    start: float
    end: float

    def marks(self) -> Marks:
        """The peak window as a band."""
        marks = Marks()
        marks.band(self.start, self.end, "judged here")
        return marks


def gauge_charts(telemetry: Telemetry | None, scale: TimeAxis, window: Window) -> tuple[Chart | Absent, ...]:
    """Requests waiting and running, and KV memory in use, over time."""
    if telemetry is None or len(telemetry.time_s) < 2:
        return (Absent(title="Queue, running requests and KV use", why="The replay sampled no gauges."),)
    joined = in_buckets(telemetry.time_s)
    time = scale.of(telemetry.time_s[joined.start])
    note = joined.note("samples") or f"A sample every {duration(float(telemetry.time_s[1] - telemetry.time_s[0]))}."
    waiting, running = (in_buckets(each.sum(axis=1)).highest for each in (telemetry.waiting, telemetry.running))
    fullest = in_buckets(100 * telemetry.kv_used_fraction.max(axis=1)).highest
    there = serving(telemetry.state, telemetry.kv_used_fraction)
    mean = in_buckets(100 * mean_of(telemetry.kv_used_fraction, there)).mean
    return (
        _over_time(
            Chart(
                key="queue",
                title="Requests waiting and running",
                note=f"All replicas together. {note}",
                figure={
                    "data": [
                        line("running", time, plain(running), FIRST, "%{y:,.0f} running"),
                        line("waiting", time, plain(waiting), SECOND, "%{y:,.0f} waiting"),
                    ]
                },
            ),
            axis("requests", rangemode="tozero"),
            scale,
            window,
        ),
        _over_time(
            Chart(
                key="kv",
                title="KV memory in use",
                note=f"At 100 % new requests wait and running ones may be pushed out. {note}",
                figure={
                    "data": [
                        line("fullest replica", time, plain(fullest), SECOND, "fullest replica: %{y:.1f} %"),
                        line("mean of replicas", time, plain(mean), FIRST, "mean of replicas: %{y:.1f} %", dash="dot"),
                    ]
                },
            ),
            axis("share of KV blocks", range=[0, 105], ticksuffix=" %"),
            scale,
            window,
        ),
    )


def _over_time(chart: Chart, up: Figure, scale: TimeAxis, window: Window) -> Chart:
    """The chart with its axes and the judged stretch, as wide as the page."""
    base = layout(axis(scale.title), up, hovermode="x unified")
    return replace(chart, figure={**chart.figure, "layout": window.marks().onto(base)}, height_px=280, wide=True)


def ttft_chart(
    slo: Slo, record: RunRecord, scale: TimeAxis, window: Window, *, has_lane: bool = False
) -> Chart | Absent:
    """TTFT by arrival of the requests that somebody waits for, with the promises on it."""
    of = ", of all but batch" if has_lane else ""
    title = "Time to first token as the day went"
    seen = over_time(record.arrival_s, record.ttft_s)
    known = [float(value) for series in (seen.median, seen.highest) for value in series if value > 0]
    if not known:
        return Absent(title=title, why="No request reached its first token.")
    marks = window.marks()
    held = HeldAgainst.promises(slo, "ttft", known, marks)
    time = scale.of(seen.start_s + seen.width_s / 2)
    return Chart(
        key="ttft-over-time",
        title=title,
        note=f"By arrival, in spans of {duration(seen.width_s)}: the median and the slowest request of each{of}.",
        figure={
            "data": [
                line("slowest", time, plain(seen.highest * held.factor), SECOND, f"slowest: %{{y:.3~r}} {held.unit}"),
                line(
                    "median",
                    time,
                    plain(seen.median * held.factor),
                    FIRST,
                    f"median: %{{y:.3~r}} {held.unit}",
                    dash="dot",
                ),
            ],
            "layout": marks.onto(
                layout(
                    axis(scale.title),
                    held.figure,
                    hovermode="x unified",
                )
            ),
        },
        height_px=280,
        wide=True,
    )
