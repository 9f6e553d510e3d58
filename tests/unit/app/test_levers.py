import json
from dataclasses import replace

import numpy as np
import pytest
import yaml

from tokenfleet.app.cli import main
from tokenfleet.app.cli.levers import _latency
from tokenfleet.app.levers import _easy, _prefix_cache, _routed, _shorter_prompts, _steps
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.domain.slo import LatencyTarget, Slo, TrafficClass
from tokenfleet.domain.trace import PrefixTree, Trace
from unit.planner import toy

SCENARIO = """
name: small
workload: {lengths: {input: "700:1500", output: "140:300"}, mean_rate: 8, duration: 4min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p99: 1s, itl_p99: 50ms}
gpus: l40s
precision: bf16
tensor_parallel: 1
engine: {name: vllm, max_batched_tokens: 4096, prefix_caching: false}
"""


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["levers", *arguments])
    return ended.value.code, capsys.readouterr()


def test_each_lever_is_planned_for_the_same_promise(tmp_path, capsys):
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    code, shown = run(capsys, str(path), "--json", "--smaller-model", "Qwen/Qwen2.5-3B-Instruct", "--output-cap", "100")
    assert code == 0
    document = json.loads(shown.out)
    levers = {lever["name"]: lever for lever in document["levers"]}
    assert {"fp8 weights", "fp8 KV cache", "smaller or distilled model", "output cap", "shorter prompts"} <= set(levers)
    assert {"prefix cache", "batching window", "reservation, 3y"} <= set(levers)
    assert "no shared prefix" in levers["prefix cache"]["why_not"]
    planned = [lever for lever in document["levers"] if lever["fleet"]]
    prices = [lever["price_usd_per_hour"] for lever in planned]
    assert prices == sorted(prices)
    for lever in planned:
        assert lever["fleet"]["slo"]["ttft_p99"] <= 1.0
        assert lever["fleet"]["slo"]["itl_p99"] <= 0.05
        assert lever["risk"]
        if document["base"]:
            before = document["base"]["price_usd_per_hour"]
            assert lever["saving_fraction"] == pytest.approx(1 - lever["price_usd_per_hour"] / before)
    smaller, base = levers["smaller or distilled model"]["fleet"], document["base"]
    assert base is None or smaller["price_usd_per_hour"] <= base["price_usd_per_hour"]
    assert levers["output cap"]["change"] == "at most 100 output tokens"
    routed = levers["routing by tier"]
    both = routed["fleet"]["price_usd_per_hour"] + routed["beside"]["price_usd_per_hour"]
    assert routed["price_usd_per_hour"] == pytest.approx(both)
    assert "Qwen/Qwen2.5-3B-Instruct" in routed["change"]
    assert routed["beside"]["slo"]["ttft_p99"] <= 1.0
    assert levers["router"]["change"].startswith("router: ")
    code, shown = run(capsys, str(path), "--quiet")
    assert code == 0
    assert "check: quality on your own tasks" in shown.out


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--prompt-cut", "lots"),
        ("--output-cap", "0"),
        ("--prompt-cut", "100%"),
        ("--routed-share", "0%"),
        ("--smaller-model", "Llama-0-Tiny"),
    ],
)
def test_a_lever_that_cannot_be_read_is_named(tmp_path, capsys, option, value):
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    code, shown = run(capsys, str(path), option, value)
    assert code == 2
    assert shown.err.startswith(option)


def test_a_reservation_that_somebody_sells_is_planned(tmp_path, capsys):
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO.replace("gpus: l40s", "gpus: h200_sxm"))
    code, shown = run(capsys, str(path), "--json")
    assert code == 0
    levers = {lever["name"]: lever for lever in json.loads(shown.out)["levers"]}
    assert levers["reservation, 3y"]["change"] == "prices: {term: reserved_3y}"
    assert levers["reservation, 3y"]["fleet"]
    assert "nobody publishes reserved_1y prices" in levers["reservation, 1y"]["why_not"]


def test_a_contract_of_ones_own_is_planned_and_paid_to_its_end(tmp_path, capsys):
    path = tmp_path / "small.yaml"
    found = {}
    for days in ("", ", believed_days: 146"):
        path.write_text(SCENARIO + f"buy: {{reserved_1y: {{l40s: 0.5}}{days}}}\n")
        code, shown = run(capsys, str(path), "--json")
        assert code == 0
        (found[days],) = (each for each in json.loads(shown.out)["levers"] if each["name"] == "reservation, 1y")
    usual, short = found.values()
    assert usual["change"] == "prices: {term: reserved_1y}, at the price under buy"
    assert usual["price_usd_per_hour"] == pytest.approx(0.5 * usual["fleet"]["gpu_count"])
    # Of 365 days that are paid 146 are of use.
    assert short["change"] == f"{usual['change']}, paid to its end for 146 days of use"
    assert short["price_usd_per_hour"] == pytest.approx(2.5 * usual["price_usd_per_hour"])


