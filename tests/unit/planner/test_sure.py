"""Who is sure, where the most that is worth asking says nothing of a few more."""

from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.domain.slo import SloResult
from tokenfleet.domain.trace import PrefixTree
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.screen import screen
from tokenfleet.planner.search import Search
from tokenfleet.planner.sure import slow_fleet
from tokenfleet.planner.traffic import Traffic
from tokenfleet.planner.verdict import UNSEEN, Verdict
from unit.planner import toy

pytestmark = pytest.mark.usefixtures("toy_world")

PRICES = [toy.price("h100_sxm", 3.0)]
PLANNED = 4


def shared_prompts():
    trace = toy.trace(count=300)
    tree = PrefixTree(parent=np.array([-1], dtype=np.int32), token_count=np.array([64], dtype=np.int32))
    return replace(trace, prefix_node=np.zeros(trace.request_count, dtype=np.int32), prefixes=tree)


def only(*kept):
    """So many replicas keep the promise, and no others; far from it."""

    def replay(_self, _candidate, count, _whole=None):
        seconds = 0.5 if count in kept else 2.0
        result = SloResult(
            name="ttft_p99",
            unit="s",
            promised=1.0,
            predicted=seconds,
            predicted_low=None,
            predicted_high=None,
            sample_count=100,
            kept=seconds <= 1.0,
        )
        return Verdict((result,), (result,), UNSEEN)

    return replay


def sure_of(monkeypatch, kept, *, caching=True, router="least_in_flight"):
    asked = replace(toy.question([toy.replica(caching=caching)], PRICES), router=router)
    traffic = Traffic(shared_prompts(), (0.0, 20.0))
    (candidate,) = screen(asked, traffic, (), Reporter(None)).candidates
    replays = Replays(asked.slo, router)
    monkeypatch.setattr(Search, "replay", only(PLANNED))
    chosen = Search(replays, traffic, asked, Reporter(None)).answered(candidate, PLANNED, only(PLANNED)(0, 0, PLANNED))
    monkeypatch.setattr(Search, "replay", only(*kept))
    found, _ = slow_fleet(replays, traffic, asked, chosen, [candidate])
    return None if found is None else found.carrying_count


@pytest.mark.parametrize(("kept", "found"), [((6,), 6), ((7,), 7), ((8,), None)])
def test_a_few_more_are_asked_where_each_more_finds_less_in_its_cache(monkeypatch, kept, found):
    assert sure_of(monkeypatch, kept) == found


@pytest.mark.parametrize("changes", [{"caching": False}, {"router": "prefix_affinity"}])
def test_they_are_not_where_more_find_as_much(monkeypatch, changes):
    assert sure_of(monkeypatch, (6,), **changes) is None
