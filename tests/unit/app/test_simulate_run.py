"""What the diagnosis compares with: the same requests alone, and the work of a stretch of the run."""

import numpy as np
import pytest

from tokenfleet import simulator, workload
from tokenfleet.app.around import Around
from tokenfleet.app.scenario import checked
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.simulate_question import FleetOptions, fleet_by_options
from tokenfleet.app.simulate_run import alone, busy_in
from tokenfleet.app.simulate_words import REFUSED
from tokenfleet.catalog import model
from tokenfleet.domain.run import Status

VALUES = {
    "name": "small",
    "workload": {"lengths": {"input": "700:1500", "output": "140:300"}, "mean_rate": 4},
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "slo": {"ttft_p99": "2s"},
    "gpus": ["l40s"],
    "precision": "fp8",
}


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
    found = alone(trace, fleet)
    assert len(found.arrival_s) == 1000, "ten stretches of a hundred"
    assert found.replica_count == 1
    assert (found.arrival_s[1:] >= found.finish_s[:-1]).all()
    assert found.busy.mixed_step_count == 0
    # With nobody else, a longer prompt never has an earlier first token.
    order = np.argsort(found.input_tokens, kind="stable")
    assert (np.diff(found.ttft_s[order]) > -1e-9).all()


def test_alone_takes_requests_of_the_window_only(trace, fleet):
    inside = (trace.arrival_s >= 60.0) & (trace.arrival_s < 120.0)
    found = alone(trace, fleet, (60.0, 120.0))
    assert found.input_tokens.tolist() == trace.input_tokens[inside].tolist()


def test_the_work_of_stretches_adds_up_to_the_work_of_the_run(trace, fleet):
    whole = simulator.replay(trace, fleet).busy
    parts = [busy_in(trace, Around(fleet=fleet), window) for window in ((0.0, 100.0), (100.0, 200.0), (200.0, 301.0))]
    for field in ("prefill_s", "decode_s", "step_count", "mixed_step_count"):
        assert sum(getattr(part, field) for part in parts) == pytest.approx(getattr(whole, field))
    assert all(part.prefill_s > 0 and part.decode_s > 0 for part in parts)


def test_every_kind_of_refusal_has_its_words():
    assert set(REFUSED) == {kind.name.lower() for kind in Status if kind.name.startswith("REJECTED")}
