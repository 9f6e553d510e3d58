"""The same profile wherever its parts are counted."""

import gzip
import importlib.util
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from tokenfleet.app.executor import mapper_of
from tokenfleet.domain.errors import BadInput

ON_RAY = """
import json, sys
from pathlib import Path

import ray
from tokenfleet.app.cli import main
from tokenfleet.app.executor import mapper_of
from tokenfleet.domain.errors import BadInput
from tokenfleet.workload import profile_document, profile_files

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
mapper = mapper_of("ray")
files = sys.argv[1:]
here = profile_document(profile_files(files, rows_per_part=700))
there = profile_document(profile_files(files, rows_per_part=700, mapper=mapper))
assert json.dumps(here) == json.dumps(there), "differs"


def where(_):
    import os, time
    time.sleep(0.2)
    return os.getpid()


workers = set(mapper(where, range(12)))
assert len(workers) == 2, workers
try:
    profile_files([*files, "missing.parquet"], mapper=mapper)
except BadInput:
    print("same on", len(workers), "workers")


def command(target, *options):
    try:
        main(["profile", *files, "-o", target, *options])
    except SystemExit as ended:
        assert ended.code == 0, ended.code
    return Path(target).read_bytes()


assert command("here.json", "--in-parts", "yes") == command("there.json", "--executor", "ray")
print("same files")
ray.shutdown()
"""


def test_threads_of_this_process_need_no_mapper():
    assert mapper_of("local") is None


def test_a_missing_ray_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadInput, match=r"tokenfleet\[ray\]"):
        mapper_of("ray")


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra: pip install 'tokenfleet[ray]'")
def test_two_ray_workers_count_what_threads_count_bit_for_bit(tmp_path):
    rng = np.random.default_rng(3)
    files = []
    for place in range(40):
        files.append(tmp_path / f"log-{place:02d}.parquet")
        pl.DataFrame(
            {
                "time_ms": 1774745880123 + 3_600_000 * place + np.cumsum(rng.integers(1, 900, 2000)),
                "input_tokens": rng.integers(-1, 4000, 2000),
                "output_tokens": rng.integers(0, 900, 2000),
                "tenant": rng.choice(["blue", "red", "green"], 2000),
                "session": [f"chat-{name}" for name in rng.integers(0, 5000, 2000)],
            }
        ).write_parquet(files[-1])
    # Packed text is read by a worker from its start to its end.
    files.append(tmp_path / "log-40.csv.gz")
    last = pl.read_parquet(files[-2]).with_columns(pl.col("time_ms") + 3_600_000)
    files[-1].write_bytes(gzip.compress(last.write_csv().encode()))
    # A process of its own: Ray leaves sockets and threads behind, and the tests take warnings for errors.
    told = [sys.executable, "-c", ON_RAY, *map(str, files)]
    result = subprocess.run(told, capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "same on 2 workers" in result.stdout
    assert "same files" in result.stdout
