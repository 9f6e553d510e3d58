"""The replay of a fleet one names, end to end: what is written, how it adds up, what is said, what is refused."""

import json
import re
from pathlib import Path

import plotly.graph_objects
import polars as pl
import pytest

from commands import ended
from reference.fleets import fleet
from tokenfleet.app.cli import main
from tokenfleet.app.simulate_files import FILES
from tokenfleet.app.simulate_run import interval_for

SCENARIO = """\
name: small
workload:
  lengths: {input: 700:1500, output: 140:300}
  mean_rate: 4
  duration: 4min
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p50: 1s, ttft_p99: 2s, itl_p99: 80ms, e2e_p95: 20s, error_rate: 0.1%}
gpus: [l40s, h100_sxm]
precision: fp8
"""
PAGE = Path(__file__).resolve().parents[3] / "docs" / "simulator-output.md"


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments, text=SCENARIO):
        Path("small.yaml").write_text(text)
        return ended(capsys, *arguments)

    return run


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """One simulation for every test that only reads what it wrote."""
    folder = tmp_path_factory.mktemp("simulated")
    (folder / "small.yaml").write_text(SCENARIO)
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", str(folder / "small.yaml"), "--gpu", "l40s", "--replicas", "2", "-o", str(folder), "--quiet"])
    assert stopped.value.code == 0
    return folder


@pytest.fixture(scope="module")
def summary(simulated):
    return json.loads((simulated / "summary.json").read_text())


def test_requests_telemetry_gaps_and_summary_tell_one_story(simulated, summary):
    requests = pl.read_parquet(simulated / "requests.parquet")
    gauges = pl.read_parquet(simulated / "telemetry.parquet")
    gaps = json.loads((simulated / "gaps.json").read_text())
    assert requests.height == summary["request_count"] == summary["finished_count"] > 900
    assert requests["arrival_s"].is_sorted()
    assert (requests["first_token_s"] > requests["arrival_s"]).all()
    assert (requests["finish_s"] >= requests["first_token_s"]).all()
    for column in ("arrived_count", "first_token_count", "finished_count"):
        assert gauges[column].sum() == requests.height
    per_replica = gauges.group_by("replica").agg(pl.col("finished_count").sum()).sort("replica")["finished_count"]
    assert per_replica.to_list() == [row["request_count"] for row in summary["replicas"]]
    assert sum(each["count"] for each in gaps["whole"]) == (requests["output_tokens"] - 1).clip(0).sum()
    assert gauges["kv_used_fraction"].max() == max(row["kv_peak_fraction"] for row in summary["replicas"])


def test_what_replicas_did_is_what_requests_took(simulated, summary):
    requests = pl.read_parquet(simulated / "requests.parquet")
    gauges = pl.read_parquet(simulated / "telemetry.parquet")
    interval_s = summary["telemetry_interval_s"]
    busy_s = summary["busy"]["prefill_s"] + summary["busy"]["decode_s"]
    took_s = requests["prefill_gpu_s"].sum() + requests["decode_gpu_s"].sum()
    assert took_s == pytest.approx(busy_s, rel=1e-9)
    assert gauges["busy_fraction"].sum() * interval_s == pytest.approx(busy_s, rel=1e-9)
    parts = [f"{name}_fraction" for name in ("compute", "bandwidth", "communication", "overhead")]
    assert gauges.select(sum(pl.col(part) for part in parts)).to_series().to_list() == pytest.approx(
        gauges["busy_fraction"].to_list()
    )
    assert set(gauges["bound_by"].unique()) <= {"compute", "bandwidth", "overhead", None}
    assert (gauges["bound_by"].is_null() == (gauges["busy_fraction"] == 0.0)).all()
    assert gauges["prefill_tokens_per_s"].sum() * interval_s == pytest.approx(requests["input_tokens"].sum())
    decoded = (requests["output_tokens"] - 1).sum()
    assert gauges["decode_tokens_per_s"].sum() * interval_s == pytest.approx(decoded)


def test_waits_and_the_fleet_add_up(simulated, summary):
    requests = pl.read_parquet(simulated / "requests.parquet")
    waits = pl.read_parquet(simulated / "waits.parquet")
    whole = pl.read_parquet(simulated / "fleet.parquet")
    assert waits["scheduled_count"].sum() == requests.height
    waited_s = (requests["scheduled_s"] - requests["queued_s"]).sum()
    assert (waits["scheduled_count"] * waits["wait_mean_s"]).sum() == pytest.approx(waited_s)
    assert waits["wait_longest_s"].max() == pytest.approx((requests["scheduled_s"] - requests["queued_s"]).max())
    assert (waits["priority"].is_null()).all()
    assert set(whole["ready_count"]) == {2}
    assert whole["starting_count"].sum() == whole["rejected_count"].sum() == 0
    paid = whole.filter(pl.col("usd_per_million_output_tokens").is_not_null())
    interval_s = summary["telemetry_interval_s"]
    # Two replicas of one gpu: price times tokens is the same sum of money in every interval.
    assert paid.height > 10
    assert (paid["usd_per_million_output_tokens"] > 0).all()
    assert whole["decode_tokens_per_s"].sum() * interval_s == pytest.approx((requests["output_tokens"] - 1).sum())


