"""The examples run on a fresh machine: no network, no other file."""

import json
import socket
from pathlib import Path

import pytest

from tokenfleet.app.cli import main
from tokenfleet.app.compose import compose
from tokenfleet.app.scenario import load_scenario

EXAMPLES = sorted((Path(__file__).resolve().parents[3] / "examples").glob("*.yaml"))
QUICK = {"batch", "multitenant"}


class Silent:
    def say(self, text):
        pass

    step = announce = say


@pytest.fixture
def offline(monkeypatch):
    def refuse(*_arguments, **_options):
        raise AssertionError("an example reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_asks_a_complete_question(path, offline):
    composition = compose(load_scenario(path), Silent())
    question = composition.question
    assert question.candidates, "something fits"
    assert {candidate.deployment.gpu for candidate in question.candidates} <= {price.gpu for price in question.prices}
    longest = composition.trace.input_tokens + composition.trace.output_tokens
    assert longest.max() <= question.model.max_context_tokens
    assert composition.workload.request_count > 1000, "enough for a p99"


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.stem in QUICK else pytest.mark.long, id=path.stem) for path in EXAMPLES],
)
def test_each_example_has_a_fleet_that_keeps_its_promise(path, offline, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(path), "-o", str(tmp_path / "plan"), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0
    assert document["feasible"] is True
    assert all(promise["kept"] for promise in document["slo"])
    assert (tmp_path / "plan" / "contract.yaml").exists()
