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


def test_every_field_of_a_kind_has_an_option():
    options = {option.name for option in command.params}
    assert {name for kind in KINDS.values() for name in kind.model_fields} <= options
    (choices,) = (option.type.choices for option in command.params if option.name == "kind")
    assert list(choices) == list(KINDS)
