"""What holds pools up: a verdict for each, and which of them holds up the others."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from commands import ended

HEAD = """\
name: held
workload: {lengths: {input: %s, output: %s}, mean_rate: %s, peak_to_mean: 1, duration: 90s}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s}
gpus: l40s
precision: fp8
"""


@pytest.fixture
def diagnosed(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def of(text, *options):
        Path("held.yaml").write_text(text)
        code, out, err = ended(capsys, "simulate", "held.yaml", "-o", "out", "--quiet", "--interval", "200ms", *options)
        assert (code, err) == (0, "")
        return " ".join(out.split()), json.loads(Path("out/summary.json").read_text())

    return of


@pytest.mark.parametrize(
    ("head", "pools", "by", "verdict", "said"),
    [
        (
            ("4000:8000", "20:40", 8),
            "main: {prefill: {replicas: 1}, decode: {replicas: 1}, link: infiniband_200g}",
            "main-prefill",
            "prefill",
            "main-prefill holds the others up: prefill is saturated",
        ),
        (
            ("900:2000", "150:300", 12),
            "main: {prefill: {replicas: 3}, decode: {max_sequence_count: 16}, link: infiniband_200g}",
            "main-decode",
            "sequence_slots",
            "main-decode holds the others up: every sequence slot is taken",
        ),
        (
            ("9000:16000", "500:900", 2),
            "main: {prefill: {replicas: 4}, decode: {precision: bf16}, link: infiniband_400g}",
            "main-decode",
            "kv",
            "main-decode holds the others up: KV memory is full",
        ),
        (
            ("900:2000", "100:200", 6),
            "small: {model: Qwen/Qwen3-0.6B, takes: {input_up_to: 900}}\n  main: {replicas: 2}",
            None,
            "fine",
            "fine: no pool is slower than one with company takes",
        ),
    ],
)
def test_the_pool_that_is_saturated_holds_the_others_up(diagnosed, head, pools, by, verdict, said):
    out, found = diagnosed(HEAD % head + f"pools:\n  {pools}\n")
    peak = found["peak"]["diagnosis"]
    assert (peak["held_up_by"], peak["verdict"]) == (by, verdict)
    assert said in out
    assert peak["pools"].keys() == {pool["name"] for pool in found["pools"]}
    others = {name: each["verdict"] for name, each in peak["pools"].items() if name != by}
    assert set(others.values()) == {"fine"}
    if by is not None:
        assert f"More replicas of {by} help first." in peak["text"]
        assert peak["alarm"] == "emergency"


def test_a_pool_that_ranks_is_judged_by_the_end_of_its_calls(diagnosed):
    chain = "chain: {steps: [{pool: rank, input: 400:700, calls: 20}]}\n"
    pools = "pools:\n  rank: {model: BAAI/bge-reranker-v2-m3, gpu: l4}\n  main: {replicas: 2}\n"
    _, found = diagnosed(HEAD % ("900:2000", "50:100", 9) + pools + chain)
    rank = found["peak"]["diagnosis"]["pools"]["rank"]
    assert found["peak"]["diagnosis"]["held_up_by"] == "rank"
    assert rank["text"][0] == "the pool is saturated: calls wait for those before them."
    assert rank["ttft"]["factor"] > 3.0
    assert rank["itl"]["loaded_s"] is None
    calm = diagnosed(HEAD % ("900:2000", "50:100", 0.5) + pools + chain)[1]["peak"]["diagnosis"]["pools"]["rank"]
    assert calm["verdict"] == "fine"
    assert calm["ttft"]["factor"] < 3.0, "the twenty calls of one request are no congestion"


def test_a_link_that_cannot_carry_the_kv_is_named(diagnosed):
    pools = "main: {model: Qwen/Qwen1.5-7B-Chat, gpu: h100_sxm, prefill: {}, decode: {}, link: ethernet_100g_tcp}"
    out, found = diagnosed(HEAD % ("6000:7000", "20:30", 2.5) + f"pools: {{{pools}}}\n")
    peak = found["peak"]["diagnosis"]
    assert (peak["held_up_by"], peak["verdict"]) == ("ethernet_100g_tcp", "link")
    assert "ethernet_100g_tcp from main-prefill to main-decode holds the others up: the link is saturated" in out
    (link,) = peak["links"]
    # 524,288 bytes of KV a token over 4.5 GB/s.
    carried = 2.5 * pl.read_parquet("out/requests.parquet")["input_tokens"].mean() * 524_288 / 4.5e9
    assert link["asked_fraction"] == pytest.approx(carried, rel=0.15)


def test_the_neighbour_on_shared_gpus_is_named(diagnosed):
    pools = """pools:
  small: {model: Qwen/Qwen3-0.6B, beside: main, memory_share: 15%, takes: {input_up_to: 600}}
  main: {memory_share: 65%}
