"""Cells side by side, and lines of them folded to the room that there is: nothing is lost, columns stay columns.

What stands two or more spaces apart in a line are cells. A wide character of Chinese, Japanese or Korean fills two
columns of a terminal, and counts as two everywhere here.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Final

_CELL: Final = re.compile(r"\S+(?: \S+)*")
_GAP: Final = "  "
_FILL: Final = "\0"
"""Stands behind a wide character while lines are folded, so that a line is as long as it is wide."""
_TIE: Final = "\1"
"""Stands between a number and its unit while lines are folded: nothing is broken there."""
_UNIT: Final = re.compile(r"(?<=\d) (?=(?:ms|s|min|h|GiB|GB|k|M|G|%)(?![A-Za-z]))")


def shown_width(text: str) -> int:
    """Columns that ``text`` fills in a terminal."""
    return len(_spread(text))


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of words as lines, each cell on the left of its column."""
    return [_GAP.join(cells).rstrip() for cells in _padded(rows, figures=False)]


def figures(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of figures as lines, their heads first: the first column left, the others right."""
    return [_GAP.join(cells) for cells in _padded(rows, figures=True)]


def folded(lines: Sequence[str], room: int) -> list[str]:
    """The same lines, none of them wider than ``room``.

    Figures below their heads go on in a second table, with the names of the rows again. In any other line cells that
    have no room go on in the next line, and words that have none wrap within their column.
    """
    told = []
    for _, group in groupby((_UNIT.sub(_TIE, _spread(line)) for line in lines), key=len):
        alike = list(group)
        told += _as_tables(alike, room) or [each for line in alike for each in _folded(line, room)]
    return [line.replace(_FILL, "").replace(_TIE, " ").rstrip() for line in told]


def _spread(text: str) -> str:
    if text.isascii():
        return text
    from unicodedata import east_asian_width

    return "".join(each + _FILL if east_asian_width(each) in "WF" else each for each in text)


def _padded(rows: Sequence[Sequence[str]], *, figures: bool) -> Iterator[list[str]]:
    sizes = [max(map(shown_width, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        blanks = [" " * (size - shown_width(cell)) for cell, size in zip(row, sizes, strict=True)]
        pairs = zip(row, blanks, strict=True)
        yield [blank + cell if figures and place else cell + blank for place, (cell, blank) in enumerate(pairs)]


def _as_tables(lines: Sequence[str], room: int) -> list[str]:
    """Too wide a table of figures as tables below each other; none where the lines, all of one length, are not one."""
    if len(lines) == 1 or len(lines[0]) <= room:
        return []
    filled = "".join(" " if all(each == " " for each in place) else "x" for place in zip(*lines, strict=True))
    ends = [cell.end() for cell in _CELL.finditer(filled)]
    widest = max((end - start for start, end in pairwise(ends)), default=room)
    if ends[0] + widest > room:
        return []
    tables, first = [], 0
    while first + 1 < len(ends):
        names, start = ends[0], ends[first]
        last = max(place for place, end in enumerate(ends) if names + end - start <= room)
        tables += [line[:names] + line[start : ends[last]] for line in lines]
        first = last
    return tables


def _folded(line: str, room: int) -> list[str]:
    """One line; what goes on below stands two columns to the right of its beginning."""
    if len(line) <= room:
        return [line]
    done: list[str] = []
    now, indent = "", len(line) - len(line.lstrip(" "))
    for cell in _CELL.finditer(line):
        before = f"{now}{_GAP}" if done else now.ljust(cell.start())
        if len(before) + len(cell[0]) <= room:
            now = before + cell[0]
            continue
        hanging = " " * (indent + len(_GAP))
        if not done and cell.start() <= room // 3:
            hanging = " " * len(before) if now else hanging
        else:
            done.append(now)
            before = hanging
        *more, now = textwrap.wrap(
            cell[0], room, initial_indent=before, subsequent_indent=hanging, break_on_hyphens=False
        )
        done += more
    return [*done, now]
