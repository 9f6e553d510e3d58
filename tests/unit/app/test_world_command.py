"""Events, clients, a door and users in scenarios: what is read, what is refused, what is replayed, written and said."""

import json
from pathlib import Path

import polars
import pytest

from tokenfleet.app.cli import main
from tokenfleet.app.scenario import load_scenario
from tokenfleet.domain.errors import BadInput

SCENARIO = """\
name: stormy
workload:
  lengths: {input: 700:1500, output: 140:300}
  mean_rate: 8
  duration: 10min
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s}
gpus: l40s
precision: fp8
tensor_parallel: 1
"""
EVENTS = """\
events:
  - {at: 3min, what: fail, replicas: 1, back_after: 2min}
  - {at: 6min, what: slow, replicas: [1], factor: 3, back_after: 30s}
clients: {attempts: 3, backoff: 1s}
admission: {queue_limit: 4, retry_after: 2s}
"""
USERS = "users: {count: 24, think: 5s, ramp: 10s}\n"


def simulated(folder: Path, text: str) -> Path:
    (folder / "stormy.yaml").write_text(text)
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", str(folder / "stormy.yaml"), "--replicas", "2", "-o", str(folder / "out"), "--quiet"])
    assert stopped.value.code == 0
    return folder / "out"


def test_events_are_replayed_and_told(tmp_path):
    out = simulated(tmp_path, SCENARIO + EVENTS)
    summary = json.loads((out / "summary.json").read_text())
    world = summary["world"]
    assert world["lost_attempt_count"] > 0
    assert sum(world["requests_by_attempts"].values()) == summary["request_count"]
    attempts = polars.read_parquet(out / "requests.parquet")["attempt_count"].to_numpy()
    assert attempts.sum() > summary["request_count"]
    log = json.loads((out / "decisions.json").read_text())["replicas"]
    assert [(each["kind"], each["time_s"]) for each in log] == [
        ("fail", 180.0),
        ("back", 300.0),
        ("slow", 360.0),
        ("slow", 390.0),
    ]
    page = (out / "timeline.html").read_text()
    assert "Replicas that take requests" in page
    assert "replica 0 failed (as the scenario says)" in page


def test_one_replica_that_is_behind_is_no_want_of_prefill(tmp_path, capsys):
    slow = "router: round_robin\nevents: [{at: 0s, what: slow, replicas: [0], factor: 6}]\n"
    out = simulated(tmp_path, SCENARIO + slow)
    found = json.loads((out / "summary.json").read_text())["peak"]["diagnosis"]
    assert found["waiting_peak_replica"] == 0
    assert found["waiting_peak_count"] > 8 * found["waiting_elsewhere_count"]
    told = " ".join(capsys.readouterr().out.split())
    assert f"replica 0 is behind, the fleet is not: {found['waiting_peak_count']} wait there" in told
    assert "An event slowed it down. The router, round_robin, sends there all the same" in told
    assert "shorter prompts help" not in told


def test_clients_that_time_out_are_counted_apart_from_those_refused(tmp_path, capsys):
    slow = "events:\n  - {at: 2min, what: slow, replicas: 2, factor: 40, back_after: 1min}\n"
    out = simulated(tmp_path, SCENARIO + slow + "clients: {attempts: 2, first_token_timeout: 5s, timeout: 1min}\n")
    summary = json.loads((out / "summary.json").read_text())
    world = summary["world"]
    assert world["timed_out_attempt_count"] > 0
    assert world["cancelled_attempt_count"] == 0
    table = polars.read_parquet(out / "requests.parquet")
    timed_out = table.filter(polars.col("status") == "timed_out")
    assert summary["timed_out_count"] == timed_out.height > 0
    refused = table.filter(polars.col("status").str.starts_with("rejected")).height
    assert (summary["rejected_count"], summary["lost_count"], summary["cancelled_count"]) == (refused, 0, 0)
    assert summary["finished_count"] + refused + timed_out.height == summary["request_count"]
    fleet = polars.read_parquet(out / "fleet.parquet")
    assert (fleet["rejected_count"].sum(), fleet["timed_out_count"].sum()) == (refused, timed_out.height)
    assert f"{timed_out.height} timed out" in " ".join(capsys.readouterr().out.split())
    page = (out / "timeline.html").read_text()
    assert f'Requests timed out</th><td class="n" data-head="">{timed_out.height}</td>' in page
    assert 0 < timed_out["partial_output_tokens"].sum() <= world["wasted_output_tokens"]
    assert timed_out["attempt_count"].to_list() == [2] * timed_out.height


