"""Requests through several pools, on timelines that fit in a head. Every step takes 10 ms."""

from dataclasses import replace

import numpy as np
import pytest

from reference.fleets import engine, fleet, physics, step_time, trace
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.gpu import Link
from tokenfleet.domain.run import Status
from tokenfleet.domain.stages import Call, Handover, Hold, Pools, Transfer, Wait
from tokenfleet.domain.trace import PrefixTree
from tokenfleet.domain.world import Clients, Happening, World
from tokenfleet.simulator import apart, narrowed, replay, replay_stages

LINK = Link(name="by hand", line_bytes_per_s=1000.0, efficiency_fraction=0.5, latency_s=0.002)
EARLY = Handover(link=LINK, first_token="prefill")
LATE = Handover(link=LINK)
"""The replicas of these tests hold a byte per token: 20 ms for a prompt of 10 tokens, and 2 ms on top."""


def ms(times_s) -> list[float]:
    return np.round(np.asarray(times_s) * 1000.0, 6).tolist()


def everybody(rows) -> np.ndarray:
    return np.ones(rows.request_count, dtype=np.bool_)


def test_the_first_token_is_the_prefill_pools_and_the_transfer_a_gap() -> None:
    """Prefill 0-10, on the link 10-30, there at 32; tokens 2 to 4 at 42, 52, 62."""
    rows = trace([(0, 10, 4)])
    run = replay_stages(rows, apart(rows, fleet(), fleet(), EARLY))
    assert ms(run.record.first_token_s) == [10]
    assert ms(run.record.finish_s) == [62]
    assert ms(run.transfer_s) == [22]
    gaps = run.record.gaps
    assert gaps.count.sum() == 3
    longest = np.flatnonzero(gaps.count)[-1]
    assert gaps.lower_s[longest] <= 0.032 < gaps.lower_s[longest + 1]
    assert run.pools["decode"].record.busy.prefill_s == 0.0
    assert run.record.replica_count == 2


def test_the_first_token_is_the_decode_pools_and_the_transfer_part_of_ttft() -> None:
    """Prefill 0-10 and its token thrown away; there at 32; tokens 1 to 4 at 42 to 72, three gaps of 10 ms."""
    rows = trace([(0, 10, 4)])
    run = replay_stages(rows, apart(rows, fleet(), fleet(), LATE))
    assert ms(run.record.first_token_s) == [42]
    assert ms(run.record.finish_s) == [72]
    assert np.flatnonzero(run.record.gaps.count).size == 1
    assert run.record.gaps.count.sum() == 3


def test_prompts_of_one_replica_share_its_link_and_those_of_two_do_not() -> None:
    """Both prefilled at 10: on one link from 10 to 30 and on to 50; on two both are there at 32."""
    rows = trace([(0, 10, 2), (0, 10, 2)])
    one = replay_stages(rows, apart(rows, fleet(), fleet(), EARLY))
    two = replay_stages(rows, apart(rows, fleet(count=2), fleet(), EARLY))
    assert ms(one.record.finish_s) == [42, 62]
    assert ms(two.record.finish_s) == [42, 42]


def test_layers_that_travel_while_prefill_computes_leave_the_last_one_to_send() -> None:
    """10 ms of prefill hide 8 of 10 layers' time at best: 20 ms on the link less 9 leave 11; a fast link leaves 2."""
    rows = trace([(0, 10, 2)])
    slow = replay_stages(rows, apart(rows, fleet(), fleet(), replace(EARLY, overlapped_layer_count=10)))
    quick = Handover(link=replace(LINK, line_bytes_per_s=20_000.0), first_token="prefill", overlapped_layer_count=10)
    fast = replay_stages(rows, apart(rows, fleet(), fleet(), quick))
    assert ms(slow.transfer_s) == [11 + 2]
    assert ms(fast.transfer_s) == [0.1 + 2]


def test_who_has_no_more_to_generate_ends_in_the_prefill_pool() -> None:
    rows = trace([(0, 10, 1), (0, 10, 0)])
    early = replay_stages(rows, apart(rows, fleet(), fleet(), EARLY))
    assert ms(early.record.finish_s) == [10, 10]
    assert np.isnan(early.record.first_token_s[1])
    late = replay_stages(rows, apart(rows, fleet(), fleet(), LATE))
    assert ms(late.record.finish_s) == [42, 10]


