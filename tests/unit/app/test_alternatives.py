import csv
import json
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from tokenfleet import catalog
from tokenfleet.app.alternatives import _needed, _scarcity
from tokenfleet.app.cli import main
from tokenfleet.app.compare_types import CompareSpec, OwnedSpec
from tokenfleet.app.compose import compose
from tokenfleet.app.scenario import load_scenario
from tokenfleet.domain.buying import Buying
from tokenfleet.domain.errors import BadInput
from unit.planner import toy
from unit.report.conftest import sized

SCENARIO = """\
name: priced
workload: {lengths: {input: 700:1500, output: 140:300}, mean_rate: 4, duration: 5min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p99: 2s, itl_p99: 80ms, error_rate: 0.1%}
gpus: [l40s]
precision: fp8
tensor_parallel: 1
"""
COMPARE = """\
compare:
  owned: {gpus: 8, capital: 120000, life_years: 3, power_kw: 4, usd_per_kwh: 0.12, support: 10%}
  apis: [API]
  tasks: {requests_per_task: 3, success: 80%, usd_by_hand: 2}
  users: 500
"""


def an_api():
    return next(price for price in catalog.api_prices() if price.cached_input_usd_per_million_tokens)


def planned(folder, text, *options):
    folder.joinpath("priced.yaml").write_text(text)
    with pytest.raises(SystemExit) as end:
        main(["plan", str(folder / "priced.yaml"), "-o", str(folder / "out"), "--quiet", *options])
    assert not end.value.code
    return json.loads((folder / "out" / "plan.json").read_text())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("priced")
    return planned(folder, SCENARIO + COMPARE.replace("API", an_api().model)), folder


def test_each_way_is_a_month_of_the_same_work(made):
    document, _ = made
    cost = document["cost"]
    ways = {way["name"].split()[0]: way for way in cost["alternatives"]["ways"]}
    assert list(ways) == ["rented", "owned", "hybrid", "api"]
    assert ways["rented"]["usd_per_month"] == pytest.approx(cost["total_usd_per_hour"] * 730)
    yearly = 120_000 / 3 + 4 * 1.4 * 8760 * 0.12 + 12_000
    assert ways["owned"]["usd_per_month"] == pytest.approx(yearly / 12)
    rent = document["fleet"][0]["price_usd_per_gpu_hour"]
    assert ways["owned"]["break_even_utilization_fraction"] == pytest.approx(yearly / (8 * 8760) / rent)
    assert 0.0 < ways["hybrid"]["usd_per_month"] <= ways["rented"]["usd_per_month"]
    assert "5 min of traffic stand for all hours" in ways["hybrid"]["note"]
    api = ways["api"]
    even = api["break_even_tokens_per_month"]
    assert even / 1e6 * api["usd_per_month"] == pytest.approx(
        ways["rented"]["usd_per_month"] * _tokens_per_month(document) / 1e6, rel=0.02
    )


def test_what_cannot_be_had_is_counted_in_every_way_to_rent(made, tmp_path):
    document, _ = made
    scarce = "buy: {busy_hours: 10, quiet: 50%, obtainable: 50%, usd_per_missing_gpu_hour: 20}\n"
    dear = planned(tmp_path, SCENARIO + COMPARE.replace("  apis: [API]\n", "") + scarce)
    ways = {way["name"]: way for way in dear["cost"]["alternatives"]["ways"]}
    usd = dear["fleet"][0]["price_usd_per_gpu_hour"]
    expected = (0.5 * usd + 0.5 * 20.0) / usd
    assert ways["rented"]["usd_per_month"] == pytest.approx(dear["cost"]["total_usd_per_hour"] * 730 * expected)
    assert "what cannot be had included" in ways["rented"]["note"]
    plenty = next(way for way in document["cost"]["alternatives"]["ways"] if way["name"] == "owned")
    even = "break_even_utilization_fraction"
    assert ways["owned"][even] == pytest.approx(plenty[even] / expected)


