"""Cases of speculation and of the order of prefill and decode, replayed with times that the cases state."""

from dataclasses import replace

import numpy as np
import pytest
import yaml

from reference.fleets import engine, fleet, physics, step_time, trace
from shared import SHARED, needs_shared
from tokenfleet import catalog, performance
from tokenfleet.contract import judge
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.replica import Deployment, Layout, Speculation
from tokenfleet.domain.slo import LatencyTarget, Slo
from tokenfleet.simulator import replay

pytestmark = [needs_shared, pytest.mark.shared]


def case(name):
    read = yaml.safe_load((SHARED / "cases" / "open.yaml").read_text())
    found = next(each for each in read["cases"] if each["id"] == name)
    return found["inputs"], found["expected"]["values"]


def test_p06():
    given, expected = case("P06")
    itl_ms = expected["itl_ms"]
    # Mean time to first token of eight prompts one after another is 4.5 prompts: 96.7 s, at 5.0 tokens/s in all.
    prompt_s, count = 96.7 / 4.5, given["concurrency"]
    outputs = round(5.0 * count * prompt_s / count)
    # A gap is a round of decode and a chunk's share: round + chunk / 4 = 54 ms, round + chunk / 8 = 31 ms.
    chunk_s = (itl_ms[4] - itl_ms[8]) / (1 / 4 - 1 / 8) / 1e3
    round_s = itl_ms[8] / 1e3 - chunk_s / 8
    inputs = given["context"] - outputs
    chunk = round(inputs * chunk_s / prompt_s)

    def served(interval):
        table = np.full(chunk + 1, round(chunk_s * 1e12))
        table[: count + 1] = round(round_s * 1e12)
        settings = engine(
            name="sglang-0.5",
            max_batched_tokens=chunk,
            max_sequence_count=count,
            block_tokens=1,
            prefill_decode_interval_count=interval,
        )
        replica = physics(settings=settings, time=step_time(token_ps=table), blocks=count * (given["context"] + 1))
        return replay(trace([(0, inputs, outputs)] * count), fleet(replica))

    runs = {interval: served(interval) for interval in given["interval"]}
    for interval, run in runs.items():
        assert np.median(run.tpot_s) * 1e3 == pytest.approx(itl_ms[interval], rel=0.08)
    ttft_s = {interval: run.ttft_s.mean() for interval, run in runs.items()}
    assert ttft_s == pytest.approx({0: 96.7, 4: 99.25, 8: 99.96}, rel=0.01)
    rate = {interval: count * outputs / run.end_s for interval, run in runs.items()}
    assert rate == pytest.approx({0: 5.0, 4: 4.6, 8: 4.7}, rel=0.06)
    assert np.median(runs[0].tpot_s) / np.median(runs[8].tpot_s) == pytest.approx(23, rel=0.1)
    # Throughput cannot tell them apart, a promise of the gaps can.
    slo = Slo(latency=(LatencyTarget(metric="tpot", quantile=0.5, limit_s=0.1),), error_rate_fraction=0.0)
    kept = {interval: all(result.kept for result in judge(run, slo)) for interval, run in runs.items()}
    assert kept == {0: False, 4: True, 8: True}


def spec_replica(speculation):
    gpu, model = catalog.gpu("h100_sxm"), catalog.model("Qwen/Qwen3-32B")
    settings = replace(catalog.engine("vllm", gpu=gpu), max_sequence_count=256, speculation=speculation)
    deployment = Deployment(
        model=model.name, gpu=gpu.name, layout=Layout(), precision="fp8", kv_precision="bf16", engine=settings
    )
    return performance.replica_physics(model, gpu, deployment)


def median_tpot_s(replica, users):
    run = replay(
        trace([(0, 100, 200)] * users),
        Fleet(groups=(ReplicaGroup(replica=replica, replica_count=1),), router="least_in_flight"),
    )
    return float(np.median(run.tpot_s))


def test_p08():
    given, expected = case("P08")
    plain = spec_replica(None)
    ready = spec_replica(Speculation(draft_token_count=given["k"], acceptance_fraction=0.7, drafter="mtp"))
    assert ready.step_time.draft_ps is None
    measured_ms = {2: 14.374, 189: 77.164}
    for users in given["concurrency"]:
        added_ps = ready.step_time.token_ps[users] - plain.step_time.token_ps[users]
        added_ps += users * (ready.step_time.sequence_ps - plain.step_time.sequence_ps)
        tax = added_ps * 1e-9 / measured_ms[users] * 100
        assert tax == pytest.approx(expected["tax_pct"][users], rel=0.02)
    # The gain is no constant: it shrinks with the batch and turns into a loss.
    drafting = spec_replica(Speculation(draft_token_count=3, acceptance_fraction=0.6, drafter="mtp"))
    gains = [median_tpot_s(plain, users) / median_tpot_s(drafting, users) for users in (1, 16, 64, 189)]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1.5
    assert gains[-1] < 1.0
