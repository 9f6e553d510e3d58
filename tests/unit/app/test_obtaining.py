"""Whether the GPUs of a plan can be had: three outages that others had, as plans."""

from dataclasses import replace
from datetime import date

import pytest

from tokenfleet.app.obtaining import obtainable, obtainable_lines
from tokenfleet.app.scaling_types import AutoscalingSpec
from tokenfleet.contract import contract_document
from tokenfleet.domain.plan import PlannedPool
from tokenfleet.domain.survival import Redundancy, Rollout, Zone
from tokenfleet.planner import plan, plan_document
from tokenfleet.workload import profile
from unit.planner import toy
from unit.planner.conftest import toy_world  # noqa: F401 - a fixture

TRACE = toy.trace(count=600, rate=40.0)
H100, A100 = toy.replica(slots=16), toy.replica(gpu="a100_sxm_80gb", slots=16)
PRICES = [toy.price("h100_sxm", 3.0), toy.price("a100_sxm_80gb", 3.5)]


def made(*candidates, **more):
    return plan(replace(toy.question(candidates or [H100], PRICES), **more), TRACE)


def grown(most, quota=None):
    return AutoscalingSpec.model_construct(max=most, gpu_quota=quota)


@pytest.mark.usefixtures("toy_world")
def test_one_zone_and_one_gpu_model_is_no_assured_capacity():
    found = obtainable(made(), None)
    assert not found.assured
    assert found.instead == ()
    assert "capacity not assured" in obtainable_lines(found)[0]
    two = obtainable(made(H100, A100), None)
    assert two.assured
    assert len(two.instead) == 1
    assert "x a100_sxm_80gb" in two.instead[0]
    zones = Redundancy(zone_count=1, zones=(Zone(name="a"), Zone(name="b")))
    assert obtainable(made(redundancy=zones), None).assured
    # Replicas that all stand in one of two zones share its fate.
    bound = Redundancy(zones=(Zone(name="a"),))
    assert not obtainable(made(redundancy=bound), None).assured


@pytest.mark.usefixtures("toy_world")
def test_a_quota_is_charged_with_the_most_that_may_run():
    planned = made()
    total = planned.chosen.replica_count
    alone = obtainable(planned, None)
    assert (alone.most_gpu_count, alone.allowed_gpu_count, alone.is_allowed) == (total + 1, None, None)
    refused = obtainable(planned, grown(100, quota=4))
    assert (refused.most_gpu_count, refused.allowed_gpu_count, refused.is_allowed) == (101, 4, False)
    assert "more than is allowed" in obtainable_lines(refused)[1]
    # Fewer than are planned anyway: the plan counts.
    assert obtainable(planned, grown(1, quota=200)).most_gpu_count == total + 1
    assert obtainable(planned, grown(1, quota=200)).is_allowed
    room = Redundancy(zones=(Zone(name="a", gpu_limit_count=20), Zone(name="b", gpu_limit_count=10)))
    assert obtainable(made(redundancy=room), grown(2, quota=200)).allowed_gpu_count == 30
    still = obtainable(made(rollout=Rollout(max_surge_count=0, max_unavailable_count=1)), None)
    assert still.most_gpu_count == total


@pytest.mark.usefixtures("toy_world")
def test_a_start_up_probe_must_allow_half_as_much_again_as_the_longest_start():
    timed = obtainable(made(rollout=Rollout(ready_after_s=900.0)), None)
    assert timed.startup_budget_s == 1350.0
    # The probe of 60 x 10 s: what starts in 277 s lives, what takes 900 s is killed for ever.
    quick = obtainable(made(rollout=Rollout(ready_after_s=277.0)), None)
    assert quick.startup_budget_s < 600.0 < timed.startup_budget_s
    predicted = obtainable(made(), None)
    assert predicted.startup_budget_s > 0.0
    assert "others measured" in predicted.startup_why


@pytest.mark.usefixtures("toy_world")
def test_machines_and_the_contract_read_it():
    planned = made()
    planned = replace(planned, obtainable=obtainable(planned, grown(100, quota=4)))
    workload = profile(TRACE)
    told = plan_document(planned, workload, {})["obtainable"]
    assert (told["assured"], told["is_allowed"], told["most_gpu_count"]) == (False, False, 101)
    first = made(first_look=True)
    assert obtainable(first, None) is None
    assert plan_document(first, workload, {})["obtainable"] is None


@pytest.mark.usefixtures("toy_world")
def test_a_contract_keeps_it():
    planned = made()
    planned = replace(planned, obtainable=obtainable(planned, grown(100, quota=4)))
    sums = dict.fromkeys(("demand", "model", "gpus", "prices"), "d" * 64)
    resolved = {"scenario": {"name": "toy"}, "seed": 1, "versions": {"tokenfleet": "0.1.0"}, "sha256": sums}
    document = contract_document(planned, profile(TRACE), resolved, made_on=date(2026, 11, 30))
    assert document["scale_out"] == {
        "ready_after_s": None,
        "source": "unknown",
        "startup_budget_s": planned.obtainable.startup_budget_s,
        "most_gpu_count": 101,
        "allowed_gpu_count": 4,
        "capacity_assured": False,
    }
    # Of several pools: the slowest start, the GPUs of all, assured where each is.
    each = replace(planned.obtainable, assured=True, startup_budget_s=9.0, most_gpu_count=5)
    pools = [
        PlannedPool(
            name=name,
            who=name,
            does="answers",
            takes=None,
            request_fraction=0.5,
            plan=replace(planned, obtainable=found),
        )
        for name, found in (("a", each), ("b", replace(each, startup_budget_s=11.0)), ("beside", None))
    ]
    both = replace(planned, chosen=None, obtainable=None, pools=tuple(pools))
    document = contract_document(both, profile(TRACE), resolved, made_on=date(2026, 11, 30))
    assert document["scale_out"] == {
        "ready_after_s": None,
        "source": "unknown",
        "startup_budget_s": 11.0,
        "most_gpu_count": 10,
        "allowed_gpu_count": 4,
        "capacity_assured": True,
    }