def test_what_cannot_be_had_is_counted_for_each_pool_at_its_price_and_against_apis(made, tmp_path):
    cheap, dear = sized(usd=1.0, tensor_parallel=1, carrying=1), sized(usd=3.0, tensor_parallel=1, carrying=5)
    buying = Buying(obtainable_fraction=0.5, shortage_usd_per_gpu_hour=20.0)
    asked = SimpleNamespace(fleets=(cheap, dear), question=replace(toy.question([], []), buying=buying))
    # Two gpus at 1 and six at 3 dollars, each half of its time at 20.
    assert _scarcity(asked) == pytest.approx((2 * 10.5 + 6 * 11.5) / (2 * 1.0 + 6 * 3.0))
    scarce = "buy: {busy_hours: 10, quiet: 50%, obtainable: 50%, usd_per_missing_gpu_hour: 20}\n"
    document = planned(tmp_path, SCENARIO + f"compare: {{apis: [{an_api().model}]}}\n" + scarce)
    rented, api = document["cost"]["alternatives"]["ways"]
    usual = next(way for way in made[0]["cost"]["alternatives"]["ways"] if way["name"].startswith("api"))
    factor = rented["usd_per_month"] / (document["cost"]["total_usd_per_hour"] * 730)
    even = "break_even_tokens_per_month"
    assert api[even] == pytest.approx(usual[even] * factor)


def test_work_that_waits_is_held_against_batch_prices_and_what_full_replicas_do(tmp_path):
    text = SCENARIO.replace("{ttft_p99: 2s, itl_p99: 80ms, error_rate: 0.1%}", "{done_within: 2h}")
    text = text.replace("mean_rate: 4, duration: 5min", "mean_rate: 8, duration: 20min")
    price = next(each for each in catalog.api_prices() if each.batch_input_usd_per_million_tokens)
    document = planned(tmp_path, text + f"compare: {{apis: [{price.model}]}}\n")
    ways = {way["name"]: way for way in document["cost"]["alternatives"]["ways"]}
    usual = ways[f"api {price.provider} {price.model}"]
    batch = ways[f"api {price.provider} {price.model}, in batches"]
    lengths = document["workload"]
    share = lengths["input_tokens"]["mean"] / (lengths["input_tokens"]["mean"] + lengths["output_tokens"]["mean"])
    blended = [
        share * inputs + (1.0 - share) * outputs
        for inputs, outputs in (
            (price.input_usd_per_million_tokens, price.output_usd_per_million_tokens),
            (price.batch_input_usd_per_million_tokens, price.batch_output_usd_per_million_tokens),
        )
    ]
    assert batch["usd_per_month"] / usual["usd_per_month"] == pytest.approx(blended[1] / blended[0], rel=1e-3)
    assert "within a day" in batch["note"]
    # A peak of work that waits may be any size: a month of it is what full replicas get done.
    each = sum(lengths[kind]["mean"] for kind in ("input_tokens", "output_tokens"))
    most = document["peak"]["saturated_rate_per_s"] * each * 730 * 3600
    share_of_it = usual["break_even_tokens_per_month"] / most
    assert usual["break_even_utilization_fraction"] == pytest.approx(share_of_it, rel=0.01)


CHAIN = """\
name: priced
workload: {lengths: {input: 700:1500, output: 140:300}, mean_rate: 2, duration: 4min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 4s, error_rate: 0.1%}
precision: fp8
pools: {answer: {gpu: l40s}, embed: {gpu: l4, model: BAAI/bge-m3}}
chain: {steps: [{pool: embed, input: 30}]}
"""


