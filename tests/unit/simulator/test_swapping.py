"""Preemption by swap, in timelines that can be told by hand: steps of 10 ms, 2 ms for each block that is moved."""

import numpy as np
import pytest

from reference.fleets import MS, engine, fleet, physics, step_time, trace
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.world import Leaving, World
from tokenfleet.simulator import replay

ROWS = trace([(0, 7, 6), (0, 7, 6)])
"""Both hold two blocks of four, and ask for a third at once, of five there are. vLLM preempts the second one."""


def tight(*, swap=(0, 0), **settings):
    return fleet(physics(settings=engine(max_batched_tokens=16, max_sequence_count=8, **settings), blocks=5, swap=swap))


def ms(times_s: np.ndarray) -> list[float]:
    return [round(time_s * 1000.0, 6) for time_s in times_s]


def test_its_way_out_and_back_takes_time_instead_of_prefill() -> None:
    """At 20 ms two blocks go out, before the third step; at 64 ms they come back, before a step of one token."""
    again = replay(ROWS, tight())
    swapped = replay(ROWS, tight(swap=(10, 2 * MS)))
    assert again.preemption_count.tolist() == swapped.preemption_count.tolist() == [0, 1]
    assert ms(again.finish_s) == [60, 100]
    assert ms(swapped.finish_s) == [64, 64 + 4 + 40]
    assert again.busy.step_count == swapped.busy.step_count


def test_what_became_of_a_preemption_is_told() -> None:
    """Eight computed tokens are lost, or two blocks go to host memory and back."""
    again, swapped = (replay(ROWS, tight(swap=swap), telemetry_interval_s=0.01) for swap in ((0, 0), (10, 2 * MS)))
    assert (again.ledger.swap_count.tolist(), again.ledger.recomputed_tokens.tolist()) == ([0, 0], [0, 8])
    assert (swapped.ledger.swap_count.tolist(), swapped.ledger.recomputed_tokens.tolist()) == ([0, 1], [0, 0])
    done = again.telemetry.done
    assert (done.preemption_count[-1, 0], done.swap_count[-1, 0], done.recomputed_tokens[-1, 0]) == (1, 0, 8)
    done = swapped.telemetry.done
    assert (done.preemption_count[-1, 0], done.swap_count[-1, 0], done.swapped_block_count[-1, 0]) == (1, 1, 4)


def test_what_is_computed_in_the_step_back_is_one_token() -> None:
    costly = {"swap": (10, 0)}
    plain = replay(ROWS, tight()).busy.prefill_s
    assert replay(ROWS, tight(**costly)).busy.prefill_s == plain, "every step takes 10 ms here"
    by_token = physics(settings=engine(max_batched_tokens=16), time=with_token_time(), blocks=5, swap=(10, 0))
    without = physics(settings=engine(max_batched_tokens=16), time=with_token_time(), blocks=5)
    saved_s = replay(ROWS, fleet(without)).finish_s[1] - replay(ROWS, fleet(by_token)).finish_s[1]
    assert saved_s == pytest.approx(0.008), "8 of 9 tokens, a millisecond each"


def with_token_time():
    return step_time(token_ps=(10 + np.arange(17)) * MS)


def test_without_room_in_host_memory_it_computes_again() -> None:
    assert ms(replay(ROWS, tight(swap=(1, 2 * MS))).finish_s) == ms(replay(ROWS, tight()).finish_s)


def test_who_leaves_meanwhile_gives_its_room_back() -> None:
    """The second one leaves while it is out; the fourth finds the room that two more would not have left."""
    rows = trace([(0, 7, 6), (0, 7, 6), (100, 7, 6), (100, 7, 6)])
    leaving = Leaving(after_s=np.array([np.inf, 0.03, np.inf, np.inf]))
    record = replay(rows, tight(swap=(2, 2 * MS)), world=World(leaving=leaving))
    assert ms(record.finish_s[2:]) == [164, 208]


def test_only_vllm_swaps() -> None:
    with pytest.raises(BadInput, match="preemption"):
        replay(ROWS, tight(name="sglang-0.5", preemption="swap"))
    with pytest.raises(BadInput, match="swap_block_count"):
        replay(ROWS, tight(swap=(-1, 0)))
