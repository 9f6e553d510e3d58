import json
from datetime import date, timedelta

import numpy as np
import pytest
import yaml

from tokenfleet.contract import check_contract, contract_document, contract_text, judge, read_contract, write_contract
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.trace import LengthSummary, Quality, Workload
from tokenfleet.planner import plan, plan_document
from unit.planner import toy

DAY = date(2026, 11, 29)
RESOLVED = {
    "scenario": {"name": "toy", "slo": {"ttft_p99": 2.0}},
    "seed": 1,
    "versions": {"tokenfleet": "0.1.0", "numpy": "2"},
    "sha256": {"demand": "d" * 64, "model": "m" * 64, "gpus": "g" * 64, "prices": "p" * 64},
}


def summary(values):
    quantile = {name: float(np.quantile(values, q)) for name, q in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95))}
    return LengthSummary(**quantile, p99=float(np.quantile(values, 0.99)), max=float(values.max()), mean=values.mean())


def profile(trace):
    return Workload(
        request_count=trace.request_count,
        duration_s=trace.duration_s,
        mean_rate_per_s=trace.request_count / trace.duration_s,
        peak_minute_rate_per_s=1.0,
        peak_minute_start_s=0.0,
        peak_to_mean_minute_requests=1.0,
        peak_to_mean_minute_tokens=1.0,
        interarrival_cv=1.0,
        input_tokens=summary(trace.input_tokens),
        output_tokens=summary(trace.output_tokens),
        joint_counts=np.zeros((1, 1), dtype=np.int64),
        input_edges=np.zeros(2),
        output_edges=np.zeros(2),
        minute_requests=np.zeros(1, dtype=np.int64),
        minute_input_tokens=np.zeros(1, dtype=np.int64),
        minute_output_tokens=np.zeros(1, dtype=np.int64),
        shareable_input_fraction=None,
        session_count=None,
        tenant_request_counts={},
        quality=Quality(rows_read=1, rows_kept=1, rows_dropped={}, detected={}, warnings=()),
        extra={},
    )


@pytest.fixture
def answered(toy_world):
    trace = toy.trace(count=600, rate=40.0)
    question = toy.question([toy.replica(slots=16)], [toy.price("h100_sxm", 3.0), toy.price("h100_sxm", 5.0)])
    return plan(question, trace), profile(trace)


@pytest.fixture
def document(answered):
    return contract_document(*answered, RESOLVED, made_on=DAY)


@pytest.fixture
def paper(document, tmp_path):
    path = tmp_path / "contract.yaml"
    write_contract(document, path)
    return path


def test_what_is_read_back_is_what_was_written(document, paper):
    assert read_contract(paper) == document
    assert [entry.name for entry in paper.parent.iterdir()] == ["contract.yaml"]


def test_it_says_what_a_person_asks(answered, document):
    made, _ = answered
    assert document["evidence"]["status"] == "UNPROVEN"
    assert document["evidence"]["load_test"] is None
    assert document["survives"]["replica"] == {
        "count": 1,
        "kept": True,
        "how": f"replay of the whole demand on {made.chosen.carrying_count} replicas; kept in its moment too",
    }
    assert document["survives"]["zone"]["kept"] is None
    assert document["scale_out"]["ready_after_s"] is document["scale_out"]["capacity_assured"] is None
    assert document["scale_out"]["source"] == "unknown"
    assert document["valid"]["until"] == DAY + timedelta(days=28)
    inside = (made.degraded.arrival_s >= made.peak_start_s) & (made.degraded.arrival_s < made.peak_end_s)
    tokens = made.degraded.input_tokens[inside].sum() / (made.peak_end_s - made.peak_start_s)
    assert document["workload"]["peak_input_tokens_per_s"] == pytest.approx(tokens)
    cost = document["cost"]
    parts = ("input", "cached", "output", "headroom", "idle", "spare")
    assert sum(cost[f"{part}_usd_per_hour"] for part in parts) == cost["total_usd_per_hour"]
    assert cost["low_usd_per_hour"] < cost["high_usd_per_hour"]


def test_the_paper_has_a_head_and_plain_yaml(document):
    text = contract_text(document)
    head = text.split("\n\n")[0]
    assert "UNPROVEN" in head
    assert "TTFT p99 <= 2 s" in head
    assert "valid     until 2026-12-27" in head
    assert "python" not in text
    assert "# Dollars per hour. input + cached + output + headroom + idle + spare = total." in text
    assert yaml.safe_load(text)["promise"]["error_rate_fraction"] == 0.001


def test_an_infeasible_plan_gives_none(toy_world):
    trace = toy.trace()
    made = plan(toy.question([toy.replica()], [toy.price("h100_sxm", 3.0)], promise=toy.slo(ttft=0.001)), trace)
    with pytest.raises(ValueError, match="infeasible"):
        contract_document(made, profile(trace), RESOLVED, made_on=DAY)


def test_it_holds_to_its_last_day(document):
    until = document["valid"]["until"]
    assert check_contract(document, today=until, resolved=RESOLVED).state == "valid"
    late = check_contract(document, today=until + timedelta(days=1), resolved=RESOLVED)
    assert late.state == "expired"
    assert "2026-12-27" in late.reasons[0]
    assert check_contract(document, today=DAY - timedelta(days=1)).state == "expired"


