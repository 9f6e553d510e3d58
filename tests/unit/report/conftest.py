"""A plan and a workload made by hand, so that the report is tested without the rooms that compute them."""

import dataclasses

import numpy as np
import pytest

from handmade import telemetry_of
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.gpu import GpuPrice
from tokenfleet.domain.model import Attention, FeedForward, ModelArchitecture
from tokenfleet.domain.outlook import CurvePoint, FrontierPoint
from tokenfleet.domain.plan import Bill, LimitUse, Outpriced, Plan, PlanQuestion, Reason, Rejected, Sized
from tokenfleet.domain.replica import (
    Deployment,
    EngineSettings,
    ErrorBand,
    Layout,
    MemoryBudget,
    ReplicaPhysics,
    StepTimeModel,
)
from tokenfleet.domain.run import BusyTime, GapHistogram, RunRecord
from tokenfleet.domain.slo import LatencyTarget, Slo, SloResult
from tokenfleet.domain.trace import LengthSummary, Quality, Workload

MINUTES = 180
PEAK_MINUTE = 97


def model():
    return ModelArchitecture(
        name="meta-llama/Llama-3.3-70B-Instruct",
        source="config.json of the model page, 2024-12-06",
        model_type="llama",
        layer_count=80,
        hidden_size=8192,
        vocab_size=128_256,
        max_context_tokens=131_072,
        tied_embeddings=False,
        attention=(
            Attention(
                kind="full",
                layer_count=80,
                query_head_count=64,
                kv_head_count=8,
                head_size=128,
                value_head_size=128,
                weight_count=150_994_944,
            ),
        ),
        feed_forward=(FeedForward(layer_count=80, intermediate_size=28_672),),
    )


def replica(gpu="h100_sxm", tensor_parallel=2, precision="fp8"):
    engine = EngineSettings(
        name="vllm-0.32",
        max_batched_tokens=8192,
        max_sequence_count=256,
        block_tokens=16,
        memory_utilization_fraction=0.9,
        prefix_caching=True,
        chunked_prefill=True,
        full_prompt_gate=False,
        async_scheduling=True,
    )
    gib = 2**30
    terms = {"weights": 33 * gib, "kv_cache": 34 * gib, "runtime": 2 * gib, "graphs": gib, "safety": 8 * gib}
    memory = MemoryBudget(
        fits=True,
        terms_bytes=terms,
        total_bytes=sum(terms.values()),
        weights_bytes=33 * gib,
        kv_bytes_per_token=163_840,
        kv_fixed_bytes_per_sequence=0,
        kv_capacity_bytes=34 * gib,
        kv_capacity_tokens=222_822,
        too_close_to_call=False,
        reasons=(),
    )
    return ReplicaPhysics(
        deployment=Deployment(
            model="meta-llama/Llama-3.3-70B-Instruct",
            gpu=gpu,
            layout=Layout(tensor_parallel=tensor_parallel),
            precision=precision,
            kv_precision="bf16",
            engine=engine,
        ),
        memory=memory,
        step_time=StepTimeModel(
            token_ps=np.zeros(8193, dtype=np.int64),
            sequence_ps=0,
            context_ps=0,
            window_ps=0,
            window_tokens=0,
            pair_ps=0,
            eager_ps=0,
            request_ps=0,
        ),
        band=ErrorBand(step_time_factor=1.25, evidence="412 measured rows of 9 models, held out by model"),
        kv_block_count=13_926,
        kv_block_tokens=16,
        kv_fixed_block_count=0,
    )


def price(gpu="h100_sxm", usd=2.95):
    return GpuPrice(
        gpu=gpu,
        provider="Lambda",
        provider_class="neocloud",
        region="us-east",
        term="on_demand",
        price_usd_per_gpu_hour=usd,
        as_of="2026-11-02",
        source="https://example.com/pricing",
        note="",
    )


