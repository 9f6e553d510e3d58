"""Several pools in a scenario, end to end: who serves what, what is written, how it adds up, what is refused."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from commands import ended
from tokenfleet.app import compose
from tokenfleet.app.cli import main
from tokenfleet.app.pool_sizes import size_pools
from tokenfleet.app.pool_trials import with_counts
from tokenfleet.app.pools_document import FILES
from tokenfleet.app.pools_question import pool_system, waits_s
from tokenfleet.app.pools_run import alone, late_count, promised
from tokenfleet.app.scenario import load_scenario
from tokenfleet.contract import judge
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.stages import Call, Hold, Transfer, Wait
from tokenfleet.domain.trace import Observed, Trace
from tokenfleet.simulator import replay_stages
from tokenfleet.simulator.viewing import Scraper
from unit.report.test_report import Page, in_order

SCENARIO = """\
name: several
workload:
  lengths: {input: 1500:4000, output: 100:250}
  mean_rate: 4
  duration: 3min
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s, itl_p99: 60ms, error_rate: 0.1%}
precision: fp8
pools:
  embed: {model: Qwen/Qwen3-Embedding-0.6B, gpu: l4, precision: bf16}
  rank: {model: BAAI/bge-reranker-v2-m3, gpu: l4, replicas: 2, precision: bf16}
  small: {model: Qwen/Qwen3-0.6B, gpu: l4, takes: {input_up_to: 1000}}
  main:
    gpu: l40s
    prefill: {replicas: 2}
    decode: {replicas: 1, max_sequence_count: 64}
    link: infiniband_200g
chain:
  takes: {share: 40%}
  steps:
    - {pool: embed, input: 30:90}
    - {wait: 20ms:80ms}
    - {pool: rank, input: 300:500, calls: 10}
