"""Logs as people really have them: every line that can be read is read, every other one is counted."""

import bz2
import gzip
import json
import lzma
from pathlib import Path

import pytest

from tokenfleet.domain.errors import BadInput
from tokenfleet.workload import profile_files, read_trace
from tokenfleet.workload.formats.frames import load_text

HEAD = "timestamp,input_tokens,output_tokens\n"
AT = "2026-03-29T00:00:0"

LOGS = {
    # name: content, input tokens, output tokens, arrivals in seconds, rows dropped
    "mark, Windows lines, no last newline": (
        b"\xef\xbb\xbf" + (HEAD + f"{AT}0Z,10,5\n{AT}1Z,20,6").replace("\n", "\r\n").encode(),
        ([10, 20], [5, 6], [0, 1], {}),
    ),
    "old Mac lines": ((HEAD + f"{AT}0Z,10,5\n{AT}1Z,20,6\n").replace("\n", "\r"), ([10, 20], [5, 6], [0, 1], {})),
    "UTF-16 of a spreadsheet": (
        (HEAD + f"{AT}0Z,10,5\n").replace(",", "\t").encode("utf-16"),
        ([10], [5], [0], {}),
    ),
    "offsets of three zones": (
        HEAD + "2026-03-29T02:00:00+02:00,10,5\n2026-03-29 00:00:01 UTC,20,6\n2026-03-28T19:00:02-0500,30,7\n",
        ([10, 20, 30], [5, 6, 7], [0, 1, 2], {}),
    ),
    "offset of half an hour": (HEAD + f"2026-03-28T20:30:00-03:30,10,5\n{AT}1Z,20,6\n", ([10, 20], [5, 6], [0, 1], {})),
    "quoted commas and grouped digits": (
        f'timestamp,model,input_tokens,output_tokens\n"{AT}0Z","a,b","1,234",5\n"{AT}1Z","say ""c""","20","6"\n',
        ([1234, 20], [5, 6], [0, 1], {}),
    ),
    "scientific notation": (
        HEAD + f"{AT}0Z,1e3,5\n{AT}1Z,2.0E2,6.0\n{AT}2Z,1.5,6\n",
        ([1000, 200], [5, 6], [0, 1], {"input tokens unknown": 1}),
    ),
    "numbers that no request has": (
        HEAD + f"{AT}0Z,99999999999999999999,5\n{AT}1Z,20,6\n{AT}2Z,9223372036854775807,6\n{AT}3Z,-4,6\n{AT}4Z,4,-6\n",
        (
            [20],
            [6],
            [0],
            {
                "input tokens unknown": 1,
                "tokens above 50 million": 1,
                "input tokens below 1": 1,
                "output tokens below 0": 1,
            },
        ),
    ),
    "not a number": (
        HEAD + f"{AT}0Z,NaN,5\n{AT}1Z,20,inf\n{AT}2Z,30,7\nNaN,30,6\n",
        ([30], [7], [0], {"input tokens unknown": 1, "output tokens unknown": 1, "time unknown": 1}),
    ),
    "out of order": (
        HEAD + f"{AT}5Z,10,5\n{AT}1Z,20,6\n{AT}3Z,30,7\n",
        ([20, 30, 10], [6, 7, 5], [0, 2, 4], {}),
    ),
    "blank lines": (HEAD + f"\n{AT}5Z,10,5\n\n\n{AT}6Z,11,6\n\n", ([10, 11], [5, 6], [0, 1], {})),
    "a header in the middle": (
        HEAD + f"{AT}0Z,10,5\n" + HEAD + f"{AT}1Z,11,6\n",
        ([10, 11], [5, 6], [0, 1], {"time unknown": 1}),
    ),
    "rows too long and too short": (
        HEAD + f"{AT}0Z,10,5,99\n{AT}1Z,11\n{AT}2Z,12,6\n{AT}3Z,13,7,\n",
        ([12, 13], [6, 7], [0, 1], {"not a record": 1, "output tokens unknown": 1}),
    ),
    "a prompt over two lines": (
        f'timestamp,prompt,input_tokens,output_tokens\n{AT}0Z,"see\n{AT}0Z,1,2,3",10,5\n{AT}1Z,x,20,6\n',
        ([10, 20], [5, 6], [0, 1], {}),
    ),
    "semicolons": ((HEAD + f"{AT}5Z,10,5\n").replace(",", ";"), ([10], [5], [0], {})),
    "tabs": ((HEAD + f"{AT}5Z,10,5\n").replace(",", "\t"), ([10], [5], [0], {})),
    "blanks around cells": (f" timestamp , input_tokens , output_tokens \n {AT}0Z , 10 , 5 \n", ([10], [5], [0], {})),
    "a column that is not UTF-8": (
        b"timestamp,input_tokens,output_tokens,tenant\n2026-03-29T00:00:00Z,10,5,M\xfcller\n",
        ([10], [5], [0], {}),
    ),
    "slashes": (
        HEAD + "2026/03/29 00:00:05,10,5\n2026/03/29 00:00:06.250,11,6\n",
        ([10, 11], [5, 6], [0, 1.25], {}),
    ),
    "month first": (HEAD + "03/29/2026 00:00:05,10,5\n03/29/2026 00:00:06,11,6\n", ([10, 11], [5, 6], [0, 1], {})),
    "day first": (HEAD + "29.03.2026 00:00:05,10,5\n29.03.2026 00:00:06,11,6\n", ([10, 11], [5, 6], [0, 1], {})),
    "of a mail": (
        HEAD + '"Sun, 29 Mar 2026 00:00:05 GMT",10,5\n"Sun, 29 Mar 2026 02:00:06 +0200",11,6\n',
        ([10, 11], [5, 6], [0, 1], {}),
    ),
    "of a web server": (
        HEAD + "29/Mar/2026:02:00:05 +0200,10,5\n29/Mar/2026:00:00:06 +0000,11,6\n",
        ([10, 11], [5, 6], [0, 1], {}),
    ),
    "fractions since 1970": (HEAD + "1774745880.123,10,5\n1774745880.5,11,6\n", ([10, 11], [5, 6], [0, 0.377], {})),
    "microseconds since 1970": (
        HEAD + "1774745880123456,10,5\n1774745880223456,11,6\n",
        ([10, 11], [5, 6], [0, 0.1], {}),
    ),
    "a day that is none": (
        HEAD + f"2026-02-30T00:00:00Z,10,5\n{AT}1Z,20,6\n{AT}2Z,30,7\n",
        ([20, 30], [6, 7], [0, 1], {"time unknown": 1}),
    ),
    "twice the same call": (
        f"id,{HEAD}a,{AT}0Z,10,5\na,{AT}0Z,10,5\nb,{AT}1Z,11,6\n",
        ([10, 11], [5, 6], [0, 1], {"duplicate request id": 1}),
    ),
    "codes of HTTP": (
        f"status_code,{HEAD}200,{AT}0Z,10,5\n429,{AT}0Z,10,0\n500,{AT}1Z,11,0\n499,{AT}1Z,11,7\n",
        ([10, 11], [5, 7], [0, 1], {"rejected, unmet demand": 1, "failed": 1}),
    ),
}


