"""The plan of pools that a scenario names: what size finds, and all that a plan says of a fleet."""

import json
from pathlib import Path

import pytest

from commands import ended
from tokenfleet import contract
from tokenfleet.app.cli import main
from unit.app import named_pools

CHAIN = named_pools.chain()
SHARED = named_pools.shared("mean_rate: 5, duration: 60s", "redundancy: {zones: n+1}\nzones: [north, south]\n")
NIGHT = """\
name: night
workload: {lengths: {input: 900:2500, output: 60:120}, mean_rate: 3, peak_to_mean: 1, duration: 2min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s, done_within: 8h}
gpus: l40s
precision: fp8
pools:
  bulk: {takes: {share: 30%}, window: {opens: "00:01", closes: "06:00"}}
  main: {}
"""
LINES = ("input", "cached", "output", "headroom", "idle", "spare")


def planned(folder: Path, text: str) -> Path:
    path = folder / "it.yaml"
    path.write_text(text)
    with pytest.raises(SystemExit) as stopped:
        main(["plan", str(path), "-o", str(folder / "out"), "--quiet"])
    assert stopped.value.code == 0
    return folder / "out"


def document(folder: Path) -> dict:
    return json.loads((folder / "plan.json").read_text())


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    return planned(tmp_path_factory.mktemp("chain"), CHAIN)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return planned(tmp_path_factory.mktemp("shared"), SHARED)


def test_users_of_nobody_are_refused(capsys, tmp_path) -> None:
    (tmp_path / "it.yaml").write_text(CHAIN + "compare: {users: {premum: 5}}\n")
    code, _, err = ended(capsys, "plan", tmp_path / "it.yaml", "-o", tmp_path / "out")
    assert code == 2
    assert "compare.users.premum: nobody of the demand is called so" in " ".join(err.split())
    assert not (tmp_path / "out").exists()


def test_the_counts_are_those_of_size(capsys, chain) -> None:
    code, out, _ = ended(capsys, "size", chain.parent / "it.yaml", "--json", "--quiet")
    sizes, plan = json.loads(out), document(chain)
    assert code == 0
    assert plan["stages"] == sizes["stages"] == "4 x rank > wait > small | main"
    for pool, sized in zip(plan["pools"], sizes["pools"], strict=True):
        (group,) = pool["fleet"]
        assert (pool["name"], pool["does"], pool["model"]) == (sized["name"], sized["does"], sized["model"])
        assert group["carrying_replica_count"] == sized["carrying_replica_count"]
        assert pool["price_usd_per_hour"] == pytest.approx(sized["price_usd_per_hour"])
        # Full is full, whoever asks, and only a part of the requests comes to some pools.
        full = sized["utilization"]["peak_to_saturated_ratio"]
        assert pool["peak"]["peak_to_saturated_ratio"] == pytest.approx(full, rel=1e-9)
    assert plan["price_usd_per_hour"] == pytest.approx(sizes["price_usd_per_hour"])
    # What users see at the peak is the same replay.
    assert [each["predicted"] for each in plan["slo"]] == [each["predicted"] for each in sizes["peak"]["slo"]]


def test_counts_far_from_the_least_ones_are_found_too(capsys, monkeypatch, chain) -> None:
    usual = json.loads(ended(capsys, "size", chain.parent / "it.yaml", "--json", "--quiet")[1])
    # None of those in order of price are asked about.
    monkeypatch.setattr("tokenfleet.planner.pool_counts._MOST_STEPS", 0)
    found = json.loads(ended(capsys, "size", chain.parent / "it.yaml", "--json", "--quiet")[1])
    assert found["feasible"]
    assert all(clause["kept"] for part in ("peak", "whole") for clause in found[part]["slo"])
    assert usual["price_usd_per_hour"] <= found["price_usd_per_hour"] <= 1.5 * usual["price_usd_per_hour"]


