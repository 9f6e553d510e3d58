"""Fitted constants and where they come from, read once from the packaged table."""

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from tokenfleet.domain.records import dataclass

_TABLES = ("coefficients.toml", "speculation_constants.toml", "memory_constants.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One constant of the model."""

    name: str
    value: float
    unit: str
    low: float
    """Lower end of the range in which fits put it."""
    high: float
    what: str
    source: str


def constants() -> Mapping[str, Constant]:
    """All constants by name, in the order of the packaged tables."""
    return _table()


@contextmanager
def constants_as(values: Mapping[str, float]) -> Iterator[None]:
    """Other values for some constants inside the block: how a fit asks what a constant does.

    One block at a time in a process; whatever was cached from terms before keeps the values of its day.

    Args:
        values: By name, in the unit of the constant.
    """
    table = _table()
    kept = {name: table[name] for name in values}
    try:
        table.update({name: replace(kept[name], value=value) for name, value in values.items()})
        yield
    finally:
        table.update(kept)


@lru_cache(maxsize=1)
def _table() -> dict[str, Constant]:
    folder = Path(__file__).parent
    texts = (folder.joinpath(name).read_text(encoding="utf-8") for name in _TABLES)
    rows = [row for text in texts for row in tomllib.loads(text)["constant"]]
    return {
        row["name"]: Constant(**{**row, **{key: float(row[key]) for key in ("value", "low", "high")}}) for row in rows
    }


def constant(name: str, variant: str | None = None) -> float:
    """Value of a constant in its unit.

    Args:
        name: The constant, or its first part when it differs by engine, precision or rank count.
        variant: The part behind the dot.

    Returns:
        The value; a missing name is a fault of this package and raises ``KeyError``.
    """
    return constants()[name if variant is None else f"{name}.{variant}"].value


def engine_family(engine_name: str) -> str:
    """The set of engine constants that fits an engine and version.

    Args:
        engine_name: Engine and version, ``vllm-0.32``; a name without a version means the newest.

    Returns:
        ``vllm``, ``vllm_v0`` (before 0.8), ``trtllm``, ``trtllm_2024`` (before 0.20), ``sglang`` or ``other``.
    """
    name, version = engine_version(engine_name)
    if name == "vllm":
        return "vllm_v0" if version < (0, 8) else "vllm"
    if name in {"trtllm", "tensorrt-llm", "tensorrt_llm"}:
        return "trtllm_2024" if version < (0, 20) else "trtllm"
    return "sglang" if name == "sglang" else "other"


@lru_cache(maxsize=256)
def engine_version(engine_name: str) -> tuple[str, tuple[int, ...]]:
    """Split ``vllm-0.32`` into the name and a comparable version; no version compares as newer than all."""
    name, _, tail = engine_name.lower().rpartition("-")
    numbers = []
    for part in tail.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    if not name or not numbers:
        return engine_name.lower(), (1_000_000,)
    return name, tuple(numbers)


def constants_table() -> str:
    """The constants as a Markdown table, for the page on physics; a test keeps the page equal to it."""
    lines = ["| constant | value | range | unit | what | source |", "|---|---|---|---|---|---|"]
    for entry in constants().values():
        unit = "" if entry.unit == "1" else entry.unit
        numbers = f"{entry.value:g} | {entry.low:g} to {entry.high:g}"
        lines.append(f"| `{entry.name}` | {numbers} | {unit} | {entry.what} | {entry.source} |")
    return "\n".join(lines) + "\n"
