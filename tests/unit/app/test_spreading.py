import importlib.util
import os
import subprocess
import sys
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError, Event
from types import SimpleNamespace

import pytest

from tokenfleet.app.cli import main
from tokenfleet.app.spreading import spread_replays
from tokenfleet.domain.errors import BadInput

SCENARIO = """\
name: spread
workload: {lengths: {input: 500:2000, output: 100:300}, peak_rate: 8, duration: 4min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p99: 1s, itl_p99: 80ms, error_rate: 0.1%}
gpus: [h100_sxm, l40s]
"""
ON_RAY = """
import sys
import ray
from tokenfleet.app.cli import main
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
for executor in ("ray", "local"):
    for command in (["plan", "-o", executor], ["levers"]):
        try:
            main([command[0], "spread.yaml", *command[1:], "--json", "--no-cache", "--executor", executor])
        except SystemExit as ended:
            assert not ended.code, ended.code
        print("END OF", command[0])
ray.shutdown()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spread.yaml").write_text(SCENARIO)
    return tmp_path


def planned(folder, name):
    with pytest.raises(SystemExit) as end:
        main(["plan", "spread.yaml", "-o", name, "--quiet", "--no-cache"])
    assert not end.value.code
    return (folder / name / "plan.json").read_bytes()


def test_a_plan_is_the_same_bytes_whatever_the_number_of_threads(folder, monkeypatch):
    found = set()
    for cores in (1, 2, 5):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: range(cores), raising=False)
        with spread_replays("local") as replay:
            assert replay.width == (cores if cores > 1 else 0)
        found.add(planned(folder, f"on-{cores}"))
    assert len(found) == 1


def test_who_leaves_waits_for_no_more_than_the_replay_under_way(monkeypatch):
    left = Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, **how):
            left.set()
            super().shutdown(**how)

    def part(replay):
        left.wait(10.0)
        return replay(SimpleNamespace(request_count=1), None)

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2), raising=False)
    monkeypatch.setattr("tokenfleet.app.spreading.ThreadPoolExecutor", Pool)
    with spread_replays("local") as replay:
        found = replay.beside(lambda: part(replay))
    with pytest.raises(CancelledError):
        found()


@pytest.mark.parametrize(("request_count", "together"), [(100, True), (600_000, False)])
def test_of_long_traces_one_replay_runs_at_a_time(monkeypatch, request_count, together):
    meeting, trace, met = Barrier(2), SimpleNamespace(request_count=request_count), []

    def replay(*_, **__):
        with suppress(BrokenBarrierError):
            meeting.wait(10.0 if together else 0.05)
            met.append(True)

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2), raising=False)
    with spread_replays("local", SimpleNamespace(replay=replay, unkept=replay)) as spread:
        for each in [spread.beside(lambda: spread(trace, None)) for _ in range(2)]:
            each()
    assert bool(met) == together


def test_a_missing_ray_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadInput, match=r"tokenfleet\[ray\]"), spread_replays("ray"):
        pass


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra: pip install 'tokenfleet[ray]'")
def test_two_ray_workers_plan_what_threads_plan_bit_for_bit(folder):
    # A process of its own: Ray leaves sockets and threads behind, and the tests take warnings for errors.
    done = subprocess.run(
        [sys.executable, "-c", ON_RAY], capture_output=True, text=True, check=False, timeout=500, cwd=folder
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (folder / "ray" / "plan.json").read_bytes() == (folder / "local" / "plan.json").read_bytes()
    _, levers_on_ray, _, levers_here, _ = done.stdout.replace("END OF plan\n", "END OF levers\n").split(
        "END OF levers\n"
    )
    assert levers_on_ray == levers_here
