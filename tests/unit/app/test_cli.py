"""How commands end: streams, exit codes, one clear message, nothing half-written."""

import json
import os
import subprocess
import sys

import pytest

from tokenfleet.app.cli import face as face_module
from tokenfleet.app.cli import main
from tokenfleet.domain.errors import OutOfRange

MODEL = "meta-llama/Llama-3.3-70B-Instruct"
LENGTHS = ["--input", "700:1500", "--output", "140:300"]


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def test_the_help_imports_nothing_heavy():
    script = (
        "import sys\n"
        "from tokenfleet.app.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'numba', 'polars', 'pydantic', 'yaml', 'rich', 'jinja2', 'plotly', 'scipy'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "estimate" in done.stdout
    assert done.stdout.rstrip().endswith("HEAVY []")


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "tokenfleet", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("tokenfleet ")


def test_a_reader_that_goes_away_is_no_failure():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "tokenfleet", "memory", "--model", MODEL, "--gpu", "h100_sxm"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_without_a_command_the_help_is_shown(run):
    code, out, err = run()
    assert (code, err) == (0, "")
    assert "First minute:" in out


def test_an_unknown_command_or_option_names_the_nearest(run):
    code, out, err = run("paln", "x.yaml")
    assert (code, out) == (2, "")
    assert 'no command "paln"; nearest: plan' in err
    code, _, err = run("memory", "--modle", MODEL)
    assert code == 2
    assert "--model" in err


def test_memory_says_what_eats_the_memory(run):
    code, out, err = run("memory", "--model", MODEL, "--gpu", "H100-80GB", "--precision", "fp8")
    assert (code, err) == (0, "")
    for word in ("h100_sxm", "weights", "kv cache", "sequences of"):
        assert word in out


def test_memory_for_machines_adds_up(run):
    code, out, err = run("memory", "--model", MODEL, "--gpu", "h100_sxm", "--tp", 2, "--context", 8192, "--json")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert answer["fits"] is True
    assert sum(answer["terms_bytes"].values()) == answer["total_bytes"]
    assert answer["terms_bytes"]["weights"] == answer["weights_bytes"]
    assert answer["kv_bytes_per_token"] == 2 * 80 * 8 * 128 * 2 // 2, (
        "keys and values, 80 layers, 8 heads, 2 bytes, TP2"
    )
    blocks = -(-8192 // 16)
    assert answer["max_sequence_count"] == answer["kv_capacity_tokens"] // 16 // blocks


def test_what_does_not_fit_is_an_answer_with_a_way_out(run):
    arguments = ["memory", "--model", "deepseek-ai/DeepSeek-V3", "--gpu", "h100_sxm", "--tp", 8]
    code, out, _ = run(*arguments)
    assert code == 0
    assert "does not fit" in " ".join(out.split())
    assert "smallest that fits:" in out
    code, out, _ = run(*arguments, "--json")
    answer = json.loads(out)
    assert (answer["fits"], answer["max_sequence_count"]) == (False, 0)
    assert answer["reasons"]
    assert answer["smallest_that_fits"][0]["gpu_count"] >= 8


def test_a_context_beyond_the_model_is_said(run):
    _, out, _ = run("memory", "--model", "Qwen/Qwen3-8B", "--gpu", "h100_sxm", "--context", 200000)
    assert "200,000 tokens are more than the 40,960 the model was made for" in " ".join(out.split())


def test_a_profile_gives_the_contexts_to_count_at(run, tmp_path):
    from tokenfleet import workload

    drawn = workload.draw_trace(
        workload.Lengths.parse("700:1500"), workload.Lengths.parse("140:300"), mean_rate_per_s=5, peak_to_mean=2,
        interarrival_cv=2, duration_s=300, seed=1,
    )  # fmt: skip
    known = workload.profile(drawn)
    workload.save_profile(known, tmp_path / "profile.json")
    question = ["memory", "--model", MODEL, "--gpu", "h100_sxm", "--tp", 4, "--profile", "profile.json", "--json"]
    answer = json.loads(run(*question)[1])
    counted = {each["name"]: each for each in answer["sequences"]}
    median = counted["p50 of the profile"]
    assert median["context_tokens"] == round(known.input_tokens.p50 + known.output_tokens.p50)
    assert median["sequence_count"] > counted["p95 of the profile"]["sequence_count"] > 0


def test_all_problems_of_a_command_line_come_at_once(run):
    code, out, err = run(
        "memory", "--model", "llama-99", "--gpu", "h1000", "--tp", "two", "--precision", "fp9", "--context", "32k"
    )
    assert (code, out) == (2, "")
    for option in ("--model: ", "--gpu: ", "--tp: ", "--precision: ", "--context: "):
        assert option in err
    assert err.rstrip().endswith("5 problems stop the answer. Nothing was written.")


def test_problems_for_machines_are_one_json_object_on_stderr(run):
    code, out, err = run("memory", "--json", "--model", MODEL, "--gpu", "h1000")
    assert (code, out) == (2, "")
    (problem,) = json.loads(err)["problems"]
    assert problem["where"] == "--gpu"
    assert "h100_sxm" in problem["mend"]
    code, out, err = run("memory", "--modle", MODEL, "--json")
    assert (code, out) == (2, "")
    assert "--model" in json.loads(err)["problems"][0]["what"]


def test_estimate_refuses_with_the_option_that_is_wrong(run):
    code, out, err = run(
        "estimate", "--model", MODEL, "--rate", "fast", "--input", "1500:700", "--output", "140:300",
        "--ttft-p99", "2 sec", "--slo", "itl_99=1s", "--precision", "fp9,bf16",
    )  # fmt: skip
    assert (code, out) == (2, "")
    for option in ("--rate: ", "--input: ", "--ttft-p99: ", "--slo: ", "--precision: "):
        assert f"\n{option}" in f"\n{err}", err
    assert err.rstrip().endswith("Nothing was written.")


def test_estimate_needs_a_promise_and_lengths(run):
    code, _, err = run("estimate", "--model", MODEL, "--rate", 20)
    assert code == 2
    assert "promises no latency" in err
    assert "does not say where the demand comes from" in err


def test_a_saved_estimate_is_not_overwritten(run, tmp_path):
    (tmp_path / "chat.yaml").write_text("mine")
    code, _, err = run("estimate", "--model", MODEL, "--rate", 20, *LENGTHS, "--ttft-p99", "2s", "--save", "chat.yaml")
    assert code == 2
    assert "--force" in err
    assert (tmp_path / "chat.yaml").read_text() == "mine"


def test_plan_of_a_bad_file_writes_nothing(run, tmp_path):
    (tmp_path / "chat.yaml").write_text("name: chat\nslo: {ttft_p99: 2 sec}\ngpus: [h1000]\n")
    code, out, err = run("plan", "chat.yaml")
    assert (code, out) == (2, "")
    assert 'chat.yaml:2: slo.ttft_p99: "2 sec" is not a duration; write 2s or 2000ms' in err
    assert err.rstrip().endswith("4 problems stop the plan. Nothing was written.")
    assert [path.name for path in tmp_path.iterdir()] == ["chat.yaml"]


def test_a_bug_is_told_from_bad_input(run, monkeypatch):
    def broken(*_arguments, **_options):
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("tokenfleet.app.fit_question.answered", broken)
    code, out, err = run("memory", "--model", MODEL, "--gpu", "h100_sxm")
    assert (code, out) == (70, "")
    assert "This is a bug of tokenfleet" in err
    assert "Traceback" not in err
    code, _, err = run("memory", "--model", MODEL, "--gpu", "h100_sxm", "--debug")
    assert code == 70
    assert "Traceback" in err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "Stopped"),
        (OutOfRange("beyond 1M tokens"), 2, "beyond 1M tokens"),
        (
            OSError(28, "No space left on device", "x/plan.json"),
            2,
            "x/plan.json: no space left on device; name another",
        ),
    ],
)
def test_other_ends(run, monkeypatch, error, code, message):
    def ending(*_arguments, **_options):
        raise error

    monkeypatch.setattr("tokenfleet.app.fit_question.answered", ending)
    found, out, err = run("memory", "--model", MODEL, "--gpu", "h100_sxm")
    assert (found, out) == (code, "")
    assert message in err


