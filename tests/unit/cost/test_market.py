"""A gpu's prices under every term, with the unknown ones named."""

import pytest

from tokenfleet.catalog import gpu_prices
from tokenfleet.cost import TYPICAL_OF_ON_DEMAND, market, purchase_mix
from tokenfleet.domain.errors import BadInput


def test_the_reference_of_every_term_that_has_one():
    found = market("h200_sxm", spot_lost_fraction=0.1)
    assert found.rent.on_demand_usd_per_gpu_hour == 3.45
    assert found.rent.spot_usd_per_gpu_hour < found.rent.on_demand_usd_per_gpu_hour
    assert [(each.name, each.term_h) for each in found.commitments] == [("reserved_3y", 26_280.0)]
    assert found.unknown == ("reserved_1y",)
    assert len(found.basis) == 3
    assert all("reference of" in line for line in found.basis)


def test_one_provider_is_one_level():
    aws = market("h200_sxm", provider="aws")
    assert aws.rent.on_demand_usd_per_gpu_hour == 7.912
    assert aws.commitments[0].usd_per_gpu_hour == 2.975
    assert aws.rent.spot_usd_per_gpu_hour is None
    mix = purchase_mix([8] * 3 + [16], rent=aws.rent, commitments=aws.commitments)
    assert mix.committed_gpu_count == 8


def test_a_gpu_nobody_rents_out_has_no_rent():
    found = market("gaudi3")
    assert found.rent is None
    assert found.commitments == found.basis == ()
    assert set(found.unknown) == {"on_demand", "spot", "reserved_1y", "reserved_3y"}
    with pytest.raises(BadInput, match="nearest"):
        market("h100x")


@pytest.mark.parametrize("term", ["reserved_3y", "spot"])
def test_typical_shares_are_those_of_the_price_table(term):
    low, high = TYPICAL_OF_ON_DEMAND[term]
    shares = []
    for name in ("h100_sxm", "h200_sxm"):
        asked = {(price.provider, price.term): price.price_usd_per_gpu_hour for price in gpu_prices(name)}
        shares += [
            usd / asked[provider, "on_demand"]
            for (provider, each), usd in asked.items()
            if each == term and (provider, "on_demand") in asked
        ]
    assert len(shares) >= 2
    assert low - 0.005 <= min(shares)
    assert max(shares) <= high + 0.005
