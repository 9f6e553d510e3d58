"""Events and bursts end to end: what the command says, to a person and to a machine."""

import json
from pathlib import Path

import pytest

from tokenfleet.app.cli import main
from tokenfleet.app.spike_words import no_number

SCENARIO = """\
name: small
workload: {preset: agents, peak_rate: 4, duration: 10min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 4s, itl_p95: 100ms, error_rate: 0.1%}
gpus: [h100_sxm]
precision: fp8
tensor_parallel: 1
"""


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments, text=SCENARIO):
        Path("small.yaml").write_text(text)
        with pytest.raises(SystemExit) as ended:
            main(["spike", "small.yaml", *arguments])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def test_an_event_is_sized_triggered_warmed_and_let_go(run):
    event = ("--at", "4min", "--duration", "2min", "--factor", "4")
    code, out, err = run(*event, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    told, usual = found["event"], found["usual"]
    assert told["needed"]["replica_count"] - usual["replica_count"] == told["added_replica_count"] > 0
    assert told["usual_fleet"]["kept"] is False
    assert told["endured"]["kept"] is True
    # Asked for only when it begins, the new replicas come when most of it is over.
    assert told["late"]["kept"] is False
    assert told["late"]["replica_count"] == told["needed"]["replica_count"]
    ready, warm = found["ready"], told["warm"]
    assert ready["low_s"] < ready["typical_s"] < ready["high_s"]
    assert ready["prepared_high_s"] < ready["high_s"]
    assert told["trigger_s"] == pytest.approx(240.0 - ready["high_s"] - warm["lead_s"])
    assert told["scale_back_s"] == pytest.approx(360.0 + told["let_go"]["after_s"])
    assert told["let_go"]["after_s"] >= told["endured"]["settled"]["after_s"]
    assert told["let_go"]["without"]["after_s"] == 0.0
    held_s = told["scale_back_s"] - told["trigger_s"]
    assert told["reserve_gpu_hours"] == pytest.approx(told["added_gpu_count"] * held_s / 3600)
    # Sessions of agents share most of their prompts anyway: here a warm start is worth little.
    assert warm["warm"]["cached_fraction"] == pytest.approx(warm["cold"]["cached_fraction"], abs=0.05)
    assert warm["prefixes"][0]["token_count"] > 10_000
    _, said, _ = run(*event)
    labels = [line.split()[0] for line in said.splitlines() if not line.startswith(" ")]
    assert labels == ["Usual", "Event", "As", "Needs", "When", "Warm", "Bursts"]
    assert "before the demand begins" in said
    assert "utilization_cap" not in said
    assert "replayed without them from then on, those who arrive are served as promised" in " ".join(said.split())


def test_without_an_event_only_bursts_are_told(run):
    code, out, _ = run("--json", text=SCENARIO + "cold_start: 4min\n")
    found = json.loads(out)
    assert code == 0
    assert found["event"] is None
    assert found["ready"]["high_s"] == 240.0
    assert [burst["length_s"] for burst in found["bursts"]] == [10.0, 60.0, 300.0]


def test_a_bounded_queue_turns_away_what_the_fleet_cannot_take_and_serves_the_rest(run):
    bound = "ladder: {queue_limit: 4, rungs: []}\n"
    code, out, err = run("--json", text=SCENARIO + bound)
    assert (code, err) == (0, "")
    for burst in json.loads(out)["bursts"]:
        assert burst["bounded"]["queue_limit_count"] == 4
        assert 0.0 <= burst["bounded"]["refused_fraction"] < 1.0
    longest = json.loads(out)["bursts"][2]["bounded"]
    assert longest["refused_fraction"] > 0.0
    _, said, _ = run(text=SCENARIO + bound)
    assert "waiting per replica" in said


LADDER = """\
ladder:
  queue_limit: 4
  climb: 15s
  rungs:
    - {give_up: cap_output, limit: 300, enter: {waiting: 2}, leave: {waiting: 1}}
    - {give_up: tenant_quota, quota: 100, enter: {waiting: 3}, leave: {waiting: 1}}
"""


def test_each_rung_of_a_ladder_is_gone_up_and_those_that_show_nothing_are_named(run):
    text = SCENARIO.replace("10min", "3min") + LADDER
    code, out, err = run("--json", text=text)
    assert (code, err) == (0, "")
    found = json.loads(out)
    for burst in found["bursts"]:
        kinds = [ride["kinds"] for ride in burst["rungs"]]
        assert kinds == [[], ["cap_output"], ["cap_output", "tenant_quota"]]
    assert found["notes"] == ["The rung tenant_quota turns nobody away: the traffic names no tenants."]
    _, said, _ = run(text=text)
    assert "the bound of the queue: " in said
    assert "+ cap_output: " in said


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--at", "1min"), "--at: says when, not how much; give --factor, --tokens or --requests"),
        (("--tokens", "1", "--duration", "1min", "--at", "1min"), "--tokens: adds not one request to the "),
        (
            ("--requests", "1000000000", "--duration", "1min", "--at", "1min"),
            "times the usual demand of that time; ask for 1,000 times at most",
        ),
        (("--factor", "1001", "--duration", "1min", "--at", "1min"), "--factor: makes 1,001 times the usual demand"),
        (("--factor", "2", "--tokens", "1000"), "--tokens: the event is said in two ways: --factor and --tokens"),
        (
            ("--factor", "2", "--at", "9min", "--duration", "5min"),
            "--duration: the event ends at 14 min, the demand at 10",
        ),
        (("--factor", "0.5", "--duration", "1min", "--at", "1min"), "--factor: 0.5 is no surge"),
        (("--factor", "2", "--at", "soon"), '--at: "soon" is not a duration'),
    ],
)
def test_events_that_cannot_be_are_problems(run, options, problem):
    code, out, err = run(*options)
    assert (code, out) == (2, "")
    assert problem in err


def test_no_fleet_in_usual_times_is_an_answer(run):
    code, out, _ = run("--factor", "2", "--duration", "1min", text=SCENARIO.replace("ttft_p95: 4s", "ttft_p95: 1ms"))
    assert code == 0
    assert out.startswith("Answer  no fleet keeps the promise in usual times")


def test_a_cap_that_the_needed_fleet_keeps_too_is_said(run):
    event = ("--at", "1min", "--duration", "1min", "--factor", "3")
    short = SCENARIO.replace("10min", "3min")
    usual = json.loads(run(*event, "--json", text=short)[1])["event"]
    capped = short + "utilization_cap: 50%\n"
    found = json.loads(run(*event, "--json", text=capped)[1])["event"]
    assert usual["utilization_cap_fraction"] is None
    assert found["utilization_cap_fraction"] == 0.5
    assert found["needed"]["carrying_replica_count"] > usual["needed"]["carrying_replica_count"]
    needs = " ".join(run(*event, text=capped)[1].split("Needs")[1].split("When")[0].split())
    assert "the utilization_cap of 50% is kept at its peak, as in usual times" in needs


def test_where_none_keeps_the_promise_with_the_cap_the_cap_is_named():
    said = no_number("no number of these replicas", "keeps", 0.5)
    assert said == "no number of these replicas keeps the promise and the utilization_cap of 50% through it"
    assert no_number("no numbers of these", "keep", None) == "no numbers of these keep the promise through it"
