"""One fleet against pools apart on as many GPUs: what is reported is what replay finds, and nothing carries more."""

from dataclasses import replace
from itertools import product

import pytest

from tokenfleet import simulator, workload
from tokenfleet.domain.apart import ApartQuestion
from tokenfleet.domain.gpu import Link
from tokenfleet.planner import at_equal_gpus
from tokenfleet.planner.disaggregated import handover_of
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.traffic import Traffic, at_load
from unit.planner import toy

GPUS = 4
LINK = Link(name="by hand", line_bytes_per_s=1e6, efficiency_fraction=1.0, latency_s=0.001)
REPLICA = toy.replica(step_ms=8.0, token_us=30.0, context_ns=400.0, slots=48)
QUESTION = replace(
    toy.question([REPLICA], [toy.price("h100_sxm", 4.0)], promise=toy.slo(ttft=1.0, itl=0.05), spare=0),
    apart=ApartQuestion(links={"h100_sxm": LINK}, first_token="decode", overlap=False),
)
DEMAND = toy.trace(count=500, rate=10.0, inputs=900, outputs=60)


@pytest.fixture(scope="module")
def found():
    return at_equal_gpus(QUESTION, DEMAND, GPUS)


def keeps(traffic, counts):
    replays = Replays.of(QUESTION)
    fleets = [replays.fleet(REPLICA, count) for count in counts]
    if len(counts) == 1:
        record = simulator.replay(traffic.trace, fleets[0], peak_window_s=traffic.window_s)
    else:
        pools = simulator.apart(traffic.trace, *fleets, handover_of(QUESTION, QUESTION.apart, REPLICA))
        record = simulator.replay_stages(traffic.trace, pools, peak_window_s=traffic.window_s).record
    return replays.judged(traffic, record).kept


def test_each_way_keeps_what_is_reported_and_no_other_keeps_much_more(found):
    traffic = Traffic(DEMAND, workload.peak_window(DEMAND))
    splits = [way for way in product(range(1, GPUS), repeat=2) if sum(way) == GPUS]
    assert (found.together_count, found.apart_count) == (1, len(splits))
    for carried, ways in ((found.together, [(GPUS,)]), (found.apart, splits)):
        factor = carried.rate_per_s / traffic.peak_rate_per_s
        assert any(keeps(at_load(traffic, factor), way) for way in ways)
        assert not any(keeps(at_load(traffic, 1.1 * factor), way) for way in ways)
    assert found.factor == pytest.approx(found.apart.rate_per_s / found.together.rate_per_s)
    assert found.usual == found.together


def test_a_stricter_promise_is_kept_at_less_load(found):
    strict = at_equal_gpus(replace(QUESTION, slo=toy.slo(ttft=1.0, itl=0.03)), DEMAND, GPUS)
    assert strict.together.rate_per_s < found.together.rate_per_s
    assert strict.apart.rate_per_s <= found.apart.rate_per_s


def test_a_promise_that_nobody_keeps_has_no_factor():
    never = at_equal_gpus(replace(QUESTION, slo=toy.slo(ttft=0.001, itl=0.05)), DEMAND, GPUS)
    assert (never.together, never.apart, never.factor) == (None, None, None)


def test_thin_demand_is_made_dense_enough_to_break_both():
    """A request every two seconds: sixty thousand instead of 2,000 are fifteen a second, which breaks neither way."""
    thin = toy.trace(count=2_500, rate=0.5, inputs=900, outputs=60)
    found = at_equal_gpus(QUESTION, thin, GPUS)
    assert (found.together.at_least, found.apart.at_least) == (False, False)
    assert min(found.together.rate_per_s, found.apart.rate_per_s) > 15.0


def test_what_no_demand_breaks_is_carried_at_least():
    few = toy.trace(count=12, rate=0.5, inputs=2, outputs=2)
    assert at_equal_gpus(QUESTION, few, 64).together.at_least