"""
POOLS = ["embed", "rank", "small", "main-prefill", "main-decode"]


class Quiet:
    """Nobody listens."""

    def say(self, text) -> None: ...

    def step(self, step, /) -> None: ...

    def announce(self, text) -> None: ...


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pools")
    (folder / "several.yaml").write_text(SCENARIO)
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", str(folder / "several.yaml"), "-o", str(folder / "out"), "--quiet"])
    assert stopped.value.code == 0
    return folder / "out"


@pytest.fixture(scope="module")
def summary(simulated):
    return json.loads((simulated / "summary.json").read_text())


def written(tmp_path, text, name="several.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def demand(count=40, **columns) -> Trace:
    return Trace(
        arrival_s=np.arange(count) * 0.5,
        input_tokens=np.full(count, 1200, dtype=np.int32),
        output_tokens=np.full(count, 50, dtype=np.int32),
        **columns,
    )


class TestOneRun:
    def test_files_and_pools(self, simulated, summary) -> None:
        assert sorted(path.name for path in simulated.iterdir()) == sorted(FILES)
        assert [pool["name"] for pool in summary["pools"]] == POOLS
        assert summary["stages"] == "embed > wait > 10 x rank > small | main-prefill > transfer > main-decode"
        assert [pool["does"] for pool in summary["pools"]] == ["reads", "reads", "answers", "prefills", "decodes"]
        assert summary["gpu_count"] == 1 + 2 + 1 + 2 + 1

    def test_every_request_is_answered_once(self, simulated, summary) -> None:
        calls = pl.read_parquet(simulated / "calls.parquet")
        requests = pl.read_parquet(simulated / "requests.parquet")
        counts = dict(calls.group_by("pool").len().iter_rows())
        assert counts["small"] + counts["main-prefill"] == len(requests) == summary["request_count"]
        assert counts["rank"] == 10 * counts["embed"]
        small = calls.filter(pl.col("pool") == "small")
        assert small["input_tokens"].max() <= 1000
        assert calls.filter(pl.col("pool") == "main-prefill")["output_tokens"].max() == 1

    def test_what_users_see_is_what_the_pools_did(self, simulated) -> None:
        calls = pl.read_parquet(simulated / "calls.parquet")
        requests = pl.read_parquet(simulated / "requests.parquet")
        last = calls.group_by("request").agg(pl.col("finish_s").max())
        joined = requests.join(last, on="request", suffix="_call")
        np.testing.assert_array_equal(joined["finish_s"], joined["finish_s_call"])
        decode = calls.filter(pl.col("pool") == "main-decode").join(requests, on="request", suffix="_user")
        np.testing.assert_array_equal(decode["first_token_s"], decode["first_token_s_user"])

    def test_the_mean_request_adds_up(self, summary, simulated) -> None:
        requests = pl.read_parquet(simulated / "requests.parquet")
        mean_s = (requests["finish_s"] - requests["arrival_s"]).mean()
        parts = [pool["mean_s"] for pool in summary["pools"]]
        assert sum(parts) + summary["transfer_mean_s"] + summary["outside_mean_s"] == pytest.approx(mean_s)
        assert summary["transfer_mean_s"] > 0.0004

    def test_gauges_by_pool(self, simulated) -> None:
        gauges = pl.read_parquet(simulated / "telemetry.parquet")
        assert set(gauges["pool"]) == set(POOLS)
        calls = pl.read_parquet(simulated / "calls.parquet")
        arrived = gauges.group_by("pool").agg(pl.col("arrived_count").sum())
        for pool, count in arrived.iter_rows():
            assert count == len(calls.filter(pl.col("pool") == pool))

    def test_the_page_and_the_terminal_name_every_pool(self, simulated, capsys, tmp_path, monkeypatch) -> None:
        page = (simulated / "timeline.html").read_text()
        monkeypatch.chdir(tmp_path)
        code, out, _ = ended(capsys, "simulate", written(tmp_path, SCENARIO), "-o", "out")
        assert code == 0
        for name in POOLS:
            assert name in page
            assert f"{name} " in out
        assert "of a mean request:" in out
        assert "KV crosses infiniband_200g at 17.8 GB/s per GPU" in " ".join(out.split())


def test_the_same_seed_writes_the_same_bytes(simulated, tmp_path) -> None:
    path = written(tmp_path, SCENARIO)
    with pytest.raises(SystemExit):
        main(["simulate", str(path), "-o", str(tmp_path / "again"), "--quiet"])
    for name in ("calls.parquet", "requests.parquet", "telemetry.parquet", "summary.json", "gaps.json"):
        assert (tmp_path / "again" / name).read_bytes() == (simulated / name).read_bytes(), name


ONE = """\
name: one
workload: {lengths: {input: 800, output: 60}, mean_rate: 2, duration: 1min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s}
gpus: l40s
precision: fp8
"""


def system(tmp_path, text, trace):
    return pool_system(load_scenario(written(tmp_path, ONE + text)), trace)


class TestWhoTakesWhat:
    def test_by_model_label_and_tenant_of_the_log(self, tmp_path) -> None:
        observed = Observed(
            model=np.array([0, 1] * 20, dtype=np.int32),
            models=("tiny", "large"),
            label=np.array([0, 0, 1, 1] * 10, dtype=np.int32),
            labels=("chat", "batch"),
        )
        trace = demand(observed=observed, tenant=np.array([0] * 39 + [1], dtype=np.int32), tenants=("acme", "zeta"))
        text = (
            "pools:\n  z: {takes: {tenants: zeta}}\n  t: {takes: {models: tiny, labels: [chat]}}\n"
            "  b: {takes: {labels: batch}}\n  rest: {}\n"
        )
        calls = {stage.pool: stage for stage in system(tmp_path, text, trace).pools.stages}
        assert [int(calls[name].takes.sum()) for name in ("z", "t", "b", "rest")] == [1, 10, 19, 10]
        assert calls["t"].takes[:4].tolist() == [True, False, False, False]

    def test_names_that_the_log_does_not_have(self, tmp_path) -> None:
        observed = Observed(label=np.zeros(40, dtype=np.int32), labels=("chat",))
        with pytest.raises(BadInput, match='the demand has no "chatt"'):
            system(tmp_path, "pools: {a: {takes: {labels: chatt}}, b: {}}\n", demand(observed=observed))
        with pytest.raises(BadInput, match=r"pools.a.takes.models: the demand names none"):
            system(tmp_path, "pools: {a: {takes: {models: tiny}}, b: {}}\n", demand())

    def test_requests_that_nobody_takes(self, tmp_path) -> None:
        with pytest.raises(BadInput, match="40 requests are taken by no pool"):
            system(tmp_path, "pools: {a: {takes: {input_over: 2000}}}\n", demand())

    def test_a_share_is_drawn_with_the_seed(self, tmp_path) -> None:
        text = "pools: {a: {takes: {share: 30%}}, b: {}}\n"
        one, two = (system(tmp_path, text, demand(4000)).pools.stages[0].takes for _ in range(2))
        np.testing.assert_array_equal(one, two)
        assert one.mean() == pytest.approx(0.3, abs=0.03)


def test_prefill_and_decode_say_what_they_share_once(tmp_path) -> None:
    text = (
        "pools:\n  main: {gpu: h100_sxm, kv_dtype: fp8, prefill: {replicas: 2, max_batched_tokens: 4096}, "
        "decode: {gpu: h200_sxm}, link: nvlink, overlap: true, first_token: prefill}\n"
    )
    found = system(tmp_path, text, demand())
    prefill, decode = (each.fleet.groups[0] for each in found.named)
    assert (prefill.replica.deployment.gpu, decode.replica.deployment.gpu) == ("h100_sxm", "h200_sxm")
    assert (prefill.replica_count, decode.replica_count) == (2, 1)
    assert {each.replica.deployment.kv_precision for each in (prefill, decode)} == {"fp8"}
    assert prefill.replica.deployment.engine.max_batched_tokens == 4096
    assert [type(stage) for stage in found.pools.stages] == [Call, Transfer, Call]
    assert found.pools.stages[0].is_seen
    assert "layer by layer" in " ".join(found.notes)


def test_sglang_hands_its_first_token_over_and_vllm_does_not(tmp_path) -> None:
    text = "pools:\n  main: {{engine: {engine}, prefill: {{}}, decode: {{}}, link: infiniband_400g}}\n"
    seen = [system(tmp_path, text.format(engine=name), demand()).pools.stages[0].is_seen for name in ("sglang", "vllm")]
    assert seen == [True, False]


def test_nobody_looks_for_hours_between_requests_that_are_alone(monkeypatch, tmp_path) -> None:
    looks, look = [], Scraper.scrape
    monkeypatch.setattr(Scraper, "scrape", lambda scraper: (looks.append(scraper), look(scraper)))
    found = system(tmp_path, "router: least_waiting\npools: {main: {}}\n", demand())
    count = found.trace.request_count
    alone(found.trace, found.pools, np.ones(count, dtype=np.bool_))
    assert 0 < len(looks) <= 2 * count


class TestImages:
    TEXT = "pools: {main: {model: Qwen/Qwen3-VL-8B-Instruct, precision: bf16}}\nimages: {tokens: 1000, count: 1.5%s}\n"

    def test_their_tokens_are_in_the_prompt(self, tmp_path) -> None:
        found = system(tmp_path, self.TEXT % ", takes: {share: 50%}", demand(2000))
        extra = found.trace.input_tokens - 1200
        assert set(extra.tolist()) == {0, 1000, 2000}
        assert extra.mean() == pytest.approx(750, rel=0.1)

    def test_the_tower_costs_the_replicas_that_answer_time_or_has_a_pool(self, tmp_path) -> None:
        trace = demand()
        plain = system(tmp_path, self.TEXT.split("images")[0], trace).named[0].replica.step_time.token_ps
        inside = system(tmp_path, self.TEXT % "", trace).named[0].replica.step_time.token_ps
        apart = system(tmp_path, self.TEXT % ", encoder: {gpu: l4}", trace)
        assert (inside[1:] > plain[1:]).all()
        np.testing.assert_array_equal(apart.named[1].replica.step_time.token_ps, plain)
        images, answer = apart.pools.stages
        assert (images.pool, images.is_seen, answer.pool) == ("images", False, "main")
        assert (images.input_tokens[images.takes] >= 1000).all()

    def test_a_gpu_for_the_tower_holds_the_tower_alone(self, tmp_path) -> None:
        large = self.TEXT.replace("-8B-Instruct, precision: bf16", "-32B-Instruct, gpu: h100_sxm, tensor_parallel: 2")
        memory = system(tmp_path, large % ", encoder: {gpu: l4}", demand()).named[0].replica.memory
        assert (memory.fits, memory.kv_capacity_tokens) == (True, 0)
        assert memory.weights_bytes < 2e9
        assert sum(memory.terms_bytes.values()) == memory.total_bytes
        with pytest.raises(BadInput, match="The image tower and the runtime need"):
            system(tmp_path, "engine: {memory_utilization: 4%}\n" + large % ", encoder: {gpu: l4}", demand())

    def test_a_model_without_a_tower(self, tmp_path) -> None:
        with pytest.raises(BadInput, match="no image tower"):
            system(tmp_path, "pools: {main: {}}\nimages: {tokens: 1000}\n", demand())
        small = "pools:\n  small: {takes: {share: 50%}}\n  main: {model: Qwen/Qwen3-VL-8B-Instruct, precision: bf16}\n"
        with pytest.raises(BadInput, match=r"pools\.small\.takes: [0-9]+ requests with images come to meta-llama"):
            system(tmp_path, small + "images: {tokens: 1000, encoder: {gpu: l4}}\n", demand())


class TestNight:
    TEXT = 'pools:\n  night: {takes: {share: 50%}, window: {opens: "22:00", closes: "6:30"}}\n  day: {}\n'

    def test_requests_wait_for_the_window(self, tmp_path) -> None:
        found = system(tmp_path, self.TEXT, demand(start_utc="2026-11-30T21:59:50Z"))
        hold = next(stage for stage in found.pools.stages if isinstance(stage, Hold))
        assert (hold.opens_s, hold.closes_s, hold.start_s) == (79_200.0, 23_400.0, 79_190.0)
        run = replay_stages(found.trace, found.pools)
        assert run.pools["night"].trace.arrival_s.min() == 10.0
        assert run.pools["day"].trace.arrival_s.min() < 10.0

    def test_the_promise_is_about_those_who_do_not_wait(self, tmp_path) -> None:
        found = system(tmp_path, self.TEXT, demand(start_utc="2026-11-30T21:00:00Z"))
        run = replay_stages(found.trace, found.pools, peak_window_s=(0.0, 5.0))
        told = promised(found, run)
        held = next(stage for stage in found.pools.stages if isinstance(stage, Hold)).takes
        assert len(told.arrival_s) == int((~held).sum())
        assert told.ttft_s.max() < 1.0 < run.record.ttft_s.max()
        assert told.gaps.count.sum() == 49 * int((~held).sum())
        assert told.peak_gaps.count.sum() <= told.gaps.count.sum()

    def test_without_dates_second_0_is_midnight_and_the_window_is_open(self, tmp_path) -> None:
        found = system(tmp_path, self.TEXT, demand())
        assert "taken for midnight" in " ".join(found.notes)
        hold = next(stage for stage in found.pools.stages if isinstance(stage, Hold))
        assert late_count(np.array([10.0, 23_400.0, 23_401.0, np.nan]), hold) == 1


def test_waits_have_the_quantiles_that_were_written() -> None:
    random = np.random.default_rng(1)
    assert waits_s("30ms", random, 3).tolist() == [0.03] * 3
    drawn = waits_s("20ms:80ms", random, 20_000)
    assert np.median(drawn) == pytest.approx(0.02, rel=0.05)
    assert np.quantile(drawn, 0.95) == pytest.approx(0.08, rel=0.05)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("chain: {steps: [{wait: 1s}]}\n", "chain without pools"),
        ("pools: {a: {prefill: {replicas: 1}}}\n", "prefill, decode and link go together"),
        ("pools: {a: {prefill: {}, decode: {}, link: infiniband}}\n", 'unknown link "infiniband"'),
        ("pools: {a: {replicas: 2, prefill: {}, decode: {}, link: nvlink}}\n", "say it inside each of them"),
        ("pools: {a: {overlap: true}}\n", "says how KV is handed over, and has one pool"),
        ("pools: {a: {replica: 2}}\n", "unknown key; nearest: replicas"),
        ("pools: {a: {}}\nchain: {steps: [{pool: a, wait: 1s}]}\n", "exactly one of pool and wait"),
        ("pools: {a: {}}\nchain: {steps: [{pool: a, inputs: 3}]}\n", "unknown key; nearest: input"),
        ("pools: {a: {}}\nchain: {steps: [{wait: 80ms:20ms}]}\n", "write a time (30ms), or median and p95"),
        ('pools: {a: {window: {opens: "25:00", closes: "6:00"}}}\n', "is no time of day"),
        ('pools: {a: {window: {opens: "06:00", closes: "6:00"}}}\n', "opens and closes at one time"),
        ("pools: {a: {}}\nchain: {steps: [{pool: b}]}\n", 'no pool is called "b"; nearest: a'),
        ("pools: {a: {}}\nchain: {steps: [{pool: a}]}\n", "none answers"),
        ("pools: {a: {model: BAAI/bge-m3, precision: bf16}}\n", "generates nothing"),
        ("pools: {a: {}, b: {}}\n", "pools.b: is left no request"),
        ("pools: {a: {gpu: l4, tensor_parallel: 1, model: Qwen/Qwen3-32B}}\n", "pools.a.gpu"),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_its_mend(text, said, capsys, tmp_path) -> None:
    code, _, err = ended(capsys, "simulate", written(tmp_path, ONE + text), "-o", tmp_path / "out")
    assert code == 2
    assert said in " ".join(err.split())
    assert not (tmp_path / "out").exists()


def test_options_that_name_a_fleet_and_commands_that_search_one_refuse_pools(capsys, tmp_path) -> None:
    path = written(tmp_path, ONE + "pools: {a: {}}\n")
    code, _, err = ended(capsys, "simulate", path, "--replicas", "2", "-o", tmp_path / "out")
    assert code == 2
    assert "--replicas: does not go with the scenario's pools" in " ".join(err.split())
    code, _, err = ended(
        capsys, "check-claim", "disaggregation", "--scenario", path, "--claimed", "2x", "--link", "nvlink"
    )
    assert code == 2
    assert "the claim is about one fleet" in " ".join(err.split())
    assert "tokenfleet size counts" in " ".join(err.split())


def test_wait_and_call_stand_in_the_order_written(tmp_path) -> None:
    text = (
        "pools: {r: {model: Qwen/Qwen3-Reranker-0.6B, precision: bf16}, a: {}}\n"
        "chain: {steps: [{wait: 10ms}, {pool: r, calls: 3}, {wait: 5ms}]}\n"
    )
    found = system(tmp_path, text, demand())
    kinds = [type(stage) for stage in found.pools.stages]
    assert kinds == [Wait, Call, Wait, Call]
    assert found.pools.stages[1].call_count == 3
    assert Path(found.named[0].model.name).name == "Qwen3-Reranker-0.6B"


SIZED = """\
name: sized
workload: {lengths: {input: 1500:3000, output: 100:200}, mean_rate: 12, duration: 4min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 1500ms, itl_p99: 50ms, error_rate: 0.1%}
gpus: l40s
precision: fp8
redundancy: {replicas: n+1}
pools:
  rank: {model: BAAI/bge-reranker-v2-m3, gpu: l4, precision: bf16}
  main: {prefill: {}, decode: {}, link: infiniband_200g}
