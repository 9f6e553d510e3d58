"""Pools on the same gpus, replayed at once, equal a plain simulation of all of them on one clock."""

from dataclasses import replace

import numpy as np
import pytest

from reference.comparing import PEAK_S, seconds
from reference.fleets import first_come, random_fleet, random_trace
from reference.plain_chain import PlainChain
from reference.plain_fleet import classes_of
from reference.worlds import random_loop, random_timeout_s, with_lane
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.run import Status
from tokenfleet.domain.stages import Call, Pools, Wait
from tokenfleet.domain.trace import Trace, rows_of
from tokenfleet.domain.world import BY_CLOCK, Admission, Clients, ClosedLoop, World
from tokenfleet.simulator import narrowed, replay_stages

UNIT_S = 0.001234567
"""Of waits: odd, so that nothing comes to a pool at the very time at which something else does."""


def random_pool(draw: np.random.Generator, router: str, engine: str | None) -> Fleet:
    name = engine or str(draw.choice(["test", "vllm-0.32", "sglang-0.5", "trtllm-1.2"]))
    fleet = Fleet(groups=random_fleet(draw, name=name, prefix_caching=False).groups[:1], router=router)
    return fleet if engine is None else first_come(fleet)


def random_system(draw: np.random.Generator, rows: Trace, engine: str | None = None) -> Pools:
    """A side branch with parallel calls and a wait, then one of two models or none; any pools on the same gpus."""
    count = rows.request_count
    some, short, long = draw.random(count) < 0.5, draw.random(count) < 0.4, draw.random(count) < 0.9
    none = np.zeros(count, dtype=np.int32)
    stages = (
        Call(
            pool="rank",
            takes=some,
            input_tokens=draw.integers(1, 20, count).astype(np.int32),
            output_tokens=none,
            call_count=int(draw.integers(1, 4)),
            is_seen=False,
        ),
        Wait(takes=some, duration_s=draw.integers(1, 6, count) * UNIT_S),
        Call(pool="small", takes=short, input_tokens=rows.input_tokens, output_tokens=rows.output_tokens),
        Call(pool="chat", takes=long & ~short, input_tokens=rows.input_tokens, output_tokens=rows.output_tokens),
        Wait(takes=draw.random(count) < 0.3, duration_s=draw.integers(1, 6, count) * UNIT_S / 5.0),
    )
    router = str(draw.choice(["round_robin", "least_in_flight"]))
    shared = [("rank", "chat"), ("small", "chat"), ("rank", "small", "chat"), ("rank", "small")]
    fleets = {name: random_pool(draw, router, engine) for name in ("rank", "small", "chat")}
    for name in shared[int(draw.integers(0, 4))]:
        fleets[name] = replace(fleets[name], groups=(replace(fleets[name].groups[0], berth=0),))
    return Pools(fleets=fleets, stages=stages)


def random_users(draw: np.random.Generator, request_count: int) -> ClosedLoop:
    """Odd times, for the same reason."""
    loop = random_loop(draw, request_count)
    return replace(loop, delay_s=draw.integers(1, 40, request_count) * UNIT_S / 3.0)


def random_around(draw: np.random.Generator, rows: Trace) -> World | None:
    """Bounds of queues, deadlines, clients that come back, and a lane where there are priorities."""
    clients = Clients(
        attempt_count=int(draw.integers(1, 4)),
        backoff_s=float(draw.choice([3.0, 17.0])) * UNIT_S,
        timeout_s=None if draw.random() < 0.7 else 97.0 * UNIT_S,
    )
    admission = Admission(
        queue_limit_count=int(draw.integers(1, 4)),
        deadline_s=random_timeout_s(draw),
        retry_after_s=float(draw.choice([0.0, 7.0])) * UNIT_S,
    )
    world = World(clients=clients, admission=admission)
    if rows.priority is not None:
        return replace(with_lane(draw, world, rows.request_count), batch=None)  # each pool has its own
    return None if draw.random() < 0.5 else world


def around_of(world: World | None, calls: Trace) -> World | None:
    """The world around a pool: which calls are batch, their priority says."""
    if world is None or world.lane is None:
        return world
    return replace(world, batch=calls.priority > 0) if calls.priority.any() else replace(world, batch=None, lane=None)


