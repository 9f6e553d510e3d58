from dataclasses import replace

import pytest

from tokenfleet.planner import Spread, plan
from unit.planner import toy

pytestmark = pytest.mark.usefixtures("toy_world")

PRICES = [toy.price("h100_sxm", 3.0), toy.price("a100_sxm_80gb", 1.5), toy.price("l40s", 0.9)]
CANDIDATES = [
    toy.replica(gpu=gpu, precision=precision, slots=slots, step_ms=step_ms)
    for gpu, step_ms in (("h100_sxm", 8.0), ("a100_sxm_80gb", 15.0), ("l40s", 24.0))
    for precision, slots in (("bf16", 8), ("fp8", 16))
]


class Done:
    def __init__(self, record):
        self._record = record

    def result(self):
        return self._record


class Workers:
    """Runs at once what is handed over, and counts."""

    def __init__(self):
        self.submitted = 0

    def __call__(self, trace, fleet, window_s, hopeless):
        self.submitted += 1
        return Done(toy.replay(trace, fleet, peak_window_s=window_s, hopeless=hopeless))


def alike(one, other):
    assert (one.chosen, one.runners_up, one.outpriced) == (other.chosen, other.runners_up, other.outpriced)
    assert (one.curve, one.limits, one.bill, one.reasons) == (other.curve, other.limits, other.bill, other.reasons)
    assert one.replayed_count == other.replayed_count


@pytest.mark.parametrize("width", [1, 3, 50])
def test_what_runs_ahead_changes_no_plan_and_is_not_run_again(width):
    trace, question = toy.trace(count=600, rate=60.0), toy.question(CANDIDATES, PRICES)
    ran = []

    def here(*arguments, **more):
        ran.append(arguments)
        return toy.replay(*arguments, **more)

    workers = Workers()
    spread = plan(question, trace, replay=Spread(here, workers, width))
    alike(spread, plan(question, trace))
    assert workers.submitted > 8
    # What is foreseen can become needless: the replay before it may speak for it.
    wasted = len(ran) + workers.submitted - spread.replayed_count
    assert 0 <= wasted <= 1


def test_nobody_else_gets_a_replay_that_runs_ahead():
    trace, fleet = toy.trace(), toy.question(CANDIDATES, PRICES)
    workers = Workers()
    spread = Spread(lambda *_, **__: "here", workers, 2)
    group = plan(fleet, trace).fleet
    window_s = (0.0, 5.0)
    spread.ahead(trace, group, window_s, None)
    spread.ahead(trace, group, window_s, None)
    assert workers.submitted == 1
    assert spread(replace(trace), group, peak_window_s=window_s) == "here"
    assert spread(trace, group, peak_window_s=(0.0, 6.0)) == "here"
    assert spread(trace, group, peak_window_s=window_s, telemetry_interval_s=1.0) == "here"
    assert spread(trace, replace(group, router="round_robin"), peak_window_s=window_s) == "here"
    assert spread(trace, group, peak_window_s=window_s) != "here"
    assert spread(trace, group, peak_window_s=window_s) == "here", "taken once"
