"""Replaying pool after pool equals one clock over all pools: every column and every gap."""

from bisect import bisect_right

import numpy as np
import pytest

from reference.comparing import PEAK_S, seconds
from reference.fleets import random_fleet, random_trace
from reference.plain_chain import PlainChain
from reference.plain_fleet import GAP_BOUNDS_PS
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.run import Status
from tokenfleet.domain.stages import Call, Pools, Transfer, Wait
from tokenfleet.simulator import replay_stages


def random_pool(draw: np.random.Generator) -> Fleet:
    name = str(draw.choice(["test", "test", "sglang-0.5", "trtllm-1.2"]))
    drawn = random_fleet(draw, name=name, prefix_caching=False)
    router = "least_in_flight" if drawn.router == "prefix_affinity" else drawn.router
    return Fleet(groups=drawn.groups, router=router)


def random_stages(draw: np.random.Generator, rows) -> Pools:
    """A side branch with parallel calls and a wait, then prefill and decode apart; each request takes some of it."""
    count = rows.request_count
    some, many = draw.random(count) < 0.5, draw.random(count) < 0.9
    going = many & (rows.output_tokens > 1)
    unit_s = float(draw.choice([0.01, 0.001234567]))
    durations = draw.integers(0, 5, (2, count)) * unit_s
    short = draw.integers(1, 20, count).astype(np.int32)
    none = np.zeros(count, dtype=np.int32)
    stages = (
        Call(pool="rank", takes=some, input_tokens=short, output_tokens=none, call_count=3, is_seen=False),
        Wait(takes=some, duration_s=durations[0]),
        Call(
            pool="prefill",
            takes=many,
            input_tokens=rows.input_tokens,
            output_tokens=np.minimum(rows.output_tokens, 1).astype(np.int32),
        ),
        Transfer(takes=going, duration_s=durations[1], latency_s=unit_s * float(draw.integers(0, 2))),
        Call(
            pool="decode",
            takes=going,
            input_tokens=rows.input_tokens + np.int32(1),
            output_tokens=rows.output_tokens - np.int32(1),
            kv_delivered=True,
        ),
    )
    return Pools(fleets={name: random_pool(draw) for name in ("rank", "prefill", "decode")}, stages=stages)


def counted(gaps: list[int]) -> np.ndarray:
    places = [min(bisect_right(GAP_BOUNDS_PS, gap) - 1, len(GAP_BOUNDS_PS) - 2) for gap in gaps]
    return np.bincount(places, minlength=len(GAP_BOUNDS_PS) - 1)


def assert_equal(seed: int) -> tuple[int, int]:
    draw = np.random.default_rng(seed)
    rows = random_trace(draw)
    pools = random_stages(draw, rows)
    plain = PlainChain(rows, pools, PEAK_S)
    run = replay_stages(rows, pools, peak_window_s=PEAK_S)
    fast, served = run.record, ~np.array(plain.refused)
    np.testing.assert_array_equal(fast.status == Status.FINISHED, served)
    np.testing.assert_array_equal(fast.finish_s, seconds(plain.finish))
    np.testing.assert_array_equal(fast.first_token_s[served], seconds(plain.first)[served])
    np.testing.assert_array_equal(fast.preemption_count, plain.preemptions)
    seen = [plain.pools[name] for name in ("prefill", "decode")]
    bridges = counted([gap for gap, _ in plain.bridges])
    np.testing.assert_array_equal(fast.gaps.count, bridges + sum(np.array(pool.gaps) for pool in seen))
    inside = [gap for gap, end in plain.bridges if round(PEAK_S[0] * 1e12) <= end < round(PEAK_S[1] * 1e12)]
    np.testing.assert_array_equal(
        fast.peak_gaps.count, counted(inside) + sum(np.array(pool.peak_gaps) for pool in seen)
    )
    for name, pool in run.pools.items():
        assert pool.record.busy.step_count == plain.pools[name].steps
    return int(served.sum()), len(plain.bridges)


@pytest.mark.parametrize("seed", range(4))
def test_pool_after_pool_is_all_at_once(seed: int) -> None:
    served, bridged = np.sum([assert_equal(1000 * seed + step) for step in range(40)], axis=0)
    assert served > 300
    assert bridged > 100


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 30))
def test_thousands_of_chains(seed: int) -> None:
    for step in range(100):
        assert_equal(1000 * seed + step)