def results(ttft, itl):
    return (
        SloResult(
            name="ttft_p99",
            unit="s",
            promised=2.0,
            predicted=ttft,
            predicted_low=ttft * 0.63,
            predicted_high=ttft * 1.55,
            sample_count=1224,
            kept=True,
        ),
        SloResult(
            name="itl_p99",
            unit="s",
            promised=0.05,
            predicted=itl,
            predicted_low=itl * 0.8,
            predicted_high=itl * 1.4,
            sample_count=171_360,
            kept=True,
        ),
        SloResult(
            name="error_rate",
            unit="fraction",
            promised=0.001,
            predicted=0.0,
            predicted_low=0.0,
            predicted_high=0.0,
            sample_count=1224,
            kept=True,
        ),
    )


def sized(gpu="h100_sxm", tensor_parallel=2, precision="fp8", carrying=4, usd=2.95, ttft=0.71, itl=0.038):
    return Sized(
        replica=replica(gpu, tensor_parallel, precision),
        carrying_count=carrying,
        spare_count=1,
        price=price(gpu, usd),
        price_low_usd_per_gpu_hour=usd * 0.58,
        price_high_usd_per_gpu_hour=usd * 2.34,
        slo=results(ttft, itl),
    )


def record(replica_count, slowness, seed=7):
    random = np.random.default_rng(seed)
    rate = 6 + 10 * np.exp(-(((np.arange(MINUTES) - PEAK_MINUTE) / 25.0) ** 2))
    counts = random.poisson(rate * 3)
    arrival = np.sort(np.repeat(np.arange(MINUTES) * 60.0, counts) + random.uniform(0, 60, counts.sum()))
    size = len(arrival)
    crowd = rate[(arrival // 60).astype(int)] / 16
    ttft = slowness * np.exp(random.normal(-2.0, 0.5, size)) * (1 + 3 * crowd**4)
    first = arrival + ttft
    status = np.zeros(size, dtype=np.int8)
    status[5], first[5] = 1, np.nan
    samples = np.arange(0, MINUTES * 60, 5.0)
    busy = rate[(samples // 60).astype(int)][:, None] * np.ones(replica_count) * (5 / replica_count)
    jitter = random.uniform(0.7, 1.3, busy.shape)
    running = np.round(busy * jitter * 2).astype(np.int32)
    return RunRecord(
        arrival_s=arrival,
        first_token_s=first,
        finish_s=first + 6.0,
        input_tokens=random.integers(100, 4000, size).astype(np.int32),
        output_tokens=random.integers(10, 600, size).astype(np.int32),
        cached_tokens=np.zeros(size, dtype=np.int32),
        preemption_count=np.zeros(size, dtype=np.int32),
        replica=random.integers(0, replica_count, size).astype(np.int32),
        status=status,
        gaps=GapHistogram(lower_s=np.array([0.01, 0.02, 0.04]), count=np.array([100, 5])),
        peak_gaps=None,
        busy=BusyTime(prefill_s=10.0, decode_s=30.0, cached_prefix_s=0.0, step_count=1000, mixed_step_count=100),
        replica_count=replica_count,
        end_s=float(MINUTES * 60 + 8),
        telemetry=telemetry_of(
            samples, running, np.maximum(0, running - 38).astype(np.int32), np.minimum(1.0, running / 45.0)
        ),
    )


@pytest.fixture(scope="session")
def workload():
    random = np.random.default_rng(3)
    minutes = random.poisson(6 + 10 * np.exp(-(((np.arange(MINUTES) - PEAK_MINUTE) / 25.0) ** 2)) * 60)
    minutes[PEAK_MINUTE] = minutes.max() + 50
    inputs, outputs = random.lognormal(6.5, 0.5, 20_000), random.lognormal(5, 0.6, 20_000)
    edges = np.concatenate((np.arange(16.0), 16 * 2 ** (np.arange(0, 70) / 8)))
    joint, _, _ = np.histogram2d(inputs, outputs, bins=(edges, edges))

    def summary(values):
        quantiles = np.quantile(values, [0.5, 0.9, 0.95, 0.99, 1.0])
        return LengthSummary(
            **dict(zip(("p50", "p90", "p95", "p99", "max"), quantiles, strict=True)), mean=values.mean()
        )

    return Workload(
        request_count=int(minutes.sum()),
        duration_s=MINUTES * 60.0,
        mean_rate_per_s=float(minutes.mean() / 60),
        peak_minute_rate_per_s=float(minutes.max() / 60),
        peak_minute_start_s=PEAK_MINUTE * 60.0,
        peak_to_mean_minute_requests=2.0,
        peak_to_mean_minute_tokens=2.1,
        interarrival_cv=2.0,
        input_tokens=summary(inputs),
        output_tokens=summary(outputs),
        joint_counts=joint.astype(np.int64),
        input_edges=edges,
        output_edges=edges,
        minute_requests=minutes,
        minute_input_tokens=minutes * 760,
        minute_output_tokens=minutes * 170,
        shareable_input_fraction=None,
        session_count=None,
        tenant_request_counts={"search": 6000, "chat": 14_000},
        quality=Quality(
            rows_read=20_412,
            rows_kept=20_000,
            rows_dropped={"no output tokens": 381, "cut stream": 31},
            detected={"format": "csv", "time_unit": "ms"},
            warnings=("412 rows have no output tokens: unknown, not 0",),
        ),
        extra={},
    )


def curve():
    loads = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
    return tuple(
        CurvePoint(
            load_fraction=load,
            rate_per_s=20.4 * load,
            ttft_p50_s=0.1 / (1.6 - load),
            ttft_p99_s=None if load < 0.3 else 0.42 / (1.6 - load),
            itl_p50_s=0.017 + 0.004 * load,
            itl_p99_s=0.03 + 0.012 * load**3,
            promised_s={
                "ttft_p99": None if load < 0.3 else 0.42 / (1.6 - load),
                "itl_p99": 0.03 + 0.012 * load**3,
                "tpot_p95": 0.02 + 0.01 * load,
            },
            kept=load < 1.2,
        )
        for load in loads
    )


def frontier():
    rows = (
        ("h100_sxm", "fp8", 2, 5, 29.5, 0.71, 0.038, True),
        ("h100_sxm", "fp8", 2, 6, 35.4, 0.55, 0.033, True),
        ("h100_sxm", "bf16", 4, 4, 47.2, 0.61, 0.035, False),
        ("h200_sxm", "fp8", 2, 5, 41.2, 0.58, 0.028, True),
        ("a100_sxm_80gb", "bf16", 4, 9, 61.0, 1.61, 0.047, False),
        ("h200_sxm", "fp8", 1, 8, 33.9, None, 0.044, False),
    )
    return tuple(
        FrontierPoint(
            gpu=gpu,
            precision=precision,
            tensor_parallel=tp,
            replica_count=count,
            price_usd_per_hour=usd,
            ttft_p99_s=ttft,
            itl_p99_s=itl,
            promised_s={"ttft_p99": ttft, "itl_p99": itl, "tpot_p95": itl * 0.9},
            efficient=efficient,
        )
        for gpu, precision, tp, count, usd, ttft, itl, efficient in rows
    )


def rejected():
    reason = Reason(kind="memory", text="Weights need 131 GiB of 79.6 GiB on each GPU.", relax="TP2")
    return (Rejected(gpu="h100_sxm", precision="bf16", tensor_parallel=1, reasons=(reason,)),)


def bill():
    return Bill(
        span_s=1200.0,
        total_usd_per_hour=29.50,
        input_usd_per_hour=9.104,
        cached_usd_per_hour=0.0,
        output_usd_per_hour=13.704,
        headroom_usd_per_hour=0.5,
        idle_usd_per_hour=0.292,
        spare_usd_per_hour=5.90,
        usd_per_million_input_tokens=0.152,
        usd_per_million_cached_tokens=None,
        usd_per_million_output_tokens=1.16,
        usd_per_million_output_tokens_loaded=2.4,
        usd_per_request=0.00041,
    )


@pytest.fixture(scope="session")
def plan():
    chosen = sized()
    question = PlanQuestion(
        name="chat-2026q4",
        model=model(),
        slo=Slo(
            latency=(
                LatencyTarget(metric="ttft", quantile=0.99, limit_s=2.0),
                LatencyTarget(metric="itl", quantile=0.99, limit_s=0.05),
            ),
            error_rate_fraction=0.001,
        ),
        candidates=(chosen.replica, replica("h200_sxm"), replica("a100_sxm_80gb", 4, "bf16")),
        rejected=rejected(),
        prices=(price(), price("h200_sxm", 4.12), price("a100_sxm_80gb", 1.69)),
        spare_replica_count=1,
        router="least_in_flight",
        seed=1,
    )
    return Plan(
        question=question,
        chosen=chosen,
        runners_up=(
            sized("h200_sxm", 2, "fp8", 4, 4.12, 0.58, 0.028),
            sized("a100_sxm_80gb", 4, "bf16", 8, 1.69, 1.61, 0.047),
        ),
        rejected=rejected(),
        reasons=(),
        fleet=Fleet(groups=(ReplicaGroup(replica=chosen.replica, replica_count=5),)),
        record=record(5, 0.8),
        degraded=record(4, 1.0),
        slo_whole=results(0.52, 0.033),
        slo_degraded=results(0.71, 0.038),
        slo_degraded_overall=results(0.44, 0.031),
        limits=(
            LimitUse(limit="decode_bandwidth", used_fraction=0.76, rate_at_limit_per_s=27.0),
            LimitUse(limit="kv_memory", used_fraction=0.50, rate_at_limit_per_s=41.0),
            LimitUse(limit="prefill_compute", used_fraction=0.31, rate_at_limit_per_s=66.0, at_least=True),
        ),
        curve=curve(),
        bill=bill(),
        peak_start_s=PEAK_MINUTE * 60.0,
        peak_end_s=PEAK_MINUTE * 60.0 + 60.0,
        replayed_count=9,
        assumptions=("Arrivals are taken from the trace as they are.", "The engine runs its default settings."),
        peak_rate_per_s=20.4,
        sustained_rate_per_s=27.0,
        frontier=frontier(),
        outpriced=(
            Outpriced(replica=replica("l40s", 4), failed_count=6, broken=("itl_p99",), price=price("l40s", 0.86)),
        ),
    )


@pytest.fixture(scope="session")
def infeasible(plan):
    question = dataclasses.replace(
        plan.question,
        slo=Slo(latency=(LatencyTarget(metric="ttft", quantile=0.99, limit_s=0.1),), error_rate_fraction=0.001),
    )
    reasons = (
        Reason(
            kind="ttft_floor",
            text="prefill of the p99 input (7,303 tokens) alone takes 412 ms (360-470) on the fastest candidate",
            relax="ttft_p99 at least 0.62 s",
        ),
        Reason(kind="ttft_floor", text="no candidate prefills faster", relax="cap input at 1,400 tokens"),
    )
    return dataclasses.replace(
        plan,
        question=question,
        chosen=None,
        runners_up=(),
        reasons=reasons,
        fleet=None,
        record=None,
        degraded=None,
        slo_whole=(),
        slo_degraded=(),
        slo_degraded_overall=(),
        limits=(),
        curve=(),
        bill=None,
        frontier=(),
        outpriced=(),
    )


@pytest.fixture(scope="session")
def resolved():
    return {
        "scenario": {"name": "chat-2026q4", "growth": None, "slo": {"ttft_p99_s": 2.0}},
        "seed": 1,
        "versions": {"tokenfleet": "0.1.0", "numpy": "2.3.0"},
        "sha256": {"demand": "ab" * 32},
        "price_dates": ["2026-10-01", "2026-11-02"],
    }
