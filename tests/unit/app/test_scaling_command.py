"""Scaling in scenarios: what is read, what is refused, what is replayed, written and said."""

import json
import re
from pathlib import Path

import polars as pl
import pytest

from commands import ended
from tokenfleet.app import scaling_words
from tokenfleet.app.cli import main
from tokenfleet.app.scenario import load_scenario
from tokenfleet.control import ScheduleRule
from tokenfleet.domain.errors import BadInput

SCENARIO = """\
name: small
workload:
  lengths: {input: 700:1500, output: 140:300}
  mean_rate: 14
  peak_to_mean: 2
  duration: 20min
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s}
gpus: l40s
precision: fp8
tensor_parallel: 1
cold_start: 2min
autoscaling:
  policy: [queue, kv]
  min: 1
  max: 4
  stable: 2min
  cool_down: 1min
"""
LADDER = """\
ladder:
  queue_limit: 40
  rungs:
    - give_up: shed_batch
      enter: {waiting: 1}
      leave: {waiting: 0.5}
    - give_up: cap_output
      limit: 800
      enter: {waiting: 20, kv: 95%}
      leave: {waiting: 5, kv: 70%}
"""


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    Path("small.yaml").write_text(SCENARIO + LADDER)
    return tmp_path


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scaled")
    (folder / "small.yaml").write_text(SCENARIO + LADDER)
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", str(folder / "small.yaml"), "-o", str(folder), "--quiet"])
    assert stopped.value.code == 0
    return folder


def test_a_simulation_scales_and_says_so(simulated):
    summary = json.loads((simulated / "summary.json").read_text())
    log = json.loads((simulated / "decisions.json").read_text())
    scaling = summary["scaling"]
    assert summary["fleet"][0]["replica_count"] == 4
    assert [rule["name"] for rule in scaling["rules"]] == ["queue", "kv"]
    assert scaling["cold_start_s"] == 120.0
    changes = [step for step in log["scaling"] if step["start_count"] or step["stop_count"]]
    assert len(changes) == scaling["change_count"] > 0
    assert all(step["reason"] for step in log["scaling"])
    ready = [step["ready_count"] for step in log["scaling"]]
    assert ready[0] == 1
    assert max(ready) > 1
    # What became of replicas follows what was decided: ready two minutes after the start.
    starts = {tuple(each["replicas"]): each["time_s"] for each in log["replicas"] if each["kind"] == "start"}
    firsts = {}
    for each in log["replicas"]:
        if each["kind"] == "ready":
            firsts.setdefault(tuple(each["replicas"]), each["time_s"])
    assert firsts
    assert all(time_s >= starts[who] for who, time_s in firsts.items() if who in starts)
    hours = summary["duration_s"] / 3600.0
    assert hours < scaling["gpu_hours"] < 4 * hours
    assert scaling["broken_minute_count"] >= scaling["longest_broken_minute_count"] >= 0


def test_rungs_are_logged_and_the_page_shows_replicas(simulated):
    log = json.loads((simulated / "decisions.json").read_text())
    assert log["ladder"][0]["kind"] == "shed_batch"
    assert log["ladder"][0]["entered"]
    page = (simulated / "timeline.html").read_text()
    assert "Replicas ready and asked for" in page
    assert "Rungs of the ladder" in page
    assert "Scaling and the ladder" in page


def test_a_cap_refuses_who_declares_more_once_its_rung_is_entered_and_cuts_nobody(capsys, folder):
    cap = LADDER.replace("shed_batch", "cap_output\n      limit: 150").split(
        "    - give_up: cap_output\n      limit: 800"
    )[0]
    Path("small.yaml").write_text(SCENARIO.replace("20min", "6min") + cap)
    code, out, _ = ended(capsys, "simulate", "small.yaml", "-o", "out")
    assert code == 0
    assert "for the cap on output" in out
    log = json.loads(Path("out/decisions.json").read_text())
    entered_s = log["ladder"][0]["time_s"]
    assert [each["time_s"] for each in log["replicas"] if each["kind"] == "door"] == [
        each["time_s"] for each in log["ladder"]
    ]
    requests = pl.read_parquet("out/requests.parquet")
    capped = requests.filter(pl.col("status") == "rejected_output_cap")
    assert capped.height > 0
    assert capped["output_tokens"].min() > 150
    assert capped["arrival_s"].min() >= entered_s
    assert set(requests["status"].unique()) == {"finished", "rejected_output_cap"}


