"""Clients that give up and users who leave, in worlds whose times can be told by hand: every step takes 10 ms."""

from dataclasses import replace

import numpy as np
import pytest

from reference.fleets import engine, fleet, physics, trace
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.trace import PrefixTree
from tokenfleet.domain.world import Clients, ClosedLoop, Door, Happening, Leaving, World
from tokenfleet.simulator import replay

ONE_AT_A_TIME = physics(settings=engine(max_sequence_count=1))
STAYS = np.inf


def ms(times_s: np.ndarray) -> list[float]:
    return [round(time_s * 1000.0, 6) for time_s in times_s]


def run(rows, on, **settings) -> RunRecord:
    return replay(trace(rows), on, world=World(**settings), telemetry_interval_s=0.001)


def after_s(*times_s: float) -> Leaving:
    return Leaving(after_s=np.array(times_s))


def after_tokens(*tokens: int) -> Leaving:
    return Leaving(after_tokens=np.array(tokens, dtype=np.int32))


def test_who_waits_is_gone_at_once_and_the_next_takes_its_place() -> None:
    rows = [(0, 10, 5), (1, 10, 5), (2, 10, 5)]
    record = run(rows, fleet(ONE_AT_A_TIME), leaving=after_s(STAYS, 0.02, STAYS))
    assert record.status.tolist() == [Status.FINISHED, Status.CANCELLED, Status.FINISHED]
    assert ms(record.finish_s[[0, 2]]) == [50, 100]
    assert record.telemetry.waiting[19:22, 0].tolist() == [2, 1, 1], "at 20, 21 and 22 ms"
    assert record.turmoil.partial_output_tokens.tolist() == [0, 0, 0]


@pytest.mark.parametrize(("asynchronous", "first_ms", "tokens"), [(False, 50, 4), (True, 60, 5)])
def test_who_runs_is_let_go_at_the_next_boundary(asynchronous: bool, first_ms: float, tokens: int) -> None:
    """The first one holds all memory but a block. What is in flight when it is let go is computed in vain."""
    tight = physics(settings=engine(async_scheduling=asynchronous), blocks=9)
    record = run([(0, 20, 15), (1, 20, 2)], fleet(tight), leaving=after_s(0.035, STAYS))
    assert record.status.tolist() == [Status.CANCELLED, Status.FINISHED]
    assert ms(record.first_token_s) == [10, first_ms]
    assert np.isnan(record.finish_s[0])
    assert record.telemetry.running[[38, 39], 0].tolist() == [1, 1], "one for the other, at 40 ms"
    assert record.turmoil.partial_output_tokens.tolist() == [tokens, 0]
    assert record.turmoil.wasted_output_tokens == tokens
    assert record.turmoil.cancelled_count == 1
    assert record.gaps.count.sum() == tokens - 1 + 1


@pytest.mark.parametrize(("asynchronous", "computed"), [(False, 4), (True, 5)])
def test_who_leaves_with_a_token_costs_the_steps_until_the_engine_knows(asynchronous: bool, computed: int) -> None:
    on = fleet(physics(settings=engine(async_scheduling=asynchronous)))
    record = run([(0, 10, 9), (0, 10, 9)], on, leaving=after_tokens(3, 0))
    assert record.status.tolist() == [Status.CANCELLED, Status.FINISHED]
    assert record.turmoil.partial_output_tokens.tolist() == [computed, 0]
    running = record.telemetry.running[:, 0].tolist()
    assert (running[38], running[39]) == (2, 1), "the third token leaves at 30 ms, the step after it ends at 40"


@pytest.mark.parametrize(("asynchronous", "computed", "gone_ms"), [(False, 5, 50), (True, 6, 50)])
def test_sglang_lets_who_left_run_one_more_round(asynchronous: bool, computed: int, gone_ms: int) -> None:
    """It hears of it at 40 ms, and goes by it when the next token is there."""
    on = fleet(physics(settings=engine(name="sglang-0.5", async_scheduling=asynchronous)))
    record = run([(0, 10, 9), (0, 10, 15)], on, leaving=after_s(0.035, STAYS))
    assert record.status.tolist() == [Status.CANCELLED, Status.FINISHED]
    assert record.turmoil.partial_output_tokens.tolist() == [computed, 0]
    running = record.telemetry.running[:, 0].tolist()
    assert (running[gone_ms - 2], running[gone_ms - 1]) == (2, 1)


