"""How to buy: from a day that the trace shows or that somebody describes, on terms of the market or their own."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tokenfleet import cost
from tokenfleet.app.buying_words import dearer_lines, spot_lines
from tokenfleet.domain.buying import Buying
from tokenfleet.domain.slo import LatencyTarget, Slo, TrafficClass
from tokenfleet.domain.survival import Redundancy, Zone
from tokenfleet.domain.trace import Trace
from tokenfleet.planner import joint, plan, plan_document
from tokenfleet.planner.buying import described_gpus, purchase, purchase_missing
from tokenfleet.planner.money import carrying_by_slot, spare_beside
from tokenfleet.workload import profile
from unit.planner import toy

pytestmark = pytest.mark.usefixtures("toy_world")
DAY = Buying(hour_fraction=(1.0,) * 8 + (0.3,) * 16)


def question(**more):
    return toy.question([toy.replica(slots=4, tensor_parallel=2)], [toy.price("h100_sxm", 3.0)], **more)


def of_ten(buying=None):
    """A plan in which ten replicas of two gpus carry, and one is spare."""
    made = plan(question(), toy.trace())
    asked = made.question if buying is None else replace(made.question, buying=buying)
    return replace(made, question=asked, chosen=replace(made.chosen, carrying_count=10))


@pytest.fixture
def quotes(monkeypatch):
    """The market asks 2 dollars for a year, and nobody publishes three."""
    rent = cost.Rent(on_demand_usd_per_gpu_hour=3.3, spot_usd_per_gpu_hour=1.0)
    year = cost.Commitment(name="reserved_1y", usd_per_gpu_hour=2.0)
    asked = []

    def market(gpu, *, provider=None):
        asked.append(provider)
        return cost.Market(gpu=gpu, rent=rent, commitments=(year,), basis=(), unknown=("reserved_3y",))

    monkeypatch.setattr(cost, "market", market)
    return asked


def days(count):
    """Busy by day, quiet by night: 30 requests in the first minute of an hour from 8 to 18 h, else 2."""
    arrivals = []
    for hour in range(24 * count):
        rate = 30 if 8 <= hour % 24 < 18 else 2
        arrivals += [hour * 3600.0 + 60.0 * at / rate for at in range(rate)]
    arrivals[-1] = 24 * 3600.0 * count
    equal = np.full(len(arrivals), 500, dtype=np.int32)
    return Trace(arrival_s=np.array(arrivals), input_tokens=equal, output_tokens=equal)


def test_hours_ask_for_gpus_by_their_busiest_minute(quotes):
    made = of_ten()
    carrying = carrying_by_slot(made.chosen, days(2), 3600.0)
    assert len(carrying) == 48
    assert set(carrying.tolist()) == {1, 10}
    assert np.count_nonzero(carrying == 10) == 20
    bought = purchase(made, days(2))
    assert (bought.hour_count, bought.described) == (48, False)
    assert bought.total_usd_per_hour == pytest.approx(sum(line.usd_per_hour for line in bought.lines))
    assert bought.total_usd_per_hour < bought.all_on_demand_usd_per_hour
    assert bought.all_on_demand_usd_per_hour == pytest.approx(3.0 * 2 * (carrying + 1).mean())
    # 2 dollars are less than 3 in every hour and more than 3 in the 42 % of hours by day: the night is committed.
    assert bought.commit_from_fraction == pytest.approx(2 / 3)
    assert bought.committed_gpu_count == 4
    assert bought.unknown_terms == ("reserved_3y",)
    assert "spot" not in {line.name for line in bought.lines}


@pytest.mark.parametrize(("last_s", "shown"), [(86_395.0, 24), (86_100.0, 24), (85_900.0, 0)])
def test_the_log_of_a_day_ends_with_its_last_request_not_at_midnight(quotes, last_s, shown):
    whole = days(1)
    trace = replace(whole, arrival_s=np.append(whole.arrival_s[:-1], last_s))
    bought = purchase(of_ten(), trace)
    assert (0 if bought is None else bought.hour_count) == shown
    assert ("no whole day" in purchase_missing(of_ten(), trace)) == (not shown)


def test_a_peak_in_the_last_part_of_an_hour_is_the_peak_all_the_same():
    """The fleet was sized for it: the fullest whole hour needs no more than its share."""
    arrivals = np.concatenate([np.arange(25) * 3600.0, 25 * 3600.0 + np.arange(5) * 1.0])
    equal = np.full(len(arrivals), 100, dtype=np.int32)
    trace = Trace(arrival_s=arrivals, input_tokens=equal, output_tokens=equal)
    assert carrying_by_slot(of_ten().chosen, trace, 3600.0).tolist() == [2] * 25


def test_a_day_that_somebody_describes_stands_for_a_short_trace(quotes):
    bought = purchase(of_ten(DAY), toy.trace())
    assert (bought.hour_count, bought.described) == (24, True)
    # 3 replicas and the spare all day, 7 more for a third of it: the quantile rule commits to the four.
    assert bought.committed_gpu_count == 8
    lines = {line.name: (line.mean_gpu_count, line.usd_per_hour) for line in bought.lines}
    assert lines == {"reserved_1y": (8.0, 16.0), "on_demand": pytest.approx((14 / 3, 14.0))}
    assert quotes == [None]


def test_an_hour_has_the_spare_replicas_that_its_own_load_needs(quotes):
    """Half of the fleet stands in each of two zones: three replicas at night are three and three, not three and ten."""
    made = of_ten(replace(DAY, usd_per_gpu_hour={"reserved_1y": {"h100_sxm": 2.9}}))
    zones = Redundancy(zone_count=1, zones=(Zone(name="a"), Zone(name="b")))
    asked = replace(made.question, redundancy=zones)
    made = replace(made, question=asked, chosen=replace(made.chosen, spare_count=10))
    bought = purchase(made, toy.trace())
    assert bought.all_on_demand_usd_per_hour == pytest.approx(3.0 * 2 * (20 * 8 + 6 * 16) / 24)
    # 97 % of rent pays from 97 % of the hours on: what the night needs is committed, the day is rented.
    assert bought.committed_gpu_count == 12
    assert described_gpus(asked, made.chosen).tolist() == [40] * 8 + [12] * 16
    # What a fleet has beyond what is asked for stays, and an hour that needs nothing keeps nothing.
    more = replace(made.chosen, spare_count=12)
    assert spare_beside(asked, more, np.array([10, 3, 0])).tolist() == [12, 5, 0]


def test_what_is_described_counts_before_what_the_trace_shows(quotes):
    assert purchase(of_ten(DAY), days(2)).hour_count == 24


def test_ones_own_terms_count_before_those_of_the_market(quotes):
    own = replace(DAY, provider="coreweave", usd_per_gpu_hour={"reserved_1y": {"h100_sxm": 0.5, "l40s": 9.0}})
    bought = purchase(of_ten(own), toy.trace())
    assert quotes == ["coreweave"]
    assert bought.committed_gpu_count == 22, "half a dollar is worth committing for a sixth of the hours"
    assert bought.commit_from_fraction == pytest.approx(0.5 / 3)
    dear = replace(DAY, usd_per_gpu_hour={"reserved_1y": {"h100_sxm": 2.9}, "reserved_3y": {"h100_sxm": 1.5}})
    bought = purchase(of_ten(dear), toy.trace())
    assert [line.name for line in bought.lines] == ["reserved_3y", "on_demand"]
    assert bought.unknown_terms == ()
    short = replace(dear, believed_s=180 * 86_400.0)
    half = replace(own, believed_s=182.5 * 86_400.0)
    believed = purchase(of_ten(half), toy.trace())
    assert believed.commit_from_fraction == pytest.approx(2 * 0.5 / 3), "a year is paid for half of it"
    assert [line.name for line in purchase(of_ten(short), toy.trace()).lines] == ["on_demand"]


def test_every_term_has_its_price_with_range_and_date():
    made = of_ten(replace(DAY, usd_per_gpu_hour={"reserved_1y": {"h100_sxm": 1.9}}))
    terms = {each.term: each for each in purchase(made, toy.trace()).terms}
    assert next(iter(terms)) == "on_demand"
    assert terms["on_demand"].usd_per_gpu_hour == 3.0
    assert (terms["reserved_1y"].usd_per_gpu_hour, terms["reserved_1y"].source) == (1.9, "scenario")
    assert terms["reserved_1y"].low_usd_per_gpu_hour is None
    spot = {each.term: each for each in purchase(of_ten(replace(DAY, interruptible_fraction=0.5)), toy.trace()).terms}
    found = cost.market("h100_sxm").quotes["spot"]
    assert spot["spot"].usd_per_gpu_hour == found.price.price_usd_per_gpu_hour
    assert spot["spot"].low_usd_per_gpu_hour <= spot["spot"].high_usd_per_gpu_hour
    assert spot["spot"].as_of
    assert "spot" not in terms


def test_what_may_not_be_had_carries_a_penalty(quotes):
    scarce = replace(DAY, obtainable_fraction=0.5, shortage_usd_per_gpu_hour=20.0)
    bought = purchase(of_ten(scarce), toy.trace())
    # An hour of need now costs 11.5, of which 2 are 17 %: all that a third of the hours need is committed.
    assert bought.committed_gpu_count == 22
    assert bought.commit_from_fraction == pytest.approx(2 / 11.5)
    none = replace(scarce, usd_per_gpu_hour={"reserved_1y": {"h100_sxm": 12.0}})
    lines = {line.name: line.usd_per_hour for line in purchase(of_ten(none), toy.trace()).lines}
    mean = 2 * (1 + 10 / 3 + 3 * 2 / 3)
    assert lines == pytest.approx({"on_demand": mean / 2 * 3.0, "shortage": mean / 2 * 20.0})


def test_a_term_dearer_than_rent_is_named_and_not_taken(quotes):
    dear = replace(DAY, usd_per_gpu_hour={"reserved_1y": {"h100_sxm": 5.0}, "reserved_3y": {"h100_sxm": 3.1}})
    bought = purchase(of_ten(dear), toy.trace())
    assert [line.name for line in bought.lines] == ["on_demand"]
    assert bought.dearer_terms == ("reserved_1y", "reserved_3y")
    assert bought.committed_gpu_count == 0
    assert bought.commit_from_fraction is None, "no share of the hours is enough"
    said = dearer_lines(bought)
    assert said == [
        "reserved 1y at $5.00 is dearer than $3.00 on demand: not taken",
        "reserved 3y at $3.10 is dearer than $3.00 on demand: not taken",
    ]
    scarce = replace(dear, obtainable_fraction=0.5, shortage_usd_per_gpu_hour=20.0)
    taken = purchase(of_ten(scarce), toy.trace())
    assert next(line.name for line in taken.lines if line.mean_gpu_count) == "reserved_3y"
    assert dearer_lines(taken)[1].endswith("taken because missing GPUs cost more yet")
    cheap = purchase(of_ten(DAY), toy.trace())
    assert (cheap.dearer_terms, dearer_lines(cheap)) == ((), [])


def test_spot_takes_what_may_be_interrupted_and_nothing_else(quotes):
    some = replace(DAY, interruptible_fraction=0.5, spot_lost_fraction=0.2)
    bought = purchase(of_ten(some), toy.trace())
    lines = {line.name: line.mean_gpu_count for line in bought.lines}
    assert lines["spot"] > 0.0
    # Of ten and three carrying replicas five and one may be interrupted, of two gpus each.
    most = 2 * (5 * 8 + 1 * 16) / 24 / 0.8
    assert lines["spot"] <= most + 1e-9
    everything = purchase(of_ten(replace(some, interruptible_fraction=1.0)), toy.trace())
    kept = sum(line.mean_gpu_count for line in everything.lines if line.name != "spot")
    assert kept >= 2, "the spare replica is no work that may be interrupted"


def test_work_on_spot_that_somebody_waits_for_is_named(quotes):
    """Nobody can promise TTFT to all and let half of the work be interrupted; of classes one can be free of it."""
    some = replace(DAY, interruptible_fraction=0.5, spot_lost_fraction=0.2)
    made, trace = of_ten(some), toy.trace()
    everybody = purchase(made, trace)
    assert everybody.spot_promised == ("ttft_p99", "itl_p99")
    assert "yet TTFT p99 and ITL p99 are promised to it" in spot_lines(everybody)[0]
    assert purchase(of_ten(), days(1)).spot_promised == ()
    # Two of three requests, all of a length, are in the class that has the promise.
    half = replace(trace, class_bits=(np.arange(trace.request_count) % 3 > 0).astype(np.int32), classes=("chat",))
    slo = Slo(
        latency=(LatencyTarget(metric="ttft", quantile=0.99, limit_s=1.0, traffic_class="chat"),),
        error_rate_fraction=0.001,
        classes=(TrafficClass(name="chat", takes="labels chat"),),
    )
    for share, named in ((0.2, ()), (0.5, ("ttft_p99 of chat",))):
        asked = replace(made.question, slo=slo, buying=replace(some, interruptible_fraction=share))
        assert purchase(replace(made, question=asked), half).spot_promised == named


def test_where_nobody_publishes_a_commitment_everything_is_rented_and_said():
    bought = purchase(of_ten(), days(1))
    assert [line.name for line in bought.lines] == ["on_demand"]
    assert bought.commit_from_fraction is None
    assert "reserved_3y" in bought.unknown_terms


def test_what_is_missing_is_said_and_how_to_give_it():
    made = of_ten()
    assert purchase(made, toy.trace()) is None
    assert "busy_hours: 10" in purchase_missing(made, toy.trace())
    assert purchase_missing(made, days(1)) == ""
    assert purchase_missing(of_ten(DAY), toy.trace()) == ""
    reserved = replace(made, chosen=replace(made.chosen, price=replace(made.chosen.price, term="reserved_1y")))
    assert purchase(reserved, days(2)) is None
    assert "term: on_demand" in purchase_missing(reserved, days(2))
    assert purchase_missing(replace(made, chosen=None), days(2)) == ""
    document = plan_document(plan(question(), toy.trace()), profile(toy.trace()), {})
    assert document["cost"]["purchase"] is None
    assert "busy_hours" in document["cost"]["purchase_missing"]


def test_terms_of_pools_on_other_gpus_are_told_apart(quotes):
    """A term dearer than rent on one gpu may be cheaper than rent on another."""
    prices = {"reserved_1y": {"h100_sxm": 5.0}, "reserved_3y": {"h100_sxm": 2.0}}
    fast = purchase(of_ten(replace(DAY, usd_per_gpu_hour=prices)), toy.trace())
    small = replace(
        fast,
        terms=(replace(fast.terms[0], gpu="l4", usd_per_gpu_hour=0.7),),
        unknown_terms=("reserved_1y",),
        dearer_terms=(),
    )
    pools = [
        SimpleNamespace(plan=SimpleNamespace(purchase=each, fleets=(SimpleNamespace(beside=None),)))
        for each in (small, fast)
    ]
    both = joint.purchase(pools)
    assert dearer_lines(both) == ["reserved 1y of h100_sxm at $5.00 is dearer than $3.00 on demand: not taken"]
    assert both.unknown_terms == ("reserved_1y of l4",)
    assert [each.gpu for each in both.terms if each.term == "on_demand"] == ["l4", "h100_sxm"]
