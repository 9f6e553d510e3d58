"""Every sample log against the hidden list of requests that all of them were made from."""

import csv
import json
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pytest

from shared import SHARED, needs_shared
from tokenfleet.domain.errors import BadInput
from tokenfleet.workload import read_trace
from tokenfleet.workload.formats.rows import ReadOptions
from tokenfleet.workload.read import read_rows

LOGS = Path(__file__).resolve().parents[2] / "data" / "logs"

with (LOGS / "_truth.csv").open() as file:
    TRUTH = list(csv.DictReader(file))

ALL = tuple(range(20))
CUT, REJECTED, TWO_CHOICES, FAILED = 5, 8, 12, 15
BAD = (CUT, REJECTED, FAILED)
TOKENS = ("input_tokens", "output_tokens")
STATUS = {"200": "ok", "429": "rejected", "499": "cancelled", "500": "error"}


def truth(index, column):
    row = TRUTH[index]
    if column in TOKENS or column == "reasoning_tokens":
        # Most logs show one of the two choices of request 12.
        return 685 if (index, column) == (TWO_CHOICES, "output_tokens") else int(row[column])
    if column == "cached_tokens":
        return int(row["cached_input_tokens"])
    if column in ("ttft_s", "e2e_s"):
        return float(row[column]) if row[column] else None
    special = {
        "streamed": row["stream"] == "True",
        "status": STATUS[row["status"]],
        "finish": row["finish_reason"] or None,
    }
    return special[column] if column in special else row[column]


def arrival_s(index):
    return datetime.fromisoformat(TRUTH[index]["arrival_utc"]).timestamp()