def test_sglang_keeps_who_left_while_prompts_hold_up_the_decodes() -> None:
    on = fleet(physics(settings=engine(name="sglang-0.5")))
    record = run([(0, 10, 9), (15, 200, 2)], on, leaving=after_s(0.025, STAYS))
    assert ms(record.first_token_s) == [10, 60]
    assert record.turmoil.partial_output_tokens.tolist() == [3, 0], "at 10, 20 and 70 ms"
    assert (record.telemetry.running[68, 0], record.telemetry.running[69, 0]) == (2, 0)


def test_sglang_does_not_finish_a_prompt_that_nobody_waits_for() -> None:
    on = fleet(physics(settings=engine(name="sglang-0.5")))
    record = run([(0, 200, 9), (5, 10, 1)], on, leaving=after_s(0.015, STAYS))
    assert record.status.tolist() == [Status.CANCELLED, Status.FINISHED]
    assert ms(record.first_token_s[1:]) == [30], "four chunks would take until 40 ms"


def test_sglang_frees_who_left_with_the_last_token_and_calls_it_gone() -> None:
    on = fleet(physics(settings=engine(name="sglang-0.5")))
    record = run([(0, 10, 4)], on, leaving=after_s(0.035))
    assert record.status.tolist() == [Status.CANCELLED]
    assert record.end_s == 0.04
    assert record.turmoil.partial_output_tokens.tolist() == [4]


def test_who_stays_to_the_last_token_does_not_leave() -> None:
    record = run([(0, 10, 5)], fleet(), leaving=after_tokens(5))
    assert record.status.tolist() == [Status.FINISHED]


def test_a_client_that_times_out_comes_back_until_its_attempts_are_spent() -> None:
    clients = Clients(attempt_count=2, backoff_s=0.1, timeout_s=0.03)
    record = run([(0, 10, 5)], fleet(), clients=clients)
    assert record.status.tolist() == [Status.TIMED_OUT]
    assert record.turmoil.attempt_count.tolist() == [2]
    assert record.turmoil.timed_out_count == 2
    assert record.turmoil.wasted_output_tokens == 2 * 3, "what comes at the very moment comes too late"
    assert record.turmoil.partial_output_tokens.tolist() == [3]
    assert 0.03 + 0.05 + 0.01 <= record.first_token_s[0] <= 0.03 + 0.1 + 0.01
    assert record.replica.tolist() == [0]


def test_a_first_token_in_time_is_all_that_its_time_out_asks() -> None:
    rows = [(0, 10, 9), (1, 10, 9)]
    record = run(rows, fleet(ONE_AT_A_TIME), clients=Clients(first_token_timeout_s=0.04))
    assert record.status.tolist() == [Status.FINISHED, Status.TIMED_OUT]
    assert record.turmoil.timed_out_count == 1
    assert np.isnan(record.first_token_s[1])


def test_a_time_out_ahead_of_another_attempt_leaves_room_for_those_behind() -> None:
    """The second one gives up at 41 ms and comes back behind the third."""
    rows = [(0, 10, 5), (1, 10, 1), (2, 10, 1)]
    clients = Clients(attempt_count=2, backoff_s=0.002, first_token_timeout_s=0.04)
    record = run(rows, fleet(ONE_AT_A_TIME), clients=replace(clients, attempt_count=5))
    assert (record.status == Status.FINISHED).all()
    assert record.turmoil.timed_out_count == 2
    assert sorted(ms(record.finish_s)) == [50, 60, 70]


def test_blocks_of_one_that_left_stay_in_the_cache() -> None:
    cached = physics(settings=engine(prefix_caching=True, block_tokens=4))
    rows = trace([(0, 9, 30), (100, 9, 2)])
    tree = PrefixTree(parent=np.array([-1], dtype=np.int32), token_count=np.array([8], dtype=np.int32))
    rows = replace(rows, prefixes=tree, prefix_node=np.zeros(2, dtype=np.int32))
    record = replay(rows, fleet(cached), world=World(leaving=after_s(0.025, STAYS)))
    assert record.cached_tokens.tolist() == [0, 8]
    assert record.status.tolist() == [Status.CANCELLED, Status.FINISHED]


@pytest.mark.parametrize("name", ["vllm-0.32", "sglang-0.5", "trtllm-1.2"])
def test_the_next_attempt_finds_the_prompt_of_the_last_one_in_the_cache(name: str) -> None:
    """The first attempt would take 130 ms, four chunks among them; the second one computes a single token of it."""
    cached = physics(settings=engine(name=name, prefix_caching=True, block_tokens=4))
    clients = Clients(attempt_count=2, backoff_s=0.1, timeout_s=0.105)
    record = run([(0, 200, 10), (400, 200, 1)], fleet(cached), clients=clients)
    assert record.status.tolist() == [Status.FINISHED, Status.FINISHED]
    assert record.turmoil.attempt_count.tolist() == [2, 1]
    assert record.cached_tokens.tolist() == [196, 0], "all blocks but that of the last token, and nobody else's"
    apart = run([(0, 200, 10)], fleet(cached, count=2, router="round_robin"), clients=clients)
    assert apart.status.tolist() == [Status.TIMED_OUT], "another replica has not seen it"


