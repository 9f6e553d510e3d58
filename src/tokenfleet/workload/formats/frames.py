"""Tables as columns: the fast way while all rows are whole, row by row where some are not.

A row that is no record is left out with its line, and costs nothing but itself: neither the file nor its neighbours.
"""

import codecs
import csv
import gzip
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass
from tokenfleet.workload.formats.source import Source, header_cells, leaf_values

if TYPE_CHECKING:
    import polars as pl

Kind = Literal["parquet", "csv", "jsonl", "json"]

_LONGEST_CELL = 2**24
_BLANK = re.compile(rb"(?:[ \t]*\r?\n){2,}")
_SHOWN: Mapping[str, str] = {"csv": "CSV", "jsonl": "JSON lines", "json": "JSON", "parquet": "Parquet"}


@dataclass(frozen=True, slots=True)
class Loaded:
    """Columns of a file or of a stretch of it; fields inside records go by dotted names."""

    frame: "pl.DataFrame"
    lines: Sequence[int]
    """Line of each row, from 1; of Parquet its row, in a list its place."""
    broken: tuple[int, ...] = ()
    """Lines that hold no record."""


def load(source: Source, columns: Sequence[str] | None = None) -> Loaded:
    """All rows of a table; text cells stay text, so that a bad cell is a counted null and no crash.

    Args:
        source: The file.
        columns: Which columns; all that are found when not said. One that is nowhere comes out empty.

    Raises:
        BadInput: a file of which nothing can be read.
    """
    import polars as pl

    if source.kind == "parquet":
        try:
            frame = _flat(pl.read_parquet(source.path, columns=_stored(source.path, columns)))
        except (pl.exceptions.PolarsError, OSError) as error:
            raise unreadable(source.where, "parquet") from error
        return Loaded(_chosen(frame, columns), range(1, frame.height + 1))
    if source.kind == "json":
        return _of_records(list(enumerate(_entries(source), start=1)), columns)
    return load_text(source.content(), source.kind, source.separator, columns, where=source.where)


def load_rows(path: str, start: int, stop: int, columns: Sequence[str]) -> Loaded:
    """Rows of a Parquet file from ``start`` up to ``stop``.

    Raises:
        BadInput: the stretch cannot be read.
    """
    import polars as pl

    try:
        wanted = pl.scan_parquet(path).select(_stored(Path(path), columns))
        frame = wanted.slice(start, stop - start).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise unreadable(path, "parquet") from error
    return Loaded(_chosen(_flat(frame), columns), range(start + 1, start + frame.height + 1))


def load_text(
    data: bytes, kind: str, separator: str, columns: Sequence[str] | None, *, where: str, counts: Sequence[str] = ()
) -> Loaded:
    """CSV, its header first, or JSON lines.

    Args:
        data: The text.
        kind: ``csv`` or ``jsonl``.
        separator: Between the cells of a CSV row.
        columns: Which columns; all that are found when not said.
        where: The file, for errors.
        counts: Columns of CSV that hold whole numbers as a rule: read as such where every cell is one.

    Raises:
        BadInput: text of which nothing can be read.
    """
    body = data.lstrip(b"\r\n")
    header = 1 if kind == "csv" else 0
    frame = _fast(body, kind, separator, counts) if counts else None
    if frame is None:
        frame = _fast(body, kind, separator)
    if frame is not None and not _is_whole(frame, body, header):
        body = _BLANK.sub(b"\n", body)
        frame = _fast(body, kind, separator)
    if frame is not None and _is_whole(frame, body, header):
        plain = len(body) == len(data)
        lines = range(1 + header, 1 + header + frame.height) if plain else _filled(data)[header:]
        return Loaded(_chosen(frame, columns), lines)
    text = data.decode("utf-8", errors="replace")
    found = _careful_csv(text, separator, columns) if kind == "csv" else _careful_lines(text, columns)
    if not found.frame.height and not found.broken and text.strip() and kind == "jsonl":
        raise unreadable(where, kind)
    return found


def _fast(data: bytes, kind: str, separator: str, counts: Sequence[str] = ()) -> "pl.DataFrame | None":
    """All rows at once; ``None`` when one of them is no record, or a cell of ``counts`` no whole number."""
    import polars as pl

    try:
        return _fast_csv(data, separator, counts) if kind == "csv" else _flat(_fast_lines(data))
    except (pl.exceptions.PolarsError, UnicodeDecodeError):
        return None


