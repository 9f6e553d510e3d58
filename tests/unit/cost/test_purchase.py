"""The mix of commitments, rent and spot, against brute force and the quantile rule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfleet.cost import Commitment, Rent, break_even_hours_per_month, purchase_mix
from tokenfleet.domain.errors import BadInput

OWN = Commitment(name="own", usd_per_gpu_hour=2.41)
RENT = Rent(on_demand_usd_per_gpu_hour=7.912)


def cost_with(held, critical, other, rent, price):
    """Dollars an hour, counted hour by hour."""
    total = 0.0
    for online, batch in zip(critical, other, strict=True):
        left = max(held - online, 0)
        total += held * price + max(online - held, 0) * rent.expected_usd_per_gpu_hour
        total += max(batch - left, 0) * rent.interruptible_usd_per_gpu_hour
    return total / len(critical)


demands = st.lists(st.integers(0, 12), min_size=1, max_size=12)


@settings(max_examples=80)
@given(
    critical=demands,
    batch=st.data(),
    price=st.floats(0.1, 9.0),
    spot=st.one_of(st.none(), st.floats(0.1, 4.0)),
    obtainable=st.sampled_from([1.0, 0.8]),
)
def test_no_other_commitment_is_cheaper(critical, batch, price, spot, obtainable):
    other = batch.draw(st.lists(st.integers(0, 6), min_size=len(critical), max_size=len(critical)))
    rent = Rent(
        on_demand_usd_per_gpu_hour=5.0,
        spot_usd_per_gpu_hour=spot,
        spot_lost_fraction=0.1,
        obtainable_fraction=obtainable,
        shortage_usd_per_gpu_hour=20.0,
    )
    mix = purchase_mix(
        critical,
        rent=rent,
        commitments=[Commitment(name="fixed", usd_per_gpu_hour=price)],
        interruptible_gpu_count=other,
    )
    costs = [cost_with(held, critical, other, rent, price) for held in range(20)]
    assert mix.total_usd_per_hour == pytest.approx(min(costs))
    assert mix.total_usd_per_hour == pytest.approx(costs[mix.committed_gpu_count])
    assert mix.all_rented_usd_per_hour == pytest.approx(costs[0])
    assert mix.total_usd_per_hour == pytest.approx(sum(line.usd_per_hour for line in mix.lines))


@given(demand=st.lists(st.integers(0, 200), min_size=1, max_size=60), price=st.floats(0.1, 7.9))
def test_critical_work_alone_follows_the_quantile_rule(demand, price):
    mix = purchase_mix(demand, rent=RENT, commitments=[Commitment(name="fixed", usd_per_gpu_hour=price)])
    held, worth = mix.committed_gpu_count, price / 7.912
    assert held == 0 or np.mean(np.array(demand) >= held) > worth
    assert np.mean(np.array(demand) >= held + 1) <= worth


def test_a_cheaper_commitment_means_more_of_it_and_a_lower_bill():
    demand = np.random.default_rng(5).lognormal(3.5, 0.6, 5000).astype(int)
    mixes = [
        purchase_mix(demand, rent=RENT, commitments=[Commitment(name="fixed", usd_per_gpu_hour=price)])
        for price in (2.41, 2.975, 5.00)
    ]
    assert [mix.committed_gpu_count for mix in mixes] == sorted(
        (mix.committed_gpu_count for mix in mixes), reverse=True
    )
    assert [mix.total_usd_per_hour for mix in mixes] == sorted(mix.total_usd_per_hour for mix in mixes)
    assert [mix.rented_fraction for mix in mixes] == sorted(mix.rented_fraction for mix in mixes)
    assert all(mix.total_usd_per_hour < mix.all_rented_usd_per_hour for mix in mixes)


@settings(max_examples=60)
@given(demand=demands, more=st.integers(0, 5), price=st.floats(0.1, 9.0), cheaper=st.floats(0.1, 1.0))
def test_more_demand_is_never_cheaper_and_a_lower_price_never_dearer(demand, more, price, cheaper):
    def total(gpus, usd):
        return purchase_mix(
            gpus, rent=RENT, commitments=[Commitment(name="fixed", usd_per_gpu_hour=usd)]
        ).total_usd_per_hour

    base = total(demand, price)
    assert total([each + more for each in demand], price) >= base - 1e-9
    assert total(demand, price * cheaper) <= base + 1e-9


def test_spot_never_carries_critical_work():
    rent = Rent(on_demand_usd_per_gpu_hour=3.0, spot_usd_per_gpu_hour=0.5)
    assert purchase_mix([4, 4], rent=rent).usd_per_hour("spot") == 0.0
    mix = purchase_mix([4, 4], rent=rent, interruptible_gpu_count=[2, 2])
    assert (mix.usd_per_hour("on_demand"), mix.usd_per_hour("spot")) == (12.0, 1.0)


def test_lost_work_makes_spot_dearer_until_it_is_not_worth_it():
    rent = Rent(on_demand_usd_per_gpu_hour=3.0, spot_usd_per_gpu_hour=2.0, spot_lost_fraction=0.2)
    mix = purchase_mix([0], rent=rent, interruptible_gpu_count=[8])
    assert mix.usd_per_hour("spot") == pytest.approx(20.0)
    assert next(line.mean_gpu_count for line in mix.lines if line.name == "spot") == pytest.approx(10.0)
    worse = Rent(on_demand_usd_per_gpu_hour=3.0, spot_usd_per_gpu_hour=2.0, spot_lost_fraction=0.5)
    assert purchase_mix([0], rent=worse, interruptible_gpu_count=[8]).usd_per_hour("on_demand") == 24.0


def test_interruptible_work_fills_what_is_committed_and_free():
    rent = Rent(on_demand_usd_per_gpu_hour=4.0, spot_usd_per_gpu_hour=1.0)
    mix = purchase_mix(
        [8, 0], rent=rent, commitments=[Commitment(name="r", usd_per_gpu_hour=2.2)], interruptible_gpu_count=[0, 8]
    )
    # A committed gpu saves 4 in one hour and 1 in the other: worth 2.5 an hour, more than its 2.2.
    assert mix.committed_gpu_count == 8
    assert mix.committed_used_fraction == 1.0


def test_capacity_that_may_not_be_there_raises_the_commitment():
    demand = np.arange(100)
    sure = purchase_mix(demand, rent=RENT, commitments=[OWN])
    rare = Rent(on_demand_usd_per_gpu_hour=7.912, obtainable_fraction=0.7, shortage_usd_per_gpu_hour=40.0)
    unsure = purchase_mix(demand, rent=rare, commitments=[OWN])
    assert unsure.committed_gpu_count > sure.committed_gpu_count
    assert unsure.usd_per_hour("shortage") > 0.0
    with pytest.raises(BadInput, match="shortage_usd_per_gpu_hour"):
        purchase_mix(demand, rent=Rent(on_demand_usd_per_gpu_hour=1.0, obtainable_fraction=0.9))


def test_commitments_are_taken_cheapest_first_up_to_what_can_be_had():
    own = Commitment(name="own", usd_per_gpu_hour=1.0, most_gpu_count=4)
    reserved = Commitment(name="reserved", usd_per_gpu_hour=2.0)
    mix = purchase_mix([10] * 9 + [20], rent=Rent(on_demand_usd_per_gpu_hour=4.0), commitments=[reserved, own])
    assert [(line.name, line.mean_gpu_count) for line in mix.lines] == [("own", 4), ("reserved", 6), ("on_demand", 1.0)]


def test_a_replica_moves_in_whole_steps():
    mix = purchase_mix(range(1, 33), rent=RENT, commitments=[OWN], step_gpu_count=16)
    assert mix.committed_gpu_count == 32
    capped = Commitment(name="own", usd_per_gpu_hour=2.41, most_gpu_count=20)
    assert purchase_mix(range(1, 33), rent=RENT, commitments=[capped], step_gpu_count=16).committed_gpu_count == 16


def test_a_commitment_longer_than_the_demand_is_believed_is_paid_to_its_end():
    three_years = Commitment(name="r3", usd_per_gpu_hour=3.0, term_h=3 * 8760)
    rent = Rent(on_demand_usd_per_gpu_hour=8.0)
    assert purchase_mix([5], rent=rent, commitments=[three_years]).committed_gpu_count == 5
    assert purchase_mix([5], rent=rent, commitments=[three_years], horizon_h=8760).committed_gpu_count == 0
    # A year is of full use to whom believes a little more: what follows can be rented.
    year = Commitment(name="r1", usd_per_gpu_hour=6.0, term_h=8760)
    for horizon_h in (8760, 9600, 3 * 8760 + 1):
        assert purchase_mix([5], rent=rent, commitments=[year], horizon_h=horizon_h).total_usd_per_hour == 30.0


def test_break_even_hours():
    # A reservation at 60 % of the price pays off from 60 % of the hours.
    assert break_even_hours_per_month(1.8, 3.0) == pytest.approx(438.0)
    assert break_even_hours_per_month(3.1, 3.0) is None


def test_every_problem_is_told_at_once():
    with pytest.raises(BadInput) as caught:
        purchase_mix(
            [],
            rent=Rent(on_demand_usd_per_gpu_hour=-1.0, obtainable_fraction=2.0, spot_lost_fraction=1.0),
            commitments=[Commitment(name="x", usd_per_gpu_hour=-1.0)],
            interruptible_gpu_count=[1],
            horizon_h=0.0,
            step_gpu_count=0,
        )
    assert len(caught.value.problems) == 8
