"""Every code block in the docs runs, and what a terminal block shows is what the command prints today.

Blocks fenced as ``console`` hold commands after ``$`` and their output; ``python`` blocks are executed;
``yaml scenario`` blocks must load as scenarios. Set ``TOKENFLEET_UPDATE_DOCS=1`` to rewrite the outputs.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tokenfleet.simulator import warm_up

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])
BLOCK = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (?P<command>(?:.*\\\n)*.*)\n(?P<output>(?:(?!\$ ).*\n?)*)", re.MULTILINE)
ENVIRONMENT = {
    **os.environ,
    "COLUMNS": "110",
    "NO_COLOR": "1",
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
}


def relative(path):
    return str(path.relative_to(ROOT))


def blocks(page, info):
    return [match for match in BLOCK.finditer(page.read_text()) if match["info"].strip() == info]


def run(command, folder):
    result = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=120
    )
    return (result.stdout + result.stderr).rstrip() + "\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "console")], ids=relative)
def test_terminal_blocks_show_what_the_command_prints(page, folder):
    warm_up(announce=lambda _: None)  # A page shows what a command prints from its second run on.
    text = page.read_text()
    for block in blocks(page, "console"):
        fresh = COMMAND.sub(lambda m: f"$ {m['command']}\n{run(m['command'], folder)}", block["body"])
        text = text.replace(block["body"], fresh)
    if os.environ.get("TOKENFLEET_UPDATE_DOCS"):
        page.write_text(text)
    assert page.read_text() == text


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=relative)
def test_python_blocks_run(page, folder, monkeypatch):
    monkeypatch.chdir(folder)
    scope = {}
    for block in blocks(page, "python"):
        exec(compile(block["body"], relative(page), "exec"), scope)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "yaml scenario")], ids=relative)
def test_scenario_blocks_load(page, tmp_path):
    from tokenfleet.app.scenario import load_scenario

    for block in blocks(page, "yaml scenario"):
        path = tmp_path / "scenario.yaml"
        path.write_text(block["body"])
        load_scenario(path)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_pages_speak_of_the_product_only(page):
    assert not re.search(r"\.\./shared|/work/|/root/|\bsession's time\b", page.read_text())
