"""A small world for planner tests: replicas by hand and a queue that fits in one head."""

import heapq
from dataclasses import replace

import numpy as np

from handmade import ledger_of, telemetry_of
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.gpu import GpuPrice
from tokenfleet.domain.model import Attention, FeedForward, ModelArchitecture
from tokenfleet.domain.plan import PlanQuestion
from tokenfleet.domain.replica import (
    Deployment,
    EngineSettings,
    ErrorBand,
    Layout,
    MemoryBudget,
    ReplicaPhysics,
    StepShares,
    StepTimeModel,
)
from tokenfleet.domain.run import BusyTime, GapHistogram, RunRecord, Status
from tokenfleet.domain.slo import LatencyTarget, Slo
from tokenfleet.domain.trace import Trace

MODEL = ModelArchitecture(
    name="toy/model",
    source="by hand",
    model_type="llama",
    layer_count=2,
    hidden_size=64,
    vocab_size=1000,
    max_context_tokens=32_768,
    tied_embeddings=False,
    attention=(
        Attention(
            kind="full",
            layer_count=2,
            query_head_count=4,
            kv_head_count=2,
            head_size=16,
            value_head_size=16,
            weight_count=12_288,
        ),
    ),
    feed_forward=(FeedForward(layer_count=2, intermediate_size=256, every_token_weight_count=49_152),),
)


def replica(
    *,
    gpu="h100_sxm",
    tensor_parallel=1,
    precision="bf16",
    step_ms=10.0,
    token_us=20.0,
    context_ns=1.0,
    slots=64,
    budget=2048,
    block_count=20_000,
    caching=False,
    band=1.2,
):
    counts = np.arange(budget + 1)
    token_ps = np.rint(step_ms * 1e9 + token_us * 1e6 * np.maximum(0, counts - 1)).astype(np.int64)
    token_ps[0] = 0
    engine = EngineSettings(
        name="vllm-0.32",
        max_batched_tokens=budget,
        max_sequence_count=slots,
        block_tokens=16,
        memory_utilization_fraction=0.9,
        prefix_caching=caching,
        chunked_prefill=True,
        full_prompt_gate=True,
        async_scheduling=True,
    )
    return ReplicaPhysics(
        deployment=Deployment(
            model=MODEL.name,
            gpu=gpu,
            layout=Layout(tensor_parallel=tensor_parallel),
            precision=precision,
            kv_precision="bf16",
            engine=engine,
        ),
        memory=MemoryBudget(
            fits=True,
            terms_bytes={"weights": 40, "kv_cache": 40},
            total_bytes=80,
            weights_bytes=40,
            kv_bytes_per_token=1,
            kv_fixed_bytes_per_sequence=0,
            kv_capacity_bytes=40,
            kv_capacity_tokens=block_count * 16,
            too_close_to_call=False,
            reasons=(),
        ),
        step_time=StepTimeModel(
            token_ps=token_ps,
            sequence_ps=0,
            context_ps=round(context_ns * 1e3),
            window_ps=0,
            window_tokens=0,
            pair_ps=1,
            eager_ps=0,
            request_ps=1_000_000_000,
        ),
        band=ErrorBand(step_time_factor=band, evidence="by hand"),
        kv_block_count=block_count,
        kv_block_tokens=16,
        kv_fixed_block_count=0,
    )


def trace(*, count=400, rate=10.0, inputs=500, outputs=50, seed=1):
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / rate, count))
    return Trace(
        arrival_s=arrival,
        input_tokens=np.maximum(1, rng.poisson(inputs, count)).astype(np.int32),
        output_tokens=np.maximum(1, rng.poisson(outputs, count)).astype(np.int32),
    )


def price(gpu, usd, *, evidence="quote", as_of="2026-11-01", provider="somebody"):
    return GpuPrice(
        gpu=gpu,
        provider=provider,
        provider_class="neocloud",
        region="",
        term="on_demand",
        price_usd_per_gpu_hour=usd,
        as_of=as_of,
        source="by hand",
        note="",
        evidence=evidence,
    )


def slo(*, ttft=2.0, itl=0.1, error=0.001, quantile=0.99):
    return Slo(
        latency=(
            LatencyTarget(metric="ttft", quantile=quantile, limit_s=ttft),
            LatencyTarget(metric="itl", quantile=quantile, limit_s=itl),
        ),
        error_rate_fraction=error,
    )


def question(candidates, prices, *, promise=None, spare=1, rejected=()):
    return PlanQuestion(
        name="toy",
        model=MODEL,
        slo=promise or slo(),
        candidates=tuple(candidates),
        rejected=tuple(rejected),
        prices=tuple(prices),
        spare_replica_count=spare,
        router="least_in_flight",
        seed=1,
        vary_step_tokens=False,
    )


