"""Third section: what arrives."""

import html
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tokenfleet.app.report.charts import (
    FIRST,
    FIRST_SOFT,
    HEAT,
    SECOND,
    SECOND_SOFT,
    Absent,
    Chart,
    Figure,
    Marks,
    Table,
    TimeAxis,
    axis,
    layout,
    line,
    plain,
)
from tokenfleet.app.report.sampling import in_buckets
from tokenfleet.app.report.words import UNKNOWN, amount, clock, digits, duration, exact, percent
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Floats, LengthSummary, Quality, Workload

_TENANTS_SHOWN = 15
_CELLS = 48
"""Rows and columns of the heat map, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The third section."""

    facts: Table
    lengths: Table
    rows: Table
    detected: Table | None
    warnings: tuple[str, ...]
    tenants: Table | None
    charts: tuple[Chart | Absent, ...]


def describe(workload: Workload) -> Demand:
    """The demand that ``workload`` profiles."""
    return Demand(
        facts=_facts(workload),
        lengths=_length_table(workload),
        rows=_row_table(workload.quality),
        detected=_detected(workload.quality),
        warnings=tuple(workload.quality.warnings),
        tenants=_tenants(workload.tenant_request_counts),
        charts=(*_minutes(workload), _heat_map(workload), *_distributions(workload)),
    )


def _unsaid(quality: Quality) -> str:
    """Why nobody knows when the demand starts: a clock without a zone is one, but of no place on earth."""
    if quality.detected.get("zone", "").startswith("not written"):
        return "by a clock of an unknown zone: workload.zone names it"
    return "at a time the source does not say"


def _facts(workload: Workload) -> Table:
    sessions = "unknown: none named in the source" if workload.session_count is None else exact(workload.session_count)
    shareable = (
        "unknown: no prefixes in the source"
        if workload.shareable_input_fraction is None
        else percent(workload.shareable_input_fraction)
    )
    return Table(
        head=("Demand", ""),
        rows=(
            ("Requests", f"{exact(workload.request_count)} in {duration(workload.duration_s)}"),
            ("Starts", str(workload.extra.get("start_utc") or _unsaid(workload.quality))),
            ("Mean rate", f"{amount(workload.mean_rate_per_s)} requests/s"),
            ("Most requests in a minute", f"{amount(workload.peak_minute_rate_per_s)} requests/s"),
            ("Most tokens in a minute", f"from {clock(workload.peak_minute_start_s)} on"),
            ("Peak minute to mean, requests", f"{digits(workload.peak_to_mean_minute_requests)} times"),
            ("Peak minute to mean, tokens", f"{digits(workload.peak_to_mean_minute_tokens)} times"),
            ("Burstiness (CV of gaps; Poisson is 1)", _burstiness(workload.interarrival_cv)),
            ("Input tokens a prefix cache could serve", shareable),
            ("Sessions", sessions),
        ),
        numeric=frozenset({1}),
    )


def _burstiness(cv: float) -> str:
    return digits(cv) if np.isfinite(cv) else "unknown: fewer than two gaps"


def _length_table(workload: Workload) -> Table:
    def row(name: str, lengths: LengthSummary) -> tuple[str, ...]:
        quantiles = (lengths.mean, lengths.p50, lengths.p90, lengths.p95, lengths.p99, lengths.max)
        return (name, *(f"{value:,.0f}" for value in quantiles))

    parts = tuple(
        (name, *(f"{part[each]:,.0f}" for each in ("mean", "p50", "p90", "p95", "p99", "max")))
        for name, key in (("Cached, of the input", "cached_tokens"), ("Reasoning, of the output", "reasoning_tokens"))
        if "p50" in (part := workload.extra.get(key) or {})
    )
    return Table(
        head=("Tokens per request", "Mean", "p50", "p90", "p95", "p99", "Longest"),
        rows=(row("Input", workload.input_tokens), row("Output", workload.output_tokens), *parts),
        numeric=frozenset(range(1, 7)),
    )


def _row_table(quality: Quality) -> Table:
    dropped = tuple((f"Dropped: {why}", exact(count)) for why, count in quality.rows_dropped.items())
    return Table(
        head=("Data quality", "Rows"),
        rows=(("Read", exact(quality.rows_read)), ("Kept", exact(quality.rows_kept)), *dropped),
        numeric=frozenset({1}),
    )


