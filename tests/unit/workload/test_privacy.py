"""What must not come out again: names when a salt is given, prompts ever."""

import json
from pathlib import Path

import pytest

from tokenfleet.domain.errors import BadInput
from tokenfleet.workload import (
    profile,
    profile_document,
    profile_facts,
    quality_lines,
    read_trace,
    save_profile,
    write_trace,
)

LOGS = Path(__file__).resolve().parents[2] / "data" / "logs"
SECRET = "the launch is on tuesday"


def test_tenants_and_sessions_are_hashed_with_a_salt():
    plain, _ = read_trace(LOGS / "litellm_spendlogs.jsonl")
    hashed, _ = read_trace(LOGS / "litellm_spendlogs.jsonl", salt="a long random salt")
    again, _ = read_trace(LOGS / "litellm_spendlogs_pg_export.csv", salt="a long random salt")
    other, _ = read_trace(LOGS / "litellm_spendlogs.jsonl", salt="another random salt")
    assert not set(plain.tenants) & set(hashed.tenants)
    assert hashed.tenants == again.tenants
    assert not set(hashed.tenants) & set(other.tenants)
    assert hashed.tenant.tolist() == plain.tenant.tolist()
    assert hashed.session.tolist() == plain.session.tolist()
    with pytest.raises(BadInput, match="at least 8"):
        read_trace(LOGS / "litellm_spendlogs.jsonl", salt="x")


def test_names_in_a_trace_of_ours_are_hashed_alike(tmp_path):
    log, salt = LOGS / "litellm_spendlogs.jsonl", "a long random salt"
    plain = read_trace(log)[0]
    path = write_trace(plain, tmp_path / "t.parquet")
    hashed, _ = read_trace(path, salt=salt)
    assert hashed.tenants == read_trace(log, salt=salt)[0].tenants
    assert not set(plain.tenants) & set(hashed.tenants)
    assert hashed.tenant.tolist() == plain.tenant.tolist()
    assert read_trace(path)[0].tenants == plain.tenants
    with pytest.raises(BadInput, match="at least 8"):
        read_trace(path, salt="x")


COUNTS = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
RECORDS = {
    "usage": lambda n: [
        {"id": f"c{n}", "object": "chat.completion", "created": 1774745895 + n, "usage": COUNTS}
        | {"choices": [{"message": {"content": SECRET}}]}
    ],
    "table": lambda n: [{"time_s": n, "input_tokens": 9, "output_tokens": 9, "prompt": SECRET, "response": SECRET}],
    "sglang": lambda n: [
        {"timestamp": "2026-01-01T00:00:00", "event": "request.received", "rid": f"r{n}", "obj": {"text": SECRET}},
        {"timestamp": "2026-01-01T00:00:01", "event": "request.finished", "rid": f"r{n}"}
        | {"out": {"text": SECRET, "meta_info": {**COUNTS, "e2e_latency": 1.0}}},
    ],
    "langfuse": lambda n: [
        {"id": f"o{n}", "traceId": "t", "type": "GENERATION", "startTime": "2026-01-01T00:00:00Z"}
        | {"input": SECRET, "output": SECRET, "usageDetails": {"input": 9, "output": 9, "total": 18}}
    ],
}


@pytest.mark.parametrize("kind", RECORDS)
def test_no_prompt_text_reaches_any_output(tmp_path, kind):
    records = [record for n in range(3) for record in RECORDS[kind](n)]
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(json.dumps(record) for record in records))
    trace, quality = read_trace(log)
    found = profile(trace, quality)
    save_profile(found, tmp_path / "profile.json")
    write_trace(trace, tmp_path / "trace.parquet")
    said = [repr(trace), repr(quality), "\n".join(quality_lines(quality))]
    said += [json.dumps(profile_document(found)), json.dumps(profile_facts(found))]
    said += [path.read_bytes().decode("latin-1") for path in (tmp_path / "profile.json", tmp_path / "trace.parquet")]
    assert trace.request_count == 3
    for text in said:
        assert "tuesday" not in text


def test_rejected_rows_are_named_by_file_and_line(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("time_s,input_tokens,output_tokens\n0,5,5\n1,0,5\n2,5,\n3,5,5\n")
    _, quality = read_trace(path)
    assert [(reject.where, reject.reason) for reject in quality.rejects] == [
        (f"{path}:3", "input tokens below 1"),
        (f"{path}:4", "output tokens unknown"),
    ]


def test_lines_that_are_no_records_are_named_too(tmp_path):
    lines = (LOGS / "helicone_requests.jsonl").read_text().splitlines()
    lines[3] = lines[3][:100]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(lines))
    _, quality = read_trace(path)
    assert quality.rows_dropped["not a record"] == 1
    assert quality.rows_read == 20
    assert (f"{path}:4", "not a record") in [(reject.where, reject.reason) for reject in quality.rejects]