def write(tmp_path, content, name="log.csv"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def must_be(path, expected):
    inputs, outputs, arrivals, dropped = expected
    trace, quality = read_trace(path)
    assert trace.input_tokens.tolist() == inputs
    assert trace.output_tokens.tolist() == outputs
    assert trace.arrival_s.tolist() == pytest.approx(arrivals, abs=1e-6)
    assert quality.rows_dropped == dropped
    assert quality.rows_read == quality.rows_kept + sum(dropped.values())


@pytest.mark.parametrize("name", LOGS)
def test_a_table(tmp_path, name):
    content, expected = LOGS[name]
    path = write(tmp_path, content)
    must_be(path, expected)
    must_be(write(tmp_path, gzip.compress(path.read_bytes()), "log.csv.gz"), expected)
    if "duplicate request id" not in expected[3]:
        counted = profile_files(path)
        assert counted.quality.rows_dropped == expected[3]
        assert int(counted.minute_input_tokens.sum()) == sum(expected[0])


def record(second, **fields):
    return {"timestamp": f"{AT}{second}Z", "input_tokens": 10, "output_tokens": 5, **fields}


JSON_LINES = {
    "counts as text": ([record(0, input_tokens="12", output_tokens="5")], [12], {}),
    "counts of both kinds": ([record(0), record(1, input_tokens="12"), record(2, input_tokens=7.0)], [10, 12, 7], {}),
    "no count": ([record(0, input_tokens=None), record(1, input_tokens=True), record(2)], [10], {"unknown": 2}),
    "not a number": ([record(0, input_tokens=float("nan")), record(1)], [10], {"unknown": 1}),
    "a list for a count": ([record(0, input_tokens=[1]), record(1)], [10], {"unknown": 1}),
    "a status that only failures have": ([record(0), record(1, output_tokens=0, status=429)], [10], {"rejected": 1}),
    "cached tokens that only later rows have": ([record(0), record(1, input_tokens=1, cached_tokens=9)], [10, 10], {}),
    "not records": ([record(0), 5, None, "x", [1], record(1)], [10, 10], {"record": 4}),
}


@pytest.mark.parametrize("name", JSON_LINES)
def test_json_lines(tmp_path, name):
    records, inputs, dropped = JSON_LINES[name]
    path = write(tmp_path, "".join(json.dumps(each) + "\n" for each in records), "log.jsonl")
    trace, quality = read_trace(path, most_broken_fraction=0.9)
    assert trace.input_tokens.tolist() == inputs
    assert {
        word: quality.rows_dropped[key] for word in dropped for key in quality.rows_dropped if word in key
    } == dropped
    assert quality.rows_read == len(records)


def test_lines_of_rejects_are_those_of_the_file(tmp_path):
    lines = [json.dumps(record(0)), "", "{broken", json.dumps(record(1, output_tokens=None)), "", json.dumps(record(2))]
    _, quality = read_trace(write(tmp_path, "\n".join(lines), "log.jsonl"))
    found = [(each.where.rsplit(":", 1)[1], each.reason) for each in quality.rejects]
    assert found == [("3", "not a record"), ("4", "output tokens unknown")]
    text = f'timestamp,prompt,input_tokens,output_tokens\n{AT}0Z,"a\n\nb",10,5\n\n{AT}1Z,x,0,6\n{AT}2Z,x,9,6\n'
    _, quality = read_trace(write(tmp_path, text))
    assert [each.where.rsplit(":", 1)[1] for each in quality.rejects] == ["6"]


def test_fields_inside_records_are_columns(tmp_path):
    rows = [{"ts": f"{AT}{place}Z", "tokens": {"in": 10 + place, "out": 5, "all": 1}} for place in range(3)]
    path = write(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "log.jsonl")
    assert read_trace(path)[0].input_tokens.tolist() == [10, 11, 12]
    assert int(profile_files(path).minute_input_tokens.sum()) == 33
    assert read_trace(path, columns={"output_tokens": "tokens.all"})[0].output_tokens.tolist() == [1, 1, 1]
    with pytest.raises(BadInput, match=r"did you mean 'tokens\.in'"):
        read_trace(path, columns={"input_tokens": "tokens"})


def test_a_list_of_records_is_a_table(tmp_path):
    rows = [record(place) for place in range(3)]
    for document in (rows, {"exported": "2026-03-29", "rows": rows}):
        trace, quality = read_trace(write(tmp_path, json.dumps(document), "log.json"))
        assert trace.request_count == 3
        assert quality.detected["format"] == "JSON table"


def test_usage_objects_as_text_of_a_database(tmp_path):
    usage = {"prompt_tokens": 30, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 20}}
    cell = json.dumps(usage).replace('"', '""')
    told = f'created,model,user_id,usage\n1774745880,m,blue,"{cell}"\n1774745881,m,red,"{cell}"\n'
    lines = "".join(
        json.dumps({"created": 1774745880 + place, "model": "m", "user_id": who, "usage": json.dumps(usage)}) + "\n"
        for place, who in enumerate(("blue", "red"))
    )
    for name, content in (("log.csv", told), ("log.jsonl", lines)):
        trace, _ = read_trace(write(tmp_path, content, name))
        assert trace.input_tokens.tolist() == [30, 30]
        assert trace.observed.cached_input_tokens.tolist() == [20, 20]
        assert trace.tenants == ("blue", "red")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        (HEAD, "has no rows"),
        (HEAD + f"{AT}0Z,10,5\n2026-03-29T00:00:01,20,6\n", "1 stamps have no time zone and 1 have one"),
        (HEAD + "04/03/2026 00:00:05,10,5\n", "may begin with the day or with the month"),
        (HEAD + "17,10,5\n19,11,5\n", "may be seconds, milliseconds or less"),
        ("timestamp,input_tokens,output_tokens,input_tokens\n1,2,3,4\n", "2 columns are called .input_tokens."),
    ],
)
def test_what_is_open_is_asked(tmp_path, content, words):
    with pytest.raises(BadInput, match=words):
        read_trace(write(tmp_path, content))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PK\x03\x04\x14\x00", "is a ZIP archive or an Excel workbook"),
        (b"\x28\xb5\x2f\xfd\x00", "is packed with zstd"),
        (bz2.compress(b"a"), "is packed with bzip2"),
        (lzma.compress(b"a"), "is packed with xz"),
        (b"SQLite format 3\x00", "is a SQLite database"),
        (b'{\n "kind": "tokenfleet workload profile",\n "version": 1}', "is a profile of traffic"),
    ],
)
def test_what_is_no_log_is_called_by_its_name(tmp_path, content, words):
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=words):
        read_trace(path)


