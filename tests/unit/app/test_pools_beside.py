"""Pools of a scenario on the same GPUs: what each gets of memory and time, what is counted once, what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from commands import ended
from tokenfleet import catalog
from tokenfleet.app.compose import demand_of
from tokenfleet.app.pool_trials import Tally, Trials, with_counts
from tokenfleet.app.pools_beside import hosts_of
from tokenfleet.app.pools_question import pool_system
from tokenfleet.app.scenario import load_scenario
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.trace import Trace
from tokenfleet.workload import grow, peak_window

SCENARIO = """\
name: shared
workload: {lengths: {input: 900:2500, output: 100:200}, mean_rate: 4, peak_to_mean: 1, duration: 2min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s}
gpus: h100_sxm
pools:
  embed: {model: Qwen/Qwen3-Embedding-0.6B, beside: main, memory_share: 10%}
  small: {model: Qwen/Qwen3-0.6B, beside: main, memory_share: 15%, takes: {input_up_to: 800}}
  main: {memory_share: 65%}
  apart: {model: BAAI/bge-reranker-v2-m3, gpu: l4}
chain:
  steps: [{pool: embed, input: 200:500}, {wait: 20ms}, {pool: apart, input: 300:500, calls: 3}]
"""
ROWS = Trace(
    arrival_s=np.arange(4.0),
    input_tokens=np.array([100, 2000, 100, 2000], dtype=np.int32),
    output_tokens=np.full(4, 5, dtype=np.int32),
)
EVENT = "events: [{pool: embed, at: 60s, what: fail, replicas: 1, back_after: 5s}]\n"
PEOPLE = """\
users: {count: 12, think: 1s}
batch: {takes: {output_over: 140}}
clients: {attempts: 5, backoff: 2s, reads: 60/s}
"""


def asked(tmp_path, text=SCENARIO):
    path = tmp_path / "shared.yaml"
    path.write_text(text)
    return load_scenario(path)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("beside")
    (folder / "shared.yaml").write_text(SCENARIO)
    (folder / "struck.yaml").write_text(SCENARIO + EVENT)
    (folder / "users.yaml").write_text(SCENARIO + EVENT + PEOPLE)
    apart = SCENARIO
    for share in (" beside: main, memory_share: 10%", " beside: main, memory_share: 15%,"):
        apart = apart.replace("," + share.rstrip(","), "")
    (folder / "two.yaml").write_text(apart.replace("{memory_share: 65%}", "{}"))
    return folder


def ran(capsys, folder, name):
    code, out, err = ended(capsys, "simulate", folder / f"{name}.yaml", "-o", folder / name, "--quiet")
    assert (code, err) == (0, "")
    return json.loads((folder / name / "summary.json").read_text()), " ".join(out.split())


def test_one_gpu_beside_three(capsys, simulated) -> None:
    shared, said = ran(capsys, simulated, "shared")
    apart, _ = ran(capsys, simulated, "two")
    assert (shared["gpu_count"], apart["gpu_count"]) == (2, 4)
    assert shared["finished_count"] == apart["finished_count"] == shared["request_count"]
    mine = {pool["name"]: pool for pool in shared["pools"]}
    own = {pool["name"]: pool for pool in apart["pools"]}
    assert [mine[name]["beside"] for name in ("embed", "small", "main", "apart")] == ["main", "main", None, None]
    assert mine["embed"]["stay_p95_s"] > 1.2 * own["embed"]["stay_p95_s"], "it waits for steps of the others"
    assert mine["apart"]["busy_fraction"] == pytest.approx(own["apart"]["busy_fraction"], rel=0.05)
    busy = sum(mine[name]["busy_fraction"] for name in ("embed", "small", "main"))
    assert max(mine[name]["busy_fraction"] for name in ("embed", "small", "main")) < busy <= 1.0
    assert f"The GPUs that main, embed, small share are busy {busy * 100:.3g} %" in said
    assert mine["embed"]["gpu_hours"] == mine["small"]["gpu_hours"] == 0.0
    assert mine["main"]["gpu_hours"] == pytest.approx(own["main"]["gpu_hours"], rel=0.05)
    assert "share GPUs by time slices (no MPS, no MIG)" in said


def test_the_gpus_are_paid_for_once(capsys, simulated) -> None:
    ran(capsys, simulated, "shared")
    ran(capsys, simulated, "two")
    prices = []
    for name in ("shared", "two"):
        rows = pl.read_parquet(simulated / name / "fleet.parquet")
        whole = rows.filter(pl.col("pool").is_null())["usd_per_million_output_tokens"].drop_nulls().drop_nans()
        prices.append(whole.median())
        if name == "shared":
            assert rows.filter(pl.col("pool") == "main")["usd_per_million_output_tokens"].null_count() > 0
    assert prices[0] < 0.6 * prices[1]


def test_a_failure_of_the_gpu_takes_all_its_engines(capsys, simulated) -> None:
    found, said = ran(capsys, simulated, "struck")
    for name in ("embed", "small", "main"):
        assert f"{name}, 60 s: replica 0 failed" in said
    assert "apart, 60 s" not in said
    lost = {pool["name"]: pool["lost_count"] for pool in found["pools"]}
    assert lost["main"] > 0
    assert lost["apart"] == 0
    assert f"{sum(lost.values())} lost with a replica; 0 requests were sent more than once" in said
    assert found["finished_count"] < found["request_count"]
    calls = pl.read_parquet(simulated / "struck" / "calls.parquet")
    reached = set(calls.filter(pl.col("pool").is_in(["small", "main"]))["request"])
    assert len(reached) < found["request_count"], "who is lost on the way goes no further"


def test_users_wait_for_the_end_of_their_way_and_come_back(capsys, simulated) -> None:
    found, _ = ran(capsys, simulated, "users")
    assert found["finished_count"] == found["request_count"]
    assert sum(pool["lost_count"] for pool in found["pools"]) > 0
    assert 0 < found["batch"]["finished_count"] < found["request_count"]
    rows = pl.read_parquet(simulated / "users" / "requests.parquet").sort("arrival_s")
    parts_s = sum(pool["mean_s"] for pool in found["pools"]) + found["transfer_mean_s"] + found["outside_mean_s"]
    awaited = rows.filter(pl.col("output_tokens") <= 140)
    assert parts_s == pytest.approx((awaited["finish_s"] - awaited["arrival_s"]).mean()), "batch is left aside"
    finish_s = np.sort(rows["finish_s"].to_numpy())
    arrival_s = rows["arrival_s"].to_numpy()
    in_flight = np.arange(1, len(rows) + 1) - np.searchsorted(finish_s, arrival_s, side="right")
    assert in_flight.max() == 12


def test_each_engine_has_its_share_of_the_memory(tmp_path) -> None:
    total = catalog.gpu("h100_sxm").memory_bytes
    for engine in ("vllm", "sglang"):
        system = pool_system(asked(tmp_path, SCENARIO + f"engine: {engine}\n"), ROWS)
        for pool, share in (("small", 0.15), ("main", 0.65)):
            terms = next(each for each in system.named if each.name == pool).replica.memory.terms_bytes
            assert terms["neighbours"] == pytest.approx((0.9 - share) * total)
            outside = ("neighbours", "reserve")
            # SGLang keeps graphs and activations outside its fraction.
            outside += ("cuda_graphs", "cuda_workspace", "activation_peak") if engine == "sglang" else ()
            paid = sum(size for name, size in terms.items() if name not in outside)
            assert paid == pytest.approx(share * total, rel=0.01)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (("memory_share: 65%", "memory_share: 80%"), r"pools.main.memory_share: main, embed, small may take 105%"),
        (("main: {memory_share: 65%}", "main: {replicas: 1}"), r"pools.main.memory_share: is not written"),
        (
            ("beside: main, memory_share: 15%", "beside: man, memory_share: 15%"),
            r'no other pool is called "man"; nearest',
        ),
        (("beside: main, memory_share: 15%", "beside: embed, memory_share: 15%"), "embed stands beside main itself"),
        (("memory_share: 65%", "memory_share: 65%, window: {opens: '22:00', closes: '06:00'}"), "pools.main.window"),
        (("memory_share: 10%", "memory_share: 10%, replicas: 2"), "2 replicas beside 1 of main"),
        (("memory_share: 10%", "memory_share: 10%, gpu: l4"), "pools.embed.gpu: l4, and it stands beside main"),
        (("memory_share: 65%", "memory_share: 65%, engine: trtllm"), "take vllm or sglang on shared GPUs"),
        (("gpu: l4}", "gpu: l4, memory_share: 50%}"), "pools.apart.memory_share: says what share of GPUs it takes"),
        (("gpu: l4}", "gpu: l4, router: round_robin}"), "pools: 2 routers"),
    ],
)
def test_what_shared_gpus_cannot_have(tmp_path, change, where) -> None:
    with pytest.raises(BadInput, match=where):
        hosts_of(asked(tmp_path, SCENARIO.replace(*change)))


def test_replicas_on_two_gpus_stand_beside_others_on_two(tmp_path) -> None:
    text = SCENARIO.replace("memory_share: 15%", "memory_share: 15%, tensor_parallel: 2")
    with pytest.raises(BadInput, match=r"pools.small.tensor_parallel: 2 GPUs a replica, and main has 1"):
        pool_system(asked(tmp_path, text), ROWS)


BUSY = (
    SCENARIO.replace("mean_rate: 4", "mean_rate: 12")
    .replace("duration: 2min", "duration: 1min")
    .replace("{ttft_p95: 2s}", "{ttft_p95: 250ms, tpot_p95: 14ms}")
)


def test_sizes_put_as_many_beside_a_pool_as_it_needs(capsys, tmp_path) -> None:
    path = Path(tmp_path / "shared.yaml")
    path.write_text(BUSY)
    code, out, err = ended(capsys, "size", path, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    sized = {pool["name"]: pool for pool in found["pools"]}
    carrying = {name: pool["carrying_replica_count"] for name, pool in sized.items()}
    assert carrying["embed"] == carrying["small"] == carrying["main"] > 1
    assert [sized[name]["beside"] for name in ("embed", "small", "main")] == ["main", "main", None]
    # GPUs that are shared are paid for once, with the spare ones of the pool that they are of.
    assert found["gpu_count"] == carrying["main"] + 1 + carrying["apart"] + 1
    paid = sized["main"]["price_usd_per_hour"] + sized["apart"]["price_usd_per_hour"]
    assert found["price_usd_per_hour"] == pytest.approx(paid)
    assert sized["embed"]["price_usd_per_hour"] == 0.0

    # With the engine's own steps one fewer of them all breaks the promise, or steps were made smaller for that.
    scenario, window_s = asked(tmp_path, BUSY), (found["peak"]["start_s"], found["peak"]["end_s"])
    usual = Trials(scenario, demand_of(scenario)[0], window_s, Tally())
    names = [named.name for named in usual.system.named]
    fewer = tuple(carrying[name] - (name != "apart") for name in names)
    assert not usual.enough(fewer)
    step = sized["main"]["fleet"][0]["max_batched_tokens"]
    smaller = BUSY.replace("{memory_share: 65%}", f"{{memory_share: 65%, max_batched_tokens: {step}}}")
    chosen = usual.with_asked(asked(tmp_path, smaller))
    assert chosen.enough(tuple(carrying[name] for name in names))
    assert not chosen.enough(fewer)


def test_counts_of_pools_on_shared_gpus_leave_each_its_own(tmp_path) -> None:
    text = SCENARIO.replace("gpu: l4}", "gpu: h100_sxm, memory_share: 50%}").replace(
        "  main: {",
        "  other: {model: Qwen/Qwen3-0.6B, beside: apart, memory_share: 20%, takes: {input_over: 2500}}\n  main: {",
    )
    longer = replace(ROWS, input_tokens=np.array([100, 2000, 100, 3000], dtype=np.int32))
    system = pool_system(asked(tmp_path, text), longer)
    counts = {"embed": 3, "small": 3, "main": 3, "apart": 2, "other": 2}
    pools = with_counts(system.pools, system.named, [counts[named.name] for named in system.named])
    assert {name: fleet.groups[0].replica_count for name, fleet in pools.fleets.items()} == counts
    berths = {name: fleet.groups[0].berth for name, fleet in pools.fleets.items()}
    assert berths["embed"] == berths["small"] == berths["main"]
    assert berths["apart"] == berths["other"]
    first, second = sorted({berths["main"], berths["apart"]})
    assert first == 0
    assert second == (3 if berths["main"] == 0 else 2)
    assert pools.gpu_count == 5


def test_a_cap_holds_for_what_shared_gpus_sustain_of_all_of_them(capsys, tmp_path) -> None:
    """The lowest cap of those on the same GPUs, at a demand denser by as much in all of them."""
    text = SCENARIO.replace("mean_rate: 4", "mean_rate: 16").replace("memory_share: 10%}", "memory_share: 10%, CAP}")
    text = text.replace("duration: 2min", "duration: 40s") + "engine: {name: vllm, max_batched_tokens: 8192}\n"
    path = Path(tmp_path / "shared.yaml")
    path.write_text(text.replace("CAP", "utilization_cap: 40%") + "utilization_cap: 70%\n")
    code, out, err = ended(capsys, "size", path, "--json", "--quiet")
    assert (code, err) == (0, "")
    found = json.loads(out)
    carrying = tuple(pool["carrying_replica_count"] for pool in found["pools"])
    assert "main, embed, small may take 40% of what their GPUs sustain" in " ".join(found["assumptions"])
    scenario = asked(tmp_path, text.replace(", CAP", ""))
    demand, _ = demand_of(scenario)
    denser = Trials(scenario, grow(demand, 1.0 / 0.4), peak_window(demand), Tally())
    assert denser.enough(carrying)
    names = [pool["name"] for pool in found["pools"]]
    fewer = tuple(count - (name != "apart") for name, count in zip(names, carrying, strict=True))
    assert min(fewer) >= 1
    assert not denser.enough(fewer)