def test_in_flight_is_what_arrived_and_has_not_finished(simulated):
    gauges = pl.read_parquet(simulated / "telemetry.parquet").sort("replica", "time_s")
    count = gauges.select(
        inside=(pl.col("arrived_count") - pl.col("finished_count")).cum_sum().over("replica"),
        seen=pl.col("running") + pl.col("waiting"),
    )
    # A request is at the front end before its scheduler sees it, so a few may be inside and not yet seen.
    assert (count["inside"] >= count["seen"]).all()
    assert (count["inside"] - count["seen"]).mean() < 0.5


def test_goodput_counts_requests_within_the_limits_at_the_highest_quantile(simulated, summary):
    requests = pl.read_parquet(simulated / "requests.parquet")
    good = requests.filter(
        (pl.col("first_token_s") - pl.col("arrival_s") <= 2.0) & (pl.col("finish_s") - pl.col("arrival_s") <= 20.0)
    )
    assert summary["goodput"]["request_count"] == good.height
    assert summary["goodput"]["fraction"] == pytest.approx(good.height / requests.height)
    assert sorted(summary["goodput"]["clauses"]) == ["e2e_p95", "ttft_p99"]


def test_the_summary_has_quantiles_promises_and_a_diagnosis(summary):
    assert list(summary["latency_s"]) == ["ttft", "tpot", "itl", "e2e"]
    for values in summary["latency_s"].values():
        assert 0 < values["p50"] <= values["p95"] <= values["p99"]
    names = ["ttft_p50", "ttft_p99", "itl_p99", "e2e_p95", "error_rate"]
    for stretch in ("whole", "peak"):
        assert [each["name"] for each in summary[stretch]["slo"]] == names
        assert all(each["predicted_low"] <= each["predicted"] for each in summary[stretch]["slo"])
    found = summary["peak"]["diagnosis"]
    assert (found["verdict"], found["alarm"]) == ("fine", "none")
    assert 1.0 <= found["ttft"]["factor"] < 3.0
    assert 0 < found["prefill_fraction"] < 1
    assert found["text"][0]
    busy = summary["busy"]["prefill_s"] + summary["busy"]["decode_s"]
    assert summary["busy_fraction"] == pytest.approx(busy / 2 / (summary["duration_s"]), rel=0.02)


def test_every_name_and_column_is_on_its_page(simulated, summary):
    text = PAGE.read_text()
    for name in summary:
        assert f"`{name}`" in text
    for name in ("requests", "telemetry", "waits", "fleet"):
        part = text.split(f"## {name}.parquet")[1].split("## ")[0]
        rows = re.findall(r"^\| (`.*?) \| (\w+) \|", part, re.MULTILINE)
        documented = {column.strip("` "): kind for columns, kind in rows for column in columns.split(",")}
        written = {column: str(kind) for column, kind in pl.read_parquet_schema(simulated / f"{name}.parquet").items()}
        sometimes = {
            "requests": dict.fromkeys(("session", "tenant", "attempt_count", "partial_output_tokens"), "Int32")
            | {"degraded_by": "String"},
            "telemetry": {"state": "String"},
        }
        assert documented == written | sometimes.get(name, {})


def test_the_page_is_one_file_that_fetches_nothing(simulated):
    text = (simulated / "timeline.html").read_text()
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', text, re.DOTALL)[1])
    work = {"busy", "tokens", "waits", "price"}
    assert set(figures) == {"rates", "queue", "kv", "fullest-queue", "ttft-over-time", "gaps"} | work
    for key, figure in figures.items():
        plain = json.loads(re.sub(r"var\(--[\w-]+\)", "#123456", json.dumps(figure)))
        drawn = plotly.graph_objects.Figure(plain)
        assert drawn.layout.xaxis.title.text
        assert drawn.layout.yaxis.title.text
        assert f'id="{key}"' in text
    ours = re.sub(r'<script type="text/plain".*?</script>', "", text, flags=re.DOTALL)
    assert not re.search(r"https?:|\ssrc=|<link|<img|@import", ours)
    assert not re.search(r"\b(None|NaN|nan|Undefined)\b", re.sub(r"<(script|style).*?</\1>", "", ours, flags=re.DOTALL))


