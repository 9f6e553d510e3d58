"""The shipped tables, read once as rows of text."""

import csv
from functools import cache
from io import StringIO
from pathlib import Path

Row = dict[str, str]


def data() -> Path:
    """The folder of shipped facts."""
    return Path(__file__).with_name("data")


@cache
def rows(table: str) -> tuple[Row, ...]:
    """All rows of ``table``.csv, every cell as text; an empty cell is an unknown fact."""
    text = (data() / f"{table}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(StringIO(text, newline="")))


def number(row: Row, column: str, *, scale: float = 1.0) -> float | None:
    """Cell times ``scale``; ``None`` where it is empty."""
    cell = row[column]
    return float(cell) * scale if cell else None