def test_a_prompt_found_in_the_prefill_pools_cache_is_not_looked_for_in_the_decode_pool() -> None:
    tree = PrefixTree(parent=np.array([-1], dtype=np.int32), token_count=np.array([8], dtype=np.int32))
    node = np.zeros(2, dtype=np.int32)
    rows = trace([(0, 12, 3), (500, 12, 3)], prefix_node=node, prefixes=tree)
    cached = fleet(physics(settings=engine(prefix_caching=True)))
    run = replay_stages(rows, apart(rows, cached, cached, LATE))
    assert run.record.cached_tokens.tolist() == [0, 8]
    assert run.pools["decode"].record.cached_tokens.tolist() == [0, 0]


def test_a_chain_ends_with_its_slowest_branch_and_a_bystander_goes_straight_to_the_answer() -> None:
    """Three documents of 40 tokens in a budget of 64 take two steps; the search 5 ms; the answer 10 ms a token."""
    rows = trace([(0, 30, 2), (0, 30, 2)])
    asks = np.array([True, False])
    chain = (
        Wait(takes=asks, duration_s=np.full(2, 0.005)),
        Call(
            pool="rerank",
            takes=asks,
            input_tokens=np.full(2, 40, dtype=np.int32),
            output_tokens=np.zeros(2, dtype=np.int32),
            call_count=3,
            is_seen=False,
        ),
        Call(pool="chat", takes=everybody(rows), input_tokens=rows.input_tokens, output_tokens=rows.output_tokens),
    )
    run = replay_stages(rows, Pools(fleets={"chat": fleet(), "rerank": fleet()}, stages=chain))
    assert ms(run.record.first_token_s) == [5 + 20 + 10, 10]
    assert ms(run.record.finish_s) == [45, 20]
    assert run.pools["rerank"].caller.tolist() == [0, 0, 0]
    assert run.record.replica.tolist() == [1, 1]


def test_whom_a_pool_refuses_goes_no_further() -> None:
    rows = trace([(0, 10, 2), (0, 4, 2)])
    small = fleet(physics(settings=engine(context_limit_tokens=8)))
    run = replay_stages(rows, apart(rows, fleet(), small, EARLY))
    assert run.record.status.tolist() == [Status.REJECTED_TOO_LONG, Status.FINISHED]
    assert np.isnan(run.record.first_token_s[0])
    assert np.isnan(run.record.finish_s[0])
    assert run.pools["prefill"].record.status.tolist() == [Status.FINISHED] * 2


def test_one_pool_alone_is_a_replay() -> None:
    rows = trace([(0, 10, 4), (3, 20, 7), (11, 5, 0)])
    call = Call(pool="all", takes=everybody(rows), input_tokens=rows.input_tokens, output_tokens=rows.output_tokens)
    options = {"peak_window_s": (0.01, 0.05), "telemetry_interval_s": 0.01}
    staged = replay_stages(rows, Pools(fleets={"all": fleet()}, stages=(call,)), **options).record
    plain = replay(rows, fleet(), **options)
    for name in ("first_token_s", "finish_s", "replica", "status", "cached_tokens"):
        np.testing.assert_array_equal(getattr(staged, name), getattr(plain, name))
    np.testing.assert_array_equal(staged.gaps.count, plain.gaps.count)
    np.testing.assert_array_equal(staged.peak_gaps.count, plain.peak_gaps.count)
    np.testing.assert_array_equal(staged.telemetry.running, plain.telemetry.running)
    assert (staged.busy, staged.end_s) == (plain.busy, plain.end_s)


FAILS = Happening(time_s=0.035, kind="fail", replicas=(0,), reason="a node is lost")
BACK = Happening(time_s=0.16, kind="ready", replicas=(0,))


