"""The cache of machine code follows every source that is compiled, and where it cannot be written that is said."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tokenfleet
from tokenfleet.simulator import warm_up
from tokenfleet.simulator.machine_code import KEPT_FOLDERS, cache_directory, source_digest

PACKAGE = Path(tokenfleet.__file__).parent
PROBE = """
from tokenfleet.control import routing as policies
from tokenfleet.simulator.compiling import compiled
from tokenfleet.simulator.memory import Memory

least_in_flight = compiled(policies.least_in_flight)


@compiled
def probe(memory: Memory, in_flight: int) -> int:
    return least_in_flight(in_flight + memory[0], 1)
"""
CALL_PROBE = """
import sys
import numpy as np
from tokenfleet.simulator.machine_code import EntryPoint

probe = EntryPoint("tokenfleet.simulator.probe", "probe", integer_count=1)
print(probe(np.array([1]), 2), "tokenfleet.simulator.translating" in sys.modules)
"""
KERNEL = """
import sys
sys.path.insert(0, {tests!r})
from reference.fleets import fleet, trace
from tokenfleet.simulator import replay
print(replay(trace([(0, 4, 9), (1, 4, 9), (2, 4, 9)]), fleet(count=3)).replica.tolist())
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package that may be edited."""
    shutil.copytree(PACKAGE, tmp_path / "tokenfleet", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def started(folder: Path, code: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    environment.pop("NUMBA_CACHE_DIR", None)
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True, cwd=folder
    )


def said(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate()
    assert process.returncode == 0
    return out.strip()


def run(folder: Path, code: str) -> str:
    return said(started(folder, code))


def edit(folder: Path, file: str, old: str, new: str) -> None:
    path = folder / "tokenfleet" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


LEAST = "    return in_flight_count << AFTER_BITS | after_count\n\n\ndef home_replica"
MOST = "    return -in_flight_count << AFTER_BITS | after_count\n\n\ndef home_replica"


def test_an_edited_policy_changes_what_its_callers_do(copy: Path) -> None:
    """The caller stands in another file, which does not change."""
    (copy / "tokenfleet" / "simulator" / "probe.py").write_text(PROBE)
    both = [started(copy, CALL_PROBE), started(copy, CALL_PROBE)]
    told = sorted(said(process) for process in both)
    assert told == [f"{(3 << 20) + 1} False", f"{(3 << 20) + 1} True"], (
        "one compiles, and the other takes its machine code without the compiler"
    )
    edit(copy, "control/routing.py", LEAST, MOST)
    assert run(copy, CALL_PROBE) == f"{(-3 << 20) + 1} True"


@pytest.mark.long
def test_an_edited_policy_changes_the_replay(copy: Path) -> None:
    code = KERNEL.format(tests=str(Path(__file__).parents[2]))
    assert run(copy, code) == "[0, 1, 2]"
    edit(copy, "control/routing.py", LEAST, MOST)
    assert run(copy, code) == "[0, 0, 0]"


@pytest.mark.parametrize("file", ["control/routing.py", "simulator/batching.py", "domain/run.py"])
def test_the_digest_covers_every_compiled_source(copy: Path, file: str) -> None:
    before = source_digest(copy / "tokenfleet")
    with (copy / "tokenfleet" / file).open("a") as source:
        source.write("\n")
    assert source_digest(copy / "tokenfleet") != before


def test_a_cache_that_cannot_be_written_is_replaced_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    with pytest.warns(RuntimeWarning, match="compiled anew in each process"):
        folder = cache_directory.__wrapped__()
    assert folder.is_dir()
    folder.rmdir()


def test_machine_code_of_old_sources_goes_and_the_newest_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    for age in range(12):
        folder = tmp_path / f"kernel-{age:02d}"
        folder.mkdir()
        (folder / "advance.o").write_text("")
        os.utime(folder, (1e9 - age, 1e9 - age))
    (tmp_path / "others").mkdir()
    current = cache_directory.__wrapped__()
    kept = sorted(path.name for path in tmp_path.iterdir() if path != current)
    assert kept == [*(f"kernel-{age:02d}" for age in range(KEPT_FOLDERS - 1)), "others"]


def test_a_cached_kernel_is_not_announced() -> None:
    warm_up(lambda _: None)
    said: list[str] = []
    assert warm_up(said.append) is False
    assert said == []
