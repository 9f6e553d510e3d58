"""Pools by interval: what each was, did and cost, and all of them together."""

import numpy as np
import polars as pl
import pytest

from tokenfleet.app.cli import main
from tokenfleet.app.pools_intervals import seen_tokens, system_intervals
from tokenfleet.app.pools_question import pool_system
from tokenfleet.app.scenario import load_scenario
from tokenfleet.domain.stages import Call
from tokenfleet.domain.trace import Trace
from tokenfleet.simulator import replay_stages

SCENARIO = """\
name: several
workload: {lengths: {input: 1500:4000, output: 100:250}, mean_rate: 4, peak_to_mean: 1, duration: 2min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s}
gpus: l40s
precision: fp8
prices: {usd_per_gpu_hour: {l40s: 2.0, l4: 1.0}}
events:
  - {pool: small, at: 60s, what: fail, replicas: 1, back_after: 5s}
pools:
  embed: {model: Qwen/Qwen3-Embedding-0.6B, gpu: l4, precision: bf16}
  small: {model: Qwen/Qwen3-0.6B, takes: {input_up_to: 1000}}
  main: {prefill: {replicas: 2}, decode: {replicas: 1}, link: infiniband_200g%s}
chain: {steps: [{pool: embed, input: 30:90}]}
"""


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("intervals")
    (folder / "several.yaml").write_text(SCENARIO % "")
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", str(folder / "several.yaml"), "-o", str(folder / "out"), "--interval", "1s", "--quiet"])
    assert stopped.value.code == 0
    names = ("fleet", "waits", "calls", "telemetry", "requests")
    return {name: pl.read_parquet(folder / "out" / f"{name}.parquet") for name in names}


def test_the_whole_is_the_sum_of_its_pools(tables) -> None:
    fleet = tables["fleet"]
    pools = fleet.drop_nulls("pool").group_by("time_s").agg(pl.col("ready_count", "decode_tokens_per_s").sum())
    whole = fleet.filter(pl.col("pool").is_null()).join(pools, on="time_s", suffix="_sum")
    busiest = whole.filter(pl.col("ready_count") == pl.col("ready_count_sum"))
    assert busiest.height > 100, "until the first pool has ended"
    np.testing.assert_allclose(whole["decode_tokens_per_s"], whole["decode_tokens_per_s_sum"])
    ends = tables["requests"]["status"]
    assert whole["rejected_count"].sum() == ends.str.starts_with("rejected").sum()
    assert whole["lost_count"].sum() == (ends == "lost").sum()
    assert whole["rejected_count"].sum() + whole["lost_count"].sum() == (ends != "finished").sum() > 0


def test_a_pool_that_fails_is_not_ready_and_costs_nothing(tables) -> None:
    small = tables["fleet"].filter(pl.col("pool") == "small")
    gone = small.filter(pl.col("time_s").is_between(61, 64))
    assert gone["ready_count"].to_list() == [0] * gone.height
    assert gone["rejected_count"].sum() > 0
    assert set(gone["usd_per_million_output_tokens"].to_list()) <= {None, 0.0}
    assert small["usd_per_million_output_tokens"].max() > 0.0


def test_nobody_pays_for_tokens_that_nobody_sees(tables) -> None:
    prices = tables["fleet"].group_by("pool").agg(pl.col("usd_per_million_output_tokens").count())
    known = {pool: count for pool, count in prices.iter_rows() if count}
    assert set(known) == {"small", "main-decode", None}


def test_every_call_waited_somewhere(tables) -> None:
    waits, calls = tables["waits"], tables["calls"]
    admitted = dict(waits.group_by("pool").agg(pl.col("scheduled_count").sum()).iter_rows())
    for name in ("embed", "main-prefill", "main-decode"):
        mine = calls.filter(pl.col("pool") == name)
        assert admitted[name] == mine.height
        longest = (mine["scheduled_s"] - mine["queued_s"]).max()
        assert waits.filter(pl.col("pool") == name)["wait_longest_s"].max() == pytest.approx(longest)
    assert waits["priority"].null_count() == waits.height


@pytest.mark.parametrize("more", ["", ", first_token: prefill"])
def test_tokens_that_users_see_are_counted_once(tmp_path, more) -> None:
    path = tmp_path / "several.yaml"
    path.write_text(SCENARIO % more)
    count = 60
    trace = Trace(
        arrival_s=np.arange(count) * 0.5,
        input_tokens=np.tile([800, 1200], count // 2).astype(np.int32),
        output_tokens=np.full(count, 50, dtype=np.int32),
    )
    found = pool_system(load_scenario(path), trace)
    run = replay_stages(trace, found.pools, telemetry_interval_s=1.0)
    intervals = system_intervals(run, found.pools, found.named, 1.0, {"l40s": 2.0, "l4": 1.0})
    calls = {stage.pool: stage for stage in found.pools.stages if isinstance(stage, Call)}
    tokens = {name: seen_tokens(calls[name], pool, intervals.pools[name].done) for name, pool in run.pools.items()}
    assert sum(int(each.sum()) for each in tokens.values()) == 50 * count
    whole = np.zeros(len(intervals.fleet.ready_count))
    for each in tokens.values():
        whole[: len(each)] += each
    usd = np.nansum(intervals.fleet.usd_per_million_output_tokens * whole) / 1e6
    hours = int((whole > 0).sum()) / 3600.0
    assert usd == pytest.approx(hours * (1.0 + 4 * 2.0))

    partly = system_intervals(run, found.pools, found.named, 1.0, {"l40s": 2.0})
    assert partly.pools["small"].fleet.usd_per_million_output_tokens is not None
    assert partly.fleet.usd_per_million_output_tokens is None, "the price of one gpu is not known"