"""
    out, found = diagnosed(HEAD % ("900:2500", "150:300", 2.5) + pools)
    peak = found["peak"]["diagnosis"]
    assert (peak["held_up_by"], peak["verdict"]) == ("main", "shared_gpus")
    assert "main holds small up: steps of small wait for those of main on the same GPUs" in out


def test_one_replica_that_is_behind_is_no_want_of_more(diagnosed):
    pools = "pools:\n  rank: {model: BAAI/bge-reranker-v2-m3, gpu: l4}\n  main: {replicas: 4}\n"
    around = "router: round_robin\nevents: [{pool: main, at: 0s, what: slow, replicas: [2], factor: 9}]\n"
    chain = "chain: {steps: [{pool: rank, input: 400:700}]}\n"
    out, found = diagnosed(HEAD % ("900:2000", "50:100", 9) + pools + around + chain)
    peak = found["peak"]["diagnosis"]
    waiting = peak["pools"]["main"]["waiting_peak_count"]
    assert peak["held_up_by"] == "main"
    assert f"main holds the others up: replica 2 is behind, the pool is not: {waiting} wait there while" in out
    assert "An event slowed it down. The router, round_robin, sends there all the same" in out
    assert "Mending that replica helps first, not more of main." in out


def test_requests_without_output_are_judged_by_their_end_and_nobody_is_cut(diagnosed):
    rows = "".join(f"{index / 50},{400 + index},0\n" for index in range(600))
    Path("log.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    head = HEAD % (1, 1, 1)
    head = head.replace(head.splitlines()[1], "workload: {trace: log.csv, zero_output: keep}").replace("l40s", "l4")
    out, found = diagnosed(head)
    assert found["peak"]["diagnosis"]["verdict"] == "prefill"
    assert "the fleet is saturated: requests wait for those before them. More replicas" in out
    assert "promise e2e instead" in out
    assert "a limit cuts them" not in out
    out, found = diagnosed(head + "pools: {e: {}}\n")
    assert "promise e2e instead" in out
    peak = found["peak"]["diagnosis"]
    assert (peak["held_up_by"], peak["verdict"]) == ("e", "prefill")
    assert peak["pools"]["e"]["text"][0] == "the pool is saturated: calls wait for those before them."


def test_pools_say_who_got_no_answer_and_parts_of_the_others_add_up(diagnosed):
    pools = "main: {prefill: {}, decode: {}, link: infiniband_200g}"
    events = "events: [{pool: main-prefill, at: 20s, replicas: [0], back_after: 10s}]\n"
    out, found = diagnosed(HEAD % ("900:2000", "20:40", 2) + f"{events}pools: {{{pools}}}\n")
    assert found["rejected_count"] > 0
    assert "who is served is served in time, yet TTFT p95, errors break the promise" in out
    assert f"{found['rejected_count']} found no replica ready" in out
    finished = pl.read_parquet("out/requests.parquet").filter(pl.col("status") == "finished")
    mean_s = (finished["finish_s"] - finished["arrival_s"]).mean()
    parts = [pool["mean_s"] for pool in found["pools"]]
    assert sum(parts) + found["transfer_mean_s"] + found["outside_mean_s"] == pytest.approx(mean_s)


def test_one_pool_is_told_what_one_fleet_is(diagnosed):
    rng = np.random.default_rng(3)
    rows = [
        (t, rng.integers(400, 2500), rng.integers(50, 300), "ab"[rng.random() < 0.3]) for t in rng.uniform(0, 90, 900)
    ]
    lines = [f"{t:.3f},{inputs},{outputs},{tenant}" for t, inputs, outputs, tenant in sorted(rows)]
    Path("log.csv").write_text("\n".join(["arrival_s,input_tokens,output_tokens,tenant", *lines]) + "\n")
    head = HEAD % (1, 1, 1)
    head = head.replace(head.splitlines()[1], "workload: {trace: log.csv, max_output: 250}")
    head += "engine: {max_sequence_count: 40}\nclients: {attempts: 2, reads: 40/s}\nadmission: {queue_limit: 30}\n"
    alone, pooled = diagnosed(head)[1], diagnosed(head + "pools: {main: {replicas: 1}}\n")[1]
    for name in ("fairness", "itl_by_class_s", "preemption_count", "preempted_request_count", "at_max_output_count"):
        assert pooled[name] == alone[name], name
    for name in ("request_rate_per_s", "finish_rate_per_s", "output_tokens_per_s", "busy_fraction", "busy"):
        assert pooled[name] == pytest.approx(alone[name]), name
    for name in ("tokens_per_s", "e2e_p50_s", "e2e_p95_s"):
        assert pooled["reading"][name] == pytest.approx(alone["reading"][name])
    assert len(pooled["fairness"]["tenants"]) == 2
    assert pooled["pools"][0]["replicas"] == alone["replicas"]
    assert alone["at_max_output_count"] > 0
    for stretch in ("peak", "whole"):
        one, main = alone[stretch]["diagnosis"], pooled[stretch]["diagnosis"]["pools"]["main"]
        assert one["verdict"] == pooled[stretch]["diagnosis"]["verdict"] == "sequence_slots"
        own = {key: value for key, value in main.items() if key not in ("text", "prefill_fraction")}
        assert own == {key: one[key] for key in own}
        assert main["prefill_fraction"] == pytest.approx(one["prefill_fraction"], abs=0.05)


def test_where_only_those_who_are_too_long_break_the_promise_no_replicas_are_asked_for(diagnosed):
    head = (HEAD % ("900:2000", "150:300", 12)).replace("2s", "1h") + "engine: {context_limit: 3500}\n"
    pools = "main: {prefill: {replicas: 3}, decode: {max_sequence_count: 16}, link: infiniband_200g}"
    text = diagnosed(f"{head}pools: {{{pools}}}\n")[1]["peak"]["diagnosis"]["text"]
    assert text[0].startswith("main-decode holds the others up")
    assert text[-1].startswith("Who is served is served in time, yet errors break the promise: ")
    assert "longer than a replica takes" in text[-1]
    # Where they are so many that the quantile falls on them, those who are served may be late, too.
    text = diagnosed(f"{head.replace('3500', '2000')}pools: {{{pools}}}\n")[1]["peak"]["diagnosis"]["text"]
    assert text[-2].startswith("Without an answer: ")
    assert text[-1] == "More replicas of main-decode help first."
