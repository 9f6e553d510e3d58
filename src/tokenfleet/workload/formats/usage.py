"""Responses with a usage object: OpenAI chat and responses, Anthropic, Gemini, llama.cpp; whole or as stream chunks."""

import re
from typing import Any

from tokenfleet.workload.formats.columns import NAMES, plain
from tokenfleet.workload.formats.records import (
    Found,
    Record,
    Row,
    at,
    count,
    csv_records,
    each,
    first_known,
    json_list,
    parsed,
    reading_of,
    reconcile,
    scaled,
    text,
    tier_priority,
)
from tokenfleet.workload.formats.rows import Reading, ReadOptions
from tokenfleet.workload.formats.source import Source

_MARKS = ("usage", "usageMetadata")
_TOKENS = re.compile(r'""?(?:prompt_tokens|input_tokens|promptTokenCount)""?\s*:')
_PACKED = ("response", "body", *_MARKS)
"""Fields that databases export as text that holds JSON."""


def is_usage(source: Source) -> bool:
    """Lines or a list of response objects, or a table with a column of usage objects."""
    if source.kind == "csv":
        return any(mark in source.columns for mark in _MARKS) and bool(_TOKENS.search(source.head))
    record = _unpacked(source.record)
    if source.kind == "json":
        entries = record.get("")
        record = _unpacked(entries[0]) if isinstance(entries, list) and entries and isinstance(entries[0], dict) else {}
    body = _body(record)
    return source.kind in ("json", "jsonl") and (
        any(isinstance(body.get(mark), dict) for mark in _MARKS)
        or str(body.get("object")).startswith(("chat.completion", "text_completion"))
        or body.get("object") == "response"
    )


def read_usage(source: Source, options: ReadOptions) -> Reading:
    """One row per response; chunks of one stream are one response, and its last usage object counts.

    OpenAI and Gemini count cached tokens inside the prompt, Anthropic beside it; Gemini counts thoughts beside the
    candidates. A stream that was cut has no usage at all: its tokens are unknown, not 0.
    """
    found = csv_records(source) if source.kind == "csv" else json_list(source)
    found.records = [(line, _unpacked(record)) for line, record in found.records]
    merged, pieces = _merged(found)
    rows = list(each(merged, _row))
    kinds = sorted({row.pop("kind") for _, row in rows})
    cut = sum(1 for _, row in rows if row["input_tokens"] is None)
    warnings = [f"{cut} responses carry no usage: cut streams or failed calls"] if cut else []
    if any(row["arrival"] is None for _, row in rows):
        warnings.append("Anthropic and Gemini responses carry no time: log the time beside them")
    return reading_of(
        rows,
        options,
        where=source.where,
        name=f"usage objects ({', '.join(kinds)})" if kinds else "usage objects",
        broken=found.broken,
        dropped={"further chunk of a stream": pieces},
        warnings=warnings,
        detected={"cached inside input": "by vendor: Anthropic no (added), others yes"},
        unit="s",
        ordered=False,
    )


def _unpacked(record: Record) -> Record:
    """The record with objects where a database wrote their text."""
    texts = {key: record[key] for key in _PACKED if isinstance(record.get(key), str)}
    return {**record, **{key: value for key, text_ in texts.items() if isinstance(value := parsed(text_), dict)}}


def _body(record: Record) -> Record:
    """The response itself, also inside a line of a batch result."""
    for path in (("response", "body"), ("body",), ("response",)):
        inner = at(record, *path)
        if isinstance(inner, dict) and any(mark in inner for mark in _MARKS):
            return inner
    return record


def _merged(found: Found) -> tuple[Found, int]:
    """Join chunks that share an id; the last usage that is not null is the stream's."""
    out = Found(broken=found.broken)
    streams: dict[str, Record] = {}
    pieces = 0
    for line, record in found.records:
        body = _body(record)
        name = text(body.get("id"))
        if not str(body.get("object")).endswith(".chunk") or name is None:
            out.records.append((line, {**record, **body}))
            continue
        if name not in streams:
            streams[name] = dict(body)
            out.records.append((line, streams[name]))
            continue
        pieces += 1
        if isinstance(body.get("usage"), dict):
            streams[name]["usage"] = body["usage"]
    return out, pieces


