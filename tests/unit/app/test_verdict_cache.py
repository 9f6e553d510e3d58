import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from tokenfleet import simulator
from tokenfleet.app import verdict_cache
from tokenfleet.app.replay_cache import ReplayCache
from tokenfleet.app.verdict_cache import VerdictCache
from tokenfleet.contract import judged_again, without_limits
from tokenfleet.domain.slo import Deadline, LatencyTarget, RateTarget, Slo
from tokenfleet.planner import Asked, replays
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.spread import Spread
from tokenfleet.planner.traffic import Traffic
from unit.planner import toy

WINDOW_S = 0.2, 0.6
LIMITS = [0.004, 0.006, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0, 10.0]


@pytest.fixture(autouse=True)
def _looked_at(monkeypatch):
    monkeypatch.setattr(replays, "FEW_REQUESTS", 10)


@pytest.fixture
def kept(tmp_path):
    cache = ReplayCache(tmp_path / "replays")
    assert cache.open()
    return cache


class AtOnce(VerdictCache):
    """One that writes every line at once."""

    def keep(self, asked, verdict):
        super().keep(asked, verdict)
        self.flush()


def door(ttft, kept=None, told=None):
    """Replays of a promise, and how many were run for it."""
    ran = []

    def replay(*question, **more):
        ran.append(question)
        return simulator.replay(*question, **more)

    verdicts = None if kept is None else AtOnce(kept, (lambda _: None) if told is None else told.append)
    return Replays(toy.slo(ttft=ttft), "least_in_flight", Spread(replay, lambda *_: None, 0, verdicts)), ran


def asked_of(replays_, traffic, replica, peak_only):
    quick = replays_.quick(traffic, replica, 1, peak_only=peak_only)
    return quick, quick.broken, quick.excess


@pytest.mark.parametrize("peak_only", [False, True])
@pytest.mark.parametrize("first", LIMITS)
def test_every_other_limit_finds_what_its_own_replay_says(kept, first, peak_only):
    traffic, replica = Traffic(toy.trace(rate=500.0), WINDOW_S), toy.replica(slots=1)
    known, ran = door(first, kept)
    cut = asked_of(known, traffic, replica, peak_only)[0].cut
    assert len(ran) == 1
    for limit in LIMITS:
        again, ran = door(limit, kept)
        alone, _ = door(limit)
        assert asked_of(again, traffic, replica, peak_only) == asked_of(alone, traffic, replica, peak_only)
        # Only a looser promise than that of a stopped replay may have to be replayed.
        assert not ran or (cut and limit > first)


@pytest.mark.parametrize("limit", LIMITS)
def test_behind_the_look_that_stopped_a_replay_its_end_says_nothing_of_further_looks(kept, limit):
    traffic, replica = Traffic(toy.trace(rate=500.0), WINDOW_S), toy.replica(slots=1)
    strict, _ = door(LIMITS[0], kept)
    assert asked_of(strict, traffic, replica, False)[0].cut
    assert not strict.verdict(traffic, replica, 1).cut
    again, _ = door(limit, kept)
    alone, _ = door(limit)
    assert asked_of(again, traffic, replica, False) == asked_of(alone, traffic, replica, False)


def test_some_limits_stop_and_some_do_not():
    traffic, replica = Traffic(toy.trace(rate=500.0), WINDOW_S), toy.replica(slots=1)
    cuts = [door(limit)[0].quick(traffic, replica, 1).cut for limit in LIMITS]
    assert True in cuts
    assert False in cuts


def test_a_whole_replay_that_nobody_looked_at_says_nothing_about_looks(kept):
    traffic, replica = Traffic(toy.trace(rate=500.0), WINDOW_S), toy.replica(slots=1)
    whole = door(0.02, kept)[0].verdict(traffic, replica, 1)
    again, ran = door(0.02, kept)
    assert again.quick(traffic, replica, 1).cut
    assert len(ran) == 1
    again, ran = door(0.02, kept)
    assert again.verdict(traffic, replica, 1) == whole
    assert again.quick(traffic, replica, 1).cut
    assert not ran


@pytest.mark.parametrize("peak_only", [False, True])
@pytest.mark.parametrize("limit", LIMITS)
def test_who_asks_about_the_peak_alone_and_who_asks_about_all_look_at_moments_of_their_own(kept, limit, peak_only):
    traffic, replica = Traffic(toy.trace(rate=500.0), WINDOW_S), toy.replica(slots=1)
    asked_of(door(limit, kept)[0], traffic, replica, not peak_only)
    again, ran = door(limit, kept)
    alone, _ = door(limit)
    own = asked_of(alone, traffic, replica, peak_only)
    assert asked_of(again, traffic, replica, peak_only) == own
    # What is kept in the end need not be looked at on the way.
    assert not ran or own[0].broken


