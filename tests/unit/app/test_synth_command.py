"""Traffic drawn from the command line: like its source, the same for the same seed, refused when it cannot be."""

import json
from pathlib import Path

import pytest

from tokenfleet import workload
from tokenfleet.app.cli import main


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


@pytest.fixture
def source(tmp_path):
    drawn = workload.synthesize("multitenant", mean_rate_per_s=4, duration_s=600, seed=7)
    return workload.save_profile(workload.profile(drawn), tmp_path / "source.json")


def test_a_trace_like_a_profile(run, source):
    code, out, err = run("synth", source, "-o", "t.parquet", "--json")
    assert (code, err) == (0, "")
    drawn, measured = json.loads(out), workload.load_profile(source)
    assert drawn["source"] == str(source)
    assert drawn["seed"] == 1
    for side in ("input_tokens", "output_tokens"):
        for name in ("p50", "p95", "p99", "mean"):
            assert drawn[side][name] == pytest.approx(getattr(getattr(measured, side), name), rel=0.02)
    for name in ("peak_to_mean_minute_requests", "peak_to_mean_minute_tokens", "interarrival_cv"):
        assert drawn[name] == pytest.approx(getattr(measured, name), rel=0.1)
    trace, quality = workload.read_trace("t.parquet")
    assert trace.request_count == drawn["request_count"] == measured.request_count
    assert quality.detected["format"] == "tokenfleet trace"


def test_the_same_seed_draws_the_same_bytes(run, source):
    run("synth", source, "-o", "a.parquet", "--seed", 5)
    run("synth", source, "-o", "b.parquet", "--seed", 5)
    run("synth", source, "-o", "c.parquet", "--seed", 6)
    first, second, third = (Path(f"{name}.parquet").read_bytes() for name in "abc")
    assert first == second != third


def test_rate_scale_duration_and_stretch(run, source):
    def drawn(*options):
        code, out, err = run("synth", source, "-o", "t.parquet", "--json", *options)
        assert (code, err) == (0, "")
        return json.loads(out)

    plain = drawn()
    assert drawn("--rate", "8")["mean_rate_per_s"] == pytest.approx(8, rel=0.05)
    peak = drawn("--peak-rate", "600/min")
    assert peak["peak_minute_rate_per_s"] == pytest.approx(10, rel=0.05)
    assert drawn("--scale", "3")["request_count"] == pytest.approx(3 * plain["request_count"], rel=0.02)
    assert drawn("--duration", "5min")["duration_s"] == pytest.approx(300, abs=10)
    slow = drawn("--stretch", "2")
    assert slow["duration_s"] == pytest.approx(2 * plain["duration_s"])
    assert slow["request_count"] == plain["request_count"]


def test_an_event_comes_on_top(run):
    assert run("synth", "rag", "-o", "event.parquet", "--rate", 2, "--duration", "5min")[0] == 0
    _, usual, _ = run("synth", "chat", "-o", "t.parquet", "--rate", 2, "--duration", "20min", "--json")
    _, more, _ = run(
        "synth", "chat", "-o", "t.parquet", "--rate", 2, "--duration", "20min", "--splice", "event.parquet@10min",
        "--json",
    )  # fmt: skip
    event, _ = workload.read_trace("event.parquet")
    assert json.loads(more)["request_count"] == json.loads(usual)["request_count"] + event.request_count


def test_a_person_sees_the_drawn_beside_the_measured(run, source):
    code, out, _ = run("synth", source, "-o", "t.parquet")
    assert code == 0
    assert "measured" in out
    assert "peak over mean by tokens" in out
    assert "wrote t.parquet" in out


def test_a_preset_has_sessions(run):
    code, out, _ = run("synth", "chat", "-o", "t.parquet", "--peak-rate", 3, "--duration", "10min")
    assert code == 0
    assert "sessions, with the prompts they share" in out


def test_everything_wrong_is_said_at_once(run, tmp_path):
    code, out, err = run("synth", "chta", "-o", "t.csv", "--rate", "fast", "--scale", "0", "--splice", "x.parquet")
    assert (code, out) == (2, "")
    assert "nearest preset: chat" in err
    for option in ("SOURCE: ", "-o: ", "--rate: ", "--scale: ", "--splice: "):
        assert f"\n{option}" in f"\n{err}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["chat", "-o", "t.parquet"], "give --rate or --peak-rate"),
        (["chat", "-o", "t.parquet", "--rate", "1", "--peak-rate", "2"], "one decides"),
        (["chat", "-o", "t.parquet", "--rate", "1", "--seed", "-1"], "--seed: "),
        (["chat", "-o", "no/t.parquet", "--rate", "1"], "there is no folder"),
        (["chat", "-o", "t.parquet", "--rate", "0.001", "--duration", "1min"], "--duration: no request falls"),
    ],
)
def test_what_cannot_be_drawn(run, arguments, text):
    code, out, err = run("synth", *arguments)
    assert (code, out) == (2, "")
    assert text in err


def test_the_source_is_not_overwritten(run, source, tmp_path):
    traced = tmp_path / "source.parquet"
    source.rename(traced)
    code, _, err = run("synth", "source.parquet", "-o", "source.parquet")
    assert code == 2
    assert "is a file that is read" in err
