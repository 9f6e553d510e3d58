"""Public traces: Azure 2023, 2024 and 2025, BurstGPT, Mooncake, Qwen-Bailian."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput
from tokenfleet.workload.formats.frames import load
from tokenfleet.workload.formats.rows import Reading, ReadOptions
from tokenfleet.workload.formats.source import Source
from tokenfleet.workload.formats.table import as_count, canonical, read_table, with_hashes

_FASTEST_PER_S = 200.0
"""A Mooncake-like file that would be faster than this in milliseconds was written in seconds, or is not from a log."""


def is_azure(source: Source) -> bool:
    """Azure LLM inference traces: three columns, a fourth (images) in 2025."""
    return {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= set(source.columns)


def read_azure(source: Source, options: ReadOptions) -> Reading:
    """2023: naive stamps of seven digits; 2024: zoned, some without a fraction; 2025: with images."""
    reading = read_table(source, options, name="Azure LLM inference trace")
    if "NumImages" in source.columns:
        reading.warnings.append("images are counted as their context tokens only; the file does not split them")
    return reading


def is_burstgpt(source: Source) -> bool:
    """BurstGPT, all versions: columns are found by name, since version 3 inserts two of them."""
    return {"Timestamp", "Request tokens", "Response tokens", "Log Type"} <= set(source.columns)


def read_burstgpt(source: Source, options: ReadOptions) -> Reading:
    """Whole seconds since the first day's midnight, local time; failed calls have 0 response tokens."""
    mapped = {
        "arrival": "Timestamp",
        "input_tokens": "Request tokens",
        "output_tokens": "Response tokens",
        "model": "Model",
        "label": "Log Type",
    }
    if "Session ID" in source.columns:
        mapped["session"] = "Session ID"
    loaded = load(source, list(mapped.values()))
    unit = options.time_unit or "s"
    return canonical(loaded, mapped, options, where=source.where, name="BurstGPT", unit=unit)


def is_mooncake(source: Source) -> bool:
    """Mooncake traces, and the many tools that write the same fields."""
    return {"timestamp", "input_length", "output_length", "hash_ids"} <= set(source.leaves) and (
        "chat_id" not in source.leaves
    )


def read_mooncake(source: Source, options: ReadOptions) -> Reading:
    """``timestamp`` is milliseconds in the published files; some tools write the same field in seconds.

    Raises:
        BadInput: the numbers fit both units: asks.
    """
    import polars as pl

    mapped = {"arrival": "timestamp", "input_tokens": "input_length", "output_tokens": "output_length"}
    loaded = load(source, [*mapped.values(), "hash_ids"])
    frame = loaded.frame
    # Damaged rows may turn the column into text, or into numbers of more digits than any clock has.
    stamps = frame["timestamp"].cast(pl.Float64, strict=False).to_numpy()
    unit = options.time_unit or _mooncake_unit(stamps, source.where)
    reading = canonical(loaded, mapped, options, where=source.where, name="Mooncake trace", unit=unit)
    return with_hashes(reading, frame)


def is_bailian(source: Source) -> bool:
    """Qwen-Bailian traces: Mooncake's fields, seconds, and a chat tree."""
    return {"chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"} <= set(source.leaves)


def read_bailian(source: Source, options: ReadOptions) -> Reading:
    """Seconds; ``parent_chat_id`` -1 starts a chat, and a session is a chat with all that follow it."""
    import polars as pl

    mapped = {"arrival": "timestamp", "input_tokens": "input_length", "output_tokens": "output_length", "label": "type"}
    wanted = [*mapped.values(), "chat_id", "parent_chat_id"]
    has_hashes = "hash_ids" in source.leaves
    loaded = load(source, [*wanted, "hash_ids"] if has_hashes else wanted)
    frame = loaded.frame
    reading = canonical(
        loaded, mapped, options, where=source.where, name="Qwen-Bailian trace", unit=options.time_unit or "s"
    )
    chats, parents = (as_count(frame[name]).to_list() for name in ("chat_id", "parent_chat_id"))
    roots = _roots(chats, parents)
    reading = replace(reading, rows=reading.rows.with_columns(pl.Series("session", roots, dtype=pl.String)))
    return with_hashes(reading, frame) if has_hashes else reading


def _roots(chats: list[int | None], parents: list[int | None]) -> list[str | None]:
    root: dict[int | None, int | None] = {}
    for chat, parent in zip(chats, parents, strict=True):
        root[chat] = chat if parent is None or parent < 0 else root.get(parent, chat)
    return [None if chat is None else f"chat {root[chat]}" for chat in chats]


def _mooncake_unit(stamps: npt.NDArray[np.float64], where: str) -> str:
    known = stamps[np.isfinite(stamps)]
    if len(known) < 2:
        return "ms"
    if np.any(known != np.floor(known)):
        return "s"
    span_s = (known.max() - known.min()) / 1000
    if span_s > 0 and len(known) / span_s <= _FASTEST_PER_S:
        return "ms"
    raise BadInput.at(
        where,
        f"'timestamp' would mean {len(known)} requests in {span_s:g} s if it is milliseconds",
        "say time_unit: ms, or s",
    )
