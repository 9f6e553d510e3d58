import pytest

from tokenfleet.domain.errors import BadInput
from tokenfleet.planner import claims
from tokenfleet.planner.claims import Claimed
from tokenfleet.planner.equal_gpus import Carried, EqualGpus
from unit.planner import toy


def point(figure):
    return Claimed(low=figure)


def span(low, high):
    return Claimed(low=low, high=high)


def test_a_contract_holds_up_to_a_length():
    said = {"sequence_count": 72, "rate_per_s": 18.0, "ttft_s": 0.78, "tpot_s": 0.031}
    found = claims.little(**said, output_tokens=None)
    assert found.supported
    assert found.found == pytest.approx(104.87, abs=0.01)
    assert claims.little(**said, output_tokens=104).supported
    assert not claims.little(**said, output_tokens=106).supported, "one percent too long is too long for ever"
    refuted = claims.little(**said, output_tokens=200)
    assert not refuted.supported
    assert "125.1 are in flight, more than 72" in refuted.arithmetic[-1]


def test_a_contract_whose_first_token_alone_takes_too_long_holds_for_nobody():
    found = claims.little(sequence_count=10, rate_per_s=20.0, ttft_s=0.8, tpot_s=0.03, output_tokens=None)
    assert not found.supported
    assert found.found is None


def test_a_price_per_token_is_the_bill_over_what_is_served():
    said = {"usd_per_hour": 24.56, "tokens_per_s": 5000.0}
    found = claims.token_price(**said, busy_fraction=1.0, claimed=point(0.15))
    assert not found.supported
    assert found.found == pytest.approx(1.364, abs=1e-3)
    idle = claims.token_price(**said, busy_fraction=0.1, claimed=point(1.4))
    assert idle.found == pytest.approx(10 * found.found)
    assert claims.token_price(**said, busy_fraction=1.0, claimed=point(1.4)).supported


@pytest.mark.parametrize(
    ("rent", "claimed", "holds"),
    [(7.91, 0.30, True), (7.91, 0.22, False), (7.91, 0.65, False), (2.25, 0.99, False), (2.41, 1.0, True)],
)
def test_owning_begins_to_win_at_own_over_rent(rent, claimed, holds):
    found = claims.break_even(own_usd_per_gpu_hour=2.41, rent_usd_per_gpu_hour=rent, claimed_fraction=point(claimed))
    assert found.supported is holds
    assert found.found == pytest.approx(2.41 / rent)


def test_twice_the_gpus_is_no_speed_up():
    # 1,000 requests a second on 8 gpus, 2,500 on 16: disaggregation is said to give 2.5 times.
    found = claims.speed_up(
        before_per_s=1000, before_gpu_count=8, after_per_s=2500, after_gpu_count=16, claimed=point(2.5)
    )
    assert not found.supported
    assert found.found == pytest.approx(1.25)
    assert "2.5 times if GPUs are not counted" in found.arithmetic[-1]
    assert claims.speed_up(
        before_per_s=1000, before_gpu_count=8, after_per_s=2500, after_gpu_count=16, claimed=point(1.25)
    ).supported


def test_nothing_saved_is_no_small_saving():
    bills = {"before_usd": 100.0, "before_units": 10.0, "after_units": 10.0}
    assert not claims.saving(**bills, after_usd=100.0, claimed_fraction=point(0.05)).supported
    assert not claims.saving(**bills, after_usd=102.0, claimed_fraction=point(0.03)).supported
    assert claims.saving(**bills, after_usd=61.5, claimed_fraction=point(0.40)).supported
    assert claims.saving(**bills, after_usd=100.0, claimed_fraction=span(0.03, 0.05)).position == "below"


def test_a_saving_at_less_work_is_less_of_a_saving():
    found = claims.saving(before_usd=100, before_units=100, after_usd=50, after_units=60, claimed_fraction=point(0.5))
    assert not found.supported
    assert found.found == pytest.approx(1 - 50 / 60)
    assert claims.saving(
        before_usd=100, before_units=60, after_usd=50, after_units=60, claimed_fraction=point(0.5)
    ).supported


def test_half_the_weights_are_not_twice_the_speed():
    # The step halves but for the contexts, which weigh the same; memory saved gives room for more of them.
    before = toy.replica(step_ms=20.0, token_us=0.0, context_ns=10.0, block_count=2000)
    after = toy.replica(step_ms=10.0, token_us=0.0, context_ns=10.0, block_count=3000, precision="fp8")
    alone = claims.decode_speed_up(before, after, context_tokens=1000, sequence_count=32, claimed=point(2.0))
    assert alone.found == pytest.approx(20.32 / 10.32, rel=1e-6)
    full = claims.decode_speed_up(before, after, context_tokens=1000, sequence_count=None, claimed=point(2.0))
    assert (claims.most_sequences(before, 1000), claims.most_sequences(after, 1000)) == (31, 47)
    assert full.found == pytest.approx((47 / 10.47) / (31 / 20.31), rel=1e-6)
    assert claims.most_sequences(before, 40_000) == 0
    assert (
        claims.decode_speed_up(before, after, context_tokens=40_000, sequence_count=None, claimed=point(1.0)).found
        is None
    )


