"""What SGLang and TensorRT-LLM do otherwise than vLLM, each rule by a small timeline. Every step takes 10 ms."""

import numpy as np
import pytest

from reference.fleets import MS, engine, fleet, physics, random_fleet, random_trace, step_time, trace
from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.trace import PrefixTree
from tokenfleet.simulator import replay, rule_set_note


def play(name, requests, *, blocks=1000, **settings) -> RunRecord:
    rules = engine(name=name, **settings)
    time = step_time(token_ps=np.full(rules.max_batched_tokens + 1, 10 * MS))
    return replay(trace(requests), fleet(physics(settings=rules, time=time, blocks=blocks)))


def ms(times_s) -> list[float]:
    return np.round(np.asarray(times_s) * 1000.0, 9).tolist()


def gaps_ms(run: RunRecord) -> list[tuple[int, int]]:
    """Gaps, rounded to a millisecond, and how many."""
    found = np.flatnonzero(run.gaps.count)
    middle_s = np.sqrt(run.gaps.lower_s[found] * run.gaps.lower_s[found + 1])
    return [(round(1000 * gap_s), int(count)) for gap_s, count in zip(middle_s, run.gaps.count[found], strict=True)]


@pytest.mark.parametrize(("name", "cached"), [("vllm-0.11", 4), ("vllm-0.16", 4), ("vllm-0.24", 8), ("vllm-0.32", 8)])
def test_which_freed_blocks_a_version_of_vllm_reuses_first(name, cached) -> None:
    """Four blocks of 4. The third request takes one: before 0.24 the oldest of all, so the second of the shared path;
    since then one that holds nothing whole. The last request asks for the path."""
    tree = PrefixTree(parent=np.array([-1], dtype=np.int32), token_count=np.array([8], dtype=np.int32))
    rows = trace(
        [(0, 8, 1), (100, 6, 1), (200, 4, 1), (300, 9, 1)],
        prefixes=tree,
        prefix_node=np.array([0, -1, -1, 0], dtype=np.int32),
    )
    run = replay(rows, fleet(physics(settings=engine(name=name, prefix_caching=True), blocks=4)))
    assert run.cached_tokens.tolist() == [0, 0, 0, cached]


