"""Priorities as logs write them: smaller is served first, and what is not written is 0."""

import json
from typing import Any

import pytest

from tokenfleet.domain.trace import Quality, Trace
from tokenfleet.workload import read_trace

HEAD = "time_s,input_tokens,output_tokens,"


def read(tmp_path, text: str, name: str = "log.csv", **more: Any) -> tuple[Trace, Quality]:
    path = tmp_path / name
    path.write_text(text)
    return read_trace(path, **more)


def lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def test_a_column_of_whole_numbers_is_the_priority_and_a_label_as_well(tmp_path):
    trace, quality = read(tmp_path, HEAD + "priority\n0,5,6,-1\n1,5,6,0\n2,5,6,7\n")
    assert trace.priority.tolist() == [-1, 0, 7]
    assert quality.detected["priority"] == "-1 to 7, smaller first"
    assert trace.observed.labels == ("-1", "0", "7")


def test_words_are_a_label_and_no_priority(tmp_path):
    trace, _ = read(tmp_path, HEAD + "priority\n0,5,6,high\n1,5,6,low\n")
    assert trace.priority is None
    assert trace.observed.labels == ("high", "low")


def test_a_column_can_be_named(tmp_path):
    trace, quality = read(tmp_path, HEAD + "rank\n0,5,6,2\n1,5,6,\n2,5,6,1\n", columns={"priority": "rank"})
    assert trace.priority.tolist() == [2, 0, 1]
    assert any("1 requests have no priority: 0" in text for text in quality.warnings)
    _, quality = read(tmp_path, HEAD + "rank\n0,5,6,high\n1,5,6,low\n", columns={"priority": "rank"})
    assert any("'rank' holds no whole numbers" in text for text in quality.warnings)


def test_priorities_that_tell_nobody_apart_and_those_that_are_too_many_are_left_out(tmp_path):
    alike, _ = read(tmp_path, HEAD + "priority\n0,5,6,3\n1,5,6,3\n")
    assert alike.priority is None
    many, quality = read(tmp_path, HEAD + "priority\n" + "".join(f"{n},5,6,{n}\n" for n in range(200)))
    assert many.priority is None
    assert any("200 different priorities, more than 128" in text for text in quality.warnings)


def test_rows_out_of_order_keep_their_priority(tmp_path):
    trace, _ = read(tmp_path, HEAD + "priority\n5,1,6,2\n0,2,6,1\n9,3,6,0\n")
    assert trace.input_tokens.tolist() == [2, 1, 3]
    assert trace.priority.tolist() == [1, 2, 0]


def litellm(second: int, **about: Any) -> dict[str, Any]:
    begin, end = f"2026-03-29T00:00:{second:02d}Z", f"2026-03-29T00:01:{second:02d}Z"
    times = {"startTime": begin, "endTime": end, "completionStartTime": end}
    tokens = {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
    return {"request_id": str(second), "status": "success", "model": "m", "metadata": about, **times, **tokens}


def chat(second: int, **more: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
    return {
        "id": str(second),
        "object": "chat.completion",
        "created": 1_774_000_000 + second,
        "model": "m",
        "usage": usage,
        **more,
    }


def claude(second: int, tier: str) -> dict[str, Any]:
    usage = {"input_tokens": 5, "output_tokens": 6, "cache_read_input_tokens": 0, "service_tier": tier}
    return {"id": str(second), "type": "message", "timestamp": 1_774_000_000 + second, "model": "m", "usage": usage}


def helicone(second: int, **properties: Any) -> dict[str, Any]:
    return {
        "request_id": str(second),
        "request_created_at": f"2026-03-29T00:00:{second:02d}Z",
        "prompt_tokens": 5,
        "completion_tokens": 6,
        "response_status": 200,
        "request_properties": properties,
    }


def envoy(second: int, priority: str) -> dict[str, Any]:
    return {
        "start_time": f"2026-03-29T00:00:{second:02d}Z",
        "duration": "5",
        "response_code": "200",
        "x-request-id": str(second),
        "gen_ai.usage.input_tokens": "5",
        "gen_ai.usage.output_tokens": "6",
        "priority": priority,
    }


def portkey(second: int, priority: Any) -> dict[str, Any]:
    return {
        "id": str(second),
        "created_at": f"2026-03-29T00:00:{second:02d}Z",
        "req_units": 5,
        "res_units": 6,
        "response_status_code": 200,
        "is_success": 1,
        "metadata": {"priority": priority},
    }


def langfuse(second: int, priority: Any) -> dict[str, Any]:
    return {
        "id": str(second),
        "traceId": str(second),
        "type": "GENERATION",
        "startTime": f"2026-03-29T00:00:{second:02d}Z",
        "usageDetails": {"input": 5, "output": 6, "total": 11},
        "metadata": {"priority": priority},
    }


@pytest.mark.parametrize(
    ("records", "priorities"),
    [
        (
            [
                litellm(0, requester_metadata={"priority": 3}),
                litellm(1, spend_logs_metadata={"priority": "-2"}),
                litellm(2, usage_object={"service_tier": "flex"}),
                litellm(3),
            ],
            [3, -2, 1, 0],
        ),
        ([chat(0, service_tier="priority"), chat(1, service_tier="default"), chat(2, priority=5)], [-1, 0, 5]),
        ([claude(0, "batch"), claude(1, "priority"), claude(2, "standard")], [1, -1, 0]),
        ([helicone(0, priority="2"), helicone(1, team="a")], [2, 0]),
        ([envoy(0, "4"), envoy(1, "-")], [4, 0]),
        ([portkey(0, 1), portkey(1, None)], [1, 0]),
        ([langfuse(0, 1), langfuse(1, "high")], [1, 0]),
    ],
)
def test_where_gateways_write_it(tmp_path, records, priorities):
    trace, _ = read(tmp_path, lines(records), "log.jsonl")
    assert trace.priority.tolist() == priorities


def test_sglang_serves_the_larger_one_first_so_its_sign_is_turned(tmp_path):
    records = []
    for second, priority in enumerate((0, 8)):
        stamp, sent = f"2026-03-29T00:00:{second:02d}.000000", {"stream": True, "priority": priority}
        done = {"meta_info": {"prompt_tokens": 5, "completion_tokens": 6, "e2e_latency": 0.5}}
        records.append({"timestamp": stamp, "event": "request.received", "rid": str(second), "obj": sent})
        records.append({"timestamp": stamp, "event": "request.finished", "rid": str(second), "obj": {}, "out": done})
    trace, _ = read(tmp_path, lines(records), "log.jsonl", zone="UTC")
    assert trace.priority.tolist() == [0, -8]


def test_spans_tell_their_service_tier(tmp_path):
    def span(second: int, tier: str) -> dict[str, Any]:
        facts = {"gen_ai.usage.input_tokens": {"intValue": 5}, "gen_ai.usage.output_tokens": {"intValue": 6}}
        facts["openai.response.service_tier"] = {"stringValue": tier}
        begin = (1_774_000_000 + second) * 1_000_000_000
        return {
            "spanId": str(second),
            "startTimeUnixNano": str(begin),
            "endTimeUnixNano": str(begin + 1_000_000_000),
            "attributes": [{"key": key, "value": value} for key, value in facts.items()],
        }

    export = {"resourceSpans": [{"scopeSpans": [{"spans": [span(0, "priority"), span(1, "default")]}]}]}
    trace, _ = read(tmp_path, json.dumps(export) + "\n", "log.jsonl")
    assert trace.priority.tolist() == [-1, 0]
