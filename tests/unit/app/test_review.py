"""One failing and one passing file for each rule."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from tokenfleet.app.cli import main
from tokenfleet.app.review import review
from tokenfleet.app.review_benchmark import fell_behind, impossible
from tokenfleet.app.review_files import Benchmark
from tokenfleet.app.review_rules import RULES
from tokenfleet.domain.errors import BadInput

SCENARIO = {
    "name": "good",
    "workload": {"lengths": {"input": "700:1500", "output": "140:300"}, "peak_rate": 5},
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "slo": {"ttft_p99": "2s", "itl_p99": "50ms"},
    "engine": {"name": "vllm", "context_limit": 8192},
}
PLAN = {
    "feasible": True,
    "fleet": [{"spare_replica_count": 1, "price_source": "own on_demand"}],
    "cost": {
        "total_usd_per_hour": 10.0,
        "headroom_usd_per_hour": 1.0,
        "idle_usd_per_hour": 1.0,
        "spare_usd_per_hour": 2.0,
    },
    "slo": [{"name": "ttft_p99", "promised": 2.0, "predicted_high": 1.5}],
    "warnings": [],
    "workload": {"request_count": 20_000},
    "resolved": {"scenario": {"workload": {"trace": ["day.csv"]}}},
}
SIZING = {
    "requests_per_s": 20,
    "peak_requests_per_s": 45,
    "requests_per_s_per_replica": 5,
    "input_tokens": "700:1500",
    "output_tokens": "140:300",
    "input_limit_tokens": 8192,
    "throughput_from": "load_test",
    "weights_gb": 70,
    "kv_cache_gb": 60,
    "replica_count": 10,
    "spare_replica_count": 1,
    "usd_per_million_tokens": 1.2,
    "usd_per_hour": 30,
    "scale_on": "queue_length",
    "scale_target": 4,
    "scale_signal_max": 100,
    "cold_start_s": 277,
    "startup_probe_s": 600,
    "zone_count": 2,
    "gpu_model_count": 1,
    "max_replica_count": 12,
    "gpus_per_replica": 1,
    "quota_gpus": 12,
    "engines_per_gpu": 2,
    "start_in_order": True,
}
BENCHMARK = {
    "completed": 5000,
    "failed": 0,
    "request_rate": 12.0,
    "burstiness": 0.5,
    "p99_ttft_ms": 800.0,
    "max_concurrency": None,
    "request_throughput": 11.8,
    "median_ttft_ms": 210.0,
    "median_itl_ms": 22.0,
}
SHORT, LONG = {"takes": {"input_up_to": 700}}, {"takes": {"input_over": 700}, "ttft_p50": "2s"}
ANSWERS = {"total_output_tokens": 1e6}
GOOD = {"scenario": SCENARIO, "plan": PLAN, "sizing": SIZING, "benchmark": BENCHMARK}
BAD = [
    ("sized-on-qps", "sizing", {"input_tokens": None}),
    ("sized-on-qps", "sizing", {"output_tokens": None, "requests_per_s_per_replica": None}),
    ("weights-only", "sizing", {"kv_cache_gb": None}),
    ("peak-benchmark", "sizing", {"throughput_from": "peak_benchmark"}),
    ("peak-benchmark", "benchmark", {"request_rate": "inf"}),
    ("peak-benchmark", "benchmark", {"request_rate": "inf", "max_concurrency": 5000}),
    ("no-rollout-room", "scenario", {"redundancy": {"replicas": "none"}}),
    ("no-rollout-room", "plan", {"fleet.0.spare_replica_count": 0}),
    ("no-rollout-room", "scenario", {"rollout": {"max_surge": 0, "max_unavailable": 2}}),
    (
        "no-rollout-room",
        "plan",
        {"redundancy": [{"kind": "rollout", "lost": "a new version, 3 replicas at a time", "kept": False}]},
    ),
    ("no-rollout-room", "sizing", {"spare_replica_count": 0}),
    ("token-price-only", "sizing", {"usd_per_hour": None}),
    ("mostly-idle", "plan", {"cost.idle_usd_per_hour": 6.0}),
    ("closed-loop", "benchmark", {"max_concurrency": 64, "request_rate": None}),
    # 12 a second of 5 s each make 60, and bursts up to 93.
    ("closed-loop", "benchmark", {"max_concurrency": 64, "mean_e2el_ms": 5000.0}),
    # The same from the first token and the gaps of 200 tokens.
    ("closed-loop", "benchmark", {"max_concurrency": 64, "mean_ttft_ms": 820.0, "mean_tpot_ms": 21.0, **ANSWERS}),
    ("closed-loop", "benchmark", {"max_concurrency": 64, "request_throughput": 10.0}),
    ("closed-loop", "benchmark", {"max_concurrency": 64, "request_throughput": 6.0, "mean_e2e_latency_ms": 10_000.0}),
    ("closed-loop", "benchmark", {"max_concurrency": 64, "request_rate": "trace", "concurrency": 50.0}),
    ("impossible-figures", "benchmark", {"request_throughput": 66.0}),
    ("impossible-figures", "benchmark", {"median_ttft_ms": 0.0}),
    ("impossible-figures", "benchmark", {"median_itl_ms": 0}),
    ("impossible-figures", "benchmark", {"p99_ttft_ms": 180.0}),
    ("impossible-figures", "benchmark", {"duration": 60.0}),
    ("impossible-figures", "benchmark", {"duration": 423.7, "total_output_tokens": 1e6, "output_throughput": 9980.0}),
    # 5,000 requests at 12 a second are sent in seven minutes; the run took fourteen, and nobody waited.
    ("impossible-figures", "benchmark", {"request_throughput": 6.0, "p99_e2el_ms": 4000.0}),
    ("fell-behind", "benchmark", {"request_throughput": 5.0, "median_ttft_ms": 180e3, "p99_ttft_ms": 500e3}),
    ("no-distribution", "scenario", {"workload.lengths.output": "300"}),
    ("no-distribution", "sizing", {"input_tokens": 1000}),
    ("average-not-peak", "scenario", {"workload.peak_to_mean": 1}),
    ("average-not-peak", "sizing", {"peak_requests_per_s": None}),
    ("average-not-peak", "sizing", {"peak_requests_per_s": 22}),
    # Nine carry 36 of the 45 requests a second: enough for the mean of 20.
    ("average-not-peak", "sizing", {"requests_per_s_per_replica": 4}),
    ("calm-arrivals", "scenario", {"workload.interarrival_cv": 1}),
    ("calm-arrivals", "benchmark", {"burstiness": 1.0}),
    ("no-tail-promise", "scenario", {"slo": {"ttft_p50": "1s"}}),
    ("no-tail-promise", "scenario", {"slo": {"classes": {"fast": SHORT | {"ttft_p99": "1s"}, "rest": LONG}}}),
    ("no-tail-promise", "benchmark", {"p99_ttft_ms": None}),
    ("no-tail-promise", "benchmark", {"p99_ttft_ms": float("nan")}),
    ("endless-queue", "scenario", {"slo": {"itl_p99": "50ms"}}),
    ("no-input-cap", "scenario", {"engine": "vllm"}),
    ("no-input-cap", "sizing", {"input_limit_tokens": None}),
    ("contradictory-promise", "plan", {"warnings": [{"text": "600 ms + 199 x 40 ms cannot fit 4 s"}]}),
    ("unsure-promise", "plan", {"slo.0.predicted_high": 2.1}),
    ("few-requests", "plan", {"workload.request_count": 300}),
    ("few-requests", "benchmark", {"completed": 300}),
    ("failures-left-out", "benchmark", {"failed": 12}),
    ("utilization-signal", "sizing", {"scale_on": "gpu_utilization"}),
    # A gauge that tops out at one slot with a target of two, and a target at the ceiling.
    ("unreachable-signal", "sizing", {"scale_target": 2, "scale_signal_max": 1}),
    ("unreachable-signal", "sizing", {"scale_target": 1, "scale_signal_max": 1}),
    ("probe-kills-start", "sizing", {"cold_start_s": 900}),
    ("spot-for-online", "scenario", {"prices": {"term": "spot"}}),
    ("spot-for-online", "scenario", {"buy": {"interruptible": "30%", "spot_lost": "5%"}}),
    ("spot-for-online", "plan", {"resolved.scenario.prices": {"term": "spot"}}),
    (
        "spot-for-online",
        "plan",
        {"cost.purchase": {"lines": [{"name": "spot", "mean_gpu_count": 2.0}], "spot_promised": ["ttft_p99"]}},
    ),
    ("single-zone", "sizing", {"zone_count": 1}),
    ("past-quota", "sizing", {"max_replica_count": 100}),
    ("past-quota", "sizing", {"max_replica_count": None, "quota_gpus": 9}),
    ("shared-gpu-start", "sizing", {"start_in_order": False}),
    ("drawn-demand", "plan", {"resolved.scenario.workload": {"preset": "chat"}}),
    ("reference-price", "plan", {"fleet.0.price_source": "median provider on_demand 2026-10"}),
]


def changed(kind, changes):
    document = copy.deepcopy(GOOD[kind])
    for key, value in changes.items():
        *above, last = [int(part) if part.isdigit() else part for part in key.split(".")]
        part = document
        for each in above:
            part = part[each]
        if value is None:
            del part[last]
        else:
            part[last] = value
    return document


def written(folder, kind, document) -> Path:
    path = folder / f"{kind}{'.json' if kind in ('plan', 'benchmark') else '.yaml'}"
    if path.suffix == ".json":
        path.write_text(json.dumps(document))
    else:
        path.write_text(yaml.safe_dump({"sizing": document} if kind == "sizing" else document))
    return path


@pytest.mark.parametrize("kind", GOOD)
def test_a_file_without_mistakes_passes_every_rule(tmp_path, kind):
    found = review(written(tmp_path, kind, GOOD[kind]))
    assert found.kind == kind
    assert found.findings == ()
    assert found.rule_count > 3


def test_one_run_a_line_is_a_report_where_there_is_one(tmp_path):
    run = json.dumps({**BENCHMARK, "backend": "sglang"}) + "\n"
    path = tmp_path / "runs.jsonl"
    path.write_text(run)
    assert review(path).findings == ()
    path.write_text(run * 2)
    with pytest.raises(BadInput, match="2 runs, one a line"):
        review(path)


@pytest.mark.parametrize(
    "changes",
    [
        # More than there are requests, more than ever were in flight, more than the rate can bring there.
        {"max_concurrency": 5000, "mean_e2el_ms": 5000.0},
        {"max_concurrency": 64, "mean_e2el_ms": 5000.0, "max_concurrent_requests": 61},
        {"max_concurrency": 200, "mean_e2el_ms": 5000.0},
        {"max_concurrency": 200, "request_rate": "trace", "concurrency": 50.0},
        {"max_concurrency": 64},
    ],
)
def test_a_limit_that_holds_nothing_back_makes_no_closed_loop(tmp_path, changes):
    assert review(written(tmp_path, "benchmark", {**BENCHMARK, **changes})).findings == ()


def test_what_a_limit_does_not_hold_back_is_looked_at_like_any_run(tmp_path):
    """The server fell behind, with half as many in flight as it would have been allowed to."""
    late = {"request_throughput": 5.0, "median_ttft_ms": 180e3, "p99_ttft_ms": 500e3, "mean_e2el_ms": 200e3}
    found = review(written(tmp_path, "benchmark", {**BENCHMARK, **late, "max_concurrency": 2000})).findings
    assert [each.rule.id for each in found] == ["fell-behind"]
    held = review(written(tmp_path, "benchmark", {**BENCHMARK, **late, "max_concurrency": 1000})).findings
    assert [each.rule.id for each in held] == ["closed-loop"]
    assert "at most 1,000 requests are in flight, and 5 a second were taken of 12" in held[0].found


def test_a_short_run_with_long_answers_did_not_fall_behind(tmp_path):
    """A hundred requests in ten seconds, each of which takes twenty: three a second, and nobody waited."""
    short = {"completed": 100, "request_rate": 10.0, "request_throughput": 3.3, "p99_e2el_ms": 20_000.0}
    found = review(written(tmp_path, "benchmark", {**BENCHMARK, **short})).findings
    assert [each.rule.id for each in found] == ["few-requests"]


@pytest.mark.parametrize(("count", "burstiness"), [(100, 1.0), (100, 0.25), (1000, 0.5)])
def test_gaps_drawn_at_random_make_no_figure_impossible(count, burstiness):
    """Honest clients of a server that keeps up: a hundred gaps add up to a third more or less than their mean."""
    random = np.random.default_rng(3)
    told = []
    for _ in range(300):
        sent_s = np.cumsum(random.gamma(burstiness, 0.5 / burstiness, count))
        answers_s = random.lognormal(0.0, 0.4, count)
        whole_s = float((sent_s + answers_s).max())
        run = Benchmark(
            completed=count,
            failed=0,
            request_rate="2.0",
            burstiness=burstiness,
            p99_ttft_ms=500.0,
            request_throughput=count / whole_s,
            duration_s=whole_s,
            latencies_ms={"median_ttft_ms": 100.0, "p99_e2el_ms": 1e3 * float(np.quantile(answers_s, 0.99))},
        )
        told.append(impossible(run) or fell_behind(run))
    assert sum(text is not None for text in told) <= 3


def test_a_slow_end_where_too_few_are_answered_is_unsure(tmp_path):
    found = {**GOOD["plan"], "slo": [{**GOOD["plan"]["slo"][0], "predicted_low": 0.7, "predicted_high": None}]}
    assert [each.rule.id for each in review(written(tmp_path, "plan", found)).findings] == ["unsure-promise"]


def test_a_deadline_is_a_promise_about_everybody_and_ends_every_wait(tmp_path):
    assert review(written(tmp_path, "scenario", {**SCENARIO, "slo": {"done_within": "4h"}})).findings == ()


@pytest.mark.parametrize(
    "changes",
    [
        # Two zones of which one may be lost are twice the fleet; a node takes a replica with it at least.
        {"redundancy": {"replicas": "none", "zones": "n+1"}, "zones": [{"name": "a"}, {"name": "b"}]},
        {"redundancy": {"replicas": "none", "nodes": "n+1"}},
        {
            "slo": {
                "classes": {"fast": SHORT | {"ttft_p99": "1s"}, "rest": LONG | {"ttft_p50": "2s", "tpot_p95": "60ms"}}
            }
        },
        {"slo": {"ttft_p95": "3s", "classes": {"rest": LONG}}},
        # Where nobody waits, neither a burst nor a lost replica breaks a promise by itself: a plan says what does.
        {"slo": {"done_within": "4h"}, "redundancy": {"replicas": "none"}},
        {"slo": {"done_within": "4h"}, "workload.peak_to_mean": 1, "workload.interarrival_cv": 1},
    ],
)
def test_what_is_no_mistake_is_none(tmp_path, changes):
    assert review(written(tmp_path, "scenario", changed("scenario", changes))).findings == ()


def test_what_a_plan_has_replayed_says_more_than_what_it_was_asked_for(tmp_path):
    lost = {"kind": "replica", "lost": "1 replica", "kept": True}
    bare = {"fleet.0.spare_replica_count": 0}
    kept = changed("plan", bare | {"redundancy": [lost, lost]})
    assert review(written(tmp_path, "plan", kept)).findings == ()
    broken = changed("plan", bare | {"redundancy": [lost, lost | {"kept": False}]})
    assert [each.rule.id for each in review(written(tmp_path, "plan", broken)).findings] == ["no-rollout-room"]


def test_clauses_of_classes_are_told_apart(tmp_path):
    row = {"name": "ttft_p99", "promised": 2.0, "predicted_high": 2.5}
    found = changed(
        "plan", {"slo": [row, row | {"traffic_class": "premium"}], "resolved.scenario.prices": {"term": "spot"}}
    )
    unsure, spot = review(written(tmp_path, "plan", found)).findings
    assert unsure.found.startswith("ttft_p99 and ttft_p99 of premium broken")
    assert spot.found.endswith("a promise of ttft_p99 and ttft_p99 of premium")


def test_few_requests_contradict_nothing(tmp_path):
    warned = [{"kind": "no_samples", "text": "The trace has only 60 requests"}]
    assert review(written(tmp_path, "plan", changed("plan", {"warnings": warned}))).findings == ()
    warned.append({"kind": "contradiction", "text": "e2e_p99 says nothing"})
    (found,) = review(written(tmp_path, "plan", changed("plan", {"warnings": warned}))).findings
    assert (found.rule.id, found.found) == ("contradictory-promise", "e2e_p99 says nothing")


@pytest.mark.parametrize(
    ("kind", "changes", "told"),
    [
        ("benchmark", {"completed": float("inf")}, "completed is inf"),
        ("benchmark", {"completed": -5}, "completed is -5"),
        ("benchmark", {"completed": 12.5}, "completed is 12.5"),
        ("benchmark", {"failed": True}, "could not convert"),
        ("benchmark", {"completed": 0}, "no request was answered"),
        ("benchmark", {"duration": 0.0}, "its duration is 0 s"),
        ("plan", {"workload.request_count": "many"}, "'many' is no number"),
        ("plan", {"slo.0.predicted_high": "2 s"}, "'2 s' is no number"),
        ("plan", {"slo.0.name": 5}, "5 is no text"),
        ("plan", {"cost.idle_usd_per_hour": None}, "'idle_usd_per_hour' is missing"),
        ("plan", {"fleet.0.spare_replica_count": True}, "True is no number"),
    ],
)
def test_odd_figures_of_a_file_are_its_fault(tmp_path, kind, changes, told):
    with pytest.raises(BadInput, match=told):
        review(written(tmp_path, kind, changed(kind, changes)))


def test_a_report_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(BENCHMARK), encoding="utf-8-sig")
    assert review(path).findings == ()


@pytest.mark.parametrize(("rule", "kind", "changes"), BAD)
def test_each_mistake_is_found_by_its_rule_alone(tmp_path, rule, kind, changes):
    found = review(written(tmp_path, kind, changed(kind, changes)))
    assert [finding.rule.id for finding in found.findings] == [rule]


def test_every_rule_is_tried_on_every_kind_of_file_it_knows():
    tried = {(rule, kind) for rule, kind, _ in BAD}
    known = {(rule.id, kind) for rule in RULES for kind in GOOD if getattr(rule, kind) is not None}
    assert tried == known


def test_every_rule_has_its_line_in_the_docs():
    page = (Path(__file__).parents[3] / "docs" / "review.md").read_text()
    assert [rule.id for rule in RULES if f"| `{rule.id}` |" not in page] == []


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(each) for each in arguments])
    return ended.value.code, capsys.readouterr()


def test_mistakes_exit_with_one_and_notes_with_zero(tmp_path, capsys):
    code, shown = run(capsys, "review", written(tmp_path, "sizing", changed("sizing", {"kv_cache_gb": None})))
    assert code == 1
    assert "weights-only" in shown.out
    code, shown = run(
        capsys, "review", written(tmp_path, "scenario", changed("scenario", {"engine": "vllm"})), "--json"
    )
    document = json.loads(shown.out)
    assert (code, document["kind"], document["findings"][0]["rule"]) == (0, "scenario", "no-input-cap")
    assert document["findings"][0]["severity"] == "note"


def test_what_is_none_of_the_four_is_refused(tmp_path):
    for name, text in (("a.json", "[]"), ("b.json", "{"), ("c.json", "{}"), ("d.yaml", "sizing: {replicas: 3}")):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(BadInput):
            review(path)
    with pytest.raises(BadInput):
        review(tmp_path / "nowhere.json")
    typo = tmp_path / "typo.yaml"
    typo.write_text("sizing:\n  replica_cuont: 3\n")
    with pytest.raises(BadInput, match="replica_count") as told:
        review(typo)
    assert "typo.yaml:2" in str(told.value)


@pytest.mark.parametrize(
    ("sheet", "told"),
    [
        ({}, "the sheet is empty"),
        ({"requests_per_s": 45, "peak_requests_per_s": 20}, "is below the mean"),
        ({"replica_count": 3, "spare_replica_count": 3}, "leave none"),
        ({"replica_count": 10, "max_replica_count": 4}, "at most, and 10 are there"),
    ],
)
def test_a_sheet_that_says_nothing_or_cannot_be_is_no_clean_sheet(tmp_path, sheet, told):
    with pytest.raises(BadInput, match=told):
        review(written(tmp_path, "sizing", sheet))


def test_our_own_plans_can_be_reviewed(tmp_path, capsys):
    path = tmp_path / "small.yaml"
    small = SCENARIO | {"gpus": "h100_sxm", "precision": "fp8", "tensor_parallel": 1}
    small["workload"] = SCENARIO["workload"] | {"duration": "4min"}
    small["slo"] = {"ttft_p99": "600ms", "itl_p99": "50ms", "e2e_p99": "4s"}
    path.write_text(yaml.safe_dump(small))
    code, _ = run(capsys, "plan", path, "-o", tmp_path / "made", "--quiet")
    assert code == 0
    found = review(tmp_path / "made")
    assert found == review(tmp_path / "made" / "plan.json")
    with pytest.raises(BadInput, match="is a contract"):
        review(tmp_path / "made" / "contract.yaml")
    assert found.kind == "plan"
    assert {"contradictory-promise", "drawn-demand", "few-requests"} <= {each.rule.id for each in found.findings}