def _detected(quality: Quality) -> Table | None:
    rows = tuple((name.replace("_", " "), str(value)) for name, value in quality.detected.items())
    return Table(head=("Taken from the source", ""), rows=rows) if rows else None


def _tenants(counts: dict[str, int]) -> Table | None:
    if not counts:
        return None
    total = sum(counts.values())
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows = [(name or UNKNOWN, exact(count), percent(count / total)) for name, count in ranked[:_TENANTS_SHOWN]]
    rest = ranked[_TENANTS_SHOWN:]
    if rest:
        count = sum(each for _, each in rest)
        rows.append((f"{exact(len(rest))} others", exact(count), percent(count / total)))
    return Table(head=("Tenant", "Requests", "Share"), rows=tuple(rows), numeric=frozenset({1, 2}))


def _minutes(workload: Workload) -> tuple[Chart | Absent, ...]:
    if len(workload.minute_requests) < 2:
        return (Absent(title="Demand per minute", why="The traffic lasts less than two minutes."),)
    scale = TimeAxis.spanning(60.0 * len(workload.minute_requests))
    peak_s = workload.peak_minute_start_s
    marks = Marks()
    marks.band(peak_s / scale.unit_s, (peak_s + 60.0) / scale.unit_s, "most tokens")
    requests = _per_minute("requests", workload.minute_requests, scale, FIRST, FIRST_SOFT)
    tokens = [
        _per_minute("input tokens", workload.minute_input_tokens, scale, FIRST, FIRST_SOFT),
        _per_minute("output tokens", workload.minute_output_tokens, scale, SECOND, SECOND_SOFT),
    ]
    note = in_buckets(workload.minute_requests).note("minutes") or "One point for each minute."
    across = axis(scale.title)
    return (
        Chart(
            key="requests-per-minute",
            title="Requests per minute",
            note=note,
            figure={
                "data": [requests],
                "layout": marks.onto(layout(across, axis("requests per minute", rangemode="tozero"))),
            },
            height_px=260,
            wide=True,
        ),
        Chart(
            key="tokens-per-minute",
            title="Tokens per minute",
            note=f"{note} The marked minute has the most input and output tokens together.",
            figure={
                "data": tokens,
                "layout": marks.onto(
                    layout(across, axis("tokens per minute", rangemode="tozero"), hovermode="x unified")
                ),
            },
            height_px=260,
            wide=True,
        ),
    )


def _per_minute(name: str, counts: npt.NDArray[np.int64], scale: TimeAxis, colour: str, soft: str) -> Figure:
    buckets = in_buckets(counts)
    return line(
        name,
        scale.of(60.0 * (buckets.start + buckets.width_count / 2)),
        plain(buckets.highest),
        colour,
        f"%{{y:,.0f}} {name} in the minute",
        fill="tozeroy",
        fillcolor=soft,
    )


def edge_places(edges: Floats, values: list[float]) -> list[float]:
    """Where ``values`` stand on an axis whose bin ``i`` is drawn from ``i - 0.5`` to ``i + 0.5``."""
    return [float(each) for each in np.interp(values, edges, np.arange(len(edges)) - 0.5)]