def test_whom_the_deadline_refused_is_told_apart(tmp_path, capsys):
    slow = "events:\n  - {at: 2min, what: slow, replicas: 2, factor: 40, back_after: 1min}\n"
    out = simulated(tmp_path, SCENARIO + slow + "admission: {queue_limit: 1000, deadline: 2s, retry_after: 5s}\n")
    summary = json.loads((out / "summary.json").read_text())
    refused = polars.read_parquet(out / "requests.parquet").filter(polars.col("status") == "rejected_deadline").height
    assert summary["rejected_count"] == summary["world"]["refused_attempt_count"] == refused > 0
    assert summary["timed_out_count"] == 0
    assert f"{refused:,} waited until the deadline" in " ".join(capsys.readouterr().out.split())


def test_time_outs_alone_are_a_world(tmp_path):
    out = simulated(tmp_path, SCENARIO + "clients: {timeout: 1h}\n")
    world = json.loads((out / "summary.json").read_text())["world"]
    assert (world["timed_out_attempt_count"], world["wasted_output_tokens"]) == (0, 0)


ZONES = "zones: [a, b]\nredundancy: {replicas_per_node: 1}\n"


LADDER = """ladder:
  queue_limit: 9
  rungs: [{give_up: cap_output, enter: {waiting: 4}, leave: {waiting: 8}}]
"""


def test_nodes_and_zones_fail_with_all_that_stand_there(tmp_path):
    events = """events:
  - {at: 2min, zone: b, back_after: 1min}
  - {at: 6min, node: 0, back_after: 1min}
  - {at: 30min, replicas: 1}
"""
    out = simulated(tmp_path, SCENARIO + ZONES + events)
    log = json.loads((out / "decisions.json").read_text())["replicas"]
    assert [(each["kind"], each["time_s"], each["replicas"], each["reason"]) for each in log] == [
        ("fail", 120.0, [1], "zone b, as the scenario says"),
        ("back", 180.0, [1], "zone b, back, as the scenario says"),
        ("fail", 360.0, [0], "node 0, as the scenario says"),
        ("back", 420.0, [0], "node 0, back, as the scenario says"),
    ]
    assumed = json.loads((out / "summary.json").read_text())["assumptions"]
    assert any(line.startswith("The event at 30 min comes after the last arrival, at 10") for line in assumed)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ZONES + "events: [{at: 1min, zone: ab}]\n", 'no replica stands in a zone called "ab"'),
        (ZONES + "events: [{at: 1min, node: 2}, {at: 1min, replicas: [7]}]\n", "there is no node 2"),
        (ZONES + "events: [{at: 1min, node: 2}, {at: 1min, replicas: [7]}]\n", "there is no replica 7"),
        ("events: [{at: 1min, zone: a}]\n", "the scenario names no zones"),
        (ZONES + "events: [{at: 1min, node: 0, zone: a}]\n", "name replicas, a node, or a zone"),
        ("zones: [{name: a, gpu_limit: 1}]\nevents: [{at: 1min, zone: a}]\n", "no room for 2 replicas"),
        ("events: [{at: 1min, replicas: [1, 1]}]\n", "names replica 1 twice"),
        (LADDER + "admission: {queue_limit: 9}\n", "admission: ladder and admission both bound the queue"),
        ("events: [{at: 0s}, {at: 1min, zone: a}]\n", "stormy.yaml:11: events[1].zone: "),
        ("events:\n  - {at: 0s, what: rollout}\n  - {at: 9s, what: rollout}\n", "stormy.yaml:13: events[1]: a second"),
        (LADDER.replace("4}", "10}"), "stormy.yaml:13: ladder.rungs[0].enter.waiting: no more than 9 ever wait"),
        (LADDER, "stormy.yaml:13: ladder.rungs[0].limit: cap_output does not say how much"),
        (LADDER, "stormy.yaml:13: ladder.rungs[0].leave.waiting: left at 8, entered at 4"),
    ],
)
def test_places_that_there_are_not(tmp_path, capsys, text, said):
    (tmp_path / "stormy.yaml").write_text(SCENARIO + text)
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", str(tmp_path / "stormy.yaml"), "--replicas", "2", "-o", str(tmp_path / "out")])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_a_door_stands_where_somebody_stands_at_it_and_is_bounded(tmp_path, capsys):
    quiet = json.loads((simulated(tmp_path, SCENARIO) / "summary.json").read_text())
    bare = " ".join(capsys.readouterr().out.split())
    coming_back = json.loads((simulated(tmp_path, SCENARIO + "clients: {attempts: 3}\n") / "summary.json").read_text())
    for name, times in quiet["latency_s"].items():
        assert coming_back["latency_s"][name] == pytest.approx(times, rel=1e-9), "nobody reaches the bound"
    assert any(
        line.startswith("The door takes no more where 1,000 requests wait") for line in coming_back["assumptions"]
    )
    assert not any("The door" in line for line in quiet["assumptions"])
    longest = max(row["waiting_peak_count"] for row in quiet["replicas"])
    assert f"no door stands before the fleet, so no queue is bounded: {longest} waited at one replica at most" in bare
    assert "no door" not in capsys.readouterr().out
    flood = SCENARIO.replace("mean_rate: 8", "mean_rate: 60")
    flooded = json.loads((simulated(tmp_path, flood + "clients: {attempts: 1}\n") / "summary.json").read_text())
    assert flooded["rejected_count"] > 0
    assert max(row["waiting_peak_count"] for row in flooded["replicas"]) <= 1000


