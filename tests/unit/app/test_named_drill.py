"""Drills of pools that a scenario names: as those of a fleet, of all pools together."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from commands import ended
from tokenfleet import contract
from tokenfleet.app.compose import demand_of
from tokenfleet.app.named_bought import NamedWay
from tokenfleet.app.scenario import load_scenario
from tokenfleet.planner import pools_drilling
from tokenfleet.planner.drilling import flooded_by, raised_to_peak
from tokenfleet.planner.traffic import Traffic, cut
from unit.app.test_named_plan import CHAIN, NIGHT, SHARED

ONE = """\
name: one
workload: {lengths: {input: 700:1500, output: 150:150}, mean_rate: 4, duration: 5min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p99: 1s, itl_p99: 80ms, error_rate: 0.1%}
gpus: l40s
precision: fp8
tensor_parallel: 1
engine: {name: vllm, max_batched_tokens: 2048, max_sequence_count: 256}
zones: [a, b]
redundancy: {zones: n+1}
cold_start: 1min
"""
TWO = """\
name: two
workload: {trace: two.csv}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s, tpot_p95: 60ms}
gpus: l40s
precision: fp8
cold_start: 30s
zones: [a, b]
redundancy: {zones: n+1}
clients: {attempts: 4, backoff: 1s}
batch: {takes: {tenants: [t1]}}
pools:
  little: {model: Qwen/Qwen3-0.6B, takes: {models: [little], share: 60%}}
  main: {prefill: {}, decode: {}, link: infiniband_200g}