def assert_equal(seed: int) -> tuple[int, int]:
    """Requests that ended well, and calls that came again."""
    draw = np.random.default_rng(seed)
    rows = random_trace(draw, shared=bool(draw.random() < 0.5))
    if draw.random() < 0.5:
        bits = draw.integers(0, 4, rows.request_count).astype(np.int32)
        rows = replace(rows, priority=None, class_bits=bits, classes=("first", "second"))
    else:
        rows = replace(rows, priority=None)
    has_lane = seed % 3 == 0
    pools = random_system(draw, rows, "vllm-0.32" if has_lane else None)
    if has_lane:
        rows = replace(rows, priority=draw.integers(0, 2, rows.request_count), class_bits=None, classes=())
    world = random_around(np.random.default_rng([seed, 1]), rows)
    users = random_users(np.random.default_rng([seed, 2]), rows.request_count) if seed % 2 else None
    if users is not None:
        others_s = np.random.default_rng([seed, 3]).random(rows.request_count)
        rows = replace(rows, arrival_s=np.where(users.after == BY_CLOCK, rows.arrival_s, others_s))
    reads = None if seed % 4 < 3 else 1.0 / (17.0 * UNIT_S)
    pools = pools if reads is None else replace(pools, stages=pools.stages[:-1])  # what is read is the last
    plain = PlainChain(rows, pools, PEAK_S, lambda _name: world, users, reads)
    sampled_s = 0.05 if draw.random() < 0.5 else None
    run = replay_stages(
        rows,
        pools,
        peak_window_s=PEAK_S,
        telemetry_interval_s=sampled_s,
        worlds=lambda _name, calls: around_of(world, calls),
        closed_loop=users,
        read_tokens_per_s=reads,
    )
    fast, served = run.record, np.array([status == Status.FINISHED for status in plain.status])
    np.testing.assert_array_equal(fast.status, plain.status)
    np.testing.assert_array_equal(np.rint(fast.arrival_s * 1e12), plain.arrival)
    np.testing.assert_array_equal(fast.finish_s, seconds(plain.finish))
    np.testing.assert_array_equal(fast.first_token_s[served], seconds(plain.first)[served])
    np.testing.assert_array_equal(fast.preemption_count, plain.preemptions)
    for name, pool in run.pools.items():
        mine, own = pool.record, plain.pools[name]
        assert (mine.busy.step_count, mine.busy.mixed_step_count) == (own.steps, own.mixed_steps)
        if world is not None:
            tries = [request.attempts for request in own.all]
            assert mine.turmoil.attempt_count.sum() == sum(tries)
            refused = own.refused + own.given_up[Status.REJECTED_DEADLINE]
            counts = (mine.turmoil.refused_count, mine.turmoil.timed_out_count, mine.turmoil.wasted_output_tokens)
            assert counts == (refused, own.given_up[Status.TIMED_OUT], own.wasted)
        np.testing.assert_allclose(mine.busy.prefill_s, own.prefill / 1e12)
        np.testing.assert_allclose(mine.busy.decode_s, own.decode / 1e12)
        np.testing.assert_array_equal(mine.gaps.count, own.gaps)
        np.testing.assert_array_equal(mine.peak_gaps.count, own.peak_gaps)
        for label in classes_labels(rows, has_lane) if sampled_s and pool.class_gaps else ():
            np.testing.assert_array_equal(pool.class_gaps[label].gaps.count, own.class_gaps[label][0])
        if sampled_s is not None:
            total_s = mine.telemetry.done.busy_s[-1].sum()
            np.testing.assert_allclose(total_s, mine.busy.prefill_s + mine.busy.decode_s)
            took_s = mine.ledger.prefill_gpu_s.sum() + mine.ledger.decode_gpu_s.sum()
            np.testing.assert_allclose(took_s, total_s)
    return int(served.sum()), sum(max(each.attempts - 1, 0) for pool in plain.pools.values() for each in pool.all)


def classes_labels(rows: Trace, has_lane: bool) -> set[str]:
    levels = rows.priority > 0 if has_lane else None
    return {name for names in classes_of(rows, levels).values() for name in names}


def test_at_once_is_on_one_clock() -> None:
    served, again = np.sum([assert_equal(step) for step in range(40)], axis=0)
    assert served > 200
    assert again > 50


@pytest.mark.parametrize("seed", [11017, 19012], ids=["users who call nobody", "a deadline as somebody comes back"])
def test_at_the_edge(seed: int) -> None:
    assert_equal(seed)


def test_nobody_comes() -> None:
    draw = np.random.default_rng(3)
    rows = replace(random_trace(draw), priority=None)
    pools, nobody = random_system(draw, rows), np.zeros(0, dtype=np.int64)
    run = replay_stages(rows_of(rows, nobody), narrowed(pools, nobody), telemetry_interval_s=0.1)
    assert [len(pool.caller) for pool in run.pools.values()] == [0, 0, 0]
    assert run.record.gaps.count.sum() == 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 20))
def test_thousands_at_once(seed: int) -> None:
    for step in range(50):
        assert_equal(1000 * seed + step)
