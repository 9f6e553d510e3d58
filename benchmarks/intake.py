"""How fast logs are read and profiled: one command, beside the name of the machine.

    python benchmarks/intake.py [--rows N] [--json] [--only parquet|csv|jsonl|whole]

Files of N rows (10 million of Parquet by default, a fifth of that as text) are made in a temporary folder and deleted
afterwards; every case runs in a process of its own, so that its peak memory is its own. Rows per second are those of
the wall clock; beside them the processor seconds, which a busy machine stretches less. Each file is read twice and the
second time counts, so that compiling and cold disks are left out.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

ROWS = 10_000_000
ROWS_AT_ONCE = 5_000_000
TEXT_SHARE = 5

COUNT = """
import json, resource, sys, time
from tokenfleet import workload
path, whole = sys.argv[1], sys.argv[2] == "whole"
count = (lambda: workload.profile(*workload.read_trace(path))) if whole else (lambda: workload.profile_files(path))
count()
wall_s, cpu_s = time.perf_counter(), time.process_time()
found = count()
wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"rows": found.quality.rows_read, "wall_s": wall_s, "cpu_s": cpu_s, "peak_memory_bytes": peak_bytes}))
"""


def rows(count: int, seed: int, start_ms: int) -> pl.DataFrame:
    """Requests of fifty tenants at 50 a second, log-normal lengths, one in fifty failed or turned away."""
    draw = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "arrival": pl.Series(start_ms + np.cumsum(draw.integers(0, 40, count))).cast(pl.Datetime("ms", "UTC")),
            "input_tokens": np.clip(draw.lognormal(6.8, 1.2, count), 1, 200_000).astype(np.int64),
            "output_tokens": np.clip(draw.lognormal(5.0, 1.0, count), 1, 8_000).astype(np.int64),
            "tenant": pl.Series([f"team-{place}" for place in range(50)])[draw.integers(0, 50, count)],
            "status": pl.Series(["200", "429", "500"])[np.searchsorted([0.98, 0.99], draw.random(count))],
        }
    )


def written(frame: pl.DataFrame) -> pl.DataFrame:
    """Stamps as text, as logs write them."""
    return frame.with_columns(pl.col("arrival").dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ"))


def make(folder: Path, kind: str, count: int) -> Path:
    """One file of ``count`` rows, made piece by piece so that making it needs little memory."""
    path = folder / f"log.{kind}"
    pieces, start_ms = [], 1_774_745_880_123
    for place in range(0, count, ROWS_AT_ONCE):
        frame = rows(min(ROWS_AT_ONCE, count - place), place, start_ms)
        start_ms = int(frame["arrival"].cast(pl.Int64)[-1]) + 20
        if kind == "parquet":
            pieces.append(folder / f"piece-{place}.parquet")
            frame.write_parquet(pieces[-1])
            continue
        with path.open("ab") as file:
            if kind == "csv":
                written(frame).write_csv(file, include_header=place == 0)
            else:
                written(frame).write_ndjson(file)
    if kind == "parquet":
        pl.concat([pl.scan_parquet(piece) for piece in pieces]).sink_parquet(path, maintain_order=True)
        for piece in pieces:
            piece.unlink()
    return path


def measure(path: Path, *, whole: bool) -> dict[str, float]:
    """One case in a process of its own."""
    told = [sys.executable, "-c", COUNT, str(path), "whole" if whole else "parts"]
    result = subprocess.run(told, capture_output=True, text=True, check=True)
    found = json.loads(result.stdout)
    return {**found, "rows_per_s": found["rows"] / found["wall_s"], "rows_per_cpu_s": found["rows"] / found["cpu_s"]}


def machine() -> str:
    """Processor, cores, load, versions."""
    model = platform.processor()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), model)
    load = os.getloadavg()[0]
    return (
        f"{model}, {os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}, polars {pl.__version__}"
    )


def main() -> None:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description="Speed of reading and profiling logs")
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of Parquet; text files get a fifth")
    parser.add_argument("--only", choices=("parquet", "csv", "jsonl", "whole"), help="one case")
    parser.add_argument("--json", action="store_true", help="for machines")
    arguments = parser.parse_args()
    cases = (arguments.only,) if arguments.only else ("parquet", "csv", "jsonl", "whole")
    found = {}
    for case in cases:
        kind = "parquet" if case == "whole" else case
        with tempfile.TemporaryDirectory() as folder:
            count = arguments.rows if case == "parquet" else max(1, arguments.rows // TEXT_SHARE)
            found[case] = measure(make(Path(folder), kind, count), whole=case == "whole")
    if arguments.json:
        print(json.dumps({"machine": machine(), "cases": found}))
        return
    print(machine())
    print(f"{'case':10s}{'rows':>14s}{'wall s':>9s}{'cpu s':>8s}{'M rows/s':>10s}{'M rows/cpu s':>14s}{'peak GB':>9s}")
    for case, one in found.items():
        print(
            f"{case:10s}{one['rows']:14,d}{one['wall_s']:9.2f}{one['cpu_s']:8.2f}{one['rows_per_s'] / 1e6:10.2f}"
            f"{one['rows_per_cpu_s'] / 1e6:14.2f}{one['peak_memory_bytes'] / 1e9:9.2f}"
        )


if __name__ == "__main__":
    main()
