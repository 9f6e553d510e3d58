"""Levers on pools that a scenario names: each counted anew, in the pools where it can be pulled and does something."""

import json

import pytest

from commands import ended
from tokenfleet.app.named_levers import _Pools
from tokenfleet.app.scenario import load_scenario
from unit.app.named_pools import chain

CHAIN = chain(precision="bf16")
APART = """\
name: apart
workload: {lengths: {input: 900:2500, output: 60:120}, mean_rate: 6, duration: 60s}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s}
gpus: h200_sxm
batch: {takes: {share: 20%}}
pools:
  main: {prefill: {}, decode: {max_sequence_count: 32}, link: infiniband_200g}
"""


def levers(capsys, folder, text: str, *options: str) -> dict:
    path = folder / "it.yaml"
    path.write_text(text)
    code, out, err = ended(capsys, "levers", path, "--json", "--quiet", *options)
    assert (code, err) == (0, "")
    return json.loads(out)


def by_name(document: dict) -> dict[str, dict]:
    return {lever["name"]: lever for lever in document["levers"]}


def counts(pools: list[dict]) -> dict[str, int]:
    return {pool["who"]: pool["replica_count"] for pool in pools}


def test_each_lever_is_counted_anew_on_all_pools(capsys, tmp_path) -> None:
    document = levers(capsys, tmp_path, CHAIN, "--smaller-model", "Qwen/Qwen2.5-3B-Instruct", "--acceptance", "70%")
    found = by_name(document)
    assert document["base"] is None
    assert counts(document["base_pools"]) == {"rank": 2, "small": 2, "main": 3}
    assert document["base_usd_per_hour"] == pytest.approx(sum(p["price_usd_per_hour"] for p in document["base_pools"]))
    planned = [lever for lever in document["levers"] if lever["pools"]]
    prices = [lever["price_usd_per_hour"] for lever in planned]
    assert prices == sorted(prices)
    for lever in planned:
        assert lever["pools_slo"]["ttft_p95"] <= 0.9
        assert lever["saving_fraction"] == pytest.approx(
            1 - lever["price_usd_per_hour"] / document["base_usd_per_hour"]
        )
        assert lever["risk"]
    # A pool is changed where that saves a replica, and left alone elsewhere.
    fp8 = found["fp8 weights"]
    assert fp8["change"] == "precision: fp8 in main"
    assert {pool["who"]: pool["precision"] for pool in fp8["pools"]} == {"rank": "bf16", "small": "bf16", "main": "fp8"}
    assert counts(fp8["pools"]) == {"rank": 2, "small": 2, "main": 2}
    assert fp8["notes"] == [f"{name} stays as it is: no replica is saved there" for name in ("rank", "small")]
    assert found["fp8 KV cache"]["notes"][0] == "rank stays as it is: it keeps no KV"
    smaller = found["smaller or distilled model"]
    assert [pool["model"] for pool in smaller["pools"]][2] == "Qwen/Qwen2.5-3B-Instruct"
    assert smaller["notes"][1] == "small stays as it is: it serves Qwen/Qwen3-0.6B"
    assert "takes" in found["routing by tier"]["why_not"]
    assert "by its takes" in found["shorter prompts"]["notes"][0]
    assert found["output cap"]["notes"] == []
    assert found["prefix cache"]["why_not"] == "it is on already"
    assert found["batching window"]["why_not"] == "the planner chooses it already"
    assert "of l4, l40s: enter your contract's" in found["reservation, 3y"]["why_not"]
    assert found["speculative decoding"]["pools"]
    # A lever that is pulled gives what the scenario with it plans.
    path = tmp_path / "fp8.yaml"
    path.write_text(CHAIN.replace("precision: bf16\npools", "precision: fp8\npools"))
    code, out, _ = ended(capsys, "size", path, "--json", "--quiet")
    sized = json.loads(out)
    assert code == 0
    assert fp8["price_usd_per_hour"] == pytest.approx(sized["price_usd_per_hour"])
    assert fp8["pools_slo"] == {each["name"]: each["predicted"] for each in sized["peak"]["slo"]}


def test_a_pool_that_a_lever_makes_larger_is_left_as_it_is(capsys, tmp_path) -> None:
    """Weights of int4 save a replica where tokens are generated, and cost one where FP8 computes prompts faster."""
    text = """\
name: two
workload: {lengths: {input: 1200:4000, output: 120:400}, mean_rate: 14, peak_to_mean: 1.2, duration: 2min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 1.5s, tpot_p95: 40ms}
gpus: l40s
pools:
  long: {takes: {output_over: 150}, precision: bf16, max_batched_tokens: 2048}
  main: {precision: fp8, max_batched_tokens: 2048}
"""
    document = levers(capsys, tmp_path, text)
    base, int4 = counts(document["base_pools"]), by_name(document)["int4 weights"]
    assert int4["change"] == "precision: int4 in long"
    assert int4["notes"] == ["main stays as it is: no replica is saved there"]
    assert counts(int4["pools"]) == {"long": base["long"] - 1, "main": base["main"]}
    assert int4["saving_fraction"] > 0.1


