"""Opens a file whatever it is packed in, and looks at its head to find out what it holds."""

import codecs
import csv
import gzip
import io
import json
import re
from pathlib import Path
from typing import Any, Literal

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass
from tokenfleet.workload.spelling import nearest

HEAD_BYTES = 256 * 1024
_GZIP_MAGIC = b"\x1f\x8b"
_NOT_A_LOG = {
    b"PK\x03\x04": ("is a ZIP archive or an Excel workbook", "unpack it, or save the sheet as CSV"),
    b"\x28\xb5\x2f\xfd": ("is packed with zstd", "unpack it, or pack it with gzip"),
    b"BZh91AY&SY": ("is packed with bzip2", "unpack it, or pack it with gzip"),
    b"\xfd7zXZ\x00": ("is packed with xz", "unpack it, or pack it with gzip"),
    b"SQLite format 3": ("is a SQLite database", "write the table of requests as CSV"),
    b"Obj\x01": ("is an Avro file", "write the table as Parquet or CSV"),
}
"""How files begin that hold a log but cannot be read: what they are, and what to do."""
_OPENING = re.compile(r"""\s*(?:\{\s*"([^"]+)"\s*:\s*)?\[\s*(?=\{)""")
_DEEPEST = 4
"""Records inside records are looked into so far."""
_FIRST_LINES = 20
_FEWEST_NAMES = 3
_NAME = re.compile(r"[A-Za-z_][\w .()/#-]{0,63}")

Kind = Literal["parquet", "csv", "jsonl", "json", "prometheus", "text"]


@dataclass(frozen=True, slots=True)
class Source:
    """A file and what its first bytes say."""

    path: Path
    kind: Kind
    packed: bool
    """Whether the file is gzip."""
    head: str
    """Start of the content, up to :data:`HEAD_BYTES`; empty for Parquet."""
    columns: tuple[str, ...]
    """CSV header, Parquet schema, or keys of the first JSON record."""
    record: dict[str, Any]
    """First JSON record, or the whole JSON document's top level when small enough to fit the head."""
    separator: str = ","
    """Between the cells of a CSV file."""
    encoding: str | None = None
    """What else than UTF-8 with line feeds the text is written in; ``None`` when it is not."""
    leaves: tuple[str, ...] = ()
    """Columns of a table; fields inside the records of JSON by dotted names."""

    @property
    def where(self) -> str:
        """How errors name the file."""
        return str(self.path)

    def content(self) -> bytes:
        """All bytes, unpacked, in UTF-8 with line feeds, without a byte-order mark."""
        if self.packed:
            try:
                with gzip.open(self.path) as file:
                    data = file.read()
            except (EOFError, gzip.BadGzipFile, OSError) as error:
                raise BadInput.at(self.where, f"is a broken gzip file: {error}", "copy it again") from error
        else:
            data = self.path.read_bytes()
        return _as_utf8(data, self.encoding)


def open_source(path: Path) -> Source:
    """Look at a file.

    Raises:
        BadInput: missing (with the nearest name beside it), a folder, empty, not text, or cut gzip.
    """
    _must_be_file(path)
    head, packed = _head_of(path)
    if head.startswith(b"PAR1"):
        columns, leaves = _parquet_columns(path)
        return Source(path, "parquet", packed, "", columns, {}, leaves=leaves)
    for magic, (what, mend) in _NOT_A_LOG.items():
        if head.startswith(magic):
            raise BadInput.at(str(path), what, mend)
    encoding = _encoding_of(head)
    complete = len(head) < HEAD_BYTES
    head = _as_utf8(head, encoding)
    if not head.strip():
        raise BadInput.at(str(path), "is empty", "export the log again, with its rows")
    if b"\x00" in head[:4096]:
        raise BadInput.at(
            str(path),
            "is binary and not Parquet",
            "give CSV, JSON lines, JSON or Parquet; gzip of the first three is fine",
        )
    text = head.decode("utf-8", errors="replace")
    kind, columns, record, separator = _sniff(text, complete=complete)
    leaves = columns
    if kind == "jsonl":
        columns, leaves = _keys(text, columns, complete=complete)
    elif kind == "json":
        leaves = _keys_of_entries(record)
    return Source(path, kind, packed, text, columns, record, separator, encoding, leaves)


def leaf_values(record: dict[str, Any], inside: str = "") -> dict[str, Any]:
    """Values of a record and of the records in it, by dotted names."""
    found: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict) and inside.count(".") < _DEEPEST:
            found.update(leaf_values(value, f"{inside}{key}."))
        else:
            found[inside + key] = value
    return found


def _must_be_file(path: Path) -> None:
    if path.is_dir():
        raise BadInput.at(str(path), "is a folder", "name the files in it")
    if not path.exists():
        beside = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []
        mend = nearest(path.name, beside) or ("check the path" if beside else f"there is no folder {path.parent}")
        raise BadInput.at(str(path), "there is no such file", mend)


def _head_of(path: Path) -> tuple[bytes, bool]:
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    packed = head.startswith(_GZIP_MAGIC)
    if packed:
        try:
            with gzip.open(path) as unpacked:
                head = unpacked.read(HEAD_BYTES)
        except (EOFError, gzip.BadGzipFile, OSError) as error:
            raise BadInput.at(str(path), f"is a broken gzip file: {error}", "copy it again") from error
    return head, packed