@dataclass
class Sample:
    """What a format can say, row by row in the order of the list."""

    file: str
    columns: tuple[str, ...]
    rows: tuple[int, ...] = ALL
    unknown: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Column -> requests for which it must be null."""
    differs: dict[tuple[int, str], object] = field(default_factory=dict)
    """Where the format holds another value, and rightly so."""
    tolerance_s: float = 0.0005
    late_s: dict[int, float] = field(default_factory=dict)
    zone: str | None = None


NO_TOKENS = dict.fromkeys(TOKENS, BAD)
LITELLM = {
    "columns": (*TOKENS, "cached_tokens", "e2e_s", "ttft_s", "status", "model", "tenant", "session"),
    "unknown": {
        **dict.fromkeys(("input_tokens", "output_tokens", "cached_tokens", "e2e_s"), (REJECTED, FAILED)),
        "ttft_s": (3, CUT, 7, REJECTED, 11, 12, FAILED, 19),
    },
    "differs": {(CUT, "status"): "ok", (TWO_CHOICES, "output_tokens"): 1370},
    "late_s": {REJECTED: 0.031, FAILED: 60.002},
}
PUBLIC = {
    "columns": TOKENS,
    "differs": {(REJECTED, "output_tokens"): 1, (FAILED, "output_tokens"): 1},
}
HASHED = {"columns": TOKENS, "tolerance_s": 0.0011}
BURST_BAD = {(CUT, "output_tokens"): 0}
DONE = tuple(index for index in ALL if index not in BAD)

SAMPLES = [
    Sample("litellm_spendlogs.jsonl", **LITELLM),
    Sample("litellm_spendlogs_pg_export.csv", **LITELLM),
    Sample(
        "otel_genai_spans_otlp.json",
        (*TOKENS, "e2e_s", "streamed", "status", "model"),
        unknown=NO_TOKENS,
        differs={(REJECTED, "status"): "error"},
    ),
    Sample(
        "langfuse_observations.json",
        (*TOKENS, "cached_tokens", "ttft_s", "e2e_s", "status", "model", "tenant", "session"),
        unknown={**NO_TOKENS, "cached_tokens": BAD},
    ),
    Sample(
        "helicone_requests.jsonl",
        (*TOKENS, "cached_tokens", "e2e_s", "ttft_s", "status", "model", "tenant", "session"),
        unknown={**NO_TOKENS, "cached_tokens": BAD, "ttft_s": (3, 7, 8, 11, 12, 15, 19)},
    ),
    Sample(
        "portkey_logs_export.jsonl",
        (*TOKENS, "e2e_s", "streamed", "status", "model", "tenant", "session"),
        unknown=NO_TOKENS,
    ),
    Sample(
        "openrouter_generations.csv",
        (*TOKENS, "cached_tokens", "reasoning_tokens", "ttft_s", "streamed", "status", "finish", "session"),
        rows=tuple(index for index in ALL if index not in (REJECTED, FAILED)),
    ),
    Sample(
        "envoy_ai_gateway_access_log.jsonl",
        (*TOKENS, "reasoning_tokens", "ttft_s", "e2e_s", "status", "model", "session"),
        unknown={**NO_TOKENS, "reasoning_tokens": BAD},
    ),
    Sample("kong_ai_proxy_log.jsonl", (*TOKENS, "e2e_s", "status", "model", "tenant"), unknown=NO_TOKENS),
    Sample(
        "bedrock_invocation_log.jsonl",
        (*TOKENS, "cached_tokens", "e2e_s", "streamed", "tenant"),
        unknown={"output_tokens": BAD, "e2e_s": BAD},
        tolerance_s=1.0,
        late_s={CUT: 4.0, FAILED: 60.0},
    ),
    Sample(
        "azure_apim_gateway_llm_log.csv",
        (*TOKENS, "streamed", "model"),
        rows=ALL[:14],
        unknown=dict.fromkeys(TOKENS, (CUT, REJECTED)),
        zone="UTC",
    ),
    Sample(
        "azure_openai_requestresponse.jsonl",
        (*TOKENS, "e2e_s", "streamed", "status", "model"),
        unknown=dict.fromkeys(TOKENS, ALL),
    ),
    Sample(
        "sglang_request_log.jsonl",
        (*TOKENS, "cached_tokens", "e2e_s", "streamed"),
        rows=tuple(index for index in ALL[:16] if index != REJECTED),
        zone="UTC",
    ),
    Sample("tgi_router.log", ("e2e_s", *TOKENS), rows=DONE, unknown=dict.fromkeys(TOKENS, DONE)),
    Sample(
        "llamacpp_response_timings.jsonl",
        (*TOKENS, "cached_tokens", "model"),
        rows=tuple(index for index in ALL[:14] if index not in BAD),
        tolerance_s=1.0,
    ),
    Sample("trace_azure_2023_format.csv", **PUBLIC, zone="UTC"),
    Sample("trace_azure_2024_format.csv", **PUBLIC, tolerance_s=0.98),
    Sample("trace_azure_2025_multimodal_format.csv", **PUBLIC, zone="UTC"),
]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.file)
def test_sample_says_what_it_can_and_no_more(sample):
    reading = read_rows(LOGS / sample.file, ReadOptions(zone=sample.zone))
    assert reading.rows_read == reading.rows.height + sum(reading.dropped.values())
    assert reading.rows.height == len(sample.rows)
    for index, row in zip(sample.rows, reading.rows.to_dicts(), strict=True):
        late_s = row["arrival_ns"] / 1e9 - arrival_s(index)
        assert late_s == pytest.approx(sample.late_s.get(index, 0.0), abs=sample.tolerance_s), index
        for column in sample.columns:
            expected = sample.differs.get((index, column), truth(index, column))
            if index in sample.unknown.get(column, ()):
                expected = None
            wanted = pytest.approx(expected, abs=1e-6) if isinstance(expected, float) else expected
            assert row[column] == wanted, (index, column)


@pytest.mark.parametrize("name", ["trace_burstgpt_v1_6col.csv", "trace_burstgpt_v3_8col.csv"])
def test_burstgpt_by_name_in_whole_seconds(name):
    reading = read_rows(LOGS / name)
    rows = reading.rows.to_dicts()
    # The clock counts from an instant of its own: 5 s before the first sample.
    shift_s = rows[0]["arrival_ns"] / 1e9 - arrival_s(0)
    for index, row in enumerate(rows):
        assert row["arrival_ns"] / 1e9 - arrival_s(index) - shift_s == pytest.approx(0, abs=1.01)
        if index not in BAD:
            assert (row["input_tokens"], row["output_tokens"]) == (
                truth(index, "input_tokens"),
                truth(index, "output_tokens"),
            )
        else:
            assert row["output_tokens"] == 0
    assert reading.clock == "relative"
    sessions = [row.get("session") for row in rows]
    assert sessions[1] == ("sess-000" if "v3" in name else None)
    assert set(reading.rows["label"]) == {"API log", "Conversation log"}


@pytest.mark.parametrize("name", ["trace_mooncake_blksz512.jsonl", "trace_qwen_bailian_blksz16.jsonl"])
def test_hashed_traces(name):
    reading = read_rows(LOGS / name)
    rows = reading.rows.to_dicts()
    shift_s = rows[0]["arrival_ns"] / 1e9 - arrival_s(0)
    for index, row in enumerate(rows):
        assert row["arrival_ns"] / 1e9 - arrival_s(index) - shift_s == pytest.approx(0, abs=0.0011)
        assert row["input_tokens"] == truth(index, "input_tokens")
        size = 512 if "mooncake" in name else 16
        assert len(row["hash_ids"]) == -(-row["input_tokens"] // size)
    if "bailian" in name:
        assert len(set(reading.rows["session"])) < 20


def test_usage_objects_of_four_vendors():
    reading = read_rows(LOGS / "provider_usage_objects.jsonl")
    for index, row in enumerate(reading.rows.to_dicts()):
        expected = {column: truth(index, column) for column in (*TOKENS, "cached_tokens")}
        if index == TWO_CHOICES:
            expected["output_tokens"] = 1370
        if index in BAD:
            expected = dict.fromkeys(expected)
        assert {column: row[column] for column in expected} == expected, index
        if row["arrival_ns"] is not None:
            assert arrival_s(index) - row["arrival_ns"] / 1e9 == pytest.approx(0.5, abs=0.5)
    assert sum(row["arrival_ns"] is None for row in reading.rows.to_dicts()) == 4
    assert any("carry no time" in text for text in reading.warnings)


def test_the_last_usage_of_a_stream_counts_and_a_cut_stream_is_unknown():
    reading = read_rows(LOGS / "openai_stream_chunks.jsonl")
    whole, cut = reading.rows.to_dicts()
    assert (whole["input_tokens"], whole["output_tokens"], whole["cached_tokens"]) == (31, 9, 16)
    assert (cut["input_tokens"], cut["output_tokens"]) == (None, None)
    assert reading.dropped == {"further chunk of a stream": 6}


def test_an_early_zero_usage_does_not_win(tmp_path):
    chunks = [{"prompt_tokens": 0, "completion_tokens": 0}, None, {"prompt_tokens": 7, "completion_tokens": 3}]
    lines = [
        json.dumps({"id": "a", "object": "chat.completion.chunk", "created": 1774746000, "usage": usage})
        for usage in chunks
    ]
    path = tmp_path / "s.jsonl"
    path.write_text("\n".join(lines))
    row = read_rows(path).rows.to_dicts()[0]
    assert (row["input_tokens"], row["output_tokens"]) == (7, 3)


def test_responses_from_the_gateways_own_cache_never_reached_a_gpu(tmp_path):
    text = (LOGS / "litellm_spendlogs.jsonl").read_text().replace('"cache_hit": "False"', '"cache_hit": "True"', 3)
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    _, quality = read_trace(path)
    assert quality.rows_dropped["answered from the gateway's response cache"] == 3
    assert quality.rows_read == quality.rows_kept + sum(quality.rows_dropped.values()) == 20


def test_one_call_over_several_rows_is_one_call():
    reading = read_rows(LOGS / "azure_apim_gateway_llm_log.csv")
    assert reading.dropped == {"further row of a call": 4}
    assert reading.rows_read == 18


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        # Total of the row decides whether cached tokens are inside.
        ({"input": 106, "input_cached_tokens": 80, "output": 131, "total": 237}, (106, 131)),
        ({"input": 26, "input_cached_tokens": 80, "output": 131, "total": 237}, (106, 131)),
        (
            {"input": 26, "input_cached_tokens": 80, "output": 40, "output_reasoning_tokens": 91, "total": 237},
            (106, 131),
        ),
        (
            {"input": 106, "input_cached_tokens": 80, "output": 131, "output_reasoning_tokens": 91, "total": 237},
            (106, 131),
        ),
        # Without a total the habit of the format holds, unless it cannot.
        ({"input": 26, "input_cached_tokens": 80, "output": 40}, (106, 40)),
    ],
)
def test_cached_and_reasoning_are_counted_once(tmp_path, usage, expected):
    record = {
        "id": "x",
        "traceId": "t",
        "type": "GENERATION",
        "startTime": "2026-01-01T00:00:00Z",
        "usageDetails": usage,
    }
    path = tmp_path / "o.json"
    path.write_text(json.dumps({"data": [record]}))
    row = read_rows(path).rows.to_dicts()[0]
    assert (row["input_tokens"], row["output_tokens"]) == expected


@pytest.mark.parametrize(
    "name", ["azure_openai_requestresponse.jsonl", "tgi_router.log", "vllm_server.log", "vllm_server_0_9.log"]
)
def test_logs_without_token_counts_make_no_trace(name):
    with pytest.raises(BadInput, match="input tokens unknown"):
        read_trace(LOGS / name)


def test_vllm_log_gives_arrivals_and_never_a_prompt():
    reading = read_rows(LOGS / "vllm_server.log")
    assert reading.rows.height == 20
    gaps = [(row["arrival_ns"] - reading.rows["arrival_ns"][0]) / 1e9 for row in reading.rows.to_dicts()]
    assert gaps == pytest.approx([int(arrival_s(index)) - int(arrival_s(0)) for index in ALL], abs=1)
    old = read_rows(LOGS / "vllm_server_0_9.log")
    assert old.rows.height == 1
    assert "redacted" not in str(old.rows.to_dicts())
    assert reading.clock == "naive"


@pytest.mark.parametrize("text", ["412.1µs", "6.802ms", "1.559s", "80ns"])
def test_rust_durations(text):
    from tokenfleet.workload.formats.engine_logs import rust_s

    units = {"µs": 1e-6, "ms": 1e-3, "ns": 1e-9}
    unit = next((unit for unit in units if text.endswith(unit)), "s")
    assert rust_s(text) == pytest.approx(float(text.removesuffix(unit)) * units.get(unit, 1.0))
    assert rust_s("soon") is None


@pytest.mark.parametrize("name", ["litellm_spendlogs.jsonl", "langfuse_observations.json", "helicone_requests.jsonl"])
def test_a_call_and_its_retry_are_one_demand(name):
    _, quality = read_trace(LOGS / name)
    assert quality.rows_dropped["retried: the call that succeeded is kept"] == 1
    assert "rejected, unmet demand" not in quality.rows_dropped


def test_unmet_demand_is_said_and_can_be_kept():
    _, quality = read_trace(LOGS / "helicone_requests.jsonl")
    assert quality.rows_kept == 17
    assert any("lost their counts: 2, 10.5% of all" in text for text in quality.warnings)
    trace, quality = read_trace(LOGS / "helicone_requests.jsonl", unfinished="impute")
    assert quality.rows_kept == 19 == quality.rows_read - sum(quality.rows_dropped.values())
    assert quality.detected["imputed"] == "lengths of 2 of 19 requests"
    # Request 5 is of a model whose other calls have these outputs.
    same = {
        truth(index, "output_tokens") for index in ALL if TRUTH[index]["model"] == "gpt-oss-120b" and index not in BAD
    }
    assert int(trace.output_tokens[5]) in same
    again, _ = read_trace(LOGS / "helicone_requests.jsonl", unfinished="impute")
    assert again.output_tokens.tobytes() == trace.output_tokens.tobytes()


def test_the_same_records_in_other_wrappings(tmp_path):
    records = [json.loads(line) for line in (LOGS / "litellm_spendlogs.jsonl").read_text().splitlines()]
    listed = tmp_path / "list.json"
    listed.write_text(json.dumps(records, indent=1))
    assert read_rows(listed).rows.equals(
        read_rows(LOGS / "litellm_spendlogs.jsonl").rows.with_columns(line=read_rows(listed).rows["line"])
    )
    spans = json.loads((LOGS / "otel_genai_spans_otlp.json").read_text())
    lines = tmp_path / "spans.jsonl"
    lines.write_text(json.dumps(spans) + "\n" + json.dumps(spans) + "\n")
    _, quality = read_trace(lines)
    # The second export repeats the spans of the first.
    assert quality.rows_dropped["duplicate request id"] == 20
    assert quality.rows_read == 40


@pytest.mark.parametrize("name", ["langfuse_observations.json", "otel_genai_spans_otlp.json"])
def test_documents_too_long_for_a_look_are_still_found_out(tmp_path, name):
    document = json.loads((LOGS / name).read_text())
    entries = document["data"] if "data" in document else document["resourceSpans"]
    entries *= 60
    path = tmp_path / name
    path.write_text(json.dumps(document))
    assert path.stat().st_size > 300_000
    assert read_rows(path).rows.height == 1200


def test_a_long_list_of_spend_logs_is_found_out(tmp_path):
    records = [json.loads(line) for line in (LOGS / "litellm_spendlogs.jsonl").read_text().splitlines()] * 30
    path = tmp_path / "list.json"
    path.write_text(json.dumps(records))
    trace, quality = read_trace(path)
    assert quality.detected["format"] == "LiteLLM spend log"
    assert trace.request_count == 18


def test_every_sample_is_read_by_a_test_of_its_own():
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [path.name for path in LOGS.iterdir() if path.name not in tests] == []


@needs_shared
@pytest.mark.shared
def test_no_sample_is_left_out():
    given = {path.name for path in (SHARED / "data" / "log_samples").iterdir() if path.suffix != ".md"}
    assert given - {path.name for path in LOGS.iterdir()} == {"bench"}
