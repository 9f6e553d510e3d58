"""What damaged copies of the samples once broke."""

import json

import polars as pl
import pytest

from tokenfleet.workload import profile, read_trace


def mooncake(tmp_path, **first):
    rows = [
        {"timestamp": 700 * place, "input_length": 1200, "output_length": 5, "hash_ids": [1, 2 + place, 90 + place]}
        for place in range(4)
    ]
    rows[0].update(first)
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("stamp", [10**34, "soon", None])
def test_a_stamp_that_is_none_is_one_row_less(tmp_path, stamp):
    _, quality = read_trace(mooncake(tmp_path, timestamp=stamp), time_unit="ms")
    assert (quality.rows_kept, quality.rows_dropped) == (3, {"time unknown": 1})


def test_hashes_of_more_than_64_bits_leave_sharing_unknown(tmp_path):
    trace, quality = read_trace(mooncake(tmp_path, hash_ids=[10**30, 2, 3]))
    assert trace.prefixes is None
    assert any("prefix sharing is unknown" in text for text in quality.warnings)


def test_unsigned_hashes_of_64_bits_are_hashes(tmp_path):
    high = 2**64 - 5
    frame = pl.DataFrame(
        {
            "time_s": [0, 5, 9],
            "input_tokens": [1024, 1024, 512],
            "output_tokens": [5, 5, 5],
            "hash_ids": pl.Series([[high, 1], [high, 2], [high]], dtype=pl.List(pl.UInt64)),
        }
    )
    frame.write_parquet(tmp_path / "log.parquet")
    found = profile(*read_trace(tmp_path / "log.parquet"))
    assert found.shareable_input_fraction == pytest.approx(2 * 512 / 2560)


def test_a_chat_whose_parent_is_unknown_starts_anew(tmp_path):
    rows = [
        {
            "chat_id": chat,
            "parent_chat_id": parent,
            "timestamp": place,
            "input_length": 9,
            "output_length": 5,
            "type": "a",
        }
        for place, (chat, parent) in enumerate([(1, -1), (2, 1), (3, None), (None, 3)])
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace, _ = read_trace(path)
    assert trace.session.tolist() == [0, 0, 1, -1]
