"""What the replicas did over time: how busy they look, what that time waits for, tokens, waits and money."""

import numpy as np
import numpy.typing as npt

from tokenfleet.app.intervals import unit_price
from tokenfleet.app.report.charts import (
    FIRST,
    SECOND,
    THIRD,
    Chart,
    Figure,
    TimeAxis,
    axis,
    layout,
    line,
    plain,
)
from tokenfleet.app.report.gauges import Window
from tokenfleet.app.report.sampling import in_buckets
from tokenfleet.app.report.words import duration
from tokenfleet.app.simulate_run import Simulated
from tokenfleet.domain.trace import Floats


def work_charts(run: Simulated, scale: TimeAxis, window: Window) -> tuple[Chart, ...]:
    """Busy share beside what it waits for; tokens per second; waits in the queue; the price of tokens where known."""
    gauges = run.record.telemetry
    if gauges is None or len(gauges.time_s) < 2:
        return ()
    joined = in_buckets(gauges.time_s)
    time = scale.of(gauges.time_s[joined.start])
    over = (scale, window, f"In spans of {duration(joined.width_count * run.interval_s)}.")
    charts = [_busy(run, time, over), _tokens(run, time, over), _waits(run, gauges.time_s, time, over)]
    usd, tokens = run.fleet_intervals.usd, run.fleet_intervals.output_tokens
    if usd is not None and tokens.any():
        # Spans have equal numbers of intervals, so means stand for sums.
        price = unit_price(in_buckets(usd).mean, in_buckets(tokens).mean)
        charts.append(_price(price, time, over))
    return tuple(charts)


Over = tuple[TimeAxis, Window, str]
Points = list[float | None]


def _busy(run: Simulated, time: Points, over: Over) -> Chart:
    done = run.intervals

    def share(values: Floats) -> list[float | None]:
        return plain(100 * in_buckets(done.of_fleet(values)).mean)

    return _chart(
        (
            "busy",
            "Busy, and what for",
            "A dashboard shows the upper line and calls it the use of the GPUs. The others "
            "are the parts of it that wait for memory and for arithmetic. Of the time in which replicas served.",
        ),
        [
            line("busy", time, share(done.busy_fraction), THIRD, "busy: %{y:.1f} %"),
            line("memory bandwidth", time, share(done.bound_fraction["bandwidth"]), SECOND, "bandwidth: %{y:.1f} %"),
            line("compute", time, share(done.bound_fraction["compute"]), FIRST, "compute: %{y:.1f} %"),
        ],
        axis("share of time", range=[0, 105], ticksuffix=" %"),
        over,
    )


def _tokens(run: Simulated, time: Points, over: Over) -> Chart:
    done = run.intervals

    def rate(values: npt.NDArray[np.int64] | Floats) -> list[float | None]:
        return plain(in_buckets(values.sum(axis=1) / done.interval_s).mean)

    return _chart(
        ("tokens", "Tokens computed", "All replicas together; prompts that are computed again count again."),
        [
            line("prefill", time, rate(done.prefill_tokens), FIRST, "%{y:.3~s}/s prefill"),
            line("decode", time, rate(done.decode_tokens), SECOND, "%{y:.3~s}/s decode"),
        ],
        axis("tokens per second", rangemode="tozero"),
        over,
    )


def _waits(run: Simulated, samples_s: Floats, time: Points, over: Over) -> Chart:
    waits = run.waits
    sample = np.searchsorted(samples_s, waits.time_s)
    priority = np.zeros(len(sample), dtype=np.int32) if waits.priority is None else waits.priority
    lines = []
    for colour, level in zip((FIRST, SECOND, THIRD), np.unique(priority), strict=False):
        longest_s = np.zeros(len(samples_s))
        np.maximum.at(longest_s, sample[priority == level], waits.longest_s[priority == level])
        name = "longest wait" if waits.priority is None else f"priority {level}"
        lines.append(line(name, time, plain(in_buckets(longest_s).highest), colour, f"{name}: %{{y:.3~r}} s"))
    return _chart(
        ("waits", "Longest wait in a queue", "Of requests that were admitted, by the moment at which they were."),
        lines,
        axis("seconds", rangemode="tozero"),
        over,
    )


def _price(price: Floats, time: Points, over: Over) -> Chart:
    return _chart(
        (
            "price",
            "Price of a million output tokens",
            "What the GPUs held cost over the tokens that left, if any.",
        ),
        [line("price", time, plain(price), FIRST, "$%{y:.3~r}")],
        axis("dollars per million", rangemode="tozero", tickprefix="$"),
        over,
    )


def _chart(words: tuple[str, str, str], lines: list[Figure], up: Figure, over: Over) -> Chart:
    key, title, note = words
    scale, window, spans = over
    base = layout(axis(scale.title), up, hovermode="x unified")
    return Chart(
        key=key,
        title=title,
        note=f"{note} {spans}",
        figure={"data": lines, "layout": window.marks().onto(base)},
        height_px=280,
        wide=True,
    )
