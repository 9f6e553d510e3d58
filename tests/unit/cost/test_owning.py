"""Owning, to the figures of published worked examples."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.catalog import reference_price
from tokenfleet.cost import (
    Commitment,
    CostLine,
    OwnedPool,
    Rent,
    annuity_usd_per_year,
    break_even_hours,
    break_even_utilization_fraction,
    compare_supply,
    cost_sheet,
    own_cost,
    purchase_mix,
    usd_per_million,
    whole_servers,
)
from tokenfleet.domain.errors import BadInput

# 8 x H200, as in the cost appendix of a utility (2026-10): 370,000 dollars, 10 % a year support, 7 kW at PUE 1.6.
APPENDIX = OwnedPool(
    gpu_count=8,
    capital_usd=370_000,
    life_years=3,
    average_power_kw=7.0,
    pue=1.6,
    tariff_usd_per_kwh=0.0977,
    support_fraction_per_year=0.10,
)
# The same node with capital cost, a residual, colocation and people.
FULL = OwnedPool(
    gpu_count=8,
    capital_usd=370_000,
    life_years=4,
    residual_fraction=0.15,
    cost_of_capital_fraction=0.08,
    average_power_kw=7.0,
    pue=1.4,
    tariff_usd_per_kwh=0.10,
    colocation_kw=7.0,
    colocation_usd_per_kw_month=150.0,
    staff_usd_per_year=30_000,
    support_fraction_per_year=0.05,
)


def test_the_published_node_over_three_years():
    cost = own_cost(APPENDIX)
    assert cost.power_kwh_per_year * 3 == pytest.approx(294_336)
    assert cost.power_usd_per_year * 3 == pytest.approx(28_757, abs=0.5)
    assert cost.total_usd_per_year * 3 == pytest.approx(509_757, abs=0.5)
    assert round(cost.usd_per_available_gpu_hour, 2) == 2.42
    assert round(cost.usd_per_useful_gpu_hour(0.6), 2) == 4.04
    assert round(cost.usd_per_useful_gpu_hour(0.2), 2) == 12.12
    assert cost.usd_per_useful_gpu_hour(0.0) is None


@pytest.mark.parametrize(
    ("usd_per_node_hour", "published"), [(63.296, 1.663e6), (23.80, 0.625e6), (50.44, 1.326e6), (40.0, 1.051e6)]
)
def test_the_same_node_rented_for_three_years(usd_per_node_hour, published):
    rented = purchase_mix([8], rent=Rent(on_demand_usd_per_gpu_hour=usd_per_node_hour / 8))
    assert rented.total_usd_per_hour * 3 * 8760 == pytest.approx(published, abs=500)


def test_rents_of_that_example_are_those_of_the_catalog():
    def usd(provider, term="on_demand"):
        return 8 * reference_price("h200_sxm", provider=provider, term=term).price.price_usd_per_gpu_hour

    assert usd("aws") == pytest.approx(63.296)
    assert usd("aws", "reserved_3y") == pytest.approx(23.80)
    assert usd("coreweave") == pytest.approx(50.44)
    assert usd("oci", "reserved_3y") == pytest.approx(40.0)


def test_break_even_utilization_against_published_rents():
    own = own_cost(FULL).usd_per_available_gpu_hour
    assert round(own, 2) == 2.41
    rents = {
        ("aws", "on_demand"): 0.30,
        ("coreweave", "on_demand"): 0.38,
        ("azure", "reserved_3y"): 0.46,
        ("oci", "reserved_3y"): 0.48,
        ("nebius", "on_demand"): 0.69,
        ("aws", "reserved_3y"): 0.81,
        ("packet.ai", "on_demand"): 1.07,
    }
    for (provider, term), published in rents.items():
        rent = reference_price("h200_sxm", provider=provider, term=term).price.price_usd_per_gpu_hour
        assert round(break_even_utilization_fraction(own, rent), 2) == published, provider


def test_a_vendor_paper_on_premises():
    # Lenovo LP2225: 8 x H100 for 833,806 dollars, 0.87 an hour to run, 98.32 an hour rented.
    assert break_even_hours(833_806, 0.87, 98.32) == pytest.approx(8_556.2, abs=0.1)
    assert break_even_hours(833_806, 98.32, 98.32) is None


def test_a_published_fleet_day():
    # DeepSeek: 226.75 nodes of 8 H800 at 2 dollars a gpu-hour.
    gpus = round(226.75 * 8)
    rented = purchase_mix([gpus], rent=Rent(on_demand_usd_per_gpu_hour=2.0))
    assert rented.total_usd_per_hour * 24 == pytest.approx(87_072.0)


def test_cost_per_token_falls_as_one_over_the_load():
    # Published: one H100 from 0.21 dollars per million output tokens at full load to 15.25 at the lowest.
    price = own_cost(APPENDIX).usd_per_available_gpu_hour
    full = usd_per_million(price, price / 0.21 / 3600 * 1e6)
    assert full == pytest.approx(0.21)
    assert usd_per_million(price, price / 0.21 / 3600 * 1e6, busy_fraction=0.21 / 15.25) == pytest.approx(15.25)


def test_the_lines_are_the_bill():
    cost = own_cost(FULL)
    assert set(cost.lines) == {"capital", "power", "colocation", "network", "staff", "support", "software"}
    assert sum(cost.lines.values()) == pytest.approx(cost.total_usd_per_year)
    assert cost.colocation_usd_per_year == 7 * 150 * 12
    assert cost.support_usd_per_year == pytest.approx(18_500)


@given(capital=st.floats(1e3, 1e8), years=st.floats(0.5, 15), share=st.floats(0, 0.9), rate=st.floats(1e-9, 0.5))
def test_the_annuity_pays_for_the_thing_exactly(capital, years, share, rate):
    """Present value of the payments and of the residual is the price."""
    payment = annuity_usd_per_year(
        capital, life_years=years, residual_usd=share * capital, cost_of_capital_fraction=rate
    )
    factor = (1 + rate) ** -years
    worth = payment * (1 - factor) / rate + share * capital * factor
    assert worth == pytest.approx(capital, rel=1e-6)
    plain = annuity_usd_per_year(capital, life_years=years, residual_usd=share * capital)
    assert payment >= plain * (1 - 1e-12)


def test_free_money_is_plain_depreciation():
    assert annuity_usd_per_year(100.0, life_years=4, residual_usd=20.0) == 20.0
    tiny = annuity_usd_per_year(100.0, life_years=4, residual_usd=20.0, cost_of_capital_fraction=1e-12)
    assert tiny == pytest.approx(20.0)
    with pytest.raises(ValueError, match="life"):
        annuity_usd_per_year(1.0, life_years=0.0)


def test_bad_numbers_are_told_at_once():
    pool = OwnedPool(gpu_count=0, capital_usd=-1.0, life_years=3, residual_fraction=2.0, pue=0.9)
    with pytest.raises(BadInput) as caught:
        own_cost(pool)
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_what_is_no_number_is_no_price(odd):
    with pytest.raises(BadInput, match="capital_usd"):
        own_cost(OwnedPool(gpu_count=8, capital_usd=odd, life_years=3))
    with pytest.raises(BadInput, match="rent: a price"):
        purchase_mix([5], rent=Rent(on_demand_usd_per_gpu_hour=odd))
    year = Commitment(name="x", usd_per_gpu_hour=odd)
    with pytest.raises(BadInput, match=r"commitments\.x"):
        purchase_mix([5], rent=Rent(on_demand_usd_per_gpu_hour=1.0), commitments=[year])
    with pytest.raises(BadInput, match="cpu"):
        cost_sheet([CostLine(name="cpu", quantity=1.0, unit="month", usd_per_unit=odd)])


def test_cloud_own_and_hybrid_beside_each_other():
    demand = [10] * 60 + [40] * 30 + [120] * 10
    rent = Rent(on_demand_usd_per_gpu_hour=7.912)
    fixed = [
        Commitment(name="own", usd_per_gpu_hour=2.41),
        Commitment(name="aws 3y", usd_per_gpu_hour=2.975),
        Commitment(name="list", usd_per_gpu_hour=8.0),
    ]
    own, aws, dear = compare_supply(demand, rent=rent, fixed=fixed)
    # Mean demand is 30 gpus; the peak of 120 is there in a tenth of the hours, the 40 in two fifths of them.
    assert own.all_rented_usd_per_hour == pytest.approx(30 * 7.912)
    assert own.fixed_at_peak_gpu_count == 120
    assert own.fixed_at_peak_usd_per_hour == pytest.approx(120 * 2.41)
    assert own.hybrid.committed_gpu_count == 40
    assert own.hybrid.total_usd_per_hour == pytest.approx(40 * 2.41 + 8 * 7.912)
    assert own.best == aws.best == "hybrid"
    assert own.break_even_utilization_fraction == pytest.approx(0.3046, abs=1e-4)
    assert dear.break_even_utilization_fraction > 1.0
    assert dear.hybrid.committed_gpu_count == 0
    assert dear.best == "cloud"


@given(demand=st.lists(st.integers(0, 40), min_size=1, max_size=40), price=st.floats(0.1, 12.0))
def test_the_hybrid_never_loses(demand, price):
    (row,) = compare_supply(
        demand, rent=Rent(on_demand_usd_per_gpu_hour=6.0), fixed=[Commitment(name="x", usd_per_gpu_hour=price)]
    )
    least = min(row.all_rented_usd_per_hour, row.fixed_at_peak_usd_per_hour)
    assert row.hybrid.total_usd_per_hour <= least + 1e-9


@given(
    demand=st.lists(st.integers(0, 60), min_size=1, max_size=12),
    size=st.sampled_from([1, 4, 8]),
    server=st.floats(0.5, 40.0),
    available=st.sampled_from([1.0, 0.9]),
)
def test_whole_servers_are_as_cheap_as_any_number_of_them(demand, size, server, available):
    found = whole_servers(
        demand,
        gpus_per_server_count=size,
        usd_per_server_hour=server,
        rent_usd_per_gpu_hour=3.0,
        available_fraction=available,
    )

    def hour(owned):
        return owned * server + 3.0 * sum(max(0.0, each - owned * size * available) for each in demand) / len(demand)

    assert found.usd_per_hour == pytest.approx(hour(found.server_count))
    assert found.usd_per_hour <= min(hour(owned) for owned in range(80)) + 1e-6


def test_a_server_that_hardly_pays_is_not_bought():
    dear = whole_servers([2], gpus_per_server_count=8, usd_per_server_hour=7.0, rent_usd_per_gpu_hour=3.0)
    assert (dear.server_count, dear.usd_per_hour) == (0, 6.0)
    cheap = whole_servers([2, 4], gpus_per_server_count=8, usd_per_server_hour=7.0, rent_usd_per_gpu_hour=3.0)
    assert (cheap.server_count, cheap.usd_per_hour) == (1, 7.0)
