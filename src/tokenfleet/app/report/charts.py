"""What a chart is on the page: a plotly figure as plain data, a sentence, and a table that says the same.

Figures are dictionaries, not plotly objects, because importing those takes longer than the rest of the report;
a test builds plotly objects from them. A colour is written ``var(--name)``: the page replaces it with the value
of its style sheet, so that one palette serves light, dark and paper.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.records import dataclass

Figure = dict[str, Any]
FIRST, SECOND, THIRD, FOURTH = "var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)"
FIRST_SOFT, SECOND_SOFT = "var(--c1-soft)", "var(--c2-soft)"
MUTED, BAD, INK, SURFACE, PEAK = "var(--muted)", "var(--bad)", "var(--ink)", "var(--surface)", "var(--peak)"
HEAT = [[0.0, "var(--heat0)"], [0.35, "var(--heat1)"], [0.7, "var(--heat2)"], [1.0, "var(--heat3)"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Text in rows; ``numeric`` columns (by index) stand right."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One figure with its title, the sentence under it, and the numbers for those who cannot see it."""

    key: str
    title: str
    note: str
    figure: Figure
    height_px: int = 320
    wide: bool = False
    table: Table | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A chart that cannot be drawn, and why."""

    title: str
    why: str


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Unit for a span of seconds, so that ticks are small round numbers."""

    unit_s: float
    name: str
    since: str = "the start of the trace"

    @classmethod
    def spanning(cls, span_s: float, since: str = "the start of the trace") -> "TimeAxis":
        """The unit in which ``span_s`` is at least about three."""
        for unit_s, name in ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes")):
            if span_s >= 3 * unit_s:
                return cls(unit_s, name, since)
        return cls(1.0, "seconds", since)

    @property
    def title(self) -> str:
        """Title of the axis."""
        return f"{self.name} since {self.since}"

    def of(self, time_s: npt.NDArray[np.floating]) -> list[float | None]:
        """Seconds in this unit, as a figure holds them."""
        return plain(time_s / self.unit_s)


def plain(values: Iterable[float]) -> list[float | None]:
    """Floats rounded to five digits that count, for a small file; what is not finite becomes a gap."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in map(float, values)]


def axis(title: str, **more: object) -> Figure:
    """An axis with a title, and plotly attributes on top."""
    return {"title": {"text": title}, **more}


def layout(x: Figure, y: Figure, **more: object) -> Figure:
    """A layout with two axes; the page adds fonts, colours and margins."""
    return {"xaxis": x, "yaxis": y, **more}


@dataclass(frozen=True, slots=True)
class Upward:
    """A value axis for durations: logarithmic where they differ much, and ticks that people count in."""

    figure: Figure
    log: bool

    @classmethod
    def over(cls, title: str, values: Sequence[float]) -> "Upward":
        """The axis that shows every one of ``values``, all above 0."""
        low, high = min(values), max(values)
        if high < 3 * low:
            return cls(axis(title, range=[0, 1.15 * high]), log=False)
        first, last = np.log10(low) - 0.1, np.log10(high) + 0.15
        ticks = _ticks(first, last, (1, 2, 5))
        if len(ticks) < 4:
            ticks = _ticks(first, last, (1, 1.5, 2, 3, 4, 5, 7))
        return cls(
            axis(
                f"{title}, log scale",
                type="log",
                range=[round(float(first), 4), round(float(last), 4)],
                tickvals=ticks,
                ticktext=[f"{tick:,g}" for tick in ticks],
            ),
            log=True,
        )


def _ticks(first: float, last: float, steps: tuple[float, ...]) -> list[float]:
    """Values ``step`` times a power of ten between ``10 ** first`` and ``10 ** last``."""
    decades = range(int(np.floor(first)), int(np.ceil(last)) + 1)
    places = [float(f"{step * 10.0**decade:.3g}") for decade in decades for step in steps]
    return [place for place in places if first <= np.log10(place) <= last]


def line(
    name: str,
    x: Sequence[float | None],
    y: Sequence[float | None],
    colour: str,
    hover: str,
    *,
    dash: str = "solid",
    **more: object,
) -> Figure:
    """A line over ``x``; ``hover`` is a plotly template that says the point in words."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "width": 2, "dash": dash},
        "hovertemplate": hover + "<extra></extra>",
        **more,
    }


@dataclass(slots=True)
class Marks:
    """Lines and bands that say what a chart is held against."""

    shapes: list[Figure] = field(default_factory=list)
    annotations: list[Figure] = field(default_factory=list)

    def level(self, value: float, text: str, *, log: bool = False, colour: str = BAD) -> None:
        """A horizontal line, with its text at the left end."""
        self.shapes.append(_straight("x domain", 0, 1, "y", value, value, colour))
        place = float(np.log10(value)) if log else value
        self.annotations.append(
            _label(text, colour, {"xref": "x domain", "x": 0, "xanchor": "left", "y": place, "yanchor": "bottom"})
        )

    def upright(self, value: float, text: str, *, colour: str = INK, row: int = 0) -> None:
        """A vertical line, with its text at the top; ``row`` moves the text down where lines stand close."""
        self.shapes.append(_straight("x", value, value, "y domain", 0, 1, colour))
        self.annotations.append(
            _label(
                text,
                colour,
                {
                    "x": value,
                    "xanchor": "left",
                    "yref": "y domain",
                    "y": 1,
                    "yanchor": "top",
                    "yshift": -16 * row,
                    "bgcolor": SURFACE,
                },
            )
        )

    def band(self, start: float, end: float, text: str) -> None:
        """A span of the x axis, with its text above it."""
        self.shapes.append(
            {
                "type": "rect",
                "xref": "x",
                "x0": start,
                "x1": end,
                "yref": "y domain",
                "y0": 0,
                "y1": 1,
                "fillcolor": PEAK,
                # An outline keeps a minute visible in a week.
                "line": {"color": PEAK, "width": 2},
                "layer": "below",
            }
        )
        self.annotations.append(
            _label(
                text,
                MUTED,
                {"x": (start + end) / 2, "xanchor": "auto", "yref": "y domain", "y": 1, "yanchor": "bottom"},
            )
        )

    def onto(self, base: Figure) -> Figure:
        """``base`` with these marks."""
        return {**base, "shapes": self.shapes, "annotations": self.annotations}


def _straight(xref: str, x0: float, x1: float, yref: str, y0: float, y1: float, colour: str) -> Figure:
    return {
        "type": "line",
        "xref": xref,
        "x0": x0,
        "x1": x1,
        "yref": yref,
        "y0": y0,
        "y1": y1,
        "line": {"color": colour, "width": 1.5, "dash": "dash"},
    }


def _label(text: str, colour: str, place: Mapping[str, Any]) -> Figure:
    return {"text": text, "showarrow": False, "font": {"color": colour, "size": 12}, **place}
