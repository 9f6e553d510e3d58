"""What cannot be replayed is refused with all problems, or counted; nothing is lost and nothing hangs."""

from dataclasses import replace

import numpy as np
import pytest

from reference.fleets import engine, fleet, physics, step_time, trace
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.replica import Layout
from tokenfleet.domain.run import Status
from tokenfleet.domain.trace import PrefixTree
from tokenfleet.domain.world import Admission, Clients, ClosedLoop, Happening, World
from tokenfleet.simulator import replay

GOOD = [(0, 4, 2), (5, 4, 2)]
NOWHERE = Happening(time_s=1.0, kind="fail", replicas=(1,))


def problems(rows, on, **options) -> str:
    with pytest.raises(BadInput) as caught:
        replay(rows, on, **options)
    return str(caught.value)


def test_a_fleet_that_no_machine_can_replay() -> None:
    wide = physics(settings=engine(max_sequence_count=1_000_000, max_batched_tokens=1_000_000))
    said = problems(trace(GOOD), fleet(wide, count=500_000))
    assert "500,000 replicas take" in said
    assert "of them fit" in said
    assert "999,999,999 replicas, at most" in problems(trace(GOOD), fleet(wide, count=999_999_999))


def test_places_that_31_bits_do_not_name(monkeypatch) -> None:
    monkeypatch.setattr("tokenfleet.simulator.building._MOST_WORDS", 1_000)
    assert "2 requests on 3 replicas take 0 GiB to replay, more than a replay can hold" in problems(
        trace(GOOD), fleet(physics(), count=3)
    )


@pytest.mark.parametrize(
    ("requests", "where"),
    [
        ([(0, 0, 2)], "trace.input_tokens[0]: 0 tokens"),
        ([(0, -3, 2)], "trace.input_tokens[0]: -3 tokens"),
        ([(0, 4, -1)], "trace.output_tokens[0]: -1 tokens"),
        ([(5, 4, 2), (1, 4, 2)], "trace.arrival_s[1]: 0.001 s comes after 0.005 s"),
        ([(-1, 4, 2)], "trace.arrival_s[0]: -0.001 s is before"),
        ([(np.nan, 4, 2)], "trace.arrival_s[0]: nan is not a time"),
        ([(1e12, 4, 2)], "trace.arrival_s[0]: 1000000000.0 s, at most"),
    ],
)
def test_requests_that_make_no_sense(requests, where) -> None:
    assert where in problems(trace(requests), fleet())


def test_every_problem_at_once() -> None:
    text = problems(trace([(5, 0, -1), (1, 4, 2)]), fleet(count=0, router="random"))
    for part in ("arrival_s[1]", "input_tokens[0]", "output_tokens[0]", "0 replicas", "no policy is called 'random'"):
        assert part in text


def test_a_policy_that_does_not_exist_names_the_nearest() -> None:
    assert "did you mean 'least_in_flight'?" in problems(trace(GOOD), fleet(router="least_inflight"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_batched_tokens": 4, "max_sequence_count": 8}, "engine.max_batched_tokens: 4 is less than"),
        ({"max_sequence_count": 0}, "engine.max_sequence_count: 0"),
        ({"watermark_fraction": 1.5}, "engine.watermark_fraction: 1.5"),
        ({"long_prefill_tokens": 0}, "engine.long_prefill_tokens: 0"),
        ({"long_prefill_tokens": 5, "name": "sglang-0.5"}, "the rules of sglang-0.5 have no such setting"),
        ({"scheduling": "priority", "name": "trtllm-1.2"}, "the rules of trtllm-1.2 have no such setting"),
        ({"scheduling": "priorty"}, "engine.scheduling: no such kind is called 'priorty'; did you mean 'priority'?"),
        ({"preemption": "swop"}, "engine.preemption: no such kind is called 'swop'; did you mean 'swap'?"),
        ({"front_end": "serail"}, "engine.front_end: no such kind is called 'serail'; did you mean 'serial'?"),
    ],
)
def test_engine_settings_that_cannot_run(settings, said) -> None:
    assert said in problems(trace(GOOD), fleet(physics(settings=engine(**settings))))


def test_no_replica_group() -> None:
    assert "no replica group" in problems(trace(GOOD), Fleet(groups=()))


@pytest.mark.parametrize(
    ("time", "where"),
    [
        (step_time(tokens=10), "step_time.token_ps: 11 entries; 65 are needed"),
        (step_time(token_ps=np.zeros(65)), "a step that takes no time"),
        (step_time(pair_ps=-1), "step_time.pair_ps: -1"),
    ],
)
def test_step_times_that_cannot_be(time, where) -> None:
    assert where in problems(trace(GOOD), fleet(physics(time=time)))


