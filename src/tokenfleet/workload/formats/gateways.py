"""Observability and gateway exports: Langfuse, Helicone, Portkey, OpenRouter, Envoy AI Gateway, Kong."""

from typing import Any

from tokenfleet.workload.formats.records import (
    Found,
    Record,
    Row,
    at,
    count,
    csv_records,
    each,
    first_record,
    json_list,
    number,
    reading_of,
    reconcile,
    scaled,
    status_of,
    text,
)
from tokenfleet.workload.formats.rows import Reading, ReadOptions
from tokenfleet.workload.formats.source import Source


def is_langfuse(source: Source) -> bool:
    """Observations of the Langfuse API or its export."""
    first = first_record(source, "data")
    return {"startTime", "traceId", "type"} <= set(first) and ("usageDetails" in first or "usage" in first)


def read_langfuse(source: Source, options: ReadOptions) -> Reading:
    """Generations only; other observations are counted apart.

    ``usageDetails.input`` should be without cached tokens, but exporters send the total: where a row has a total, its
    arithmetic decides.
    """
    found = json_list(source, *(["data"] if source.kind == "json" and "data" in source.columns else []))
    calls = Found(records=[entry for entry in found.records if entry[1].get("type") in ("GENERATION", None)])
    return reading_of(
        each(calls, _langfuse),
        options,
        where=source.where,
        name="Langfuse observations",
        broken=found.broken,
        dropped={"no model call": len(found.records) - len(calls.records)},
        detected={"cached inside input": "by the arithmetic of each row"},
        ordered=False,
    )


def _langfuse(record: Record) -> Row:
    usage = record.get("usageDetails") or record.get("usage") or {}
    cached = _some(usage, "input_cached_tokens", "cache_read_input_tokens", "input_cache_read")
    reasoning = _some(usage, "output_reasoning_tokens", "output_reasoning")
    input_, output = reconcile(
        _some(usage, "input", "promptTokens"),
        _some(usage, "output", "completionTokens"),
        _some(usage, "total", "totalTokens"),
        cached=cached,
        reasoning=reasoning,
        cached_inside=False,
        reasoning_inside=False,
    )
    error = record.get("level") == "ERROR"
    return {
        "arrival": record.get("startTime"),
        "input_tokens": input_,
        "output_tokens": output,
        "cached_tokens": cached,
        "reasoning_tokens": reasoning,
        "ttft_s": number(record.get("timeToFirstToken")),
        "e2e_s": number(record.get("latency")),
        "status": (status_of(record.get("statusMessage")) or "error") if error else "ok",
        "model": text(record.get("model")),
        "tenant": text(at(record, "metadata", "team")) or text(record.get("userId")),
        "session": text(record.get("sessionId")),
        "priority": count(at(record, "metadata", "priority")),
        "request_id": text(record.get("id")),
    }


def is_helicone(source: Source) -> bool:
    """Helicone's request export."""
    return {"request_created_at", "prompt_tokens", "completion_tokens"} <= set(first_record(source))


def read_helicone(source: Source, options: ReadOptions) -> Reading:
    """``prompt_tokens`` is without cached ones; -3 means that the client went away."""
    found = json_list(source)
    return reading_of(
        each(found, _helicone),
        options,
        where=source.where,
        name="Helicone requests",
        broken=found.broken,
        detected={"cached inside input": "no: added, as Helicone counts"},
        ordered=False,
    )


def _helicone(record: Record) -> Row:
    cached, written = count(record.get("prompt_cache_read_tokens")), count(record.get("prompt_cache_write_tokens"))
    plain = count(record.get("prompt_tokens"))
    return {
        "arrival": record.get("request_created_at"),
        "input_tokens": None if plain is None else plain + (cached or 0) + (written or 0),
        "output_tokens": count(record.get("completion_tokens")),
        "cached_tokens": cached,
        "ttft_s": scaled(record.get("time_to_first_token"), 1e-3),
        "e2e_s": scaled(record.get("delay_ms"), 1e-3),
        "status": status_of(record.get("response_status")),
        "model": text(record.get("request_model")) or text(record.get("response_model")),
        "tenant": text(at(record, "request_properties", "team")) or text(record.get("request_user_id")),
        "session": text(at(record, "request_properties", "Helicone-Session-Id")),
        "priority": count(at(record, "request_properties", "priority")),
        "request_id": text(record.get("request_id")),
    }


def is_portkey(source: Source) -> bool:
    """Portkey's log export."""
    return {"created_at", "req_units", "res_units"} <= set(first_record(source))


def read_portkey(source: Source, options: ReadOptions) -> Reading:
    """Failed calls carry zeros for "not known"; there is no time to first token and no cached count."""
    found = json_list(source)
    return reading_of(
        each(found, _portkey),
        options,
        where=source.where,
        name="Portkey logs",
        broken=found.broken,
        detected={"cached inside input": "not in the export"},
        ordered=False,
    )


