import json

import pytest

from tokenfleet.app.claim_question import KINDS
from tokenfleet.app.cli import main
from tokenfleet.app.cli.check_claim import command

CONTRACT = "contract --sequences 72 --rate 18/s --ttft 0.78s --tpot 31ms"
PRECISION = (
    "precision --model meta-llama/Llama-3.1-8B-Instruct --gpu h100_sxm --before-precision bf16 --after-precision fp8 "
    "--context 1000"
)


def run(capsys, line):
    with pytest.raises(SystemExit) as ended:
        main(["check-claim", *line.split()])
    return ended.value.code, capsys.readouterr()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (CONTRACT, 0),
        (f"{CONTRACT} --output 104", 0),
        (f"{CONTRACT} --output 200", 1),
        ("token-price --usd-per-hour 24.56 --tokens-per-s 5000 --claimed 0.15", 1),
        ("token-price --usd-per-hour 24.56 --tokens-per-s 50000 --claimed 0.15", 0),
        ("break-even --own 2.41 --rent 7.91 --claimed 22%", 1),
        ("break-even --own 2.41 --rent 7.91 --claimed 31%", 0),
        ("speed-up --before 1000 --before-gpus 8 --after 2000 --after-gpus 16 --claimed 2", 1),
        ("saving --before 100 --before-units 10 --after 50 --after-units 10 --claimed 50%", 0),
        (f"{PRECISION} --claimed 2", 1),
    ],
)
def test_a_refuted_claim_exits_with_one(capsys, line, code):
    got, shown = run(capsys, f"{line} --json")
    document = json.loads(shown.out)
    assert got == code
    assert document["supported"] is (code == 0)
    assert document["arithmetic"]


def test_a_person_reads_the_arithmetic(capsys):
    code, shown = run(capsys, f"{CONTRACT} --output 200")
    assert code == 1
    assert "refuted" in shown.out
    assert "104.9 output tokens" in shown.out


def test_every_missing_and_every_foreign_option_is_named(capsys):
    code, shown = run(capsys, "break-even --own 2 --tpot 31ms")
    assert code == 2
    assert "--rent: is missing" in shown.err
    assert "--claimed: is missing" in shown.err
    assert "--tpot: unknown key" in shown.err


def test_a_model_that_does_not_fit_is_no_claim(capsys):
    code, shown = run(capsys, PRECISION.replace("3.1-8B", "3.3-70B").replace("--context", "--claimed 2 --context"))
    assert code == 2
    assert "--before-precision" in shown.err


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("1000|200000", "--context: 200,000 tokens, and meta-llama/Llama-3.1-8B-Instruct reads 131,072 at most"),
        ("1000|100000 --sequences 500", "--sequences: of 100,000 tokens bf16 holds 4 and fp8 holds 5; give 4 or"),
        (
            "meta-llama/Llama-3.1-8B-Instruct|Qwen/Qwen3-32B --context 40000",
            "--context: of 40,000 tokens bf16 holds 0 and fp8 holds 3; give a shorter --context, or more --tp",
        ),
    ],
)
def test_sequences_that_memory_does_not_hold_are_no_claim(capsys, asked, told):
    line = PRECISION.removesuffix(" --context 1000") if "--context" in asked else PRECISION
    code, shown = run(capsys, f"{line} --claimed 1.1".replace(*asked.split("|")))
    assert code == 2
    assert told in " ".join(shown.err.split())


def test_a_share_is_told_how_a_range_of_shares_is_written(capsys):
    _, shown = run(capsys, "break-even --own 2.41 --rent 3.5 --claimed 65")
    assert "a range such as 65-80%" in " ".join(shown.err.split())


def test_every_field_of_a_kind_has_an_option():
    options = {option.name for option in command.params}
    assert {name for kind in KINDS.values() for name in kind.model_fields} <= options
    (choices,) = (option.type.choices for option in command.params if option.name == "kind")
    assert list(choices) == list(KINDS)


