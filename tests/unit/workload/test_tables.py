"""Tables of all kinds, and the questions that a reader must ask instead of guessing."""

import gzip
import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfleet.domain.errors import BadInput
from tokenfleet.workload import read_trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319601,3180,8"
)


def written(tmp_path, text, name="log.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def read(tmp_path, text, name="log.csv", **more):
    return read_trace(written(tmp_path, text, name), **more)


def problem_of(tmp_path, text, name="log.csv", **more):
    with pytest.raises(BadInput) as error:
        read(tmp_path, text, name, **more)
    return str(error.value)


def test_azure_with_seven_digits_crlf_and_no_last_newline(tmp_path):
    trace, quality = read(tmp_path, AZURE)
    assert trace.input_tokens.tolist() == [4808, 3180]
    assert trace.output_tokens.tolist() == [10, 8]
    assert trace.arrival_s.tolist() == pytest.approx([0, 0.0520001], abs=1e-9)
    assert quality.rows_read == quality.rows_kept == 2
    assert "7 digits" in quality.detected["time unit"]
    # No zone, no instant; but a time of day, by the log's own clock.
    assert trace.start_utc is None
    assert trace.time_of_day_s == pytest.approx(18 * 3600 + 17 * 60 + 3.97996)


def test_letters_of_every_script_count_in_names_of_columns(tmp_path):
    row = "\n2026-11-20 19:00:00,5,6,7\n"
    # When a call ended is not when it arrived.
    problem = problem_of(tmp_path, "结束time,首字latency,输入tokens,输出tokens" + row)
    assert "no column for arrival; say columns" in problem
    assert "no column for input_tokens; is it '输入tokens'?" in problem
    chinese = "请求时间,用时,输入token数,输出token数"
    problem = problem_of(tmp_path, chinese + row)
    for role, name in (("arrival", "请求时间"), ("input_tokens", "输入token数"), ("output_tokens", "输出token数")):
        assert f"no column for {role}; is it '{name}'? say columns: {{{role}: \"{name}\"}}" in problem
    problem = problem_of(tmp_path, (chinese + row).encode("gb18030"))
    assert problem.count("hold bytes that are no UTF-8: save the log as UTF-8") == 3
    assert "is it" not in problem


def test_gzip_and_byte_order_mark_make_no_difference(tmp_path):
    plain = read(tmp_path, AZURE)[0]
    packed, quality = read(tmp_path, gzip.compress(b"\xef\xbb\xbf" + AZURE.encode()), "log.csv.gz")
    assert packed.arrival_s.tobytes() == plain.arrival_s.tobytes()
    assert "gzip" in quality.detected["format"]


def test_csv_json_lines_and_parquet_read_alike(tmp_path):
    frame = pl.DataFrame({"arrival_ms": [0, 1500, 4000], "prompt_tokens": [5, 6, 7], "completion_tokens": [1, 2, 3]})
    frame.write_csv(tmp_path / "a.csv")
    frame.write_ndjson(tmp_path / "a.jsonl")
    frame.write_parquet(tmp_path / "a.parquet")
    for name in ("a.csv", "a.jsonl", "a.parquet"):
        trace, quality = read_trace(tmp_path / name)
        assert trace.arrival_s.tolist() == [0, 1.5, 4]
        assert trace.input_tokens.tolist() == [5, 6, 7]
        assert trace.output_tokens.tolist() == [1, 2, 3]
        assert quality.detected["time unit"] == "ms"
        assert "input_tokens=prompt_tokens" in quality.detected["columns"]


def test_a_column_mapping_comes_first(tmp_path):
    text = "when_s,a,b,prompt_tokens\n0,1,2,9\n1,3,4,9\n"
    trace, _ = read(tmp_path, text, columns={"arrival": "when_s", "input_tokens": "a", "output_tokens": "b"})
    assert trace.input_tokens.tolist() == [1, 3]
    problem = problem_of(tmp_path, text, columns={"arrival": "when_a", "input_tokens": "a", "output": "b"})
    assert "did you mean 'when_s'" in problem
    assert "columns.output: there is no such role; did you mean output_tokens? roles: arrival, input_tokens" in problem
    assert "no column for output_tokens" not in problem, "it is the same mistake, and one mend does for it"


@pytest.mark.parametrize(
    ("word", "role"),
    [
        *(("time", "arrival"), ("timestamp", "arrival"), ("ts", "arrival"), ("when", "arrival"), ("arival", "arrival")),
        *(("prompt", "input_tokens"), ("input", "input_tokens"), ("Prompt Tokens", "input_tokens")),
        *(("context", "input_tokens"), ("completion", "output_tokens"), ("output", "output_tokens")),
        *(("generated", "output_tokens"), ("user", "tenant"), ("customer", "tenant"), ("org", "tenant")),
        *(("conversation", "session"), ("latency", "e2e"), ("cached", "cached_tokens")),
    ],
)
def test_a_word_for_a_role_leads_to_the_role(tmp_path, word, role):
    problem = problem_of(tmp_path, "a_s,b,c\n0,1,2\n", columns={word: "b"})
    assert f"columns.{word}: there is no such role; did you mean {role}? roles: arrival, " in problem


def test_a_word_for_no_role_leads_to_none_and_is_told_once_for_all_files(tmp_path):
    paths = [written(tmp_path, "time_s,input_tokens,output_tokens\n0,1,2\n", name) for name in ("a.csv", "b.csv")]
    with pytest.raises(BadInput) as error:
        read_trace(paths, columns={"qqq": "time_s"})
    assert [problem.where for problem in error.value.problems] == ["columns.qqq"]
    assert error.value.problems[0].mend.startswith("roles: arrival, ")


def test_missing_columns_are_all_named_with_the_nearest(tmp_path):
    problem = problem_of(tmp_path, "arival_time,promt_tokens,model\n1,2,x\n")
    assert problem.count("no column for") == 3
    assert "is it 'arival_time'? say columns: {arrival: arival_time}; columns: arival_time," in problem
    assert "is it 'promt_tokens'? say columns: {input_tokens: promt_tokens}" in problem
    assert "say columns: {output_tokens: NAME}, NAME one of: arival_time, promt_tokens, model" in problem
    spaced = problem_of(tmp_path, "Start of arrival_time,input_tokens,output_tokens\n1,2,3\n")
    assert 'say columns: {arrival: "Start of arrival_time"}' in spaced


def test_two_candidates_for_a_token_count_are_a_question(tmp_path):
    problem = problem_of(tmp_path, "time_s,prompt_tokens,input_tokens,output_tokens\n1,2,3,4\n")
    assert "'input_tokens' or 'prompt_tokens'" in problem


def test_numbers_without_a_unit_are_a_question(tmp_path):
    text = "time,input_tokens,output_tokens\n0,1,1\n100,2,2\n"
    assert "say time_unit: s, or ms, us, ns" in problem_of(tmp_path, text)
    trace, quality = read(tmp_path, text, time_unit="ms")
    assert trace.duration_s == pytest.approx(0.1)
    assert quality.detected["time unit"] == "ms"


@pytest.mark.parametrize(
    ("stamp", "step"),
    [
        ("1774745895", 1),
        ("1774745895.25", 1),
        ("1774745895250", 1000),
        ("1774745895250000", 10**6),
        ("1774745895250000000", 10**9),
        ("639103426958000000", 10**7),
    ],
)
def test_dates_as_numbers_need_no_unit(tmp_path, stamp, step):
    number = float(stamp) if "." in stamp else int(stamp)
    trace, _ = read(tmp_path, f"time,input_tokens,output_tokens\n{stamp},1,1\n{number + 3 * step},2,2\n")
    assert trace.duration_s == pytest.approx(3)
    assert trace.start_utc.startswith("2026-03-29T00:58:15")


@pytest.mark.parametrize(
    ("stamp", "utc"),
    [
        ("2026-03-29T00:58:15.938Z", "2026-03-29T00:58:15.938000Z"),
        ("2026-03-29 00:58:15+00:00", "2026-03-29T00:58:15Z"),
        ("2026-03-29T02:58:15.5+02:00", "2026-03-29T00:58:15.500000Z"),
        ("2026-03-28T19:28:15-0530", "2026-03-29T00:58:15Z"),
    ],
)
def test_zoned_stamps_of_every_spelling(tmp_path, stamp, utc):
    trace, quality = read(tmp_path, f"time,input_tokens,output_tokens\n{stamp},1,1\n{stamp},1,1\n")
    assert trace.start_utc == utc
    assert quality.detected["zone"] == "written in each stamp"


def test_mixed_naive_and_zoned_stamps_are_a_question(tmp_path):
    text = "time,input_tokens,output_tokens\n2026-01-01T00:00:00,1,1\n2026-01-01T00:00:10+00:00,2,2\n"
    assert "have no time zone" in problem_of(tmp_path, text)
    trace, _ = read(tmp_path, text, zone="Europe/Berlin")
    assert trace.input_tokens.tolist() == [1, 2]
    assert trace.duration_s == pytest.approx(3610)
    assert "did you mean 'Europe/Berlin'" in problem_of(tmp_path, text, zone="Europe/Berln")


def test_the_doubled_hour_in_autumn_is_said(tmp_path):
    rows = "".join(f"2025-10-26 {clock},1,1\n" for clock in ("02:30:00", "02:50:00", "02:10:00", "02:40:00"))
    text = "time,input_tokens,output_tokens\n" + rows
    _, quality = read(tmp_path, text)
    assert any("earlier than the row before" in warning for warning in quality.warnings)
    _, quality = read(tmp_path, text, zone="Europe/Berlin")
    assert "doubled hour" in quality.detected["zone"]


def test_rows_add_up_and_every_drop_has_its_reason(tmp_path):
    rows = [
        "0,10,5,ok,a",
        "1,0,5,ok,b",
        "2,-5,5,ok,c",
        "3,10,0,ok,d",
        "4,,5,ok,e",
        "5,10,,ok,f",
        ",10,5,ok,g",
        "7,10,5,429,h",
        "8,10,0,500,i",
        "9,10,5,ok,a",
        "10,abc,5,ok,j",
        "11,10,-2,ok,k",
        "0,10,5,ok,a",
        "12,99000000000,5,ok,l",
    ]
    _, quality = read(tmp_path, "time_s,input_tokens,output_tokens,status,request_id\n" + "\n".join(rows))
    assert quality.rows_read == len(rows) == quality.rows_kept + sum(quality.rows_dropped.values())
    assert quality.rows_kept == 2
    assert quality.rows_dropped == {
        "duplicate request id": 1,
        "failed": 1,
        "input tokens below 1": 2,
        "input tokens unknown": 2,
        "output tokens 0: failed or cut": 1,
        "output tokens below 0": 1,
        "output tokens unknown": 1,
        "rejected, unmet demand": 1,
        "time unknown": 1,
        "tokens above 50 million": 1,
    }


def test_a_mistyped_year_does_not_stretch_the_trace(tmp_path):
    stamps = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:05Z", "2026-01-01T00:00:09Z")
    stamps += ("9026-01-01T00:00:10Z", "2610-07-22T00:00:00Z", "2226-01-01T00:00:00Z")
    trace, quality = read(tmp_path, "time,input_tokens,output_tokens\n" + "".join(f"{stamp},5,5\n" for stamp in stamps))
    assert quality.rows_dropped == {"time more than two years from the median": 1, "time unknown": 2}
    assert trace.duration_s == 9


def test_zero_output_may_be_prefill_only_traffic(tmp_path):
    text = "time_s,input_tokens,output_tokens\n0,10,0\n5,12,0\n"
    assert "embedding" in problem_of(tmp_path, text)
    trace, quality = read(tmp_path, text, zero_output="keep")
    assert trace.output_tokens.tolist() == [0, 0]
    assert quality.rows_kept == 2


def test_rows_out_of_order_are_sorted_and_said(tmp_path):
    trace, quality = read(tmp_path, "time_s,input_tokens,output_tokens\n5,1,1\n0,2,2\n9,3,3\n")
    assert trace.input_tokens.tolist() == [2, 1, 3]
    assert any("1 rows are earlier" in text for text in quality.warnings)


def test_cached_tokens_above_input_show_that_input_excludes_them(tmp_path):
    text = "time_s,input_tokens,cached_tokens,output_tokens\n0,5,130000,7\n1,10,0,7\n"
    trace, quality = read(tmp_path, text)
    assert trace.input_tokens.tolist() == [130005, 10]
    assert quality.detected["cached inside input"].startswith("no: added")
    trace, quality = read(tmp_path, text.replace("130000", "3"))
    assert trace.input_tokens.tolist() == [5, 10]
    assert quality.detected["cached inside input"].startswith("yes")
    trace, _ = read(tmp_path, text.replace("130000", "3"), cached="outside")
    assert trace.input_tokens.tolist() == [8, 10]


def test_labels_and_times_are_kept_for_describing(tmp_path):
    text = (
        "time_s,input_tokens,output_tokens,model,team,session_id,ttft_ms,stream,finish_reason\n"
        "0,5,6,m1,blue,s1,120,true,stop\n1,5,6,m2,red,s1,-,false,\n2,5,6,m1,,s2,80,1,length\n"
    )
    trace, _ = read(tmp_path, text)
    assert trace.tenants == ("blue", "red")
    assert trace.tenant.tolist() == [0, 1, -1]
    assert trace.session.tolist() == [0, 0, 1]
    assert trace.observed.models == ("m1", "m2")
    assert trace.observed.ttft_s.tolist() == pytest.approx([0.12, np.nan, 0.08], nan_ok=True)
    assert trace.observed.streamed.tolist() == [1, 0, 1]
    assert trace.observed.finish.tolist() == [0, -1, 1]


def test_whole_second_stamps_are_spread_and_said(tmp_path):
    rows = "".join(f"{second},{10 + second},5\n" for second in (0, 0, 0, 3, 3, 7, 9, 9, 9, 9))
    text = "time_s,input_tokens,output_tokens\n" + rows
    trace, quality = read(tmp_path, text)
    assert quality.detected["clock tick"] == "1 s"
    assert len(set(trace.arrival_s.tolist())) == 10
    assert trace.input_tokens.tolist() == [10, 10, 10, 13, 13, 17, 19, 19, 19, 19]
    raw, quality = read(tmp_path, text, spread_ticks=False)
    assert raw.arrival_s.tolist() == [0, 0, 0, 3, 3, 7, 9, 9, 9, 9]
    assert np.all(np.abs(trace.arrival_s - raw.arrival_s) < 1)
    assert any("bursts within a tick are false" in warning for warning in quality.warnings)


def test_a_mooncake_file_in_seconds_is_seen_or_asked_for(tmp_path):
    def lines(stamps):
        return "".join(
            json.dumps({"timestamp": stamp, "input_length": 600, "output_length": 5, "hash_ids": [index, 1000 + index]})
            + "\n"
            for index, stamp in enumerate(stamps)
        )

    _, quality = read(tmp_path, lines([0, 0.5, 1.25]), "t.jsonl")
    assert quality.detected["time unit"] == "s"
    _, quality = read(tmp_path, lines([0, 900, 1800]), "t.jsonl")
    assert quality.detected["time unit"] == "ms"
    assert "say time_unit: ms, or s" in problem_of(tmp_path, lines(range(500)), "t.jsonl")


def test_hashes_of_another_block_size_are_seen(tmp_path):
    def lines(size):
        return "".join(
            json.dumps(
                {"timestamp": 900 * i, "input_length": 40, "output_length": 5, "hash_ids": list(range(-(-40 // size)))}
            )
            + "\n"
            for i in range(3)
        )

    trace, quality = read(tmp_path, lines(16), "t.jsonl")
    assert quality.detected["prefix blocks"] == "16 tokens"
    assert trace.prefixes.depth_tokens.tolist() == [40]
    trace, quality = read(tmp_path, lines(7), "t.jsonl")
    assert trace.prefixes is None
    assert any("do not fit input_length" in warning for warning in quality.warnings)


def test_files_that_count_from_starts_of_their_own_are_not_joined(tmp_path):
    one = written(tmp_path, "time_s,input_tokens,output_tokens\n0,1,1\n5,2,2\n", "a.csv")
    two = written(tmp_path, "time,input_tokens,output_tokens\n2026-01-01T00:00:00Z,1,1\n", "b.csv")
    three = written(tmp_path, "time,input_tokens,output_tokens\n2026-01-01T00:00:30,1,1\n", "c.csv")
    with pytest.raises(BadInput, match="a start of its own"):
        read_trace([one, one])
    with pytest.raises(BadInput, match="read them one by one"):
        read_trace([one, two])
    with pytest.raises(BadInput, match="name the zone"):
        read_trace([two, three])
    trace, quality = read_trace([two, three], zone="UTC")
    assert trace.arrival_s.tolist() == [0, 30]
    assert quality.rows_read == 2


def test_files_that_cannot_be_read_are_all_named(tmp_path):
    written(tmp_path, AZURE, "traffic.csv")
    empty = written(tmp_path, "\n", "empty.csv")
    binary = written(tmp_path, b"\x00\x01\x02", "x.bin")
    broken = written(tmp_path, gzip.compress(AZURE.encode())[:-20], "cut.csv.gz")
    with pytest.raises(BadInput) as error:
        read_trace([tmp_path / "trafic.csv", empty, binary, broken, tmp_path])
    words = [str(problem) for problem in error.value.problems]
    assert len(words) == 5
    assert "did you mean 'traffic.csv'" in words[0]
    assert "is empty" in words[1]
    assert "binary" in words[2]
    assert "broken gzip" in words[3]
    assert "is a folder" in words[4]
    with pytest.raises(BadInput, match="none given"):
        read_trace([])
    with pytest.raises(BadInput, match="did you mean 'azure'"):
        read_trace(tmp_path / "traffic.csv", format="azur")


def test_a_file_that_is_mostly_broken_is_refused_and_can_be_allowed(tmp_path):
    text = "time,input_tokens,output_tokens\n" + "2026-01-01T00:00:00Z,5,5\n" * 6 + ",5,5\n" * 8
    assert "log.csv: 8 of 14 rows have no record or no time" in problem_of(tmp_path, text)
    _, quality = read(tmp_path, text, most_broken_fraction=0.7)
    assert quality.rows_kept == 6


def test_a_header_alone_has_no_usable_row(tmp_path):
    problem = problem_of(tmp_path, "time_s,input_tokens,output_tokens\n")
    assert problem == f"{tmp_path / 'log.csv'}: has no rows; export the log again, with its rows"


def test_rows_without_output_name_the_file_and_the_way_to_keep_them(tmp_path):
    problem = problem_of(tmp_path, "time_s,input_tokens,output_tokens\n0,5,0\n1,5,0\n")
    assert problem.startswith(f"{tmp_path / 'log.csv'}: none of its rows can be used (2 x output tokens 0")
    assert "zero_output: keep" in problem


@pytest.mark.parametrize(
    ("rows", "lines", "kept"),
    [
        (['1,2,3,"said"', '2,3,4,"my secret', "3,4,5,x"], [3], [2, 4]),
        (['1,2,3,"two', 'lines"', '2,3,4,"my secret"x', "3,4,5,x"], [4], [2, 4]),
        (["1,2,3,x", "2,3,4,x", '3,4,5,my "secret', "4,5,6,x"], [], [2, 3, 4, 5]),
        (['1,"2,3,x', "2,3,4,x", '3,"4",5,x', '4,"5",6,x'], [2], [3, 4, 5]),
        (["1,2,3,x,more", "2,3,4,x,", "3,4,5,x,,"], [2], [3, 4]),
    ],
)
def test_a_row_that_is_none_costs_only_itself_and_is_named_by_its_line(tmp_path, rows, lines, kept):
    text = "\n".join(["time_s,input_tokens,output_tokens,tenant", *rows])
    trace, quality = read(tmp_path, text, most_broken_fraction=1.0)
    assert trace.input_tokens.tolist() == kept
    assert [reject.where.rsplit(":", 1)[1] for reject in quality.rejects] == [str(line) for line in lines]
    assert {reject.reason for reject in quality.rejects} <= {"not a record"}
    assert quality.rows_read == len(kept) + len(lines)


def test_a_broken_record_costs_only_itself_and_a_file_of_them_is_refused(tmp_path):
    record = '{"time_s": 0, "input_tokens": 5, "output_tokens": 6}\n'
    _, quality = read(tmp_path, record * 2 + record[:20] + "\n\n" + record, "log.jsonl")
    assert (quality.rows_kept, quality.rows_dropped) == (3, {"not a record": 1})
    assert quality.rejects[0].where == f"{tmp_path / 'log.jsonl'}:3"
    problem = problem_of(tmp_path, record * 2 + (record[:20] + "\n") * 3, "log.jsonl")
    assert "3 of 5 rows have no record or no time" in problem


def test_a_damaged_parquet_file_is_one_line(tmp_path):
    pl.DataFrame({"time_s": range(999), "input_tokens": [5] * 999, "output_tokens": [6] * 999}).write_parquet(
        tmp_path / "whole.parquet"
    )
    whole = bytearray((tmp_path / "whole.parquet").read_bytes())
    whole[4:400] = b"x" * 396
    problem = problem_of(tmp_path, bytes(whole), "log.parquet")
    assert problem == f"{tmp_path / 'log.parquet'}: cannot be read as Parquet; check the export, or write it again"


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(-3, 5000), st.integers(-3, 5000)), min_size=1, max_size=50
    )
)
def test_no_row_is_ever_lost(tmp_path_factory, rows):
    text = "arrival_ms,input_tokens,output_tokens\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows)
    path = tmp_path_factory.mktemp("x") / "log.csv"
    path.write_text(text)
    good = [row for row in rows if row[1] > 0 and row[2] > 0]
    if not good:
        with pytest.raises(BadInput):
            read_trace(path)
        return
    trace, quality = read_trace(path, spread_ticks=False)
    assert quality.rows_read == len(rows)
    assert quality.rows_kept + sum(quality.rows_dropped.values()) == len(rows)
    assert int(trace.input_tokens.sum()) == sum(row[1] for row in good)
    assert sorted((trace.arrival_s * 1000 + min(row[0] for row in good)).round().astype(int).tolist()) == sorted(
        row[0] for row in good
    )
