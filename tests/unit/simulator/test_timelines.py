"""Small timelines that the real vLLM scheduler produced, step by step; times here are what they imply.

``{r: q}`` is one step: request r gets q tokens. Every step takes 10 ms, or 10 ms and 1 ms per token where the
number of tokens must show.
"""

import numpy as np
import pytest

from reference.fleets import MS, engine, fleet, physics, step_time, trace
from tokenfleet.domain.run import RunRecord
from tokenfleet.simulator import replay


def play(requests, *, blocks=1000, per_token=False, columns=None, **settings) -> RunRecord:
    rules = engine(**settings)
    table = 10 * MS + np.arange(rules.max_batched_tokens + 1) * (MS if per_token else 0)
    return replay(
        trace(requests, **(columns or {})),
        fleet(physics(settings=rules, time=step_time(token_ps=table), blocks=blocks)),
    )


def ms(times_s) -> list[float]:
    return np.round(np.asarray(times_s) * 1000.0, 9).tolist()


class TestArrivalDuringAStep:
    requests = ((0, 6, 4), (12, 5, 3))

    def test_synchronous_joins_the_next_step(self) -> None:
        """0:{0:6} 10:{0:1} 20:{0:1,1:5} 30:{0:1,1:1} 40:{1:1}."""
        run = play(self.requests)
        assert ms(run.first_token_s) == [10, 30]
        assert ms(run.finish_s) == [40, 50]

    def test_asynchronous_joins_the_step_after_it(self) -> None:
        """0:{0:6} 10:{0:1} 20:{0:1} 30:{0:1,1:5} 40:{1:1} 50:{1:1}."""
        run = play(self.requests, async_scheduling=True)
        assert ms(run.first_token_s) == [10, 40]
        assert ms(run.finish_s) == [40, 60]


def test_a_short_prompt_waits_behind_the_chunks_of_a_long_one() -> None:
    """{0:3} {0:1,1:7} {0:1,1:7} {0:1,1:1,2:3} {0:1,2:1} {0:1}."""
    run = play([(0, 3, 6), (1, 14, 2), (1, 3, 2)], max_batched_tokens=8)
    assert ms(run.first_token_s) == [10, 30, 40]
    assert ms(run.finish_s) == [60, 40, 50]
    assert (run.busy.step_count, run.busy.mixed_step_count) == (6, 3)


@pytest.mark.parametrize(("caching", "resume_ms"), [(True, 11), (False, 19)])
def test_a_preempted_request_computes_again_what_the_cache_lost(caching: bool, resume_ms: int) -> None:
    """{0:7,1:7} {0:1,1:1} {0:1} and 1 preempted, {0:1} x 3, then {1:1} from the cache or {1:9} without."""
    run = play([(0, 7, 6), (0, 7, 6)], blocks=5, per_token=True, prefix_caching=caching)
    assert ms(run.first_token_s) == [24, 24]
    assert ms(run.finish_s) == [24 + 12 + 4 * 11, 80 + resume_ms + 3 * 11]
    assert run.preemption_count.tolist() == [0, 1]
    longest_s = run.gaps.lower_s[np.flatnonzero(run.gaps.count)[-1]]
    assert longest_s == pytest.approx((80 + resume_ms - 36) / 1000.0, rel=0.025)


def test_the_gate_keeps_a_prompt_out_until_the_whole_of_it_fits() -> None:
    """{0:7} {0:1} x 4 {1:8} {1:8} {1:8}."""
    run = play([(0, 7, 5), (0, 24, 1)], blocks=7, max_batched_tokens=8, prefix_caching=True)
    assert ms(run.finish_s) == [50, 80]
    assert run.preemption_count.tolist() == [0, 0]


def test_without_the_gate_it_enters_thrashes_and_ends_earlier_from_its_cache() -> None:
    """{0:7,1:1} {0:1,1:7} {0:1,1:7} {0:1} and 1 preempted, {0:1} {1:8} {1:4}."""
    run = play([(0, 7, 5), (0, 24, 1)], blocks=7, max_batched_tokens=8, prefix_caching=True, full_prompt_gate=False)
    assert ms(run.finish_s) == [50, 70]
    assert run.preemption_count.tolist() == [0, 1]
    assert run.cached_tokens.tolist() == [0, 0], (
        "what a resumed request finds of its own is no saving of the first time"
    )