def test_it_has_what_a_plan_of_a_fleet_has(chain) -> None:
    plan = document(chain)
    bill = plan["cost"]
    assert sum(bill[f"{line}_usd_per_hour"] for line in LINES) == pytest.approx(bill["total_usd_per_hour"], abs=1e-9)
    assert bill["total_usd_per_hour"] == pytest.approx(plan["price_usd_per_hour"])
    kept = {each["scenario"]: each["kept"] for each in plan["redundancy"]}
    assert [kept[name] for name in ("all replicas present", "3 spare gone", "main: 1 replica gone")] == [True] * 3
    assert (plan["binding_pool"], plan["limits"][0]["at_least"]) == ("main", False)
    assert plan["limits"][0]["broken"]
    assert {each["assumption"] for each in plan["sensitivity"]} == {"demand", "input tokens", "step time", "price"}
    prices = [point["price_usd_per_hour"] for point in plan["frontier"]]
    assert prices == sorted(set(prices))
    assert prices[0] == pytest.approx(plan["price_usd_per_hour"])
    assert 0.0 < plan["confidence"]["probability_fraction"] <= 1.0
    assert len(plan["curve"]) == 8
    rank = plan["pools"][0]
    assert {each["limit"] for each in rank["limits"]} == {"prefill_compute", "decode_bandwidth", "overhead"}
    assert 0.3 < rank["request_fraction"] < 0.5


def test_contract_and_report_name_every_pool(capsys, chain) -> None:
    paper = contract.read_contract(chain / "contract.yaml")
    assert [each["serves"] for each in paper["pools"]] == [
        "BAAI/bge-reranker-v2-m3: 4 calls before the answer",
        "Qwen/Qwen3-0.6B: prompts up to 500 tokens",
        "meta-llama/Llama-3.1-8B-Instruct: all other requests",
    ]
    code, out, _ = ended(
        capsys, "contract", chain / "contract.yaml", "--scenario", chain.parent / "it.yaml", "--json", "--quiet"
    )
    assert (code, json.loads(out)["state"]) == (0, "valid")
    other = chain.parent / "other.yaml"
    other.write_text(CHAIN.replace("BAAI/bge-reranker-v2-m3", "Qwen/Qwen3-Reranker-0.6B"))
    code, out, _ = ended(capsys, "contract", chain / "contract.yaml", "--scenario", other, "--json", "--quiet")
    assert code == 1
    assert any("models_beside" in reason for reason in json.loads(out)["reasons"])
    page = (chain / "report.html").read_text()
    assert "GPUs for 3 pools" in page
    assert "meta-llama/Llama-3.1-8B-Instruct and 2 other models" in page
    assert "Rates are those of the whole demand" in page
    assert "BAAI/bge-reranker-v2-m3, 4 calls before the answer" in page
    assert "runner-up" not in page


def test_a_simulation_of_the_plan_shows_what_it_says(capsys, chain) -> None:
    code, _, err = ended(
        capsys, "simulate", chain.parent / "it.yaml", "--plan", chain, "-o", chain.parent / "sim", "--quiet"
    )
    assert (code, err) == (0, "")
    seen = json.loads((chain.parent / "sim" / "summary.json").read_text())["peak"]["slo"]
    said = document(chain)["redundancy"][0]["slo_peak"]
    assert [each["predicted"] for each in seen] == [each["predicted"] for each in said]


def test_a_plan_is_of_its_own_pools_only(capsys, chain, shared) -> None:
    code, _, err = ended(capsys, "simulate", shared.parent / "it.yaml", "--plan", chain, "--quiet")
    assert code == 2
    assert "is of main, rank, small, and the scenario names embed, main" in err
    whole = chain.parent / "whole.yaml"
    whole.write_text(CHAIN[: CHAIN.index("pools:")])
    code, _, err = ended(capsys, "simulate", whole, "--plan", chain, "--quiet")
    assert code == 2
    assert "pools that a scenario names" in err


