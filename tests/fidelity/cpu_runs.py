"""vLLM 0.32 on two CPU cores: step time fitted to its single-purpose runs, then open-loop runs predicted.

The model is tiny and the times are a CPU's: this checks the way from a few calibration runs to a prediction. Each
calibration figure (the first token of a lone prompt, first token, median gap and end of callers that start together)
is a sum of steps, and which steps those are is known from the batching rules. So one least squares over the form of
``StepTimeModel`` finds all coefficients: a table straight in tokens, a cost per decoding sequence, per context token
and per query-key pair. Nothing here has graphs, so ``eager_ps`` is 0. A front end of its own is not fitted: lone
prompts cannot tell it from what every step costs.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
import scipy

from fidelity.errors import Measured, Run
from reference import plain_fleet
from reference.vllm_oracle import RecordingReplica
from shared import SHARED
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
from tokenfleet.domain.trace import Floats, PrefixTree, Trace
from tokenfleet.simulator import replay

DATA = SHARED / "data" / "engine_cpu"
PS_PER_MS = 1e9
KV_BYTES_PER_TOKEN = 8192
ENGINE = EngineSettings(
    name="vllm-0.32",
    max_batched_tokens=512,
    max_sequence_count=32,
    block_tokens=32,
    memory_utilization_fraction=0.9,
    prefix_caching=True,
    chunked_prefill=True,
    full_prompt_gate=True,
    async_scheduling=False,
    context_limit_tokens=4096,
)
BLOCK_COUNT = 255
"""256 were asked for, one is the engine's own."""
KNOTS = (1, 512)
"""Tokens in a step; the table is straight between them."""
RATES = ("sequence", "context", "pair")
WARM_UP_COUNT = 1
"""Requests at the head of each prefill run that are left out: the first one pays for what comes once."""
REWEIGHTING_COUNT = 30
SMALLEST_RESIDUAL_FRACTION = 0.02
"""Neighbours on a shared machine make outliers: residuals count by their size, not its square, from 2 % on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Milliseconds: the table at its knots, and the rates."""

    table_ms: Floats
    rates_ms: dict[str, float]
    residual_fractions: Floats
    """Of each calibration figure, predicted over measured less one."""

    @property
    def step_time(self) -> StepTimeModel:
        """As the replay takes it."""
        tokens = np.arange(ENGINE.max_batched_tokens + 1)
        rates_ps = {f"{name}_ps": round(self.rates_ms[name] * PS_PER_MS) for name in RATES}
        return StepTimeModel(
            token_ps=np.rint(np.interp(tokens, KNOTS, self.table_ms) * PS_PER_MS).astype(np.int64),
            window_ps=0,
            window_tokens=0,
            eager_ps=0,
            request_ps=0,
            **rates_ps,
        )


def rows(path: Path) -> list[dict[str, float]]:
    """Requests of a run that went well, NaN where a figure is missing."""
    with path.open(newline="") as lines:
        read = [row for row in csv.DictReader(lines) if not row.pop("error")]
    return [{name: float(cell) if cell else np.nan for name, cell in row.items()} for row in read]


def table_columns(token_count: int) -> Floats:
    """Weights of the table's rises at a token count, so that a fit without negative rises never falls."""
    knots = np.array(KNOTS, dtype=float)
    rises = np.clip((token_count - knots[:-1]) / np.diff(knots), 0.0, 1.0)
    return np.array([1.0, *rises])


def step_columns(prefills: list[tuple[int, int]], contexts: list[float]) -> Floats:
    """What one step is made of: prefill chunks as (start, tokens), and the contexts of decoding sequences."""
    token_count = len(contexts) + sum(tokens for _, tokens in prefills)
    pairs = sum(tokens * start + tokens * (tokens + 1) / 2 for start, tokens in prefills)
    return np.array([*table_columns(token_count), len(contexts), sum(contexts), pairs])


def lone_prompt_figures(path: Path) -> Iterator[tuple[Floats, float]]:
    """First tokens of one caller, one prompt after the other."""
    for row in rows(path)[WARM_UP_COUNT:]:
        prompt, budget = int(row["input_tokens"]), ENGINE.max_batched_tokens
        chunks = [(start, min(budget, prompt - start)) for start in range(0, prompt, budget)]
        yield sum(step_columns([chunk], []) for chunk in chunks), row["ttft_ms"]


def common_start_figures(path: Path) -> Iterator[tuple[Floats, float]]:
    """First token, median gap and end of callers that start together: sums over the steps the rules give."""
    callers = sorted(rows(path), key=lambda row: row["due_s"])
    so_far, first, last = np.zeros(len(KNOTS) + len(RATES)), {}, {}
    for batch in batches(trace(callers)):
        prefills = [(start, tokens) for row, start, tokens in batch if start < callers[row]["input_tokens"]]
        contexts = [start + 1.0 for row, start, _ in batch if start >= callers[row]["input_tokens"]]
        so_far = so_far + step_columns(prefills, contexts)
        for row, start, tokens in batch:
            if start + tokens >= callers[row]["input_tokens"]:
                first.setdefault(row, so_far)
                last[row] = so_far
    for number, row in enumerate(callers):
        context = row["input_tokens"] + row["output_tokens"] / 2.0
        yield step_columns([], [context] * len(callers)), row["itl_p50_ms"]
        yield first[number], row["ttft_ms"]
        yield last[number], row["e2e_ms"]


