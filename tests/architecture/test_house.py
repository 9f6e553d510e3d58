"""The rules of the house that a machine can check; ARCHITECTURE.md gives the reasons."""

import ast
import dataclasses
import importlib
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tokenfleet"
SOURCES = sorted(PACKAGE.rglob("*.py"))
ROOMS = sorted(path.parent for path in PACKAGE.glob("*/__init__.py"))

FUNCTION_LINES = 60
FILE_LINES = 500
FLOORS_WITH_CLOCKS = {"app", "live"}
CLOCKS_AND_SOCKETS = {"time", "socket", "asyncio", "aiohttp", "threading", "sched"}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


def test_files_stay_small():
    assert not [relative(path) for path in SOURCES if len(path.read_text().splitlines()) > FILE_LINES]


def test_functions_stay_small():
    assert not [
        f"{relative(path)}: {node.name}, {node.end_lineno - node.lineno + 1} lines"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    ]


def test_imports_go_down_only():
    script = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([script, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("folder", ROOMS, ids=relative)
def test_every_room_says_what_it_owns(folder):
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    assert text.startswith("Floor "), "opens with its floor"
    assert "Promises:" in text
    if folder.name != "domain":
        assert "Must not" in text


def test_there_is_no_junk_room():
    names = {part for path in SOURCES for part in path.relative_to(PACKAGE).with_suffix("").parts}
    assert not names & {"utils", "util", "helpers", "common", "misc"}


def test_clocks_and_sockets_live_upstairs():
    clocks = re.compile(
        rf"^\s*(?:import|from) (?:{'|'.join(CLOCKS_AND_SOCKETS)})\b|\b(?:now|today|utcnow)\(\)", re.MULTILINE
    )
    assert not [
        relative(path) for path in SOURCES if room(path) not in FLOORS_WITH_CLOCKS and clocks.search(path.read_text())
    ]


def comments(path: Path) -> str:
    with path.open("rb") as lines:
        return " ".join(t.string for t in tokenize.tokenize(lines.readline) if t.type == tokenize.COMMENT)


def test_source_carries_no_debts_and_no_foreign_paths():
    debts = re.compile(r"TODO|FIXME|XXX|pragma: no cover|type: ignore(?!\[)")
    foreign = re.compile(r"NotImplementedError|except Exception|except:|\.\./shared|/work/|/root/|/home/")
    texts = {path: path.read_text() for path in SOURCES}
    assert not [relative(path) for path, text in texts.items() if foreign.search(text)]
    assert not [relative(path) for path, text in texts.items() if debts.search(text) and debts.search(comments(path))]


LABELS = {
    # Indices and identities, not quantities.
    "parent", "prefix_node", "session", "tenant", "replica", "replicas", "absent", "after", "state", "status",
    "running", "waiting", "seed", "rank", "pool", "calls", "berth",
    # A bound on prompts in tokens or on priorities, as the router that reads it says; an order among requests.
    "up_to", "priority",
    # Quantiles inside a type whose name carries the unit, and one plain number a promise speaks of.
    "p50", "p90", "p95", "p99", "max", "mean", "quantile", "promised", "predicted", "predicted_low", "predicted_high",
}  # fmt: skip
SUFFIXES = (
    "_s", "_ps", "_bytes", "_tokens", "_count", "_counts", "_fraction", "_w", "_ratio", "_factor", "_cv", "_size",
    "_correlation", "_parallel", "_per_s", "_per_token", "_per_sequence", "_per_weight", "_usd", "_per_hour",
    "_per_gpu_hour", "_per_request", "_per_month",
    "_tokens_loaded", "_edges", "_requests", "_read", "_kept", "_dropped", "count",
)  # fmt: skip
NUMBERS = re.compile(r"\b(int|float|Floats|Ints|NDArray)\b")


def domain_fields():
    for path in sorted((PACKAGE / "domain").glob("[a-z]*.py")):
        module = importlib.import_module(f"tokenfleet.domain.{path.stem}")
        for name, kind in vars(module).items():
            if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__:
                for field in dataclasses.fields(kind):
                    yield f"{path.stem}.{name}.{field.name}", field


def test_domain_quantities_end_in_their_unit():
    unnamed = [
        where
        for where, field in domain_fields()
        if NUMBERS.search(str(field.type)) and field.name not in LABELS and not field.name.endswith(SUFFIXES)
    ]
    assert not unnamed


def test_ruff_and_mypy_are_clean():
    bin_folder = Path(sys.executable).parent
    for command in (["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]):
        result = subprocess.run(
            [bin_folder / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
