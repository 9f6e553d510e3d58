"""The main job end to end on a small question: what is written, what is said, what is refused."""

import json
import os
from pathlib import Path

import pytest

from tokenfleet import contract
from tokenfleet.app.cli import main
from tokenfleet.app.plan_files import whole_or_nothing
from tokenfleet.domain.errors import BadInput

SCENARIO = """\
name: small
workload:
  lengths: {input: 700:1500, output: 140:300}
  mean_rate: 4
  duration: 5min
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p99: 2s, itl_p99: 80ms, error_rate: 0.1%}
gpus: [l40s, h100_sxm]
precision: fp8
tensor_parallel: 1
"""
IMPOSSIBLE = SCENARIO.replace("ttft_p99: 2s", "ttft_p99: 5ms")


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments, text=SCENARIO):
        Path("small.yaml").write_text(text)
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def labels(out):
    return [line.split()[0] for line in out.splitlines() if line and not line.startswith(" ")]


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def test_a_plan_says_the_decision_first_and_writes_three_files(run):
    code, out, err = run("plan", "small.yaml", "--quiet")
    assert (code, err) == (0, "")
    assert labels(out) == [
        "Model",
        "Buy",
        "Run",
        "Promise",
        "Losses",
        "Obtain",
        "Limit",
        "Cost",
        "Commit",
        "Rules",
        "Second",
        "Assumed",
        "Next",
    ]
    assert names("small-plan") == ["contract.yaml", "plan.json", "report.html"]
    assert names(".") == ["small-plan", "small.yaml"], "no draft is left"
    assert contract.read_contract(Path("small-plan/contract.yaml"))
    mask = os.umask(0)
    os.umask(mask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in Path("small-plan").iterdir()}
    assert set(modes.values()) == {0o666 & ~mask}, modes