def test_pools_that_embed_stay_with_an_api_and_their_gpus_have_prices_of_their_own(tmp_path):
    focus = tmp_path / "bill.csv"
    document = planned(tmp_path, CHAIN + f"compare: {{apis: [{an_api().model}]}}\n", "--focus", str(focus))
    pools = {pool["name"]: pool["cost"] for pool in document["pools"]}
    (api,) = [way for way in document["cost"]["alternatives"]["ways"] if way["name"].startswith("api")]
    blended = api["usd_per_month"] / _tokens_per_month(document)
    even = api["break_even_tokens_per_month"]
    assert even * blended == pytest.approx(pools["answer"]["total_usd_per_hour"] * 730, rel=0.02)
    assert "paid either way and left out: embed" in api["note"]
    rows = {row["x_Phase"]: row for row in csv.DictReader(focus.read_text().splitlines())}
    spare = sum(group["spare_replica_count"] * group["tensor_parallel"] for group in document["fleet"])
    assert spare > 1
    assert float(rows["spare"]["PricingQuantity"]) == pytest.approx(730 * spare, rel=1e-4)


def test_against_a_reservation_no_share_of_use_decides(made, tmp_path):
    owned = "compare:\n  owned: {gpus: 1, capital: 15000, life_years: 3, available: 90%}\n"
    reserved = "prices: {term: reserved_1y, usd_per_gpu_hour: {l40s: 1}}\n"
    ways = {}
    for term, text in (("rent", ""), ("reservation", reserved)):
        document = planned(tmp_path, SCENARIO + owned + text)
        gpus = document["fleet"][0]["gpu_count"]
        ways[term] = next(way for way in document["cost"]["alternatives"]["ways"] if way["name"] == "owned")
        working = f"on average {0.9 * gpus:.3g} of them work, where the plan has {gpus}"
        assert working in ways[term]["note"]
        assert ways[term]["usd_per_month"] == pytest.approx(gpus * 15_000 / 36)
    assert ways["rent"]["break_even_utilization_fraction"] is not None
    assert ways["reservation"]["break_even_utilization_fraction"] is None
    assert "against $1.00 of reserved_1y, idle hours paid for in both" in ways["reservation"]["note"]


@pytest.mark.parametrize(
    ("half", "told"),
    [
        ("power_kw: 7", "nobody says what power costs"),
        ("usd_per_kwh: 0.1", "nobody says how much power is used"),
        ("power_kw: 7, colocation_kw: 10", "one of them is missing"),
        ("colocation_usd_per_kw_month: 200", "one of them is missing"),
    ],
)
def test_what_is_used_has_a_price(half, told):
    with pytest.raises(ValidationError, match=told):
        OwnedSpec.model_validate({"gpus": 8, "capital": 300_000, **dict(pair.split(": ") for pair in half.split(", "))})
    whole = {"power_kw": 7, "colocation_kw": 10, "colocation_usd_per_kw_month": 200}
    assert OwnedSpec.model_validate({"gpus": 8, "capital": 300_000, **whole}).pool().tariff_usd_per_kwh == 0.0


def test_a_mix_of_owned_and_rented_holds_the_gpus_of_every_pool():
    pools = sized(carrying=4), sized(tensor_parallel=1, carrying=2)
    buying = Buying(hour_fraction=(1.0, 0.5))
    asked = SimpleNamespace(fleets=pools, question=replace(toy.question([], []), buying=buying))
    slots, thin = _needed(asked, toy.trace())
    spare = sum(each.replica.deployment.layout.gpu_count for each in pools)
    assert (slots.tolist(), thin) == ([4 * 2 + 2 + spare, 2 * 2 + 1 + spare], "")


def _tokens_per_month(document):
    lengths = document["workload"]
    each = lengths["input_tokens"]["mean"] + lengths["output_tokens"]["mean"]
    return lengths["mean_rate_per_s"] * each * 730 * 3600


def test_a_unit_of_work_has_its_denominator_in_its_name(made):
    document, _ = made
    units = {unit["name"]: unit["cost_usd"] for unit in document["cost"]["alternatives"]["units"]}
    request = document["cost"]["usd_per_request"]
    assert units["per successful task"] == pytest.approx(request * 3 / 0.8 + 2 * (1 / 0.8 - 1))
    assert units["per user and month"] == pytest.approx(document["cost"]["total_usd_per_hour"] * 730 / 500)


TIERS = """\
slo:
  ttft_p99: 2s
  error_rate: 0.1%
  classes: {premium: {takes: {share: 20%}, ttft_p99: 1s}}
compare:
  tasks: {requests_per_task: 3, failed_tool_calls: 10%, success: 60%, tries: 2, usd_by_hand: 2}
  users: {premium: 50}
"""