def test_a_wholly_cached_prompt_computes_its_last_block_again() -> None:
    """The same 8 tokens twice in one step: {0:8, 1:4}; then 9 tokens with that prefix: {2:1}."""
    from tokenfleet.domain.trace import PrefixTree

    tree = PrefixTree(parent=np.array([-1], dtype=np.int32), token_count=np.array([8], dtype=np.int32))
    shared = {"prefix_node": np.zeros(3, dtype=np.int32), "prefixes": tree}
    run = play([(0, 8, 1), (0, 8, 1), (50, 9, 1)], per_token=True, prefix_caching=True, columns=shared)
    assert run.cached_tokens.tolist() == [0, 4, 8]
    assert ms(run.finish_s) == [22, 22, 61]


def test_the_watermark_keeps_blocks_free_while_somebody_runs() -> None:
    """Ten blocks, two to keep free: seven are free, seven are needed, so request 1 waits until request 0 ends."""
    requests = [(0, 10, 3), (0, 28, 1)]
    assert ms(play(requests, blocks=10, watermark_fraction=0.2).finish_s) == [30, 40]
    assert ms(play(requests, blocks=10, watermark_fraction=0.0).finish_s) == [30, 10]


def test_a_prompt_longer_than_the_budget_waits_for_a_whole_step_without_chunked_prefill() -> None:
    """{0:6} {0:1} {0:1} and only then {1:8}, as 7 tokens of budget are left beside a decode."""
    run = play([(0, 6, 3), (0, 8, 1)], max_batched_tokens=8, chunked_prefill=False)
    assert ms(run.finish_s) == [30, 40]


def test_prefill_only_requests_end_with_their_prefill_and_have_no_first_token() -> None:
    run = play([(0, 6, 0), (0, 6, 2)])
    assert ms(run.finish_s) == [10, 20]
    assert np.isnan(run.first_token_s[0])


def test_front_end_time_delays_a_request_before_the_scheduler() -> None:
    late = physics(time=step_time(request_ps=7 * MS))
    run = replay(trace([(0, 4, 2), (12, 4, 2)]), fleet(late))
    assert ms(run.first_token_s) == [17, 37], "ready at 19, during the step from 17 to 27"


def test_the_peak_histogram_holds_the_gaps_of_steps_that_end_in_the_window() -> None:
    rows = trace([(0, 4, 11)])
    run = replay(rows, fleet(), peak_window_s=(0.03, 0.06))
    assert run.gaps.count.sum() == 10
    assert run.peak_gaps.count.sum() == 3, "steps that end at 30, 40 and 50 ms"


def test_a_window_stops_growing_once_it_is_full() -> None:
    """Contexts 3 to 8 seen through a window of 5 cost 3, 4, 5, 5, 5 and 5 ms more."""
    windowed = physics(time=step_time(window_ps=MS, window_tokens=5))
    run = replay(trace([(0, 2, 7)]), fleet(windowed))
    assert ms(run.finish_s) == [10 + 6 * 10 + 3 + 4 + 5 * 4]


def test_a_shared_step_is_split_by_the_mean_of_both_orders() -> None:
    """A decode step alone 11 ms, a prefill of 4 alone 14 ms, both together 15 ms: the prefill answers for 9."""
    run = play([(0, 4, 3), (1, 4, 1)], per_token=True)
    assert run.busy.mixed_step_count == 1
    assert run.busy.prefill_s == pytest.approx(0.014 + 0.009)
    assert run.busy.decode_s == pytest.approx(0.006 + 0.011)


def test_a_request_that_brings_its_kv_along_decodes_at_once() -> None:
    """{0:1} {0:1,1:1} {0:1,1:1}: no prefill anywhere, priced by context like any decode; one gap less than tokens."""
    rules = engine()
    time = step_time(context_ps=MS)
    rows = trace([(0, 6, 3), (2, 30, 2)], kv_delivered=np.array([True, True]))
    run = replay(rows, fleet(physics(settings=rules, time=time, blocks=11)))
    assert ms(run.first_token_s) == [16, 16 + 10 + 7 + 30]
    assert ms(run.finish_s) == [63 + 10 + 8 + 31, 63 + 10 + 8 + 31]
    assert run.busy.prefill_s == 0.0
    assert run.gaps.count.sum() == 2 + 1


