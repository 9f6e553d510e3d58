"""Drills end to end: what is said, what fails, what the contract keeps."""

import json
from pathlib import Path

import pytest

from tokenfleet import contract
from tokenfleet.app.cli import main

SCENARIO = """\
name: small
workload:
  lengths: {input: 700:1500, output: 140:300}
  mean_rate: 4
  duration: 5min
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p99: 2s, itl_p99: 80ms, error_rate: 0.1%}
gpus: [l40s]
precision: fp8
tensor_parallel: 1
zones: [a, b]
cold_start: 1min
"""


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    Path("small.yaml").write_text(SCENARIO)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def test_each_drill_has_a_verdict_and_a_failed_one_is_exit_1(run):
    code, out, err = run("drill", "small.yaml", "--burst", "40", "--only", "burst", "--only", "replica", "--json")
    found = json.loads(out)
    assert err == ""
    verdicts = {drill["name"]: drill["passed"] for drill in found["drills"]}
    assert set(verdicts) == {"burst", "replica"}
    assert verdicts["burst"] is False
    assert (code, found["passed"]) == (1, False)
    code, out, _ = run("drill", "small.yaml", "--replicas", "8", "--hold", "2min")
    assert code == 0
    labels = [line.split()[0] for line in out.splitlines() if not line.startswith(" ")]
    assert labels == ["Fleet", *["passed"] * 7, "Drills"]
    # Eight replicas take eight minutes to change, the demand has five.
    assert "until the 480 s of it are over" in " ".join(out.split())
    assert "too short to hold it for" not in out
    assert "7 of 7 passed" in out


def test_results_go_into_the_contract_of_the_same_fleet(run):
    assert run("plan", "small.yaml", "--quiet")[0] == 0
    paper = "small-plan/contract.yaml"
    assert contract.read_contract(Path(paper))["drills"] == ()
    options = ("--plan", "small-plan", "--contract", paper, "--only", "ramp", "--hold", "2min", "--only", "zone")
    run("drill", "small.yaml", *options)
    document = contract.read_contract(Path(paper))
    assert [drill["name"] for drill in document["drills"]] == ["ramp", "zone"]
    assert document["drills"][0]["clauses"][0]["name"] == "ttft_p99"
    run("drill", "small.yaml", *options[:4], "--only", "ramp", "--hold", "2min")
    again = contract.read_contract(Path(paper))
    assert sorted(drill["name"] for drill in again["drills"]) == ["ramp", "zone"]
    checked = contract.check_contract(again, today=again["valid"]["since"])
    assert checked.failed_drills == tuple(d["name"] for d in again["drills"] if d["passed"] is False)
    code, out, _ = run("contract", paper, "--scenario", "small.yaml", "--json")
    told = json.loads(out)
    assert (told["state"], told["compared"], told["evidence"]) == ("valid", True, "UNPROVEN")
    assert told["survives"]["replica"] is True
    assert told["ready_after_s"] == 60.0
    assert told["drills"] == {drill["name"]: drill["passed"] for drill in again["drills"]}
    assert code == (1 if told["failed_drills"] else 0)
    code, out, _ = run("contract", paper)
    assert [line.split()[0] for line in out.splitlines() if not line.startswith(" ")] == [
        "State",
        "Promise",
        "Proof",
        "Losses",
        "Scaling",
        "Drills",
        "Cost",
    ]
    code, _, err = run("drill", "small.yaml", *options, "--replicas", "9")
    assert code == 2
    assert "the drills about 9 replicas" in err
    Path("small.yaml").write_text(SCENARIO.replace("mean_rate: 4", "mean_rate: 5"))
    code, _, err = run("drill", "small.yaml", *options)
    assert code == 2
    assert "void" in err
    code, out, _ = run("contract", paper, "--scenario", "small.yaml")
    assert code == 1
    assert "void: demand changed" in out


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--only", "brust"), '--only: "brust" is not known; nearest: burst'),
        (("--flood", "0%"), '--flood: "0%" is not above 0%; write more than 0%'),
        (("--burst", "0.5"), "--burst: 0.5 times the peak is no burst"),
        (("--flood", "2"), "--flood"),
        (("--burst-length", "10h"), "--burst-length: the burst lasts 10 h, the demand 5 min"),
        (("--plan", "nowhere"), "cannot be read"),
        (("--replicas", "1000000000"), "1,000,000,000 replicas take"),
    ],
)
def test_what_cannot_be_drilled_is_a_problem(run, options, problem):
    code, out, err = run("drill", "small.yaml", *options)
    assert (code, out) == (2, "")
    assert problem in err


def test_no_fleet_is_an_answer(run):
    Path("small.yaml").write_text(SCENARIO.replace("ttft_p99: 2s", "ttft_p99: 1ms"))
    code, out, _ = run("drill", "small.yaml")
    assert code == 0
    assert out.startswith("Answer  no fleet keeps the promise")