def batches(requests: Trace) -> list[list[tuple[int, int, int]]]:
    """Batches of requests that arrive within the first step, as (request, tokens before, tokens)."""
    slow = StepTimeModel(
        token_ps=np.full(ENGINE.max_batched_tokens + 1, int(20 * PS_PER_MS)),
        **dict.fromkeys(("sequence_ps", "context_ps", "window_ps", "window_tokens", "pair_ps", "eager_ps"), 0),
        request_ps=0,
    )
    with mock.patch.object(plain_fleet, "Replica", RecordingReplica):
        run = plain_fleet.PlainRun(requests, Fleet(groups=(ReplicaGroup(replica=physics(slow), replica_count=1),)))
    number = {request: row for row, request in enumerate(run.requests)}
    steps = run.replicas[0].steps
    return [[(number[request], start, tokens) for request, start, tokens in planned] for _, _, planned, _ in steps]


def calibration() -> tuple[Floats, Floats]:
    """Columns and milliseconds of every figure of the calibration runs."""
    folder = DATA / "calibration"
    figures = [figure for path in sorted(folder.glob("prefill_*.csv")) for figure in lone_prompt_figures(path)]
    figures += [figure for path in sorted(folder.glob("decode_*.csv")) for figure in common_start_figures(path)]
    columns, figures_ms = zip(*figures, strict=True)
    return np.array(columns), np.array(figures_ms)


@cache
def fitted() -> Fit:
    """Least squares on relative errors, reweighted towards the median; no coefficient below 0."""
    columns, figures_ms = calibration()
    relative, weights = columns / figures_ms[:, None], np.ones(len(figures_ms))
    for _ in range(REWEIGHTING_COUNT):
        found, _ = scipy.optimize.nnls(relative * weights[:, None], weights)
        weights = 1.0 / np.sqrt(np.maximum(np.abs(relative @ found - 1.0), SMALLEST_RESIDUAL_FRACTION))
    return Fit(
        table_ms=np.cumsum(found[: len(KNOTS)]),
        rates_ms=dict(zip(RATES, found[len(KNOTS) :].tolist(), strict=True)),
        residual_fractions=columns @ found / figures_ms - 1.0,
    )


def physics(step_time: StepTimeModel) -> ReplicaPhysics:
    """The one replica of these runs."""
    capacity_tokens = BLOCK_COUNT * ENGINE.block_tokens
    memory = MemoryBudget(
        fits=True,
        terms_bytes={"kv_cache": capacity_tokens * KV_BYTES_PER_TOKEN},
        total_bytes=capacity_tokens * KV_BYTES_PER_TOKEN,
        weights_bytes=0,
        kv_bytes_per_token=KV_BYTES_PER_TOKEN,
        kv_fixed_bytes_per_sequence=0,
        kv_capacity_bytes=capacity_tokens * KV_BYTES_PER_TOKEN,
        kv_capacity_tokens=capacity_tokens,
        too_close_to_call=False,
        reasons=(),
        kv_block_tokens=ENGINE.block_tokens,
    )
    return ReplicaPhysics(
        deployment=Deployment(
            model="tiny llama", gpu="cpu", layout=Layout(), precision="bf16", kv_precision="bf16", engine=ENGINE
        ),
        memory=memory,
        step_time=step_time,
        band=ErrorBand(step_time_factor=1.25, evidence="fitted to its own runs"),
        kv_block_count=BLOCK_COUNT,
        kv_block_tokens=ENGINE.block_tokens,
        kv_fixed_block_count=0,
    )


def trace(requests: list[dict[str, float]]) -> Trace:
    """Arrivals as intended, lengths as the engine counted them, the common prompt of a run as one shared node."""
    column = {name: np.array([row[name] for row in requests]) for name in requests[0]}
    shared = column["shared_prefix_tokens"].astype(np.int32)
    prefixes = {}
    if shared.any():
        tree = PrefixTree(parent=np.array([-1], dtype=np.int32), token_count=shared.max(keepdims=True))
        prefixes = {"prefixes": tree, "prefix_node": np.where(shared > 0, 0, -1).astype(np.int32)}
    return Trace(
        arrival_s=column["due_s"],
        input_tokens=column["input_tokens_usage"].astype(np.int32),
        output_tokens=column["output_tokens"].astype(np.int32),
        **prefixes,
    )


def summaries() -> dict[str, dict]:
    """What the client wrote of each run: engine counters, and how busy others kept the machine."""
    found = {}
    for path in sorted(DATA.glob("summary_*.jsonl")):
        for line in path.read_text().splitlines():
            summary = json.loads(line)
            found[summary["label"]] = summary
    return found


def run_names() -> list[str]:
    """Open-loop runs, in order of their names."""
    return sorted(path.stem for path in (DATA / "open_loop").glob("*.csv") if ".gauges" not in path.name)


def foreign_share(name: str) -> float:
    """Share of the two cores that processes other than server and client used; above 0.35 a run is unfit."""
    return summaries()[name]["cpu_share_others"]


@cache
def run(name: str) -> Run:
    """Predict one open-loop run with the step time fitted to the calibration runs."""
    requests = sorted(rows(DATA / "open_loop" / f"{name}.csv"), key=lambda row: row["due_s"])
    played = trace(requests)
    seen_s = {name: np.array([row[f"{name}_ms"] for row in requests]) / 1e3 for name in ("ttft", "tpot", "e2e")}
    fleet = Fleet(groups=(ReplicaGroup(replica=physics(fitted().step_time), replica_count=1),))
    return Run(
        name=name,
        arrival_s=played.arrival_s,
        measured=Measured(
            ttft_s=seen_s["ttft"],
            tpot_s=seen_s["tpot"],
            e2e_s=seen_s["e2e"],
            preemption_count=round(summaries()[name]["delta"]["vllm:num_preemptions_total"]),
        ),
        predicted=replay(played, fleet),
    )
