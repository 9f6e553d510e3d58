"""How fast the replay is: one command, on one core, beside the name of the machine.

    python benchmarks/replay.py [--quick] [--json]

Each case replays a trace at a share of the capacity that a hot run of the same lengths measured. ``core`` is the
compiled kernel alone, ``whole`` the call of ``replay`` from columns to columns, both in processor time, best of
three, of short traces of up to forty. With ``--json`` the first case alone, with the one-time compile (empty cache),
the load from cache in a new process, and the peak memory, as one object.

Below the cases stands what a request costs as a trace grows. A short replay can hit upon a moment in which the machine
is fast, a long one cannot, so all are replayed in turn, a stretch of each after a stretch of each other, until the
longest is through. Spread lengths tell: requests of one length come to start and end together within the first ten
thousand, and then share what a replay does at each end.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.replica import (
    Deployment,
    EngineSettings,
    ErrorBand,
    Layout,
    MemoryBudget,
    ReplicaPhysics,
    StepTimeModel,
)
from tokenfleet.domain.trace import PrefixTree, Trace
from tokenfleet.simulator import replay, warm_up

FIRST_CALL = """
import time
start_s = time.perf_counter()
from tokenfleet.simulator import replaying
replaying.warm_up(lambda _: None)
print(time.perf_counter() - start_s)
"""


def one_replica(
    *, name: str = "vllm-0.32", blocks: int = 25_000, asynchronous: bool = False, gate: bool = True
) -> ReplicaPhysics:
    """Step times of the size of an 8B model on a large gpu; the speed hardly depends on them."""
    engine = EngineSettings(
        name=name,
        max_batched_tokens=8192,
        max_sequence_count=256,
        block_tokens=16,
        memory_utilization_fraction=0.9,
        prefix_caching=True,
        chunked_prefill=True,
        full_prompt_gate=gate,
        async_scheduling=asynchronous,
    )
    step = StepTimeModel(
        token_ps=5_000_000_000 + 40_000_000 * np.arange(8193, dtype=np.int64),
        sequence_ps=10_000_000,
        context_ps=20_000,
        window_ps=0,
        window_tokens=0,
        pair_ps=2_000,
        eager_ps=6_000_000_000,
        request_ps=2_000_000_000,
    )
    memory = MemoryBudget(
        fits=True,
        terms_bytes={},
        total_bytes=1,
        weights_bytes=1,
        kv_bytes_per_token=1,
        kv_fixed_bytes_per_sequence=0,
        kv_capacity_bytes=blocks * 16,
        kv_capacity_tokens=blocks * 16,
        too_close_to_call=False,
        reasons=(),
    )
    names = {"model": "benchmark", "gpu": "benchmark", "precision": "bf16", "kv_precision": "bf16"}
    return ReplicaPhysics(
        deployment=Deployment(layout=Layout(), engine=engine, **names),
        memory=memory,
        step_time=step,
        band=ErrorBand(step_time_factor=1.0, evidence="none"),
        kv_block_count=blocks,
        kv_block_tokens=16,
        kv_fixed_block_count=0,
    )


def lengths(kind: str, count: int, draw: np.random.Generator) -> Trace:
    """A trace without arrival times yet."""
    inputs = np.full(count, 1000, dtype=np.int32)
    outputs = np.full(count, 200, dtype=np.int32)
    columns = {}
    if kind != "fixed":
        inputs = np.clip(draw.lognormal(np.log(700.0), 0.85, count), 1, 30_000).astype(np.int32)
        outputs = np.minimum(draw.geometric(1.0 / 200.0, count), 8_000).astype(np.int32)
    if kind == "chat":
        columns = conversations(inputs, outputs, draw)
    return Trace(arrival_s=np.zeros(count), input_tokens=inputs, output_tokens=outputs, **columns)


def conversations(inputs: np.ndarray, outputs: np.ndarray, draw: np.random.Generator) -> dict:
    """Five turns each, a system prompt of 1,024 tokens shared by an eighth of all; turns of one are far apart."""
    count = len(inputs)
    sessions = max(count // 5, 1)
    session = np.minimum(np.arange(count) % sessions, sessions - 1).astype(np.int32)
    parent = np.full(8 + count, -1, dtype=np.int32)
    tokens = np.full(8 + count, 1024, dtype=np.int32)
    tokens[8:] = inputs // 4 + outputs
    before = np.arange(count) - sessions
    parent[8:] = np.where(before >= 0, 8 + before, draw.integers(0, 8, sessions)[session])
    tree = PrefixTree(parent=parent, token_count=tokens)
    inputs[:] = tree.depth_tokens[8:] - outputs
    return {"prefix_node": np.arange(8, 8 + count, dtype=np.int32), "prefixes": tree, "session": session}


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    name: str
    kind: str = "fixed"
    load: float = 0.7
    count: int = 1_000_000
    replicas: int = 8
    router: str = "least_in_flight"
    blocks: int = 25_000
    asynchronous: bool = False
    gate: bool = True
    engine: str = "vllm-0.32"

    def fleet(self) -> Fleet:
        """The fleet that serves it."""
        replica = one_replica(name=self.engine, blocks=self.blocks, asynchronous=self.asynchronous, gate=self.gate)
        return Fleet(groups=(ReplicaGroup(replica=replica, replica_count=self.replicas),), router=self.router)

    def trace(self) -> Trace:
        """Poisson arrivals at ``load`` times the measured capacity."""
        draw = np.random.default_rng(1)
        hot = lengths(self.kind, 5_000 * self.replicas, draw)
        capacity_per_s = hot.request_count / replay(hot, self.fleet()).end_s
        rows = lengths(self.kind, self.count, draw)
        return replace(rows, arrival_s=np.cumsum(draw.exponential(1.0 / (self.load * capacity_per_s), self.count)))


CASES = (
    Case("1,000 in / 200 out, 70 % load, 8 replicas"),
    Case("  round robin", router="round_robin"),
    Case("  async scheduling", asynchronous=True),
    Case("  spread lengths", kind="spread"),
    Case("  spread lengths, async scheduling", kind="spread", asynchronous=True),
    Case("  spread lengths, rules of SGLang", kind="spread", engine="sglang-0.5"),
    Case("  spread lengths, rules of TensorRT-LLM", kind="spread", engine="trtllm-1.2"),
    Case("chat, shared prefixes, affinity, 30 % load", kind="chat", load=0.3, count=300_000, router="prefix_affinity"),
    Case("KV-bound overload, 1.2 x, gate", kind="spread", load=1.2, blocks=4_000),
    Case("KV-bound overload, 1.2 x, no gate", kind="spread", load=1.2, blocks=4_000, gate=False),
    Case("100 replicas, spread lengths", kind="spread", replicas=100),
)
COUNTS = (10_000, 100_000, 1_000_000, 10_000_000)
"""Requests of the traces that show what one costs as a trace grows."""


def measure(case: Case) -> tuple[float, float, object]:
    """Processor seconds of the kernel and of the whole call, best of some, and the record."""
    from tokenfleet.simulator.building import build
    from tokenfleet.simulator.entry import advance
    from tokenfleet.simulator.layout import NEVER_PS

    rows, on = case.trace(), case.fleet()
    core_s, whole_s = [], []
    record = None
    for _ in range(max(3, 400_000 // case.count)):
        memory, _ = build(rows, on, None)
        start_s = time.process_time()
        advance(memory, NEVER_PS - 1)
        core_s.append(time.process_time() - start_s)
        del memory
        start_s = time.process_time()
        record = replay(rows, on)
        whole_s.append(time.process_time() - start_s)
    return min(core_s), min(whole_s), record


def in_stretches(case: Case, arrivals: int) -> Iterator[float]:
    """Processor seconds of the kernel for so many arrivals after each other, again and again from the start."""
    from tokenfleet.simulator.building import build, to_ps
    from tokenfleet.simulator.entry import advance
    from tokenfleet.simulator.layout import NEVER_PS

    rows, on = case.trace(), case.fleet()
    pauses_ps = [to_ps(time_s) for time_s in rows.arrival_s[arrivals::arrivals]]
    while True:
        memory, _ = build(rows, on, None)
        for until_ps in (*pauses_ps, NEVER_PS - 1):
            start_s = time.process_time()
            advance(memory, until_ps)
            yield time.process_time() - start_s
        del memory


def costs_ns(kind: str, counts: Sequence[int]) -> list[float]:
    """What a request costs the kernel in traces of so many, all replayed in turn; each count divides the last."""
    replays = [in_stretches(replace(CASES[0], kind=kind, count=count), counts[0]) for count in counts]
    spent_s = np.zeros(len(counts))
    for _ in range(counts[-1] // counts[0]):
        spent_s += [next(each) for each in replays]
    return list(spent_s / counts[-1] * 1e9)


def machine() -> str:
    """Processor, cores, versions."""
    model = platform.processor()
    if Path("/proc/cpuinfo").exists():
        names = [
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ]
        model = names[0] if names else model
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}"


def in_new_process(cache: str) -> float:
    """Seconds until the kernel is ready in a fresh process, from the import of the simulator on."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    result = subprocess.run(
        [sys.executable, "-c", FIRST_CALL], env=environment, capture_output=True, text=True, check=True
    )
    return float(result.stdout.split()[-1])