def _encoding_of(head: bytes) -> str | None:
    """UTF-16 shows by its mark, text of old computers by its line ends."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig" if b"\n" not in head and head.rstrip(b"\r").count(b"\r") else None


def _as_utf8(data: bytes, encoding: str | None) -> bytes:
    if encoding is None:
        return data.removeprefix(codecs.BOM_UTF8)
    text = data.decode(encoding, errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").encode()


def _parquet_columns(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    import polars as pl

    try:
        schema = pl.read_parquet_schema(path)
        return tuple(schema), tuple(name for column, kind in schema.items() for name in _leaves_of(column, kind))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BadInput.at(str(path), "is a broken Parquet file", "write it again") from error


def _leaves_of(name: str, kind: Any) -> list[str]:  # noqa: ANN401 - a polars type
    fields = getattr(kind, "fields", None)
    if fields is None:
        return [name]
    return [leaf for field in fields for leaf in _leaves_of(f"{name}.{field.name}", field.dtype)]


def _keys(text: str, first: tuple[str, ...], *, complete: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Keys of all records of the head: what only some records have, such as an error, counts too."""
    lines = text.split("\n")
    records = [found for line in (lines if complete else lines[:-1]) if (found := _record_of(line)) is not None]
    tops = dict.fromkeys((*first, *(key for record in records for key in record)))
    return tuple(tops), tuple(dict.fromkeys(name for record in records for name in leaf_values(record)))


def _keys_of_entries(document: dict[str, Any]) -> tuple[str, ...]:
    """The same of the entries of the only list of a document."""
    lists = [value for value in document.values() if isinstance(value, list)]
    entries = lists[0] if len(lists) == 1 else []
    return tuple(dict.fromkeys(name for entry in entries if isinstance(entry, dict) for name in leaf_values(entry)))


_Sniffed = tuple[Kind, tuple[str, ...], dict[str, Any], str]


def _sniff(text: str, *, complete: bool) -> _Sniffed:
    start = text.lstrip()
    if start[0] in "{[":
        first_line = start.split("\n", 1)[0]
        record = _record_of(first_line)
        if record is not None and start[0] == "{" and _is_lines(start, record):
            return "jsonl", tuple(record), record, ","
        document = _record_of(start) if complete else _opening(start)
        if document is None and start[0] == "{":
            record = _record_of_lines(start)
            if record is not None:
                return "jsonl", tuple(record), record, ","
        return "json", tuple(document or ()), document or {}, ","
    if start.startswith(("# HELP", "# TYPE")):
        return "prometheus", (), {}, ","
    first_line = start.split("\n", 1)[0].rstrip("\r")
    header = header_cells(first_line, ",")
    if len(header) > 1 and not header[0].startswith(("INFO", "(")) and not _looks_like_log(start):
        other = _other_separator(first_line, len(header))
        header = header_cells(first_line, other) if other else header
        return "csv", header, {}, other or ","
    other = _other_separator(first_line, 1)
    return ("csv", header_cells(first_line, other), {}, other) if other else ("text", (), {}, ",")


def header_cells(line: str, separator: str) -> tuple[str, ...]:
    """Names in the first line of a CSV file; none when it cannot be cut."""
    try:
        cells = next(csv.reader(io.StringIO(line, newline=""), delimiter=separator), [])
    except csv.Error:
        return ()
    return tuple(name.strip() for name in cells)


def _other_separator(line: str, cells: int) -> str | None:
    """A semicolon, tab or bar that cuts the line into more names than the comma does: at least three."""
    for separator in ";\t|":
        header = header_cells(line, separator)
        if len(header) >= max(_FEWEST_NAMES, cells + 1) and all(_NAME.fullmatch(name) for name in header):
            return separator
    return None


def _record_of(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    except RecursionError:
        return None
    if isinstance(value, list):
        return {"": value}
    return value if isinstance(value, dict) else None


def _record_of_lines(start: str) -> dict[str, Any] | None:
    """A record of JSON lines whose first line is broken: two of the next that are whole show what they are."""
    found = [record for line in start.split("\n")[1:6] if line.startswith("{") and (record := _record_of(line))]
    return found[0] if len(found) > 1 else None


def _opening(start: str) -> dict[str, Any] | None:
    """First entry of the first list of a document too long for its head, as ``{key: [entry]}``."""
    match = _OPENING.match(start)
    if match is None:
        return None
    try:
        entry, _ = json.JSONDecoder().raw_decode(start, match.end())
    except (ValueError, RecursionError):
        return {match.group(1): []} if match.group(1) else None
    return {match.group(1) or "": [entry]}


def _is_lines(start: str, record: dict[str, Any]) -> bool:
    """Whether the first line is one record of several, and not a whole document written on one line."""
    rest = start.split("\n", 1)[1].lstrip() if "\n" in start else ""
    if rest:
        return any(line.lstrip().startswith("{") for line in rest.split("\n", _FIRST_LINES)[:_FIRST_LINES])
    return not any(isinstance(value, list) and value and isinstance(value[0], dict) for value in record.values())


def _looks_like_log(start: str) -> bool:
    line = start.split("\n", 1)[0]
    return " INFO " in line or line.startswith("INFO ")