def test_shared_gpus_count_once_and_both_pools_pay(capsys, shared) -> None:
    plan = document(shared)
    _, out, _ = ended(capsys, "size", shared.parent / "it.yaml", "--json", "--quiet")
    for pool, sized in zip(plan["pools"], json.loads(out)["pools"], strict=True):
        assert all(pool["fleet"][0][key] == sized[key] for key in ("carrying_replica_count", "spare_replica_count"))
    embed, main_pool = plan["pools"]
    (guest,), (host,) = embed["fleet"], main_pool["fleet"]
    assert (embed["beside"], guest["gpu_count"], embed["price_usd_per_hour"]) == ("main", 0, 0.0)
    # A zone may be lost: each has as many replicas as the other, and the guest's spare ones cost nothing.
    assert guest["replica_count"] == host["replica_count"] == 2 * host["carrying_replica_count"]
    assert plan["price_usd_per_hour"] == main_pool["price_usd_per_hour"] == main_pool["cost"]["total_usd_per_hour"]
    assert embed["cost"] is None
    assert {each["pool"] for each in plan["redundancy"] if each.get("pool")} == {"main"}
    assert next(each for each in plan["redundancy"] if each["scenario"] == "main: zone north gone")["kept"]


def test_offline_work_waits_and_what_binds_is_not_sought(tmp_path) -> None:
    plan = document(planned(tmp_path, NIGHT))
    assert (plan["feasible"], plan["limits"], plan["sustained_rate_per_s"]) == (True, [], None)
    assert any("offline work" in line for line in plan["assumptions"])
    # Those that wait for the window are late for the one clause and in time for the other.
    assert [each["kept"] for each in plan["slo"]] == [True] * 3
    assert all(each["moment"] is None for each in plan["redundancy"] if each.get("pool"))


def test_what_no_counts_keep_is_an_answer(tmp_path) -> None:
    plan = document(planned(tmp_path, CHAIN.replace("ttft_p95: 900ms", "ttft_p95: 30ms").replace("90s", "30s")))
    assert (plan["feasible"], plan["pools"]) == (False, [])
    (reason,) = plan["reasons"]
    assert reason["kind"] == "capacity"
    assert "ttft_p95 is" in reason["text"]
    assert reason["relax"].startswith("ttft_p95 >= 0.")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("also_try: {pools: length}", "also_try"),
        ("disaggregated: infiniband_400g", "disaggregated"),
        ("redundancy: {ride_through: true}", "redundancy"),
        ("events: [{pool: main, at: 10s, what: fail, replicas: 1}]", "events"),
    ],
)
def test_what_does_not_go_with_named_pools_is_refused(capsys, tmp_path, more, said) -> None:
    path = tmp_path / "it.yaml"
    path.write_text(f"{CHAIN}{more}\n")
    code, out, err = ended(capsys, "plan", path, "-o", tmp_path / "out", "--quiet")
    assert (code, out) == (2, "")
    assert said in err
    assert not (tmp_path / "out").exists()


def test_smaller_steps_are_tried_where_no_counts_keep_the_gaps(capsys, monkeypatch, tmp_path) -> None:
    """Two replicas at most, which break ITL with the engine's steps, and keep it with smaller ones."""
    monkeypatch.setattr("tokenfleet.app.pool_sizes._CAP_FACTOR", 2)
    path = tmp_path / "it.yaml"
    path.write_text(
        CHAIN[: CHAIN.index("pools:")]
        .replace("itl_p99: 60ms", "itl_p99: 45ms")
        .replace("ttft_p95: 900ms", "ttft_p95: 5s")
        .replace("90s}", "40s}")
        + "pools: {main: {}}\n"
    )
    code, out, err = ended(capsys, "size", path, "--json", "--quiet")
    found = json.loads(out)
    assert (code, err, found["feasible"]) == (0, "", True)
    (note,) = [line for line in found["assumptions"] if "takes steps of" in line]
    assert "the promise is kept only with them" in note
    assert found["pools"][0]["fleet"][0]["max_batched_tokens"] in (1024, 512, 256, 128)
    usual = path.read_text() + "engine: {name: vllm, max_batched_tokens: 2048}\n"
    path.write_text(usual)
    code, out, _ = ended(capsys, "size", path, "--json", "--quiet")
    assert json.loads(out)["feasible"] is False
