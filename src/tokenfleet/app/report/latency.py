"""Latency against load, and latency against cost."""

import html
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

from tokenfleet.app.report.charts import (
    FIRST,
    INK,
    MUTED,
    SECOND,
    Absent,
    Chart,
    Figure,
    Marks,
    Table,
    Upward,
    axis,
    layout,
    line,
    plain,
)
from tokenfleet.app.report.decision import promise_name
from tokenfleet.app.report.words import amount, digits, duration, percent, plural, promise, usd
from tokenfleet.domain.outlook import CurvePoint, FrontierPoint
from tokenfleet.domain.plan import Plan
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.slo import Metric, Slo

Read = Callable[[CurvePoint], float | None]
Placed = tuple[FrontierPoint, float]

_TITLES: Final[dict[Metric, str]] = {
    "ttft": "Time to first token (TTFT)",
    "itl": "Time between tokens (ITL)",
    "tpot": "Time per output token of a request (TPOT)",
    "e2e": "Time to the last token (E2E)",
}
_TAIL_COLOURS: Final = (SECOND, INK)
_MEDIANS: Final[dict[str, Read]] = {"ttft": lambda p: p.ttft_p50_s, "itl": lambda p: p.itl_p50_s}
_TAILS: Final[dict[str, Read]] = {"ttft": lambda p: p.ttft_p99_s, "itl": lambda p: p.itl_p99_s}
_DEAREST: Final[dict[str, Callable[[FrontierPoint], float | None]]] = {
    "ttft": lambda point: point.ttft_p99_s,
    "itl": lambda point: point.itl_p99_s,
}


def _promised(slo: Slo, metric: str) -> list[str]:
    """Clauses about a latency, the farthest quantile first."""
    targets = [target for target in slo.latency if target.metric == metric]
    return [target.name for target in sorted(targets, key=lambda target: -target.quantile)]


def load_curves(plan: Plan) -> tuple[Chart | Absent, ...]:
    """TTFT and ITL of the chosen fleet over load, with the promises and the planned peak."""
    if len(plan.curve) < 2:
        return (
            Absent(title="Latency against load", why="The plan replayed fewer than two loads, so there is no curve."),
        )
    points = sorted(plan.curve, key=lambda point: point.rate_per_s)
    return tuple(
        _load_curve(plan, points, metric, _quantiles(plan.question.slo, metric))
        for metric in _TITLES
        if metric in _TAILS or _promised(plan.question.slo, metric)
    )


def _quantiles(slo: Slo, metric: Metric) -> dict[str, Read]:
    """What is drawn of a latency: the quantiles that are promised, for a promise is held against no other; else p99."""
    found: dict[str, Read] = {"median": _MEDIANS[metric]} if metric in _MEDIANS else {}
    for name in _promised(slo, metric):
        found[_short(name)] = partial(_of_clause, name)
    if not _promised(slo, metric) and metric in _TAILS:
        found["p99"] = _TAILS[metric]
    return found


def _short(clause: str) -> str:
    """``p95 of gold`` of ``ttft_p95 of gold``."""
    return clause.partition("_")[2]


def _of_clause(name: str, point: CurvePoint | FrontierPoint) -> float | None:
    return point.promised_s.get(name)


@dataclass(frozen=True, slots=True)
class HeldAgainst:
    """The axis of a latency, in a unit that suits, with the promises on it drawn into ``marks``."""

    factor: float
    """Axis units per second."""
    unit: str
    figure: Figure

    @classmethod
    def promises(cls, slo: Slo, metric: str, values_s: Sequence[float], marks: Marks) -> "HeldAgainst":
        """An axis that shows ``values_s`` (all above 0) and every promise on ``metric``."""
        targets = [target for target in slo.latency if target.metric == metric]
        everything = [*values_s, *(target.limit_s for target in targets)]
        factor, unit = (1e3, "ms") if max(everything) < 1.0 else (1.0, "s")
        up = Upward.over(f"{metric.upper()}, {unit}", [each * factor for each in everything])
        for target in targets:
            text = f"promise {promise_name(target.name)} {promise(target.limit_s, 's')}"
            marks.level(target.limit_s * factor, text, log=up.log)
        return cls(factor, unit, up.figure)


