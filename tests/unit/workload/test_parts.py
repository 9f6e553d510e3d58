"""Counting in parts gives what counting the whole gives."""

import codecs
import gzip
import pickle
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tokenfleet.domain.errors import BadInput
from tokenfleet.workload import counting, profile, profile_document, profile_files, read_trace, session_tally, tally
from tokenfleet.workload import parts as cutting

SAME = (
    *("request_count", "duration_s", "mean_rate_per_s", "peak_minute_rate_per_s", "peak_minute_start_s"),
    *("peak_to_mean_minute_requests", "peak_to_mean_minute_tokens", "interarrival_cv", "input_tokens", "output_tokens"),
    *(
        "joint_counts",
        "minute_requests",
        "minute_input_tokens",
        "minute_output_tokens",
        "input_counts",
        "output_counts",
    ),
    "tenant_request_counts",
)


def table(rows=3000, seed=0):
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "time_ms": 1774745880123 + np.cumsum(rng.integers(1, 900, rows)),
            "input_tokens": rng.integers(-1, 4000, rows),
            "output_tokens": rng.integers(0, 900, rows),
            "tenant": rng.choice(["blue", "red", "green"], rows),
        }
    )


def assert_same(whole, parts):
    one, two = profile_document(whole), profile_document(parts)
    for name in SAME:
        assert one[name] == two[name], name
    assert whole.quality.rows_read == parts.quality.rows_read
    assert whole.quality.rows_dropped == parts.quality.rows_dropped
    assert whole.extra["start_utc"] == parts.extra["start_utc"]
    assert whole.quality.detected["columns"] == parts.quality.detected["columns"]


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl", "csv with mark"])
def test_parts_of_a_file_give_the_profile_of_the_whole(tmp_path, kind):
    path = tmp_path / f"log.{kind.split()[0]}"
    writers = {"parquet": pl.DataFrame.write_parquet, "csv": pl.DataFrame.write_csv, "jsonl": pl.DataFrame.write_ndjson}
    writers[kind.split()[0]](table(), path)
    if kind == "csv with mark":
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes().replace(b"\n", b"\r\n"))
    whole = profile(*read_trace(path))
    done = []
    parts = profile_files(path, rows_per_part=700, bytes_per_part=20_000, progress=lambda *step: done.append(step))
    assert_same(whole, parts)
    assert int(parts.quality.detected["parts"]) > 3
    assert done[-1][1] == done[-1][2]


def test_several_files_are_one_clock(tmp_path):
    frame = table()
    frame.head(1000).write_parquet(tmp_path / "a.parquet")
    frame.tail(2000).write_csv(tmp_path / "b.csv")
    frame.write_parquet(tmp_path / "all.parquet")
    files = [tmp_path / "b.csv", tmp_path / "a.parquet"]
    assert_same(profile(*read_trace(tmp_path / "all.parquet")), profile_files(files, rows_per_part=300))


def test_parts_can_be_sent_to_another_process(tmp_path):
    table().write_parquet(tmp_path / "log.parquet")

    def elsewhere(function, parts):
        sent = [pickle.loads(pickle.dumps(part)) for part in parts]
        return [pickle.loads(pickle.dumps(function(part))) for part in sent]

    here = profile_files(tmp_path / "log.parquet", rows_per_part=500)
    there = profile_files(tmp_path / "log.parquet", rows_per_part=500, mapper=elsewhere)
    assert profile_document(here) == profile_document(there)
    assert counting.count_part.__module__ == "tokenfleet.workload.counting"


def test_parts_out_of_order_leave_only_the_gaps_unknown(tmp_path):
    frame = table()
    pl.concat([frame.gather_every(2), frame.gather_every(2, 1)]).write_parquet(tmp_path / "log.parquet")
    frame.write_parquet(tmp_path / "sorted.parquet")
    found = profile_files(tmp_path / "log.parquet", rows_per_part=1500)
    expected = profile(*read_trace(tmp_path / "sorted.parquet"))
    assert np.isnan(found.interarrival_cv)
    assert any("sort the file by time" in text for text in found.quality.warnings)
    assert found.peak_to_mean_minute_tokens == expected.peak_to_mean_minute_tokens
    assert found.minute_requests.tolist() == expected.minute_requests.tolist()