"""


def log(count=900, seconds=240.0):
    random = np.random.default_rng(7)
    rows = ["arrival_s,input_tokens,output_tokens,model,tenant"]
    for at_s in np.sort(random.uniform(0.0, seconds, count)):
        large = random.random() < 0.2
        inputs = random.integers(2000, 6000) if large else random.integers(100, 1500)
        name = "large" if large else "little"
        rows.append(f"{at_s:.3f},{inputs},{random.integers(20, 200)},{name},t{random.integers(0, 3)}")
    return "\n".join(rows) + "\n"


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


def drilled(capsys, text, *options):
    Path("it.yaml").write_text(text)
    code, out, err = ended(capsys, "drill", "it.yaml", "--json", "--quiet", *options)
    assert err == ""
    found = json.loads(out)
    assert code == (1 if found["passed"] is False else 0)
    return found


def test_one_pool_that_takes_everything_is_drilled_as_the_fleet_that_it_is(capsys, here):
    fleet = drilled(capsys, ONE)
    pools = drilled(capsys, ONE + "pools: {main: {}}\n")
    assert fleet["replica_count"] == pools["replica_count"]
    each_pool = ("replica", "node", "rollout")
    for one, other in zip(fleet["drills"], pools["drills"], strict=True):
        assert (one["name"], one["passed"]) == (other["name"], other["passed"])
        assert other["pool"] == ("main" if one["name"] in each_pool else None)
        assert one["how"].replace(" requests lost", " calls lost") == other["how"]
        # Times of stages are whole picoseconds, those of a request of one fleet are not quite.
        assert [clause["name"] for clause in one["slo"]] == [clause["name"] for clause in other["slo"]]
        predicted = [[clause["predicted"] for clause in drill["slo"]] for drill in (one, other)]
        assert predicted[1] == pytest.approx(predicted[0], abs=1e-11)
    assert {drill["passed"] for drill in fleet["drills"]} == {True, False}


def test_a_zone_that_is_drilled_is_the_zone_that_a_simulation_strikes(capsys, monkeypatch, here):
    Path("two.csv").write_text(log())
    struck = []
    happening = pools_drilling.Happening
    monkeypatch.setattr(pools_drilling, "Happening", lambda **given: struck.append(given) or happening(**given))
    Path("it.yaml").write_text(TWO)
    assert ended(capsys, "plan", "it.yaml", "-o", "plan", "--quiet")[0] == 0
    (zone,) = drilled(capsys, TWO, "--plan", "plan", "--only", "zone")["drills"]
    assert len(struck) == 3, "every pool has replicas there"
    (at_s,), (lost,) = ({each[key] for each in struck} for key in ("time_s", "replicas"))
    names = ("little", "main-prefill", "main-decode")
    assert zone["how"].startswith(", ".join(f"1 replica of {name}" for name in names))
    place = "ab"[lost[0]]
    events = "".join(f"  - {{pool: {name}, at: {at_s!r}s, what: fail, zone: {place}}}\n" for name in names)
    Path("struck.yaml").write_text(f"{TWO}events:\n{events}")
    options = ("--plan", "plan", "-o", "struck", "--quiet", "--interval", "1s")
    code, _, err = ended(capsys, "simulate", "struck.yaml", *options)
    assert (code, err) == (0, "")
    found = json.loads(Path("struck/summary.json").read_text())
    calls = int(re.search(r"and (\d+) calls? lost", zone["how"])[1])
    assert found["world"]["lost_attempt_count"] == calls > 0
    whole = {clause["name"]: clause["predicted"] for clause in found["whole"]["slo"]}
    told = {clause["name"]: (clause["predicted"], clause["sample_count"]) for clause in zone["slo"]}
    for name, (predicted, count) in told.items():
        # The worse of the window and of all: where it is that of all, it is what the simulation says.
        assert predicted >= whole[name] * (1 - 1e-9)
        assert count < found["request_count"] or predicted == pytest.approx(whole[name])


def test_results_go_into_the_contract_of_the_same_pools(capsys, here):
    Path("it.yaml").write_text(CHAIN)
    assert ended(capsys, "plan", "it.yaml", "-o", "plan", "--quiet")[0] == 0
    paper = "plan/contract.yaml"
    options = ("--contract", paper, "--only", "ramp", "--only", "replica", "--only", "node", "--only", "flood")
    found = drilled(capsys, CHAIN, "--plan", "plan", *options)
    kept = contract.read_contract(Path(paper))["drills"]
    names = [*(f"{pool}: {kind}" for kind in ("replica", "node") for pool in ("rank", "small", "main")), "flood"]
    assert [each["name"] for each in kept] == ["ramp", *names]
    by_name = {each["name"]: each for each in kept}
    # Both replicas of each stand on one node; one of the reranker carries all calls, one of the model does not.
    assert [by_name[f"{pool}: node"]["passed"] for pool in ("rank", "small", "main")] == [False] * 3
    assert by_name["rank: replica"]["passed"] is True
    assert by_name["main: replica"]["passed"] is False
    broken = [each["name"] for each in by_name["main: replica"]["clauses"] if not each["kept"]]
    assert broken == ["ttft_p95"]
    # Without the plan the same pools are found.
    assert drilled(capsys, CHAIN, *options)["drills"] == found["drills"]
    code, out, _ = ended(capsys, "contract", paper, "--scenario", "it.yaml", "--json")
    told = json.loads(out)
    assert (code, told["state"]) == (1, "valid")
    assert set(told["failed_drills"]) == {"rank: node", "small: node", "main: node", "main: replica"}
    # A contract about other pools is none of theirs.
    lines = Path(paper).read_text().splitlines()
    place = next(index for index, line in enumerate(lines) if "replica_count: 2" in line)
    lines[place] = lines[place].replace("2", "3")
    Path(paper).write_text("\n".join(lines) + "\n")
    code, _, err = ended(capsys, "drill", "it.yaml", "--plan", "plan", "--contract", paper, "--quiet")
    assert code == 2
    assert "is about rank: 3 replicas" in " ".join(err.split())
    code, _, err = ended(capsys, "drill", "it.yaml", "--plan", "plan", "--replicas", "3", "--quiet")
    assert code == 2
    assert "the scenario names pools" in err


def test_what_cannot_be_drilled_is_said_and_what_leaves_nothing_fails(capsys, here):
    shared = drilled(capsys, SHARED.replace("pools:", "cold_start: 20s\npools:"))
    assert [(drill["pool"], drill["name"]) for drill in shared["drills"]] == [
        (None, "ramp"),
        (None, "burst"),
        ("main", "replica"),
        ("main", "node"),
        (None, "zone"),
        ("main", "rollout"),
        (None, "flood"),
    ]
    assert shared["drills"][5]["passed"] is None
    assert "pools share GPUs" in shared["drills"][5]["how"]
    unused = CHAIN.replace("input_up_to: 500", "input_up_to: 1").replace("pools:", "zones: [a, b]\npools:")
    named = {
        (d["pool"], d["name"]): d for d in drilled(capsys, unused, "--only", "replica", "--only", "zone")["drills"]
    }
    assert named["small", "replica"]["passed"] is None
    assert named["small", "replica"]["how"] == "no request of this demand comes to it"
    alone = CHAIN.replace("mean_rate: 6", "mean_rate: 14").replace(
        "pools:", "zones: [a, b]\nredundancy: {replicas: none}\npools:"
    )
    (zone,) = drilled(capsys, alone, "--only", "zone")["drills"]
    assert (zone["passed"], zone["how"]) == (False, "nothing is left of rank and small")
    away = "rollout: {max_surge: 0, max_unavailable: 5}\ncold_start: 10s\npools:"
    rollouts = drilled(capsys, CHAIN.replace("pools:", away), "--only", "rollout")["drills"]
    assert [(each["passed"], each["how"]) for each in rollouts] == [(False, "nothing is left to serve")] * 3


def test_a_flood_is_of_those_who_wait_and_ladders_stand_aside(capsys, here):
    (flood,) = drilled(capsys, NIGHT, "--only", "flood")["drills"]
    assert "to main like the longest there is" in flood["what"]
    assert [clause["kept"] for clause in flood["slo"]] == [True] * 3
    code, out, _ = ended(capsys, "drill", "it.yaml", "--only", "flood", "--quiet")
    assert (code, "Assumed" in out) == (0, False)
    rungs = "{give_up: cap_output, limit: 90, enter: {waiting: 6}, leave: {waiting: 2}}"
    Path("it.yaml").write_text(f"{CHAIN}ladder: {{queue_limit: 40, rungs: [{rungs}]}}\n")
    code, out, _ = ended(capsys, "drill", "it.yaml", "--only", "ramp", "--quiet")
    assert code == 0
    assert "ladders and bounds of queues stand aside" in " ".join(out.split())


def test_no_pools_are_an_answer(capsys, here):
    found = drilled(capsys, CHAIN.replace("ttft_p95: 900ms", "ttft_p95: 30ms").replace("90s", "30s"))
    assert (found["passed"], found["drills"]) == (None, [])
    assert "ttft_p95 is" in found["why_not"][0]


def way_of(text):
    Path("two.csv").write_text(log(count=600))
    Path("it.yaml").write_text(text)
    asked = load_scenario(Path("it.yaml"))
    return NamedWay(asked), demand_of(asked)[0]


def test_copies_go_where_those_do_whose_copies_they_are(here):
    way, trace = way_of(TWO)
    fleets = {each.name: each.fleet for each in way._system(trace).named}
    usual_trace, usual = way.through(trace, fleets)
    for made, rows in (
        raised_to_peak(Traffic(trace, (60.0, 120.0)), ramp_s=60.0, hold_s=120.0),
        flooded_by(Traffic(trace, (60.0, 120.0)), 0.5, 17)[::2],
    ):
        assert np.array_equal(made.trace.input_tokens, trace.input_tokens[rows])
        assert np.array_equal(made.trace.output_tokens, trace.output_tokens[rows])
        other = way.of_copies(trace, made.trace, rows)
        sent, pools = other.through(made.trace, fleets)
        assert np.array_equal(sent.arrival_s, made.trace.arrival_s)
        # A share of requests is drawn once: whoever is drawn for a pool stays there, and their copies with them.
        for stage, before in zip(pools.stages, usual.stages, strict=True):
            assert np.array_equal(stage.takes, before.takes[rows])
        assert np.array_equal(sent.priority, usual_trace.priority[rows])
        assert np.array_equal(other.who_waits(made.trace), way.who_waits(trace)[rows])
        assert {name: fleet.groups for name, fleet in pools.fleets.items()} == {
            name: fleet.groups for name, fleet in usual.fleets.items()
        }


def test_a_part_of_a_log_keeps_its_models_and_its_clock(here):
    way, trace = way_of(TWO.replace("share: 60%", "input_up_to: 9000"))
    fleets = {each.name: each.fleet for each in way._system(trace).named}
    part = cut(Traffic(trace, (100.0, 160.0)), 200, 500)
    _, pools = way.through(part.trace, fleets)
    large = trace.observed.model[200:500] == trace.observed.models.index("large")
    assert 0 < large.sum() < 300
    assert np.array_equal(pools.stages[0].takes, ~large)
    Path("it.yaml").write_text(NIGHT)
    asked = load_scenario(Path("it.yaml"))
    night = demand_of(asked)[0]
    later = cut(Traffic(night, (60.0, 120.0)), 150, 300)
    held = NamedWay(asked)._system(later.trace).windows["bulk"]
    assert held.start_s == pytest.approx(min(60.0, night.arrival_s[150]))