def _load_curve(plan: Plan, points: list[CurvePoint], metric: Metric, reads: dict[str, Read]) -> Chart | Absent:
    title = _TITLES[metric]
    known = [value for point in points for read in reads.values() if (value := read(point)) is not None and value > 0]
    if not known:
        return Absent(title=f"{title} against load", why="Too few requests at every load to say a quantile.")
    rates = plain(point.rate_per_s for point in points)
    marks = Marks()
    held = HeldAgainst.promises(plan.question.slo, metric, known, marks)
    peak_rate_per_s = next((point.rate_per_s / point.load_fraction for point in points if point.load_fraction > 0), 0.0)
    if peak_rate_per_s > 0:
        marks.upright(peak_rate_per_s, "planned peak")
    tails = (name for name in reads if name != "median")
    colours = {"median": FIRST, **dict(zip(tails, _TAIL_COLOURS, strict=False))}
    dashes = {"median": "dot"}
    traces = [
        _quantile_line(name, points, rates, read, held, colours.get(name, MUTED), dashes.get(name, "solid"))
        for name, read in reads.items()
    ]
    missing = sum(any(read(point) is None for read in reads.values()) for point in points)
    who = "All pools together, the spare of each" if plan.pools else "The chosen fleet with the spare"
    note = f"{who} gone, replayed at each load. Crosses: a promise is broken at that load."
    if missing:
        note += f" {plural(missing, 'load')} had too few requests to say."
    return Chart(
        key=f"load-{metric}",
        title=f"{title} against load",
        note=note,
        figure={
            "data": traces,
            "layout": marks.onto(
                layout(
                    axis("requests per second", rangemode="tozero"),
                    held.figure,
                )
            ),
        },
        table=_curve_table(points, reads),
    )


def _quantile_line(
    name: str,
    points: list[CurvePoint],
    rates: list[float | None],
    read: Read,
    held: HeldAgainst,
    colour: str,
    dash: str,
) -> Figure:
    values = [read(point) for point in points]
    return line(
        name,
        rates,
        [None if value is None or value <= 0 else float(f"{value * held.factor:.5g}") for value in values],
        colour,
        f"{name}: %{{y:.3~r}} {held.unit} at %{{x:.3~r}} requests/s",
        dash=dash,
        mode="lines+markers",
        marker={
            "size": 8,
            "color": colour,
            "symbol": ["circle" if point.kept else "x" for point in points],
        },
    )


def _curve_table(points: list[CurvePoint], reads: dict[str, Read]) -> Table:
    def shown(value: float | None) -> str:
        return "too few requests" if value is None else duration(value)

    rows = tuple(
        (
            f"{amount(point.rate_per_s)}/s",
            percent(point.load_fraction),
            *(shown(read(point)) for read in reads.values()),
            "kept" if point.kept else "broken",
        )
        for point in points
    )
    names = (name[:1].upper() + name[1:] if name == "median" else name for name in reads)
    return Table(
        head=("Requests", "Of the planned peak", *names, "All promises"),
        rows=rows,
        numeric=frozenset(range(2 + len(reads))),
    )


def frontier_charts(plan: Plan) -> tuple[Chart | Absent, ...]:
    """Price against each latency, a point for each fleet that was judged in the peak window with the spare gone."""
    if len(plan.frontier) < 2:
        return (Absent(title="Cost against latency", why="Fewer than two fleets were judged, so nothing compares."),)
    return tuple(_frontier(plan, metric, *drawn) for metric, drawn in _drawn(plan.question.slo))


def _drawn(slo: Slo) -> Iterator[tuple[Metric, tuple[str, Callable[[FrontierPoint], float | None]]]]:
    """The farthest quantile promised of each latency, or p99 of those that are always told."""
    for metric in _TITLES:
        names = _promised(slo, metric)
        if names:
            yield metric, (_short(names[0]), partial(_of_clause, names[0]))
        elif metric in _DEAREST:
            yield metric, ("p99", _DEAREST[metric])