def test_a_name_that_no_file_can_have_is_a_name_nobody_knows(run):
    code, out, err = run("memory", "--model", "x" * 500, "--gpu", "h100_sxm")
    assert (code, out) == (2, "")
    assert err.startswith("--model: unknown model 'xxx")
    code, out, err = run("profile", "x" * 500)
    assert (code, out) == (2, "")
    assert err.startswith("xxx")
    assert "...: file name too long; name another" in err


@pytest.mark.parametrize("columns", ["20", "60", "300"])
def test_no_line_is_wider_than_the_terminal(run, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = run("memory", "--model", MODEL, "--gpu", "h100_sxm")
    assert max(map(len, out.splitlines())) <= face_module.width()


def test_an_estimate_draws_enough_for_a_p99_and_for_the_peak_asked_for():
    from tokenfleet.app.cli.estimate import duration_for

    assert duration_for("20", None) == "4min"
    assert duration_for("60/min", None) == "67min"
    assert duration_for("0.001", None) == "240min"
    assert duration_for("20", "9") == "11min", "one minute of 11 can be 9 times the mean"
    assert duration_for("fast", None) == "4min", "the rate itself is refused elsewhere"


def test_an_estimate_imports_neither_log_formats_nor_the_paper_of_contracts():
    script = (
        "import sys\n"
        "from tokenfleet.app import compose, scenario, summary, writing\n"
        "late = ('tokenfleet.workload.formats', 'tokenfleet.workload.read', 'tokenfleet.contract.schema',\n"
        "        'tokenfleet.app.report', 'polars', 'plotly', 'jinja2', 'rich')\n"
        "print('EARLY', [name for name in late if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "EARLY []\n"


def test_the_asked_context_must_fit(run):
    arguments = ["memory", "--model", "Qwen/Qwen2.5-32B-Instruct-AWQ", "--gpu", "rtx_4090", "--json"]
    answer = json.loads(run(*arguments, "--context", 8192)[1])
    assert (answer["fits"], answer["max_sequence_count"]) == (False, 0)
    assert any("8,192 tokens" in reason for reason in answer["reasons"])
    answer = json.loads(run(*arguments, "--context", 2048)[1])
    assert answer["fits"] is True
    assert answer["max_sequence_count"] >= 1


def test_missing_facts_are_unknown_and_not_a_verdict(run):
    code, out, _ = run("memory", "--model", "Qwen/Qwen3.8-27B", "--gpu", "h200_sxm", "--json")
    answer = json.loads(out)
    assert code == 0
    assert (answer["fits"], answer["weights_bytes"], answer["max_sequence_count"]) == (None, None, None)
    assert answer["kv_bytes_per_token"] > 0
    assert "vocab_size is unknown" in answer["reasons"]


def test_one_gpu_is_asked_about_unless_more_are(run):
    answer = json.loads(run("memory", "--model", "llama-3.3-70b", "--gpu", "h100_sxm", "--json")[1])
    assert (answer["fits"], answer["gpu_count"]) == (False, 1)
    assert answer["smallest_that_fits"][0]["gpu_count"] == 2
