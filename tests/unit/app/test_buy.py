"""How to buy, from the scenario to the plan."""

import json
import re

import pytest
from pydantic import ValidationError

from tokenfleet.app.buy_types import BuySpec
from tokenfleet.app.cli import main
from tokenfleet.app.scenario import load_scenario
from tokenfleet.domain.errors import BadInput

SCENARIO = """\
name: bought
workload: {lengths: {input: 700:1500, output: 140:300}, mean_rate: 4, duration: 5min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p99: 2s, itl_p99: 80ms, error_rate: 0.1%}
gpus: [h100_sxm]
precision: fp8
tensor_parallel: 1
prices: {usd_per_gpu_hour: {h100_sxm: 3}}
"""


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"day": ["100%"] * 24, "busy_hours": 8, "quiet": "30%"}, "day and busy_hours"),
        ({"busy_hours": 8}, "go together"),
        ({"weekend": "40%"}, "without the shape of a day"),
        ({"day": ["50%"] * 24}, "no hour of day is the busiest"),
        ({"obtainable": "90%"}, "nobody says what one that is missing costs"),
        ({"interruptible": "20%"}, "nobody says how much is lost"),
    ],
)
def test_half_of_what_belongs_together_is_refused(given, told):
    with pytest.raises(ValidationError, match=told):
        BuySpec(**given)


def test_the_end_of_a_week_makes_a_week_of_hours():
    week = BuySpec(busy_hours=10, quiet="30%", weekend="50%").facts(None).hour_fraction
    assert len(week) == 168
    assert sum(week) == pytest.approx((10 + 14 * 0.3) * (5 + 2 * 0.5))
    assert BuySpec(day=["100%", *["20%"] * 23]).facts(None).hour_fraction == (1.0, *[0.2] * 23)
    assert BuySpec().facts(None).hour_fraction == ()


@pytest.mark.parametrize("count", [2, 25])
def test_a_day_has_24_hours(tmp_path, count):
    path = tmp_path / "bought.yaml"
    path.write_text(SCENARIO + f"buy: {{day: [{', '.join(['100%'] * count)}]}}\n")
    with pytest.raises(BadInput, match=rf"buy\.day: has {count} entries; write 24 of them"):
        load_scenario(path)


def planned(folder, capsys, text):
    folder.joinpath("bought.yaml").write_text(text)
    with pytest.raises(SystemExit) as end:
        main(["plan", str(folder / "bought.yaml"), "-o", str(folder / "out"), "--quiet"])
    assert not end.value.code
    said = " ".join(capsys.readouterr().out.split())
    return json.loads((folder / "out" / "plan.json").read_text())["cost"], said, (folder / "out" / "report.html")


def test_minutes_of_traffic_and_a_described_day_say_how_to_buy(tmp_path, capsys):
    cost, said, page = planned(
        tmp_path, capsys, SCENARIO + "buy: {busy_hours: 8, quiet: 30%, reserved_1y: {h100_sxm: 1.5}}\n"
    )
    bought = cost["purchase"]
    assert cost["purchase_missing"] is None
    assert sum(line["usd_per_hour"] for line in bought["lines"]) == pytest.approx(bought["total_usd_per_hour"])
    assert bought["commit_from_fraction"] == pytest.approx(0.5)
    assert "Commit if the fleet follows the 24 hours described:" in said
    assert "commit to what is needed 50% of the hours or more" in said
    assert re.search(r"A commitment pays for GPUs needed 50\W+of the hours or more", page.read_text())


def test_a_price_of_ones_own_was_published_by_nobody(tmp_path, capsys):
    *_, page = planned(tmp_path, capsys, SCENARIO + "buy: {busy_hours: 8, quiet: 30%, reserved_1y: {h100_sxm: 1.5}}\n")
    text = page.read_text()
    assert text.count("(your price)") >= 2
    assert "Your price" in text
    assert "Lowest published" not in text
    assert ", date unknown)" not in text


def test_minutes_of_traffic_alone_say_what_to_give(tmp_path, capsys):
    cost, said, page = planned(tmp_path, capsys, SCENARIO)
    assert cost["purchase"] is None
    assert "buy: {busy_hours: 10, quiet: 30%}" in said
    assert "buy: {busy_hours: 10, quiet: 30%}" in cost["purchase_missing"]
    assert "How to buy is not known" in page.read_text()
