"""What the diagnosis compares with: the same requests alone, and the work of a stretch of the run."""

import numpy as np
import pytest

from tokenfleet import simulator, workload
from tokenfleet.app.alone import _stretches, alone
from tokenfleet.app.around import Around
from tokenfleet.app.intervals import intervals_of
from tokenfleet.app.scenario import checked
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.simulate_question import FleetOptions, fleet_asked, fleet_by_options
from tokenfleet.app.simulate_run import How, busy_in, simulate
from tokenfleet.app.simulate_words import REFUSED
from tokenfleet.catalog import model
from tokenfleet.contract import DiagnosisLimits
from tokenfleet.domain.run import Status

VALUES = {
    "name": "small",
    "workload": {"lengths": {"input": "700:1500", "output": "140:300"}, "mean_rate": 4},
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "slo": {"ttft_p99": "2s"},
    "gpus": ["l40s"],
    "precision": "fp8",
}


class Silent:
    def say(self, text):
        pass

    step = announce = say


@pytest.fixture(scope="module")
def fleet():
    asked = checked(Scenario, VALUES, str)
    return fleet_by_options(asked, model(asked.model), FleetOptions(replicas=2))


@pytest.fixture(scope="module")
def trace():
    return workload.draw_trace(
        workload.Lengths.parse("700:1500"),
        workload.Lengths.parse("140:300"),
        mean_rate_per_s=6.0,
        peak_to_mean=2.0,
        interarrival_cv=2.0,
        duration_s=300.0,
        seed=3,
    )


def test_alone_nobody_meets_anybody(trace, fleet):
    found = alone(trace, fleet, simulator.replay(trace, fleet).replica)
    assert len(found.ttft_s) == 1000, "ten stretches of a hundred"
    # With nobody else, a longer prompt never has an earlier first token.
    prompts = trace.input_tokens[_stretches(trace.request_count)]
    assert (np.diff(found.ttft_s[np.argsort(prompts, kind="stable")]) > -1e-9).all()


def test_alone_takes_requests_of_the_window_only(trace, fleet):
    inside = (trace.arrival_s >= 60.0) & (trace.arrival_s < 120.0)
    found = alone(trace, fleet, simulator.replay(trace, fleet).replica, (60.0, 120.0))
    assert len(found.ttft_s) == inside.sum()
    assert found.gaps.count.sum() == (trace.output_tokens[inside] - 1).sum()


def test_where_replicas_differ_requests_are_compared_with_their_own_kind():
    groups = {"fast": {"gpu": "h100_sxm", "replicas": 1}, "slow": {"gpu": "l4", "replicas": 1}}
    quiet = {**VALUES, "workload": {**VALUES["workload"], "mean_rate": 0.3, "duration": "20min"}}
    asked = checked(Scenario, {**quiet, "groups": groups, "router": "round_robin"}, str)
    mixed = fleet_asked(asked, model(asked.model), None, {})
    run = simulate(asked, model(asked.model), mixed, How(limits=DiagnosisLimits()), Silent())
    found = run.whole.diagnosis
    assert found.verdict == "fine"
    assert found.itl.factor == pytest.approx(1.0, abs=0.35)
    assert found.ttft.factor == pytest.approx(1.0, abs=0.6)


def test_the_work_of_stretches_adds_up_to_the_work_of_the_run(trace, fleet):
    whole = simulator.replay(trace, fleet).busy
    parts = [busy_in(trace, Around(fleet=fleet), window) for window in ((0.0, 100.0), (100.0, 200.0), (200.0, 301.0))]
    for field in ("prefill_s", "decode_s", "step_count", "mixed_step_count"):
        assert sum(getattr(part, field) for part in parts) == pytest.approx(getattr(whole, field))
    assert all(part.prefill_s > 0 and part.decode_s > 0 for part in parts)


def test_every_kind_of_refusal_has_its_words():
    assert set(REFUSED) == {kind.name.lower() for kind in Status if kind.name.startswith("REJECTED")}


def test_tokens_of_intervals_add_up_to_those_that_left_drafts_included(trace):
    speculating = {"engine": {"name": "vllm", "speculation": {"tokens": 3, "acceptance": "70%"}}}
    asked = checked(Scenario, {**VALUES, **speculating}, str)
    drafting = fleet_by_options(asked, model(asked.model), FleetOptions(replicas=2))
    run = simulator.replay(trace, drafting, telemetry_interval_s=5.0)
    done = intervals_of(run, 5.0, drafting, [model(asked.model)])
    left = run.output_tokens[run.status == Status.FINISHED] - 1
    assert done.decode_tokens.sum() == pytest.approx(left.sum(), rel=0.02)