def test_connections_of_those_who_time_out_are_counted(tmp_path):
    late = "clients: {attempts: 1, first_token_timeout: 1s, timeout: 6s, reads: 30/s}\n"
    out = simulated(tmp_path, SCENARIO.replace("mean_rate: 8", "mean_rate: 30") + late)
    reading = json.loads((out / "summary.json").read_text())["reading"]
    gauges = polars.read_parquet(out / "telemetry.parquet")
    inside = gauges.group_by("time_s").agg((polars.col("running") + polars.col("waiting")).sum())["running"].max()
    assert reading["open_peak_count"] >= reading["in_flight_peak_count"] >= inside > 0


def test_outputs_end_where_engines_cut_them(tmp_path):
    cut = SCENARIO.replace(
        "duration: 10min", "duration: 10min\n  max_output: 150\n  max_input: 600\n  max_request: 700"
    )
    out = simulated(tmp_path, cut)
    summary = json.loads((out / "summary.json").read_text())
    rows = polars.read_parquet(out / "requests.parquet")
    tokens = rows["output_tokens"]
    assert tokens.max() == 150
    assert rows["input_tokens"].max() == 600
    assert (rows["input_tokens"] + tokens).max() == 700
    assert "Prompts are cut: max_input 600 and max_request 700 tokens." in summary["assumptions"]
    assert summary["at_max_output_count"] == (tokens == 150).sum() > 0
    assert any("finish reason length" in line for line in summary["assumptions"])
    whole = json.loads((simulated(tmp_path, SCENARIO) / "summary.json").read_text())
    assert whole["at_max_output_count"] is None
    assert whole["output_tokens_per_s"] > summary["output_tokens_per_s"]


def test_slow_readers_hold_connections(tmp_path):
    summary = json.loads((simulated(tmp_path, SCENARIO + "clients: {reads: 4/s}\n") / "summary.json").read_text())
    reading = summary["reading"]
    assert summary["world"] is None, "the fleet does not see them"
    assert reading["tokens_per_s"] == 4.0
    assert reading["open_peak_count"] > 2 * reading["in_flight_peak_count"] > 0
    assert reading["e2e_p95_s"] > summary["latency_s"]["e2e"]["p95"]
    page = json.loads((simulated(tmp_path, SCENARIO) / "summary.json").read_text())
    assert page["reading"] is None


def test_users_wait_for_their_answers(tmp_path):
    out = simulated(tmp_path, SCENARIO + USERS)
    table = polars.read_parquet(out / "requests.parquet")
    arrival_s, finish_s = (table[name].to_numpy() for name in ("arrival_s", "finish_s"))
    moments = arrival_s[(arrival_s > 60.0) & (arrival_s < arrival_s.max() - 60.0)]
    inside = [((arrival_s <= moment) & (finish_s > moment)).sum() for moment in moments]
    assert min(inside) >= 1
    assert max(inside) <= 24
    summary = json.loads((out / "summary.json").read_text())
    assert summary["peak"]["request_count"] > 0


def test_users_who_read_slowly_send_less(tmp_path):
    def sent(more: str) -> int:
        return json.loads((simulated(tmp_path, SCENARIO + USERS + more) / "summary.json").read_text())["duration_s"]

    quick, slow = sent(""), sent("clients: {reads: 4/s}\n")
    assert slow > 1.5 * quick, "the same requests take longer: about 45 s to read an answer, 5 s to think"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("events:\n  - {at: 3min, what: explode}\n", "events"),
        ("events:\n  - {at: 3min, replicas: []}\n", "events"),
        ("clients: {attempts: 0}\n", "clients.attempts"),
        ("clients: {timeout: 0s}\n", "clients.timeout"),
        ("users: {count: 0}\n", "users.count"),
        ("admission: {queue_limit: 5}\nladder: {queue_limit: 9, rungs: []}\n", "both bound the queue"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path, text, part):
    (tmp_path / "stormy.yaml").write_text(SCENARIO + text)
    with pytest.raises(BadInput) as caught:
        load_scenario(tmp_path / "stormy.yaml")
    assert part in str(caught.value)


def test_an_event_at_a_replica_there_is_not(tmp_path, capsys):
    (tmp_path / "stormy.yaml").write_text(SCENARIO + "events:\n  - {at: 3min, replicas: [5]}\n")
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", str(tmp_path / "stormy.yaml"), "--replicas", "2", "-o", str(tmp_path / "out")])
    assert stopped.value.code == 2
    assert "there is no replica 5" in capsys.readouterr().err
