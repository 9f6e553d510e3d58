"""Who takes what of a step, on timelines small enough to add up by hand."""

from dataclasses import replace

import numpy as np
import pytest

from reference.fleets import MS, engine, fleet, physics, step_time, trace
from tokenfleet.domain.replica import Layout
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.world import Clients, Happening, World
from tokenfleet.simulator import replay


def play(requests, *, world=None, gpus=1, settings=None, **terms) -> RunRecord:
    rules = engine(**(settings or {}))
    replica = physics(settings=rules, time=step_time(tokens=rules.max_batched_tokens, **terms))
    deployment = replace(replica.deployment, layout=Layout(tensor_parallel=gpus))
    return replay(
        trace(requests), fleet(replace(replica, deployment=deployment)), telemetry_interval_s=1.0, world=world
    )


def test_equal_requests_share_equally() -> None:
    """{0:4,1:4} then two steps of both: 10 ms each."""
    run = play([(0, 4, 3), (0, 4, 3)])
    assert run.ledger.prefill_gpu_s.tolist() == [0.005, 0.005]
    assert run.ledger.decode_gpu_s.tolist() == [0.010, 0.010]


def test_a_long_context_pays_for_what_it_reads() -> None:
    """Each step 10 ms, shared, and 1 ms for each token of context: 41 and 5 in the one decode step of both."""
    run = play([(0, 40, 2), (0, 4, 2)], context_ps=MS)
    assert run.ledger.decode_gpu_s.tolist() == pytest.approx([0.005 + 0.041, 0.005 + 0.005])
    assert run.busy.decode_s == pytest.approx(0.056)


def test_a_prompt_pays_for_its_attention_and_the_rest_goes_by_tokens() -> None:
    """Prompts of 10 and 30 tokens in one step of 10 ms and 1 ms for each of 55 and 465 pairs."""
    run = play([(0, 10, 1), (0, 30, 1)], pair_ps=MS)
    assert run.ledger.prefill_gpu_s.tolist() == pytest.approx([0.0025 + 0.055, 0.0075 + 0.465])


def test_a_window_bounds_what_is_read() -> None:
    """Contexts 3 to 8 through a window of 5."""
    run = play([(0, 2, 7)], window_ps=MS, window_tokens=5)
    assert run.ledger.decode_gpu_s.tolist() == pytest.approx([6 * 0.010 + 0.003 + 0.004 + 4 * 0.005])


def test_every_gpu_of_a_replica_counts() -> None:
    one, four = play([(0, 4, 3)]), play([(0, 4, 3)], gpus=4)
    np.testing.assert_allclose(four.ledger.decode_gpu_s, 4 * one.ledger.decode_gpu_s)
    np.testing.assert_allclose(four.ledger.prefill_gpu_s, 4 * one.ledger.prefill_gpu_s)


def test_a_request_waits_in_the_queue_until_it_is_scheduled() -> None:
    """One slot: the second request is admitted when the first has ended, at 30 ms."""
    run = play([(0, 4, 3), (5, 4, 1)], settings={"max_sequence_count": 1})
    assert run.ready_s.tolist() == [0.0, 0.005]
    assert run.ledger.scheduled_s.tolist() == [0.0, 0.03]


def test_what_a_lost_attempt_took_stays_charged() -> None:
    """{0:4} and two decodes, then the replica fails in the third step; all again at its return."""
    world = World(
        happenings=(
            Happening(time_s=0.035, kind="fail", replicas=(0,)),
            Happening(time_s=0.036, kind="ready", replicas=(0,)),
        ),
        clients=Clients(attempt_count=2, backoff_s=0.1),
    )
    run = play([(0, 4, 9)], world=world)
    assert run.turmoil.attempt_count.tolist() == [2]
    assert run.ledger.prefill_gpu_s.tolist() == pytest.approx([0.020])
    assert run.ledger.decode_gpu_s.tolist() == pytest.approx([0.030 + 0.080])
    assert run.ledger.scheduled_s[0] > 0.036


def test_a_slower_replica_charges_from_the_next_step_on() -> None:
    """Steps of 10 ms and 1 ms for each token of context: contexts 5 and 6 as usual, 7 and 8 at three times that."""
    world = World(happenings=(Happening(time_s=0.035, kind="slow", replicas=(0,), step_time_factor=3.0),))
    run = play([(0, 4, 5)], world=world, context_ps=MS)
    assert run.ledger.decode_gpu_s.tolist() == pytest.approx([0.015 + 0.016 + 3 * (0.017 + 0.018)])


def test_nobody_keeps_a_ledger_unasked() -> None:
    assert replay(trace([(0, 4, 3)]), fleet()).ledger is None
