"""Replay against reality: ``python benchmarks/fidelity.py`` prints the tables of docs/fidelity.md.

Needs the research data beside the checkout (not part of the distribution) and the test extra (scipy). ``--write``
puts the tables into the page, ``--json`` prints errors by run, metric and statistic as one object.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

# The runs are shared with the tests. This script has the name of their folder and would stand before it.
sys.path.pop(0)
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from fidelity import cpu_runs, gpu_runs, loop_runs
from fidelity.errors import METRICS, Run
from fidelity.loop_runs import LoopRun
from shared import SHARED

PAGE = Path(__file__).resolve().parents[1] / "docs" / "fidelity.md"
UNITS = {"sequence": "decoding sequence", "context": "token of context", "pair": "query-key pair of prefill"}
BEGIN, END = "<!-- begin: benchmarks/fidelity.py -->\n", "<!-- end: benchmarks/fidelity.py -->"
HEADING = "| run | metric | mean | p50 | p95 | p99 |\n|---|---|---|---|---|---|"


def cell(measured_s: float, predicted_s: float) -> str:
    """Measured to predicted, and the error."""
    places = 2 if measured_s >= 1 else 3
    return f"{measured_s:.{places}f} → {predicted_s:.{places}f} ({predicted_s / measured_s - 1.0:+.0%})"


def rows(run: Run) -> Iterator[str]:
    """One row for each metric: seconds."""
    for metric in METRICS:
        cells = [cell(*pair) for pair in zip(*run.figures_s(metric), strict=True)]
        yield f"| {run.name} | {metric.upper()} | {' | '.join(cells)} |"


def gpu_tables() -> Iterator[str]:
    """As shipped, and with the speed of the hardware known."""
    runs = gpu_runs.runs()
    yield f"Shipped physics, seconds, measured → predicted (error):\n\n{HEADING}"
    for run in runs:
        yield from rows(run)
    yield "\nThe same runs as a whole:\n"
    yield "| run | requests | end of the run, s | preemptions predicted |\n|---|---|---|---|"
    for run in runs:
        preempted = int(run.predicted.preemption_count.sum())
        yield f"| {run.name} | {len(run.arrival_s)} | {cell(*run.makespans_s)} | {preempted} |"
    yield f"\nStep time multiplied by the one number that makes the run end when it did (in sample):\n\n{HEADING}"
    for names in gpu_runs.RUNS:
        yield from rows(gpu_runs.matched_run(*names))


def cpu_row(name: str) -> str:
    """One run: the four errors of each metric in one cell."""
    run = cpu_runs.run(name)
    errors = [" ".join(f"{error:+.0%}" for error in run.errors(metric).values()) for metric in METRICS]
    preempted = f"{run.measured.preemption_count} → {int(run.predicted.preemption_count.sum())}"
    cells = (name, f"{cpu_runs.foreign_share(name):.0%}", str(len(run.arrival_s)), *errors)
    return f"| {' | '.join(cells)} | {cell(*run.makespans_s)} | {preempted} |"


def cpu_tables() -> Iterator[str]:
    """The fit, and every open-loop run; those on a quiet machine first."""
    fit = cpu_runs.fitted()
    residuals = sorted(abs(fit.residual_fractions))
    table = ", ".join(f"{ms:.2f} at {tokens}" for tokens, ms in zip(cpu_runs.KNOTS, fit.table_ms, strict=True))
    rates = ", ".join(f"{rate_ms:.3g} per {UNITS[name]}" for name, rate_ms in fit.rates_ms.items())
    yield f"\nFitted step time, ms: tokens {table}; {rates}. Residual of {len(residuals)} calibration figures:"
    yield f"median {residuals[len(residuals) // 2]:.1%}, 90th percentile {residuals[int(0.9 * len(residuals))]:.1%}.\n"
    yield "Errors at mean, p50, p95, p99; runs in the order of how much others used the machine:\n"
    yield "| run | others' CPU | requests | TTFT | TPOT | E2E | end of the run, s | preemptions |"
    yield "|---|---|---|---|---|---|---|---|"
    yield from map(cpu_row, sorted(cpu_runs.run_names(), key=cpu_runs.foreign_share))


def spread_cell(errors: list[float]) -> str:
    """Median and 90th percentile of the size of errors, and their median with its sign."""
    sizes = np.abs(errors)
    return f"{np.median(sizes):.0%} / {np.quantile(sizes, 0.9):.0%} ({np.median(errors):+.0%})"


def loop_rows(
    runs: Iterable[LoopRun], setup: Callable[[LoopRun], str], figures: list[tuple[str, str]]
) -> Iterator[str]:
    """One row for each setup: how many runs, and the errors of each figure."""
    setups = defaultdict(list)
    for run in runs:
        setups[setup(run)].append(run)
    for name, group in sorted(setups.items()):
        cells = [spread_cell([run.errors(metric)[statistic] for run in group]) for metric, statistic in figures]
        yield f"| {name} | {len(group)} | {' | '.join(cells)} |"


def loop_heading(figures: list[tuple[str, str]]) -> str:
    """Head of a table of setups."""
    names = [f"{metric.upper()} {statistic}" for metric, statistic in figures]
    return f"| setup | rows | {' | '.join(names)} |\n|---|---|{'---|' * len(names)}"


def loop_tables() -> Iterator[str]:
    """Closed loops: errors over rows."""
    of_side = [(metric, statistic) for metric in METRICS for statistic in loop_runs.PERCENTILES]
    yield "\nClosed loops, the side experiment, as shipped; over the rows of a setup: median / 90th percentile of the"
    yield f"size of the error (median with its sign):\n\n{loop_heading(of_side)}"
    yield from loop_rows(loop_runs.side_runs(), loop_runs.side_setup, of_side)
    ends = [run.end_error for run in loop_runs.side_runs()]
    yield f"\nEnd of these runs: {spread_cell(ends)}. With the step time of each run multiplied by the one number that"
    yield f"makes it end when it did (in sample):\n\n{loop_heading(of_side)}"
    matched = map(loop_runs.matched_side_run, range(len(loop_runs.side_rows())))
    yield from loop_rows(matched, loop_runs.side_setup, of_side)
    of_dashboard = [(metric, statistic) for metric in ("ttft", "tpot") for statistic in loop_runs.UNSTATED]
    of_dashboard.append(("e2e", "mean"))
    yield "\nClosed loops, the dashboard and NVIDIA's sweeps, as shipped; the one figure of a row read as a mean and"
    yield f"as a median:\n\n{loop_heading(of_dashboard)}"
    runs = list(loop_runs.dashboard_runs())
    yield from loop_rows(runs, lambda run: f"**{run.row.engine}**", of_dashboard)
    yield from loop_rows(runs, loop_runs.dashboard_setup, of_dashboard)


def as_object() -> dict[str, dict[str, dict[str, float]]]:
    """Errors by run, metric and statistic."""
    runs = [*gpu_runs.runs(), *(cpu_runs.run(name) for name in cpu_runs.run_names())]
    runs += [*loop_runs.side_runs(), *loop_runs.dashboard_runs()]
    return {run.name: {metric: run.errors(metric) for metric in METRICS} for run in runs}


def main() -> int:
    """Print or write; 2 when the data are not there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one object")
    parser.add_argument("--write", action="store_true", help="rewrite the tables of the page")
    arguments = parser.parse_args()
    if not SHARED.is_dir():
        print("the measured runs are not beside this checkout; nothing to compare with", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps(as_object()))
        return 0
    tables = "\n".join([*gpu_tables(), *loop_tables(), *cpu_tables()])
    if arguments.write:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{tables}\n\n{END}{rest.split(END)[1]}")
    else:
        print(tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
