import base64
import errno
import gzip

import jinja2
import pytest

from tokenfleet.app.report import render


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(render, "home_cache", lambda: tmp_path)
    return tmp_path


def packed():
    render._plotly.cache_clear()
    return render._plotly()


def test_the_packed_script_is_kept_and_is_the_same_bytes(folder):
    first = packed()
    (kept,) = folder.iterdir()
    assert kept.read_text().endswith(first)
    assert packed() == first
    assert b"plotly.js" in gzip.decompress(base64.b64decode(first))[:200]


def test_a_damaged_one_is_packed_again(folder):
    first = packed()
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-9])
    assert packed() == first
    assert kept.read_bytes() == whole


def test_a_missing_folder_costs_nothing_but_time(folder, monkeypatch):
    first = packed()
    monkeypatch.setattr(render, "home_cache", lambda: folder / "no" / "such")
    assert packed() == first


def test_a_full_disk_costs_no_report(folder, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    kept = render._kept_templates()
    first = jinja2.Environment(loader=jinja2.DictLoader({"a": "{{ 1 + 1 }}"}), bytecode_cache=kept)
    monkeypatch.setattr("jinja2.bccache.tempfile.NamedTemporaryFile", full)
    assert first.get_template("a").render() == "2"
    assert not list((folder / "templates").iterdir())