def test_one_pool_in_a_world_is_a_replay_in_that_world() -> None:
    rows = trace([(0, 10, 4), (3, 20, 7), (11, 5, 2)])
    call = Call(pool="all", takes=everybody(rows), input_tokens=rows.input_tokens, output_tokens=rows.output_tokens)
    world = World(happenings=(FAILS, BACK), clients=Clients(attempt_count=3, backoff_s=0.1))
    pools = Pools(fleets={"all": fleet(count=2)}, stages=(call,))
    staged = replay_stages(rows, pools, worlds=lambda _name, _calls: world).record
    plain = replay(rows, fleet(count=2), world=world)
    for name in ("arrival_s", "first_token_s", "finish_s", "replica", "status"):
        np.testing.assert_array_equal(getattr(staged, name), getattr(plain, name))
    np.testing.assert_array_equal(staged.turmoil.attempt_count, plain.turmoil.attempt_count)
    np.testing.assert_array_equal(staged.turmoil.state_s, plain.turmoil.state_s)
    assert staged.turmoil.lost_count == plain.turmoil.lost_count > 0
    assert [each.reason for each in staged.turmoil.decisions] == ["all: a node is lost", "all: "]


def test_what_happens_in_one_pool_changes_nothing_in_those_before_it() -> None:
    rows = trace([(10 * row, 10, 20) for row in range(8)])
    split = apart(rows, fleet(count=2), fleet(count=2), LATE)
    world = World(happenings=(replace(FAILS, time_s=0.15), BACK), clients=Clients(attempt_count=2, backoff_s=0.01))
    run = replay_stages(rows, split, worlds=lambda name, _calls: world if name == "decode" else None)
    quiet = replay_stages(rows, split)
    np.testing.assert_array_equal(run.pools["prefill"].record.finish_s, quiet.pools["prefill"].record.finish_s)
    turmoil, lost = run.record.turmoil, run.record.turmoil.attempt_count == 2
    assert turmoil.lost_count == lost.sum() > 0
    assert turmoil.state_s.shape[0] == 4
    assert [each.replicas for each in turmoil.decisions] == [(2,), (2,)], "counted over all pools"
    assert run.record.status.tolist() == [Status.FINISHED] * 8
    assert (run.record.finish_s[lost] > quiet.record.finish_s[lost]).all()


def test_kv_that_was_handed_over_is_lost_with_its_replica() -> None:
    rows = trace([(0, 40, 4)])
    slow = physics(settings=engine(max_batched_tokens=10))
    split = apart(rows, fleet(slow), fleet(slow, count=2), LATE)
    quiet = replay_stages(rows, split).pools["decode"].record
    arrived_s = float(quiet.arrival_s[0])
    world = World(
        happenings=(replace(FAILS, time_s=arrived_s + 0.015),), clients=Clients(attempt_count=2, backoff_s=0.0)
    )
    decode = replay_stages(rows, split, worlds=lambda name, _calls: world if name == "decode" else None).pools["decode"]
    assert quiet.busy.prefill_s == 0.0
    assert decode.record.busy.prefill_s == pytest.approx(0.04), "four steps of ten tokens"
    assert decode.record.replica.tolist() == [1]


def test_gauges_of_pools_stand_side_by_side_and_read_idle_once_a_pool_has_ended() -> None:
    rows = trace([(0, 10, 30)])
    pools = apart(rows, fleet(count=2), fleet(), LATE)
    gauges = replay_stages(rows, pools, telemetry_interval_s=0.005).record.telemetry
    assert gauges.running.shape[1] == 3
    assert gauges.running[0].tolist() == [1, 0, 0]
    assert gauges.running[20].tolist() == [0, 0, 1]
    assert (np.diff(gauges.time_s) > 0).all()


def test_everything_that_is_wrong_with_stages_at_once() -> None:
    rows = trace([(0, 10, 2)])
    call = Call(pool="chat", takes=everybody(rows), input_tokens=rows.input_tokens, output_tokens=rows.output_tokens)
    stages = (
        call,
        replace(call, call_count=2),
        replace(call, pool="chatt"),
        Wait(takes=everybody(rows), duration_s=np.array([-1.0])),
        Transfer(takes=np.ones(3, dtype=np.bool_), duration_s=np.array([1.0]), latency_s=0.0),
    )
    with pytest.raises(BadInput) as caught:
        replay_stages(rows, Pools(fleets={"chat": fleet()}, stages=stages))
    text = str(caught.value)
    for part in (
        "'chat' is called twice: requests would come back to it",
        "nobody reads several answers at once",
        "no pool is called 'chatt'",
        "nearest: chat",
        "stages[3].duration_s: a time that is negative",
        "stages[4].takes: 3 entries for 1 requests",
    ):
        assert part in text