def test_names_that_are_no_utf_8_are_told(tmp_path):
    path = tmp_path / "old.csv"
    rows = "".join(f"2026-03-29T00:00:0{at}Z,10,5,{name}\n" for at, name in enumerate(("Müller", "Möller", "x")))
    path.write_bytes(f"timestamp,input_tokens,output_tokens,tenant\n{rows}".encode("latin-1"))
    trace, quality = read_trace(path)
    assert len(trace.tenants) == 2
    assert any("held bytes that are no UTF-8" in each and "count as one" in each for each in quality.warnings)
    path.write_text(path.read_text("latin-1"), "utf-8")
    trace, quality = read_trace(path)
    assert len(trace.tenants) == 3
    assert not any("UTF-8" in each for each in quality.warnings)


def test_a_zone_that_does_not_exist_is_told_even_where_no_stamp_needs_it(tmp_path):
    path = write(tmp_path, HEAD + f"{AT}0Z,10,5\n")
    with pytest.raises(BadInput, match="did you mean 'Europe/Berlin'"):
        read_trace(path, zone="Europe/Berln")


def test_whole_minutes_are_spread_and_said(tmp_path):
    rows = "".join(f"2026-03-29 00:{minute:02d},10,5\n" for minute in (5, 5, 6, 6, 8, 8))
    trace, quality = read_trace(write(tmp_path, HEAD + rows))
    assert quality.detected["clock tick"] == "60 s"
    assert len(set(trace.arrival_s.tolist())) == 6