def test_prefix_columns_that_do_not_fit() -> None:
    tree = PrefixTree(parent=np.array([0, -1], dtype=np.int32), token_count=np.array([1, -1], dtype=np.int32))
    text = problems(trace(GOOD, prefix_node=np.array([0, 2], dtype=np.int32), prefixes=tree), fleet())
    for part in ("outside -1 .. 1", "a parent must come before", "a negative number of tokens"):
        assert part in text
    assert "go together" in problems(trace(GOOD, prefixes=tree), fleet())
    assert "1 entries for 2 requests" in problems(trace(GOOD, session=np.array([0], dtype=np.int32)), fleet())


@pytest.mark.parametrize("window", [(2.0, 1.0), (-1.0, 1.0), (float("nan"), 1.0)])
def test_a_peak_window_that_is_none(window) -> None:
    assert "is no window" in problems(trace(GOOD), fleet(), peak_window_s=window)


@pytest.mark.parametrize("interval", [0.0, -1.0, float("nan"), float("inf")])
def test_a_telemetry_interval_that_is_none(interval) -> None:
    assert "telemetry_interval_s" in problems(trace(GOOD), fleet(), telemetry_interval_s=interval)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("settings", "blocks", "request_row"),
    [
        ({}, 4, (1, 15, 3)),
        ({"context_limit_tokens": 16}, 100, (1, 15, 2)),
        ({"chunked_prefill": False}, 100, (1, 60, 6)),
    ],
)
def test_a_request_that_never_fits_is_counted_and_the_others_go_on(settings, blocks, request_row, asynchronous) -> None:
    replica = physics(settings=engine(async_scheduling=asynchronous, **settings), blocks=blocks)
    run = replay(trace([(0, 4, 2), request_row, (2, 4, 2)]), fleet(replica))
    assert run.status.tolist() == [Status.FINISHED, Status.REJECTED_TOO_LONG, Status.FINISHED]
    assert np.isnan(run.finish_s).tolist() == [False, True, False]


def test_the_largest_request_that_fits_alone_is_served() -> None:
    run = replay(trace([(0, 14, 3)]), fleet(physics(blocks=4)))
    assert run.status.tolist() == [Status.FINISHED]


def test_an_empty_trace_is_a_run_without_requests() -> None:
    run = replay(trace([]), fleet(count=2), telemetry_interval_s=1.0)
    assert run.end_s == 0.0
    assert run.busy.step_count == 0
    assert run.telemetry.running.tolist() == [[0, 0]]


def test_a_trace_is_left_as_it_was() -> None:
    rows = trace(GOOD)
    before = replace(rows, arrival_s=rows.arrival_s.copy())
    replay(rows, fleet())
    assert rows.arrival_s.tolist() == before.arrival_s.tolist()


def test_kv_that_comes_along_with_nothing_to_generate() -> None:
    rows = trace([(0, 4, 0)], kv_delivered=np.array([True]))
    assert "trace.kv_delivered[0]: nothing is left to generate" in problems(rows, fleet())


def loop(after, delay_s=(0.0, 0.0)) -> ClosedLoop:
    return ClosedLoop(after=np.array(after, dtype=np.int32), delay_s=np.array(delay_s))


@pytest.mark.parametrize(
    ("world", "where"),
    [
        (World(happenings=(NOWHERE,)), "world.happenings[0].replicas: no replica has the number 1"),
        (World(happenings=(replace(NOWHERE, kind="fial"),)), "did you mean 'fail'?"),
        (World(happenings=(replace(NOWHERE, time_s=np.nan),)), "world.happenings[0].time_s: nan is no time"),
        (World(happenings=(NOWHERE, replace(NOWHERE, time_s=0.5))), "world.happenings[1]: 0.5 s comes after 1.0 s"),
        (World(happenings=(replace(NOWHERE, step_time_factor=0.0),)), "world.happenings[0].step_time_factor: 0.0"),
        (World(absent=(7,)), "world.absent: no replica has the number 7"),
        (World(tick_s=0.0), "world.tick_s: 0.0 s"),
        (World(clients=Clients(attempt_count=0)), "world.clients.attempt_count: 0"),
        (World(clients=Clients(backoff_s=-1.0)), "world.clients.backoff_s: -1.0 s"),
        (World(admission=Admission(queue_limit_count=0)), "world.admission.queue_limit_count: 0"),
        (World(admission=Admission(deadline_s=0.0)), "world.admission.deadline_s: 0.0 s"),
        (World(admission=Admission(deadline_s=np.nan)), "world.admission.deadline_s: nan s"),
        (World(closed_loop=loop([-1])), "world.closed_loop.after: 1 entries for 2 requests"),
        (World(closed_loop=loop([-1, 1])), "world.closed_loop.after[1]: 1; an earlier request"),
        (World(closed_loop=loop([-2, 0])), "world.closed_loop.after: a line and nobody to start it"),
        (World(closed_loop=loop([-1, 0], [0.0, np.inf])), "world.closed_loop.delay_s[1]: inf s"),
    ],
)
def test_worlds_that_make_no_sense(world, where) -> None:
    assert where in problems(trace(GOOD), fleet(), world=world)


