"""Opens a file whatever it is packed in, and looks at its head to find out what it holds."""

import csv
import gzip
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tokenfleet.domain.errors import BadInput
from tokenfleet.workload.spelling import nearest

HEAD_BYTES = 256 * 1024
_GZIP_MAGIC = b"\x1f\x8b"
_OPENING = re.compile(r"""\s*(?:\{\s*"([^"]+)"\s*:\s*)?\[\s*(?=\{)""")
_BOM = b"\xef\xbb\xbf"

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

    @property
    def where(self) -> str:
        """How errors name the file."""
        return str(self.path)

    def content(self) -> bytes:
        """All bytes, unpacked, without a byte-order mark."""
        if self.packed:
            try:
                with gzip.open(self.path) as file:
                    data = file.read()
            except (EOFError, gzip.BadGzipFile, OSError) as error:
                raise BadInput.at(self.where, f"is a broken gzip file: {error}", "copy it again") from error
        else:
            data = self.path.read_bytes()
        return data.removeprefix(_BOM)


def open_source(path: Path) -> Source:
    """Look at a file.

    Raises:
        BadInput: missing (with the nearest name beside it), a folder, empty, not text, or cut gzip.
    """
    _must_be_file(path)
    head, packed = _head_of(path)
    if head.startswith(b"PAR1"):
        return Source(path, "parquet", packed, "", _parquet_columns(path), {})
    if not head.strip():
        raise BadInput.at(str(path), "is empty", "export the log again, with its rows")
    if b"\x00" in head[:4096]:
        raise BadInput.at(
            str(path),
            "is binary and not Parquet",
            "give CSV, JSON lines, JSON or Parquet; gzip of the first three is fine",
        )
    text = head.decode("utf-8", errors="replace")
    kind, columns, record = _sniff(text, complete=len(head) < HEAD_BYTES)
    return Source(path, kind, packed, text, columns, record)


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
    return head.removeprefix(_BOM), packed


def _parquet_columns(path: Path) -> tuple[str, ...]:
    import polars as pl

    try:
        return tuple(pl.read_parquet_schema(path))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BadInput.at(str(path), "is a broken Parquet file", "write it again") from error


def _sniff(text: str, *, complete: bool) -> tuple[Kind, tuple[str, ...], dict[str, Any]]:
    start = text.lstrip()
    if start[0] in "{[":
        first_line = start.split("\n", 1)[0]
        record = _record_of(first_line)
        if record is not None and start[0] == "{" and _is_lines(start, record):
            return "jsonl", tuple(record), record
        document = _record_of(start) if complete else _opening(start)
        return "json", tuple(document or ()), document or {}
    if start.startswith(("# HELP", "# TYPE")):
        return "prometheus", (), {}
    try:
        header = next(csv.reader(io.StringIO(start.split("\n", 1)[0].rstrip("\r"), newline="")), [])
    except csv.Error:
        header = []
    if len(header) > 1 and not header[0].startswith(("INFO", "(")) and not _looks_like_log(start):
        return "csv", tuple(name.strip() for name in header), {}
    return "text", (), {}


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
        return rest.startswith("{")
    return not any(isinstance(value, list) and value and isinstance(value[0], dict) for value in record.values())


def _looks_like_log(start: str) -> bool:
    line = start.split("\n", 1)[0]
    return " INFO " in line or line.startswith("INFO ")