def _is_whole(frame: "pl.DataFrame", data: bytes, header: int) -> bool:
    """Whether each line after the header is a row: none is blank, broken inside quotes, or swallowed by an open quote.

    Without quotes there is no way to lose a line, and a blank one is a row of nulls: both are quickly seen as a rule.
    """
    if header and b'"' not in data and min(frame.null_count().row(0), default=0) == 0:
        return True
    if header and (b"\n\n" in data or b"\n\r\n" in data):
        return False
    return frame.height == data.count(b"\n") + (not data.endswith(b"\n")) - header


def chunks(path: Path, size: int, encoding: str | None) -> Iterator[bytes]:
    """A text file, unpacked and in UTF-8, in pieces of about ``size`` bytes that end with a line.

    Raises:
        BadInput: a broken gzip file.
    """
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            yield from _cut(_recoded(file, size, encoding) if encoding else iter(lambda: file.read(size), b""))
    except (EOFError, gzip.BadGzipFile, OSError) as error:
        raise BadInput.at(str(path), f"is a broken gzip file: {error}", "copy it again") from error


def unreadable(where: str, kind: str) -> BadInput:
    """What the library says is for programmers, and it quotes cells: prompts may stand in them."""
    return BadInput.at(where, f"cannot be read as {_SHOWN[kind]}", "check the export, or write it again")


def _recoded(file: Any, size: int, encoding: str) -> Iterator[bytes]:  # noqa: ANN401 - any binary file
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(encoding)(errors="replace"), translate=True)
    while data := file.read(size):
        yield decoder.decode(data).encode()
    yield decoder.decode(b"", final=True).encode()


