"""Laws of requests through several pools."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.chains import random_pool, random_stages, with_gates, with_people
from reference.fleets import first_come, random_fleet, random_trace
from reference.worlds import random_loop, with_lane
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.gpu import Link
from tokenfleet.domain.run import Status
from tokenfleet.domain.stages import Call, Handover, PoolRun, Pools, StagedRun, Wait
from tokenfleet.domain.world import World
from tokenfleet.simulator import apart, replay, replay_stages
from tokenfleet.simulator.foreseeing import arrivals_foreseen_ps
from tokenfleet.simulator.staging import quiet

SEEDS = st.integers(0, 2**32 - 1)
LAWS = settings(max_examples=60, deadline=None)


def drawn(seed: int):
    draw = np.random.default_rng(seed)
    rows = random_trace(draw, shared=bool(draw.random() < 0.5))
    pools = []
    for _ in range(2):
        fleet = random_fleet(draw, name=str(draw.choice(["vllm-0.32", "sglang-0.5", "trtllm-1.2"])))
        pools.append(type(fleet)(groups=fleet.groups[:1], router=fleet.router))
    link = Link(
        name="drawn",
        line_bytes_per_s=float(draw.choice([100.0, 1e4, 1e9])),
        efficiency_fraction=1.0,
        latency_s=float(draw.choice([0.0, 0.003])),
    )
    first = "prefill" if draw.random() < 0.5 else "decode"
    return rows, apart(rows, *pools, Handover(link=link, first_token=first)), first


@LAWS
@given(SEEDS)
def test_nobody_is_lost_and_every_token_leaves_once(seed: int) -> None:
    rows, pools, _ = drawn(seed)
    run = replay_stages(rows, pools)
    ended = run.record.status == Status.FINISHED
    assert np.isfinite(run.record.finish_s[ended]).all()
    assert np.isnan(run.record.finish_s[~ended]).all()
    if ended.all():
        assert run.record.gaps.count.sum() == np.maximum(rows.output_tokens - 1, 0).sum()
    for pool in run.pools.values():
        assert len(np.unique(pool.caller)) == len(pool.caller)
    refused = sum(int((pool.record.status != Status.FINISHED).sum()) for pool in run.pools.values())
    assert refused == int((~ended).sum())


@LAWS
@given(SEEDS)
def test_causes_come_before_what_they_cause(seed: int) -> None:
    rows, pools, first = drawn(seed)
    run = replay_stages(rows, pools)
    record, prefill, decode = run.record, run.pools["prefill"], run.pools["decode"]
    spoken = np.isfinite(record.first_token_s)
    assert (record.first_token_s[spoken] > rows.arrival_s[spoken]).all()
    assert (record.finish_s[spoken] >= record.first_token_s[spoken]).all()
    computed_s = np.full(rows.request_count, np.nan)
    computed_s[prefill.caller] = prefill.record.finish_s
    margin_s = 1e-9
    assert (decode.trace.arrival_s + margin_s >= (computed_s + run.transfer_s)[decode.caller]).all()
    pool = prefill if first == "prefill" else decode
    heard = pool.caller[np.isfinite(pool.record.first_token_s)]
    kept = heard[record.status[heard] == Status.FINISHED]
    assert np.isfinite(record.first_token_s[kept]).all()


@LAWS
@given(SEEDS)
def test_the_same_seed_gives_the_same_bytes(seed: int) -> None:
    rows, pools, _ = drawn(seed)
    one, two = replay_stages(rows, pools).record, replay_stages(rows, pools).record
    assert one.finish_s.tobytes() == two.finish_s.tobytes()
    assert one.gaps.count.tobytes() == two.gaps.count.tobytes()


@settings(max_examples=15, deadline=None)
@given(SEEDS)
def test_with_doors_and_users_everybody_comes_and_ends_once(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows = with_people(draw, random_trace(draw))
    pools = with_gates(draw, rows, random_stages(draw, rows))
    loop = random_loop(draw, rows.request_count)
    run = replay_stages(rows, pools, closed_loop=loop)
    record = run.record
    np.testing.assert_array_equal(np.isfinite(record.finish_s), record.status == Status.FINISHED)
    assert (record.turmoil.left_s >= record.arrival_s).all()
    again = sum(int((gate.attempt_count - 1).clip(0).sum()) for gate in run.gates)
    for_good = int((record.status >= Status.REJECTED_BATCH_SHED).sum())
    assert sum(gate.refused_count for gate in run.gates) == again + for_good
    after = np.asarray(loop.after)
    followers = np.flatnonzero(after >= 0)
    late_s = record.arrival_s[followers] - record.turmoil.left_s[after[followers]]
    assert (late_s > 0.0).all(), "nobody comes before what they wait for"


def uneven(draw: np.random.Generator, fleet: Fleet) -> Fleet:
    """Steps of times that never end together: at equal moments the order of pools counts."""

    def odd(group: ReplicaGroup) -> ReplicaGroup:
        time = group.replica.step_time
        more = draw.integers(1, 10**8, len(time.token_ps)).cumsum()
        return replace(group, replica=replace(group.replica, step_time=replace(time, token_ps=time.token_ps + more)))

    return replace(fleet, router="least_in_flight", groups=tuple(map(odd, fleet.groups)))


def foreseen_and_replayed(seed: int, apart_s: float) -> tuple[npt.NDArray[np.int64] | None, StagedRun]:
    """Calls side by side and a wait before the answer, of users and of requests that come ``apart_s`` apart more."""
    draw = np.random.default_rng(seed)
    rows = random_trace(draw)
    count, none = rows.request_count, np.zeros(rows.request_count, dtype=np.int32)
    rows = replace(rows, arrival_s=rows.arrival_s + apart_s * np.arange(count))
    everybody, some = np.ones(count, dtype=np.bool_), draw.random(count) < 0.5
    short = draw.integers(1, 20, count).astype(np.int32)
    stages = (
        Call(pool="first", takes=some, input_tokens=short, output_tokens=none, is_seen=False),
        Call(pool="rank", takes=some, input_tokens=short, output_tokens=none, call_count=3, is_seen=False),
        Wait(takes=some, duration_s=draw.integers(0, 5, count) * 0.001234567),
        Call(pool="answer", takes=everybody, input_tokens=rows.input_tokens, output_tokens=rows.output_tokens),
    )
    pools = Pools(fleets={name: random_pool(draw) for name in ("first", "rank", "answer")}, stages=stages)
    pools = replace(pools, fleets={name: uneven(draw, fleet) for name, fleet in pools.fleets.items()})
    loop = random_loop(draw, count)
    return arrivals_foreseen_ps(rows, pools, quiet, loop), replay_stages(rows, pools, closed_loop=loop)


def meet(pool: PoolRun) -> bool:
    """Whether two requests come to a pool at the same moment: who is first there is open."""
    return bool(((np.diff(pool.trace.arrival_s) == 0.0) & (np.diff(pool.caller) != 0)).any())


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_when_users_of_several_pools_come_is_foreseen_on_one_clock(seed: int) -> None:
    """Replayed pool after pool, everybody comes when foreseen, unless two come at once or come to nothing."""
    foreseen_ps, run = foreseen_and_replayed(seed, 0.000123456789)
    if (run.record.status == Status.FINISHED).all() and not any(map(meet, run.pools.values())):
        np.testing.assert_array_equal(foreseen_ps, np.rint(run.record.arrival_s * 1e12))


def test_calls_answered_in_one_step_go_on_in_the_order_of_their_requests() -> None:
    foreseen_ps, run = foreseen_and_replayed(2253, 0.0)
    assert meet(run.pools["rank"])
    np.testing.assert_array_equal(foreseen_ps, np.rint(run.record.arrival_s * 1e12))


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_a_lane_at_the_only_pool_is_that_of_one_fleet(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows = random_trace(draw)
    fleet = first_come(random_fleet(draw, name="vllm-0.32", prefix_caching=False))
    world = with_lane(draw, World(), rows.request_count)
    rows = replace(rows, priority=world.batch.astype(np.int32))
    everybody = np.ones(rows.request_count, dtype=np.bool_)
    call = Call(pool="all", takes=everybody, input_tokens=rows.input_tokens, output_tokens=rows.output_tokens)
    staged = replay_stages(
        rows,
        Pools(fleets={"all": fleet}, stages=(call,)),
        telemetry_interval_s=0.5,
        worlds=lambda _name, calls: replace(world, batch=calls.priority > 0),
    ).record
    alone = replay(rows, fleet, telemetry_interval_s=0.5, world=world)
    np.testing.assert_array_equal(staged.finish_s, alone.finish_s)
    np.testing.assert_array_equal(staged.preemption_count, alone.preemption_count)
    np.testing.assert_array_equal(staged.gaps.count, alone.gaps.count)
    for name, gaps in alone.class_gaps.items():
        np.testing.assert_array_equal(staged.class_gaps[name].gaps.count, gaps.gaps.count)


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_batch_gives_way_in_the_pools_that_it_comes_to(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows = random_trace(draw)
    fleets = [first_come(random_fleet(draw, name="vllm-0.32", prefix_caching=False)) for _ in range(2)]
    fleets = [replace(fleet, groups=fleet.groups[:1], router="least_in_flight") for fleet in fleets]
    link = Link(name="drawn", line_bytes_per_s=1e4, efficiency_fraction=1.0, latency_s=0.001)
    lane = with_lane(draw, World(), rows.request_count)
    rows = replace(rows, priority=lane.batch.astype(np.int32))
    run = replay_stages(
        rows,
        apart(rows, *fleets, Handover(link=link)),
        telemetry_interval_s=0.5,
        worlds=lambda _name, calls: replace(lane, batch=calls.priority > 0) if calls.priority.any() else None,
    )
    record = run.record
    np.testing.assert_array_equal(np.isfinite(record.finish_s), record.status == Status.FINISHED)
    by_lane = sum(gaps.gaps.count for name, gaps in record.class_gaps.items() if name.startswith("lane"))
    if len(np.unique(rows.priority)) > 1 and lane.batch.any():
        np.testing.assert_array_equal(by_lane, record.gaps.count)
    prefill = run.pools["prefill"]
    early = (prefill.trace.arrival_s < lane.lane.opens_s) & (lane.lane.open_for_s < 86_400.0)
    held = (prefill.trace.priority > 0) & early
    assert not (prefill.record.finish_s[held] < lane.lane.opens_s).any(), "batch waits for its window"