def _portkey(record: Record) -> Row:
    failed = count(record.get("is_success")) == 0
    input_, output = count(record.get("req_units")), count(record.get("res_units"))
    unknown = failed and not input_ and not output
    stream = str(record.get("stream_mode")).upper()
    return {
        "arrival": record.get("created_at"),
        "input_tokens": None if unknown else input_,
        "output_tokens": None if unknown else output,
        "e2e_s": scaled(record.get("response_time"), 1e-3),
        "streamed": {"TRUE": True, "FALSE": False}.get(stream),
        "status": status_of(record.get("response_status_code")),
        "model": text(record.get("ai_model")),
        "tenant": text(at(record, "metadata", "_user")),
        "session": text(record.get("trace_id")),
        "priority": count(at(record, "metadata", "priority")),
        "request_id": text(record.get("id")),
    }


def is_openrouter(source: Source) -> bool:
    """OpenRouter's list of generations."""
    return {"native_tokens_prompt", "native_tokens_completion", "created_at"} <= set(
        source.columns if source.kind == "csv" else first_record(source, "data")
    )


def read_openrouter(source: Source, options: ReadOptions) -> Reading:
    """``native_*`` counts are the model's own tokenizer's; ``latency`` is the time to the first token."""
    inside = ["data"] if source.kind == "json" and "data" in source.columns else []
    found = csv_records(source) if source.kind == "csv" else json_list(source, *inside)
    return reading_of(
        each(found, _openrouter),
        options,
        where=source.where,
        name="OpenRouter generations",
        broken=found.broken,
        detected={"cached inside input": "yes", "tokens": "native, not normalised"},
        ordered=False,
    )


def _openrouter(record: Record) -> Row:
    first, rest = scaled(record.get("latency"), 1e-3), scaled(record.get("generation_time"), 1e-3)
    cancelled = str(record.get("cancelled")).lower() == "true"
    return {
        "arrival": record.get("created_at"),
        "input_tokens": count(record.get("native_tokens_prompt")),
        "output_tokens": count(record.get("native_tokens_completion")),
        "cached_tokens": count(record.get("native_tokens_cached")),
        "reasoning_tokens": count(record.get("native_tokens_reasoning")),
        "ttft_s": first,
        "e2e_s": None if first is None or rest is None else first + rest,
        "streamed": {"true": True, "false": False}.get(str(record.get("streamed")).lower()),
        "status": "cancelled" if cancelled else "ok",
        "finish": text(record.get("finish_reason")),
        "model": text(record.get("model")),
        "session": text(record.get("session_id")),
        "request_id": text(record.get("id")),
    }


def is_envoy(source: Source) -> bool:
    """Envoy AI Gateway's access log in its example's JSON layout."""
    first = first_record(source)
    return "start_time" in first and any(key.startswith("gen_ai.usage.") for key in first)


def read_envoy(source: Source, options: ReadOptions) -> Reading:
    """A dash is unknown; response code 0 means that the client went away."""
    found = json_list(source)
    return reading_of(
        each(found, _envoy),
        options,
        where=source.where,
        name="Envoy AI Gateway access log",
        broken=found.broken,
        ordered=False,
    )


def _envoy(record: Record) -> Row:
    status = status_of(record.get("response_code"))
    first = scaled(record.get("x-envoy-upstream-service-time"), 1e-3)
    return {
        "arrival": record.get("start_time"),
        "input_tokens": count(record.get("gen_ai.usage.input_tokens")),
        "output_tokens": count(record.get("gen_ai.usage.output_tokens")),
        "cached_tokens": count(record.get("gen_ai.usage.cached_input_tokens")),
        "reasoning_tokens": count(record.get("gen_ai.usage.reasoning_tokens")),
        "ttft_s": first if status in ("ok", "cancelled") else None,
        "e2e_s": scaled(record.get("duration"), 1e-3),
        "status": status,
        "model": text(record.get("gen_ai.request.model")),
        "session": text(record.get("session.id")),
        "priority": count(record.get("priority")),
        "request_id": text(record.get("x-request-id")),
    }


def is_kong(source: Source) -> bool:
    """Kong's log with an ``ai`` part."""
    first = first_record(source)
    return "started_at" in first and isinstance(first.get("ai"), dict)


def read_kong(source: Source, options: ReadOptions) -> Reading:
    """Milliseconds since 1970; old plugins write ``prompt_token``, new ones ``prompt_tokens``."""
    found = json_list(source)
    return reading_of(
        each(found, _kong),
        options,
        where=source.where,
        name="Kong AI proxy log",
        broken=found.broken,
        unit="ms",
        ordered=False,
    )


def _kong(record: Record) -> Row:
    parts = (
        [part for part in record["ai"].values() if isinstance(part, dict)] if isinstance(record.get("ai"), dict) else []
    )
    part = parts[0] if parts else {}
    usage = part.get("usage")
    return {
        "arrival": record.get("started_at"),
        "input_tokens": _some(usage, "prompt_tokens", "prompt_token"),
        "output_tokens": _some(usage, "completion_tokens", "completion_token"),
        "ttft_s": scaled(at(usage, "time_to_first_token"), 1e-3),
        "e2e_s": scaled(at(record, "latencies", "request"), 1e-3),
        "streamed": {"stream": True, "oneshot": False}.get(str(at(part, "meta", "request_mode"))),
        "status": status_of(at(record, "response", "status")),
        "model": text(at(part, "meta", "request_model")),
        "tenant": text(at(record, "consumer", "username")),
    }


def _some(usage: Any, *keys: str) -> int | None:  # noqa: ANN401 - any JSON
    return next((found for key in keys if (found := count(at(usage, key))) is not None), None)
