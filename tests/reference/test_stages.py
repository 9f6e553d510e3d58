"""Replaying pool after pool equals one clock over all pools: every column and every gap."""

from bisect import bisect_right
from dataclasses import replace

import numpy as np
import pytest

from reference.chains import Wardens, random_stages, with_gates, with_people
from reference.comparing import PEAK_S, seconds
from reference.fleets import fleet, physics, random_trace
from reference.plain_chain import PlainChain
from reference.plain_fleet import GAP_BOUNDS_PS, classes_of
from reference.worlds import Recorder, random_loop, random_timeout_s
from tokenfleet.domain.run import Status
from tokenfleet.domain.stages import Call, Gate, Pools
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import Admission, Clients, ClosedLoop, Door, FleetView, World
from tokenfleet.simulator import replay_stages


def counted(gaps: list[int]) -> np.ndarray:
    places = [min(bisect_right(GAP_BOUNDS_PS, gap) - 1, len(GAP_BOUNDS_PS) - 2) for gap in gaps]
    return np.bincount(places, minlength=len(GAP_BOUNDS_PS) - 1)


def shown(views: list[FleetView]) -> list[tuple[object, ...]]:
    return Recorder(views=views).shown()


def assert_equal(seed: int, *, gated: bool = False, looped: bool = False) -> tuple[int, int, int]:
    draw = np.random.default_rng(seed)
    rows = random_trace(draw)
    pools = random_stages(draw, rows)
    apart = np.random.default_rng([seed, 1])
    if apart.random() < 0.5:
        bits = apart.integers(0, 4, rows.request_count).astype(np.int32)
        rows = replace(rows, class_bits=bits, classes=("first", "second"))
    world, loop = None, None
    if gated or looped:
        limit, deadline_s = int(apart.integers(1, 6)), random_timeout_s(apart)
        world = World(admission=Admission(queue_limit_count=limit, deadline_s=deadline_s))
    if gated:
        rows = with_people(apart, rows)
        pools = with_gates(apart, rows, pools)
    if looped:
        loop = random_loop(apart, rows.request_count)
    plain = PlainChain(rows, pools, PEAK_S, lambda _name: world, loop)
    gates = [stage for stage in pools.stages if isinstance(stage, Gate)]
    seen = [shown(gate.controllers.last.views) for gate in gates]
    run = replay_stages(
        rows,
        pools,
        peak_window_s=PEAK_S,
        telemetry_interval_s=0.5,
        worlds=lambda _name, _calls: world,
        closed_loop=loop,
    )
    assert [shown(gate.controllers.last.views) for gate in gates] == seen
    for gate in run.gates:
        np.testing.assert_array_equal(gate.attempt_count, plain.gates[gate.name].attempts)
        assert gate.refused_count == plain.gates[gate.name].refused_in_all
    fast, served = run.record, np.array([status == Status.FINISHED for status in plain.status])
    np.testing.assert_array_equal(fast.status, plain.status)
    np.testing.assert_array_equal(np.rint(fast.arrival_s * 1e12), plain.arrival)
    np.testing.assert_array_equal(fast.finish_s, seconds(plain.finish))
    np.testing.assert_array_equal(fast.first_token_s[served], seconds(plain.first)[served])
    np.testing.assert_array_equal(fast.preemption_count, plain.preemptions)
    seen = [plain.pools[name] for name in ("prefill", "decode", "small") if name in plain.pools]
    moved = [answer is not None for answer in plain.answer]
    np.testing.assert_array_equal(
        [] if fast.turmoil is None else fast.turmoil.degraded, moved if gates or world else []
    )
    bridges = counted([gap for gap, _, _ in plain.bridges])
    np.testing.assert_array_equal(fast.gaps.count, bridges + sum(np.array(pool.gaps) for pool in seen))
    edges = [round(edge_s * 1e12) for edge_s in PEAK_S]
    inside = [gap for gap, end, _ in plain.bridges if edges[0] <= end < edges[1]]
    classes = classes_of(rows, None)
    for name, apart in fast.class_gaps.items():
        mine = [each for each in plain.bridges if name in classes.get(each[2], ())]
        for number, (histogram, bridging) in enumerate(
            [
                (apart.gaps, [gap for gap, _, _ in mine]),
                (apart.peak_gaps, [gap for gap, end, _ in mine if edges[0] <= end < edges[1]]),
            ]
        ):
            own = sum(np.array(pool.class_gaps[name][number]) for pool in seen)
            np.testing.assert_array_equal(histogram.count, own + counted(bridging))
    np.testing.assert_array_equal(
        fast.peak_gaps.count, counted(inside) + sum(np.array(pool.peak_gaps) for pool in seen)
    )
    for name, pool in run.pools.items():
        assert pool.record.busy.step_count == plain.pools[name].steps
    refused = sum(gate.refused_count for gate in run.gates)
    return int(served.sum()), refused if gated else len(plain.bridges), sum(moved)


