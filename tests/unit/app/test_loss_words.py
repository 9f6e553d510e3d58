"""How losses read."""

from dataclasses import replace

import pytest

from tokenfleet.app.loss_words import loss_lines, places, survived
from tokenfleet.domain.survival import Moment, Recovery, Redundancy, Rollout, Zone
from tokenfleet.planner import plan
from unit.planner import toy
from unit.planner.conftest import toy_world  # noqa: F401 - a fixture


@pytest.fixture
def made(toy_world):  # noqa: F811 - the fixture, not the import
    asked = toy.question([toy.replica(slots=16, tensor_parallel=2)], [toy.price("h100_sxm", 3.0)])
    zones = (Zone(name="a"), Zone(name="b"), Zone(name="c"))
    asked = replace(
        asked,
        redundancy=Redundancy(node_count=1, zone_count=1, zones=zones),
        rollout=Rollout(ready_after_s=300.0),
    )
    return plan(asked, toy.trace(count=600, rate=40.0))


def recovered(after_s, left_s=300.0):
    return Recovery(after_s=after_s, demand_left_s=left_s, window_s=60.0)


def with_moment(made, **more):
    case = made.losses[0]
    seen = Moment(
        time_s=1.0,
        replicas=(0,),
        lost_request_count=2,
        unfinished_count=0,
        longest_wait_s=3.0,
        kept=False,
        slo_after=(),
        slo_overall=(),
        recovery=recovered(0.0),
    )
    changed = replace(made, losses=(replace(case, moment=replace(seen, **more)), *made.losses[1:]))
    return loss_lines(changed)[0].note


def test_each_loss_is_a_line_and_what_was_asked_for_is_a_sentence(made):
    assert places(made) == "replicas stand 1 in zone a, 1 in zone b, 1 in zone c, on 3 nodes"
    assert survived(made) == "It keeps the promise without the worst node and without the worst zone too."
    lines = loss_lines(made)
    assert [line.lost for line in lines[:3]] == ["1 replica gone", "the fullest node in zone a gone", "zone a gone"]
    assert lines[0].spare == "1 more to spare, $6.00/h"
    assert lines[1].spare == "no further spare"
    assert "takes 15 min" in lines[4].note
    assert survived(replace(made, losses=())) == ""


def test_the_moment_of_a_loss_says_when_it_is_over(made):
    late = tuple(replace(each, kept=False) for each in made.slo_degraded[:1])
    assert "2 requests are lost and sent again, the slowest after 3.00 s" in with_moment(made)
    assert with_moment(made).endswith("served as promised throughout")
    assert "holds again after 6.00 s (in the window after: TTFT p99" in with_moment(
        made, recovery=recovered(6.0), slo_after=late
    )
    never = with_moment(made, recovery=recovered(None), slo_after=late)
    assert "the promise does not hold again within the 5 min of demand that follow; a longer one may show when" in never
    soon = with_moment(made, recovery=recovered(None, 20.0), slo_after=late)
    assert "nobody can tell: 20 s of demand follow, and 60 s are judged together (in the window" in soon
    assert "as far as the 5 min of demand that follow show" in with_moment(made, recovery=recovered(200.0))
    assert "over all requests: TTFT p99" in with_moment(made, slo_overall=late)


def test_what_is_kept_in_the_window_after_does_not_hold_again(made):
    """The window after the loss keeps the promise, and one that begins in it does not: nothing came back."""
    rolling = with_moment(made, kept=True, recovery=recovered(93.0))
    assert "holds again" not in rolling
    assert rolling.endswith(
        "those who arrive in the window after are served as promised; of windows of 60 s that begin later none breaks "
        "it from 93 s on"
    )
    assert with_moment(made, kept=True, recovery=recovered(200.0)).endswith(
        "from 3 min 20 s on, as far as the 5 min of demand that follow show"
    )
    assert with_moment(made, kept=True, recovery=recovered(None)).endswith(
        "windows of 60 s that begin later break it now and then within the 5 min of demand that follow; a longer one "
        "may show when"
    )
    late = tuple(replace(each, kept=False) for each in made.slo_degraded[:1])
    assert "holds again after 6.00 s" in with_moment(made, recovery=recovered(6.0), slo_after=late)


def test_nobody_is_said_to_come_back_who_does_not_and_no_change_tried_that_the_demand_is_too_short_for(made):
    assert "2 requests are lost for good; those who" in with_moment(made, longest_wait_s=None)
    assert "requests are lost; those" in with_moment(made, longest_wait_s=None, lost_request_count=0)
    seen = Moment(
        time_s=1.0,
        replicas=(),
        lost_request_count=0,
        unfinished_count=0,
        longest_wait_s=None,
        kept=True,
        slo_after=(),
        slo_overall=(),
        recovery=recovered(0.0),
    )
    rollout = replace(made.losses[4], moment=seen)
    (short,) = loss_lines(replace(made, losses=(rollout,)))
    assert short.note.endswith(
        "takes 15 min; those who arrive in the 5 min of it that were replayed are served as promised"
    )
    (long,) = loss_lines(replace(made, losses=(replace(rollout, lasts_s=200.0),)))
    assert long.note.endswith("those who arrive then are served as promised throughout")