def test_spot_machines_go_with_a_notice_and_are_asked_for_anew(capsys, folder):
    supply = "  supply: {spot_reclaims_per_hour: 30, spot_notice: 20s}\n"
    Path("small.yaml").write_text(SCENARIO.replace("20min", "15min").replace("min: 1", "min: 1\n  start: 4") + supply)
    code, out, err = ended(capsys, "simulate", "small.yaml", "-o", "out", "--quiet")
    assert (code, err) == (0, "")
    log = json.loads(Path("out/decisions.json").read_text())
    failed = [each for each in log["replicas"] if each["reason"] == "spot machine taken back"]
    assert failed
    assert all(0 not in each["replicas"] for each in failed), "the first min replicas are no spot machines"
    count = sum(len(each["replicas"]) for each in failed)
    assert f"replica{'' if count == 1 else 's'} gone: spot machine taken back" in out
    replaced = [step for step in log["scaling"] if step["rule"] == "replace"]
    assert replaced
    assert all("the others are gone" in step["reason"] for step in replaced)
    drained = {(each["time_s"], *each["replicas"]) for each in log["replicas"] if each["kind"] == "drain"}
    assert any(
        (round(each["time_s"] - 20.0, 6), *each["replicas"]) in {(round(a, 6), b) for a, b in drained}
        for each in failed
    )
    after = [each for each in log["replicas"] if each["kind"] == "start" and each["time_s"] > failed[0]["time_s"]]
    assert after, "what was lost is replaced"


def test_a_rung_that_cannot_act_says_why(simulated):
    said = " ".join(json.loads((simulated / "summary.json").read_text())["assumptions"])
    assert "shed_batch turns nobody away" in said


def test_without_watchers_no_log_is_written(capsys, folder):
    plain = SCENARIO.split("cold_start", maxsplit=1)[0]
    Path("small.yaml").write_text(plain)
    code, _, err = ended(capsys, "simulate", "small.yaml", "--replicas", "1", "-o", "out", "--quiet")
    assert (code, err) == (0, "")
    assert not Path("out/decisions.json").exists()
    assert json.loads(Path("out/summary.json").read_text())["scaling"] is None


def test_the_comparison_names_a_best_way(capsys, folder):
    code, out, err = ended(capsys, "scaling", "small.yaml", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    names = [way["name"] for way in found["ways"]]
    assert names[0].startswith("fixed at")
    assert {"as written", "queue 3", "queue 5", "kv 85 %", "ttft 2 s", "schedule", "forecast"} <= set(names)
    best = next(way for way in found["ways"] if way["name"] == found["best"])
    assert best["broken_minute_count"] == min(way["broken_minute_count"] for way in found["ways"])
    Path("small.yaml").write_text(SCENARIO + LADDER + "also_try: {pools: length}\n")
    code, out, _ = ended(capsys, "scaling", "small.yaml")
    assert "give a plan that buys pools (--plan)" in " ".join(out.split())
    assert code == 0
    assert "<- best" in out
    assert "Cold start: 2 min, as the scenario says." in out


def test_the_comparison_as_a_page(capsys, folder):
    code, out, err = ended(capsys, "scaling", "small.yaml", "--report", "ways.html", "--quiet")
    assert (code, err) == (0, "")
    assert "wrote ways.html" in out
    page = Path("ways.html").read_text()
    figures = json.loads(page.split('id="figures">')[1].split("</script>")[0])
    assert set(figures) == {"ways", "demand", "counts"}
    points = {each["name"]: (each["x"][0], each["y"][0]) for each in figures["ways"]["data"]}
    rows = re.findall(r"^(?:Ways +| +)(.+?)  +([\d.]+) +(\d+) +\d+ +\d+ +\d+", out, re.MULTILINE)
    told = {name: (float(hours), float(broken)) for name, hours, broken in rows}
    assert told.keys() == points.keys()
    for name, point in points.items():
        assert told[name] == pytest.approx(point, rel=0.01)
    assert len(figures["counts"]["data"]) == len(points) - 1, "the fixed count has no ticks"
    assert "tokenfleet scaling small.yaml" in page


def test_a_comparison_needs_to_know_how_many_replicas_there_may_be(capsys, folder):
    Path("small.yaml").write_text(SCENARIO.split("autoscaling", maxsplit=1)[0])
    code, _, err = ended(capsys, "scaling", "small.yaml")
    assert code == 2
    assert "write autoscaling: {max: 8}" in err


SMALLER = """\
ladder:
  queue_limit: 200
  rungs:
    - give_up: smaller_model
      model: Qwen/Qwen3-0.6B
      fleet: {gpu: l40s, replicas: 1}
      input: 800
      output: 200
      evaluation: {measure: answers judged right, score: 0.93, required: 0.9, as_of: "2026-11-02", source: evals/41}
      enter: {waiting: 2}
      leave: {waiting: 1}
"""


def test_short_requests_move_to_the_smaller_model_and_the_record_says_so(capsys, folder):
    Path("small.yaml").write_text(SCENARIO.split("cold_start", maxsplit=1)[0] + SMALLER)
    code, out, err = ended(capsys, "simulate", "small.yaml", "--replicas", "1", "-o", "out", "--quiet")
    assert (code, err) == (0, "")
    assert "enter smaller_model" in out
    requests = pl.read_parquet("out/requests.parquet")
    moved = requests.filter(pl.col("degraded_by") == "smaller_model")
    assert f"answered by the smaller model: {len(moved):,}" in out
    assert 0 < len(moved) < len(requests)
    assert moved["replica"].unique().to_list() == [1]
    assert (moved["input_tokens"].max(), moved["output_tokens"].max()) <= (800, 200)
    kept = requests.filter(pl.col("degraded_by").is_null() & pl.col("replica").is_not_null())
    assert kept["replica"].unique().to_list() == [0]
    steps = json.loads(Path("out/decisions.json").read_text())["ladder"]
    up_s, down_s = (next(each["time_s"] for each in steps if each["entered"] is entered) for entered in (True, False))
    first, last = moved["arrival_s"].min(), moved["arrival_s"].max()
    assert up_s <= first
    assert down_s < last or len(steps) == 2, "whoever comes after it is left is answered by the model asked for"
    summary = json.loads(Path("out/summary.json").read_text())
    assert summary["world"]["smaller_model_count"] == len(moved)
    assert summary["fleet"][1]["model"] == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("      fleet: {gpu: l40s, replicas: 1}\n", "", "nobody says on which replicas Qwen/Qwen3-0.6B runs"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.7B", "nearest"),
        ("score: 0.93", "score: 0.8", "needs 0.9"),
    ],
)
def test_a_smaller_model_that_cannot_answer_is_refused(capsys, folder, old, new, said):
    Path("small.yaml").write_text(SCENARIO.split("cold_start", maxsplit=1)[0] + SMALLER.replace(old, new))
    code, _, err = ended(capsys, "simulate", "small.yaml", "--replicas", "1", "-o", "out")
    assert code == 2
    assert said in err