def test_a_plan_for_machines_is_what_lies_in_the_file_and_adds_up(run):
    code, out, err = run("plan", "small.yaml", "--json", "-o", "there")
    document = json.loads(out)
    assert (code, err) == (0, "")
    written = json.loads(Path("there/plan.json").read_text())
    assert document["search"].pop("wall_s") > 0.0
    assert written["search"].pop("wall_s") is None, "the file is the same bytes each time"
    assert document == written
    assert document["feasible"] is True
    (group,) = document["fleet"]
    assert group["gpu_count"] == group["replica_count"] * group["tensor_parallel"]
    assert group["precision"] == "fp8"
    assert document["price_usd_per_hour"] == pytest.approx(group["gpu_count"] * group["price_usd_per_gpu_hour"])
    cost = document["cost"]
    parts = [cost[f"{part}_usd_per_hour"] for part in ("input", "cached", "output", "headroom", "idle", "spare")]
    assert sum(parts) == pytest.approx(cost["total_usd_per_hour"], rel=1e-9)
    assert document["price_usd_per_million_output_tokens"] == cost["usd_per_million_output_tokens"]
    assert [promise["name"] for promise in document["slo"]] == ["ttft_p99", "itl_p99", "error_rate"]
    for promise in document["slo"]:
        assert promise["kept"] is (promise["predicted"] <= promise["promised"])
        assert promise["predicted_low"] <= promise["predicted"] <= promise["predicted_high"]
        assert promise["unit"] in {"s", "fraction"}
    for name in ("binding_limit", "next_limit", "reasons", "assumptions"):
        assert name in document
    resolved = document["resolved"]
    assert resolved["seed"] == 1
    assert resolved["scenario"]["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert set(resolved["versions"]) >= {"tokenfleet", "numpy", "numba"}
    assert all(len(digest) == 64 for digest in resolved["sha256"].values())


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_traffic(run):
    run("plan", "small.yaml", "-o", "first")
    run("plan", "small.yaml", "-o", "second")
    assert Path("first/plan.json").read_bytes() == Path("second/plan.json").read_bytes()
    run("plan", "small.yaml", "-o", "third", text=SCENARIO + "seed: 2\n")
    digests = [json.loads(Path(f"{name}/plan.json").read_text())["resolved"]["sha256"] for name in ("first", "third")]
    assert digests[0]["demand"] != digests[1]["demand"]
    assert digests[0]["model"] == digests[1]["model"]


def test_what_nobody_can_keep_is_an_answer_without_a_contract(run):
    code, out, err = run("plan", "small.yaml", "--quiet", text=IMPOSSIBLE)
    assert (code, err) == (0, "")
    assert "no fleet keeps ttft_p99 = 5ms" in out
    assert "smallest that works:" in out
    assert names("small-plan") == ["plan.json", "report.html"]
    document = json.loads(Path("small-plan/plan.json").read_text())
    assert (document["feasible"], document["fleet"], document["price_usd_per_hour"]) == (False, [], None)
    assert document["reasons"]
    assert document["reasons"][0]["text"]
    code, out, _ = run("plan", "small.yaml", "--quiet", "--require-feasible", "--focus", "bill.csv", text=IMPOSSIBLE)
    assert code == 1
    assert "no fleet, so no bill: bill.csv is not written" in out


def test_an_old_contract_is_left_alone_and_called_stale(run):
    run("plan", "small.yaml", "--quiet")
    old = Path("small-plan/contract.yaml").read_bytes()
    Path("small-plan/mine.txt").write_text("notes")
    _, out, _ = run("plan", "small.yaml", "--quiet", text=IMPOSSIBLE)
    assert "contract.yaml is of an earlier plan" in " ".join(out.split())
    assert Path("small-plan/contract.yaml").read_bytes() == old
    assert Path("small-plan/mine.txt").read_text() == "notes"


def test_a_pipe_sees_no_progress(run):
    code, _, err = run("plan", "small.yaml")
    assert code == 0
    assert err == "" or err.startswith("Compiling"), "only the one-time compile may speak"


LOGGED = SCENARIO.replace(SCENARIO[SCENARIO.index("  lengths") : SCENARIO.index("model:")], "  trace: t.csv\n  MORE\n")


@pytest.mark.parametrize(
    ("log", "more", "said"),
    [
        (
            "when_s,input_tokens,output_tokens\n0,5,6\n",
            "columns:\n    time: when_s\n    input_tokens: inputtokens",
            [
                "small.yaml:5: workload.columns.time: there is no such role; did you mean arrival? roles: arrival, ",
                "small.yaml:6: workload.columns.input_tokens: {log} has no column 'inputtokens'; did you mean 'input",
            ],
        ),
        (
            "when,input_tokens,output_tokens\n0,5,6\n",
            "growth: 1",
            ["{log}: no column for arrival; is it 'when'? say workload: {{columns: {{arrival: when}}}}; columns: "],
        ),
        (
            "time,input_tokens,output_tokens\n0,5,6\n1,5,6\n",
            "growth: 1",
            ["the file does not say; say workload: {{time_unit: s}}, or ms, us, ns"],
        ),
        (
            "time,input_tokens,output_tokens\n2026-01-01 00:00:00,5,6\n",
            "zone: Berlin",
            ["small.yaml:4: workload.zone: there is no time zone 'Berlin'; did you mean 'Europe/Berlin'?"],
        ),
        ("time_s,input_tokens,output_tokens\n0,5,0\n", "growth: 1", ["say workload: {{zero_output: keep}}"]),
        ("time_s,input_tokens,output_tokens\n", "growth: 1", ["{log}: has no rows; export the log again"]),
        (
            'time_s,input_tokens,output_tokens\n0,"5,6\n',
            "growth: 1",
            ["can be used (1 x not a record; the first at {log}:2); check the export"],
        ),
    ],
)
def test_what_is_wrong_with_a_log_is_said_by_line_key_and_mend(run, log, more, said):
    Path("t.csv").write_text(log)
    code, out, err = run("plan", "small.yaml", "--quiet", text=LOGGED.replace("MORE", more))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == len(said) + 1
    for text in said:
        assert text.format(log=Path("t.csv").resolve()) in err
    assert names(".") == ["small.yaml", "t.csv"], "nothing was written"


def test_a_folder_that_cannot_be_is_refused_before_any_work(run, monkeypatch):
    monkeypatch.setattr("tokenfleet.planner.plan", None)
    Path("taken").write_text("a file")
    code, _, err = run("plan", "small.yaml", "-o", "taken")
    assert code == 2
    assert "taken: is a file; the plan needs a folder" in err
    Path("out").mkdir()
    for focus, problem in (("no/bill.csv", "there is no folder"), ("out", "is a folder, not a file")):
        code, _, err = run("plan", "small.yaml", "-o", "new", "--focus", focus)
        assert code == 2
        assert problem in err
        assert not Path("new").exists()


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (RuntimeError("broken"), 70)])
def test_nothing_half_written_is_left_when_it_stops(run, monkeypatch, stop, code):
    def stopped(*_arguments, **_options):
        raise stop

    monkeypatch.setattr("tokenfleet.app.plan_files.write_report", stopped)
    found, _, _ = run("plan", "small.yaml", "--quiet")
    assert found == code
    assert names(".") == ["small.yaml"]


def test_files_move_only_when_all_are_written(tmp_path):
    def half_a_plan():
        with whole_or_nothing(tmp_path / "plan") as draft:
            (draft / "a").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half_a_plan()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be written"), whole_or_nothing(tmp_path / "file" / "below"):
        pass


def test_a_problem_found_while_drawing_names_its_line(run):
    text = SCENARIO.replace("mean_rate: 4", "mean_rate: 4\n  peak_to_mean: 50")
    code, _, err = run("plan", "small.yaml", text=text)
    assert code == 2
    assert err.startswith("small.yaml:5: workload.peak_to_mean: 5 minutes cannot have a minute 50 times the mean")


