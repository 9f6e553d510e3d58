"""Damaged files: an answer or a clear error, never a traceback, and rows that add up."""

import contextlib
import random
from pathlib import Path

import pytest

from tokenfleet.domain.errors import BadInput
from tokenfleet.workload import profile, profile_files, read_aggregates, read_benchmark, read_metrics, read_trace

LOGS = Path(__file__).resolve().parents[2] / "data" / "logs"
FILES = sorted(path for path in LOGS.iterdir() if path.suffix in (".json", ".jsonl", ".csv", ".log", ".prom"))
JUNK = (
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"\n",
    b"\\",
    b"\x00",
    b"\xff",
    b"-",
    b"1e999",
    b"NaN",
    b"null",
    b"9" * 30,
    b":",
)


ALL_COPIES = 100_000
"""Of all samples together, in the long run."""


def mutated(data, rng):
    """A few bytes changed, cut, doubled or replaced by what parsers dislike."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        if not data:
            break
        place = rng.randrange(len(data))
        kind = rng.randrange(5)
        if kind == 0:
            data[place] = rng.randrange(256)
        elif kind == 1:
            del data[place : place + rng.randint(1, 40)]
        elif kind == 2:
            data[place:place] = data[place : place + rng.randint(1, 200)]
        elif kind == 3:
            data[place : place + rng.randint(0, 3)] = rng.choice(JUNK)
        else:
            del data[place:]
    return bytes(data)


def answer(reader, path, **told):
    """What the reader says, or ``None`` for a clear error; anything else is a traceback and fails the test."""
    with contextlib.suppress(BadInput):
        return reader(path, **told)
    return None


def must_answer(path):
    found = answer(read_trace, path, zone="UTC")
    if found is not None:
        trace, quality = found
        assert quality.rows_read == quality.rows_kept + sum(quality.rows_dropped.values())
        assert trace.request_count == quality.rows_kept > 0
        assert trace.input_tokens.min() >= 1
        assert trace.output_tokens.min() >= 1
        assert trace.arrival_s[0] == 0
        assert profile(trace, quality).request_count == quality.rows_kept
    parts = answer(profile_files, path, zone="UTC", mapper=map)
    if parts is not None:
        counts = parts.quality
        assert counts.rows_read == counts.rows_kept + sum(counts.rows_dropped.values())
        assert (
            parts.request_count == counts.rows_kept == int(parts.minute_requests.sum()) == int(parts.joint_counts.sum())
        )
    for reader in (read_benchmark, read_metrics, read_aggregates):
        answer(reader, path)


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_a_few_damaged_copies_of_every_sample(tmp_path, file):
    rng = random.Random(file.name)
    data = file.read_bytes()
    path = tmp_path / file.name
    for _ in range(6):
        path.write_bytes(mutated(data, rng))
        must_answer(path)


@pytest.mark.long
@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_many_damaged_copies_of_every_sample(tmp_path, file):
    rng = random.Random(file.name + "long")
    data = file.read_bytes()
    path = tmp_path / file.name
    for _ in range(-(-ALL_COPIES // len(FILES))):
        path.write_bytes(mutated(data, rng))
        must_answer(path)
