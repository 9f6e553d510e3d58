"""The autoscaling questions of the case collection, each answered from its own inputs."""

from functools import cache
from pathlib import Path

import pytest
import yaml

from shared import SHARED, needs_shared
from tokenfleet.control import (
    ActiveRule,
    KvRule,
    QueueRule,
    ScalingPolicy,
    ScalingState,
    Signals,
    TtftRule,
    check_policy,
    decide,
    worst_case_gpu_count,
)
from tokenfleet.control.rules import CANNOT_HELP
from tokenfleet.control.scaling import NO_DATA, START_TIMEOUT
from tokenfleet.domain.errors import BadInput
from tokenfleet.performance import ColdStart, StageTime, startup_budget_s
from unit.control.ticks import signals

pytestmark = [needs_shared, pytest.mark.shared]

ELSEWHERE = {"S09": ("../performance/test_time_cases.py", "test_s09")}


@cache
def cases():
    read = yaml.safe_load((SHARED / "cases" / "open.yaml").read_text())
    return {case["id"]: case for case in read["cases"] if "autoscaler" in case["tests"]}


def case(name):
    found = cases()[name]
    return found["inputs"], found["expected"]["values"]


def test_every_autoscaler_case_is_answered():
    here = {name for name in cases() if f"test_{name.lower()}" in globals()}
    assert here | set(ELSEWHERE) == set(cases())
    for file, test in ELSEWHERE.values():
        assert f"def {test}" in (Path(__file__).parent / file).read_text()


def test_a01():
    given, expected = case("A01")
    for low in given["min_replicas"]:
        policy = ScalingPolicy(rules=(QueueRule(), KvRule()), min_count=low, max_count=8)
        state = ScalingState(target_count=6)
        for tick in range(60):
            step, state = decide(Signals(time_s=30.0 * tick, ready_count=6), policy, state)
            done = (step.start_count, step.stop_count) == (0, 0) and step.target_count == 6
            assert {"hold_and_alert": done and NO_DATA in step.alerts}[expected["on_missing"]]
    # With nobody there the queue's metric does not exist; the router's does.
    asleep = Signals(time_s=0.0, ready_count=0, arrived_count=1)
    policy = ScalingPolicy(rules=(QueueRule(),), min_count=min(given["min_replicas"]), max_count=8)
    assert decide(asleep, policy, ScalingState(target_count=0))[0].start_count == 1


def test_a02():
    given, expected = case("A02")
    policy = ScalingPolicy(rules=(QueueRule(limit_count=4.0),), max_count=given["max"])
    waiting = (round(4 * given["raw_ratio"]),) * given["ready"]
    state = ScalingState(target_count=given["ready"])
    counts = [given["ready"]]
    for cycle in range(3):
        assert cycle * given["reconcile_s"] < given["startup_s"], "nobody is ready yet"
        starting = state.target_count - given["ready"]
        tick = signals(float(cycle * given["reconcile_s"]), waiting=waiting, starting=starting)
        step, state = decide(tick, policy, state)
        counts.append(step.target_count)
    assert counts == expected["replicas_over_time"]


def test_a04():
    given, expected = case("A04")
    rule = TtftRule(limit_s=given["ttft_target_ms"] / 1000.0)
    policy = ScalingPolicy(rules=(rule,), min_count=1, max_count=8)
    state = ScalingState(target_count=2)
    for tick in range(60):
        # One long prompt now and then, and no other demand.
        seen = signals(30.0 * tick, waiting=(0, 0), running=(1, 0), ttft=given["ttft_estimate_ms"] / 1000.0)
        step, state = decide(seen, policy, state)
        assert step.alerts == (CANNOT_HELP,)
    assert {"min": policy.min_count}[expected["replicas"]] == step.target_count
    assert expected["flag"] == "infeasible_single_request_slo"
    assert "more replicas cannot help" in step.reason


def test_a06():
    given, expected = case("A06")
    policy = ScalingPolicy(rules=(ActiveRule(limit_count=float(given["target"])),), max_count=4)
    with pytest.raises(BadInput, match="scale by the queue"):
        check_policy(policy, slot_count=given["metric_max"], queue_limit_count=0)
    assert expected["validate"] == "reject"
    # By the queue the same backlog is seen.
    step, _ = decide(
        signals(waiting=(given["queue"],), running=(1,)),
        ScalingPolicy(rules=(QueueRule(),), max_count=4),
        ScalingState(target_count=1),
    )
    assert step.target_count > 1


def start(**seconds):
    stages = [
        StageTime(stage=stage, low_s=each, typical_s=each, high_s=each, evidence="") for stage, each in seconds.items()
    ]
    return ColdStart(stages=tuple(stages))


def test_a08():
    given, expected = case("A08")
    failures, period_s = (float(part) for part in given["startup_probe"].removesuffix(" s").split(" x "))
    probe_s = failures * period_s
    for load_s, ok in expected["ok"].items():
        assert (start(weights=float(load_s)).high_s < probe_s) == ok
        assert startup_budget_s(start(weights=float(load_s))) > load_s


def test_a10():
    given, expected = case("A10")
    for phases, total in (("phases_first", "first_s"), ("phases_cached_compile", "next_s")):
        parts = given[phases]
        found = start(
            start=float(parts["container"]),
            weights=float(parts["weights"]),
            compile=float(parts["compile"]),
            warm_up=float(parts["profile_warmup"]),
        )
        low, high = expected[total]
        assert low <= found.typical_s <= high
        least, most = expected["weights_share"]
        assert least <= found.share_fraction("weights") <= most


def test_a12():
    given, expected = case("A12")
    policy = ScalingPolicy(rules=(QueueRule(),), max_count=given["replicas_wanted"], start_timeout_s=600.0)
    state = ScalingState(target_count=1)
    alerts = set()
    for tick in range(30):
        # Nothing is ever provisioned; what is asked for stays on its way.
        seen = signals(30.0 * tick, waiting=(30,), starting=len(state.starts_s))
        step, state = decide(seen, policy, state)
        alerts |= set(step.alerts)
        assert not (step.alerts and tick == 0 and START_TIMEOUT in step.alerts)
    assert given["provisioned"] == 0
    assert START_TIMEOUT in alerts, "it does not wait for ever"
    # The review of a plan names it beforehand.
    assert expected["flag"] == "single_zone_single_sku"


def test_a17():
    given, expected = case("A17")
    policy = ScalingPolicy(rules=(QueueRule(),), min_count=given["spec_replicas"], max_count=given["max_replicas"])
    with pytest.raises(BadInput, match="100 replicas may come to 100 gpus, and the quota is 4"):
        check_policy(policy, gpus_per_replica_count=given["gpus_per_replica"], gpu_quota_count=given["quota_gpus"])
    assert expected["decision"] == "deny"
    assert worst_case_gpu_count(policy, given["gpus_per_replica"]) == 100
