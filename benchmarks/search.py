"""How long a plan takes: a wide search over an hour of 20,000 requests with a spare replica, whole process.

    python benchmarks/search.py [--case NAME] [--json]

Each case is planned twice without kept replays, in processes of their own, and the second counts: the kernel is there
and files are warm. Then it is planned with replays kept, and once more with one number changed (the days that the
contract stands), which is ``again``. ``wall`` is what a person waits, ``cpu`` the processor time of the process (the
figure to compare on a machine that others use too). ``candidates`` were ranked or replayed, smaller steps included;
``out`` are those that do not fit or cannot serve at any count.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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
CASES = {
    "chat": ("chat", "meta-llama/Llama-3.3-70B-Instruct", "2s"),
    "rag": ("rag", "meta-llama/Llama-3.3-70B-Instruct", "2s"),
    "agents": ("agents", "meta-llama/Llama-3.3-70B-Instruct", "4s"),
    "small model": ("chat", "meta-llama/Llama-3.1-8B-Instruct", "500ms"),
}
COMMAND = [sys.executable, "-c", "import sys; from tokenfleet.app.cli import main; sys.exit(main())"]


def planned(folder: Path, *options: str) -> dict[str, float]:
    """Plans the scenario in ``folder`` in a process of its own; its times and what the search counted."""
    before, start_s = os.times(), time.perf_counter()
    done = subprocess.run(
        [*COMMAND, "plan", "wide.yaml", "--json", *options],
        cwd=folder,
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


def measured(name: str) -> dict[str, float]:
    """One case, warm."""
    preset, model, ttft = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "wide.yaml"
        scenario.write_text(SCENARIO.format(preset=preset, model=model, ttft=ttft))
        planned(Path(folder), "--no-cache")
        found = planned(Path(folder), "--no-cache")
        planned(Path(folder))
        scenario.write_text(scenario.read_text() + "valid_days: 7\n")
        again = planned(Path(folder))
    return found | {"again_wall_s": again["wall_s"], "again_cpu_s": again["cpu_s"]}


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
    print("case         requests candidates   out  replays  wall s  cpu s      $/h  again: wall s  cpu s")
    for name, row in rows.items():
        price = "-" if row["usd_per_hour"] is None else f"{row['usd_per_hour']:.2f}"
        print(
            f"{name:12} {row['request_count']:8,} {row['candidate_count']:10,} {row['rejected_count']:5,} "
            f"{row['replayed_count']:8,} {row['wall_s']:7.1f} {row['cpu_s']:6.1f} {price:>8} "
            f"{row['again_wall_s']:14.1f} {row['again_cpu_s']:6.1f}"
        )


if __name__ == "__main__":
    main()
