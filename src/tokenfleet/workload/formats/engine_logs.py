"""What engines write about requests: vLLM, SGLang and TGI."""

import re

from tokenfleet.workload.formats.records import (
    Record,
    Row,
    at,
    count,
    first_record,
    json_list,
    number,
    reading_of,
    text,
)
from tokenfleet.workload.formats.rows import Reading, ReadOptions
from tokenfleet.workload.formats.source import Source

_SGLANG_EVENTS = ("request.received", "request.finished")


def is_sglang(source: Source) -> bool:
    """SGLang's request log, one event per line or entry."""
    return first_record(source).get("event") in _SGLANG_EVENTS


def read_sglang(source: Source, options: ReadOptions) -> Reading:
    """A call is a received and a finished event of one id; stamps are local time without a zone.

    SGLang serves the larger priority first unless it is told otherwise, so the sign is turned.

    A threshold can keep fast calls out of the log (SGLANG_LOG_REQUEST_EXCEEDED_MS): then only slow ones are seen.
    """
    found = json_list(source)
    calls: dict[str, Row] = {}
    for line, record in found.records:
        name = text(record.get("rid"))
        if name is not None and record.get("event") in _SGLANG_EVENTS:
            _sglang(calls.setdefault(name, {"line": line, "request_id": name}), record)
    rows = [(row["line"], row) for row in calls.values()]
    unfinished = sum(1 for _, row in rows if "output_tokens" not in row)
    unseen = sum(1 for _, row in rows if "received" not in row)
    warnings = (
        [f"{unfinished} calls were received and not finished: cancelled, failed, or after the end"]
        if unfinished
        else []
    )
    if unseen:
        warnings.append(f"{unseen} calls have no received event: their arrival is the end less the latency")
    events = len(found.records)
    return reading_of(
        rows,
        options,
        where=source.where,
        name="SGLang request log",
        broken=found.broken,
        dropped={"further event of a call": events - len(rows)},
        warnings=warnings,
        detected={"cached inside input": "yes"},
        ordered=False,
    )


def _sglang(row: Row, record: Record) -> None:
    row.setdefault("streamed", at(record, "obj", "stream"))
    urgency = count(at(record, "obj", "priority"))
    if urgency is not None:
        row["priority"] = -urgency
    if record["event"] == "request.received":
        row["arrival"], row["late_s"], row["received"] = record.get("timestamp"), None, True
        return
    facts = at(record, "out", "meta_info")
    latency_s = number(at(facts, "e2e_latency"))
    if "received" not in row:
        row["arrival"], row["late_s"] = record.get("timestamp"), latency_s
    finish = at(facts, "finish_reason", "type")
    row["input_tokens"] = count(at(facts, "prompt_tokens"))
    row["output_tokens"] = count(at(facts, "completion_tokens"))
    row["cached_tokens"] = count(at(facts, "cached_tokens"))
    row["e2e_s"] = latency_s
    row["finish"] = text(finish)
    row["status"] = "cancelled" if finish == "abort" else "ok"


_TGI = re.compile(r"^(\S+)\s+(?:INFO|ERROR|WARN)\s.*?total_time=\"([^\"]+)\"")
_RUST_UNITS = {"ns": 1e-9, "µs": 1e-6, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}
_RUST = re.compile(r"^([0-9.]+)(ns|µs|us|ms|s|m)$")


def is_tgi(source: Source) -> bool:
    """The router log of Text Generation Inference."""
    return source.kind == "text" and "text_generation_router" in source.head and "total_time=" in source.head


def read_tgi(source: Source, options: ReadOptions) -> Reading:
    """The stamp is the end of a call: its total time is taken off. Token counts are not logged and stay unknown."""
    rows: list[tuple[int, Row]] = []
    others = 0
    for line, content in enumerate(source.content().decode("utf-8", errors="replace").splitlines(), start=1):
        match = _TGI.match(content)
        total_s = rust_s(match.group(2)) if match else None
        if match is None or total_s is None:
            others += bool(content.strip())
            continue
        rows.append((line, {"arrival": match.group(1), "late_s": total_s, "e2e_s": total_s, "status": "ok"}))
    return reading_of(
        rows,
        options,
        where=source.where,
        name="TGI router log",
        dropped={"no finished call": others},
        warnings=["this log has no token counts: take lengths from the router's metrics or your own usage objects"],
        detected={"time stamp": "end of the call"},
        ordered=False,
    )


def rust_s(value: str | None) -> float | None:
    """Seconds of a duration as Rust prints it: ``412.1µs``, ``1.2s``."""
    match = _RUST.match(value or "")
    if match is None:
        return None
    found = number(match.group(1))
    return None if found is None else found * _RUST_UNITS[match.group(2)]


_VLLM = re.compile(r"(\d\d-\d\d \d\d:\d\d:\d\d) \[(?:request_logger|logger)\.py:\d+\] Received request ([^:\s]+):")
_VLLM_ANY = re.compile(r"INFO \d\d-\d\d \d\d:\d\d:\d\d \[")


def is_vllm_log(source: Source) -> bool:
    """VLLM's server log with request lines."""
    return source.kind == "text" and _VLLM_ANY.search(source.head) is not None


def read_vllm_log(source: Source, options: ReadOptions) -> Reading:
    """Arrivals only, in whole seconds, without year and zone: the log counts no tokens, and max_tokens is a limit.

    Prompts, which version 0.9 prints, are never read into anything.
    """
    rows: list[tuple[int, Row]] = []
    others = 0
    for line, content in enumerate(source.content().decode("utf-8", errors="replace").splitlines(), start=1):
        match = _VLLM.search(content)
        if match is None:
            others += bool(content.strip())
            continue
        # A leap year stands in for the one that is not written, so that no 29 February is refused.
        rows.append((line, {"arrival": f"2000-{match.group(1)}", "request_id": match.group(2)}))
    return reading_of(
        rows,
        ReadOptions(time_unit=options.time_unit),
        where=source.where,
        name="vLLM server log",
        dropped={"no request line": others},
        warnings=[
            "this log has no token counts and no year: take lengths from /metrics, or log usage objects",
        ],
        detected={"time stamp": "whole seconds, year and zone not written"},
        ordered=False,
    )
