"""Holds a replay against the plain engine: every column, every gap, every picosecond."""

from dataclasses import replace

import numpy as np

from reference.plain_fleet import PlainRun
from reference.worlds import Recorder
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import World
from tokenfleet.simulator import replay

PEAK_S = (0.1, 0.35)
INTERVAL_S = 0.03


def seconds(times_ps: list[int]) -> np.ndarray:
    return np.array([time_ps / 1e12 if time_ps >= 0 else np.nan for time_ps in times_ps])


def with_recorder(world: World | None) -> World | None:
    """Each run has a controller of its own, which remembers what it saw."""
    return world if world is None or world.controller is None else replace(world, controller=Recorder())


def assert_equal(trace: Trace, fleet: Fleet, world: World | None = None) -> RunRecord:
    plain = PlainRun(trace, fleet, PEAK_S, INTERVAL_S, with_recorder(world))
    world = with_recorder(world)
    fast = replay(trace, fleet, peak_window_s=PEAK_S, telemetry_interval_s=INTERVAL_S, world=world)
    rows = plain.requests
    if world is not None:
        if world.controller is not None:
            assert world.controller.shown() == plain.world.controller.shown()
        turmoil = fast.turmoil
        np.testing.assert_array_equal(turmoil.attempt_count, [r.attempts for r in rows])
        np.testing.assert_array_equal(turmoil.degraded, [r.degraded for r in rows])
        np.testing.assert_array_equal(fast.arrival_s, seconds([r.first_arrival for r in rows]))
        overdue = plain.given_up[Status.REJECTED_DEADLINE]
        assert (turmoil.refused_count, turmoil.lost_count) == (plain.refused + overdue, plain.lost)
        given_up = (turmoil.cancelled_count, turmoil.timed_out_count)
        assert given_up == (plain.given_up[Status.CANCELLED], plain.given_up[Status.TIMED_OUT])
        assert turmoil.wasted_output_tokens == plain.wasted
        np.testing.assert_array_equal(turmoil.left_s, seconds([r.left for r in rows]))
        np.testing.assert_array_equal(turmoil.partial_output_tokens, [r.partial for r in rows])
        np.testing.assert_array_equal(turmoil.state_s, plain.state_s())
        decisions = [(each.time_s, each.kind, each.replicas, each.reason) for each in turmoil.decisions]
        assert decisions == [each for each in plain.decisions if each[0] <= plain.end / 1e12]
        assert fast.end_s == plain.end / 1e12
    np.testing.assert_array_equal(fast.status, [r.status for r in rows])
    np.testing.assert_array_equal(fast.replica, [r.replica for r in rows])
    np.testing.assert_array_equal(fast.first_token_s, seconds([r.first for r in rows]))
    np.testing.assert_array_equal(fast.finish_s, seconds([r.finish for r in rows]))
    np.testing.assert_array_equal(fast.preemption_count, [r.preemptions for r in rows])
    np.testing.assert_array_equal(fast.cached_tokens, [r.cached for r in rows])
    np.testing.assert_array_equal(fast.gaps.count, plain.gaps)
    np.testing.assert_array_equal(fast.peak_gaps.count, plain.peak_gaps)
    busy = fast.busy
    assert (busy.step_count, busy.mixed_step_count) == (plain.steps, plain.mixed_steps)
    assert busy.prefill_s == plain.prefill / 1e12
    assert busy.decode_s == plain.decode / 1e12
    assert busy.cached_prefix_s == plain.cached_prefix / 1e12
    samples = np.array(plain.samples)
    np.testing.assert_array_equal(fast.telemetry.running, samples[:, :, 0])
    np.testing.assert_array_equal(fast.telemetry.waiting, samples[:, :, 1])
    blocks = np.array([replica.physics.kv_block_count for replica in plain.replicas])
    np.testing.assert_array_equal(fast.telemetry.kv_used_fraction, 1.0 - (blocks - samples[:, :, 2]) / blocks)
    assert_same_ledger(plain, fast)
    none = [0] * len(plain.gaps)
    for name, apart in fast.class_gaps.items():
        counts, inside = plain.class_gaps.get(name, (none, none))
        np.testing.assert_array_equal(apart.gaps.count, counts)
        np.testing.assert_array_equal(apart.peak_gaps.count, inside)
    assert set(plain.class_gaps) <= set(fast.class_gaps) or not fast.class_gaps
    assert_same_work(plain, fast)
    return fast


def assert_same_ledger(plain: PlainRun, fast: RunRecord) -> None:
    rows, ledger = plain.requests, fast.ledger
    np.testing.assert_array_equal(ledger.scheduled_s, seconds([r.scheduled for r in rows]))
    np.testing.assert_array_equal(ledger.prefill_gpu_s, seconds([r.took_prefill for r in rows]))
    np.testing.assert_array_equal(ledger.cached_gpu_s, seconds([r.took_cached for r in rows]))
    np.testing.assert_array_equal(ledger.decode_gpu_s, seconds([r.took_decode for r in rows]))
    np.testing.assert_array_equal(ledger.recomputed_tokens, [r.computed_again for r in rows])
    np.testing.assert_array_equal(ledger.swap_count, [r.swaps for r in rows])


def assert_same_work(plain: PlainRun, fast: RunRecord) -> None:
    done = fast.telemetry.done

    def counted(name: str) -> list[list[int]]:
        return [[work.get(name, 0) for work in works] for works in plain.works]

    np.testing.assert_array_equal(done.busy_s, np.array(counted("busy")) / 1e12)
    np.testing.assert_array_equal(done.step_count, counted("steps"))
    np.testing.assert_array_equal(done.prefill_step_count, counted("prefill_steps"))
    np.testing.assert_array_equal(done.prefill_tokens, counted("prefill_tokens"))
    np.testing.assert_array_equal(done.decode_tokens, counted("decode_tokens"))
    np.testing.assert_array_equal(done.context_tokens, counted("contexts"))
    np.testing.assert_array_equal(done.pair_count, counted("pairs"))
    np.testing.assert_array_equal(done.kept_draft_tokens, counted("kept_draft_tokens"))
    np.testing.assert_array_equal(done.preemption_count, counted("preemptions"))
    np.testing.assert_array_equal(done.swap_count, counted("swaps"))
    np.testing.assert_array_equal(done.swapped_block_count, counted("swapped_blocks"))
    np.testing.assert_array_equal(done.recomputed_tokens, counted("recomputed"))
    np.testing.assert_array_equal(fast.telemetry.active_tokens, counted("active"))
