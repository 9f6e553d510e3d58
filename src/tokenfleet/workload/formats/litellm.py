"""LiteLLM's spend log, as JSON lines or as a CSV export of its Postgres table."""

import json
from typing import Any

from tokenfleet.workload.formats.records import (
    Found,
    Record,
    Row,
    at,
    between_s,
    count,
    csv_records,
    each,
    first_known,
    json_list,
    reading_of,
    reconcile,
    scaled,
    text,
    tier_priority,
)
from tokenfleet.workload.formats.rows import Reading, ReadOptions
from tokenfleet.workload.formats.source import Source

_COLUMNS = {"startTime", "endTime", "completionStartTime", "prompt_tokens", "completion_tokens"}


def is_litellm(source: Source) -> bool:
    """Rows of LiteLLM_SpendLogs."""
    return source.kind in ("jsonl", "csv", "json") and (
        set(source.columns) >= _COLUMNS or set(_first_of_list(source)) >= _COLUMNS
    )


def read_litellm(source: Source, options: ReadOptions) -> Reading:
    """Read the spend log.

    Times are UTC, also where the export leaves the zone out. A hit of the gateway's own response cache never reached a
    GPU and is left out; the prefix cache is in the usage object. Failed calls are logged with start = end.
    """
    found = _csv_records(source) if source.kind == "csv" else json_list(source)
    answered = [entry for entry in found.records if str(entry[1].get("cache_hit")).lower() == "true"]
    found.records = [entry for entry in found.records if str(entry[1].get("cache_hit")).lower() != "true"]
    rows = list(each(found, _row))
    late = sum(1 for _, row in rows if row["status"] in ("error", "rejected"))
    warnings = [f"{late} failed calls are logged at their end, not at their arrival"] if late else []
    told = ReadOptions(zone=options.zone or "UTC", time_unit=options.time_unit)
    reading = reading_of(
        rows,
        told,
        where=source.where,
        name="LiteLLM spend log",
        broken=found.broken,
        dropped={"answered from the gateway's response cache": len(answered)},
        warnings=warnings,
        detected={"cached inside input": "by the arithmetic of each row"},
        ordered=False,
    )
    if "as told" in reading.detected.get("zone", "") and options.zone is None:
        reading.detected["zone"] = "not written: LiteLLM stores UTC"
    return reading


def _row(record: Record) -> Row:
    about = record.get("metadata")
    usage = at(about, "usage_object")
    cached = _first(
        count(at(usage, "prompt_tokens_details", "cached_tokens")),
        count(at(usage, "cache_read_input_tokens")),
        count(at(about, "additional_usage_values", "prompt_tokens_details", "cached_tokens")),
    )
    reasoning = count(at(usage, "completion_tokens_details", "reasoning_tokens"))
    failed = str(_first(record.get("status"), at(about, "status"))).lower() == "failure"
    status = "ok"
    if failed:
        status = "rejected" if str(at(about, "error_information", "error_code")) == "429" else "error"
    input_, output = reconcile(
        count(record.get("prompt_tokens")),
        count(record.get("completion_tokens")),
        count(record.get("total_tokens")),
        cached=cached,
        reasoning=reasoning,
    )
    # Failed calls carry zeros for "not known".
    known = not failed or bool(input_ or output)
    begin, end, first = record.get("startTime"), record.get("endTime"), record.get("completionStartTime")
    streamed = isinstance(first, str) and first != end and bool(first)
    return {
        "arrival": begin,
        "input_tokens": input_ if known else None,
        "output_tokens": output if known else None,
        "cached_tokens": cached,
        "reasoning_tokens": reasoning,
        "ttft_s": between_s(begin, first) if streamed else None,
        "e2e_s": None
        if failed
        else _first_float(scaled(record.get("request_duration_ms"), 1e-3), between_s(begin, end)),
        "streamed": True if streamed else None,
        "status": status,
        "model": text(record.get("model_group")) or text(record.get("model")),
        "tenant": text(record.get("team_id"))
        or text(at(about, "user_api_key_team_alias"))
        or text(record.get("end_user")),
        "session": text(record.get("session_id")),
        "priority": first_known(
            count(at(about, "requester_metadata", "priority")),
            count(at(about, "spend_logs_metadata", "priority")),
            tier_priority(at(usage, "service_tier")),
        ),
        "request_id": text(record.get("request_id")),
    }


def _first(*values: Any) -> Any:  # noqa: ANN401 - JSON is untyped
    return next((value for value in values if value is not None), None)


def _first_float(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _csv_records(source: Source) -> Found:
    found = csv_records(source)
    for _, record in found.records:
        record["metadata"] = _object(record.get("metadata"))
    return found


def _object(value: Any) -> Any:  # noqa: ANN401 - JSON is untyped
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _first_of_list(source: Source) -> dict[str, Any]:
    entries = source.record.get("") if source.kind == "json" else None
    return entries[0] if isinstance(entries, list) and entries and isinstance(entries[0], dict) else {}
