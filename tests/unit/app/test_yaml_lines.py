"""YAML with lines: what classic YAML would guess is kept as written, what is broken names its line."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.app.yaml_lines import read_yaml
from tokenfleet.domain.errors import BadInput


def write(folder, text):
    path = folder / "file.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def said(folder, text):
    path = write(folder, text)
    with pytest.raises(BadInput) as caught:
        read_yaml(path)
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


def test_words_and_times_stay_what_was_written(tmp_path):
    text = "a: yes\nb: 140:30\nc: 1_000\nd: 0x10\ne: 2026-11-29\nf: null\ng: 1e3\nh: '5'\ni: on\nj: .5\nk: 007\n"
    value = read_yaml(write(tmp_path, text)).value
    assert value == {
        "a": "yes", "b": "140:30", "c": "1_000", "d": "0x10", "e": "2026-11-29", "f": None, "g": 1000.0, "h": "5",
        "i": "on", "j": 0.5, "k": "007",
    }  # fmt: skip


def test_every_value_knows_its_line(tmp_path):
    file = read_yaml(write(tmp_path, "a: 1\nb:\n  c: x\n  d: [1,\n    2]\n"))
    assert file.where(("b", "c")).endswith("file.yaml:3: b.c")
    assert file.where(("b", "d", 1)).endswith("file.yaml:5: b.d[1]")
    assert file.where(("b", "missing")).endswith("file.yaml:2: b.missing")
    assert file.where(("a", 0)).endswith("file.yaml:1: a"), "a value that is no list has no items"


def test_a_repeated_key_is_a_problem_for_each_repetition(tmp_path):
    assert said(tmp_path, "a: 1\nb: {c: 1, c: 2}\na: 3\n") == [
        "file.yaml:2: b.c: is written twice, first on line 2; keep one",
        "file.yaml:3: a: is written twice, first on line 1; keep one",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "file.yaml: is empty; start one with: tokenfleet init --defaults chat"),
        ("# only a comment\n", "file.yaml: is empty; start one with: tokenfleet init --defaults chat"),
        ("a: 1\nb:\n\tc: 2\n", "file.yaml:3: a tab stands where YAML wants spaces; indent with spaces"),
        ("a: [1, 2\nb: 3\n", "file.yaml:2: is not YAML"),
        ("a: 'x\n", "file.yaml:2: is not YAML"),
        ("a: 1\n b: 2\n", "file.yaml:2: is not YAML"),
        ("a: 1\n---\nb: 2\n", "file.yaml:2: is not YAML"),
        ("a: !!python/object:os.system x\n", "file.yaml:1: a: the tag"),
        ("? [1, 2]\n: x\n", "file.yaml:1: a key must be a word"),
        (b"a: \xff\xfe\n", "file.yaml:1: is not UTF-8 text; save it as UTF-8"),
        (b"a: \x00\n", "file.yaml: holds a character YAML does not allow"),
        ("a: " + "[" * 3000, "file.yaml"),
    ],
)
def test_what_is_broken_says_where(tmp_path, text, message):
    assert said(tmp_path, text)[0].startswith(message)


def test_an_anchor_bomb_is_refused_before_it_fills_the_memory(tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "repeats itself" in said(tmp_path, "\n".join(lines))[0]


def test_a_value_that_holds_itself_is_refused(tmp_path):
    assert "nested too deep" in said(tmp_path, "a: &a [*a]\n")[0]


def test_missing_files_name_the_nearest(tmp_path):
    write(tmp_path, "a: 1")
    with pytest.raises(BadInput, match=r"there is no such file; nearest: .*file\.yaml"):
        read_yaml(tmp_path / "fil.yaml")
    with pytest.raises(BadInput, match="is a folder"):
        read_yaml(tmp_path)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(tmp_path_factory, raw):
    path = write(tmp_path_factory.mktemp("fuzz"), raw)
    with suppress(BadInput):
        assert read_yaml(path).node_count > 0
