import os
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tokenfleet.app import digests, kept_work
from tokenfleet.app.digests import digest_of, file_digests, source_digest
from tokenfleet.app.kept_work import KeptWork
from tokenfleet.app.replay_cache import ReplayCache
from unit.planner import toy


@dataclass(frozen=True)
class Pair:
    left: object
    right: object


VALUES = [
    1,
    1.0,
    True,
    "1",
    b"1",
    None,
    (),
    (1,),
    [1],
    ((1,), 2),
    (1, (2,)),
    {"a": 1},
    {"a": 2},
    np.arange(3),
    np.arange(3.0),
    np.arange(4).reshape(2, 2),
    Pair(1, (2,)),
    Pair((1,), 2),
    0.1,
    np.nextafter(0.1, 1.0),
]


def test_every_value_has_a_digest_of_its_own():
    digests = [digest_of(value) for value in VALUES]
    assert len(set(digests)) == len(VALUES)
    assert digests == [digest_of(value) for value in VALUES]
    assert digest_of(1, 2) != digest_of((1, 2))


def test_what_has_no_whole_text_has_no_digest():
    for value in (object(), lambda: 1, {1, 2}):
        with pytest.raises(TypeError, match="no digest"):
            digest_of(value)


def test_a_digest_is_that_of_a_long_array_to_the_last_bit():
    long = np.arange(100_000)
    other = long.copy()
    other[50_000] ^= 1
    assert digest_of(long) != digest_of(other)


def test_a_field_may_be_left_out():
    assert digest_of(Pair(1, 2), without="right") == digest_of(Pair(1, 3), without="right")
    assert digest_of(Pair(1, 2), without="left") != digest_of(Pair(1, 3), without="left")


def test_files_count_by_what_is_in_them(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_text("a")
    other.write_text("a")
    assert file_digests([str(one)]) == file_digests([str(other)])
    other.write_text("b")
    assert file_digests([str(one)]) != file_digests([str(other)])
    assert file_digests([str(one), str(tmp_path)]) is None
    assert file_digests([]) == ()


def test_the_sources_have_one_digest_in_every_process():
    told = "from tokenfleet.app.digests import source_digest; print(source_digest())"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == source_digest()


def test_only_what_is_in_the_sources_counts_for_their_digest(tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "home_cache", lambda: tmp_path / "cache")
    source = tmp_path / "package" / "room" / "rule.py"
    source.parent.mkdir(parents=True)

    def digest_with(text, changed_s):
        source.write_text(text)
        os.utime(source, (changed_s, changed_s))
        return source_digest.__wrapped__(tmp_path / "package")

    first = digest_with("a = 1", 1)
    assert digest_with("a = 1", 1) == first
    assert digest_with("a = 2", 2) != first
    assert digest_with("a = 1", 3) == first
    (kept,) = (tmp_path / "cache" / "sources").iterdir()
    kept.write_text("damaged")
    assert digest_with("a = 1", 3) == first
    assert digest_with("a = 1", 3) in kept.read_text()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "replays"


def opened(folder, told=None):
    cache = ReplayCache(folder)
    assert cache.open()
    return KeptWork(cache, (lambda _: None) if told is None else told.append)


def test_a_question_is_worked_out_once(folder):
    asked, made = ("b200", np.arange(3)), []

    def make():
        made.append(1)
        return {"a": (1.5, np.arange(2))}

    first = opened(folder)("words", asked, make)
    again = opened(folder)("words", ("b200", np.arange(3)), make)
    assert made == [1]
    assert again["a"][0] == first["a"][0]
    np.testing.assert_array_equal(again["a"][1], first["a"][1])
    opened(folder)("words", ("b200", np.arange(4)), make)
    opened(folder)("other words", asked, make)
    assert made == [1, 1, 1]


def test_edited_sources_find_nothing(folder, monkeypatch):
    assert opened(folder)("words", 1, lambda: "old") == "old"
    monkeypatch.setattr(kept_work, "source_digest", lambda: "edited")
    assert opened(folder)("words", 1, lambda: "new") == "new"


def test_a_damaged_answer_is_worked_out_again_and_said(folder):
    opened(folder)("words", 1, lambda: "whole")
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:2], whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(damaged)
        told = []
        assert opened(folder, told)("words", 1, lambda: "whole") == "whole"
        assert "damaged" in told[0]
        assert path.read_bytes() == whole


def test_a_long_answer_is_not_kept(folder, monkeypatch):
    monkeypatch.setattr(kept_work, "MOST_BYTES", 100)
    opened(folder)("words", 1, lambda: "w" * 200)
    assert list(folder.iterdir()) == []


def test_a_replica_read_again_is_known_by_its_question(folder):
    replica = toy.replica()

    def asked(work, value):
        return work._known(work("replicas", value, lambda: ((replica,), "out"))[0][0])

    assert asked(opened(folder), 1) == asked(opened(folder), 1) != asked(opened(folder), 2)
    work = opened(folder)
    found = work("replicas", 3, lambda: ((replica,), "out"))[0][0]
    work("about it", found, lambda: "of the first")
    assert opened(folder)("about it", replace(replica, kv_block_count=1), lambda: "of another") == "of another"


def test_only_the_owner_may_look(folder):
    opened(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
