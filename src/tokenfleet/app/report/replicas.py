"""How many replicas ran, minute by minute, and what was given up."""

import numpy as np
import numpy.typing as npt

from tokenfleet.app.report.charts import BAD, FIRST, SECOND, Chart, Figure, TimeAxis, axis, layout, line, plain
from tokenfleet.app.report.gauges import Window
from tokenfleet.app.report.sampling import in_buckets
from tokenfleet.app.simulate_run import Simulated


def replica_charts(run: Simulated, scale: TimeAxis, window: Window) -> tuple[Chart, ...]:
    """Replicas ready and asked for, and rungs of the ladder; none where nobody watches."""
    charts = []
    scaler = run.controller.scaler
    if scaler is not None and scaler.steps:
        time_s = np.array([step.time_s for step in scaler.steps])
        ready = np.array([step.ready_count for step in scaler.steps])
        asked = np.array([step.target_count for step in scaler.steps])
        time = scale.of(time_s[in_buckets(time_s).start])
        charts.append(
            _chart(
                ("replicas", "Replicas ready and asked for", "What lies between the lines is loading or draining."),
                [
                    _stairs("asked for", time, in_buckets(asked).highest, SECOND, "%{y:.0f} asked for", dash="dot"),
                    _stairs("ready", time, in_buckets(ready).highest, FIRST, "%{y:.0f} ready"),
                ],
                axis("replicas", rangemode="tozero"),
                (scale, window),
            )
        )
    if scaler is None:
        charts += _ready(run, (scale, window))
    steps = run.controller.ladder_steps
    if steps:
        # The first and the last moment frame the staircase.
        times = [0.0, *(step.time_s for step in steps), run.record.end_s]
        counts = np.array([0, *(step.rung_count for step in steps), steps[-1].rung_count])
        drawn = _stairs("rungs", scale.of(np.array(times)), counts, BAD, "%{y:.0f} rungs in force")
        note = "; ".join(dict.fromkeys(f"rung {step.rung_count}: {step.kind}" for step in steps if step.entered))
        charts.append(
            _chart(
                ("ladder", "Rungs of the ladder", note),
                [drawn],
                axis("rungs", rangemode="tozero", dtick=1),
                (scale, window),
            )
        )
    return tuple(charts)


def _ready(run: Simulated, over: tuple[TimeAxis, Window]) -> list[Chart]:
    """Replicas that take requests, where events change that."""
    turmoil = run.record.turmoil
    if turmoil is None or all(each.kind == "door" for each in turmoil.decisions):
        return []
    ready = set(range(run.record.replica_count)) - set(run.around.absent)
    times_s, counts = [0.0], [len(ready)]
    for decision in turmoil.decisions:
        if decision.kind in {"ready", "back"}:
            ready |= set(decision.replicas)
        elif decision.kind in {"drain", "stop", "fail"}:
            ready -= set(decision.replicas)
        times_s.append(decision.time_s)
        counts.append(len(ready))
    times = over[0].of(np.array([*times_s, run.record.end_s]))
    drawn = _stairs("ready", times, np.array([*counts, counts[-1]]), FIRST, "%{y:.0f} ready")
    note = f"{turmoil.refused_count:,} attempts were refused, {turmoil.lost_count:,} lost with a replica."
    return [
        _chart(
            ("replicas", "Replicas that take requests", note),
            [drawn],
            axis("replicas", rangemode="tozero", dtick=1),
            over,
        )
    ]


def _stairs(
    name: str,
    time: list[float | None],
    counts: npt.NDArray[np.generic],
    colour: str,
    hover: str,
    *,
    dash: str = "solid",
) -> Figure:
    """A count that holds until the next one."""
    shape = {"line": {"color": colour, "width": 2, "shape": "hv", "dash": dash}}
    return line(name, time, plain(counts), colour, hover) | shape


def _chart(words: tuple[str, str, str], lines: list[Figure], up: Figure, over: tuple[TimeAxis, Window]) -> Chart:
    key, title, note = words
    scale, window = over
    base = layout(axis(scale.title), up, hovermode="x unified")
    return Chart(
        key=key,
        title=title,
        note=note,
        figure={"data": lines, "layout": window.marks().onto(base)},
        height_px=280,
        wide=True,
    )