def _row(record: Record) -> Row:
    usage = record.get("usage")
    if isinstance(record.get("usageMetadata"), dict):
        counts = _gemini(record["usageMetadata"])
    elif not isinstance(usage, dict):
        counts = {"kind": "no usage", "input_tokens": None, "output_tokens": None}
    elif "prompt_tokens" in usage:
        counts = _openai_chat(usage, record.get("timings"))
    elif (
        record.get("type") == "message" or "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage
    ):
        counts = _anthropic(usage)
    else:
        counts = _openai_responses(usage)
    model = text(record.get("model")) or text(record.get("modelVersion"))
    return {
        **counts,
        "arrival": _arrival(record),
        "model": model,
        "finish": text(record.get("stop_reason")) or text(_choice(record, "finish_reason")),
        "streamed": True if str(record.get("object")).endswith(".chunk") else None,
        "status": "ok" if counts["input_tokens"] is not None else None,
        "tenant": _told(record, "tenant"),
        "session": _told(record, "session"),
        "label": _told(record, "label"),
        "priority": first_known(
            count(_told(record, "priority")),
            tier_priority(record.get("service_tier")),
            tier_priority(at(usage, "service_tier")),
        ),
        "request_id": text(record.get("id")) or text(record.get("responseId")),
    }


def _arrival(record: Record) -> Any:  # noqa: ANN401 - JSON is untyped
    for key in ("created", "created_at", "timestamp", "createTime"):
        if record.get(key) is not None:
            return record[key]
    return None


def _told(record: Record, role: str) -> str | None:
    """What somebody logged beside the usage, under one of the usual names of the role."""
    return next((text(value) for key, value in record.items() if plain(key) in NAMES[role]), None)


def _choice(record: Record, key: str) -> Any:  # noqa: ANN401 - JSON is untyped
    choices = record.get("choices")
    return at(choices[0], key) if isinstance(choices, list) and choices else None


def _openai_chat(usage: Record, timings: Any) -> Row:  # noqa: ANN401 - JSON is untyped
    cached = count(at(usage, "prompt_tokens_details", "cached_tokens"))
    reasoning = count(at(usage, "completion_tokens_details", "reasoning_tokens"))
    input_, output = reconcile(
        count(usage.get("prompt_tokens")),
        count(usage.get("completion_tokens")),
        count(usage.get("total_tokens")),
        cached=cached,
        reasoning=reasoning,
    )
    row: Row = {
        "kind": "OpenAI chat",
        "input_tokens": input_,
        "output_tokens": output,
        "cached_tokens": cached,
        "reasoning_tokens": reasoning,
    }
    if isinstance(timings, dict) and "predicted_n" in timings:
        prompt_s, answer_s = scaled(timings.get("prompt_ms"), 1e-3), scaled(timings.get("predicted_ms"), 1e-3)
        row["kind"] = "llama.cpp"
        row["cached_tokens"] = count(timings.get("cache_n"))
        row["ttft_s"] = prompt_s
        row["e2e_s"] = None if prompt_s is None or answer_s is None else prompt_s + answer_s
    return row


def _openai_responses(usage: Record) -> Row:
    cached = count(at(usage, "input_tokens_details", "cached_tokens"))
    reasoning = count(at(usage, "output_tokens_details", "reasoning_tokens"))
    input_, output = reconcile(
        count(usage.get("input_tokens")),
        count(usage.get("output_tokens")),
        count(usage.get("total_tokens")),
        cached=cached,
        reasoning=reasoning,
    )
    return {
        "kind": "OpenAI responses",
        "input_tokens": input_,
        "output_tokens": output,
        "cached_tokens": cached,
        "reasoning_tokens": reasoning,
    }


def _anthropic(usage: Record) -> Row:
    parts = [
        count(usage.get(key)) for key in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    ]
    return {
        "kind": "Anthropic",
        "input_tokens": None if parts[0] is None else sum(part or 0 for part in parts),
        "output_tokens": count(usage.get("output_tokens")),
        "cached_tokens": parts[1],
    }


def _gemini(usage: Record) -> Row:
    cached, thoughts = count(usage.get("cachedContentTokenCount")), count(usage.get("thoughtsTokenCount"))
    input_, output = reconcile(
        count(usage.get("promptTokenCount")),
        count(usage.get("candidatesTokenCount")),
        count(usage.get("totalTokenCount")),
        cached=cached,
        reasoning=thoughts,
        reasoning_inside=False,
    )
    return {
        "kind": "Gemini",
        "input_tokens": input_,
        "output_tokens": output,
        "cached_tokens": cached,
        "reasoning_tokens": thoughts,
    }