GROUPS = """router: by_tier
groups:
  first: {gpu: l40s, replicas: 1, up_to: -1}
  rest: {gpu: l40s, replicas: 2}
"""


def test_tiers_have_replicas_of_their_own(capsys, folder):
    promise = "slo: {ttft_p95: 2s, classes: {first: {takes: {share: 20%}, ttft_p95: 1s, priority: -1}}}"
    plain = SCENARIO.split("cold_start", maxsplit=1)[0].replace("slo: {ttft_p95: 2s}", promise)
    Path("small.yaml").write_text(plain + GROUPS)
    code, out, err = ended(capsys, "simulate", "small.yaml", "-o", "out", "--quiet")
    assert (code, err) == (0, "")
    assert "up to -1" in out
    by_replica = pl.read_parquet("out/requests.parquet")["replica"].value_counts(sort=True)
    counts = dict(by_replica.iter_rows())
    assert 0.1 < counts[0] / sum(counts.values()) < 0.21, "the first tier, and nobody else"
    code, _, err = ended(capsys, "simulate", "small.yaml", "--replicas", "3", "-o", "other")
    assert code == 2
    assert "does not go with the scenario's groups" in err
    for old, new, said in (
        ("replicas: 2}", "replicas: 2, up_to: 5}", "every group has a bound"),
        ("replicas: 2}", "replicas: 2, router: least_kv}", "all groups stand behind one"),
    ):
        Path("small.yaml").write_text(plain + GROUPS.replace(old, new))
        code, _, err = ended(capsys, "simulate", "small.yaml", "-o", "other")
        assert code == 2
        assert said in err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[queue, kv]", "gpu_utilization", "60 % busy may use 95 % of its memory bandwidth"),
        ("[queue, kv]", "qeue", "nearest: queue"),
        ("[queue, kv]", "[schedule]", "policy names schedule, and nothing says what it means"),
        ("[queue, kv]", "[active]", "policy names active"),
        ("max: 4", "max: 4\n  start: 9", "is no range"),
        ("max: 4", "max: 4\n  kv: 0.8", "write 0.8% or 80%"),
        ("max: 4", "max: 4\n  schedule: {noon: 3}", '"noon" is no time of day'),
        ("max: 4", "maximum: 4", "unknown key"),
        ("cold_start: 2min", "pools: {chat: {replicas: 1}}", "each pool is scaled on its own"),
    ],
)
def test_scaling_that_makes_no_sense_is_refused(folder, old, new, said):
    Path("small.yaml").write_text(SCENARIO.replace(old, new))
    with pytest.raises(BadInput) as error:
        load_scenario(Path("small.yaml"))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SCENARIO.replace("max: 4", "max: 4\n  gpu_quota: 3"), "4 replicas may come to 4 gpus, and the quota is 3"),
        (SCENARIO.replace("max: 4", "max: 4\n  queue: 50") + LADDER, "the signal never exceeds 40"),
        (SCENARIO + LADDER.replace("waiting: 0.5", "waiting: 3"), "would be left as soon as it is entered"),
        (
            SCENARIO
            + LADDER.replace("cap_output", "smaller_model").replace("limit: 800", "model: small\n      input: 500"),
            "without an evaluation record",
        ),
        (SCENARIO + LADDER + "  batch: [night]\n", "no request has the label night"),
        (SCENARIO.replace("[queue, kv]", "ttft").replace("ttft_p95", "e2e_p95"), "no TTFT is promised"),
    ],
)
def test_what_cannot_work_on_this_fleet_is_refused_before_anything_runs(capsys, folder, text, said):
    Path("small.yaml").write_text(text)
    code, _, err = ended(capsys, "simulate", "small.yaml", "-o", "out")
    assert code == 2
    assert said in err
    assert not Path("out").exists()


