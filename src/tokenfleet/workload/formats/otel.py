"""OpenTelemetry GenAI spans, as the collector's OTLP JSON: one document or one export per line."""

from collections.abc import Iterator
from typing import Any

from tokenfleet.workload.formats.records import (
    Found,
    Record,
    Row,
    at,
    count,
    json_document,
    json_lines,
    number,
    reading_of,
    reconcile,
    status_of,
    text,
    tier_priority,
)
from tokenfleet.workload.formats.rows import Reading, ReadOptions
from tokenfleet.workload.formats.source import Source

_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens")
_CACHED = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "gen_ai.usage.cached_tokens",
)
_REASONING = ("gen_ai.usage.reasoning.output_tokens", "gen_ai.usage.reasoning_tokens")
_TTFT = ("gen_ai.response.time_to_first_chunk", "gen_ai.server.time_to_first_token")
_TIER = (
    "openai.response.service_tier",
    "gen_ai.openai.response.service_tier",
    "openai.request.service_tier",
    "gen_ai.openai.request.service_tier",
)
_NO_CALLS = ("execute_tool", "invoke_agent", "create_agent", "embeddings")


def is_otel(source: Source) -> bool:
    """A document or lines of resource spans."""
    return "resourceSpans" in source.columns or (source.kind == "json" and '"resourceSpans"' in source.head[:400])


def read_otel(source: Source, options: ReadOptions) -> Reading:
    """One row per model call; spans of agents, tools and everything else are no calls and are counted apart.

    Old and new attribute names are both read. By the convention input includes cached tokens, but instrumentations
    disagree: where a span has a total, its arithmetic decides.
    """
    found = json_lines(source) if source.kind == "jsonl" else Found(records=[(1, _as_record(json_document(source)))])
    rows, others, names = [], 0, set()
    for line, export in found.records:
        for span in _spans(export):
            facts = _attributes(span)
            row = _row(span, facts)
            if row is None:
                others += 1
                continue
            rows.append((line, row))
            names.add("old" if "gen_ai.system" in facts else "current")
    return reading_of(
        rows,
        options,
        where=source.where,
        name="OpenTelemetry GenAI spans",
        broken=found.broken,
        dropped={"no model call": others},
        detected={
            "attribute names": " and ".join(sorted(names)) or "none",
            "cached inside input": "yes by convention; by arithmetic where a span has a total",
        },
        unit="ns",
        ordered=False,
    )


def _as_record(value: Any) -> Record:  # noqa: ANN401 - any JSON
    return value if isinstance(value, dict) else {}


def _spans(export: Record) -> Iterator[Record]:
    for resource in _items(export.get("resourceSpans")):
        for scope in _items(resource.get("scopeSpans")) or _items(resource.get("instrumentationLibrarySpans")):
            yield from _items(scope.get("spans"))


def _items(value: Any) -> list[Record]:  # noqa: ANN401 - any JSON
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _attributes(span: Record) -> Record:
    facts: Record = {}
    for entry in _items(span.get("attributes")):
        value = entry.get("value")
        if isinstance(value, dict) and value:
            facts[str(entry.get("key"))] = next(iter(value.values()))
    return facts


def _row(span: Record, facts: Record) -> Row | None:
    model = text(facts.get("gen_ai.request.model")) or text(facts.get("gen_ai.response.model"))
    if not any(key.startswith("gen_ai.") for key in facts) or facts.get("gen_ai.operation.name") in _NO_CALLS:
        return None
    cached, reasoning = _first(facts, _CACHED), _first(facts, _REASONING)
    input_, output = reconcile(
        _first(facts, _INPUT),
        _first(facts, _OUTPUT),
        _first(facts, ("llm.usage.total_tokens",)),
        cached=cached,
        reasoning=reasoning,
    )
    begin, end = count_ns(span.get("startTimeUnixNano")), count_ns(span.get("endTimeUnixNano"))
    streamed = facts.get("gen_ai.request.stream", facts.get("llm.is_streaming"))
    return {
        "arrival": begin,
        "input_tokens": input_,
        "output_tokens": output,
        "cached_tokens": cached,
        "reasoning_tokens": reasoning,
        "ttft_s": next((number(facts[key]) for key in _TTFT if key in facts), None),
        "e2e_s": None if begin is None or end is None else (end - begin) / 1e9,
        "streamed": streamed if isinstance(streamed, bool) else None,
        "status": _status(span, facts),
        "finish": _finish(facts),
        "model": model,
        "tenant": text(facts.get("user.id")) or text(facts.get("enduser.id")) or text(facts.get("tenant.id")),
        "session": text(facts.get("gen_ai.conversation.id")) or text(facts.get("session.id")),
        "priority": next((tier_priority(facts[key]) for key in _TIER if key in facts), None),
        "request_id": text(span.get("spanId")),
    }


def count_ns(value: Any) -> int | None:  # noqa: ANN401 - any JSON
    """Nanoseconds since 1970, which OTLP writes as text because JSON numbers have no room for them."""
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if 0 <= found < 2**63 else None


def _status(span: Record, facts: Record) -> str:
    kind = text(facts.get("error.type"))
    if kind is not None:
        return status_of(kind) or "error"
    return "error" if str(at(span, "status", "code")) in ("2", "STATUS_CODE_ERROR") else "ok"


def _finish(facts: Record) -> str | None:
    reasons = at(facts.get("gen_ai.response.finish_reasons"), "values")
    return text(next(iter(reasons[0].values()), None)) if isinstance(reasons, list) and reasons and reasons[0] else None


def _first(facts: Record, keys: tuple[str, ...]) -> int | None:
    return next((found for key in keys if (found := count(facts.get(key))) is not None), None)
