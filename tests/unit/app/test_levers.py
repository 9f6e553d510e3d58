import json
from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.app.cli import main
from tokenfleet.app.levers import _shorter_prompts
from tokenfleet.domain.trace import PrefixTree, Trace

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
    assert {"fp8 weights", "fp8 KV cache", "smaller model", "output cap", "shorter prompts"} <= set(levers)
    assert {"prefix cache", "batching window", "reservation, 3y"} <= set(levers)
    assert "no shared prefix" in levers["prefix cache"]["why_not"]
    planned = [lever for lever in document["levers"] if lever["fleet"]]
    prices = [lever["fleet"]["price_usd_per_hour"] for lever in planned]
    assert prices == sorted(prices)
    for lever in planned:
        assert lever["fleet"]["slo"]["ttft_p99"] <= 1.0
        assert lever["fleet"]["slo"]["itl_p99"] <= 0.05
        assert lever["risk"]
        if document["base"]:
            before = document["base"]["price_usd_per_hour"]
            assert lever["saving_fraction"] == pytest.approx(1 - lever["fleet"]["price_usd_per_hour"] / before)
    smaller, base = levers["smaller model"]["fleet"], document["base"]
    assert base is None or smaller["price_usd_per_hour"] <= base["price_usd_per_hour"]
    assert levers["output cap"]["change"] == "at most 100 output tokens"
    code, shown = run(capsys, str(path), "--quiet")
    assert code == 0
    assert "check: quality on your own tasks" in shown.out


@pytest.mark.parametrize(
    ("option", "value"), [("--prompt-cut", "lots"), ("--output-cap", "0"), ("--smaller-model", "Llama-0-Tiny")]
)
def test_a_lever_that_cannot_be_read_is_named(tmp_path, capsys, option, value):
    path = tmp_path / "small.yaml"
    path.write_text(SCENARIO)
    code, shown = run(capsys, str(path), option, value)
    assert code == 2
    assert shown.err.startswith(option)


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
