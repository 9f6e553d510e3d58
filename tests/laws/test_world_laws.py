"""Laws that a replay keeps whatever happens around the fleet."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from reference.fleets import engine, fleet, physics, random_fleet, random_trace, trace, with_any_router
from reference.worlds import Recorder, random_world
from tokenfleet import contract
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.trace import Trace, rows_of
from tokenfleet.domain.world import Clients, Door, Happening, Leaving, World
from tokenfleet.simulator import replay

SEEDS = st.integers(0, 2**32 - 1)
LAWS = settings(max_examples=45, deadline=None)
WATCHED = settings(LAWS, max_examples=25)
"""Of runs that a controller watches tick by tick."""
GAVE_UP = (Status.CANCELLED, Status.TIMED_OUT)
SERVED = (Status.FINISHED, Status.REJECTED_TOO_LONG, Status.LOST, *GAVE_UP)
TURNED_AWAY = tuple(status for status in Status if status not in SERVED)


def surrounded(seed: int) -> tuple[Trace, Fleet, World]:
    draw = np.random.default_rng(seed)
    name = str(draw.choice(["vllm-0.32", "vllm-0.32", "sglang-0.5", "trtllm-1.2"]))
    drawn = with_any_router(draw, random_fleet(draw, name=name))
    rows = random_trace(draw, shared=bool(draw.random() < 0.5))
    count = sum(group.replica_count for group in drawn.groups)
    return rows, drawn, random_world(draw, count, rows.request_count, 1.5 * rows.duration_s + 0.5)


def columns(run: RunRecord) -> bytes:
    parts = (run.arrival_s, run.first_token_s, run.finish_s, run.cached_tokens, run.preemption_count, run.replica)
    return b"".join(part.tobytes() for part in (*parts, run.status, run.gaps.count)) + repr(run.busy).encode()


@LAWS
@given(SEEDS)
def test_every_request_ends_once_and_every_attempt_is_accounted_for(seed: int) -> None:
    rows, drawn, world = surrounded(seed)
    run = replay(rows, drawn, telemetry_interval_s=0.05, world=world)
    finished = run.status == Status.FINISHED
    assert (np.isfinite(run.finish_s) == finished).all()
    assert (run.turmoil.attempt_count >= 1).all()
    assert (run.turmoil.attempt_count <= world.clients.attempt_count).all()
    answered = finished | (run.status == Status.REJECTED_TOO_LONG)
    turmoil = run.turmoil
    attempts = answered.sum() + turmoil.refused_count + turmoil.lost_count
    assert turmoil.attempt_count.sum() == attempts + turmoil.cancelled_count + turmoil.timed_out_count
    assert turmoil.cancelled_count == (run.status == Status.CANCELLED).sum()
    assert ((run.replica == -1) == np.isin(run.status, TURNED_AWAY)).all()
    given_up = ~answered & (run.status != Status.CANCELLED)
    assert (run.turmoil.attempt_count[given_up] == world.clients.attempt_count).all()


@LAWS
@given(SEEDS)
def test_every_token_is_in_an_answer_or_wasted(seed: int) -> None:
    rows, drawn, world = surrounded(seed)
    run = replay(rows, drawn, world=world)
    finished = run.status == Status.FINISHED
    partial = run.turmoil.partial_output_tokens
    assert (partial[finished] == 0).all()
    assert (partial >= 0).all()
    assert (partial <= rows.output_tokens).all()
    assert run.turmoil.wasted_output_tokens >= partial.sum()
    gave_up = np.isin(run.status, GAVE_UP)
    assert np.isnan(run.first_token_s[~finished & ~gave_up]).all()
    assert (partial[gave_up & np.isfinite(run.first_token_s)] >= 1).all()
    if world.leaving is not None and world.leaving.after_tokens is not None and world.leaving.after_s is None:
        left = run.status == Status.CANCELLED
        over = partial[left] - world.leaving.after_tokens[left]
        engine = drawn.groups[0].replica.deployment.engine
        most = 2 + engine.receive_interval_count if engine.name.startswith("sglang") else 2
        assert ((over >= 0) & (over <= most)).all(), (
            "the engine knows within two steps; SGLang after its next look, too"
        )


@LAWS
@given(SEEDS)
def test_blocks_are_free_again_whatever_failed(seed: int) -> None:
    rows, drawn, world = surrounded(seed)
    last = replay(rows, drawn, telemetry_interval_s=0.05, world=world).telemetry
    assert last.running[-1].sum() == last.waiting[-1].sum() == 0
    assert (last.kv_used_fraction[-1] == 0.0).all()
    assert (last.kv_used_fraction >= 0.0).all()
    assert (last.kv_used_fraction <= 1.0).all()


@LAWS
@given(SEEDS)
def test_nothing_happens_before_its_cause(seed: int) -> None:
    rows, drawn, world = surrounded(seed)
    run = replay(rows, drawn, world=world)
    streams = (run.status == Status.FINISHED) & (run.output_tokens > 0)
    assert (run.first_token_s[streams] > run.arrival_s[streams]).all()
    assert (run.finish_s[streams] >= run.first_token_s[streams]).all()
    if world.closed_loop is None:
        np.testing.assert_array_equal(run.arrival_s, np.rint(rows.arrival_s * 1e12) / 1e12)
        return
    after = world.closed_loop.after
    follows = np.flatnonzero(after >= 0)
    ended = follows[run.status[after[follows]] == Status.FINISHED]
    rate = world.clients.read_tokens_per_s
    read_s = run.finish_s if rate is None else contract.read_s(run, rate)
    think_s = run.arrival_s[ended] - read_s[after[ended]]
    assert (think_s > -1e-9).all(), "a picosecond at least, but for what seconds as floats lose"
    np.testing.assert_allclose(think_s, np.maximum(world.closed_loop.delay_s[ended], 1e-12), atol=1e-9)


@LAWS
@given(SEEDS)
def test_each_replica_is_something_all_the_time(seed: int) -> None:
    rows, drawn, world = surrounded(seed)
    run = replay(rows, drawn, world=world)
    np.testing.assert_allclose(run.turmoil.state_s.sum(axis=1), run.end_s, rtol=1e-9)
    assert (run.turmoil.state_s >= 0.0).all()


@LAWS
@given(SEEDS)
def test_the_same_world_gives_the_same_bytes_watched_or_not(seed: int) -> None:
    first = replay(*surrounded(seed)[:2], world=surrounded(seed)[2])
    watched = replay(*surrounded(seed)[:2], world=surrounded(seed)[2], telemetry_interval_s=0.013)
    assert columns(first) == columns(watched)
    assert first.turmoil.decisions == watched.turmoil.decisions


@LAWS
@given(SEEDS)
def test_a_quiet_world_changes_nothing(seed: int) -> None:
    rows, drawn, _ = surrounded(seed)
    rows = replace(rows, arrival_s=np.rint(rows.arrival_s * 1e12) / 1e12)
    assert columns(replay(rows, drawn, world=World())) == columns(replay(rows, drawn))


@WATCHED
@given(SEEDS)
def test_a_controller_cannot_see_the_future(seed: int) -> None:
    """Cut the trace: up to the first arrival that is gone, the controller is shown the same."""
    rows, drawn, world = surrounded(seed)
    kept = rows.request_count // 2
    batch = None if world.batch is None else world.batch[:kept]
    leaving = None if world.leaving is None else first_leaving(world.leaving, kept)
    world = replace(world, closed_loop=None, tick_s=0.01)
    names = ("arrival_s", "input_tokens", "output_tokens", "prefix_node", "session", "priority")
    cut = {name: getattr(rows, name)[:kept] for name in names if getattr(rows, name) is not None}
    worlds = world, replace(world, batch=batch, leaving=leaving)
    assert_shown_the_same((rows, replace(rows, **cut)), drawn, worlds, rows.arrival_s[kept])


@WATCHED
@given(SEEDS)
def test_a_controller_cannot_see_output_lengths_of_running_requests(seed: int) -> None:
    draw = np.random.default_rng(seed)
    arrival_ms = np.cumsum(draw.exponential(5.0, 30))
    inputs, outputs = draw.integers(1, 20, 30), draw.integers(2, 40, 30)
    first = trace(np.column_stack([arrival_ms, inputs, outputs]))
    # The door sees what a request declares, which in a trace is what it will produce; so here it stays open.
    world = replace(random_world(draw, 3, 30, 0.5), closed_loop=None, tick_s=0.01, door=Door())
    world = replace(world, happenings=tuple(each for each in world.happenings if each.kind != "door"))
    run = replay(first, fleet(count=3), world=replace(world, controller=Recorder(closes_doors=False)))
    until_s = float(draw.uniform(0.05, 0.4))
    runs_on = ~(run.finish_s <= until_s)
    longer = np.where(runs_on, outputs + draw.integers(1, 40, 30), outputs)
    second = trace(np.column_stack([arrival_ms, inputs, longer]))
    assert_shown_the_same((first, second), fleet(count=3), (world, world), until_s, closes_doors=False)


def first_leaving(leaving: Leaving, count: int) -> Leaving:
    columns = leaving.after_tokens, leaving.after_s
    tokens, times_s = (None if column is None else column[:count] for column in columns)
    return Leaving(after_tokens=tokens, after_s=times_s)


@LAWS
@given(SEEDS)
def test_a_router_cannot_see_the_future(seed: int) -> None:
    """Neither who comes later nor how long the answers become that are still running."""
    draw = np.random.default_rng(seed)
    drawn = with_any_router(draw, random_fleet(draw, name="vllm-0.32"))
    rows = random_trace(draw, shared=False)
    kept = rows.request_count // 2
    until_s = rows.arrival_s[kept]
    run = replay(rows, drawn)
    runs_on = ~(run.finish_s <= until_s) & (rows.output_tokens > 0)
    longer = np.where(runs_on & (run.status == Status.FINISHED), rows.output_tokens + 1, rows.output_tokens)
    before = rows.arrival_s < until_s
    cut = replay(rows_of(rows, slice(kept)), drawn)
    np.testing.assert_array_equal(cut.replica[before[:kept]], run.replica[before])
    other = replay(replace(rows, output_tokens=longer.astype(np.int32)), drawn)
    # What a request declares is known, and may make it too long for a replica.
    assume((other.status == run.status).all())
    np.testing.assert_array_equal(other.replica[before], run.replica[before])


@pytest.mark.parametrize("router", ["least_waiting", "least_kv", "by_length", "by_tier"])
def test_a_router_that_looks_knows_nothing_newer_than_its_last_look(router: str) -> None:
    rng = np.random.default_rng(3)
    rows = trace(np.column_stack([np.arange(60) * 20.0, rng.integers(1, 12, 60), np.full(60, 40)]))
    rows = replace(rows, priority=rng.integers(0, 3, 60).astype(np.int32))

    def chosen(slots: int, scrape_s: float) -> list[int]:
        """Half of the replicas for a part of the requests; one sequence at a time where slots is 1."""
        replica = physics(settings=engine(max_sequence_count=slots), blocks=2000)
        free = physics(settings=engine(max_sequence_count=64), blocks=2000)
        groups = (
            ReplicaGroup(replica=replica, replica_count=2, up_to=1 if router == "by_tier" else 6),
            ReplicaGroup(replica=free, replica_count=2),
        )
        return replay(rows, Fleet(groups=groups, router=router, scrape_s=scrape_s)).replica.tolist()

    # Nobody ends before the last arrival but by the clock of the slots, which the router counts itself.
    early = [row for row, arrival_s in enumerate(rows.arrival_s) if arrival_s < 0.4]
    blind, seeing = [[chosen(slots, scrape_s) for slots in (1, 64)] for scrape_s in (0.5, 0.01)]
    assert [blind[0][row] for row in early] == [blind[1][row] for row in early], "it cannot know who waits"
    assert seeing[0] != seeing[1], "and once it looks, it does"


def assert_shown_the_same(
    traces: tuple[Trace, Trace], on: Fleet, worlds: tuple[World, World], until_s: float, *, closes_doors: bool = True
) -> None:
    recorders = Recorder(closes_doors=closes_doors), Recorder(closes_doors=closes_doors)
    for rows, world, recorder in zip(traces, worlds, recorders, strict=True):
        replay(rows, on, world=replace(world, controller=recorder))
    shown = [[view for view in recorder.shown() if view[0] < until_s] for recorder in recorders]
    common = min(map(len, shown))
    assert shown[0][:common] == shown[1][:common]


def test_when_everybody_fails_for_ever_requests_end_all_the_same() -> None:
    gone = Happening(time_s=0.1, kind="fail", replicas=(0, 1))
    clients = Clients(attempt_count=4, backoff_s=0.5)
    run = replay(
        trace([(i * 20, 10, 20) for i in range(20)]), fleet(count=2), world=World(happenings=(gone,), clients=clients)
    )
    assert set(run.status.tolist()) <= {Status.REJECTED_NOBODY_READY}
    assert (run.turmoil.attempt_count == 4).all()
    assert run.turmoil.lost_count > 0
    assert run.end_s > 1.0, "clients came back until they gave up"


@LAWS
@given(SEEDS)
def test_what_was_lost_was_taken_all_the_same(seed: int) -> None:
    rows, drawn, world = surrounded(seed)
    run = replay(rows, drawn, telemetry_interval_s=0.05, world=world)
    took = run.ledger.prefill_gpu_s.sum() + run.ledger.decode_gpu_s.sum()
    # Each failure may lose what did not divide evenly, less than a picosecond for each sequence.
    assert abs(run.busy.prefill_s + run.busy.decode_s - took) < 1e-9
