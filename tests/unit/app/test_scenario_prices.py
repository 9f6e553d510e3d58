"""Which prices a scenario plans with."""

import pytest

from tokenfleet import catalog
from tokenfleet.app.compose import gpu_prices
from tokenfleet.app.scenario_types import Prices


class Asked:
    def __init__(self, **prices):
        self.prices = Prices(**prices)


def used(name, **prices):
    return gpu_prices(catalog.gpu(name), Asked(**prices))


def test_the_catalog_reference_unless_told_otherwise():
    (price,) = used("h200_sxm")
    assert price == catalog.reference_price("h200_sxm").price
    assert price.evidence == "reference"


@pytest.mark.parametrize("prices", [{}, {"provider": "aws"}, {"term": "spot"}])
def test_a_price_of_ones_own_wins(prices):
    (price,) = used("h100_sxm", usd_per_gpu_hour={"h100_sxm": 1.23}, **prices)
    assert (price.provider, price.price_usd_per_gpu_hour) == ("own", 1.23)


def test_a_named_provider_gives_its_real_quotes():
    found = used("tpu_v6e", provider="gcp")
    assert sorted(price.price_usd_per_gpu_hour for price in found) == [2.7, 2.97, 3.24]
    assert {price.provider for price in found} == {"gcp"}
    assert used("h100_nvl", provider="oci") == ()


def test_a_term_only_an_index_knows_is_planned_with_the_index():
    (price,) = used("h100_sxm", term="reserved_1y")
    assert price.evidence == "index"


def test_no_price_is_none():
    assert used("gaudi3") == ()