def test_it_waits_for_blocks_of_its_whole_prompt_and_computes_it_again_when_preempted() -> None:
    """{0:1} x 6 in 4 blocks; {1:1} joins when 0 has left. Both at once in 4: the one that came last starts again."""
    apart = trace([(0, 9, 6), (0, 9, 2)], kv_delivered=np.array([True, True]))
    run = replay(apart, fleet(physics(blocks=4)))
    assert ms(run.first_token_s) == [10, 70]
    together = trace([(0, 8, 6), (0, 8, 6)], kv_delivered=np.array([True, True]))
    run = replay(together, fleet(physics(blocks=4)))
    assert run.preemption_count.tolist() == [0, 1]
    assert ms(run.first_token_s) == [10, 10]
    assert run.busy.prefill_s == pytest.approx(0.01)


def test_a_short_prompt_passes_a_long_one_that_may_not_take_the_whole_step() -> None:
    """{0:3} {0:1,1:4,2:3} {0:1,1:4,2:1} {0:1,1:4} {0:1,1:2} {0:1,1:1}."""
    run = play([(0, 3, 6), (1, 14, 2), (1, 3, 2)], max_batched_tokens=8, long_prefill_tokens=4)
    assert ms(run.first_token_s) == [10, 50, 20]
    assert ms(run.finish_s) == [60, 60, 30]


def test_a_prompt_that_is_alone_takes_the_whole_step_since_032() -> None:
    alone = [(0, 14, 1)]
    for name, steps in (("vllm-0.32", 2), ("vllm-0.24", 4)):
        assert play(alone, max_batched_tokens=8, long_prefill_tokens=4, name=name).busy.step_count == steps


class TestPriority:
    requests = ((0, 7, 6), (0, 7, 6))
    columns = staticmethod(lambda *priorities: {"priority": np.array(priorities, dtype=np.int32)})

    def test_the_less_urgent_one_is_preempted_though_it_came_first(self) -> None:
        run = play(self.requests, blocks=5, scheduling="priority", columns=self.columns(1, 0))
        assert run.preemption_count.tolist() == [1, 0]
        assert ms(run.finish_s)[1] == 60

    def test_at_equal_priority_the_one_that_came_last(self) -> None:
        run = play(self.requests, blocks=5, scheduling="priority", columns=self.columns(3, 3))
        assert run.preemption_count.tolist() == [0, 1]

    def test_who_waits_is_served_by_priority_then_by_arrival(self) -> None:
        rows = [(0, 4, 3), (1, 4, 1), (2, 4, 1), (3, 4, 1)]
        run = play(rows, max_sequence_count=1, scheduling="priority", columns=self.columns(0, 5, -1, 5))
        assert ms(run.first_token_s) == [10, 50, 40, 60]

    def test_those_behind_one_that_preempts_itself_go_without_a_token(self) -> None:
        """{0:2,1:3} {0:1,1:1,2:1} {0:1} and 1 preempted, {0:1,2:1} {2:1,1:5} {2:1,1:1}."""
        rows = [(0, 2, 4), (0, 3, 4), (5, 1, 4)]
        run = play(rows, blocks=3, scheduling="priority", columns=self.columns(0, 5, 0))
        assert ms(run.finish_s) == [40, 60, 60]
        assert run.preemption_count.tolist() == [0, 1, 0]
        found = np.repeat(run.gaps.lower_s[:-1], run.gaps.count) * 1000.0
        np.testing.assert_allclose(found, [10] * 7 + [20, 30], rtol=0.025)

    def test_nobody_looks_at_it_first_come_first_served(self) -> None:
        rows = [(0, 4, 3), (1, 4, 1), (2, 4, 1)]
        run = play(rows, max_sequence_count=1, columns=self.columns(0, 5, -1))
        assert ms(run.first_token_s) == [10, 40, 50]


@pytest.mark.parametrize(("front_end", "ready_ms"), [("parallel", [30, 30, 35]), ("serial", [30, 60, 90])])
def test_a_serial_front_end_takes_one_request_after_another(front_end: str, ready_ms: list[float]) -> None:
    rows = trace([(0, 4, 1), (0, 4, 1), (5, 4, 1)])
    run = replay(rows, fleet(physics(settings=engine(front_end=front_end), time=step_time(request_ps=30 * MS))))
    assert ms(run.ready_s) == ready_ms
