"""Events and bursts on pools that a scenario names."""

import json
from pathlib import Path

import numpy as np
import pytest

from commands import ended
from tokenfleet.app.named_bought import buy_named
from tokenfleet.app.scenario import load_scenario
from tokenfleet.domain.world import BatchLane, Happening, World
from tokenfleet.planner import Event, spike_of_pools
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.spike import around, with_event
from tokenfleet.planner.systems import with_lane_of
from unit.app.test_named_drill import ONE, TWO, log
from unit.app.test_named_plan import CHAIN, SHARED

EVENT = ("--at", "1min", "--duration", "1min", "--factor", "5")


class Quiet:
    def say(self, text): ...

    def step(self, step, /): ...

    def announce(self, text): ...


@pytest.fixture
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


def spiked(capsys, text, *options):
    Path("it.yaml").write_text(text)
    code, out, err = ended(capsys, "spike", "it.yaml", "--json", "--quiet", *options)
    assert (code, err) == (0, "")
    return json.loads(out)


def near(one, other):
    """Equal but for parts of a picosecond: times of stages are whole ones, those of one fleet are not quite."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(near(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(near, one, other))
    return other == (pytest.approx(one, abs=1e-11) if isinstance(one, float) else one)


def test_an_event_on_one_pool_that_takes_everything_is_that_on_the_fleet_that_it_is(capsys, here):
    fleet = spiked(capsys, ONE, *EVENT)
    found = spiked(capsys, ONE + "pools: {main: {}}\n", *EVENT)
    (pool,) = found["pools"]
    assert fleet["usual"] == pool["usual"]
    event, others = fleet["event"], found["event"]
    for key in ("usual_fleet", "endured", "late", "scale_back_s", "let_go"):
        assert event[key] is not None
        assert near(event[key], others[key])
    for key in ("needed", "added_replica_count", "trigger_s", "reserve_gpu_hours", "reserve_usd"):
        assert event[key] == pool[key]
    assert pool["added_replica_count"] > 0
    for key in ("request_count", "usual_request_count", "input_tokens", "output_tokens"):
        assert event["budget"][key] == pool[key]
    assert near(fleet["bursts"], found["bursts"])


def test_the_counts_are_the_least_of_all_pools_with_everybody_on_the_way_of_its_original(here):
    Path("two.csv").write_text(log())
    # Little requests alone go to the other pool, so that an event can ask more of one than of the other.
    Path("it.yaml").write_text(TWO.replace("ttft_p95: 2s", "ttft_p95: 450ms"))
    bought = buy_named(load_scenario(Path("it.yaml")), Quiet())
    event = Event(start_s=60.0, length_s=60.0, factor=6.0)
    names = ("little", "main-prefill", "main-decode")
    usual, who, ready_s = bought.system, {part.name: part.who for part in bought.parts}, dict.fromkeys(names, 30.0)
    trace = bought.traffic.trace
    found = spike_of_pools(bought.question, trace, usual, who, event, ready_after_s=ready_s)
    counts = tuple(pool.needed.carrying_count for pool in found.pools)
    planned = tuple(part.sized.carrying_count for part in usual.parts)
    assert found.endured.kept
    assert found.endured.replica_count == sum(counts) > sum(planned)
    assert [pool.added_replica_count for pool in found.pools] == [
        max(0, pool.needed.replica_count - part.sized.replica_count)
        for pool, part in zip(found.pools, usual.parts, strict=True)
    ]
    # Six times as many of each kind come to each pool: whoever was drawn for one keeps his copies there.
    for pool in found.pools:
        assert pool.request_count == pytest.approx(6 * pool.usual_request_count, rel=0.02)
    assert sum(pool.request_count for pool in found.pools[:2]) == pytest.approx(
        int(((trace.arrival_s >= 60.0) & (trace.arrival_s < 120.0)).sum()) * 6, abs=3
    )
    surged = around(with_event(trace, event), event)
    replays = Replays.of(bought.question)
    for index, count in enumerate(counts):
        fewer = tuple(each - (at == index) for at, each in enumerate(counts))
        if count > 1:
            assert not usual.with_counts(fewer).judged(replays, surged).kept
    assert all(pool.warm is None and not pool.warming_is_asked for pool in found.pools)


@pytest.mark.long
def test_who_shares_gpus_comes_along_and_costs_nothing(capsys, here):
    text = SHARED.replace("duration: 60s", "duration: 3min").replace("pools:", "cold_start: 20s\npools:")
    found = spiked(capsys, text, "--at", "1min", "--duration", "30s", "--factor", "12")
    embed, main = found["pools"]
    assert embed["needed"]["replica_count"] == main["needed"]["replica_count"] > main["usual"]["replica_count"]
    assert (embed["added_gpu_count"], embed["reserve_usd"]) == (0, 0.0)
    assert (main["added_gpu_count"], main["trigger_s"]) == (main["added_replica_count"], 40.0)
    late, endured = found["event"]["late"], found["event"]["endured"]
    assert late["replica_count"] == 2 * main["needed"]["replica_count"]
    assert (late["kept"], endured["kept"]) == (False, True)
    code, out, _ = ended(capsys, "spike", "it.yaml", "--at", "1min", "--duration", "30s", "--factor", "12", "--quiet")
    said = " ".join(out.split())
    assert code == 0
    assert "main: ask for" in said
    assert "embed: ask for" not in said
    assert "prompts sent ahead go to no pool that is named" in said
    assert "no prompt beginnings are shared" not in said


def test_ladders_stand_aside_and_no_pools_are_an_answer(capsys, here):
    rungs = "{give_up: cap_output, limit: 90, enter: {waiting: 6}, leave: {waiting: 2}}"
    Path("it.yaml").write_text(f"{CHAIN}ladder: {{queue_limit: 40, rungs: [{rungs}]}}\n")
    code, out, _ = ended(capsys, "spike", "it.yaml", "--quiet")
    said = " ".join(out.split())
    assert code == 0
    assert "Ladder" not in said
    assert "what ladders and bounds of queues of named pools do, tokenfleet simulate shows" in said
    assert "3 pools" in said
    found = spiked(capsys, CHAIN.replace("ttft_p95: 900ms", "ttft_p95: 30ms").replace("90s", "30s"))
    assert (found["usual"], found["pools"]) == (None, [])
    assert "ttft_p95 is" in found["why_not"][0]
    code, _, err = ended(capsys, "spike", "it.yaml", "--at", "2min", "--factor", "2", "--quiet")
    assert code == 2
    assert "the demand at 29.9 s" in " ".join(err.split())


def test_caps_of_all_pools_hold_in_an_event_and_those_of_single_ones_do_not(capsys, here):
    event = (*EVENT[:-1], "2", "--quiet")
    Path("it.yaml").write_text(ONE + "utilization_cap: 60%\npools: {main: {}}\n")
    said = " ".join(ended(capsys, "spike", "it.yaml", *event)[1].split())
    assert "the utilization_cap of 60% is kept at its peak, as in usual times" in said
    assert "an event may fill it more" not in said
    one_alone = ONE + "pools: {short: {takes: {input_up_to: 900}, utilization_cap: 60%}, main: {}}\n"
    Path("it.yaml").write_text(one_alone)
    said = " ".join(ended(capsys, "spike", "it.yaml", *event)[1].split())
    assert "The utilization_cap of short holds in usual times; an event may fill it more." in said
    assert "is kept at its peak" not in said


def test_what_happens_around_a_pool_leaves_it_its_lane():
    lane, batch = BatchLane(kept_count=3), np.array([True, False])
    ready = Happening(time_s=3.0, kind="ready", replicas=(1,))
    happens, usual = World(happenings=(ready,), absent=(1,)), World(batch=batch, lane=lane)
    both = with_lane_of(usual, happens)
    assert (both.happenings, both.absent, both.lane) == ((ready,), (1,), lane)
    assert both.batch is batch
    assert with_lane_of(usual, None) is usual
    assert with_lane_of(None, happens) is happens
    assert with_lane_of(None, None) is None
