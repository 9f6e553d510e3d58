"""Open-loop runs of a CPU engine, predicted from its calibration runs; the bounds are what was reached, and a bit."""

import numpy as np
import pytest

from fidelity import cpu_runs
from fidelity.errors import METRICS
from shared import SHARED, needs_shared

pytestmark = [pytest.mark.shared, pytest.mark.long, needs_shared]

UNFIT_SHARE = 0.35
"""Where others used more of the machine than this, the measurement says little of the engine."""
NAMES = cpu_runs.run_names() if SHARED.is_dir() else []
FIT = [name for name in NAMES if cpu_runs.foreign_share(name) <= UNFIT_SHARE]
REACHED = {"ttft": 0.32, "tpot": 0.26, "e2e": 0.22}
"""Largest error over runs and over mean, p50, p95 and p99."""


def test_the_fit_explains_its_own_runs() -> None:
    residuals = np.abs(cpu_runs.fitted().residual_fractions)
    assert np.median(residuals) < 0.025
    assert np.percentile(residuals, 90) < 0.1


def test_most_runs_are_fit_to_judge_by() -> None:
    assert len(FIT) >= 9
    assert {"kv_full_burst", "poisson_overload_r8", "poisson_r3_quiet", "poisson_r5_quiet"} <= set(FIT)


@pytest.mark.parametrize("name", FIT)
@pytest.mark.parametrize("metric", METRICS)
def test_latencies(name, metric) -> None:
    errors = cpu_runs.run(name).errors(metric)
    assert max(map(abs, errors.values())) < REACHED[metric], errors


@pytest.mark.parametrize("name", ["poisson_r5_quiet", "poisson_overload_r8"])
def test_latencies_near_and_above_saturation(name) -> None:
    errors = [abs(error) for metric in METRICS for error in cpu_runs.run(name).errors(metric).values()]
    assert max(errors) < 0.16


@pytest.mark.parametrize("name", NAMES)
def test_throughput(name) -> None:
    assert abs(cpu_runs.run(name).makespan_error) < 0.05


@pytest.mark.parametrize("name", NAMES)
def test_preemptions(name) -> None:
    run = cpu_runs.run(name)
    assert run.predicted.preemption_count.sum() == run.measured.preemption_count