def prefill_s(model, tokens, budget):
    total, start = model.request_ps, 0
    while start < tokens:
        chunk = min(budget, tokens - start)
        total += int(model.token_ps[chunk]) + model.pair_ps * (chunk * start + chunk * (chunk + 1) // 2)
        start += chunk
    return total * 1e-12


def histogram(gap_s, count):
    lower = np.concatenate([[0.0], 1e-6 * 2.0 ** (np.arange(32 * 32) / 32)])
    where, _ = np.histogram([gap_s], lower)
    return GapHistogram(lower_s=lower, count=where.astype(np.int64) * count)


def replay(trace, fleet: Fleet, *, peak_window_s=None, telemetry_interval_s=None, hopeless=None, world=None):
    """First come, first served on ``count x slots`` servers; each takes its prefill, then equal steps."""
    group = fleet.groups[0]
    physics, engine = group.replica, group.replica.deployment.engine
    model = physics.step_time
    slots = engine.max_sequence_count
    pool = physics.kv_block_count * physics.kv_block_tokens
    free = [0.0] * (group.replica_count * slots)
    count = trace.request_count
    step_s = int(model.token_ps[slots]) * 1e-12
    prefills_s = {
        tokens: prefill_s(model, tokens, engine.max_batched_tokens) for tokens in set(trace.input_tokens.tolist())
    }
    fits = trace.input_tokens + trace.output_tokens - 1 <= pool
    status = np.where(fits, np.int8(0), np.int8(Status.REJECTED_TOO_LONG))
    times_s = []
    prefill_total, decode_total = 0.0, 0.0
    columns = (trace.arrival_s, trace.input_tokens, trace.output_tokens, fits)
    for arrival_s, inputs, outputs, fit in zip(*(each.tolist() for each in columns), strict=True):
        if not fit:
            times_s.append((np.nan, np.nan, np.nan))
            continue
        start = max(arrival_s, free[0])
        took = prefills_s[inputs]
        began = start + took
        end = began + step_s * max(0, outputs - 1)
        heapq.heapreplace(free, end)
        times_s.append((start, began, end))
        prefill_total += took / slots
        decode_total += (end - began) / slots
    starts, first, finish = np.array(times_s).reshape(count, 3).T.copy()
    gaps = np.where(fits, np.maximum(0, trace.output_tokens - 1), 0)
    in_peak = slice(*np.searchsorted(trace.arrival_s, peak_window_s or (0.0, 0.0)))
    telemetry = None
    if telemetry_interval_s:
        times = np.arange(0.0, float(np.nanmax(finish)), telemetry_interval_s)
        running = ((starts[None, :] <= times[:, None]) & (times[:, None] < finish[None, :])).sum(axis=1)
        each = np.repeat((running // group.replica_count)[:, None], group.replica_count, axis=1)
        telemetry = telemetry_of(
            times,
            each.astype(np.int32),
            np.zeros_like(each, dtype=np.int32),
            np.minimum(1.0, each * 550.0 / pool),
        )
    return RunRecord(
        arrival_s=trace.arrival_s,
        first_token_s=first,
        finish_s=finish,
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
        cached_tokens=np.zeros(count, dtype=np.int32),
        preemption_count=np.zeros(count, dtype=np.int32),
        replica=np.zeros(count, dtype=np.int32),
        status=status,
        gaps=histogram(step_s, int(gaps.sum())),
        peak_gaps=histogram(step_s, int(gaps[in_peak].sum())) if peak_window_s else None,
        busy=BusyTime(
            prefill_s=prefill_total,
            decode_s=decode_total,
            cached_prefix_s=0.0,
            step_count=int(gaps.sum()),
            mixed_step_count=0,
        ),
        replica_count=group.replica_count,
        end_s=float(np.nanmax(finish)) if np.isfinite(finish).any() else 0.0,
        telemetry=telemetry,
        class_bits=trace.class_bits,
        classes=trace.classes,
        time_of_day_s=trace.time_of_day_s,
        ledger=ledger_of(np.nan_to_num(first - starts), np.nan_to_num(finish - first)) if telemetry else None,
    )


def grow(trace, factor):
    return replace(trace, arrival_s=trace.arrival_s / factor)


class Grower:
    def __init__(self, trace):
        self.trace = trace

    def grown(self, factor):
        return grow(self.trace, factor)


def peak_window(trace, **_):
    arrival = trace.arrival_s
    starts = np.searchsorted(arrival, arrival, side="left")
    ends = np.searchsorted(arrival, arrival + 10.0, side="left")
    best = int(np.argmax(ends - starts))
    return float(arrival[best]), float(arrival[best]) + 10.0


def scaled(model, factor):
    return replace(model, token_ps=np.rint(model.token_ps * factor).astype(np.int64))


def step_shares(model, gpu, deployment, *, token_count, sequence_count, context_tokens, pair_count, prefill):
    return StepShares(
        step_s=1e-2 + token_count * 2e-5,
        compute_s=token_count * 2e-5,
        bandwidth_s=8e-3,
        communication_s=0.0,
        overhead_s=2e-3,
    )
