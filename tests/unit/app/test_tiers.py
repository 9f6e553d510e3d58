"""A premium tier, end to end."""

import json
from pathlib import Path

import pytest

from tokenfleet.app.cli import main
from tokenfleet.app.slo_types import SloSpec
from tokenfleet.app.tiers import promised_more

SCENARIO = """\
name: small
workload: {lengths: {input: 700:1500, output: 140:300}, mean_rate: 12, duration: 4min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p99: 3s, itl_p99: 150ms, error_rate: 0.1%}
gpus: [l40s]
precision: fp8
tensor_parallel: 1
"""
PROMISE = ("--promise", "ttft_p99=400ms", "--promise", "itl_p99=150ms")


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments, text=SCENARIO):
        Path("small.yaml").write_text(text)
        with pytest.raises(SystemExit) as ended:
            main(["tiers", "small.yaml", *arguments])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def test_four_ways_are_sized_and_each_keeps_both_promises(run):
    code, out, err = run("--share", "20%", *PROMISE, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["premium_fraction"] == pytest.approx(0.2, abs=0.03)
    ways = {option["name"]: option for option in found["options"]}
    assert list(ways) == ["own", "priority", "shared", "alike"]
    for way in ways.values():
        assert way["replica_count"] >= 2
        for tier in ("premium", "others"):
            assert all(result["kept"] for result in way[tier] if result["sample_count"])
        per_replica = found["usual_usd_per_hour"] / found["usual_replica_count"]
        assert way["usd_per_hour"] == pytest.approx(way["replica_count"] * per_replica)
    # First in line needs no more replicas than waiting for one's turn, nor that more than the best for everybody.
    assert ways["priority"]["replica_count"] <= ways["shared"]["replica_count"]
    assert found["usual_replica_count"] <= ways["priority"]["replica_count"]
    waits = {name: ways[name]["premium"][0]["predicted"] for name in ways}
    assert max(waits.values()) <= 0.4
    _, said, _ = run("--share", "20%", *PROMISE)
    assert said.startswith("Usual")
    assert "whose engine serves it first" in said


def test_premium_requests_are_promised_what_everybody_is_and_more(run):
    code, out, err = run("--share", "20%", "--promise", "ttft_p99=400ms", "--json")
    assert (code, err) == (0, "")
    ways = {option["name"]: option for option in json.loads(out)["options"]}
    for way in ways.values():
        assert [(each["name"], each["promised"]) for each in way["premium"]] == [
            ("ttft_p99", 0.4),
            ("itl_p99", 0.15),
            ("error_rate", 0.001),
        ]
    assert ways["alike"]["replica_count"] >= ways["priority"]["replica_count"]


def test_a_limit_to_everybody_holds_for_the_premium_tier_unless_a_stricter_one_takes_its_place():
    usual = SloSpec.model_validate(
        {"ttft_p99": "2s", "tpot_p95": "20ms", "error_rate": "2%", "done_within": "60s", "queue_limit": 9}
    ).targets()
    more = promised_more(usual, SloSpec.model_validate({"tpot_p95": "10ms", "ttft_p50": "1s", "queue_limit": 12}))
    assert [(each.name, each.limit_s) for each in more.latency] == [
        ("ttft_p99", 2.0),
        ("tpot_p95", 0.01),
        ("ttft_p50", 1.0),
    ]
    assert (more.error_rate_fraction, more.queue_limit_count) == (0.02, 9)
    assert more.deadlines == usual.deadlines
    sooner = promised_more(usual, SloSpec.model_validate({"done_within": "30s", "error_rate": "1%"}))
    assert [(each.within_s, each.quantile) for each in sooner.deadlines] == [(60.0, 0.98), (30.0, 0.99)]


def test_why_a_way_is_none_and_what_was_not_looked_at_is_said(run):
    short = SCENARIO.replace("4min", "1min") + "redundancy: {ride_through: true}\n"
    _, out, _ = run("--share", "20%", "--promise", "ttft_p99=20ms", "--json", text=short)
    notes = {option["name"]: option["notes"] for option in json.loads(out)["options"]}
    assert "premium: Prefill of the p99 input" in notes["own"][0]
    assert "everybody: Prefill of the p99 input" in notes["alike"][0]
    assert notes["shared"] == notes["priority"] == ["the moment of a loss was not replayed with both tiers"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((*PROMISE,), "--premium: who is premium is said twice or not at all; give --premium or --share"),
        (("--premium", "gold", *PROMISE), "--premium: the demand names no tenants; give --share"),
        (("--share", "100%", *PROMISE), "takes in nobody, or everybody"),
        (("--share", "20%", "--promise", "ttft_p99=soon"), '"soon" is not a duration'),
        (("--share", "20%", "--promise", "ttft_p99: 1s"), '"ttft_p99: 1s" is no key with a limit; write ttft_p99=1s'),
        (("--share", "20%", "--promise", "ttft_p99"), '"ttft_p99" is no key with a limit; write ttft_p99=500ms'),
        (
            ("--share", "20%", "--promise", "ttft_p99=4s"),
            "--promise ttft_p99: 4.00 s is looser than the 3.00 s promised to everybody; write a stricter limit",
        ),
        (
            ("--share", "20%", *PROMISE, "--promise", "error_rate=1%"),
            "--promise error_rate: 1% is looser than the 0.1% for everybody; write a stricter limit",
        ),
    ],
)
def test_who_is_premium_and_what_is_promised_must_be_said(run, options, problem):
    code, out, err = run(*options)
    assert (code, out) == (2, "")
    assert problem in err


