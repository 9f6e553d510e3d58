"""Laws of replicas that stand on the same gpus."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.fleets import MS, engine, physics, random_fleet, random_trace, step_time, trace, with_pools
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import World
from tokenfleet.simulator import replay

SEEDS = st.integers(0, 2**32 - 1)
LAWS = settings(max_examples=30, deadline=None)
NAMES = ("vllm-0.32", "vllm-0.11", "sglang-0.5", "trtllm-1.2")


def drawn(seed: int) -> tuple[Trace, Fleet]:
    draw = np.random.default_rng(seed)
    fleet = with_pools(draw, random_fleet(draw, name=str(draw.choice(NAMES))), name=str(draw.choice(NAMES)))
    return random_trace(draw, shared=bool(draw.random() < 0.5)), fleet


def side_by_side(*replicas: ReplicaPhysics) -> Fleet:
    """One replica of each model, all on the same gpu."""
    groups = (ReplicaGroup(replica=each, replica_count=1, pool=pool, berth=0) for pool, each in enumerate(replicas))
    return Fleet(groups=tuple(groups))


def busy_on_berths(run: RunRecord, fleet: Fleet) -> np.ndarray:
    """Busy time up to each sample of the gpus behind each berth, shape (sample, berth)."""
    numbers = [group.berth + number for group in fleet.groups for number in range(group.replica_count)]
    busy_s = run.telemetry.done.busy_s
    return np.stack([busy_s[:, np.array(numbers) == berth].sum(axis=1) for berth in set(numbers)], axis=1)


@LAWS
@given(SEEDS)
def test_beside_idle_engines_an_engine_runs_as_alone(seed: int) -> None:
    rows, fleet = drawn(seed)
    first = tuple(group for group in fleet.groups if group.pool == 0)
    # Replicas of one pool would share with each other.
    apart = [replace(group, berth=8 * index) for index, group in enumerate(first)]
    others = [replace(group, berth=0) for group in fleet.groups if group.pool > 0]
    nobody = np.zeros(rows.request_count, dtype=np.int32)
    shared = replay(rows, replace(fleet, groups=(*apart, *others)), world=World(calls=nobody))
    alone = replay(rows, replace(fleet, groups=tuple(replace(group, berth=None) for group in first)))
    for name in ("first_token_s", "finish_s", "preemption_count", "cached_tokens", "replica", "status"):
        np.testing.assert_array_equal(getattr(shared, name), getattr(alone, name))
    np.testing.assert_array_equal(shared.gaps.count, alone.gaps.count)
    assert shared.busy == alone.busy


@LAWS
@given(SEEDS)
def test_gpus_are_never_busy_for_longer_than_time_has_passed(seed: int) -> None:
    rows, fleet = drawn(seed)
    draw = np.random.default_rng([seed, 1])
    fleet = replace(fleet, groups=tuple(replace(group, berth=int(draw.integers(0, 3))) for group in fleet.groups))
    calls = draw.integers(0, fleet.groups[-1].pool + 1, rows.request_count)
    run = replay(rows, fleet, telemetry_interval_s=0.013, world=World(calls=calls))
    spent_s = np.diff(busy_on_berths(run, fleet), axis=0, prepend=0.0)
    assert spent_s.min(initial=0.0) >= -1e-9
    assert spent_s.max(initial=0.0) <= 0.013 + 1e-9
    total_s = busy_on_berths(run, fleet)[-1].sum()
    np.testing.assert_allclose(total_s, run.busy.prefill_s + run.busy.decode_s)
    took_s = run.ledger.prefill_gpu_s.sum() + run.ledger.decode_gpu_s.sum()
    np.testing.assert_allclose(took_s, total_s)


@LAWS
@given(st.booleans(), st.integers(2, 4), SEEDS)
def test_equal_engines_get_equal_service(is_async: bool, count: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    time = step_time(token_ps=draw.integers(3, 9, 65).cumsum() * MS, request_ps=0)
    replica = physics(settings=engine(async_scheduling=is_async), time=time, blocks=400)
    alike = np.repeat(np.arange(6), count)
    lengths = draw.integers(1, 60, (6, 2))
    rows = trace(np.column_stack([np.zeros(len(alike)), lengths[alike, 0], lengths[alike, 1]]))
    calls = np.tile(np.arange(count), 6)
    run = replay(rows, side_by_side(*[replica] * count), telemetry_interval_s=0.05, world=World(calls=calls))
    assert (run.status == Status.FINISHED).all()
    # All are busy to the end, so they end one after the other, a step apart; in between nobody is more than one ahead.
    longest_s = float(time.token_ps.max()) / 1e12
    ends_s = run.finish_s.reshape(6, count)
    assert np.ptp(ends_s, axis=1).max() <= count * longest_s
    assert np.ptp(run.telemetry.done.step_count, axis=1).max() <= 1


def test_a_step_waits_for_those_that_were_ready_before_it() -> None:
    """A prompt of 40 ms comes while the other engine decodes by steps of 10 ms: it waits for the one that runs."""
    chat = physics(time=step_time(), settings=engine())
    long = physics(time=step_time(token_ps=np.full(65, 40 * MS)), settings=engine())
    rows = trace([(0, 10, 5), (14, 20, 1)])
    run = replay(rows, side_by_side(chat, long), world=World(calls=np.array([0, 1])))
    np.testing.assert_allclose(run.first_token_s, [0.010, 0.060])
    # Its second token left at 20 ms, the third step was ready then, after the prompt, and ran from 60 ms on.
    np.testing.assert_allclose(run.finish_s, [0.090, 0.060])


def test_an_engine_that_plans_ahead_takes_no_two_turns() -> None:
    """With async scheduling, the next step is fixed early; the other engine, which is ready before it, goes first."""
    ahead = physics(time=step_time(), settings=engine(async_scheduling=True))
    other = physics(time=step_time(token_ps=np.full(65, 7 * MS)), settings=engine())
    rows = trace([(0, 10, 4), (13, 20, 1)])
    run = replay(rows, side_by_side(ahead, other), world=World(calls=np.array([0, 1])))
    np.testing.assert_allclose(run.first_token_s, [0.010, 0.027])
    np.testing.assert_allclose(run.finish_s, [0.047, 0.027])
