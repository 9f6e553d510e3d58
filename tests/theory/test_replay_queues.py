"""Queueing theory: what the replay must reproduce where a formula is known, within confidence intervals.

A step that always takes the same time makes a replica with ``c`` sequences a queue with ``c`` servers whose
service time is the number of output tokens; a step that takes time per sequence makes it processor sharing.
Arrivals are Poisson, outputs geometric or fixed. Each interval comes from independent runs, at 99.9 %.
"""

from collections.abc import Callable

import numpy as np
import pytest
import scipy

from reference.fleets import engine, fleet, physics, step_time
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import World
from tokenfleet.simulator import replay
from tokenfleet.workload import close_loop

STEP_S = 0.001
RUNS = 20
REQUESTS = 15_000


def poisson_trace(draw: np.random.Generator, rate_per_s: float, outputs: np.ndarray) -> Trace:
    count = len(outputs)
    return Trace(
        arrival_s=np.cumsum(draw.exponential(1.0 / rate_per_s, count)),
        input_tokens=np.ones(count, dtype=np.int32),
        output_tokens=outputs.astype(np.int32),
    )


def geometric(draw: np.random.Generator, mean: float) -> np.ndarray:
    return draw.geometric(1.0 / mean, REQUESTS)


def replica(sequences: int, step_ps: list[int] | None = None):
    table = [round(STEP_S * 1e12)] * (sequences + 1) if step_ps is None else step_ps
    rules = engine(max_batched_tokens=sequences, max_sequence_count=sequences)
    return physics(settings=rules, time=step_time(token_ps=table), blocks=10_000_000)


def interval(measure: Callable[[RunRecord], float], rate_per_s: float, draw_outputs, on) -> tuple[float, float]:
    """99.9 % confidence interval of a measure over independent runs, their first tenth left out by the measure."""
    values = []
    for seed in range(RUNS):
        draw = np.random.default_rng(seed)
        values.append(measure(replay(poisson_trace(draw, rate_per_s, draw_outputs(draw)), on)))
    half = scipy.stats.t.ppf(0.9995, RUNS - 1) * np.std(values, ddof=1) / np.sqrt(RUNS)
    return float(np.mean(values) - half), float(np.mean(values) + half)


