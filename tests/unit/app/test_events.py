"""Events that strike the same replicas, and a change of version under them."""

from dataclasses import replace
from pathlib import Path

import pytest

from reference.fleets import fleet, physics
from tokenfleet.app.events import happenings_of
from tokenfleet.app.scenario import load_scenario
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.survival import Rollout
from tokenfleet.domain.world import Happening
from tokenfleet.planner.moment import version_change

SCENARIO = """\
name: struck
workload: {lengths: {input: 700:1500, output: 140:300}, mean_rate: 8, duration: 10min}
model: meta-llama/Llama-3.1-8B-Instruct
slo: {ttft_p95: 2s}
"""
DRAINED = "{at: 30s, what: drain, replicas: [0], back_after: 20s}"


def eight() -> Fleet:
    usual = physics()
    return fleet(replace(usual, deployment=replace(usual.deployment, gpu="l40s")), count=8)


@pytest.fixture
def becomes(tmp_path: Path):
    def of(events: str, others: tuple[Happening, ...] = (), *, replaces: bool = False) -> list[tuple[object, ...]]:
        (tmp_path / "struck.yaml").write_text(f"{SCENARIO}events: [{events}]\n")
        asked = load_scenario(tmp_path / "struck.yaml")
        found = happenings_of(asked, eight(), others=others, replaces=replaces)
        return [(each.time_s, each.kind, each.replicas) for each in found]

    return of


@pytest.mark.parametrize(
    ("events", "back"),
    [
        (f"{DRAINED}, {{at: 40s, replicas: [0]}}", []),
        (f"{DRAINED}, {{at: 40s, replicas: [0], back_after: 30s}}", [(70.0, "back", (0,))]),
        (f"{DRAINED}, {{at: 40s, replicas: [0], back_after: 5s}}", [(50.0, "back", (0,))]),
        (f"{DRAINED}, {{at: 40s, replicas: [1], back_after: 5s}}", [(45.0, "back", (1,)), (50.0, "back", (0,))]),
        ("{at: 9s, replicas: 2, back_after: 9s}, {at: 12s, replicas: [1]}", [(18.0, "back", (0,))]),
    ],
)
def test_a_replica_is_back_when_the_last_event_on_it_has_ended(becomes, events: str, back: list) -> None:
    assert [each for each in becomes(events) if each[1] == "back"] == back


def test_what_an_autoscaler_replaced_is_there_for_later_events(becomes) -> None:
    events = f"{{at: 10s, replicas: [0]}}, {DRAINED}"
    assert (50.0, "back", (0,)) not in becomes(events)
    assert (50.0, "back", (0,)) in becomes(events, replaces=True)
    reclaimed = (Happening(time_s=40.0, kind="fail", replicas=(0,)),)
    assert (50.0, "back", (0,)) not in becomes(events, reclaimed, replaces=True)


def test_the_other_event_that_goes_on_still_slows(tmp_path: Path) -> None:
    slow = "{at: 1s, what: slow, factor: 3, back_after: 9s}, {at: 2s, what: slow, factor: 2, back_after: 20s}"
    (tmp_path / "struck.yaml").write_text(f"{SCENARIO}events: [{slow}]\n")
    found = happenings_of(load_scenario(tmp_path / "struck.yaml"), eight())
    assert [(each.time_s, each.step_time_factor) for each in found] == [
        (1.0, 3.0),
        (2.0, 2.0),
        (10.0, 2.0),
        (22.0, 1.0),
    ]


def test_a_new_version_is_not_ready_while_an_event_keeps_it_away(becomes) -> None:
    change = tuple(version_change(1, 10.0, Rollout(max_surge_count=1, max_unavailable_count=0, ready_after_s=20.0)))
    assert (30.0, "ready", (1,)) in becomes("{at: 15s, replicas: [1], back_after: 5s}", change)
    assert not any(each[1] == "back" for each in becomes("{at: 15s, replicas: [1], back_after: 5s}", change))
    assert (45.0, "ready", (1,)) in becomes("{at: 15s, replicas: [1], back_after: 30s}", change)
    assert not any(each[1] in ("ready", "back") for each in becomes("{at: 15s, replicas: [1]}", change))