def test_routers_by_prefix_do_not_take_an_own_prompt_for_a_shared_one() -> None:
    cached = fleet(physics(settings=engine(prefix_caching=True)), count=3, router="prefix_affinity")
    rows = [(10 * place, 30, 2) for place in range(12)]
    patient = run(rows, cached, clients=Clients(attempt_count=2, timeout_s=50.0))
    assert patient.replica.tolist() == replay(trace(rows), cached).replica.tolist()


def test_whoever_leaves_frees_the_user_for_the_next_request() -> None:
    loop = ClosedLoop(after=np.array([-1, 0], dtype=np.int32), delay_s=np.array([0.0, 0.02]))
    record = run([(0, 10, 9), (0, 10, 1)], fleet(), leaving=after_s(0.035, STAYS), closed_loop=loop)
    assert ms(record.arrival_s) == [0, 60], "let go at 40 ms"
    assert ms(record.finish_s[1:]) == [70]


def test_slow_readers_hold_up_their_next_request_and_no_engine() -> None:
    """The answer leaves from 10 to 50 ms; at 50 tokens/s it is read from 10 to 90 ms."""
    loop = ClosedLoop(after=np.array([-1, 0], dtype=np.int32), delay_s=np.array([0.0, 0.02]))
    record = run([(0, 10, 5), (0, 10, 1)], fleet(), clients=Clients(read_tokens_per_s=50.0), closed_loop=loop)
    assert ms(record.arrival_s) == [0, 110]
    assert ms(record.finish_s) == [50, 120]
    assert record.telemetry.running[48:51, 0].tolist() == [1, 0, 0], "at 49, 50 and 51 ms"
    quick = run([(0, 10, 5), (0, 10, 1)], fleet(), clients=Clients(read_tokens_per_s=200.0), closed_loop=loop)
    assert ms(quick.arrival_s) == [0, 70], "nobody reads ahead of the engine"


def test_an_answer_that_is_read_keeps_its_session_open() -> None:
    door = Door(session_limit_count=1)
    rows = [(0, 10, 5), (60, 10, 1), (95, 10, 1)]
    record = run(rows, fleet(), clients=Clients(read_tokens_per_s=50.0), door=door)
    assert record.status.tolist() == [Status.FINISHED, Status.REJECTED_NEW_SESSION, Status.FINISHED]
    assert run(rows, fleet(), door=door).status.tolist() == [Status.FINISHED] * 3
    assert record.end_s == 0.105, "the run ends with the last token, not with its reader"


def test_who_has_given_up_is_not_lost_with_the_replica() -> None:
    fails = Happening(time_s=0.037, kind="fail", replicas=(0,))
    record = run([(0, 10, 9), (0, 10, 9)], fleet(), leaving=after_s(0.035, STAYS), happenings=(fails,))
    assert record.status.tolist() == [Status.CANCELLED, Status.LOST]
    assert (record.turmoil.cancelled_count, record.turmoil.lost_count) == (1, 1)
    assert record.turmoil.partial_output_tokens.tolist() == [4, 4]
    assert record.turmoil.wasted_output_tokens == 8


@pytest.mark.parametrize(
    ("world", "part"),
    [
        (World(clients=Clients(timeout_s=0.0)), "world.clients.timeout_s"),
        (World(clients=Clients(first_token_timeout_s=np.nan)), "world.clients.first_token_timeout_s"),
        (World(clients=Clients(read_tokens_per_s=0.0)), "world.clients.read_tokens_per_s"),
        (World(leaving=after_tokens(1)), "world.leaving.after_tokens"),
        (World(leaving=after_tokens(1, -1)), "world.leaving.after_tokens"),
        (World(leaving=after_s(1.0, 0.0)), "world.leaving.after_s"),
        (World(leaving=after_s(1.0, np.nan)), "world.leaving.after_s"),
    ],
)
def test_what_is_no_time_and_no_number_of_tokens_is_refused(world: World, part: str) -> None:
    with pytest.raises(BadInput) as caught:
        replay(trace([(0, 10, 5), (1, 10, 5)]), fleet(), world=world)
    assert part in str(caught.value)
