"""What the diagnosis compares with: the same requests alone, and the work of a stretch of the run."""

import numpy as np
import pytest

from tokenfleet import simulator, workload
from tokenfleet.app.alone import _stretches, alone
from tokenfleet.app.intervals import intervals_of, left_tokens
from tokenfleet.app.scenario import checked
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.simulate_question import FleetOptions, fleet_asked, fleet_by_options
from tokenfleet.app.simulate_run import How, prefill_fraction_in, simulate
from tokenfleet.app.simulate_words import REFUSED, diagnosis_words, promise_lines
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


def test_the_work_of_all_requests_is_that_of_the_run(trace, fleet):
    record = simulator.replay(trace, fleet, telemetry_interval_s=5.0)
    busy = record.busy
    whole = prefill_fraction_in(record, (0.0, 301.0))
    assert whole == pytest.approx(busy.prefill_s / (busy.prefill_s + busy.decode_s), abs=0.01)
    parts = [prefill_fraction_in(record, window) for window in ((0.0, 100.0), (100.0, 301.0))]
    assert 0.0 < min(parts) <= whole <= max(parts) < 1.0
    assert prefill_fraction_in(record, (400.0, 500.0)) is None
    with pytest.raises(ValueError, match="without a ledger"):
        prefill_fraction_in(simulator.replay(trace, fleet), (0.0, 301.0))


def test_requests_that_time_out_in_an_overload_make_first_tokens_late_and_no_share_leaves_its_bounds():
    flood = {"lengths": {"input": "3000:9000", "output": "60:100"}, "mean_rate": 10, "duration": "3min"}
    clients = {"attempts": 2, "first_token_timeout": "10s", "timeout": "20s"}
    asked = checked(Scenario, {**VALUES, "workload": flood, "clients": clients}, str)
    one = fleet_by_options(asked, model(asked.model), FleetOptions(replicas=1))
    run = simulate(asked, model(asked.model), one, How(limits=DiagnosisLimits()), Silent())
    found = run.peak.diagnosis
    assert (found.verdict, found.ttft.up, found.ttft.loaded_s) == ("prefill", True, None)
    assert 0.5 < found.ttft.never_fraction <= 1.0
    assert 0.6 < found.prefill_fraction <= 1.0
    said = diagnosis_words(run.peak, run)
    assert any("of the requests got no first token before their clients gave up" in line for line in said)
    assert not any("flat: p95" in line or "with a replica to itself" in line for line in said)


def test_clients_that_do_not_wait_for_a_request_alone_are_told_of():
    long = {"lengths": {"input": "9000:30000", "output": "60:100"}, "mean_rate": 0.2, "duration": "10min"}
    asked = checked(Scenario, {**VALUES, "workload": long, "clients": {"first_token_timeout": "1s"}}, str)
    run = simulate(
        asked,
        model(asked.model),
        fleet_by_options(asked, model(asked.model), FleetOptions(replicas=8)),
        How(limits=DiagnosisLimits()),
        Silent(),
    )
    assert run.peak.diagnosis.ttft.up
    said = " ".join(diagnosis_words(run.peak, run))
    assert "Clients wait 1.00 s: more than 1 request in 20 takes longer with a replica to itself." in said


def test_errors_of_those_nobody_serves_are_not_called_slow_requests():
    drained = {"events": [{"at": "60s", "what": "drain", "replicas": 1, "back_after": "30s"}]}
    quiet = {"workload": {**VALUES["workload"], "mean_rate": 2, "duration": "3min"}}
    asked = checked(Scenario, {**VALUES, **quiet, **drained, "slo": {"ttft_p95": "2s", "tpot_p99": "1ms"}}, str)
    one = fleet_by_options(asked, model(asked.model), FleetOptions(replicas=1))
    run = simulate(asked, model(asked.model), one, How(limits=DiagnosisLimits()), Silent())
    refused = run.whole.diagnosis.refused_by["rejected_nobody_ready"]
    first, second, *_ = diagnosis_words(run.whole, run)
    assert first == (
        "who is served is served in time, yet TTFT p95, TPOT p99, errors break the promise: "
        f"{refused} found no replica ready."
    )
    assert not second.startswith("not saturated"), "no answer at all, not slow ones"
    said = promise_lines(run.peak_window_s, run.peak.slo, run.whole.slo)
    assert any(line.split() == ["TTFT", "p95", "never", "of", "2.00", "s", "broken"] for line in said)


def test_replicas_of_several_kinds_say_which_quantile_is_compared(trace):
    groups = {"fast": {"gpu": "h100_sxm", "replicas": 1}, "slow": {"gpu": "l4", "replicas": 2}}
    asked = checked(Scenario, {**VALUES, "groups": groups, "router": "round_robin"}, str)
    mixed = fleet_asked(asked, model(asked.model), None, {})
    run = simulate(asked, model(asked.model), mixed, How(limits=DiagnosisLimits()), Silent())
    ttft = run.peak.diagnosis.ttft
    said = " ".join(diagnosis_words(run.peak, run))
    assert ("(replicas differ: of the quantiles nearby" in said) == (
        ttft.quantile != 0.95 or run.peak.diagnosis.itl.quantile != 0.5
    )
    assert 0.85 <= ttft.quantile <= 0.99


def test_every_kind_of_refusal_has_its_words():
    assert set(REFUSED) == {kind.name.lower() for kind in Status if kind.name.startswith("REJECTED")}


def test_tokens_of_intervals_add_up_to_those_that_left_drafts_included(trace):
    speculating = {"engine": {"name": "vllm", "speculation": {"tokens": 3, "acceptance": "70%"}}}
    asked = checked(Scenario, {**VALUES, **speculating}, str)
    drafting = fleet_by_options(asked, model(asked.model), FleetOptions(replicas=2))
    run = simulator.replay(trace, drafting, telemetry_interval_s=5.0)
    done = intervals_of(run, 5.0, drafting, [model(asked.model)])
    left = run.output_tokens[run.status == Status.FINISHED] - 1
    assert done.decode_tokens.sum() == left.sum(), "no draft behind the last token counts"
    assert left_tokens(run, done).sum() == run.output_tokens.sum()
