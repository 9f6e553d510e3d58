from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.domain.trace import PrefixTree, Trace
from tokenfleet.planner.counting import smallest_enough
from tokenfleet.planner.estimate import replica_estimate
from tokenfleet.planner.prompts import COUNTS, prompts_of
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.traffic import Traffic, demand
from unit.planner.toy import replica, slo, trace

TWO = int(np.searchsorted(COUNTS, 2))


def whole(requests: Trace) -> Traffic:
    return Traffic(requests, (0.0, float(requests.arrival_s[-1]) + 1e-6))


def estimate(one, traffic, promise):
    return replica_estimate(
        one, demand(traffic, caching=False), prompts_of(traffic, caching=False, affine=False), promise
    )


@pytest.mark.parametrize("budget", [256, 2048])
@pytest.mark.parametrize("promise", [slo(ttft=0.2), slo(ttft=2.0, itl=0.03)])
def test_the_estimate_is_near_what_replay_finds(budget, promise):
    one, traffic = replica(budget=budget), whole(trace(count=1500, rate=60.0, inputs=600, outputs=80))
    replays = Replays(promise, "least_in_flight")
    found = smallest_enough(lambda count: replays.verdict(traffic, one, count).kept, 4, 64)
    said = estimate(one, traffic, promise)
    assert not said.doubtful
    assert found / 2 <= said.count <= found * 2


def test_nobody_waits_for_prompts_where_a_promise_is_long_and_everybody_where_it_is_short():
    one, traffic = replica(step_ms=20.0), whole(trace(rate=30.0, inputs=900, outputs=4))
    counts = [estimate(one, traffic, slo(ttft=limit, itl=10.0)).count for limit in (0.06, 0.1, 0.3, 3.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 2 * counts[-1]
    # 30 prompts a second of 40 ms or so each, at nine tenths.
    assert counts[-1] == 2


def test_steps_that_no_number_of_replicas_makes_short_are_doubted():
    one, traffic = replica(step_ms=20.0), whole(trace(rate=30.0))
    said = estimate(one, traffic, slo(ttft=2.0, itl=0.02))
    assert said.doubtful
    assert said.count == estimate(one, traffic, slo(ttft=100.0, itl=100.0)).count


def conversation() -> Traffic:
    """Three turns of one conversation; each prompt is all that was said before, and 40 tokens more."""
    tree = PrefixTree(
        parent=np.array([-1, 0, 1], dtype=np.int32), token_count=np.array([100, 200, 300], dtype=np.int32)
    )
    turns = Trace(
        arrival_s=np.array([0.0, 10.0, 20.0]),
        input_tokens=np.array([60, 140, 340], dtype=np.int32),
        output_tokens=np.array([40, 160, 260], dtype=np.int32),
        prefix_node=np.array([0, 1, 2], dtype=np.int32),
        prefixes=tree,
        session=np.array([0, 0, 0], dtype=np.int32),
    )
    return Traffic(turns, (15.0, 25.0))


def test_the_last_turn_is_cached_where_it_was_and_an_earlier_one_by_chance_elsewhere():
    prompts = prompts_of(conversation(), caching=True, affine=False)
    assert set(prompts.nearest_tokens) == {300}
    # Of two replicas the one without the second turn has the first, 100 tokens, by one chance in two.
    assert set(prompts.elsewhere_tokens[:, TWO]) == {50}
    alone, two = prompts.chunks(1024, 1), prompts.chunks(1024, 2)
    assert set(alone.tokens) == {40}
    assert float((two.share * two.tokens).sum()) == pytest.approx((40 + 290) / 2)
    assert float(two.prompt_share.sum()) == pytest.approx(1.0)


def test_a_router_that_brings_conversations_back_finds_all_of_them():
    prompts = prompts_of(conversation(), caching=True, affine=True)
    assert set(prompts.chunks(1024, 64).tokens) == {40}
    assert set(prompts_of(conversation(), caching=False, affine=True).chunks(1024, 64).tokens) == {340}


def test_prompts_are_cut_into_steps_that_attend_to_what_came_before():
    only = conversation()
    prompts = prompts_of(replace(only, window_s=(15.0, 25.0)), caching=False, affine=False)
    chunks = prompts.chunks(200, 1)
    assert chunks.tokens[:2].tolist() == [200, 140]
    assert chunks.pairs[:2].tolist() == [200 * 201 / 2, 140 * 200 + 140 * 141 / 2]
    assert set(chunks.count) == {2.0}
