"""The last few replays: what is asked again is not replayed again, and what is asked otherwise is."""

from dataclasses import replace

import numpy as np
import pytest

from tokenfleet import simulator
from tokenfleet.app import lately
from tokenfleet.app.lately import Lately
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import World
from unit.planner import toy

TRACE = toy.trace(count=200, rate=8.0)


def fleet_of(count: int = 2) -> Fleet:
    return Fleet(groups=(ReplicaGroup(replica=toy.replica(), replica_count=count),))


def copied(trace: Trace) -> Trace:
    """Equal calls, in a trace of their own."""
    return replace(trace, arrival_s=trace.arrival_s.copy(), input_tokens=trace.input_tokens.copy())


class Counted:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, *asked, **more):
        self.count += 1
        return simulator.replay(*asked, **more)


def test_equal_calls_to_the_same_replicas_are_replayed_once():
    behind, fleet = Counted(), fleet_of()
    replay = Lately(behind)
    first = replay(TRACE, fleet, peak_window_s=(0.0, 5.0))
    again = replay(copied(TRACE), replace(fleet), peak_window_s=(0.0, 5.0))
    assert again is first
    assert behind.count == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda trace, fleet: (replace(trace, arrival_s=trace.arrival_s + np.spacing(trace.arrival_s)), fleet, {}),
        lambda trace, fleet: (replace(trace, output_tokens=trace.output_tokens + 1), fleet, {}),
        lambda trace, fleet: (replace(trace, priority=np.zeros(len(trace.arrival_s), dtype=np.int32)), fleet, {}),
        lambda trace, fleet: (replace(trace, time_of_day_s=60.0), fleet, {}),
        lambda trace, _fleet: (trace, fleet_of(3), {}),
        lambda trace, fleet: (trace, replace(fleet, router="round_robin"), {}),
        lambda trace, fleet: (trace, replace(fleet, groups=(replace(fleet.groups[0], berth=0),)), {}),
        lambda trace, fleet: (trace, fleet, {"peak_window_s": (0.0, 4.0)}),
        lambda trace, fleet: (trace, fleet, {"telemetry_interval_s": 1.0}),
        lambda trace, fleet: (trace, fleet, {"world": World()}),
    ],
)
def test_whatever_changes_a_replay_is_replayed(change):
    behind, fleet = Counted(), fleet_of()
    replay = Lately(behind)
    replay(TRACE, fleet, peak_window_s=(0.0, 5.0))
    trace, other, more = change(copied(TRACE), fleet)
    asked = {"peak_window_s": (0.0, 5.0)} | more
    found = replay(trace, other, **asked)
    assert behind.count == 2
    expected = simulator.replay(trace, other, **asked)
    np.testing.assert_array_equal(found.first_token_s, expected.first_token_s)


def test_what_was_asked_longest_ago_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(lately, "_MOST_REQUESTS", 2 * TRACE.request_count)
    behind, fleets = Counted(), [fleet_of(count) for count in (1, 2, 3)]
    replay = Lately(behind)
    for fleet in (*fleets[:2], fleets[0], fleets[2]):
        replay(TRACE, fleet)
    assert behind.count == 3
    replay(TRACE, fleets[0])
    assert behind.count == 3
    replay(TRACE, fleets[1])
    assert behind.count == 4
