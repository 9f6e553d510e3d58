"""The replay questions of the case collection, each answered from its own inputs."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml

from reference.fleets import MS, engine, fleet, physics, step_time, trace
from shared import SHARED, needs_shared
from tokenfleet import catalog, performance
from tokenfleet.control import QueueRule, ScalingPolicy
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.replica import Deployment, Layout
from tokenfleet.domain.run import Status
from tokenfleet.domain.world import Admission, Clients, World
from tokenfleet.simulator import replay
from tokenfleet.simulator.autoscaling import Autoscaler
from tokenfleet.workload import read_trace

pytestmark = [needs_shared, pytest.mark.shared]

ELSEWHERE = {"S09": ("../performance/test_time_cases.py", "test_s09")}


@cache
def cases():
    read = yaml.safe_load((SHARED / "cases" / "open.yaml").read_text())
    return {case["id"]: case for case in read["cases"] if "replay_sim" in case["tests"]}


def case(name):
    found = cases()[name]
    return found["inputs"], found["expected"]["values"]


def test_every_replay_case_is_answered():
    here = {name for name in cases() if f"test_{name.lower()}" in globals()}
    assert here | set(ELSEWHERE) == set(cases())
    for file, test in ELSEWHERE.values():
        assert f"def {test}" in (Path(__file__).parent / file).read_text()


def test_p04():
    given, expected = case("P04")
    budget, decode_ps = given["max_num_batched_tokens"], round(given["decode_step_s"] * 1000) * MS
    # A step with only decodes takes 36 ms; a chunk takes what 2,400 tokens a second say, on top.
    token_ps = decode_ps + np.arange(budget + 1, dtype=np.int64) * round(1000 * MS / given["prefill_tok_s"])
    running = engine(max_batched_tokens=budget, max_sequence_count=8, block_tokens=16)
    replica = physics(settings=running, time=step_time(token_ps=token_ps, tokens=budget), blocks=20_000)
    prompts = [(1_000, given["prompt_tokens"], 2)] * given["prompts"]
    record = replay(trace([(0, 16, 400), *prompts]), fleet(replica))
    gaps = record.gaps
    longest_s = gaps.lower_s[np.flatnonzero(gaps.count)[-1]]
    low, high = expected["accept_itl_s_at_8192"]
    assert low * 0.98 <= longest_s <= high * 1.02
    stall_s = record.first_token_s[2] - record.arrival_s[1]
    assert expected["stall_s"][0] <= stall_s <= expected["stall_s"][1]


def test_p10():
    given, expected = case("P10")
    assert "max_workers=1" in given["executor"]
    assert expected["requires"] == "host_stage"

    def served_per_s(*, step_ms, front_end="serial", replicas=1):
        """300 requests at once; the front end takes 40 ms for each, so a serial one does 25 a second."""
        own = engine(max_sequence_count=8, front_end=front_end)
        time = step_time(token_ps=np.full(65, step_ms * MS), request_ps=40 * MS)
        record = replay(trace([(0, 16, 4)] * 300), fleet(physics(settings=own, time=time), count=replicas))
        return 300 / record.end_s

    assert served_per_s(step_ms=8) == pytest.approx(25.0, rel=0.02)
    assert served_per_s(step_ms=2) == pytest.approx(served_per_s(step_ms=8), rel=0.02), "faster gpus do not help"
    assert served_per_s(step_ms=200) < 12.0, "the slower of the two stages sets the rate"
    assert served_per_s(step_ms=8, replicas=2) == pytest.approx(50.0, rel=0.02)
    assert served_per_s(step_ms=8, front_end="parallel") > 100.0, "more processes in front do help"


def test_p12():
    given, expected = case("P12")
    gpu, model = catalog.gpu(given["gpu"]), catalog.model(f"Qwen/{given['model']}")
    settings = catalog.engine("vllm", gpu=gpu)
    own = engine(
        name=settings.name,
        max_batched_tokens=settings.max_batched_tokens,
        max_sequence_count=given["max_num_seqs"],
        context_limit_tokens=given["max_model_len"],
        block_tokens=settings.block_tokens,
    )
    deployment = Deployment(
        model=model.name, gpu=gpu.name, layout=Layout(), precision="bf16", kv_precision="bf16", engine=own
    )
    replica = performance.replica_physics(model, gpu, deployment)
    rng = np.random.default_rng(1)
    count = 600
    bursts = np.sort(rng.choice(np.arange(6) * 20_000.0, count) + rng.uniform(0, 500, count))
    rows = np.column_stack([bursts, rng.integers(500, 4_000, count), rng.integers(100, 1_000, count)])
    record = replay(trace(rows), fleet(replica))
    assert (record.status == Status.FINISHED).all(), "it terminates, and nobody is lost"
    assert record.preemption_count.sum() > 0
    assert record.preemption_count.max() < 20
    # Nothing is written while it runs: preemptions are a column, not lines of a log.
    assert expected["log_lines_max"] > 0
    assert record.busy.step_count < 200_000


def test_a02():
    given, expected = case("A02")
    # Two replicas of one slot and a second per request, and four requests a second.
    own = engine(max_sequence_count=1)
    replica = physics(settings=own, time=step_time(token_ps=np.full(65, 1000 * MS)))
    policy = ScalingPolicy(rules=(QueueRule(limit_count=1e6),), max_count=given["max"])
    rows = [(250 * index, 4, 1) for index in range(1200)]
    watched = []

    class Twice(Autoscaler):
        """The queue at exactly twice its limit at every tick, as the report has it."""

        def __call__(self, view):
            worst = max(int(view.waiting.max()), 1)
            self.policy = ScalingPolicy(
                rules=(QueueRule(limit_count=worst / given["raw_ratio"]),), max_count=given["max"]
            )
            happenings = super().__call__(view)
            watched.append(self.steps[-1].target_count)
            return happenings

    scaler = Twice(
        policy,
        replica_count=given["max"],
        start_count=given["ready"],
        cold_start_s=float(given["startup_s"]),
        tick_s=float(given["reconcile_s"]),
    )
    world = World(absent=scaler.absent, controller=scaler, tick_s=scaler.tick_s)
    replay(trace(rows), fleet(replica, count=given["max"]), world=world)
    before_ready = round(given["startup_s"] / given["reconcile_s"])
    assert [given["ready"], *watched[:3]] == expected["replicas_over_time"]
    assert set(watched[:before_ready]) == {4}, "and stays there until they are ready"


def test_a15():
    given, expected = case("A15")
    before, after = given["retries_per_task"]
    assert (1 + after) / (1 + before) == pytest.approx(expected["load_ratio"], abs=0.01)
    # Clients who come back at once to a full door: attempts per request follow the share that is refused.
    own = engine(max_sequence_count=1)
    replica = physics(settings=own, time=step_time(token_ps=np.full(65, 40 * MS)))
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(50.0, 4_000))
    rows = np.column_stack([arrivals, np.full(4_000, 4), np.full(4_000, 1)])

    def retries(queue_limit):
        world = World(
            clients=Clients(attempt_count=1000, backoff_s=2.0), admission=Admission(queue_limit_count=queue_limit)
        )
        record = replay(trace(rows), fleet(replica), world=world)
        assert (record.status == Status.FINISHED).all()
        refused = record.turmoil.refused_count
        share = refused / (refused + len(rows))
        return refused / len(rows), share

    loose, tight = retries(20), retries(2)
    for per_task, share in (loose, tight):
        assert per_task == pytest.approx(share / (1 - share)), "geometric: p / (1 - p)"
    assert tight[0] > 3 * max(loose[0], 0.01), "less patience at the door, many more attempts"
    timeout = given["timeout_rate"][1]
    assert timeout / (1 - timeout) == pytest.approx(expected["independent_retries"], abs=0.01)


def test_l12():
    given, expected = case("L12")
    # One server: a step of a millisecond, and every 500th request holds it for 200 more.
    own = engine(max_sequence_count=1, max_batched_tokens=8)
    service_ps = given["service_ms"] * MS
    server = physics(settings=own, time=step_time(token_ps=np.full(9, service_ps)), blocks=1000)
    count = given["rate"] * given["duration_s"]
    paused = (np.arange(count) + 1) % given["pause_every"] == 0
    outputs = np.where(paused, 1 + given["pause_ms"] // given["service_ms"], 1)
    scheduled = np.arange(count) * 1000.0 / given["rate"]
    record = replay(trace(np.column_stack([scheduled, np.ones(count), outputs])), fleet(server))
    seen_ms = record.e2e_s * 1000.0
    low, high = expected["p99_ms"]
    assert low <= np.quantile(seen_ms, 0.99) <= high
    assert np.quantile(seen_ms, 0.5) < 2.5
    # A closed loop sends the next one when the last is done, and sees one slow request in 500.
    alone = replay(trace(np.column_stack([np.arange(count) * 1000.0, np.ones(count), outputs])), fleet(server))
    assert np.quantile(alone.e2e_s, 0.99) * 1000.0 == pytest.approx(given["service_ms"])


def test_i03():
    _, expected = case("I03")
    path = SHARED / "data" / "traces" / "mooncake_conversation.jsonl.gz"
    ttft_s = {}
    for spread in (False, True):
        read, _ = read_trace(path, spread_ticks=spread)
        own = engine(max_batched_tokens=8192, max_sequence_count=64, block_tokens=16)
        token_ps = 5 * MS + np.arange(8193, dtype=np.int64) * (MS // 100)
        replica = physics(settings=own, time=step_time(token_ps=token_ps, tokens=8192), blocks=60_000)
        record = replay(read, fleet(replica, count=6))
        ttft_s[spread] = np.nanquantile(record.ttft_s, 0.99)
    assert expected["max_same"] == 28
    assert ttft_s[False] > 1.05 * ttft_s[True], "literal stamps make bursts that never were"


def test_i06():
    given, expected = case("I06")
    for number, row in enumerate(given["rows"], start=1):
        asked = trace([(0, row["input_tokens"], row["output_tokens"])])
        if number in expected["quarantine"]:
            with pytest.raises(BadInput, match="input_tokens"):
                replay(asked, fleet())
        else:
            assert replay(asked, fleet()).status[0] == Status.FINISHED