def mean_stay_s(run: RunRecord) -> float:
    return float(run.e2e_s[REQUESTS // 10 :].mean())


def pollaczek_khinchine_s(rate_per_s: float, mean_s: float, mean_square_s2: float) -> float:
    return mean_s + rate_per_s * mean_square_s2 / (2.0 * (1.0 - rate_per_s * mean_s))


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_server_with_fixed_service_is_m_d_1(load: float) -> None:
    service_s = 20 * STEP_S
    low, high = interval(mean_stay_s, load / service_s, lambda _: np.full(REQUESTS, 20), fleet(replica(1)))
    assert low <= pollaczek_khinchine_s(load / service_s, service_s, service_s**2) <= high


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_server_with_geometric_service_is_m_g_1_and_nearly_m_m_1(load: float) -> None:
    mean = 100
    rate_per_s = load / (mean * STEP_S)
    low, high = interval(mean_stay_s, rate_per_s, lambda draw: geometric(draw, mean), fleet(replica(1)))
    square_s2 = (2.0 - 1.0 / mean) * mean**2 * STEP_S**2
    assert low <= pollaczek_khinchine_s(rate_per_s, mean * STEP_S, square_s2) <= high
    m_m_1_s = mean * STEP_S / (1.0 - load)
    assert low * (1 - 1 / mean) <= m_m_1_s <= high * (1 + 1 / mean)


def erlang_c_stay_s(rate_per_s: float, mean_s: float, servers: int) -> float:
    offered = rate_per_s * mean_s
    below = scipy.stats.poisson.cdf(servers - 1, offered) / scipy.stats.poisson.pmf(servers, offered)
    waits = 1.0 / (1.0 + (1.0 - offered / servers) * below)
    return mean_s + waits * mean_s / (servers - offered)


@pytest.mark.parametrize(("servers", "load"), [(4, 0.7), (16, 0.9)])
def test_many_slots_are_m_m_c(servers: int, load: float) -> None:
    """A request waits for the next step even at a free slot: up to one step, half on average, more than M/M/c."""
    mean = 200
    rate_per_s = load * servers / (mean * STEP_S)
    low, high = interval(mean_stay_s, rate_per_s, lambda draw: geometric(draw, mean), fleet(replica(servers)))
    assert low - STEP_S <= erlang_c_stay_s(rate_per_s, mean * STEP_S, servers) <= high


@pytest.mark.parametrize("fixed", [True, False])
def test_steps_that_take_time_per_sequence_are_processor_sharing(fixed: bool) -> None:
    """M/G/1-PS: the mean stay depends on the mean service alone, whatever its spread. A step adds up to itself."""
    mean, load, sequences = 100, 0.7, 256
    step_ps = round(STEP_S * 1e12)
    shared = replica(sequences, [max(count, 1) * step_ps for count in range(sequences + 1)])
    outputs = (lambda _: np.full(REQUESTS, mean)) if fixed else (lambda draw: geometric(draw, mean))
    low, high = interval(mean_stay_s, load / (mean * STEP_S), outputs, fleet(shared))
    expected_s = mean * STEP_S / (1.0 - load)
    slack_s = 2.0 * STEP_S / (1.0 - load)
    assert low - slack_s <= expected_s <= high + slack_s


@pytest.mark.parametrize("asynchronous", [False, True])
def test_little_holds_between_gauges_and_stays(asynchronous: bool) -> None:
    """The mean number inside, by gauges, is the rate times the mean stay, by columns."""
    rules = engine(max_batched_tokens=64, max_sequence_count=8, async_scheduling=asynchronous)
    on = fleet(physics(settings=rules, time=step_time(token_ps=[round(STEP_S * 1e12)] * 65), blocks=10_000), count=3)
    draw = np.random.default_rng(7)
    rows = poisson_trace(draw, 150.0, geometric(draw, 100))
    run = replay(rows, on, telemetry_interval_s=0.01)
    inside = run.telemetry.running.sum(axis=1) + run.telemetry.waiting.sum(axis=1)
    stay_total_s = run.e2e_s.sum()
    assert inside.sum() * 0.01 == pytest.approx(stay_total_s, rel=0.005)


def machine_repair_stay_s(users: int, servers: int, service_s: float, think_s: float) -> float:
    """Mean stay with a fixed number of users who think and send, by the law of the M/M/c//N queue."""
    weights = [1.0]
    for inside in range(1, users + 1):
        weights.append(weights[-1] * (users - inside + 1) / think_s * service_s / min(inside, servers))
    chance = np.array(weights) / np.sum(weights)
    rate_per_s = float(np.minimum(np.arange(users + 1), servers) @ chance) / service_s
    return users / rate_per_s - think_s


@pytest.mark.parametrize(("users", "servers", "think_s"), [(12, 4, 0.3), (6, 4, 0.1), (8, 1, 2.0)])
def test_users_who_think_are_the_machine_repair_model(users: int, servers: int, think_s: float) -> None:
    """A request waits for the next step even at a free slot: up to one step longer than the formula."""
    mean = 200
    stays_s = []
    for seed in range(RUNS):
        outputs = geometric(np.random.default_rng(seed), mean)
        rows, loop = close_loop(
            poisson_trace(np.random.default_rng(seed), 1.0, outputs), user_count=users, think_s=think_s, seed=seed
        )
        stays_s.append(mean_stay_s(replay(rows, fleet(replica(servers)), world=World(closed_loop=loop))))
    half_s = scipy.stats.t.ppf(0.9995, RUNS - 1) * np.std(stays_s, ddof=1) / np.sqrt(RUNS)
    expected_s = machine_repair_stay_s(users, servers, mean * STEP_S, think_s)
    assert np.mean(stays_s) - half_s - STEP_S <= expected_s <= np.mean(stays_s) + half_s