def test_engine_settings_of_a_person_are_not_varied(run):
    text = SCENARIO + "engine: {name: vllm, max_batched_tokens: 4096}\n"
    code, out, _ = run("plan", "small.yaml", "--quiet", text=text)
    assert code == 0
    assert "max_batched_tokens 4,096" in out


def test_a_saved_estimate_plans_to_the_same_fleet(run):
    question = ["--model", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100_sxm,l40s", "--precision", "fp8"]
    load = ["--rate", 20, "--input", "700:1500", "--output", "140:300", "--ttft-p99", "2s", "--tp", 1]
    code, out, err = run("estimate", *question, *load, "--json", "--save", "there/chat.yaml")
    assert (code, err) == (0, "")
    code, planned, _ = run("plan", "there/chat.yaml", "--json")
    assert code == 0
    assert json.loads(planned)["fleet"] == json.loads(out)["fleet"]
    assert json.loads(planned)["resolved"]["sha256"] == json.loads(out)["resolved"]["sha256"]


def test_an_encoder_is_refused_with_its_line(run):
    code, _, err = run("plan", "small.yaml", text=SCENARIO.replace("meta-llama/Llama-3.1-8B-Instruct", "BAAI/bge-m3"))
    assert code == 2
    assert err.startswith("small.yaml:6: model: BAAI/bge-m3 is an encoder")
    assert "pools: {embed: {gpu: l4}}" in err


LOG = "time,input_tokens,output_tokens\n" + "".join(
    f"2026-01-01T00:{minute:02}:{second:02}Z,{500 + 7 * second},{100 + second}\n"
    for minute in range(5)
    for second in range(0, 60, 2)
)


def test_a_log_of_ones_own_is_planned_and_its_left_out_rows_are_told(run):
    Path("log.csv").write_text(LOG + "2026-01-01T00:05:00Z,100,\n")
    drawn = "lengths: {input: 700:1500, output: 140:300}\n  mean_rate: 4\n  duration: 5min"
    code, out, _ = run("plan", "small.yaml", "--quiet", text=SCENARIO.replace(drawn, "trace: log.csv"))
    assert code == 0
    assert "150 of 151 rows used; left out: 1 " in " ".join(out.split())
    assert "as logged in log.csv" in out
    document = json.loads(Path("small-plan/plan.json").read_text())
    assert document["workload"]["request_count"] == 150
    assert document["resolved"]["scenario"]["workload"]["trace"] == ["log.csv"], "no path of this machine"


def test_growth_and_profiles_scale_the_demand(run, tmp_path):
    from tokenfleet import workload
    from tokenfleet.app.compose import demand
    from tokenfleet.app.scenario_types import WorkloadSource

    Path("log.csv").write_text(LOG)
    today, known = demand(WorkloadSource.model_validate({"trace": "log.csv"}), 1)
    grown, _ = demand(WorkloadSource.model_validate({"trace": "log.csv", "growth": 2}), 1)
    assert grown.request_count == pytest.approx(2 * today.request_count, rel=0.02)
    workload.save_profile(known, tmp_path / "profile.json")
    like = {"profile": "profile.json", "mean_rate": 2, "duration": "5min"}
    drawn, _ = demand(WorkloadSource.model_validate(like), 1)
    assert drawn.request_count == pytest.approx(600, rel=0.05)


def test_prefill_and_decode_apart_are_tried_when_asked_and_priced_beside_the_fleet(run) -> None:
    code, out, _ = run("plan", "small.yaml", text=SCENARIO + "disaggregated: infiniband_400g\n")
    assert code == 0
    words = " ".join(out.split())
    assert "Apart prefill: " in words
    assert "KV crosses infiniband_400g in " in words
    plan = json.loads(Path("small-plan/plan.json").read_text())
    apart = plan["disaggregated"]
    assert "Prefill and decode in pools of their own" in Path("small-plan/report.html").read_text()
    assert apart["feasible"]
    assert apart["price_usd_per_hour"] == pytest.approx(
        apart["prefill"]["price_usd_per_hour"] + apart["decode"]["price_usd_per_hour"]
    )
    assert apart["price_over_together"] == pytest.approx(apart["price_usd_per_hour"] / plan["price_usd_per_hour"])
    assert all(result["kept"] for result in apart["slo"])


def test_a_link_that_no_gpu_has(run) -> None:
    code, _, err = run(
        "plan", "small.yaml", text=SCENARIO.replace("[l40s, h100_sxm]", "l40s") + "disaggregated: {link: nvlink}\n"
    )
    assert code == 2
    assert "l40s has no nvlink that we know of" in " ".join(err.split())