@pytest.mark.parametrize(
    ("answer", "where"),
    [
        (Happening(time_s=0.0, kind="stop", replicas=(0,)), "answer for the tick or later"),
        (Happening(time_s=5.0, kind="stop", replicas=(3,)), "replicas (3,)"),
        (Happening(time_s=5.0, kind="slow", replicas=(0,)), "a controller that slows replicas"),
    ],
)
def test_controllers_that_make_no_sense(answer, where) -> None:
    assert where in problems(trace(GOOD), fleet(), world=World(controller=lambda _: [answer], tick_s=0.01))


def test_what_lasts_longer_than_time_can_be_counted() -> None:
    clients = Clients(attempt_count=1000, backoff_s=86_400.0, longest_backoff_s=86_400.0)
    world = World(absent=(0,), clients=clients)
    assert "after more than 103 days" in problems(trace(GOOD), fleet(), world=world)


def test_more_priorities_than_fit() -> None:
    rows = trace([(0, 4, 2)] * 129, priority=np.arange(129, dtype=np.int32))
    assert "129 different priorities, at most 128" in problems(rows, fleet())
    assert "trace.priority: 1 entries" in problems(replace(rows, priority=rows.priority[:1]), fleet())


def beside(**columns) -> Fleet:
    """Two models on one gpu, the second as told."""
    first, second = fleet().groups[0], fleet().groups[0]
    return Fleet(groups=(replace(first, berth=0), replace(second, **({"pool": 1, "berth": 0} | columns))))


@pytest.mark.parametrize(
    ("fleet", "world", "where"),
    [
        (beside(), None, "world.calls: 2 pools, and nobody says who calls which"),
        (beside(), World(calls=np.array([0])), "world.calls: 1 entries for 2 requests"),
        (beside(), World(calls=np.array([0, 2])), "world.calls: a pool that there is not; 0 to 1"),
        (beside(pool=2), World(calls=np.array([0, 1])), "fleet.groups: pools [0, 2]"),
        (beside(is_smaller_model=True), World(calls=np.array([0, 1])), "a smaller model beside several pools"),
        (beside(berth=-1), World(calls=np.array([0, 1])), "fleet.groups[1].berth: -1"),
        (beside(), World(calls=np.array([0, 1]), controller=lambda _: []), "world: a controller, which knows one pool"),
    ],
)
def test_models_side_by_side_that_make_no_sense(fleet, world, where) -> None:
    assert where in problems(trace(GOOD), fleet, world=world)


def test_gpus_that_are_shared_by_replicas_of_different_size() -> None:
    one = fleet().groups[0]
    deployment = replace(one.replica.deployment, layout=Layout(tensor_parallel=2))
    on_two = replace(one, replica=replace(one.replica, deployment=deployment), berth=0)
    found = problems(trace(GOOD), Fleet(groups=(replace(one, berth=0), on_two)))
    assert "fleet.groups[1].berth: a replica on 2 gpus shares those of one on 1" in found


@pytest.mark.parametrize(
    ("after", "ends", "where"),
    [
        ([-1, 0], [1], "world.closed_loop.end_count: 1 entries for 2 requests"),
        ([-1, 0], [1, 2], "world.closed_loop.end_count[1]: 2"),
        (
            [-1, -1, 1, 1],
            [1, 1, 2, 1],
            "end_count: a request is waited for by itself and among others",
        ),
    ],
)
def test_ends_that_nobody_can_wait_for(after, ends, where) -> None:
    several = replace(loop(after, [0.0] * len(after)), end_count=np.array(ends))
    rows = trace([GOOD[0]] * len(after))
    assert where in problems(rows, fleet(), world=World(closed_loop=several))