class TestSglang:
    def test_decodes_take_nothing_of_the_budget(self) -> None:
        """Two prompts a round by the budget, yet all six decode together."""
        small = engine(name="sglang-0.5", max_batched_tokens=4, max_sequence_count=8)
        run = replay(trace([(0, 2, 3)] * 6), fleet(physics(settings=small)))
        assert ms(run.first_token_s) == [10, 10, 20, 20, 30, 30]
        assert ms(run.finish_s) == [50] * 6

    @pytest.mark.parametrize(("interval", "first_ms"), [(1, 30), (2, 40), (4, 60), (100, 70)])
    def test_new_requests_are_seen_every_so_many_rounds_of_decode(self, interval: int, first_ms: int) -> None:
        """A prompt until 10 ms, then five rounds of decode. Behind a prompt it looks at once, so before the first of
        them; the second request comes at 12 ms, and at the latest it is seen when nobody decodes any more."""
        run = play("sglang-0.5", [(0, 3, 6), (12, 4, 1)], receive_interval_count=interval)
        assert ms(run.first_token_s) == [10, first_ms]
        assert ms(run.finish_s)[0] == (60 if first_ms == 70 else 70)

    def test_decodes_stand_still_while_a_long_prompt_is_prefilled(self) -> None:
        """Rounds P, then P P P, then D: one gap of four rounds. vLLM makes four gaps of one."""
        requests = [(0, 3, 6), (5, 24, 2)]
        run = play("sglang-0.5", requests, max_batched_tokens=8)
        assert ms(run.first_token_s) == [10, 40]
        assert ms(run.finish_s) == [90, 50]
        assert gaps_ms(run) == [(10, 5), (40, 1)]
        assert run.busy.mixed_step_count == 0
        mixed = play("vllm-0.32", requests, max_batched_tokens=8)
        assert mixed.busy.mixed_step_count == 4
        assert gaps_ms(mixed) == [(10, 6)]

    def test_overlap_admits_one_round_later(self) -> None:
        run = play("sglang-0.5", [(0, 3, 6), (5, 24, 2)], max_batched_tokens=8, async_scheduling=True)
        assert ms(run.first_token_s) == [10, 50]
        assert gaps_ms(run) == [(10, 5), (40, 1)]

    @pytest.mark.parametrize(("output", "first_ms"), [(1198, 20), (1199, 10_020)])
    def test_a_prompt_is_admitted_by_the_output_that_is_expected(self, output: int, first_ms: int) -> None:
        """Pool 10,000; four decodes hold 1,000 each and declare 1,000 more, of which 0.7 count: 3,200 are left.

        2,000 + 1,198 + a page is less than that, one token more is not: it waits until somebody leaves.
        """
        running = [(0, 1000, 1001)] * 4
        settings = {"max_batched_tokens": 4000, "block_tokens": 1}
        run = play("sglang-0.5", [*running, (5, 2000, output)], blocks=10_000, **settings)
        assert ms(run.first_token_s) == [10, 10, 10, 10, first_ms]

    def test_what_a_request_declares_counts_up_to_4096_tokens(self) -> None:
        run = play("sglang-0.5", [(0, 10, 5000), (5, 10, 5000)], blocks=20_000, block_tokens=1)
        assert ms(run.first_token_s) == [10, 20]

    def test_of_those_with_the_fewest_outputs_the_longest_prompt_is_retracted(self) -> None:
        """Pool 108; four are let in one by one that need 130 in the end. All have produced the same when it is full."""
        rows = [(10 * place, 2 + place, 30) for place in range(4)]
        run = play("sglang-0.5", rows, blocks=108, block_tokens=1)
        assert run.preemption_count.tolist() == [0, 0, 0, 1]
        assert run.finish_s.argmax() == 3

    def test_a_prompt_of_the_same_round_shares_nothing(self) -> None:
        from tokenfleet.domain.trace import PrefixTree

        tree = PrefixTree(parent=np.array([-1], dtype=np.int32), token_count=np.array([8], dtype=np.int32))
        rows = trace([(0, 8, 1), (0, 8, 1), (50, 9, 1)], prefix_node=np.zeros(3, dtype=np.int32), prefixes=tree)
        rules = engine(name="sglang-0.5", block_tokens=1, prefix_caching=True)
        assert replay(rows, fleet(physics(settings=rules))).cached_tokens.tolist() == [0, 0, 8]


class TestTensorRt:
    @pytest.mark.parametrize(("name", "first_ms"), [("trtllm-1.2", 570), ("vllm-0.32", 20)])
    def test_blocks_up_to_the_last_token_are_set_aside(self, name: str, first_ms: int) -> None:
        """Ten blocks of 16: the first needs 6 in the end, the second 5; so it waits, although 7 are free."""
        run = play(name, [(0, 40, 56), (5, 40, 40)], blocks=10, block_tokens=16)
        assert ms(run.first_token_s) == [10, first_ms]

    def test_it_never_preempts(self) -> None:
        preempted = 0
        for seed in range(100):
            runs = [
                replay(random_trace(draw, shared=True), drawn)
                for name in ("trtllm-1.2", "vllm-0.32")
                for draw in [np.random.default_rng(seed)]
                for drawn in [random_fleet(draw, name=name)]
            ]
            assert runs[0].preemption_count.sum() == 0
            preempted += runs[1].preemption_count.sum()
        assert preempted > 40, "where vLLM does"

    def test_a_request_whose_declared_tokens_exceed_the_pool_is_refused(self) -> None:
        assert play("trtllm-1.2", [(0, 10, 3)], blocks=3).status.tolist() == [Status.REJECTED_TOO_LONG]
        assert play("trtllm-1.2", [(0, 10, 2)], blocks=3).status.tolist() == [Status.FINISHED]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vllm-0.32", "follows the vLLM V1 scheduler"),
        ("sglang-0.5", "prefill first"),
        ("trtllm-1.2", "guaranteed-no-evict"),
        ("lmdeploy-0.6", "No batching rules of 'lmdeploy' are known"),
    ],
)
def test_a_person_is_told_whose_rules_are_followed(name: str, text: str) -> None:
    assert text in rule_set_note(name)
