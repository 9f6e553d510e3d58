from dataclasses import replace

import numpy as np
import pytest

from tokenfleet import performance
from tokenfleet.domain.trace import Trace
from tokenfleet.planner import plan
from tokenfleet.planner.floors import decode_step_s, prefill_alone_s
from tokenfleet.planner.rough import rough
from tokenfleet.planner.traffic import Traffic
from unit.planner import toy

PRICES = [toy.price("h100_sxm", 3.0)]
pytestmark = pytest.mark.usefixtures("toy_world")


def steady(rate, seconds=60, inputs=500, outputs=50):
    count = rate * seconds
    return Trace(
        arrival_s=np.arange(count) / rate,
        input_tokens=np.full(count, inputs, dtype=np.int32),
        output_tokens=np.full(count, outputs, dtype=np.int32),
    )


@pytest.fixture
def memory(monkeypatch):
    """Toy replicas hold their blocks whatever the bytes say."""
    monkeypatch.setattr(performance, "sequences_at", lambda _budget, _deployment, tokens: min(64, 320_000 // tokens))


def figures(made):
    return {each.name: each for each in made.figures}


def test_each_rule_is_its_formula(memory):
    replica, trace = toy.replica(), steady(20)
    made = plan(toy.question([replica], PRICES), trace)
    found = figures(made.rough)
    # A full replica has full steps: prompts share them, as decoding sequences share theirs.
    per_s = 2048 / (prefill_alone_s(replica, 2048) - 1e-3)
    full_s = 500 / per_s + 49 * decode_step_s(replica, 64, 525) / 64
    assert found["tokens per second"].replica_count == pytest.approx(20 * full_s)
    assert found["KV at p95 context"].replica_count == found["KV at p50 context"].replica_count
    assert found["spike"].replica_count == pytest.approx(20 * 500 / per_s, rel=0.01)
    assert made.rough.replayed_count == made.chosen.carrying_count
    assert str(made.chosen.carrying_count) in made.rough.why


def test_the_full_replica_of_the_formula_does_what_one_does_whose_queue_never_empties(memory):
    # Short prompts and large steps: many share one, and each alone would take almost as long as all of them.
    replica = toy.replica(step_ms=20.0, token_us=4.0)
    made = plan(toy.question([replica], PRICES), steady(40, inputs=200, outputs=40))
    figure = figures(made.rough)["tokens per second"]
    replayed = made.peak_rate_per_s / made.saturated_rate_per_s * made.chosen.carrying_count
    assert figure.replica_count == pytest.approx(replayed, rel=0.3)


def test_longer_contexts_ask_for_more_memory(memory):
    trace = steady(20)
    inputs = trace.input_tokens.copy()
    inputs[::10] = 15_000
    made = plan(toy.question([toy.replica()], PRICES), replace(trace, input_tokens=inputs))
    found = figures(made.rough)
    assert found["KV at p95 context"].replica_count > found["KV at p50 context"].replica_count


def test_the_sentence_names_what_disagrees(memory):
    made = plan(toy.question([toy.replica()], PRICES), steady(20))
    traffic = Traffic(steady(20), (0.0, 60.0))

    def why(carrying):
        return rough(replace(made, chosen=replace(made.chosen, carrying_count=carrying)), traffic).why

    most = max(each.replica_count for each in made.rough.figures)
    assert "more than any formula" in why(10 * (1 + round(most)))
    assert why(1) != why(10 * (1 + round(most)))


def test_nothing_is_reckoned_without_a_fleet(memory):
    impossible = toy.slo(ttft=1e-4)
    assert plan(toy.question([toy.replica()], PRICES, promise=impossible), steady(5)).rough is None