def as_json() -> None:
    """The first case for machines."""
    with tempfile.TemporaryDirectory() as cache:
        first_call_s, cached_call_s = in_new_process(cache), in_new_process(cache)
    warm_up(lambda text: print(text, file=sys.stderr))
    core_s, _, _ = measure(CASES[0])
    print(
        json.dumps(
            {
                "requests_per_s": round(CASES[0].count / core_s),
                "request_count": CASES[0].count,
                "first_call_s": round(first_call_s, 2),
                "cached_call_s": round(cached_call_s, 3),
                "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "machine": machine(),
            }
        )
    )


def as_table(quick: bool) -> None:
    """Every case for people."""
    print(machine())
    warm_up(print)
    print(f"{'case':48s}{'core M/s':>9s}{'whole M/s':>10s}{'ns':>6s}{'steps':>7s}{'preempted':>10s}{'cached':>8s}")
    for case in CASES:
        played = replace(case, count=case.count // 10) if quick else case
        core_s, whole_s, record = measure(played)
        print(
            f"{played.name:48s}{played.count / core_s / 1e6:9.2f}{played.count / whole_s / 1e6:10.2f}"
            f"{core_s / played.count * 1e9:6.0f}{record.busy.step_count / played.count:7.2f}"
            f"{record.preemption_count.mean():10.3f}{record.cached_tokens.sum() / record.input_tokens.sum():8.1%}",
            flush=True,
        )
    counts = COUNTS[:-1] if quick else COUNTS
    print(f"\n{'ns per request in a trace of':30s}{''.join(f'{count:>12,}' for count in counts)}{'most / least':>15s}")
    for kind in ("spread", "fixed"):
        costs = costs_ns(kind, counts)
        row = "".join(f"{cost:12.0f}" for cost in costs)
        print(f"{f'  {kind} lengths':30s}{row}{max(costs) / min(costs):15.2f}", flush=True)


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description="Speed of the replay kernel on one core")
    parser.add_argument("--json", action="store_true", help="the first case for machines")
    parser.add_argument("--quick", action="store_true", help="a tenth of each trace")
    arguments = parser.parse_args()
    if arguments.json:
        as_json()
    else:
        as_table(arguments.quick)


if __name__ == "__main__":
    main()