def test_replicas_are_named_once(capsys, folder):
    code, _, err = ended(capsys, "simulate", "small.yaml", "--replicas", "3")
    assert code == 2
    assert "the scenario scales its fleet" in err


def test_waits_and_tokens_are_rules_that_see_what_a_scrape_sees(capsys, folder):
    rules = "wait: {0: 2s}\n  active_tokens: 20000\n  free_kv: 20000"
    text = SCENARIO.replace("[queue, kv]", "[wait, active_tokens, free_kv]").replace("max: 4", f"max: 4\n  {rules}")
    Path("small.yaml").write_text(text)
    code, _, err = ended(capsys, "simulate", "small.yaml", "-o", "out", "--quiet")
    assert (code, err) == (0, "")
    ticks = json.loads(Path("out/decisions.json").read_text())["scaling"]
    told = {step["rule"] for step in ticks if step["start_count"]}
    assert told & {"wait", "active_tokens", "free_kv"}
    telemetry = pl.read_parquet("out/telemetry.parquet")
    # The same moments, by the telemetry: what the first tick with a start says is what stood in the fullest replica.
    first = next(step for step in ticks if step["rule"] == "active_tokens" and step["start_count"])
    seen = telemetry.filter(pl.col("time_s") == first["time_s"])["active_tokens"].max()
    assert first["reason"].startswith(f"{seen:,} tokens active in the fullest replica, limit 20,000")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("policy: wait", "policy names wait, and nothing says what it means"),
        ("policy: wait\n  wait: {urgent: 2s}", "does not go by priorities"),
        ("policy: wait\n  wait: soon", '"soon" is not a duration'),
        ("policy: wait\n  wait: {3: 2s}", "no request has priority 3"),
        ("policy: free_kv\n  free_kv: 10000000", "are never free"),
    ],
)
def test_limits_of_waits_and_tokens_that_make_no_sense(capsys, folder, written, said):
    Path("small.yaml").write_text(SCENARIO.replace("policy: [queue, kv]", written))
    code, _, err = ended(capsys, "simulate", "small.yaml", "--quiet")
    assert code == 2
    assert said in err


def test_a_schedule_is_read_with_and_without_quotes(folder):
    text = SCENARIO.replace("[queue, kv]", "schedule").replace("max: 4", 'max: 4\n  schedule: {"08:00": 3, 20:00: 1}')
    Path("small.yaml").write_text(text)
    spec = load_scenario(Path("small.yaml")).autoscaling
    assert spec is not None
    assert spec.schedule == {"08:00": 3, "20:00": 1}


def test_limits_are_told_with_their_units() -> None:
    rule = ScheduleRule(entries=((0.0, 2), (31_500.0, 5)), ahead_s=120.0)
    limits = {name: getattr(rule, name) for name in ("entries", "period_s", "ahead_s", "offset_s")}
    told = "schedule: entries 2 from 00:00 5 from 08:45, period 24 h, ahead 2 min"
    assert scaling_words._thresholds("schedule", limits) == told
    assert (
        scaling_words._thresholds("kv", {"limit_fraction": 0.85, "most_factor": 2.0}) == "kv: limit 85%, most factor 2"
    )