SAMPLES = Path(__file__).resolve().parents[2] / "data" / "logs"
NESTED = (
    "litellm_spendlogs.jsonl",
    "litellm_spendlogs_pg_export.csv",
    "provider_usage_objects.jsonl",
    "openai_stream_chunks.jsonl",
    "langfuse_observations.json",
    "helicone_requests.jsonl",
    "portkey_logs_export.jsonl",
    "openrouter_generations.csv",
    "bedrock_invocation_log.jsonl",
    "envoy_ai_gateway_access_log.jsonl",
    "kong_ai_proxy_log.jsonl",
    "otel_genai_spans_otlp.json",
    "azure_apim_gateway_llm_log.csv",
    "sglang_request_log.jsonl",
    "trace_mooncake_blksz512.jsonl",
    "trace_qwen_bailian_blksz16.jsonl",
)


def wrapped(data):
    """The same records in other wrappings."""
    unix = data.replace(b"\r\n", b"\n")
    yield b"\xef\xbb\xbf" + unix
    yield unix.replace(b"\n", b"\r\n")
    yield unix.rstrip(b"\n")


def rewritten(data):
    """JSON lines as other programs would write them."""
    lines = data.decode().splitlines()
    records = [json.loads(line) for line in lines]
    yield "\n\n".join(lines)
    yield "\n".join([*lines[:2], "{broken", *lines[2:]])
    yield "\n".join(["{broken", *lines])
    yield "[" + ",\n".join(lines) + "]"
    yield json.dumps(records, indent=2)
    for written in (str, float):
        yield "\n".join(json.dumps(json.loads(line, parse_int=written)) for line in lines)


def requests_of(path):
    trace, _ = read_trace(path)
    rounded = [round(arrival, 2) for arrival in trace.arrival_s.tolist()]
    return sorted(zip(rounded, trace.input_tokens.tolist(), trace.output_tokens.tolist(), strict=True))


@pytest.mark.parametrize("name", NESTED)
def test_the_same_records_in_other_wrappings(tmp_path, name):
    data = (SAMPLES / name).read_bytes()
    expected = requests_of(SAMPLES / name)
    for content in (*wrapped(data), *(rewritten(data) if name.endswith(".jsonl") else ())):
        assert requests_of(write(tmp_path, content, name)) == expected


def test_columns_that_a_damaged_stretch_lacks_come_out_empty():
    found = load_text(b'a,b\r"x,1\n2,"3\n4,5\n', "csv", ",", ["c", "a"], where="log.csv")
    assert found.frame.columns == ["c", "a"]
    assert found.frame["c"].null_count() == found.frame.height
    assert len(found.lines) == found.frame.height


def test_exports_that_overlap_are_said_and_folded_where_ids_tell(tmp_path):
    plain = [f"2026-03-29T00:00:{second:02d}.{second}Z,{10 + second},5" for second in range(30)]
    one, two = (
        write(tmp_path, HEAD + "\n".join(rows), name) for rows, name in ((plain, "a.csv"), (plain[5:], "b.csv"))
    )
    trace, quality = read_trace([one, two])
    assert trace.request_count == 55
    assert any("50 rows stand alike in two files" in text for text in quality.warnings)
    named = [f"r{place},{row}" for place, row in enumerate(plain)]
    files = [
        write(tmp_path, "id," + HEAD + "\n".join(rows), name) for rows, name in ((named, "c.csv"), (named[5:], "d.csv"))
    ]
    trace, quality = read_trace(files)
    assert trace.request_count == 30
    assert quality.rows_dropped == {"duplicate request id": 25}
    assert not any("alike" in text for text in quality.warnings)
    apart = write(tmp_path, HEAD + "\n".join(row.replace("03-29", "03-30") for row in plain), "e.csv")
    assert not any("alike" in text for text in read_trace([one, apart])[1].warnings)
