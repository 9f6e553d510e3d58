"""Time-outs of clients count as errors where a plan judges quiet replays."""

from dataclasses import replace

import numpy as np

from reference.fleets import engine, fleet, physics, step_time, trace
from tokenfleet.domain.run import Status
from tokenfleet.domain.slo import Slo
from tokenfleet.domain.world import Clients, World
from tokenfleet.planner.giving_up import given_up
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.traffic import Traffic
from tokenfleet.simulator import replay

ONE_AT_A_TIME = physics(settings=engine(max_sequence_count=1), time=step_time(tokens=64))
ROWS = trace([(0, 10, 5), (1, 10, 5), (2, 10, 5), (30, 10, 0)])
"""First tokens at 10, 60 and 110 ms, last ones at 50, 100 and 150; the fourth has its result at 160 ms."""
LENIENT = Slo(latency=(), error_rate_fraction=0.3)


def test_who_waited_longer_than_a_time_out_got_no_answer() -> None:
    quiet = replay(ROWS, fleet(ONE_AT_A_TIME))
    late = given_up(quiet, Clients(first_token_timeout_s=0.1))
    assert late.status.tolist() == [Status.FINISHED, Status.FINISHED, Status.TIMED_OUT, Status.TIMED_OUT]
    assert np.isnan(late.finish_s[2:]).all()
    assert given_up(quiet, Clients(timeout_s=0.05)).status.tolist() == [Status.TIMED_OUT] * 4
    assert given_up(quiet, Clients(timeout_s=0.0501)).status[0] == Status.FINISHED
    assert given_up(quiet, Clients()) is quiet
    assert given_up(quiet, None) is quiet


def test_no_time_out_of_a_replay_with_such_clients_is_missed() -> None:
    clients = Clients(first_token_timeout_s=0.1, timeout_s=0.13)
    quiet = given_up(replay(ROWS, fleet(ONE_AT_A_TIME)), clients)
    lived = replay(ROWS, fleet(ONE_AT_A_TIME), world=World(clients=clients))
    assert (quiet.status == Status.TIMED_OUT)[lived.status == Status.TIMED_OUT].all()
    assert lived.status[3] == Status.FINISHED, "the third one left it its place"
    assert given_up(lived, clients) is lived


def test_the_limit_on_errors_counts_time_outs() -> None:
    traffic = Traffic(ROWS, (0.0, 1.0))
    clients = Clients(first_token_timeout_s=0.1)
    assert Replays(LENIENT, "least_in_flight").verdict(traffic, ONE_AT_A_TIME, 1).kept
    strict = Replays(LENIENT, "least_in_flight", clients=clients).verdict(traffic, ONE_AT_A_TIME, 1)
    assert [result.predicted for result in strict.overall] == [0.5]
    assert not strict.kept
    assert Replays(LENIENT, "least_in_flight", clients=clients).verdict(traffic, ONE_AT_A_TIME, 4).kept


def test_a_replay_is_given_up_for_time_outs_too() -> None:
    count = 6_000
    rows = trace(np.column_stack([np.arange(count) * 10.0, np.full(count, 10), np.full(count, 5)]))
    traffic = Traffic(rows, (0.0, 60.0))
    replays = Replays(replace(LENIENT, error_rate_fraction=0.01), "round_robin", clients=Clients(timeout_s=1.0))
    quick = replays.quick(traffic, ONE_AT_A_TIME, 1)
    assert quick.cut
    assert not quick.kept
