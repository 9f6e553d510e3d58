"""What every format reader hands over: rows under canonical names, and what it found out on the way."""

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Literal

from tokenfleet.domain.records import dataclass

if TYPE_CHECKING:
    import polars as pl

COLUMNS: dict[str, str] = {
    "arrival_ns": "Int64",
    "input_tokens": "Int64",
    "output_tokens": "Int64",
    "cached_tokens": "Int64",
    "reasoning_tokens": "Int64",
    "ttft_s": "Float64",
    "e2e_s": "Float64",
    "streamed": "Boolean",
    "status": "String",
    "finish": "String",
    "model": "String",
    "tenant": "String",
    "session": "String",
    "label": "String",
    "priority": "Int64",
    "request_id": "String",
    "line": "Int64",
}
"""Canonical columns and their polars types. Null is unknown. ``input_tokens`` includes cached, ``output_tokens``
includes reasoning and all choices, ``arrival_ns`` is when the request reached the system; a smaller ``priority`` is
served first."""

Clock = Literal["utc", "naive", "relative"]
"""Zoned; written without a zone; counted from an instant that the file does not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What a person says about a file, overriding what is detected. ``None`` means: find out."""

    format: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    """Canonical role -> column of the file."""
    zone: str | None = None
    """IANA name such as ``Europe/Berlin`` or ``UTC``, for stamps written without one."""
    time_unit: Literal["s", "ms", "us", "ns"] | None = None
    cached: Literal["inside", "outside"] | None = None
    """Whether the file's input count already contains cached tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Rows of one file.

    ``rows`` has the columns of :data:`COLUMNS`, missing ones left out, plus ``hash_ids`` (list of int) where the format
    has them. ``rows_read`` counts what the file holds; ``dropped`` what the reader itself left out, so
    ``rows_read == rows.height + sum(dropped.values())``.
    """

    rows: "pl.DataFrame"
    rows_read: int
    where: str = ""
    """The file."""
    clock: Clock
    detected: dict[str, str]
    dropped: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    broken_lines: list[int] = field(default_factory=list)
    """Lines that hold no record at all; counted in ``dropped``."""
    ordered: bool = True
    """Whether the file promises rows in order of arrival, so that a step back in time is a fault."""


ROLES = (
    "arrival",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "ttft",
    "e2e",
    "streamed",
    "status",
    "finish",
    "model",
    "tenant",
    "session",
    "label",
    "priority",
    "request_id",
)
"""What a column can be mapped to."""
