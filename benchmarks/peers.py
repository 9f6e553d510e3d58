"""The replay beside simulators that can be installed: the same load, in the same run, whole process and core apart.

    python benchmarks/peers.py [--peer-python PYTHON] [--json]

The load is 1,000 tokens in and 200 out on 8 replicas at 50 requests per second. Peers live in an environment of their
own (``--peer-python``), as their pins do not go together with ours::

    python -m venv peers
    peers/bin/pip install --no-deps ai-dynamo==1.2.1 ai-dynamo-runtime==1.2.1 vllm-sr-sim
    peers/bin/pip install "pydantic<2.13" msgspec numpy pyyaml prometheus-client

``ai-dynamo`` steps every batch, as we do; ``vllm-sr-sim`` simulates slots, not steps, so it has less to do. ``whole``
is the processor time of the process from start to end, imports included; ``core`` is what it says of its own loop.
Each runs at two sizes, so that what a process costs before its first request can be told from what a request costs.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from replay import machine

OURS = """
import sys, time
import numpy as np
sys.path.insert(0, {folder!r})
from replay import Case
from tokenfleet.domain.trace import Trace
from tokenfleet.simulator import warm_up
from tokenfleet.simulator.replaying import replay
warm_up(lambda text: print(text, file=sys.stderr))
count = {count}
trace = Trace(
    arrival_s=np.arange(count) * 0.02,
    input_tokens=np.full(count, 1000, dtype=np.int32),
    output_tokens=np.full(count, 200, dtype=np.int32),
)
start_s = time.process_time()
record = replay(trace, Case("").fleet())
print(time.process_time() - start_s)
"""
DYNAMO_ENGINE = {"block_size": 16, "num_gpu_blocks": 25_000, "max_num_seqs": 256, "max_num_batched_tokens": 8192}
SLOTS_LENGTHS = {"cdf": [[1199, 0.0], [1200, 1.0]]}


@dataclass(frozen=True)
class Run:
    """One process."""

    name: str
    request_count: int
    whole_s: float
    """Processor time of the process."""
    core_s: float | None
    """What it says its own loop took; ``None`` where it does not say."""


def processor_time(command: list[str]) -> tuple[float, str]:
    """Run to the end; user and system seconds of the process and its children, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:4])} ... failed:\n{done.stderr[-2000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def ours(count: int) -> Run:
    """tokenfleet, with the kernel compiled before."""
    code = OURS.format(folder=str(Path(__file__).parent), count=count)
    whole_s, out = processor_time([sys.executable, "-c", code])
    return Run("tokenfleet", count, whole_s, float(out.split()[-1]))


def dynamo(python: str, count: int) -> Run:
    """The replay of ai-dynamo; its core time is wall time, which it reports."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        sizes = ["--input-tokens", "1000", "--output-tokens", "200", "--request-count", str(count)]
        load = ["--arrival-interval-ms", "20", "--num-workers", "8", "--extra-engine-args", json.dumps(DYNAMO_ENGINE)]
        whole_s, _ = processor_time([python, "-m", "dynamo.replay", *sizes, *load, "--report-json", str(report)])
        return Run("ai-dynamo replay", count, whole_s, json.loads(report.read_text())["wall_time_ms"] / 1000)


def slots(python: str, count: int) -> Run:
    """The slot simulation of vllm-sr-sim."""
    with tempfile.TemporaryDirectory() as folder:
        lengths, command = Path(folder) / "lengths.json", Path(python).parent / "vllm-sr-sim"
        lengths.write_text(json.dumps(SLOTS_LENGTHS))
        fleet = ["--n-s", "8", "--n-l", "0", "--b-short", "2048", "--gpu-short", "h100"]
        load = ["--lam", "50", "--n-req", str(count)]
        whole_s, _ = processor_time([str(command), "simulate", "--cdf", str(lengths), *fleet, *load])
        return Run("vllm-sr-sim", count, whole_s, None)


def runs(python: str) -> list[Run]:
    """Every simulator at two sizes; one that is not installed is said and left out."""
    ours(1_000)  # compiles, where that is still to be done
    found = [ours(100_000), ours(1_000_000)]
    peers: list[tuple[str, Callable[[str, int], Run]]] = [("ai-dynamo", dynamo), ("vllm-sr-sim", slots)]
    for name, run in peers:
        try:
            found += [run(python, 1_000), run(python, 10_000)]
        except (OSError, RuntimeError) as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    return found


def main() -> None:
    """Print a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter of the peers' environment")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = runs(asked.peer_python)
    if asked.json:
        print(json.dumps({"machine": machine(), "runs": [asdict(run) for run in found]}))
        return
    print(machine())
    print(f"{'simulator':20s}{'requests':>11s}{'whole s':>10s}{'core s':>9s}{'requests/s whole':>18s}{'core':>12s}")
    for run in found:
        core_s, core = (
            ("-", "-") if run.core_s is None else (f"{run.core_s:.2f}", f"{run.request_count / run.core_s:,.0f}")
        )
        whole = f"{run.whole_s:10.2f}{core_s:>9s}{run.request_count / run.whole_s:18,.0f}"
        print(f"{run.name:20s}{run.request_count:11,d}{whole}{core:>12s}")


if __name__ == "__main__":
    main()