def best_of(places: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The places that no other beats in both price and latency, cheapest first."""
    best: list[tuple[float, float]] = []
    for price, latency in sorted(places):
        if not best or latency < best[-1][1]:
            best.append((price, latency))
    return best


def _frontier(
    plan: Plan, metric: Metric, quantile: str, read: Callable[[FrontierPoint], float | None]
) -> Chart | Absent:
    title = f"Cost against {metric.upper()} {quantile}"
    placed = [(point, value) for point in plan.frontier if (value := read(point)) is not None and value > 0]
    if len(placed) < 2:
        return Absent(title=title, why="Fewer than two fleets had enough requests to predict it.")
    marks = Marks()
    held = HeldAgainst.promises(plan.question.slo, metric, [value for _, value in placed], marks)
    edge = best_of([(point.price_usd_per_hour, value) for point, value in placed])
    # The first that matches: fleets that differ only in an engine setting share name and price.
    chosen = [pair for pair in placed if _is_chosen(plan, pair[0])][:1]
    others = [pair for pair in placed if pair not in chosen]
    data: list[Figure] = [
        _staircase(edge, held.factor),
        _dots("other fleets", others, held, FIRST, "circle", 9),
        _dots("chosen", chosen, held, SECOND, "star", 16),
    ]
    return Chart(
        key=f"frontier-{metric}",
        title=title,
        note=(
            "Each point is a fleet in the peak window with the spare gone. Cheap is left, fast is low; "
            "the dotted line joins the best at each price."
        ),
        figure={
            "data": [trace for trace in data if trace["x"]],
            "layout": marks.onto(
                layout(
                    _price_axis([point.price_usd_per_hour for point, _ in placed]),
                    held.figure,
                )
            ),
        },
        table=_frontier_table(placed, chosen, f"{metric.upper()} {quantile}"),
    )


def _price_axis(prices: list[float]) -> Figure:
    """Prices that differ much get a log scale, so that one dear fleet does not push the others together."""
    title = "US dollars per hour"
    if max(prices) < 3 * min(prices):
        return axis(title, tickprefix="$")
    return {**Upward.over(title, prices).figure, "tickprefix": "$"}


def _frontier_table(placed: list[Placed], chosen: list[Placed], latency: str) -> Table:
    rows = tuple(
        (
            _fleet(point),
            f"{usd(point.price_usd_per_hour)}/h",
            duration(value),
            "chosen" if (point, value) in chosen else "",
        )
        for point, value in sorted(placed, key=lambda pair: pair[0].price_usd_per_hour)
    )
    return Table(head=("Fleet", "Price", latency, ""), rows=rows, numeric=frozenset({1, 2}))


def _fleet(point: FrontierPoint) -> str:
    if point.pools:
        return " and ".join(
            f"{pool.name}: {pool.replica_count} of {pool.gpu} (TP{pool.tensor_parallel}, {pool.precision})"
            for pool in point.pools
        )
    return f"{plural(point.replica_count, 'replica')} of {point.gpu} (TP{point.tensor_parallel}, {point.precision})"


def _is_chosen(plan: Plan, point: FrontierPoint) -> bool:
    if plan.pools:
        chosen = [(pool.name, sum(each.replica_count for each in pool.plan.fleets)) for pool in plan.pools]
        return [(pool.name, pool.replica_count) for pool in point.pools] == chosen
    if plan.chosen is None:
        return False
    deployment = plan.chosen.replica.deployment
    return (point.gpu, point.precision, point.tensor_parallel, point.replica_count) == (
        deployment.gpu,
        deployment.precision,
        deployment.layout.tensor_parallel,
        plan.chosen.replica_count,
    )


def _staircase(edge: list[tuple[float, float]], factor: float) -> Figure:
    """The best latency at each price: flat until the next fleet that is faster."""
    steps = [edge[0]]
    for before, after in pairwise(edge):
        steps += [(after[0], before[1]), after]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "best at each price",
        "x": plain(price for price, _ in steps),
        "y": plain(latency * factor for _, latency in steps),
        "line": {"color": MUTED, "width": 1.5, "dash": "dot"},
        "hoverinfo": "skip",
    }


def _dots(
    name: str,
    placed: list[Placed],
    held: HeldAgainst,
    colour: str,
    symbol: str,
    size_px: int,
) -> Figure:
    texts = [
        f"<b>{html.escape(_fleet(point))}</b><br>"
        f"{usd(point.price_usd_per_hour)}/h, {digits(value * held.factor)} {held.unit}"
        for point, value in placed
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": plain(point.price_usd_per_hour for point, _ in placed),
        "y": plain(value * held.factor for _, value in placed),
        "text": texts,
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": colour, "size": size_px, "symbol": symbol, "line": {"color": INK, "width": 1}},
    }