chain: {steps: [{pool: rank, input: 300, calls: 20}]}
"""


STEPS = """\
name: steps
workload: {lengths: {input: 1500:3000, output: 100:200}, mean_rate: 6, duration: 3min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s, itl_p99: 60ms, error_rate: 0.1%}
gpus: l40s
precision: fp8
pools: {main: {}}
"""


def test_smaller_steps_are_tried_where_nobody_fixed_them(tmp_path) -> None:
    found = size_pools(load_scenario(written(tmp_path, STEPS)), Quiet())
    (free,) = found.pools
    steps = free.named.replica.deployment.engine.max_batched_tokens
    fixed_text = STEPS.replace("main: {}", "main: {max_batched_tokens: 2048}")
    (fixed,) = size_pools(load_scenario(written(tmp_path, fixed_text)), Quiet()).pools
    assert fixed.named.replica.deployment.engine.max_batched_tokens == 2048
    assert steps < 2048
    assert free.carrying_count < fixed.carrying_count
    said = f"The pool main takes steps of {steps:,} tokens (by default 2,048)"
    assert any(said in text for text in found.assumptions)
    assert all(result.kept for result in (*found.peak, *found.whole))


DECODE = """\
name: decode
workload: {lengths: {input: 1500:3000, output: 200:400}, mean_rate: 12, duration: 4min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 3s, itl_p99: 22ms, error_rate: 0.1%}
gpus: l40s
precision: fp8
pools: {main: {prefill: {}, decode: {}, link: infiniband_200g}}
"""


def test_fewer_sequences_at_once_let_fewer_replicas_decode(tmp_path) -> None:
    found = size_pools(load_scenario(written(tmp_path, DECODE)), Quiet())
    fixed_text = DECODE.replace("decode: {}", "decode: {max_sequence_count: 256}")
    fixed = size_pools(load_scenario(written(tmp_path, fixed_text)), Quiet())
    free, usual = found.pools[1], fixed.pools[1]
    slots = free.named.replica.deployment.engine.max_sequence_count
    assert usual.named.replica.deployment.engine.max_sequence_count == 256
    assert slots < 256
    assert free.carrying_count < usual.carrying_count
    assert any(
        f"The pool main-decode takes at most {slots} sequences at once (by default 256)" in text
        for text in found.assumptions
    )
    assert all(result.kept for result in (*found.peak, *found.whole))


def test_a_pool_with_a_cap_is_tried_with_other_steps_too(tmp_path) -> None:
    capped_text = STEPS.replace("main: {}", "main: {utilization_cap: 70%}")
    found = size_pools(load_scenario(written(tmp_path, capped_text)), Quiet())
    (capped,) = found.pools
    tokens = capped.named.replica.deployment.engine.max_batched_tokens
    fixed_text = STEPS.replace("main: {}", f"main: {{utilization_cap: 70%, max_batched_tokens: {tokens}}}")
    (fixed,) = size_pools(load_scenario(written(tmp_path, fixed_text)), Quiet()).pools
    assert tokens < 2048
    assert capped.carrying_count == fixed.carrying_count
    (open_pool,) = size_pools(load_scenario(written(tmp_path, STEPS)), Quiet()).pools
    assert capped.carrying_count > open_pool.carrying_count


def test_a_cap_that_no_number_keeps_is_told(tmp_path, monkeypatch) -> None:
    text = STEPS.replace("main: {}", "main: {utilization_cap: 70%}")
    told = "No number of replicas tried keeps main below its utilization_cap of 70%"
    usual = size_pools(load_scenario(written(tmp_path, text)), Quiet())
    assert not any(told in line for line in usual.assumptions)
    # As where latency does not fall with more replicas: none of those tried keeps the denser demand.
    monkeypatch.setattr("tokenfleet.app.pool_sizes.caps_of", lambda *_: iter(()))
    found = size_pools(load_scenario(written(tmp_path, text)), Quiet())
    assert found.pools
    assert [told in line for line in found.assumptions].count(True) == 1


def test_sizes_say_which_zones_are_missing(tmp_path):
    zones = "redundancy: {zones: n+1}\nzones: [{name: a, region: eu}, {name: b, region: us}]\ndata_region: eu\n"
    text = STEPS.replace("mean_rate: 6", "mean_rate: 1") + zones
    with pytest.raises(BadInput) as raised:
        size_pools(load_scenario(written(tmp_path, text)), Quiet())
    said = str(raised.value)
    assert said.startswith("zones: ")
    assert "1 zone can serve without the others (b outside of eu does not)" in said


@pytest.fixture(scope="module")
def sized(tmp_path_factory):
    path = written(tmp_path_factory.mktemp("sized"), SIZED)
    return load_scenario(path), size_pools(load_scenario(path), Quiet())


class TestSizes:
    def test_the_promise_is_kept_with_the_spare_gone(self, sized) -> None:
        _, found = sized
        assert [pool.named.name for pool in found.pools] == ["rank", "main-prefill", "main-decode"]
        assert [pool.spare_count for pool in found.pools] == [1, 1, 1]
        assert all(result.kept for result in (*found.peak, *found.whole))
        prices = [pool.price_usd_per_hour for pool in found.pools]
        assert found.price_usd_per_hour == pytest.approx(sum(prices))
        assert sum(pool.carrying_count for pool in found.pools) > 3

    def test_one_replica_fewer_anywhere_breaks_it(self, sized) -> None:
        asked, found = sized
        text, _ = compose.demand(asked.workload, asked.seed)
        built = pool_system(asked, text)
        counts = [pool.carrying_count for pool in found.pools]
        for index, count in enumerate(counts):
            if count == 1:
                continue
            fewer = [*counts[:index], count - 1, *counts[index + 1 :]]
            run = replay_stages(
                built.trace, with_counts(built.pools, built.named, fewer), peak_window_s=found.peak_window_s
            )
            broken = [not each.kept for each in judge(run.record, asked.slo.targets())]
            peak = judge(run.record, asked.slo.targets(), peak_only=True, window_s=found.peak_window_s)
            assert any(broken) or not all(each.kept for each in peak)

    def test_the_command_says_it_to_people_and_machines(self, sized, capsys, tmp_path) -> None:
        _, found = sized
        path = written(tmp_path, SIZED)
        code, out, _ = ended(capsys, "size", path, "--quiet", "--report", tmp_path / "sizes.html")
        assert code == 0
        words = " ".join(out.split())
        page = Page((tmp_path / "sizes.html").read_text())
        in_order(
            page.text, "How many of each pool", f"{len(found.pools)} pools keep the promise with the spare", "kept"
        )
        in_order(page.text, *(f"{pool.named.name} {pool.named.does} {pool.named.model.name}" for pool in found.pools))
        assert "filled" in page.figures
        assert len(page.ids) == len(set(page.ids))
        for pool in found.pools:
            assert f"{pool.named.name} {pool.named.does}: {pool.named.model.name} on" in words
        assert "1 of them spare" in words
        code, out, _ = ended(capsys, "size", path, "--json")
        document = json.loads(out)
        assert document["feasible"]
        assert document["price_usd_per_hour"] == pytest.approx(found.price_usd_per_hour)
        assert [pool["carrying_replica_count"] for pool in document["pools"]] == [
            pool.carrying_count for pool in found.pools
        ]

    def test_none_may_do_and_one_fleet_is_for_plan(self, capsys, tmp_path) -> None:
        path = written(tmp_path, SIZED.replace("ttft_p95: 1500ms", "ttft_p95: 20ms"))
        code, out, _ = ended(capsys, "size", path, "--quiet", "--report", tmp_path / "none.html")
        assert code == 0
        assert "no counts up to 64 times those of the scenario keep the promise" in " ".join(out.split())
        page = Page((tmp_path / "none.html").read_text())
        in_order(page.text, "No counts up to 64 times", "TTFT p95", "20 ms", "broken", "What was assumed")
        assert page.figures == {}
        code, _, err = ended(capsys, "size", written(tmp_path, ONE))
        assert code == 2
        assert "names no pools; tokenfleet plan sizes one fleet" in " ".join(err.split())


@pytest.mark.parametrize("engine", ["vllm", "sglang", "{name: vllm, preemption: swap, swap_space: 1GiB}"])
def test_an_encoder_serves_requests_without_output_in_a_pool_of_its_own(capsys, tmp_path, engine) -> None:
    kinds = ((0, "embed"), (0, "embed"), (40, "chat"))
    rows = "".join(
        f"{number * 0.2},{300 + number},{output},{label}\n"
        for number in range(150)
        for output, label in (kinds[number % 3],)
    )
    (tmp_path / "log.csv").write_text("arrival_s,input_tokens,output_tokens,label\n" + rows)
    text = (
        "name: two\nworkload: {trace: log.csv, zero_output: keep}\nmodel: Qwen/Qwen3-8B\nprecision: fp8\ngpus: l40s\n"
        f"slo: {{ttft_p95: 2s}}\nengine: {engine}\npools:\n"
        "  emb: {model: BAAI/bge-m3, gpu: l4, precision: bf16, takes: {labels: [embed]}}\n  main: {}\n"
    )
    code, out, err = ended(capsys, "simulate", written(tmp_path, text), "-o", tmp_path / "out", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["stages"] == "emb | main"
    assert [pool["call_count"] for pool in document["pools"]] == [100, 50]


def test_a_pool_may_stand_idle(capsys, tmp_path) -> None:
    text = ONE + "pools: {a: {takes: {input_over: 90000}}, b: {}}\n"
    text += "chain: {takes: {input_over: 90000}, steps: [{wait: 1s}]}\nbatch: {takes: {input_over: 90000}}\n"
    code, out, err = ended(capsys, "simulate", written(tmp_path, text), "-o", tmp_path / "out")
    assert code == 0, err
    out = " ".join(out.split())
    assert "The pool a takes no request of this demand." in out
    assert all(f"{key}.takes takes in no request of this demand." in out for key in ("chain", "batch"))