@pytest.mark.parametrize("what", ["demand", "model", "gpus", "prices"])
def test_a_change_of_what_it_rests_on_voids_it(document, what):
    changed = {**RESOLVED, "sha256": {**RESOLVED["sha256"], what: "0" * 64}}
    found = check_contract(document, today=DAY, resolved=changed)
    assert found.state == "void"
    assert found.reasons == (f"void: {what} changed since the contract was made",)


def test_a_changed_scenario_voids_it_a_new_version_does_not(document):
    changed = {**RESOLVED, "scenario": {**RESOLVED["scenario"], "slo": {"ttft_p99": 1.0}}}
    assert check_contract(document, today=DAY, resolved=changed).reasons == (
        "void: scenario changed since the contract was made",
    )
    newer = {**RESOLVED, "versions": {"tokenfleet": "9.9"}}
    assert check_contract(document, today=DAY, resolved=newer).state == "valid"


def test_clauses_are_judged_as_any_run_is(answered, document):
    made, _ = answered
    window = (made.peak_start_s, made.peak_end_s)
    kept = check_contract(document, today=DAY, record=made.degraded, window_s=window)
    assert kept.clauses == judge(made.degraded, made.question.slo, peak_only=True, window_s=window)
    assert kept.kept is True
    assert kept.exceeded == ()
    assert check_contract(document, today=DAY).kept is None


def test_a_run_beyond_the_contract_says_so(answered, document):
    made, _ = answered
    beyond = toy.replay(toy.grow(toy.trace(count=600, rate=40.0), 3.0), made.fleet, peak_window_s=(1.0, 4.0))
    found = check_contract(document, today=DAY, record=beyond, window_s=(1.0, 4.0))
    assert "requests/s arrived" in found.exceeded[0]


def test_mistakes_are_named_with_their_lines(paper):
    text = paper.read_text()
    text = text.replace("carrying_count:", "carying_count:").replace("tensor_parallel: 1", "tensor_parallel: 0")
    text = text.replace("error_rate_fraction: 0.001", "error_rate_fraction: 0.1 %")
    paper.write_text(text)
    with pytest.raises(BadInput) as caught:
        read_contract(paper)
    lines = text.splitlines()
    problems = [str(problem) for problem in caught.value.problems]
    for key in ("carying_count", "tensor_parallel", "error_rate_fraction"):
        number = next(index for index, line in enumerate(lines, 1) if key in line)
        assert any(f"{paper}:{number}: " in problem and key in problem for problem in problems), problems
    assert any("fleet.carrying_count: field required" in problem for problem in problems)


def test_what_is_no_contract_is_bad_input(tmp_path, paper):
    with pytest.raises(BadInput, match="cannot be read"):
        read_contract(tmp_path / "absent.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1\nb: 2\n")
    with pytest.raises(BadInput, match=r"broken.yaml:2: is not YAML"):
        read_contract(broken)
    for other in ("- 1\n", "name: x\nmodel: y\n"):
        broken.write_text(other)
        with pytest.raises(BadInput, match=r"is no contract.*name a contract.yaml") as caught:
            read_contract(broken)
        assert len(caught.value.problems) == 1
    with pytest.raises(BadInput, match=r"is a folder; name the contract.yaml in it"):
        read_contract(tmp_path)
    broken.write_text("name: x\n" + paper.read_text())
    with pytest.raises(BadInput, match="name is written twice"):
        read_contract(broken)


def test_the_machine_document_has_the_promised_names(answered):
    made, workload = answered
    document = plan_document(made, workload, RESOLVED)
    text = json.loads(json.dumps(document, allow_nan=False, default=float))
    assert text["feasible"] is True
    (group,) = text["fleet"]
    assert {"gpu", "gpu_count", "replica_count", "tensor_parallel", "precision"} <= set(group)
    assert group["gpu_count"] == made.chosen.gpu_count
    assert text["price_usd_per_hour"] == made.chosen.price_usd_per_hour
    loaded = text["price_usd_per_million_output_tokens"]
    assert loaded == pytest.approx(made.bill.usd_per_million_output_tokens, rel=1e-11)
    assert (text["binding_limit"], text["next_limit"]) == (made.limits[0].limit, made.limits[1].limit)
    names = {"name", "unit", "promised", "predicted", "predicted_low", "predicted_high", "kept"}
    assert all(names <= set(result) for result in text["slo"])
    assert [case["kept"] for case in text["redundancy"][:3]] == [True, True, True]
    assert text["reasons"] == []
    assert text["assumptions"]


def test_the_document_of_no_plan_has_the_same_names(toy_world):
    trace = toy.trace()
    made = plan(toy.question([toy.replica()], [toy.price("h100_sxm", 3.0)], promise=toy.slo(ttft=0.001)), trace)
    document = plan_document(made, profile(trace), RESOLVED)
    assert document["feasible"] is False
    assert document["fleet"] == []
    assert document["price_usd_per_hour"] is None
    assert document["binding_limit"] == "single_request"
    assert document["reasons"][0]["kind"] == "ttft_floor"
    json.dumps(document, allow_nan=False, default=float)
