"""How long a plan takes: a wide search over an hour of 20,000 requests with a spare replica, whole process.

    python benchmarks/search.py [--case NAME] [--json]

Each case is planned twice without kept replays, in processes of their own, and the second counts: the kernel is there
and files are warm. Then it is planned with replays kept, and again with nothing and with one number changed, each
change for itself (see ``CHANGES``): a price, a limit of the promise, a spare replica, a node that may be lost, the
context limit, the demand.
Last, the same changes are saved one after the other before a process that stays (``plan --watch``): from the save to
the whole answer, the file put back between two of them.
Modules are compiled beforehand, as those of an installed package are. ``wall`` is what a person waits, ``cpu`` the
processor time of the process (the figure to compare on a machine that others use too). ``candidates`` were ranked or
replayed, smaller steps included; ``out`` are those that do not fit or cannot serve at any count.
"""

import argparse
import functools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SCENARIO = """\
name: wide
workload: {{preset: {preset}, mean_rate: 5.6, duration: 1h}}
model: {model}
slo: {{ttft_p99: {ttft}, itl_p99: 100ms, error_rate: 0.1%}}
gpus: [h100_sxm, h200_sxm, h100_nvl, a100_sxm_80gb, l40s, b200_sxm, mi300x, mi355x]
precision: [bf16, fp8]
kv_dtype: [bf16, fp8]
redundancy: {{replicas: n+1}}
"""
POOLS = """\
name: wide
workload: {lengths: {input: 3000:8000, output: 200:500}, mean_rate: 5.6, duration: 1h}
model: meta-llama/Llama-3.3-70B-Instruct
slo: {ttft_p99: 4s, itl_p99: 100ms, error_rate: 0.1%}
precision: fp8
redundancy: {replicas: n+1}
pools:
  embed: {model: Qwen/Qwen3-Embedding-0.6B, gpu: l4}
  rerank: {model: BAAI/bge-reranker-v2-m3, gpu: l4}
  small: {model: Qwen/Qwen3-8B, gpu: l40s, takes: {input_up_to: 2000}}
  main: {gpu: b200_sxm, tensor_parallel: 4, prefill: {}, decode: {}, link: infiniband_400g}
chain:
  takes: {share: 50%}
  steps: [{pool: embed, input: 30:90}, {wait: 20ms:80ms}, {pool: rerank, input: 400:700, calls: 20}]
"""
CASES = {
    "chat": SCENARIO.format(preset="chat", model="meta-llama/Llama-3.3-70B-Instruct", ttft="2s"),
    "rag": SCENARIO.format(preset="rag", model="meta-llama/Llama-3.3-70B-Instruct", ttft="2s"),
    "agents": SCENARIO.format(preset="agents", model="meta-llama/Llama-3.3-70B-Instruct", ttft="4s"),
    "small model": SCENARIO.format(preset="chat", model="meta-llama/Llama-3.1-8B-Instruct", ttft="500ms"),
    "pools": POOLS,
}
"""The last one names five pools, whose counts and settings are sought."""
CHANGES: dict[str, dict[str, str]] = {
    "days": {"replicas: n+1}": "replicas: n+1}\nvalid_days: 7"},
    "price": {"replicas: n+1}": "replicas: n+1}\nprices: {usd_per_gpu_hour: {b200_sxm: 5.5}}"},
    "ttft": {"ttft_p99: 4s": "ttft_p99: 3.5s", "ttft_p99: 2s": "ttft_p99: 1.75s", "ttft_p99: 500ms": "ttft_p99: 440ms"},
    "itl": {"itl_p99: 100ms": "itl_p99: 110ms"},
    "spare": {"replicas: n+1": "replicas: n+2"},
    "nodes": {"replicas: n+1": "replicas: n+1, nodes: n+1"},
    "context": {"replicas: n+1}": "replicas: n+1}\nengine: {context_limit: 65536}"},
    "demand": {"mean_rate: 5.6": "mean_rate: 6.16"},
}
"""One number each; the first is one that changes no decision."""
TIMES = ("wall_s", "cpu_s", "watched_s")
COMMAND = [sys.executable, "-c", "import sys; from tokenfleet.app.cli import main; sys.exit(main())"]