LONG_PROMPTS = SCENARIO.replace("700:1500", "6000:12000").replace("140:300", "20:40")
LONG_ANSWERS = (
    SCENARIO.replace("700:1500", "60:120").replace("140:300", "300:600").replace("mean_rate: 4", "mean_rate: 14")
)
BIG_CONTEXTS = SCENARIO.replace("700:1500", "3000:6000").replace("140:300", "400:800").replace("fp8", "bf16")
ROOMY = "engine: {name: vllm, max_sequence_count: 1024}\n"


@pytest.mark.parametrize(
    ("text", "verdict", "said"),
    [
        (LONG_PROMPTS, "prefill", "prefill is saturated: first tokens wait"),
        (LONG_ANSWERS + ROOMY, "decode", "decode is saturated"),
        (LONG_ANSWERS, "sequence_slots", "every sequence slot is taken"),
        (BIG_CONTEXTS, "kv", "KV memory is full"),
    ],
)
def test_too_small_a_fleet_says_why_it_is_slow(run, text, verdict, said):
    code, out, err = run("simulate", "small.yaml", "--gpu", "l40s", "--quiet", "-o", "slow", text=text)
    assert (code, err) == (0, "")
    assert said in " ".join(out.split())
    found = json.loads(Path("slow/summary.json").read_text())["peak"]["diagnosis"]
    assert found["verdict"] == verdict
    assert sorted(path.name for path in Path("slow").iterdir()) == sorted(FILES)


def test_a_long_queue_alarms_and_the_alarm_can_be_set(run):
    code, out, _ = run("simulate", "small.yaml", "--gpu", "l40s", "--quiet", text=LONG_PROMPTS)
    assert code == 0
    assert "EMERGENCY: " in out
    calm = ("--warn-waiting", 5000, "--alarm-waiting", 9000)
    code, out, _ = run("simulate", "small.yaml", "--gpu", "l40s", "--quiet", *calm, text=LONG_PROMPTS)
    assert code == 0
    assert "EMERGENCY" not in out
    assert "WARNING" not in out


def test_json_is_the_summary_and_the_same_twice(run):
    arguments = ("simulate", "small.yaml", "--gpu", "h100_sxm", "--tp", 2, "--interval", "10s", "--json", "-o")
    code, out, err = run(*arguments, "one")
    assert (code, err) == (0, "")
    assert out == Path("one/summary.json").read_text()
    group = json.loads(out)["fleet"][0]
    assert (group["gpu"], group["gpu_count"], group["replica_count"]) == ("h100_sxm", 2, 1)
    run(*arguments, "two")
    for name in FILES:
        assert (Path("one") / name).read_bytes() == (Path("two") / name).read_bytes()
    assert pl.read_parquet("one/telemetry.parquet")["time_s"][:2].to_list() == [10.0, 20.0]


PLANNED = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "fleet": [
        {
            "gpu": "h100_sxm",
            "gpu_count": 3,
            "replica_count": 3,
            "tensor_parallel": 1,
            "precision": "fp8",
            "kv_dtype": "bf16",
            "engine": "vllm-0.32",
            "max_batched_tokens": 2048,
            "max_sequence_count": 128,
            "context_limit_tokens": None,
            "prefix_caching": True,
            "chunked_prefill": True,
            "pipeline_parallel": 1,
            "attention_data_parallel": 1,
            "expert_parallel": 1,
            "router": "round_robin",
        }
    ],
}


def test_a_plan_gives_the_fleet_and_its_settings(run):
    Path("plan.json").write_text(json.dumps(PLANNED))
    code, out, _ = run("simulate", "small.yaml", "--plan", ".", "--replicas", 2, "--json")
    assert code == 0
    group = json.loads(out)["fleet"][0]
    assert (group["replica_count"], group["max_batched_tokens"], group["max_sequence_count"]) == (2, 2048, 128)
    assert json.loads(out)["router"] == "round_robin"
    assert Path("small-simulation/summary.json").exists()


@pytest.mark.parametrize(
    "chosen", ["tensor_parallel: 1", "pipeline_parallel: 2\nvary: {prefix_caching: false, context_limit: 8000}"]
)
def test_the_fleet_of_a_plan_does_what_the_plan_predicts(run, chosen):
    code, out, _ = run("plan", "small.yaml", "--json", "-o", "planned", text=f"{SCENARIO}{chosen}\n")
    assert code == 0
    plan = json.loads(out)
    count = plan["fleet"][0]["carrying_replica_count"]
    _, whole, _ = run("simulate", "small.yaml", "--plan", "planned", "--json")
    _, spare_gone, _ = run("simulate", "small.yaml", "--plan", "planned/plan.json", "--replicas", count, "--json")
    assert json.loads(whole)["peak"]["slo"] == plan["redundancy"][0]["slo_peak"]
    assert json.loads(whole)["whole"]["slo"] == plan["redundancy"][0]["slo_overall"]
    assert json.loads(spare_gone)["peak"]["slo"] == plan["slo"]