def _cut(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest, first = b"", True
    for piece in pieces:
        rest += piece.removeprefix(codecs.BOM_UTF8) if first else piece
        first = False
        end = rest.rfind(b"\n") + 1
        if end:
            yield rest[:end]
            rest = rest[end:]
    if rest:
        yield rest


def _fast_csv(data: bytes, separator: str, counts: Sequence[str]) -> "pl.DataFrame":
    import polars as pl

    frame = pl.read_csv(
        data,
        separator=separator,
        infer_schema=False,
        schema_overrides=dict.fromkeys(counts, pl.Int64),
        encoding="utf8-lossy",
        raise_if_empty=False,
        null_values=None,
    )
    return frame.rename({name: name.strip() for name in frame.columns if name != name.strip()})


def _fast_lines(data: bytes) -> "pl.DataFrame":
    import polars as pl

    return pl.read_ndjson(io.BytesIO(data), infer_schema_length=None)


def _filled(data: bytes) -> list[int]:
    """Lines that are not blank, from 1."""
    return [number for number, line in enumerate(data.split(b"\n"), start=1) if line.strip()]


def _chosen(frame: "pl.DataFrame", columns: Sequence[str] | None) -> "pl.DataFrame":
    """The columns that are wanted, in order; a stretch of a file need not have them all."""
    import polars as pl

    if columns is None:
        return frame
    have = set(frame.columns)
    return frame.select([pl.col(name) if name in have else pl.lit(None, pl.String).alias(name) for name in columns])


def _stored(path: Path, columns: Sequence[str] | None) -> list[str] | None:
    """Columns of a Parquet file that hold the wanted ones: a dotted name may lie inside another."""
    import polars as pl

    if columns is None:
        return None
    names = pl.read_parquet_schema(path)
    return list(dict.fromkeys(name if name in names else name.split(".")[0] for name in columns))


def _flat(frame: "pl.DataFrame") -> "pl.DataFrame":
    """Fields of records inside records as columns of their own."""
    import polars as pl

    while nested := [name for name, kind in frame.schema.items() if isinstance(kind, pl.Struct)]:
        parts = [
            pl.col(name).struct.field(field.name).alias(f"{name}.{field.name}")
            for name in nested
            for field in frame.schema[name].fields  # type: ignore[attr-defined]
            if f"{name}.{field.name}" not in frame.columns
        ]
        frame = frame.with_columns(parts).drop(nested)
    return frame


def _entries(source: Source) -> list[Any]:
    """Entries of the list that a document is, or holds as its only one.

    Raises:
        BadInput: not JSON, or cut short.
    """
    try:
        value = json.loads(source.content().decode("utf-8", errors="replace"))
    except (ValueError, RecursionError) as error:
        raise BadInput.at(source.where, f"is not whole JSON: {error}", "export it again") from error
    if isinstance(value, dict):
        value = next((inner for inner in value.values() if isinstance(inner, list)), [])
    return value if isinstance(value, list) else []


def _careful_lines(text: str, columns: Sequence[str] | None) -> Loaded:
    """JSON lines one by one; those that hold no record are told apart."""
    found: list[tuple[int, Any]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                found.append((number, json.loads(line)))
            except (ValueError, RecursionError):
                found.append((number, None))
    return _of_records(found, columns)


def _of_records(found: Sequence[tuple[int, Any]], columns: Sequence[str] | None) -> Loaded:
    import polars as pl

    records = [(number, leaf_values(value)) for number, value in found if isinstance(value, dict)]
    names = columns if columns is not None else list(dict.fromkeys(name for _, record in records for name in record))
    frame = pl.DataFrame([_series(name, [record.get(name) for _, record in records]) for name in names])
    broken = tuple(number for number, value in found if not isinstance(value, dict))
    return Loaded(frame, [number for number, _ in records], broken)


def _series(name: str, values: list[Any]) -> "pl.Series":
    """Values as numbers, flags or lists of whole numbers where all are; else as text, what is neither left out."""
    import polars as pl

    kinds = {type(value) for value in values} - {type(None)}
    if kinds <= {bool}:
        return pl.Series(name, values, dtype=pl.Boolean if kinds else pl.String)
    if kinds <= {int} and all(value is None or abs(value) < 2**63 for value in values):
        return pl.Series(name, values, dtype=pl.Int64)
    if kinds == {float}:
        return pl.Series(name, values, dtype=pl.Float64)
    if kinds == {list} and all(type(part) is int and 0 <= part < 2**63 for value in values for part in value or ()):
        return pl.Series(name, values, dtype=pl.List(pl.Int64))
    return pl.Series(name, [_as_text(value) for value in values], dtype=pl.String)


def _as_text(value: Any) -> str | None:  # noqa: ANN401 - any JSON
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def _careful_csv(text: str, separator: str, columns: Sequence[str] | None) -> Loaded:
    """Rows one by one: a row with more cells than the header, or a quote that is not closed, costs only itself."""
    import polars as pl

    csv.field_size_limit(_LONGEST_CELL)
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    begin = next((place for place, line in enumerate(lines) if line.strip()), len(lines) - 1)
    header = header_cells(lines[begin], separator)
    # Cells that text quotes may hold are not looked at; only the wanted ones are kept.
    wanted = list(dict.fromkeys(header if columns is None else columns))
    places = [header.index(name) if name in header else _LONGEST_CELL for name in wanted]
    kept: list[list[str | None]] = []
    numbers, broken = [], []
    place = begin + 1
    while place < len(lines):
        if not lines[place].strip():
            place += 1
            continue
        cells, used = _row(lines, place, separator, len(header))
        if cells is None:
            broken.append(place + 1)
        else:
            numbers.append(place + 1)
            kept.append([cells[at] or None if at < len(cells) else None for at in places])
        place += used
    frame = pl.DataFrame(
        [pl.Series(name, [row[at] for row in kept], dtype=pl.String) for at, name in enumerate(wanted)]
    )
    return Loaded(frame, numbers, tuple(broken))


def _row(lines: Sequence[str], place: int, separator: str, width: int) -> tuple[list[str] | None, int]:
    """Cells of the row that begins at a line, and how many lines it has; no cells when the line is no row."""
    end = place + 1
    if lines[place].count('"') % 2:
        # A break inside a quoted cell: the row ends with the line that closes the quote.
        while end < len(lines) and not lines[end].count('"') % 2:
            end += 1
        end += 1
    for stop in dict.fromkeys((place + 1, min(end, len(lines)))):
        cells = _cells("\n".join(lines[place:stop]), separator)
        if cells is not None and not any(cell.strip() for cell in cells[width:]):
            return cells, stop - place
    return None, 1


def _cells(line: str, separator: str) -> list[str] | None:
    try:
        rows = list(csv.reader(io.StringIO(line, newline=""), delimiter=separator, strict=True))
    except csv.Error:
        return None
    return rows[0] if len(rows) == 1 else None