def test_cached_tokens_are_judged_over_all_parts(tmp_path):
    frame = table().filter(pl.col("input_tokens") > 0).with_columns(cached_tokens=pl.lit(10))
    late = pl.int_range(pl.len()) == pl.len() - 1
    frame = frame.with_columns(cached_tokens=pl.when(late).then(5000).otherwise("cached_tokens"))
    frame.write_parquet(tmp_path / "log.parquet")
    found = profile_files(tmp_path / "log.parquet", rows_per_part=500)
    assert found.input_tokens.mean == profile(*read_trace(tmp_path / "log.parquet")).input_tokens.mean


def test_what_cannot_be_cut_is_refused(tmp_path):
    (tmp_path / "a.json").write_text('{"data": [{"a": 1}]}')
    with pytest.raises(BadInput, match="not a table"):
        profile_files(tmp_path / "a.json")
    with pytest.raises(BadInput, match="none given"):
        profile_files([])
    (tmp_path / "b.csv").write_text("time_ms,input_tokens,output_tokens\n1,5,0\n")
    with pytest.raises(BadInput, match=r"b\.csv: none of its rows can be used \(1 x output tokens 0"):
        profile_files(tmp_path / "b.csv")
    (tmp_path / "c.csv").write_text("time_ms,input_tokens,output_tokens\n")
    with pytest.raises(BadInput, match=r"c\.csv: has no rows"):
        profile_files(tmp_path / "c.csv")


def test_bad_lines_are_counted_in_parts_as_in_the_whole(tmp_path):
    rows = [f"{1774745880123 + number},5,6" for number in range(20_000)]
    rows[15_000] = '1774745895123,"5,6'
    rows[3] = "1774745880126,5,6,7"
    (tmp_path / "a.csv").write_text("time_ms,input_tokens,output_tokens\n" + "\n".join(rows))
    records = [
        f'{{"time_ms": {1774745880123 + number}, "input_tokens": 5, "output_tokens": 6}}' for number in range(300)
    ]
    records[150] = records[150][:30]
    (tmp_path / "b.jsonl").write_text("\n".join(records))
    for name, size, bad in (("a.csv", 100_000, 2), ("b.jsonl", 2_000, 1)):
        found = profile_files(tmp_path / name, bytes_per_part=size)
        assert_same(profile(*read_trace(tmp_path / name)), found)
        assert found.quality.rows_dropped == {"not a record": bad}
    (tmp_path / "c.jsonl").write_text("\n".join(records[:3] + [records[150]] * 9))
    with pytest.raises(BadInput, match="9 of 12 rows have no record"):
        profile_files(tmp_path / "c.jsonl", bytes_per_part=200)


@pytest.mark.parametrize("packing", ["gzip", "utf-16", "gzip, byte-order mark"])
def test_files_that_cannot_be_entered_in_their_middle_are_read_piece_by_piece(tmp_path, packing):
    text = table().write_csv()
    data = text.encode("utf-16") if packing == "utf-16" else text.encode("utf-8-sig" if "mark" in packing else "utf-8")
    path = tmp_path / "log.csv.gz"
    path.write_bytes(gzip.compress(data) if "gzip" in packing else data)
    parts = profile_files(path, bytes_per_part=5_000)
    assert_same(profile(*read_trace(path)), parts)
    path.write_bytes(gzip.compress(text.encode())[:-30])
    with pytest.raises(BadInput, match="broken gzip"):
        profile_files(path, bytes_per_part=5_000)