@pytest.mark.parametrize(
    ("written", "low", "high"),
    [
        ("2", 2.0, None),
        ("2x", 2.0, None),
        ("2-7", 2.0, 7.0),
        ("2-7x", 2.0, 7.0),
        ("2x to 7x", 2.0, 7.0),
        ("2..7", 2.0, 7.0),
    ],
)
def test_a_factor_may_be_a_range(capsys, written, low, high):
    line = "speed-up --before 1000 --before-gpus 8 --after 3000 --after-gpus 8 --json --claimed"
    with pytest.raises(SystemExit) as ended:
        main(["check-claim", *line.split(), written])
    document = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0
    assert (document["claimed"], document["claimed_high"]) == (low, high)
    assert document["position"] == (None if high is None else "within")


def test_a_range_says_where_the_figure_lies(capsys):
    code, shown = run(capsys, "break-even --own 2.41 --rent 7.91 --claimed 65-80%")
    assert code == 1
    assert "owning begins to win 65% to 80% busy" in shown.out
    assert "refuted: below what is claimed" in shown.out
    code, shown = run(capsys, "token-price --usd-per-hour 24.56 --tokens-per-s 5000 --claimed $1-2")
    assert code == 0
    assert "$1 to $2 per million tokens" in shown.out
    assert "supported: within what is claimed" in shown.out


@pytest.mark.parametrize("written", ["7-2", "2-3-4", "2-x", "much", "2-"])
def test_what_is_no_range_is_said(capsys, written):
    code, shown = run(capsys, f"speed-up --before 1 --before-gpus 1 --after 2 --after-gpus 1 --claimed {written}")
    assert code == 2
    assert "--claimed:" in shown.err


def test_what_cannot_be_read_is_told_as_it_was_written(capsys):
    code, shown = run(capsys, "break-even --own 2.41 --rent 7.91 --claimed 40x")
    assert code == 2
    assert '--claimed: "40x" is not a share' in shown.err
    code, shown = run(capsys, f"{CONTRACT} --output 0.5")
    assert code == 2
    assert '--output: "0.5" is less than 1' in shown.err


APART = """\
name: apart
workload: {lengths: {input: 800:1500, output: 60:120}, mean_rate: 6, peak_to_mean: 1, duration: 2min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s, tpot_p95: 60ms}
gpus: [l40s, h100_sxm]
precision: fp8
tensor_parallel: 1
"""


def test_pools_apart_are_replayed_at_equal_gpus(capsys, tmp_path):
    path = tmp_path / "apart.yaml"
    path.write_text(APART)
    line = f"disaggregation --scenario {path} --claimed 2-7x"
    path.write_text(APART + "pools: {main: {gpu: l40s}}\n")
    code, shown = run(capsys, f"{line} --link infiniband_200g")
    assert code == 2
    said = " ".join(shown.err.split())
    assert f"{path}:8: pools: are named here, and the claim is about one fleet" in said
    assert "compare what tokenfleet size counts with prefill and decode under a pool and without" in said
    path.write_text(APART)
    code, shown = run(capsys, line)
    assert code == 2
    assert "--link: is missing" in " ".join(shown.err.split())
    code, shown = run(capsys, f"{line} --link infiniband_200g")
    assert code == 2
    assert "the scenario names l40s, h100_sxm" in " ".join(shown.err.split())
    code, shown = run(capsys, f"{line} --link infiniband_200g --gpu l40s --gpus 1")
    assert code == 2
    assert "1 GPUs hold no two pools of replicas of 1" in " ".join(shown.err.split())
    code, shown = run(capsys, f"{line} --link infiniband_200g --gpu l40s --gpus 3 --json")
    document = json.loads(shown.out)
    assert code == 1
    assert document["position"] == "below"
    assert 0.3 < document["found"] < 1.9
    assert "the best of 2 splits of 3 GPUs" in document["arithmetic"][1]
