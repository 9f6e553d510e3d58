"""Scenarios from questions: every one of them can be planned, none overwrites a file."""

import io
from pathlib import Path

import pytest

from tokenfleet.app.cli import main
from tokenfleet.app.interview import questions
from tokenfleet.app.scenario import load_scenario
from tokenfleet.app.service_kinds import SERVICE_KINDS

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
KINDS = [kind.name for kind in SERVICE_KINDS]


class Typist(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*arguments, typed=None):
        if typed is not None:
            monkeypatch.setattr("sys.stdin", Typist("".join(f"{line}\n" for line in typed)))
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_service_loads_and_is_the_example(run, kind):
    code, out, _ = run("init", "--defaults", kind)
    assert code == 0
    assert f"tokenfleet plan {kind}.yaml" in out
    scenario = load_scenario(Path(f"{kind}.yaml"))
    assert scenario.workload.preset == kind
    mend = f"renew it: tokenfleet init --defaults {kind} --force -o examples/{kind}.yaml"
    assert (EXAMPLES / f"{kind}.yaml").read_text() == Path(f"{kind}.yaml").read_text(), mend


OF_THEIR_OWN = {"mixed", "tiers"}
"""Examples that no question of the interview leads to."""


def test_there_is_an_example_of_each_kind_and_no_other():
    assert sorted(path.stem for path in EXAMPLES.glob("*.yaml")) == sorted({*KINDS, *OF_THEIR_OWN})


def test_a_file_is_not_overwritten_without_force(run):
    Path("chat.yaml").write_text("mine")
    code, out, err = run("init", "--defaults", "chat")
    assert (code, out) == (2, "")
    assert "--force" in err
    assert Path("chat.yaml").read_text() == "mine"
    assert run("init", "--defaults", "chat", "--force")[0] == 0
    assert load_scenario(Path("chat.yaml")).name == "chat"


def test_without_a_terminal_it_says_how_to_go_on(run, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    code, _, err = run("init")
    assert code == 2
    assert "--defaults chat, rag" in err
    code, _, err = run("init", "--defaults", "chatt")
    assert code == 2
    assert "nearest: chat" in err


def test_enter_all_the_way_gives_the_defaults(run):
    kind = SERVICE_KINDS[0]
    code, _, _ = run("init", typed=[""] * (1 + len(questions(kind))))
    assert code == 0
    asked, usual = load_scenario(Path("chat.yaml")), load_scenario(EXAMPLES / "chat.yaml")
    assert asked == usual


def test_answers_become_the_scenario_and_wrong_ones_are_asked_again(run):
    said = {
        "name": "helpdesk",
        "model": "Qwen/Qwen3-32B",
        "peak_rate": "300/min",
        "input": "900:3000",
        "output": "200:500",
        "growth": "1.5",
        "tools": "tool calls",
        "ttft": "1500ms",
        "itl": "80ms",
        "quantile": "p95",
        "error_rate": "0.5%",
        "context_limit": "16384",
        "gpus": "h100_sxm, H200",
        "spare": "n+2",
        "regions": "eu and us",
    }
    wrong = {"model": "no-such-model", "peak_rate": "fast", "ttft": "2 sec", "gpus": "h1000"}
    typed = ["chat"]
    for question in questions(SERVICE_KINDS[0]):
        if question.key in wrong:
            typed.append(wrong[question.key])
        typed.append(said.get(question.key, ""))
    code, _, err = run("init", "-o", "mine.yaml", typed=typed)
    assert code == 0
    assert '"2 sec" is not a duration; write 2s or 2000ms' in err
    scenario = load_scenario(Path("mine.yaml"))
    assert (scenario.name, scenario.model, scenario.gpus) == ("helpdesk", "Qwen/Qwen3-32B", ["h100_sxm", "h200_sxm"])
    assert scenario.workload.peak_rate == pytest.approx(5.0)
    assert (scenario.workload.growth, scenario.spare_replica_count) == (1.5, 2)
    assert {target.name: target.limit_s for target in scenario.slo.targets().latency} == {
        "ttft_p95": 1.5,
        "itl_p95": pytest.approx(0.08),
    }
    assert scenario.engine.context_limit == 16384
    text = Path("mine.yaml").read_text()
    assert "must survive: eu and us" in text
    assert "prompts carry: tool calls" in text
    assert "does not use it yet" in text


@pytest.mark.parametrize("name", ["8", "yes", "null", "1e3", "0.5", "2026-11-29"])
def test_a_name_that_yaml_would_take_for_something_else_stays_a_name(run, name):
    kind = SERVICE_KINDS[0]
    run("init", "-o", "odd.yaml", typed=["chat", name, *[""] * (len(questions(kind)) - 1)])
    assert load_scenario(Path("odd.yaml")).name == name


def test_a_name_that_is_no_folder_is_asked_again(run):
    kind = SERVICE_KINDS[0]
    _, _, err = run("init", typed=["chat", "a/b", "fine", *[""] * (len(questions(kind)) - 1)])
    assert "cannot name a folder" in err
    assert load_scenario(Path("fine.yaml")).name == "fine"