def chats(rows=6000, seed=0):
    """A table of conversations that run through all of it, some requests outside any."""
    rng = np.random.default_rng(seed)
    session = rng.integers(0, 400, rows)
    return table(rows, seed).with_columns(
        session=pl.Series([None if place % 7 == 0 else f"chat-{place}" for place in session.tolist()]),
        input_tokens=pl.Series(rng.integers(1, 4000, rows)),
    )


@pytest.mark.parametrize("mapper", [None, map])
def test_sessions_that_run_through_parts_are_counted_as_in_the_whole(tmp_path, mapper):
    chats().write_parquet(tmp_path / "log.parquet")
    whole = profile_document(profile(*read_trace(tmp_path / "log.parquet")))
    parts = profile_document(profile_files(tmp_path / "log.parquet", rows_per_part=900, mapper=mapper))
    for name in ("sessions", "clients", "session_count"):
        assert parts[name] == whole[name]
    assert len(parts["clients"]) == 3
    for name in ("sessions", "length_buckets"):
        assert parts["extra"][name] == whole["extra"][name]


def test_too_many_requests_of_sessions_are_the_same_sample_however_they_are_cut(tmp_path, monkeypatch):
    chats().write_parquet(tmp_path / "log.parquet")
    for name in ("session_rows", "add_sessions"):
        for home in (counting,) if name == "session_rows" else (tally, cutting):
            monkeypatch.setattr(home, name, partial(getattr(session_tally, name), most_rows=800))
    one, two = (profile_files(tmp_path / "log.parquet", rows_per_part=size, mapper=map) for size in (6000, 500))
    assert profile_document(one)["sessions"] == profile_document(two)["sessions"]
    assert one.extra["sessions"]["looked_at_fraction"] == 0.125
    assert one.session_count == pytest.approx(343, rel=0.25)
    whole = profile(*read_trace(tmp_path / "log.parquet"))
    assert one.sessions.request_count == whole.sessions.request_count


def test_logs_whose_rows_mean_nothing_alone_are_not_cut(tmp_path):
    lines = Path(__file__).resolve().parents[2] / "data" / "logs" / "litellm_spendlogs.jsonl"
    with pytest.raises(BadInput, match="is of format litellm, which needs whole files"):
        profile_files(lines)
    assert profile_files(lines, format="table").quality.rows_read == 20


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_models_caches_and_endings_are_counted_in_parts_as_in_the_whole(tmp_path, kind):
    rng = np.random.default_rng(5)
    rows = 4000
    frame = table(rows).with_columns(
        input_tokens=pl.Series(rng.integers(900, 4000, rows)),
        cached_tokens=pl.Series(rng.integers(0, 800, rows)).replace(7, None),
        reasoning_tokens=pl.Series(rng.integers(0, 3, rows)),
        model=pl.Series(rng.choice(["large", "small", " small", "-"], rows)),
        task=pl.Series(rng.choice(["chat", "code"], rows)),
        finish_reason=pl.Series(rng.choice(["stop", "length", ""], rows)),
        stream=pl.Series(rng.choice([True, False], rows)),
        status=pl.Series(rng.choice(["200", "ok", "429", "499", "?"], rows)),
    )
    path = tmp_path / f"log.{kind}"
    writers = {"parquet": pl.DataFrame.write_parquet, "csv": pl.DataFrame.write_csv, "jsonl": pl.DataFrame.write_ndjson}
    writers[kind](frame, path)
    whole = profile(*read_trace(path)).extra
    parts = profile_files(path, rows_per_part=700, bytes_per_part=40_000).extra
    names = ("models", "labels", "cached_tokens", "reasoning_tokens", "finish_fractions", "truncated_fraction")
    for name in (*names, "streamed_fraction", "status_fractions", "top_10_tenant_fraction", "length_buckets"):
        assert_near(parts[name], whole[name])
    assert next(iter(parts["models"])) == "small"


def assert_near(one, two):
    if isinstance(two, dict):
        assert one.keys() == two.keys()
        for name in two:
            assert_near(one[name], two[name])
    else:
        assert one == pytest.approx(two, rel=1e-12)
