"""Cloud logs: Amazon Bedrock invocations, Azure API Management, Azure OpenAI diagnostics."""

import json

from tokenfleet.workload.formats.records import (
    Record,
    Row,
    at,
    count,
    csv_records,
    each,
    first_record,
    json_list,
    reading_of,
    scaled,
    status_of,
    text,
)
from tokenfleet.workload.formats.rows import Reading, ReadOptions
from tokenfleet.workload.formats.source import Source


def is_bedrock(source: Source) -> bool:
    """Model invocation logs."""
    first = first_record(source)
    return first.get("schemaType") == "ModelInvocationLog" or {"modelId", "operation", "input"} <= set(first)


def read_bedrock(source: Source, options: ReadOptions) -> Reading:
    """The stamp, in whole seconds, is the end of the call: where a latency is logged, it is taken off.

    ``inputTokenCount`` is without tokens read from or written to the cache, which are added.
    """
    found = json_list(source)
    rows = list(each(found, _bedrock))
    unmoved = sum(1 for _, row in rows if row["late_s"] is None)
    return reading_of(
        rows,
        options,
        where=source.where,
        name="Bedrock invocation log",
        broken=found.broken,
        warnings=[f"{unmoved} calls have no latency: their end stands for their arrival"] if unmoved else [],
        detected={
            "cached inside input": "no: added, as Bedrock counts",
            "time stamp": "end, whole seconds",
        },
        ordered=False,
    )


def _bedrock(record: Record) -> Row:
    parts = [
        count(at(record, "input", key))
        for key in ("inputTokenCount", "cacheReadInputTokenCount", "cacheWriteInputTokenCount")
    ]
    error = text(record.get("errorCode"))
    latency_s = scaled(at(record, "output", "outputBodyJson", "metrics", "latencyMs"), 1e-3)
    status = "ok"
    if error is not None:
        status = "rejected" if "Throttling" in error else "error"
    model = text(record.get("modelId"))
    return {
        "arrival": record.get("timestamp"),
        "late_s": latency_s,
        "input_tokens": None if parts[0] is None else sum(part or 0 for part in parts),
        "output_tokens": count(at(record, "output", "outputTokenCount")),
        "cached_tokens": parts[1],
        "e2e_s": latency_s,
        "streamed": str(record.get("operation")).endswith("Stream"),
        "status": status,
        "finish": text(at(record, "output", "outputBodyJson", "stopReason")),
        # An inference profile is named by a resource path; its last part is the model.
        "model": None if model is None else model.rsplit("/", 1)[-1],
        "tenant": text(at(record, "requestMetadata", "team")) or text(at(record, "identity", "arn")),
        "request_id": text(record.get("requestId")),
    }


def is_apim(source: Source) -> bool:
    """Azure API Management, table ApiManagementGatewayLlmLog."""
    return {"CorrelationId", "SequenceNumber", "PromptTokens", "CompletionTokens"} <= set(source.columns)


def read_apim(source: Source, options: ReadOptions) -> Reading:
    """One call is split over several rows of one CorrelationId: they are joined, not counted. 0 tokens is unknown."""
    found = csv_records(source)
    calls: dict[str, Row] = {}
    pieces = 0
    for line, record in found.records:
        name = text(record.get("CorrelationId"))
        if name is None:
            found.broken.append(line)
            continue
        row = calls.setdefault(name, {"line": line, "request_id": name, "input_tokens": 0, "output_tokens": 0})
        pieces += "arrival" in row
        row.setdefault("arrival", record.get("TimeGenerated"))
        row.setdefault("model", text(record.get("DeploymentName")) or text(record.get("ModelName")))
        row.setdefault("streamed", {"true": True, "false": False}.get(str(record.get("IsStreamCompletion")).lower()))
        row["input_tokens"] += count(record.get("PromptTokens")) or 0
        row["output_tokens"] += count(record.get("CompletionTokens")) or 0
    for row in calls.values():
        row["input_tokens"] = row["input_tokens"] or None
        row["output_tokens"] = row["output_tokens"] or None
    return reading_of(
        ((row["line"], row) for row in calls.values()),
        options,
        where=source.where,
        name="Azure API Management LLM log",
        broken=found.broken,
        dropped={"further row of a call": pieces},
        warnings=["the log has no status: calls without tokens may have failed or been cut"],
        ordered=False,
    )


def is_azure_openai(source: Source) -> bool:
    """Azure Monitor, category RequestResponse."""
    first = first_record(source)
    return first.get("category") == "RequestResponse" and "properties" in first


def read_azure_openai(source: Source, options: ReadOptions) -> Reading:
    """Arrivals, latencies and status only: these logs count bytes, not tokens, and 0 bytes for streams.

    Lengths stay unknown, since bytes are no tokens: such a file alone makes no trace, and reading it says so.
    """
    found = json_list(source)
    return reading_of(
        each(found, _azure_openai),
        options,
        where=source.where,
        name="Azure OpenAI diagnostics",
        broken=found.broken,
        warnings=["this log has no token counts, only bytes; use the API Management log or your own usage objects"],
        ordered=False,
    )


def _azure_openai(record: Record) -> Row:
    facts = record.get("properties")
    if isinstance(facts, str):
        try:
            facts = json.loads(facts)
        except (ValueError, RecursionError):
            facts = None
    return {
        "arrival": record.get("time"),
        "e2e_s": scaled(record.get("durationMs"), 1e-3),
        "streamed": {"Streaming": True, "Non-Streaming": False}.get(str(at(facts, "streamType"))),
        "status": status_of(record.get("resultSignature")),
        "model": text(at(facts, "modelDeploymentName")) or text(at(facts, "modelName")),
        "request_id": text(record.get("correlationId")),
    }
