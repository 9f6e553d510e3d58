"""Pools for prefill and decode: the cheapest counts, beside brute force and beside the fleet that does both."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tokenfleet import simulator
from tokenfleet.domain.apart import ApartQuestion
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.gpu import Link
from tokenfleet.domain.slo import LatencyTarget, Slo
from tokenfleet.domain.stages import Handover
from tokenfleet.planner import cheapest
from tokenfleet.planner.disaggregated import decode_busy, is_soon, prefill_busy, sought_apart
from tokenfleet.planner.floors import shapes
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.together import Planned, _long_ways
from tokenfleet.planner.traffic import Traffic, demand
from tokenfleet.workload import peak_window
from unit.planner.toy import price, question, replica, slo, trace

LINK = Link(name="by hand", line_bytes_per_s=1e6, efficiency_fraction=1.0, latency_s=0.001)
"""A toy token has a byte of KV: half a millisecond for a prompt of 500."""
ASKED = ApartQuestion(links={"h100_sxm": LINK, "l40s": LINK}, first_token="prefill", overlap=False)
FAST = replica(gpu="h100_sxm", step_ms=8.0, token_us=30.0, context_ns=400.0, slots=48)
CHEAP = replica(gpu="l40s", step_ms=9.0, token_us=120.0, context_ns=500.0, slots=32)
LARGE = replica(gpu="h100_sxm", tensor_parallel=2, step_ms=5.0, token_us=14.0, context_ns=220.0, slots=96)
"""More work for the money, where there is as much of it."""
PRICES = (price("h100_sxm", 4.0), price("l40s", 1.0))
DEMAND = trace(count=600, rate=18.0, inputs=900, outputs=60)


def asked(*candidates, promise=None, spare=0, apart=ASKED, **more):
    return replace(
        question(candidates, PRICES, promise=promise or slo(ttft=0.5, itl=0.05), spare=spare), apart=apart, **more
    )


def sought(what, rows=DEMAND):
    traffic = Traffic(rows, peak_window(rows))
    return sought_apart(what, traffic, traffic, Replays(what.slo, "least_in_flight"), Reporter(None))


def kept(what, prefill, decode, counts) -> bool:
    fleets = [
        Fleet(groups=(ReplicaGroup(replica=each, replica_count=count),))
        for each, count in zip((prefill, decode), counts, strict=True)
    ]
    handover = Handover(link=LINK, first_token="prefill")
    run = simulator.replay_stages(DEMAND, simulator.apart(DEMAND, *fleets, handover), peak_window_s=peak_window(DEMAND))
    traffic = Traffic(DEMAND, peak_window(DEMAND))
    return Replays(what.slo, "least_in_flight").judged(traffic, run.record).kept


def test_nobody_asked() -> None:
    assert sought(asked(FAST, apart=None)) is None


def usd(one) -> float:
    return {"h100_sxm": 4.0, "l40s": 1.0}[one.deployment.gpu] * one.deployment.layout.gpu_count


@pytest.mark.parametrize("candidates", [(FAST,), (FAST, CHEAP), (FAST, LARGE)])
def test_no_counts_are_cheaper_than_those_found(candidates) -> None:
    what = asked(*candidates)
    found = sought(what).found
    least = min(
        usd(prefill) * counts[0] + usd(decode) * counts[1]
        for prefill, decode in itertools.product(candidates, repeat=2)
        for counts in itertools.product(range(1, 13), repeat=2)
        if usd(prefill) * counts[0] + usd(decode) * counts[1] <= found.price_usd_per_hour
        and kept(what, prefill, decode, counts)
    )
    assert found.price_usd_per_hour == least
    assert all(result.kept for result in found.slo)


def test_one_replica_fewer_in_either_pool_breaks_the_promise() -> None:
    what = asked(FAST)
    found = sought(what).found
    counts = found.prefill.carrying_count, found.decode.carrying_count
    assert kept(what, FAST, FAST, counts)
    for fewer in ((counts[0] - 1, counts[1]), (counts[0], counts[1] - 1)):
        assert min(fewer) == 0 or not kept(what, FAST, FAST, fewer)


def test_spare_replicas_are_in_both_pools_and_a_part_of_the_demand_is_multiplied() -> None:
    alone = sought(asked(FAST)).found
    spare = sought(asked(FAST, spare=2)).found
    part = sought(asked(FAST, spare=1, stands_for_count=3)).found
    assert (spare.prefill.spare_count, spare.decode.spare_count) == (2, 2)
    assert spare.price_usd_per_hour == alone.price_usd_per_hour + 4 * 4.0
    assert part.prefill.carrying_count == 3 * alone.prefill.carrying_count
    assert part.prefill.replica_count == 3 * alone.prefill.carrying_count + 1


def test_long_prompts_and_a_tight_itl_are_where_apart_is_cheaper() -> None:
    """A prompt of 900 tokens takes 35 ms: beside decodes it breaks an ITL of 20 ms, in its own pool it does not.

    The first token is the decode pool's: else the way between the pools is 1 gap in 59, and longer than 20 ms.
    """
    what = asked(FAST, promise=slo(ttft=0.5, itl=0.02), apart=replace(ASKED, first_token="decode"))
    busy = trace(count=1500, rate=60.0, inputs=900, outputs=60)
    together = cheapest(what, busy).sized
    found = sought(what, busy).found
    assert sought(replace(what, apart=ASKED), busy).found is None
    assert found.price_usd_per_hour < 0.8 * together.price_usd_per_hour


def test_there_is_none_where_nothing_is_fast_enough_or_nobody_has_the_link() -> None:
    slow = sought(asked(FAST, promise=slo(ttft=0.5, itl=0.001)))
    assert (slow.found, slow.pair_count) == (None, 0)
    assert "no replica prefills fast enough beside one that decodes fast enough" in slow.reason
    unlinked = sought(asked(FAST, apart=replace(ASKED, links={})))
    assert unlinked.found is None
    beyond = sought(asked(FAST, promise=slo(ttft=0.0375, itl=0.05)))
    assert (beyond.found, beyond.pair_count) == (None, 0)
    late = replace(ASKED, first_token="decode")
    tail = sought(asked(FAST, promise=slo(ttft=0.045, itl=0.05), apart=late))
    assert tail.found is None
    assert "none of the 1 pairs tried keeps the promise" in tail.reason


@pytest.mark.parametrize("ttft", [0.08, 0.15])
def test_pairs_beyond_the_first_are_sized_while_their_estimates_are_cheaper(monkeypatch, ttft) -> None:
    """Tight promises take many times what estimates say: the first pair is then the dearest, or keeps nothing."""
    what = asked(FAST, CHEAP, LARGE, promise=slo(ttft=ttft, itl=0.012), apart=replace(ASKED, first_token="decode"))
    monkeypatch.setattr("tokenfleet.planner.disaggregated._PAIRS", 99)
    every = sought(what)
    monkeypatch.setattr("tokenfleet.planner.disaggregated._PAIRS", 1)
    some = sought(what)
    assert 1 < some.pair_count < every.pair_count
    assert some.found.price_usd_per_hour == every.found.price_usd_per_hour


def test_a_full_link_asks_less_of_whoever_decodes() -> None:
    """One replica that prefills sends less than comes: beside it one decodes what takes two beside plenty."""
    rows = trace(count=400, rate=18.0, inputs=900, outputs=30)
    link = replace(LINK, line_bytes_per_s=1.2e4)
    apart = replace(ASKED, links={"h100_sxm": link})
    found = sought(asked(FAST, promise=slo(ttft=0.5, itl=0.011, quantile=0.9), apart=apart), rows).found
    assert (found.prefill.carrying_count, found.decode.carrying_count) == (1, 1)


@pytest.mark.parametrize(
    ("first_token", "takes_s", "told"), [("prefill", 3.5, True), ("prefill", 0.5, False), ("decode", 3.5, False)]
)
def test_a_long_pause_after_the_first_token_is_told(first_token, takes_s, told) -> None:
    """Where the decode pool has the first token, it is part of TTFT."""
    run = SimpleNamespace(transfer_s=np.full(4, takes_s))
    said = list(_long_ways(Planned((), Handover(link=LINK, first_token=first_token)), run))
    assert len(said) == told
    assert all("KV takes 3.5 s on average to cross by hand" in line for line in said)


def test_a_promise_to_those_with_short_prompts_is_held_against_theirs() -> None:
    """100 tokens take 11 ms and 2,000 take 68: promised to the short ones, or to the median, 50 ms are no floor."""
    rows = trace(count=1000)
    inputs = np.where(np.arange(1000) % 4 == 0, 2000, 100).astype(np.int32)
    rows = replace(rows, input_tokens=inputs, class_bits=(inputs == 100).astype(np.int32), classes=("short",))

    def soon(quantile, traffic_class=None) -> bool:
        target = LatencyTarget(metric="ttft", quantile=quantile, limit_s=0.05, traffic_class=traffic_class)
        promise = Slo(latency=(target,), error_rate_fraction=0.001)
        return is_soon(FAST, shapes(rows, promise, caching=False), promise)

    assert (soon(0.5), soon(0.99), soon(0.99, "short")) == (True, False, True)


def test_kv_of_two_precisions_is_not_paired() -> None:
    eight = replace(CHEAP, deployment=replace(CHEAP.deployment, kv_precision="fp8"))
    answer = sought(asked(FAST, eight))
    kinds = {pool.replica.deployment.kv_precision for pool in (answer.found.prefill, answer.found.decode)}
    assert len(kinds) == 1


def test_the_formulas_by_hand() -> None:
    """35 ms for a prompt of 900, at 10 a second: 0.35 replicas; a batch of 40 whose step just keeps 20 ms."""
    rows = trace(count=4000, rate=10.0, inputs=900, outputs=51)
    wanted = replace(
        demand(Traffic(rows, (0.0, 400.0)), caching=False),
        rate_per_s=10.0,
        input_tokens=np.full(10, 900.0),
        context_tokens=np.full(10, 900.0),
        output_tokens=np.full(10, 51.0),
    )
    by_hand = replica(step_ms=8.0, token_us=30.0, context_ns=0.0, slots=1000, block_count=100_000)
    assert prefill_busy(by_hand, wanted) == pytest.approx(10 * (0.008 + 899 * 30e-6), rel=1e-4)
    busy = decode_busy(by_hand, wanted, slo(itl=0.02))
    assert busy == pytest.approx(10 * 50 * 0.02 / 401, rel=1e-3)
    assert decode_busy(by_hand, wanted, slo(itl=0.007)) is None