def environment(folder: Path) -> dict[str, str]:
    """Modules are compiled once, beside the scenario; what is kept from plan to plan lies there too."""
    own = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": "compiled", "XDG_CACHE_HOME": "kept"}
    return os.environ | {name: value and str(folder / value) for name, value in own.items()}


def planned(folder: Path, *options: str) -> dict[str, Any]:
    """Plans the scenario in ``folder`` in a process of its own; its times and what the search counted."""
    before, start_s = os.times(), time.perf_counter()
    done = subprocess.run(
        [*COMMAND, "plan", "wide.yaml", "--json", *options],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        check=True,
    )
    wall_s, after = time.perf_counter() - start_s, os.times()
    found = json.loads(done.stdout)
    return {
        "candidate_count": found["search"]["candidate_count"] - len(found["rejected"]),
        "rejected_count": len(found["rejected"]),
        "request_count": found["workload"]["request_count"],
        "replayed_count": found["search"]["replayed_count"],
        "wall_s": wall_s,
        "cpu_s": (after.children_user - before.children_user) + (after.children_system - before.children_system),
        "usd_per_hour": found["price_usd_per_hour"],
    }


class Watching:
    """A process that plans whenever the scenario is saved."""

    def __init__(self, folder: Path) -> None:
        self._scenario = folder / "wide.yaml"
        self._process = subprocess.Popen(
            [*COMMAND, "plan", "wide.yaml", "--json", "--watch"],
            cwd=folder,
            env=environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answer()

    def saved(self, text: str) -> float:
        """Saves the scenario; seconds until the whole answer is there."""
        start_s = time.perf_counter()
        self._scenario.write_text(text)
        self._answer()
        return time.perf_counter() - start_s

    def _answer(self) -> None:
        """Reads one document: the brace that closes it stands alone at the beginning of its line."""
        for line in self._process.stdout or ():
            if line.rstrip() == "}":
                return
        raise RuntimeError("the watching process ended")

    def end(self) -> None:
        """Ends it."""
        self._process.terminate()
        self._process.communicate()


def measured(name: str) -> dict[str, Any]:
    """One case, warm; each change finds what the plan before it kept, and nothing of the other changes."""
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        scenario, text = folder / "wide.yaml", CASES[name]
        scenario.write_text(text)
        planned(folder, "--no-cache")
        found = planned(folder, "--no-cache")
        planned(folder)
        shutil.copytree(folder / "kept", folder / "first")
        again = {}
        changed = {
            change: functools.reduce(lambda now, each: now.replace(*each), words.items(), text)
            for change, words in {"nothing": {}, **CHANGES}.items()
        }
        for change, other in changed.items():
            scenario.write_text(other)
            again[change] = planned(folder)
            shutil.rmtree(folder / "kept")
            shutil.copytree(folder / "first", folder / "kept")
        scenario.write_text(text)
        watching = Watching(folder)
        for change, other in changed.items():
            again[change]["watched_s"] = watching.saved(other + "\n")
            watching.saved(text)
        watching.end()
    times = {change: {key: each[key] for key in TIMES} for change, each in again.items()}
    return found | {"again": times}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=list(CASES), action="append")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = {name: measured(name) for name in asked.case or CASES}
    if asked.json:
        print(json.dumps({"machine": platform.processor() or platform.machine(), "cases": rows}, indent=2))
        return
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}")
    print("case         requests candidates   out  replays  wall s  cpu s      $/h")
    for name, row in rows.items():
        price = "-" if row["usd_per_hour"] is None else f"{row['usd_per_hour']:.2f}"
        print(
            f"{name:12} {row['request_count']:8,} {row['candidate_count']:10,} {row['rejected_count']:5,} "
            f"{row['replayed_count']:8,} {row['wall_s']:7.1f} {row['cpu_s']:6.1f} {price:>8}"
        )
    print("again, with one number changed:")
    print(f"case         time      {' '.join(f'{change:>8}' for change in ('nothing', *CHANGES))}")
    for name, row in rows.items():
        for time_name in TIMES:
            times = " ".join(format(each[time_name], "8.2f") for each in row["again"].values())
            print(f"{name:12} {time_name.replace('_', ' '):9} {times}")


if __name__ == "__main__":
    main()