def test_where_only_deadlines_are_promised_no_line_is_empty():
    assert _latency((), ()) == "no latency is promised, only when work is done"


def test_speculation_is_planned_at_an_acceptance_that_was_measured_and_not_without(tmp_path, capsys):
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    for options, planned in (((), False), (("--acceptance", "80%", "--draft-tokens", "2"), True)):
        code, shown = run(capsys, str(path), "--json", *options)
        assert code == 0
        document = json.loads(shown.out)
        (lever,) = (each for each in document["levers"] if each["name"] == "speculative decoding")
        assert (lever["fleet"] is not None) == planned
        if planned:
            assert lever["change"] == "2 tokens drafted a step, 80% of them kept"
            assert lever["fleet"]["slo"]["itl_p99"] <= 0.05
        else:
            assert "--acceptance" in lever["why_not"]


def test_the_easy_requests_are_the_later_tiers_or_the_short_ones():
    rows = {"arrival_s": np.arange(8.0), "output_tokens": np.full(8, 5, dtype=np.int32)}
    trace = Trace(input_tokens=np.arange(100, 900, 100, dtype=np.int32), **rows)
    easy, who = _easy(trace, 0.25)
    assert (easy.tolist(), who) == ([True] * 2 + [False] * 6, "prompts up to 275 tokens")
    tiered = replace(trace, priority=np.array([0, 1, 2, 0, 1, 2, 0, 0], dtype=np.int32))
    easy, who = _easy(tiered, 0.25)
    assert (easy.tolist(), who) == ((tiered.priority > 0).tolist(), "every tier but the first")
    alike = replace(trace, priority=np.zeros(8, dtype=np.int32))
    assert _easy(alike, 0.5)[1] == "prompts up to 450 tokens"


def test_requests_that_are_sent_elsewhere_keep_the_promises_to_their_own_classes():
    trace = replace(
        Trace(
            arrival_s=np.arange(8.0),
            input_tokens=np.arange(100, 900, 100, dtype=np.int32),
            output_tokens=np.full(8, 5, dtype=np.int32),
        ),
        class_bits=np.array([1] * 4 + [2] * 4, dtype=np.int32),
        classes=("short", "long"),
    )
    targets = tuple(
        LatencyTarget(metric="ttft", quantile=0.9, limit_s=1.0, traffic_class=name) for name in trace.classes
    )
    classes = tuple(TrafficClass(name=name, takes="") for name in trace.classes)
    promise = Slo(latency=targets, error_rate_fraction=0.01, classes=classes)
    question = toy.question([toy.replica()], [toy.price("h100_sxm", 3.0)], promise=promise)
    scenario = Scenario.model_validate(yaml.safe_load(SCENARIO))
    made = _routed(scenario, question, trace, "Qwen/Qwen2.5-3B-Instruct", 0.5)
    assert [target.traffic_class for target in made.question.slo.latency] == ["long"]
    assert [target.traffic_class for target in made.beside[0].slo.latency] == ["short"]


def test_prompts_are_cut_past_what_they_share():
    trace = Trace(
        arrival_s=np.array([0.0, 1.0]),
        input_tokens=np.array([1000, 1000], dtype=np.int32),
        output_tokens=np.array([5, 5], dtype=np.int32),
        prefix_node=np.array([0, -1], dtype=np.int32),
        prefixes=PrefixTree(parent=np.array([-1], dtype=np.int32), token_count=np.array([600], dtype=np.int32)),
    )
    cut = _shorter_prompts(None, trace, 0.5).trace
    assert cut.input_tokens.tolist() == [800, 500]
    alone = _shorter_prompts(None, replace(trace, prefix_node=None, prefixes=None), 0.3).trace
    assert alone.input_tokens.tolist() == [700, 700]


def test_a_lever_that_is_pulled_already_is_named_with_the_reason():
    asked = replace(toy.question([toy.replica(caching=True)], []), vary_step_tokens=True)
    (cache,) = _prefix_cache(None, asked, toy.trace())
    assert (cache.name, cache.nothing) == ("prefix cache", "it is on already")
    (steps,) = _steps(None, asked, toy.trace())
    assert (steps.name, steps.nothing) == ("batching window", "the planner chooses it already")
