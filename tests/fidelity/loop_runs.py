"""InferenceX's closed loops, row by row: a fixed number of requests in flight, replayed with the shipped physics.

Two files. The side experiment (prompts of 1,024 to 32,768 tokens, 128 output tokens, GLM-5 and MiniMax-M2.5 on eight
H200 under a nightly vLLM) has p50 and p99 of TTFT, TPOT and E2E and how long the run took; none of its rows was
fitted. Every request of it had the nominal lengths: its token rates times its duration say so. The dashboard and
NVIDIA's own sweeps have one TTFT and one TPOT, which statistic is not said; most of these rows were fitted, by
another walk through the steps than the replay. Their E2E follows from the two figures where both are means.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import polars as pl

from fidelity.errors import METRICS
from shared import SHARED
from tokenfleet.calibration import Linted, Row, lint, read_rows, resolve
from tokenfleet.calibration.lint import model_group
from tokenfleet.calibration.recipes import is_dashboard, poll_every
from tokenfleet.calibration.schedule import length_spread, load_of
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.trace import Floats, Trace
from tokenfleet.domain.world import World
from tokenfleet.performance import replica_physics, scaled
from tokenfleet.simulator import replay
from tokenfleet.workload import close_loop

DATA = SHARED / "data" / "measured"
SIDE_EXPERIMENT, DASHBOARD = DATA / "inferencex_tokpos.csv", DATA / "inferencex_silicon.csv"
PERCENTILES = {"p50": 50, "p99": 99}
UNSTATED = ("mean", "p50")
"""What a figure may be whose statistic is not said."""
REQUESTS_PER_USER = 10
"""Where a row does not say how many requests it sent: what the client of these runs sends by default."""
LOOSE = 0.1
"""By how much lengths differ where runs of fixed lengths do not stay in step: the page says how this was found."""
SEED = 20260102


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRun:
    """One row and its replay."""

    row: Row
    measured_s: dict[tuple[str, str], float]
    """Of each metric and statistic that the row has."""
    measured_end_s: float | None
    predicted: RunRecord

    @property
    def name(self) -> str:
        """Where the row stands."""
        return self.row.row_id

    def errors(self, metric: str) -> dict[str, float]:
        """Predicted over measured less one, by statistic."""
        known = known_s(self.predicted, metric)
        seen = {statistic: value for (name, statistic), value in self.measured_s.items() if name == metric}
        return {statistic: statistic_s(known, statistic) / value - 1.0 for statistic, value in seen.items()}

    @property
    def end_error(self) -> float:
        """Of the whole run; NaN where the row does not say how long it took."""
        return np.nan if self.measured_end_s is None else self.predicted.end_s / self.measured_end_s - 1.0


def known_s(predicted: RunRecord, metric: str) -> Floats:
    """Seconds of the requests that have the figure."""
    seconds = getattr(predicted, f"{metric}_s")
    return seconds[~np.isnan(seconds)]


def statistic_s(seconds: Floats, name: str) -> float:
    """Mean or percentile."""
    return float(seconds.mean() if name == "mean" else np.percentile(seconds, PERCENTILES[name]))


def trace_of(row: Row, spread: tuple[float, float]) -> Trace:
    """The requests of a row, lengths uniform between two shares of the nominal ones; no prompt shares a beginning."""
    count = row.request_count or REQUESTS_PER_USER * row.concurrency
    generator = np.random.default_rng(SEED)

    def lengths(nominal: float) -> np.ndarray:
        low, high = (max(round(share * nominal), 1) for share in spread)
        return generator.integers(low, high + 1, count).astype(np.int32)

    return Trace(
        arrival_s=np.zeros(count), input_tokens=lengths(row.input_tokens), output_tokens=lengths(row.output_tokens)
    )


def played(row: Row, spread: tuple[float, float], step_time_factor: float = 1.0) -> RunRecord:
    """All users send at second 0, then each sends again as soon as an answer has ended."""
    subject = resolve(row)
    engine = replace(subject.deployment.engine, receive_interval_count=poll_every(row))
    physics = replica_physics(subject.model, subject.gpu, replace(subject.deployment, engine=engine))
    physics = replace(physics, step_time=scaled(physics.step_time, step_time_factor))
    fleet = Fleet(groups=(ReplicaGroup(replica=physics, replica_count=subject.replica_count),))
    trace, loop = close_loop(trace_of(row, spread), user_count=row.concurrency)
    return replay(trace, fleet, world=World(closed_loop=loop))


@cache
def side_rows() -> tuple[tuple[Row, dict], ...]:
    """Rows of the side experiment with all their columns."""
    records = pl.read_csv(SIDE_EXPERIMENT).iter_rows(named=True)
    return tuple(zip(read_rows([SIDE_EXPERIMENT]), records, strict=True))


@cache
def side_run(place: int, step_time_factor: float = 1.0) -> LoopRun:
    """One of them, by its place in the file."""
    row, record = side_rows()[place]
    return LoopRun(
        row=row,
        measured_s={(metric, name): record[f"{metric}_ms_{name}"] / 1e3 for metric in METRICS for name in PERCENTILES},
        measured_end_s=record["duration_s"],
        predicted=played(row, (1.0, 1.0), step_time_factor),
    )


def matched_side_run(place: int) -> LoopRun:
    """The same with step time multiplied by the one number that makes the run end when it did: in sample."""
    factor = 1.0
    for _ in range(4):
        found = side_run(place, round(factor, 3))
        factor /= 1.0 + found.end_error
    return found


def side_setup(run: LoopRun) -> str:
    """Model and layout, as the experiment names it."""
    return f"{run.row.model.split('/')[1]} {run.row.facts['par']}"


@cache
def linted() -> Linted:
    """The dashboard's file after the lint."""
    return lint(read_rows([DASHBOARD]))