def test_tenants_may_be_premium(run):
    log = "time_s,input_tokens,output_tokens,tenant\n" + "".join(
        f"{0.5 * row},{300 + row % 7},{40 + row % 5},{'gold' if row % 4 == 0 else 'other'}\n" for row in range(240)
    )
    Path("log.csv").write_text(log)
    text = SCENARIO.replace(
        "{lengths: {input: 700:1500, output: 140:300}, mean_rate: 12, duration: 4min}", "{trace: log.csv, time_unit: s}"
    )
    code, out, err = run("--premium", "gold", *PROMISE, "--json", text=text)
    assert (code, err) == (0, "")
    assert json.loads(out)["premium_fraction"] == 0.25
    code, _, err = run("--premium", "silver", *PROMISE, text=text)
    assert code == 2
    assert "no tenant is called silver; tenants: gold, other" in err


def test_a_tier_is_promised_nothing_of_classes_that_it_never_sends(run):
    """The premium tenant only chats: what is promised to documents says nothing of it, and is kept by no fleet."""
    rows = ["time,input_tokens,output_tokens,tenant,label"]
    for number in range(600):
        gold, document = number % 5 == 0, number % 7 == 1 and number % 5 != 0
        lengths = "6000,120" if document else "700,150"
        tenant, label = "gold" if gold else "others", "document" if document else "chat"
        rows.append(f"{number * 0.4:.1f},{lengths},{tenant},{label}")
    Path("log.csv").write_text("\n".join(rows))
    classes = "{chat: {takes: {labels: chat}, ttft_p99: 2s}, document: {takes: {labels: document}, ttft_p95: 9s}}"
    text = SCENARIO.replace(
        "{ttft_p99: 3s, itl_p99: 150ms, error_rate: 0.1%}", f"{{tpot_p95: 80ms, classes: {classes}}}"
    )
    text = text.replace(
        "{lengths: {input: 700:1500, output: 140:300}, mean_rate: 12, duration: 4min}", "{trace: log.csv, time_unit: s}"
    )
    code, out, err = run("--premium", "gold", "--promise", "tpot_p95=70ms", "--json", "--quiet", text=text)
    assert (code, err) == (0, "")
    for way in json.loads(out)["options"]:
        assert way["replica_count"] is not None
        if way["name"] != "alike":
            assert not any("document" in result["name"] for result in way["premium"])
            assert all(result["sample_count"] and result["kept"] for result in way["premium"])
