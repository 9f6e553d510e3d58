"""The cost questions of the case collection, each answered from its own inputs."""

import dataclasses
from functools import cache

import pytest
import yaml

from shared import SHARED, needs_shared
from tokenfleet.catalog import api_prices
from tokenfleet.cost import (
    TokenUsage,
    api_charge_usd,
    price_of,
    purchase_mix,
    unit_costs,
    usd_per_million,
    usd_per_million_of_token_price,
)
from tokenfleet.cost.purchase import Rent
from tokenfleet.domain.errors import BadInput

pytestmark = [needs_shared, pytest.mark.shared]


@cache
def cases():
    read = yaml.safe_load((SHARED / "cases" / "open.yaml").read_text())
    return {case["id"]: case for case in read["cases"] if "cost_model" in case["tests"]}


def case(name):
    found = cases()[name]
    return found["inputs"], found["expected"]["values"]


def test_every_cost_case_is_answered_here():
    assert {f"test_{name.lower()}" for name in cases()} <= set(globals())


def test_c01():
    given, expected = case("C01")
    for busy in given["utilisation"]:
        found = usd_per_million(given["usd_per_hour"], given["output_tok_s_busy"], busy_fraction=busy)
        assert found == pytest.approx(expected["usd_per_m"][busy], abs=5e-3)


def test_c04():
    given, expected = case("C04")
    every = given["input_tok_s"] + given["output_tok_s"]
    assert usd_per_million(given["usd_h_half"], given["output_tok_s"]) == pytest.approx(
        expected["output_only"], abs=1e-3
    )
    assert usd_per_million(given["usd_h_half"], every) == pytest.approx(expected["all_tokens"], abs=1e-3)
    whole = usd_per_million(given["usd_h_full"], given["output_tok_s"])
    assert whole == pytest.approx(expected["full_instance_output_only"], abs=1e-3)


def test_c06():
    given, expected = case("C06")
    hours = [usd / given["old"] for usd in given["costs"]]
    again = [
        purchase_mix([1], rent=Rent(on_demand_usd_per_gpu_hour=given["new"])).total_usd_per_hour * each
        for each in hours
    ]
    assert again == pytest.approx(expected["new"], rel=1e-4)


def test_c07():
    given, expected = case("C07")
    paid = purchase_mix([given["gpus"]], rent=Rent(on_demand_usd_per_gpu_hour=given["usd_h"]))
    usd = paid.total_usd_per_hour * given["hours"]
    (cost,) = unit_costs(
        busy_usd=usd * given["active_fraction"], loaded_usd=usd, counts={"all_tokens": given["tokens_m"] * 1e6}
    )
    assert cost.loaded_usd == pytest.approx(expected["reservation_per_m"])
    assert cost.busy_usd == pytest.approx(expected["usage_per_m"])


def test_c08():
    given, _ = case("C08")
    for name in given["models"]:
        assert price_of(api_prices(), name) is None
    free = dataclasses.replace(
        price_of(api_prices(), "gpt-6-sol"), output_usd_per_million_tokens=given["registry_price"]
    )
    assert api_charge_usd(TokenUsage(visible_output_tokens=1_000_000), free) is None


def test_g06():
    given, expected = case("G06")
    usage = TokenUsage(visible_output_tokens=given["visible_output"], reasoning_tokens=given["reasoning"])
    assert usage.billed_output_tokens == expected["billed_output"]


def test_g08():
    given, expected = case("G08")
    used, usd = given["usage"], given["usd_per_m"]
    price = dataclasses.replace(
        price_of(api_prices(), "gpt-6-sol"),
        input_usd_per_million_tokens=usd["input"],
        cached_input_usd_per_million_tokens=usd["cache_read"],
        cache_write_usd_per_million_tokens=usd["cache_write"],
        output_usd_per_million_tokens=usd["output"],
    )
    usage = TokenUsage(
        input_tokens=used["input"],
        cache_read_tokens=used["cache_read"],
        cache_write_tokens=used["cache_write"],
        visible_output_tokens=used["output"],
    )
    assert api_charge_usd(usage, price) == pytest.approx(expected["usd"], abs=1e-9)
    assert expected["wrong"] - expected["usd"] == pytest.approx(used["cache_write"] * usd["input"] / 1e6, abs=1e-9)


def test_g11():
    given, _ = case("G11")
    with pytest.raises(BadInput, match="10,000,000 per million"):
        usd_per_million_of_token_price(given["entered"], where="usd_per_token")
    assert usd_per_million_of_token_price(given["plausible_max"], where="usd_per_token") == pytest.approx(1000.0)
