import json
from threading import Timer

import pytest

from tokenfleet.app import watching
from tokenfleet.app.cli import main
from tokenfleet.app.watching import stamps, wait_for_change

SCENARIO = """\
name: watched
workload: {lengths: {input: 200:500, output: 20:60}, peak_rate: 2, duration: 4min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p99: 1s, error_rate: 0.1%}
gpus: [l40s]
"""


def test_a_saved_file_ends_the_wait_and_a_missing_one_does_not(tmp_path, monkeypatch):
    file, slept = tmp_path / "a.yaml", []
    file.write_text("a: 1")
    before = stamps([file, tmp_path / "never.csv"])

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 2:
            file.unlink()
        if len(slept) == 4:
            file.write_text("a: 22")

    monkeypatch.setattr(watching.time, "sleep", sleep)
    assert wait_for_change(before) == stamps(before)
    assert len(slept) == 5, "looked at once more, as it may still be written"


def test_a_file_saved_by_somebody_else_is_seen(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("a: 1")
    before = stamps([file])
    saver = Timer(0.05, lambda: file.write_text("a: 22"))
    saver.start()
    wait_for_change(before)
    saver.join()
    assert stamps([file]) != before


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "watched.yaml").write_text(SCENARIO)
    return tmp_path


def test_what_is_saved_is_planned_again_and_what_cannot_be_used_is_said(folder, monkeypatch, capsys):
    texts = iter(
        [
            SCENARIO.replace("peak_rate: 2", "peak_rate: 6"),
            SCENARIO.replace("ttft_p99: 1s", "ttft_p99: soon"),
            SCENARIO.replace("duration: 4min", "duration: 6min"),
        ]
    )

    def saved(before):
        assert [path.name for path in before] == ["watched.yaml"]
        text = next(texts, None)
        if text is None:
            raise KeyboardInterrupt
        (folder / "watched.yaml").write_text(text)
        return stamps(before)

    monkeypatch.setattr(watching, "wait_for_change", saved)
    with pytest.raises(SystemExit) as end:
        main(["plan", "watched.yaml", "--watch", "--json", "--no-cache"])
    assert not end.value.code
    told = capsys.readouterr()
    plans, text = [], told.out
    while text.strip():
        made, size = json.JSONDecoder().raw_decode(text.lstrip())
        plans.append(made)
        text = text.lstrip()[size:]
    first, denser, longer = (made["workload"]["request_count"] for made in plans)
    assert first < longer < denser
    assert json.loads(told.err)["problems"][0]["where"] == "watched.yaml:4: slo.ttft_p99"
    assert json.loads((folder / "watched-plan" / "plan.json").read_text())["workload"]["request_count"] == longer


def test_the_first_plan_of_a_watched_file_must_be_readable(folder, capsys):
    (folder / "watched.yaml").write_text("name: nothing")
    with pytest.raises(SystemExit) as end:
        main(["plan", "watched.yaml", "--watch", "--quiet"])
    assert end.value.code == 2
    assert "is missing" in capsys.readouterr().err


def test_a_person_is_told_what_a_saved_number_changed(folder, monkeypatch, capsys):
    texts = iter([SCENARIO.replace("ttft_p99: 1s", "ttft_p99: 900ms"), SCENARIO + "valid_days: 7\n"])

    def saved(before):
        text = next(texts, None)
        if text is None:
            raise KeyboardInterrupt
        (folder / "watched.yaml").write_text(text)
        return stamps(before)

    monkeypatch.setattr(watching, "wait_for_change", saved)
    with pytest.raises(SystemExit):
        main(["plan", "watched.yaml", "--watch", "--quiet"])
    first, *again = capsys.readouterr().out.split("\nChanged")
    assert "Changed" not in first
    promises = [told.partition("\n")[0] for told in again]
    assert len(promises) == 2
    assert "of 0.90 s" in promises[0].partition(", was ")[0]
    assert "of 1.00 s" in promises[0].partition(", was ")[2]
