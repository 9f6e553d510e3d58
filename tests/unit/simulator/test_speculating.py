"""Speculative decoding and rounds of decode between prefills, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from reference.fleets import MS, engine, fleet, physics, step_time, trace
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.replica import Speculation
from tokenfleet.simulator import replay


def drafting(count, acceptance, *, draft_ps=None, **settings):
    rules = engine(speculation=Speculation(draft_token_count=count, acceptance_fraction=acceptance), **settings)
    time = replace(step_time(tokens=max(64, rules.max_sequence_count * (count + 1))), draft_ps=draft_ps)
    return physics(settings=rules, time=time)


def test_what_is_kept_shortens_an_answer_and_no_more():
    # A prompt's step gives one token, each later step three: 1 + 3 + 3, the last of which keeps one draft too many.
    run = replay(trace([(0, 10, 6)]), fleet(drafting(2, 1.0)))
    assert run.finish_s[0] == pytest.approx(0.030)
    assert run.gaps.count.sum() == 2
    run = replay(trace([(0, 10, 6)]), fleet(drafting(2, 0.0)))
    assert run.finish_s[0] == pytest.approx(0.060)


def test_drafting_takes_its_time_in_steps_that_decode():
    drafts = np.array([0, 3, 4, 5, 5, 5, 5, 5, 5]) * MS
    run = replay(trace([(0, 10, 7)]), fleet(drafting(2, 1.0, draft_ps=drafts)))
    assert run.first_token_s[0] == pytest.approx(0.010)
    assert run.finish_s[0] == pytest.approx(0.010 + 2 * 0.013)


def test_the_mean_is_that_of_the_acceptance():
    asked = Speculation(draft_token_count=3, acceptance_fraction=0.7)
    assert asked.mean_step_tokens == pytest.approx(1 + 0.7 + 0.49 + 0.343)
    run = replay(trace([(1e6 * row, 10, 200) for row in range(60)]), fleet(drafting(3, 0.7)))
    steps = (run.finish_s - run.first_token_s) / 0.010
    assert 199 * 60 / steps.sum() == pytest.approx(asked.mean_step_tokens, rel=0.02)
    assert steps.std() > 1


def test_luck_belongs_to_the_request_not_to_its_company():
    alone = replay(trace([(0, 10, 100)]), fleet(drafting(3, 0.6)))
    several = replay(trace([(0, 10, 100), (0, 20, 80), (0, 5, 120)]), fleet(drafting(3, 0.6)))
    assert several.finish_s[0] == alone.finish_s[0]


def test_without_drafts_nothing_is_drawn_and_steps_run_together():
    idle = replay(trace([(0, 10, 50)]), fleet(drafting(0, 0.9)))
    plain = replay(trace([(0, 10, 50)]), fleet())
    assert idle.finish_s[0] == plain.finish_s[0]


def test_a_sequence_behind_a_long_prompt_drafts_what_the_budget_has_left():
    """Of 12 tokens the prompt takes 10 in each step, so the other one drafts a single token instead of three."""
    tight = {"max_batched_tokens": 12, "max_sequence_count": 3, "long_prefill_tokens": 10}
    run = replay(trace([(0, 100, 1), (0, 2, 9)]), fleet(drafting(3, 1.0, **tight)))
    assert run.finish_s[1] == pytest.approx(0.050)
    assert run.finish_s[0] == pytest.approx(0.100)
    alone = replay(trace([(0, 2, 9)]), fleet(drafting(3, 1.0, **tight)))
    assert alone.finish_s[0] == pytest.approx(0.030)


def test_the_more_urgent_one_takes_the_blocks_and_drafts_on():
    """Nine blocks of four tokens: the first one fills them when the second, which comes first, is there."""
    rows = replace(trace([(0, 16, 40), (15, 4, 9)]), priority=np.array([5, 0], dtype=np.int32))
    tight = replace(drafting(1, 1.0, scheduling="priority"), kv_block_count=15)
    run = replay(rows, fleet(tight))
    assert run.preemption_count.tolist() == [0, 0]
    tight = replace(tight, kv_block_count=14)
    run = replay(replace(rows, output_tokens=np.array([40, 30], dtype=np.int32)), fleet(tight))
    assert run.preemption_count[0] > 0
    assert run.preemption_count[1] == 0


def test_what_is_refused():
    with pytest.raises(BadInput) as caught:
        replay(trace([(0, 10, 5)]), fleet(drafting(8, 1.2, max_batched_tokens=32, long_prefill_tokens=8)))
    assert {problem.where.removeprefix("fleet.groups[0].engine.") for problem in caught.value.problems} == {
        "speculation.acceptance_fraction",
        "max_batched_tokens",
        "long_prefill_tokens",
    }
    with pytest.raises(BadInput, match="no engine of today has both"):
        replay(trace([(0, 10, 5)]), fleet(drafting(1, 0.5, preemption="swap")))
    with pytest.raises(BadInput, match="take sglang"):
        replay(trace([(0, 10, 5)]), fleet(physics(settings=engine(prefill_decode_interval_count=2))))


def test_rounds_of_decode_come_between_prefills():
    # A step is 10 ms. Prompt 2 needs three rounds of 4 tokens; the other request decodes meanwhile.
    requests = trace([(0, 4, 6), (5, 12, 1)])

    def finished(interval):
        rules = engine(
            name="sglang-0.5", max_batched_tokens=4, max_sequence_count=2, prefill_decode_interval_count=interval
        )
        run = replay(requests, fleet(physics(settings=rules)))
        return [round(time * 1e3) for time in run.finish_s]

    assert finished(0) == [90, 40]  # three prompts' rounds, then five of decode
    assert finished(1) == [90, 70]  # one of decode before each
    assert finished(2) == [80, 90]
    # Nobody decodes any more: prompts do not wait for rounds that would be empty.
    assert finished(50) == [60, 90]