def test_a_tier_has_a_price_for_each_of_its_users_and_a_task_counts_its_tries(tmp_path):
    document = planned(tmp_path, SCENARIO.replace("slo: {ttft_p99: 2s, itl_p99: 80ms, error_rate: 0.1%}\n", TIERS))
    units = {unit["name"]: unit for unit in document["cost"]["alternatives"]["units"]}
    (by_class,) = document["cost"]["attributed"]
    (premium,) = [share for share in by_class["shares"] if share["name"] == "premium"]
    assert units["per user of premium and month"]["cost_usd"] == pytest.approx(premium["loaded_usd"] / 50)
    assert units["per user of premium and month"]["busy_usd"] == pytest.approx(premium["busy_usd"] / 50)
    one_try = document["cost"]["usd_per_request"] * 3 / 0.9
    by_hand = 0.4**2
    expected = ((1 - by_hand) / 0.6 * one_try + by_hand * 2) / (1 - by_hand)
    task = units["per successful task"]
    assert task["cost_usd"] == pytest.approx(expected)
    assert task["busy_usd"] < task["cost_usd"]


BESIDE = """\
  beside:
    storage: 400
    logs: {quantity: 800, unit: GB, usd: 0.5}
    engineers: {quantity: 0.5, unit: people, usd: 14000}
"""


def test_everything_beside_the_fleet_is_on_the_sheet_to_the_cent(tmp_path, made, capsys):
    api = an_api().model
    before = {way["name"]: way for way in made[0]["cost"]["alternatives"]["ways"]}
    cost = planned(tmp_path, SCENARIO + COMPARE.replace("API", api) + BESIDE)["cost"]
    found = cost["alternatives"]["service"]
    lines = {line["name"]: line for line in found["lines"]}
    assert {name: line["usd_per_month"] for name, line in lines.items()} == {
        "gpus": round(cost["total_usd_per_hour"] * 730, 2),
        "storage": 400.0,
        "logs": 400.0,
        "engineers": 7000.0,
    }
    assert sum(round(100 * line["usd_per_month"]) for line in lines.values()) == round(
        100 * found["total_usd_per_month"]
    )
    assert sum(line["share_fraction"] for line in lines.values()) == pytest.approx(1.0)
    assert found["usd_per_request"] == pytest.approx(
        cost["usd_per_request"] * found["total_usd_per_month"] / (cost["total_usd_per_hour"] * 730)
    )
    units = {unit["name"]: unit["cost_usd"] for unit in cost["alternatives"]["units"]}
    assert units["per user and month of the whole service"] == pytest.approx(found["total_usd_per_month"] / 500)
    assert {"cpu", "vector_store", "tools", "support"} <= set(found["unsaid"])
    # An API saves storage and engineers with the gpus; logs are written either way.
    assert {name for name, line in lines.items() if line["stays_with_an_api"]} == {"logs"}
    saved = sum(lines[name]["usd_per_month"] for name in ("gpus", "storage", "engineers"))
    (way,) = [way for way in cost["alternatives"]["ways"] if way["name"] == f"api {an_api().provider} {api}"]
    even = way["break_even_tokens_per_month"] / before[way["name"]]["break_even_tokens_per_month"]
    assert even == pytest.approx(saved / lines["gpus"]["usd_per_month"], rel=1e-4)
    said = " ".join(capsys.readouterr().out.split())
    assert "engineers $7,000" in said
    assert "nobody said what these cost: cpu, network, vector store" in said
    page = (tmp_path / "out" / "report.html").read_text()
    assert "The whole service" in page
    assert "$7,000.00" in page


@pytest.mark.parametrize(
    ("beside", "told"),
    [({"storage": {"usd": 1e306, "quantity": 1e6}}, "more than anybody pays"), ({" ": 3}, "a line has no name")],
)
def test_a_line_has_a_name_and_an_amount(beside, told):
    with pytest.raises(ValidationError, match=told):
        CompareSpec.model_validate({"beside": beside})


