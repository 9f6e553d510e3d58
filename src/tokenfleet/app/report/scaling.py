"""Ways to scale on one page: what each costs and breaks, and how many replicas each asks for over the traffic."""

from dataclasses import replace

import numpy as np

from tokenfleet.app.report.charts import (
    BAD,
    FIRST,
    FOURTH,
    INK,
    MUTED,
    SECOND,
    THIRD,
    Chart,
    Figure,
    Table,
    TimeAxis,
    layout,
    line,
    plain,
)
from tokenfleet.app.report.charts import axis as axis_of
from tokenfleet.app.report.sampling import in_buckets
from tokenfleet.app.report.words import exact
from tokenfleet.domain.records import dataclass
from tokenfleet.planner.scaling import Scaled, ScalingComparison

_COLOURS = (FIRST, SECOND, THIRD, FOURTH, BAD, MUTED)
_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPage:
    """The ways to scale one fleet, or one pool."""

    title: str
    said: tuple[str, ...]
    """The best way of a pool, and what follows from it; of one fleet it stands at the top."""
    table: Table
    charts: tuple[Chart, ...]


def scaling_page(found: ScalingComparison, pool: str = "", said: tuple[str, ...] = ()) -> ScalingPage:
    """What the page of a comparison says of one fleet, or of a ``pool``."""
    rows = tuple(
        (
            way.name,
            f"{way.gpu_hours:.3g}",
            exact(way.minutes.broken_count),
            exact(way.minutes.longest_broken_count),
            exact(way.most_count),
            exact(way.change_count),
        )
        for way in found.ways
    )
    head = ("Way", "GPU-hours", "Broken minutes", "In a row", "Most replicas", "Changes")
    return ScalingPage(
        title=pool or "Way by way",
        said=said,
        table=Table(head=head, rows=rows, numeric=frozenset(range(1, len(head)))),
        charts=tuple(
            replace(each, key=f"{pool}{each.key}") for each in (_against(found), _demand(found), _counts(found))
        ),
    )


def _against(found: ScalingComparison) -> Chart:
    """Each way as a point: further left is cheaper, further down breaks less."""

    def point(way: Scaled) -> Figure:
        best = way is found.best
        return {
            "type": "scatter",
            "mode": "markers+text",
            "name": way.name,
            "x": plain([way.gpu_hours]),
            "y": plain([way.minutes.broken_count]),
            "text": [way.name],
            "textposition": "top center",
            "marker": {"color": FIRST if best else MUTED, "size": 14 if best else 9},
            "hovertemplate": f"{len(way.steps)} ticks, {way.change_count} changes: %{{x:.3g}} GPU-hours, "
            "%{y:,.0f} broken minutes<extra></extra>",
            "showlegend": False,
        }

    base = layout(axis_of("GPU-hours", rangemode="tozero"), axis_of("broken minutes", rangemode="tozero"))
    return Chart(
        key="ways",
        title="What each way costs, and what it breaks",
        note=f"Further left is cheaper, further down breaks less. The best is {found.best.name}.",
        figure={"data": [point(way) for way in found.ways], "layout": base},
        height_px=420,
        wide=True,
    )


def _demand(found: ScalingComparison) -> Chart:
    """Arrivals, and what the replicas of the best way carry."""
    scale, rates = _rates(found)
    joined = in_buckets(np.arange(len(rates)) * _MINUTE_S)
    time = scale.of(np.arange(len(rates))[joined.start] * _MINUTE_S)
    drawn = [line("arrivals", time, plain(in_buckets(rates).highest), INK, "%{y:.3g} requests/s arrive")]
    drawn += [_carried(way, found.capacity_per_s, scale) for way in (found.best,) if way.steps]
    return Chart(
        key="demand",
        title="Demand, and what ready replicas carry",
        note=f"By {found.best.name}; a replica carries {found.capacity_per_s:.3g} requests/s.",
        figure={
            "data": drawn,
            "layout": layout(axis_of(scale.title), axis_of("requests/s", rangemode="tozero"), hovermode="x unified"),
        },
        height_px=320,
        wide=True,
    )


def _carried(way: Scaled, capacity_per_s: float, scale: TimeAxis) -> Figure:
    ready = np.array([step.ready_count for step in way.steps]) * capacity_per_s
    time = np.array([step.time_s for step in way.steps])
    joined = in_buckets(time)
    drawn = line("carried", scale.of(time[joined.start]), plain(in_buckets(ready).highest), FIRST, "%{y:.3g} carried")
    return drawn | {"line": {"color": FIRST, "width": 2, "shape": "hv"}}


def _counts(found: ScalingComparison) -> Chart:
    """Replicas asked for, way by way."""
    scale, _ = _rates(found)
    drawn = []
    for index, way in enumerate(way for way in found.ways if way.steps):
        time = np.array([step.time_s for step in way.steps])
        asked = np.array([step.target_count for step in way.steps])
        joined = in_buckets(time)
        colour = _COLOURS[index % len(_COLOURS)]
        dash = "solid" if index < len(_COLOURS) else "dot"
        shown = line(
            way.name,
            scale.of(time[joined.start]),
            plain(in_buckets(asked).highest),
            colour,
            f"{way.name}: %{{y:.0f}}",
        )
        drawn.append(shown | {"line": {"color": colour, "width": 2, "shape": "hv", "dash": dash}})
    return Chart(
        key="counts",
        title="Replicas asked for",
        note="The highest count within each point. A click on a name hides it.",
        figure={
            "data": drawn,
            "layout": layout(axis_of(scale.title), axis_of("replicas", rangemode="tozero"), hovermode="x unified"),
        },
        height_px=360,
        wide=True,
    )


def _rates(found: ScalingComparison) -> tuple[TimeAxis, np.ndarray]:
    """The axis of time, and arrivals per second in each minute."""
    end_s = max(way.record.end_s for way in found.ways)
    counts = np.bincount((found.arrival_s // _MINUTE_S).astype(np.int64))
    return TimeAxis.spanning(end_s), counts / _MINUTE_S
