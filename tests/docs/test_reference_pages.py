"""The reference pages name every command, option and key, because they are written from them."""

import json
from pathlib import Path

import pytest

from tokenfleet.app import reference
from tokenfleet.app.cli import COMMANDS, main, root

DOCS = Path(__file__).resolve().parents[2] / "docs"
MEND = "renew it with: python -m tokenfleet.app.reference docs"


@pytest.mark.parametrize("name", ["scenario.md", "commands.md"])
def test_generated_pages_are_fresh(name):
    page = DOCS / name
    assert page.read_text() == reference.pages(DOCS)[page], MEND


def test_the_schema_for_editors_knows_every_key():
    def keys(schema):
        found = set(schema.get("properties", {}))
        return found.union(*(keys(part) for part in schema.get("$defs", {}).values()))

    assert keys(json.loads((DOCS / "scenario.schema.json").read_text())) == keys(json.loads(reference.schema())), MEND


def test_every_command_and_option_has_its_line():
    page = (DOCS / "commands.md").read_text()
    for name in COMMANDS:
        command = root.get_command(None, name)
        assert f"### `tokenfleet {name}" in page
        assert command.short_help == COMMANDS[name], "the help lists commands without importing them"
        for option in command.params:
            assert option.param_type_name == "argument" or all(f"`{flag}`" in page for flag in option.opts)
            assert option.param_type_name == "argument" or option.help, f"{name} {option.opts} explains itself"


def test_every_name_of_the_documents_is_explained(capsys):
    page = (DOCS / "commands.md").read_text()
    model = ["--model", "meta-llama/Llama-3.1-8B-Instruct", "--precision", "fp8"]
    question = [*model, "--gpu", "h100_sxm", "--tp", "1", "--json"]
    promise = ["--rate", "2", "--input", "500", "--output", "50", "--ttft-p99", "2s"]
    for arguments in (["memory", *question], ["estimate", *question, *promise]):
        with pytest.raises(SystemExit):
            main(arguments)
        document = json.loads(capsys.readouterr().out)
        unexplained = {name for name in document if f"`{name}`" not in page}
        assert unexplained <= {"name", "runners_up", "sustained_rate_per_s"}