@pytest.mark.parametrize("seed", range(2))
def test_pool_after_pool_is_all_at_once(seed: int) -> None:
    served, bridged, _ = np.sum([assert_equal(1000 * seed + step) for step in range(40)], axis=0)
    assert served > 300
    assert bridged > 100


def test_doors_in_front_of_pools_move_as_on_one_clock() -> None:
    served, refused, moved = np.sum([assert_equal(8000 + step, gated=True) for step in range(20)], axis=0)
    assert served > 100
    assert refused > 50
    assert moved > 5


@pytest.mark.parametrize("gated", [False, True])
def test_users_who_wait_for_the_end_of_the_whole_way(gated: bool) -> None:
    served, _, _ = np.sum([assert_equal(9000 + step, gated=gated, looped=True) for step in range(8)], axis=0)
    assert served > 50


def test_users_who_come_back_at_once_to_a_full_door_do_not_make_replays_creep() -> None:
    """What a replay wrongly expects of later ones may come again a picosecond later, in each of the next thousands."""
    count = 9
    rows = Trace(
        arrival_s=np.array([3, 4, 6, 15, 21, 24, 25, 25, 26]) / 100.0,
        input_tokens=np.array([10, 24, 10, 11, 25, 18, 24, 21, 29], dtype=np.int32),
        output_tokens=np.array([2, 1, 6, 6, 3, 1, 8, 2, 7], dtype=np.int32),
        session=np.array([1, -1, 1, 1, 3, -1, 2, 0, 0], dtype=np.int32),
    )
    everybody = np.ones(count, dtype=np.bool_)
    door = Gate(
        name="door",
        takes=everybody,
        watched=("chat",),
        controllers=Wardens([Door(session_limit_count=2)]),
        tick_s=0.5,
        door=Door(session_limit_count=2),
        clients=Clients(attempt_count=4, backoff_s=0.0),
        session_idle_s=0.0,
    )
    chat = Call(pool="chat", takes=everybody, input_tokens=rows.input_tokens, output_tokens=rows.output_tokens)
    pools = Pools(fleets={"chat": fleet(physics())}, stages=(door, chat))
    loop = ClosedLoop(after=np.array([-1, 0, -1, -2, 3, -2, 0, 5, -2], dtype=np.int32), delay_s=np.zeros(count))
    asked = []

    def quiet(name: str, _calls: Trace) -> None:
        asked.append(name)
        assert len(asked) < 40, "each pass is right for a picosecond longer"

    run = replay_stages(rows, pools, worlds=quiet, closed_loop=loop)
    plain = PlainChain(rows, pools, PEAK_S, None, loop)
    np.testing.assert_array_equal(run.record.status, plain.status)
    np.testing.assert_array_equal(np.rint(run.record.arrival_s * 1e12), plain.arrival)
    np.testing.assert_array_equal(run.record.finish_s, seconds(plain.finish))
    assert run.gates[0].refused_count == plain.gates["door"].refused_in_all > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 30))
def test_thousands_of_chains(seed: int) -> None:
    for step in range(50):
        assert_equal(1000 * seed + step)
        assert_equal(1000 * seed + step, gated=True, looped=step % 2 == 0)