def test_phases_go_together_and_what_a_person_fixed_is_freed(capsys, tmp_path) -> None:
    document = levers(capsys, tmp_path, APART, "--acceptance", "70%")
    found = by_name(document)
    assert [pool["kv_dtype"] for pool in found["fp8 KV cache"]["pools"]] == ["fp8", "fp8"]
    window = found["batching window"]
    assert window["change"].endswith("left to the planner in main-decode")
    assert window["price_usd_per_hour"] <= document["base_usd_per_hour"]
    assert "without drafts" in found["speculative decoding"]["why_not"]
    assert "nobody to choose among" in found["router"]["why_not"]
    # Three years of an H200 are on sale, one year is not; the pools stay as they are.
    reserved = found["reservation, 3y"]
    assert counts(reserved["pools"]) == counts(document["base_pools"])
    assert reserved["price_usd_per_hour"] != document["base_usd_per_hour"]
    assert "nobody publishes reserved_1y prices" in found["reservation, 1y"]["why_not"]


@pytest.mark.long
def test_another_router_is_planned_where_it_may_save_a_replica(capsys, monkeypatch, tmp_path) -> None:
    slow = CHAIN.replace("precision: bf16\npools", "router: round_robin\nprecision: bf16\npools")
    document = levers(capsys, tmp_path, slow)
    router = by_name(document)["router"]
    assert router["price_usd_per_hour"] <= document["base_usd_per_hour"]
    assert router["change"].startswith("router: ")
    tried = []

    def does(self: _Pools, router: str, counts: tuple[int, ...]) -> bool:
        tried.append((router, counts))
        return router == "least_kv"

    monkeypatch.setattr(_Pools, "_does_with_fewer", does)
    assert by_name(levers(capsys, tmp_path, slow, "--no-cache"))["router"]["change"].startswith("router: ")
    assert len({name for name, _ in tried}) == 7
    assert all(max(each) > 1 for _, each in tried)


def test_pools_that_keep_no_promise_are_an_answer(capsys, tmp_path) -> None:
    document = levers(capsys, tmp_path, CHAIN.replace("900ms", "20ms").replace("90s}", "20s}"))
    assert (document["base_pools"], document["base_usd_per_hour"]) == ([], None)
    assert "ttft_p95 is" in document["why_not"]
    assert all(lever["why_not"] and lever["saving_fraction"] is None for lever in document["levers"])
    code, out, _ = ended(capsys, "levers", tmp_path / "it.yaml", "--quiet")
    assert code == 0
    assert "no fleet keeps the promise: With more than enough replicas" in " ".join(out.split())


def test_a_person_sees_the_pools_that_change_with_their_models(capsys, tmp_path) -> None:
    path = tmp_path / "it.yaml"
    path.write_text(CHAIN)
    code, out, _ = ended(capsys, "levers", path, "--quiet")
    assert code == 0
    assert "main: 3 x l40s (bf16) of meta-llama/Llama-3.1-8B-Instruct" in out
    (fp8,) = [part for part in out.split("\n-") if "fp8 weights" in part]
    assert "main: 2 x l40s (fp8) of meta-llama/Llama-3.1-8B-Instruct, $3.10/h" in fp8
    assert "x l4 " not in fp8
    assert "3 pools, $6.10/h" in fp8
    assert "TTFT p95 0.86 s -> " in fp8


@pytest.mark.parametrize(
    ("more", "said"),
    [("also_try: {routers: any}", "also_try"), ("users: {count: 5, think: 1s}", "users")],
)
def test_what_no_plan_of_named_pools_takes_no_lever_takes(capsys, tmp_path, more, said) -> None:
    path = tmp_path / "it.yaml"
    path.write_text(f"{CHAIN}{more}\n")
    code, out, err = ended(capsys, "levers", path, "--quiet")
    assert (code, out) == (2, "")
    assert said in err


def test_nothing_is_drafted_where_nothing_is_generated(tmp_path) -> None:
    from tokenfleet.app.compose import demand_of
    from tokenfleet.app.pools_question import pool_system

    path = tmp_path / "it.yaml"
    path.write_text(CHAIN + "engine: {name: vllm, speculation: {tokens: 3, acceptance: 70%}}\n")
    asked = load_scenario(path)
    system = pool_system(asked, demand_of(asked)[0])
    drafts = {each.name: each.replica.deployment.engine.speculation is not None for each in system.named}
    assert drafts == {"rank": False, "small": True, "main": True}


def test_what_is_only_read_has_no_answers_to_cap_or_to_draft(capsys, tmp_path) -> None:
    rows = "".join(f"{0.05 * row:.2f},{300 + row % 200},0\n" for row in range(600))
    (tmp_path / "log.csv").write_text(f"time_s,input_tokens,output_tokens\n{rows}")
    text = """\
name: embed
workload: {trace: LOG, zero_output: keep}
model: BAAI/bge-m3
slo: {e2e_p95: 500ms}
gpus: l4
precision: bf16
pools: {main: {}}
"""
    found = by_name(levers(capsys, tmp_path, text.replace("LOG", str(tmp_path / "log.csv")), "--acceptance", "70%"))
    for name in ("output cap", "speculative decoding"):
        assert found[name]["why_not"] == "nothing is generated here"
    assert found["fp8 KV cache"]["why_not"] == "main stays as it is: it keeps no KV"
    assert found["prefix cache"]["why_not"] == "no pool keeps KV"
    assert found["shorter prompts"]["pools_slo"]["e2e_p95"] <= 0.5