def _token_axis(title: str, edges: Floats) -> Figure:
    """An axis over bins, with a dozen of their edges as ticks."""
    every = max(1, -(-len(edges) // 9))
    places = list(range(0, len(edges), every))
    return axis(
        title,
        tickvals=[place - 0.5 for place in places],
        ticktext=[amount(round(float(edges[place]))) for place in places],
        showgrid=False,
        zeroline=False,
    )


def _bin_texts(edges: Floats) -> list[str]:
    return [f"{low:,.0f}–{high:,.0f}" for low, high in pairwise(edges)]


def _used(counts: Floats) -> slice:
    """The bins from the first to the last that holds a request."""
    held = np.flatnonzero(counts)
    return slice(int(held[0]), int(held[-1]) + 1) if len(held) else slice(0, 0)


def _coarser(counts: Floats, edges: Floats) -> tuple[Floats, Floats]:
    """``counts`` with neighbouring rows added up until a screen can show them, and the edges that remain."""
    every = -(-len(counts) // _CELLS)
    start = np.arange(0, len(counts), every)
    return np.add.reduceat(counts, start, axis=0), np.append(edges[start], edges[-1])


def _heat_map(workload: Workload) -> Chart | Absent:
    title = "Input and output lengths together"
    counts = np.asarray(workload.joint_counts, dtype=np.float64)
    total = counts.sum()
    if not total:
        return Absent(title=title, why="The profile holds no joint lengths.")
    rows, columns = _used(counts.sum(axis=1)), _used(counts.sum(axis=0))
    part, input_edges = _coarser(counts[rows, columns], workload.input_edges[rows.start : rows.stop + 1])
    part, output_edges = _coarser(part.T, workload.output_edges[columns.start : columns.stop + 1])
    inputs, outputs = _bin_texts(input_edges), _bin_texts(output_edges)
    with np.errstate(divide="ignore"):
        depth = np.log10(part)
    highest = int(np.ceil(np.log10(part.max())))
    ticks = list(range(highest + 1))
    return Chart(
        key="joint-lengths",
        title=title,
        note="Stronger colour: more requests, in powers of ten. Long prompts with long answers cost most.",
        figure={
            "data": [
                {
                    "type": "heatmap",
                    "z": [plain(row) for row in depth],
                    "x": list(range(len(inputs))),
                    "y": list(range(len(outputs))),
                    "colorscale": HEAT,
                    "zmin": 0,
                    "zmax": max(1, highest),
                    "text": [
                        [
                            f"{exact(int(count))} requests ({percent(count / total)})<br>"
                            f"{inputs[i]} input tokens<br>{outputs[j]} output tokens"
                            if count
                            else ""
                            for i, count in enumerate(row)
                        ]
                        for j, row in enumerate(part)
                    ],
                    "hovertemplate": "%{text}<extra></extra>",
                    "hoverongaps": False,
                    "colorbar": {
                        "title": {"text": "requests", "side": "right"},
                        "tickvals": ticks,
                        "ticktext": [amount(10**tick) for tick in ticks],
                        "thickness": 12,
                        "outlinewidth": 0,
                    },
                }
            ],
            "layout": layout(_token_axis("input tokens", input_edges), _token_axis("output tokens", output_edges)),
        },
        height_px=380,
        wide=True,
    )


def _distributions(workload: Workload) -> tuple[Chart | Absent, ...]:
    counts = np.asarray(workload.joint_counts, dtype=np.float64)
    return (
        _distribution("input", counts.sum(axis=1), workload.input_edges, workload.input_tokens, FIRST),
        _distribution("output", counts.sum(axis=0), workload.output_edges, workload.output_tokens, SECOND),
    )


def _distribution(name: str, counts: Floats, edges: Floats, summary: LengthSummary, colour: str) -> Chart | Absent:
    title = f"{name.capitalize()} tokens per request"
    total = counts.sum()
    if not total:
        return Absent(title=title, why="The profile holds no lengths.")
    used = _used(counts)
    shown, cut = counts[used], edges[used.start : used.stop + 1]
    marks = Marks()
    quantiles = {"p50": summary.p50, "p95": summary.p95, "p99": summary.p99}
    for row, (label, place) in enumerate(
        zip(quantiles, edge_places(cut, list(quantiles.values())), strict=True),
    ):
        marks.upright(place, f"{label} {quantiles[label]:,.0f}", row=row)
    texts = [
        f"{percent(count / total)} of requests<br>{span} {html.escape(name)} tokens"
        for count, span in zip(shown, _bin_texts(cut), strict=True)
    ]
    return Chart(
        key=f"length-{name}",
        title=title,
        note=f"Longest: {summary.max:,.0f} tokens. Bins widen with length.",
        figure={
            "data": [
                {
                    "type": "bar",
                    "name": f"{name} tokens",
                    "x": list(range(len(shown))),
                    "y": plain(100 * shown / total),
                    "marker": {"color": colour},
                    "text": texts,
                    "textposition": "none",
                    "hovertemplate": "%{text}<extra></extra>",
                }
            ],
            "layout": marks.onto(
                layout(_token_axis(f"{name} tokens", cut), axis("share of requests", ticksuffix=" %"), bargap=0.05)
            ),
        },
        height_px=280,
    )