def test_other_clauses_find_nothing(kept):
    traffic, replica = Traffic(toy.trace(rate=500.0), WINDOW_S), toy.replica(slots=1)
    verdicts = VerdictCache(kept)
    one, ran = door(0.02, kept)
    one.quick(traffic, replica, 1)
    other = replace(one.slo, latency=(*one.slo.latency, LatencyTarget(metric="e2e", quantile=0.5, limit_s=1.0)))
    asked = Asked(traffic.trace, one.fleet(replica, 1), WINDOW_S, None, other, None)
    assert not verdicts.knows(asked)
    assert len(ran) == 1


def test_edited_sources_find_nothing(kept, monkeypatch):
    traffic, replica = Traffic(toy.trace(rate=500.0), WINDOW_S), toy.replica(slots=1)
    door(0.02, kept)[0].quick(traffic, replica, 1)
    monkeypatch.setattr(verdict_cache, "source_digest", lambda: "edited")
    again, ran = door(0.02, kept)
    again.quick(traffic, replica, 1)
    assert len(ran) == 1


def test_a_damaged_line_is_replayed_again_and_said(kept):
    traffic, replica = Traffic(toy.trace(rate=500.0), WINDOW_S), toy.replica(slots=1)
    first = door(0.02, kept)[0].quick(traffic, replica, 1)
    (path,) = kept.folder.glob("*.verdicts")
    whole = path.read_bytes()
    for damaged in (whole[:-20], b"x" + whole, whole.replace(b"looks", b"books"), b"\xff\n"):
        path.write_bytes(damaged)
        told = []
        again, ran = door(0.02, kept, told)
        assert again.quick(traffic, replica, 1) == first
        assert (len(ran), len(told)) == (1, 1)
        assert "damaged" in told[0]


def test_what_is_not_written_yet_is_found_all_the_same(kept):
    traffic, replica = Traffic(toy.trace(rate=500.0), WINDOW_S), toy.replica(slots=1)
    one, _ = door(0.02, kept)
    verdicts = VerdictCache(kept)
    asked = Asked(traffic.trace, one.fleet(replica, 1), WINDOW_S, None, one.slo, None)
    verdicts.keep(asked, door(0.02)[0].verdict(traffic, replica, 1))
    assert verdicts.knows(asked)
    assert not VerdictCache(kept).knows(asked)
    verdicts.flush()
    verdicts.flush()
    assert VerdictCache(kept).knows(asked)
    (path,) = kept.folder.glob("*.verdicts")
    assert path.read_bytes().count(b"\n") == 1


def test_writers_side_by_side_leave_whole_lines(kept):
    traffic = Traffic(toy.trace(rate=500.0), WINDOW_S)
    kinds = [toy.replica(slots=slots) for slots in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda replica: door(0.02, kept)[0].quick(traffic, replica, 1), kinds * 4))
    told = []
    again, ran = door(0.02, kept, told)
    for replica in kinds:
        again.quick(traffic, replica, 1)
    assert not ran
    assert not told


def test_limits_are_all_that_a_promise_is_measured_without():
    slo = Slo(
        latency=(LatencyTarget(metric="ttft", quantile=0.99, limit_s=2.0),),
        error_rate_fraction=0.01,
        rejection_rate_fraction=0.02,
        queue_limit_count=5,
        class_rates=(RateTarget(kind="error_rate", limit_fraction=0.1, traffic_class="a"),),
        deadlines=(Deadline(within_s=60.0, stretch_factor=1.5),),
    )
    bare = without_limits(slo)
    assert bare == without_limits(replace(slo, error_rate_fraction=0.5, queue_limit_count=9))
    assert bare != without_limits(replace(slo, queue_limit_count=None))
    assert bare != without_limits(replace(slo, deadlines=(Deadline(within_s=61.0),)))
    found = [(value, 7) for value in (1.0, 0.0, None, 0.2, 5.0, 1.6)]
    again = judged_again(slo, found)
    assert [result.kept for result in again] == [True, True, False, False, True, False]
    assert [(result.predicted, result.sample_count) for result in again] == found


def test_lines_are_plain_text(kept):
    traffic, replica = Traffic(toy.trace(rate=500.0), WINDOW_S), toy.replica(slots=1)
    door(0.02, kept)[0].quick(traffic, replica, 1)
    (path,) = kept.folder.glob("*.verdicts")
    line = json.loads(path.read_bytes().split(b" ", 2)[2])
    assert np.shape(line["looks"]["seen"][0])[0] == 2
    assert path.stat().st_mode & 0o777 == 0o600
