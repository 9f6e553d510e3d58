"""Counting in one compiled go gives what counting step by step gives, whatever the rows hold."""

import dataclasses
import random
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfleet.workload import counting, profile_document, profile_files, sweep
from tokenfleet.workload.admit import Admission
from tokenfleet.workload.formats import clock
from tokenfleet.workload.formats.rows import ReadOptions

FIELDS = ("tally", "first_ns", "ticks", "rows_read", "dropped", "clock", "cached_above_input")


def part_of(path, rows, **changes):
    columns = {name: name for name in pl.read_parquet_schema(path)}
    columns["arrival"] = columns.pop("time_s")
    told = {"options": ReadOptions(time_unit="s"), "admission": Admission(fold_retries=False), **changes}
    return counting.Part(path=str(path), kind="parquet", start=0, stop=rows, columns=columns, header="", **told)


def plain(value):
    """Tallies as comparable Python values."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


def stepped(part, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(counting, "_swept", lambda *_: None)
        return counting.count_part(part)


def same(one, two):
    for name in FIELDS:
        left, right = plain(getattr(one, name)), plain(getattr(two, name))
        if name == "tally" and left is not None and right is not None:
            left, right = (minutes_from_the_start(tally) for tally in (left, right))
        assert left == right, name


def minutes_from_the_start(tally):
    if tally["sessions"] is not None:
        names = ("session", "arrival_ns", "input_tokens", "output_tokens")
        rows = sorted(zip(*(tally["sessions"].pop(name) for name in names), strict=True))
        tally["sessions"]["rows"] = rows
    shift = tally.pop("first_minute")
    for key in ("minute_requests", "minute_input_tokens", "minute_output_tokens"):
        tally[key] = [0] * shift + tally[key]
    return tally


COUNT = st.one_of(st.none(), st.integers(-2, 5), st.integers(1, 5000), st.sampled_from([2**20 - 1, 2**20, 60_000_000]))
ROW = st.tuples(
    st.one_of(st.none(), st.integers(0, 400)),
    COUNT,
    COUNT,
    st.one_of(st.none(), st.integers(0, 6000)),
    st.sampled_from([None, "", " red", "red", "blue", "none"]),
    st.sampled_from([None, "200", "ok", "429", "500", "499", "what"]),
    st.sampled_from([None, "", "a", " a", "b", "c"]),
)
NAMES = ("time_s", "input_tokens", "output_tokens", "cached_tokens", "tenant", "status", "session")
KINDS = (pl.Int64, pl.Int64, pl.Int64, pl.Int64, pl.String, pl.String, pl.String)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(ROW, min_size=1, max_size=30), st.sampled_from(["inside", "outside"]), st.sampled_from(["drop", "keep"])
)
def test_compiled_counts_are_those_of_the_steps(tmp_path_factory, rows, cached, zero):
    path = tmp_path_factory.mktemp("sweep") / "rows.parquet"
    pl.DataFrame(rows, schema=dict(zip(NAMES, KINDS, strict=True)), orient="row").write_parquet(path)
    told = ReadOptions(time_unit="s", cached=cached)
    part = part_of(path, len(rows), options=told, admission=Admission(zero_output=zero, fold_retries=False))
    with pytest.MonkeyPatch.context() as patch:
        same(counting.count_part(part), stepped(part, patch))


def read_only(array):
    """As the columns of a log are: another kind would be compiled for anew."""
    array.setflags(write=False)
    return array


def swept(stamps):
    """Gaps of rows that are all kept."""
    rows = len(stamps)
    tables = counting._tables(rows, 0, 7, int(stamps.max()), np.zeros(0, dtype=np.uint8))
    ones, none = read_only(np.ones(rows, dtype=np.int64)), np.zeros(0, dtype=np.uint32)
    kept, gaps = sweep.sweep((read_only(stamps), ones, ones), none, none, 0, True, tables)
    assert kept == rows
    return gaps


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 10), st.integers(0, 2**31), st.integers(0, 2**50)), min_size=1, max_size=9))
def test_squares_of_gaps_are_whole_however_large(gaps):
    found = swept(np.cumsum([0, *gaps]))
    assert found.in_order
    expected = sum(gap * gap for gap in gaps)
    assert sweep.whole_squares(int(found.squares), float(found.about), len(gaps)) == expected


def test_squares_that_floats_cannot_pin_down_are_not_guessed():
    assert sweep.whole_squares(0, 2.0**111, 14) is None
    assert sweep.whole_squares(0, 2.0**111, 13) == 2**111


def test_rows_out_of_order_are_told():
    assert not swept(np.array([5, 4, 9])).in_order


@pytest.mark.parametrize("kinds", [1, 512, 513, 20_000])
def test_equal_values_have_one_number(kinds):
    values = np.random.default_rng(kinds).integers(0, 2**64, kinds, dtype=np.uint64)
    values[0] = 0
    rows = np.concatenate((np.arange(kinds), np.random.default_rng(1).integers(0, kinds, 30_000)))
    number, first = sweep.numbered(read_only(values[rows]))
    assert np.array_equal(number, rows)
    assert np.array_equal(first, np.arange(kinds))


def test_tenants_are_counted_alike_in_tables_and_step_by_step(tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    frame = pl.DataFrame(
        {
            "time_s": np.cumsum(rng.integers(0, 90, 4000)),
            "input_tokens": rng.integers(1, 4000, 4000),
            "output_tokens": rng.integers(1, 900, 4000),
            "tenant": rng.choice(["blue", "red", "a name longer than twelve letters", ""], 4000),
        }
    )
    frame.write_parquet(tmp_path / "log.parquet")
    part = part_of(tmp_path / "log.parquet", 4000)
    in_tables = counting.count_part(part)
    same(in_tables, stepped(part, monkeypatch))
    monkeypatch.setattr(counting, "_MOST_TABLES", 1)
    same(in_tables, counting.count_part(part))


def test_a_stamp_of_another_age_is_left_to_the_steps(tmp_path):
    rows = [(stamp, 7, 3) for stamp in (0, 5, 9, 10**8)]
    path = tmp_path / "log.parquet"
    pl.DataFrame(rows, schema=NAMES[:3], orient="row").write_parquet(path)
    found = counting.count_part(part_of(path, 4))
    assert found.dropped == {"time more than two years from the median": 1}
    assert found.tally.request_count == 3


def test_unsorted_rows_are_sorted_for_their_gaps(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    frame = pl.DataFrame({"time_s": rng.permutation(5000), "input_tokens": [7] * 5000, "output_tokens": [3] * 5000})
    frame.write_parquet(tmp_path / "log.parquet")
    part = part_of(tmp_path / "log.parquet", 5000)
    same(counting.count_part(part), stepped(part, monkeypatch))


def test_an_earlier_request_and_cached_tokens_found_late_make_all_be_counted_again(tmp_path):
    rng = np.random.default_rng(1)
    frame = pl.DataFrame(
        {
            "time_s": 1_774_745_880 + np.cumsum(rng.exponential(1.0, 4000)),
            "input_tokens": rng.integers(10, 4000, 4000),
            "output_tokens": rng.integers(1, 900, 4000),
            "cached_tokens": np.where(np.arange(4000) == 3999, 9000, 0),
        }
    )
    late = pl.concat([frame.slice(40), frame.head(40)])
    late.write_parquet(tmp_path / "late.parquet")
    frame.write_parquet(tmp_path / "sorted.parquet")
    told = []
    found = profile_files(tmp_path / "late.parquet", rows_per_part=500, progress=lambda what, *_: told.append(what))
    expected = profile_files(tmp_path / "sorted.parquet", rows_per_part=500)
    assert {"counting", "counting again, with what the first count found"} == set(told)
    one, two = profile_document(found), profile_document(expected)
    for name in ("request_count", "input_tokens", "minute_requests", "minute_input_tokens", "joint_counts"):
        assert one[name] == two[name]
    assert found.input_tokens.max >= 9010


def test_an_edit_starts_a_new_folder_of_machine_code(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert sweep.cache_directory().parent == tmp_path
    source = sweep.__file__
    with open(source, "rb") as file:
        text = file.read()
    assert sweep.source_digest(text) != sweep.source_digest(text.replace(b"> 0", b">= 0") + b"#")
    assert sweep.cache_directory().name == f"intake-{sweep.source_digest(text)}"


@pytest.mark.parametrize("zone", ["Z", "+02:00", "", "-0530"])
@pytest.mark.parametrize("fraction", ["", ".5", ",123456", ".123456789"])
def test_stamps_written_alike_are_read_as_the_others(monkeypatch, zone, fraction):
    rng = random.Random(zone + fraction)
    stamps = [
        f"2026-03-{29 + place // 700}{'T' if zone else ' '}{place // 60 % 24:02d}:{place % 60:02d}"
        f":{rng.randrange(60):02d}{fraction}{zone}"
        for place in np.repeat(np.arange(40), 30).tolist()
    ]
    assert quick(monkeypatch, stamps) == general(monkeypatch, stamps)
    monkeypatch.setattr(clock, "_FEWEST_ALIKE", 1)
    assert clock._alike(pl.Series(stamps)) is not None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.datetimes(datetime(1970, 1, 1), datetime(2254, 12, 31)), min_size=1, max_size=5))
def test_stamps_of_any_date_are_read(dates):
    text = np.array([list(f"{date:%Y-%m-%d %H:%M:%S.%f}".encode()) for date in dates], dtype=np.uint8)
    ns = np.zeros(len(dates), dtype=np.int64)
    assert sweep.stamps_alike(read_only(text), 6, ns)
    assert ns.tolist() == [(date - datetime(1970, 1, 1)) // timedelta(microseconds=1) * 1000 for date in dates]


NO_DATES = """
2026-02-29 00:00:00
2100-02-29 00:00:00
2026-13-01 00:00:00
2026-00-10 00:00:00
2026-04-31 00:00:00
2026-04-00 00:00:00
2026-04-10 24:00:00
2026-04-10 00:60:00
2026-04-10 00:00:60
1969-12-31 00:00:00
2255-01-01 00:00:00
2026-04-1x 00:00:00
2o26-04-10 00:00:00
2026-04-10T00:00:00
"""


@pytest.mark.parametrize("stamp", NO_DATES.split("\n")[1:-1])
def test_what_is_no_date_is_left_to_the_general_way(stamp):
    text = np.array([list(each.encode()) for each in ("2024-02-29 00:00:00", stamp)], dtype=np.uint8)
    read_only(text)
    assert sweep.stamps_alike(text[:1], 0, np.zeros(1, dtype=np.int64))
    assert not sweep.stamps_alike(text, 0, np.zeros(2, dtype=np.int64))


def test_one_odd_stamp_sends_all_to_the_general_way(monkeypatch):
    rng = random.Random(5)
    good = [f"2026-03-29T00:{minute:02d}:{second:02d}.250Z" for minute in range(20) for second in range(0, 60, 2)]
    junk = "0123456789:.,TZ+- x²"
    for _ in range(120):
        stamps = list(good)
        place, at = rng.randrange(len(stamps)), rng.randrange(24)
        stamps[place] = stamps[place][:at] + rng.choice(junk) + stamps[place][at + 1 :]
        assert quick(monkeypatch, stamps) == general(monkeypatch, stamps), stamps[place]


def read(stamps):
    detected = {}
    try:
        ns, kind = clock.to_ns(pl.Series(stamps), ReadOptions(), where="x", detected=detected)
    except clock.BadInput as error:
        return str(error)
    return ns.to_list(), kind, detected


def quick(monkeypatch, stamps):
    monkeypatch.setattr(clock, "_FEWEST_ALIKE", 1)
    return read(stamps)


def general(monkeypatch, stamps):
    monkeypatch.setattr(clock, "_FEWEST_ALIKE", 10**9)
    return read(stamps)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 400),
            st.integers(-1, 3000),
            st.integers(0, 900),
            st.sampled_from([None, "", "llama", " llama", "qwen", "none"]),
            st.sampled_from([None, "stop", "length"]),
            st.sampled_from([None, True, False]),
            st.sampled_from([None, 0, 7]),
            st.sampled_from([None, -1.0, 3.5, 120.0]),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_what_rows_say_beyond_lengths_is_counted_alike(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("facts") / "rows.parquet"
    names = ("time_s", "input_tokens", "output_tokens", "model", "finish", "streamed", "cached_tokens", "e2e")
    kinds = (pl.Int64, pl.Int64, pl.Int64, pl.String, pl.String, pl.Boolean, pl.Int64, pl.Float64)
    frame = pl.DataFrame(rows, schema=dict(zip(names, kinds, strict=True)), orient="row").rename({"e2e": "e2e_ms"})
    frame.write_parquet(path)
    part = part_of(path, len(rows))
    columns = {name: name for name in names if name not in ("time_s", "e2e")} | {"arrival": "time_s", "e2e": "e2e_ms"}
    part = dataclasses.replace(part, columns=columns, options=ReadOptions(time_unit="s", cached="inside"))
    with pytest.MonkeyPatch.context() as patch:
        same(counting.count_part(part), stepped(part, patch))
