"""The search against brute force, and its short cuts against the replays they stand for."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tokenfleet import catalog, performance, workload
from tokenfleet.contract import judge
from tokenfleet.domain.plan import PlanQuestion
from tokenfleet.domain.replica import Deployment, Layout
from tokenfleet.domain.slo import LatencyTarget, Slo
from tokenfleet.planner import cheapest
from tokenfleet.planner.counting import CLEARLY
from tokenfleet.planner.early import at_best
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.screen import screen
from tokenfleet.planner.search import Search
from tokenfleet.planner.steps import step_variants
from tokenfleet.planner.traffic import Traffic
from tokenfleet.simulator import replay

GPUS = ("h100_sxm", "l40s", "a100_sxm_80gb", "b200_sxm", "mi300x")
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
MOST = 24


@cache
def physics(gpu, tensor_parallel, precision, budget=None):
    part, model = catalog.gpu(gpu), catalog.model(MODEL)
    engine = catalog.engine("vllm", gpu=part)
    engine = engine if budget is None else replace(engine, max_batched_tokens=budget)
    deployment = Deployment(
        model=model.name,
        gpu=part.name,
        layout=Layout(tensor_parallel=tensor_parallel),
        precision=precision,
        kv_precision="bf16",
        engine=engine,
    )
    return performance.replica_physics(model, part, deployment)


def small_question(seed):
    """Three random replicas, a random promise, and traffic that a handful of them serve."""
    draw = np.random.default_rng(seed)
    gpus = draw.choice(GPUS, size=3, replace=False)
    candidates = tuple(physics(str(gpu), int(draw.choice([1, 2])), str(draw.choice(["bf16", "fp8"]))) for gpu in gpus)
    promise = Slo(
        latency=(
            LatencyTarget(metric="ttft", quantile=0.99, limit_s=float(draw.uniform(0.3, 2.0))),
            LatencyTarget(metric="itl", quantile=0.99, limit_s=float(draw.uniform(0.03, 0.12))),
        ),
        error_rate_fraction=0.001,
    )
    question = PlanQuestion(
        name="small",
        model=catalog.model(MODEL),
        slo=promise,
        candidates=candidates,
        rejected=(),
        prices=tuple(catalog.reference_price(str(gpu)).price for gpu in gpus),
        spare_replica_count=1,
        router="least_in_flight",
        seed=seed,
    )
    trace = workload.draw_trace(
        workload.Lengths.parse("900:4000"),
        workload.Lengths.parse("120:400"),
        mean_rate_per_s=float(draw.uniform(4.0, 25.0)),
        peak_to_mean=1.5,
        interarrival_cv=2.0,
        duration_s=45.0,
        seed=seed,
    )
    return question, trace


def brute_force_price(question, trace):
    """The least price of any count of any replica, each count replayed to its end and judged as a plan is."""
    traffic = Traffic(trace, workload.peak_window(trace))
    replays = Replays(question.slo, "least_in_flight")
    prices = {price.gpu: price.price_usd_per_gpu_hour for price in question.prices}
    found = []
    for replica in (*question.candidates, *step_variants(question)):
        layout = replica.deployment.layout
        for count in range(1, MOST):
            if replays.verdict(traffic, replica, count).kept:
                spare = question.spare_replica_count
                found.append((count + spare) * layout.gpu_count * prices[replica.deployment.gpu])
                break
    return min(found, default=None)


@pytest.mark.parametrize("seed", range(6))
def test_the_chosen_fleet_is_within_three_percent_of_brute_force(seed):
    question, trace = small_question(seed)
    best = brute_force_price(question, trace)
    made = cheapest(question, trace)
    assert (made.sized is None) == (best is None)
    if best is not None:
        assert made.sized.price_usd_per_hour <= 1.03 * best


@pytest.mark.parametrize("seed", range(4))
def test_whoever_is_shown_too_few_by_another_is_too_few(seed):
    question, trace = small_question(seed)
    kin = tuple(physics(gpu, tp, weights) for gpu in GPUS[:3] for tp in (1, 2) for weights in ("bf16", "fp8"))
    prices = tuple(catalog.reference_price(gpu).price for gpu in GPUS)
    question = replace(question, candidates=kin, prices=prices)
    traffic, silent = Traffic(trace, workload.peak_window(trace)), Reporter(None)
    replays = Replays(question.slo, "least_in_flight")
    screened = screen(question, traffic, step_variants(question), silent)
    found = Search(replays, traffic, question, silent).over(screened.candidates)
    shown = [one for one in found.tried if one.shown_by]
    assert shown
    for one in shown:
        assert not replays.verdict(traffic, one.replica, one.failed_count).kept


@pytest.mark.parametrize("seed", range(4))
def test_a_stopped_replay_decides_what_the_whole_one_does(seed, monkeypatch):
    monkeypatch.setattr("tokenfleet.planner.replays.FEW_REQUESTS", 0)
    question, trace = small_question(seed)
    traffic = Traffic(trace, workload.peak_window(trace))
    replays = Replays(question.slo, "least_in_flight")
    stopped = 0
    for replica in question.candidates:
        for count in (1, 2, 4):
            quick, whole = replays.quick(traffic, replica, count), replays.verdict(traffic, replica, count)
            in_peak = replays.quick(traffic, replica, count, peak_only=True)
            assert quick.kept == whole.kept
            assert in_peak.kept_in_peak == whole.kept_in_peak
            assert (quick.excess > CLEARLY) == (whole.excess > CLEARLY)
            assert quick.excess <= whole.excess
            assert quick.cut or quick == whole
            assert {one.name for one in quick.broken} <= {one.name for one in whole.broken}
            stopped += quick.cut
    assert stopped or all(replays.verdict(traffic, replica, 1).excess <= CLEARLY for replica in question.candidates)


class Onlooker:
    """Looks often, and stops nothing."""

    def __init__(self):
        self.seen = []

    def looks_s(self, last_s):
        return np.linspace(0.0, last_s, 7)[1:-1].tolist()

    def __call__(self, so_far):
        self.seen.append(so_far)
        return False


@pytest.mark.parametrize("seed", range(3))
def test_the_best_of_a_cut_record_is_a_lower_bound_of_every_clause(seed):
    question, trace = small_question(seed)
    clauses = Slo(
        latency=tuple(
            LatencyTarget(metric=metric, quantile=quantile, limit_s=1.0)
            for metric in ("ttft", "itl", "tpot", "e2e")
            for quantile in (0.5, 0.9, 0.99)
        ),
        error_rate_fraction=0.001,
    )
    replays = Replays(clauses, "least_in_flight")
    fleet = replays.fleet(question.candidates[0], 2)
    window_s = workload.peak_window(trace)
    onlooker = Onlooker()
    whole, seen = replay(trace, fleet, peak_window_s=window_s, hopeless=onlooker), onlooker.seen
    assert whole.cut_s is None
    assert at_best(whole) is whole
    assert [record.cut_s for record in seen] == onlooker.looks_s(trace.duration_s)
    for record in seen:
        for peak_only in (False, True):
            bounds = judge(at_best(record), clauses, peak_only=peak_only, window_s=window_s)
            truth = judge(whole, clauses, peak_only=peak_only, window_s=window_s)
            assert all(bound.predicted <= value.predicted for bound, value in zip(bounds, truth, strict=True))