@cache
def dashboard_rows() -> tuple[Row, ...]:
    """One pool, fixed concurrency, not dropped by the lint, and room for KV according to the memory model."""
    rows = [row for row in linted().rows if load_of(row) == "closed_loop"]
    return tuple(row for row in rows if physics_of(row).kv_block_count)


def physics_of(row: Row) -> ReplicaPhysics:
    """One replica of the row."""
    subject = resolve(row)
    return replica_physics(subject.model, subject.gpu, subject.deployment)


def spread_of(row: Row) -> tuple[float, float]:
    """Bounds of lengths as shares of the nominal value: the fit's, wider in TensorRT-LLM's runs of fixed lengths."""
    fixed = not is_dashboard(row)
    return (1 - LOOSE, 1 + LOOSE) if row.engine == "trtllm" and fixed else length_spread(row, "closed_loop")


def dashboard_run(row: Row) -> LoopRun:
    """One row of the dashboard or of NVIDIA's sweeps."""
    predicted = played(row, spread_of(row))
    ttft_s, tpot_s = row.value("ttft"), row.value("tpot")
    gaps = float(predicted.output_tokens.mean()) - 1.0
    read_both_ways = {("ttft", name): ttft_s for name in UNSTATED} | {("tpot", name): tpot_s for name in UNSTATED}
    return LoopRun(
        row=row,
        measured_s=read_both_ways | {("e2e", "mean"): ttft_s + tpot_s * gaps},
        measured_end_s=None,
        predicted=predicted,
    )


def dashboard_setup(run: LoopRun) -> str:
    """Engine and model, twins under one name; what the lint distrusts stands apart."""
    apart = run.row.row_id in linted().flagged
    return f"{run.row.engine}, " + ("set apart by the lint" if apart else model_group(run.row))


def side_runs() -> Iterator[LoopRun]:
    """All rows of the side experiment."""
    return map(side_run, range(len(side_rows())))


def dashboard_runs() -> Iterator[LoopRun]:
    """All rows of the dashboard that can be replayed."""
    return map(dashboard_run, dashboard_rows())