def test_a_pool_that_cannot_be_replayed_is_named() -> None:
    rows = trace([(0, 10, 2)])
    with pytest.raises(BadInput, match=r"decode: fleet.groups\[0\].replica_count: 0 replicas"):
        replay_stages(rows, apart(rows, fleet(), fleet(count=0), LATE))


def test_kv_of_two_precisions_and_pools_of_several_kinds_do_not_go_together() -> None:
    rows = trace([(0, 10, 2)])
    eight = physics()
    eight = replace(eight, deployment=replace(eight.deployment, kv_precision="fp8"))
    with pytest.raises(BadInput, match="its KV cache is fp8, that of prefill is bf16"):
        apart(rows, fleet(), fleet(eight), LATE)
    both = replace(fleet(), groups=fleet().groups * 2)
    with pytest.raises(BadInput, match="2 kinds of replicas"):
        apart(rows, both, fleet(), LATE)


def test_the_smallest_difference_a_person_sees_between_apart_and_together() -> None:
    """A prompt of 60 tokens that arrives at 15 stops the first answer for one long step; apart it does not."""
    table = 10_000_000_000 + np.arange(65) * 1_000_000_000
    slow = fleet(physics(time=step_time(token_ps=table)))
    rows = trace([(0, 1, 6), (15, 60, 2)])
    together = replay(rows, slow)
    split = replay_stages(rows, apart(rows, slow, slow, replace(EARLY, link=replace(LINK, line_bytes_per_s=1e9))))
    assert ms(together.finish_s)[0] - ms(split.record.finish_s)[0] > 50


def test_work_of_the_night_waits_for_it_and_a_window_may_span_midnight() -> None:
    """Second 0 is 21:59:59; the window is open from 22:00 to 6:00. A day later it opens again."""
    rows = trace([(0, 4, 1), (2_000, 4, 1), (8 * 3_600_000 + 2_000, 4, 1)])
    hold = Hold(takes=np.array([True, True, True]), opens_s=79_200.0, closes_s=21_600.0, start_s=79_199.0)
    call = Call(pool="night", takes=everybody(rows), input_tokens=rows.input_tokens, output_tokens=rows.output_tokens)
    run = replay_stages(rows, Pools(fleets={"night": fleet()}, stages=(hold, call)))
    assert run.pools["night"].trace.arrival_s.tolist() == [1.0, 2.0, 86_401.0]
    odd = replace(hold, closes_s=90_000.0)
    with pytest.raises(BadInput, match=r"stages\[0\].closes_s: 90000.0 s is no time of day"):
        replay_stages(rows, Pools(fleets={"night": fleet()}, stages=(odd, call)))


def test_a_decode_pool_that_knows_of_the_request_has_done_its_front_end_work() -> None:
    """25 ms of front end: once where the token travels with the KV, twice where a proxy sends the request on."""
    slow = fleet(physics(time=step_time(request_ps=25 * 10**9)))
    rows = trace([(0, 10, 2)])
    early = replay_stages(rows, apart(rows, slow, slow, EARLY))
    late = replay_stages(rows, apart(rows, slow, slow, LATE))
    assert ms(early.record.finish_s) == [25 + 10 + 22 + 10]
    assert ms(late.record.finish_s) == [25 + 10 + 22 + 25 + 20]


def test_some_requests_of_a_system_one_replica_each() -> None:
    rows = trace([(0, 10, 2), (1, 20, 3), (2, 30, 4)])
    few = narrowed(apart(rows, fleet(count=3), fleet(), LATE), np.array([0, 2]))
    assert [each.groups[0].replica_count for each in few.fleets.values()] == [1, 1]
    assert few.stages[0].input_tokens.tolist() == [10, 30]
    assert few.stages[1].duration_s.tolist() == pytest.approx([0.02, 0.06])