def test_groups_of_a_plan_stand_side_by_side(run):
    other = {**PLANNED["fleet"][0], "gpu": "l40s", "replica_count": 1, "max_batched_tokens": 4096}
    Path("plan.json").write_text(json.dumps({**PLANNED, "fleet": [PLANNED["fleet"][0], other]}))
    code, out, _ = run("simulate", "small.yaml", "--plan", "plan.json", "--json")
    assert code == 0
    assert [row["gpu"] for row in json.loads(out)["replicas"]] == ["h100_sxm"] * 3 + ["l40s"]
    code, _, err = run("simulate", "small.yaml", "--plan", "plan.json", "--replicas", 2)
    assert (code, err.splitlines()[0]) == (2, "--replicas: plan.json has 2 groups; leave it out")


LOG = "time,input_tokens,output_tokens,ttft_s\n" + "".join(
    f"2026-01-01T00:{minute:02}:{second:02}Z,{500 + 7 * second},{100 + second},{{seen}}\n"
    for minute in range(3)
    for second in range(0, 60, 2)
)


def test_a_log_of_this_fleet_tells_a_slow_client(run):
    drawn = "lengths: {input: 700:1500, output: 140:300}\n  mean_rate: 4\n  duration: 4min"
    text = SCENARIO.replace(drawn, "trace: log.csv")
    Path("log.csv").write_text(LOG.replace("{seen}", "3.5"))
    code, out, _ = run("simulate", "small.yaml", "--gpu", "h100_sxm", "--as-logged", "--quiet", text=text)
    assert code == 0
    assert "the client is not" in " ".join(out.split())
    assert "90 of 90 rows used" in out
    grown = text.replace("trace: log.csv", "trace: log.csv\n  growth: 2")
    code, _, err = run("simulate", "small.yaml", "--gpu", "h100_sxm", "--as-logged", text=grown)
    assert code == 2
    assert "--as-logged: the demand is grown" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--gpu: the scenario leaves a choice: l40s, h100_sxm; name one with --gpu"),
        (["--gpu", "h1000"], "--gpu: "),
        (["--gpu", "l40s", "--replicas", "0"], "--replicas: "),
        (["--gpu", "l40s", "--precision", "fp9"], '--precision: "fp9" is not known'),
        (["--gpu", "l40s", "--tp", "3"], "--tp: "),
        (["--gpu", "l40s", "--interval", "soon"], "--interval: "),
        (["--gpu", "l40s", "--alarm-waiting", "5"], "--alarm-waiting: 5 is below --warn-waiting 10"),
        (["--gpu", "l40s", "--as-logged"], "--as-logged: the demand has no times that clients saw"),
        (["--gpu", "l40s", "-o", "small.yaml"], "small.yaml: is a file; a simulation needs a folder"),
        (["--plan", "none.json"], "none.json: cannot be read"),
        (["--plan", "small.yaml"], "small.yaml: is no JSON"),
        (["--plan", "plan.json", "--gpu", "l40s"], "--gpu: does not go with --plan"),
        (["--plan", "other.json"], "other.json: plans meta-llama/Llama-3.3-70B-Instruct"),
        (["--plan", "empty.json"], "empty.json: holds no fleet"),
        (["--plan", "odd.json"], "odd.json: fleet[0].gpu: "),
    ],
)
def test_what_cannot_be_used_is_refused_and_nothing_is_written(run, arguments, said):
    Path("plan.json").write_text(json.dumps(PLANNED))
    Path("other.json").write_text(json.dumps({**PLANNED, "model": "meta-llama/Llama-3.3-70B-Instruct"}))
    Path("empty.json").write_text(json.dumps({**PLANNED, "fleet": []}))
    Path("odd.json").write_text(json.dumps({**PLANNED, "fleet": [{**PLANNED["fleet"][0], "gpu": "h1000"}]}))
    code, out, err = run("simulate", "small.yaml", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert not list(Path().glob("*simulation*"))


@pytest.mark.parametrize(
    ("duration_s", "interval_s"), [(10.0, 0.1), (86_400.0, 5.0), (604_800.0, 30.0), (7.6e7, 7.6e7 / 20_160)]
)
def test_samples_come_at_round_times(duration_s, interval_s):
    assert interval_for(duration_s, [fleet(count=100)]) == pytest.approx(interval_s)
    # As many gauges of ten thousand replicas have room as of two hundred.
    assert interval_for(duration_s, [fleet(count=6000), fleet(count=4000)]) >= duration_s / 400