@pytest.mark.parametrize(
    ("claimed", "position"),
    [(span(2.0, 7.0), "below"), (span(1.0, 2.0), "within"), (span(1.31, 7.0), "within"), (span(0.2, 1.0), "above")],
)
def test_a_range_is_supported_where_the_figure_lies_in_it(claimed, position):
    found = claims.speed_up(
        before_per_s=1000, before_gpu_count=8, after_per_s=2500, after_gpu_count=16, claimed=claimed
    )
    assert found.position == position
    assert found.supported is (position == "within")
    assert " to " in found.claim


def test_every_claim_takes_a_range():
    price = {"usd_per_hour": 24.56, "tokens_per_s": 5000.0, "busy_fraction": 1.0}
    assert claims.token_price(**price, claimed=span(1.0, 1.5)).position == "within"
    # A single price is a most, a range is not: cheaper than it is outside.
    assert claims.token_price(**price, claimed=point(2.0)).supported
    assert not claims.token_price(**price, claimed=span(2.0, 3.0)).supported
    owning = {"own_usd_per_gpu_hour": 2.41, "rent_usd_per_gpu_hour": 7.91}
    assert claims.break_even(**owning, claimed_fraction=span(0.65, 0.80)).position == "below"
    bills = {"before_usd": 100, "before_units": 100, "after_usd": 50, "after_units": 100}
    assert claims.saving(**bills, claimed_fraction=span(0.1, 0.3)).position == "above"
    assert claims.saving(**bills, claimed_fraction=span(0.5, 0.6)).supported
    slow = toy.replica(step_ms=20.0, token_us=0.0, context_ns=10.0, block_count=2000)
    same = claims.decode_speed_up(slow, slow, context_tokens=1000, sequence_count=8, claimed=span(1.5, 2.0))
    assert same.position == "below"


def carried(rate_per_s, *, at_least=False):
    return Carried(said="replicas", rate_per_s=rate_per_s, at_least=at_least)


def compared(together, apart, usual):
    return EqualGpus(
        gpu_count=8,
        together=together,
        apart=apart,
        usual=usual,
        together_count=4,
        apart_count=9,
        replayed_count=50,
    )


def test_pools_apart_are_held_against_the_best_fleet_and_an_untuned_one_is_named():
    found = claims.disaggregation(compared(carried(10.0), carried(12.0), carried(4.0)), span(2.0, 7.0))
    assert (found.supported, found.position, found.found) == (False, "below", pytest.approx(1.2))
    assert "which would make it 3 times" in found.arithmetic[-1]
    none = claims.disaggregation(compared(None, carried(12.0), None), point(2.0))
    assert (none.supported, none.found, none.position) == (False, None, None)
    assert "no load" in none.arithmetic[-1]
    never = claims.disaggregation(compared(carried(10.0), carried(12.0), None), point(1.2))
    assert never.supported
    assert never.arithmetic[-1].endswith("the fleet would carry nothing")


@pytest.mark.parametrize(
    ("together", "apart", "claim", "supported"),
    [
        # Nothing broke either: their ratio says nothing, whatever is claimed.
        (True, True, point(1.1), None),
        (True, True, span(2.0, 7.0), None),
        # Nothing broke the fleet, so pools apart are no more than 1.2 times as good, and maybe less.
        (True, False, point(2.0), False),
        (True, False, point(1.1), None),
        (True, False, span(2.0, 7.0), False),
        (True, False, span(0.8, 1.1), None),
        # Nothing broke the pools apart, so they are at least 1.2 times as good.
        (False, True, point(1.1), True),
        (False, True, point(2.0), None),
        (False, True, span(0.8, 1.1), False),
        (False, True, span(1.0, 1.5), None),
        (False, True, span(2.0, 7.0), None),
    ],
)
def test_a_load_that_nothing_broke_is_a_bound_and_decides_no_more_than_it_can(together, apart, claim, supported):
    both = compared(carried(10.0, at_least=together), carried(12.0, at_least=apart), None)
    if supported is None:
        with pytest.raises(BadInput, match=r"too thin to fill 8 GPUs.*up to at least"):
            claims.disaggregation(both, claim)
    else:
        assert claims.disaggregation(both, claim).supported is supported