def test_a_line_without_a_price_leaves_the_total_unknown(tmp_path, capsys):
    text = SCENARIO + COMPARE.replace("API", an_api().model) + "  beside: {rerank: {quantity: 90, unit: M tokens}}\n"
    found = planned(tmp_path, text)["cost"]["alternatives"]
    assert found["service"]["total_usd_per_month"] is None
    assert found["service"]["unknown"] == ["rerank"]
    assert found["service"]["usd_per_request"] is None
    assert "rerank ?" in capsys.readouterr().out
    (way,) = [way for way in found["ways"] if way["name"].startswith("api")]
    assert way["usd_per_month"] is not None, "reranking is paid for with an API too"
    text = text.replace("rerank", "engineers")
    (way,) = [way for way in planned(tmp_path, text)["cost"]["alternatives"]["ways"] if way["name"].startswith("api")]
    assert way["usd_per_month"] is None
    assert "no price yet" in way["note"]


def test_the_gpus_are_planned_and_stand_nowhere_beside(tmp_path):
    tmp_path.joinpath("priced.yaml").write_text(SCENARIO + "compare: {beside: {gpus: 5}}\n")
    with pytest.raises(BadInput, match="gpus are what is planned"):
        load_scenario(tmp_path / "priced.yaml")


def test_users_of_nobody_are_refused(tmp_path):
    tmp_path.joinpath("priced.yaml").write_text(SCENARIO + "compare: {users: {premum: 5}}\n")
    with pytest.raises(BadInput, match="nobody of the demand is called so"):
        compose(load_scenario(tmp_path / "priced.yaml"), Silent())


class Silent:
    def say(self, text):
        pass

    step = announce = say


def test_a_person_reads_them_in_terminal_and_report(made, capsys):
    _, folder = made
    planned(folder, SCENARIO + COMPARE.replace("API", an_api().model))
    out = capsys.readouterr().out
    assert "Instead" in out
    assert "per successful task" in out
    page = (folder / "out" / "report.html").read_text()
    assert "Break-even, busy" in page
    assert "per user and month" in page


def test_nothing_is_compared_that_nobody_gave_facts_for(tmp_path):
    assert planned(tmp_path, SCENARIO)["cost"]["alternatives"] is None


def test_an_api_without_a_price_is_a_problem_with_the_nearest_names(tmp_path):
    tmp_path.joinpath("priced.yaml").write_text(SCENARIO + COMPARE.replace("API", an_api().model + "x"))
    with pytest.raises(BadInput, match=an_api().model):
        load_scenario(tmp_path / "priced.yaml")


def test_the_focus_file_adds_up_to_a_month_of_the_bill_to_the_cent(tmp_path):
    document = planned(tmp_path, SCENARIO, "--focus", str(tmp_path / "bill.csv"))
    with Path(tmp_path / "bill.csv").open() as file:
        rows = list(csv.DictReader(file))
    total = sum(Decimal(row["BilledCost"]) for row in rows)
    assert total == round(Decimal(document["cost"]["total_usd_per_hour"]) * 730, 2)
    described = " ".join(row["ChargeDescription"] for row in rows)
    assert "room that the promise keeps free" in described
    assert "the day one fails" in described
    assert all(row["ChargePeriodStart"] > date.today().isoformat() for row in rows)
    ends, starts = ([datetime.fromisoformat(row[f"ChargePeriod{edge}"]) for row in rows] for edge in ("End", "Start"))
    assert {end - start for end, start in zip(ends, starts, strict=True)} == {timedelta(hours=730)}
    # Dollars and tokens are of the same month: a unit price is that of the plan.
    prices = {unit["name"]: unit["busy_usd"] for unit in document["cost"]["units"]}
    for kind in ("input", "output"):
        [row] = [row for row in rows if row["x_Phase"] == kind]
        assert float(row["ListUnitPrice"]) * 1e6 == pytest.approx(prices[f"usd_per_million_{kind}_tokens"], rel=0.02)
