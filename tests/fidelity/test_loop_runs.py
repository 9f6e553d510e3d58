"""Closed loops of InferenceX, replayed with the shipped physics; the bounds are what was reached, and a bit."""

from collections import defaultdict

import numpy as np
import pytest

from fidelity import loop_runs
from fidelity.errors import METRICS
from shared import needs_shared

pytestmark = [pytest.mark.shared, needs_shared]

HANDFUL = range(0, 124, 16)
"""Places in the side experiment: both models, prompts and loads of all sizes."""
REACHED_ALONE = {"ttft": 0.95, "tpot": 1.2, "e2e": 0.75}
"""Largest error of a row of the handful at p50 or p99. Most are too fast: the page says why."""
REACHED = {
    "vllm": {"ttft": 0.18, "tpot": 0.07, "e2e": 0.06},
    "sglang": {"ttft": 0.3, "tpot": 0.14, "e2e": 0.14},
    "trtllm": {"ttft": 0.38, "tpot": 0.13, "e2e": 0.12},
}
"""Median size of the error over the dashboard's rows that the lint trusts, read as means."""


@pytest.mark.parametrize("place", HANDFUL)
def test_a_row_of_the_side_experiment(place) -> None:
    run = loop_runs.side_run(place)
    for metric in METRICS:
        errors = run.errors(metric)
        assert set(errors) == {"p50", "p99"}
        assert max(map(abs, errors.values())) < REACHED_ALONE[metric], errors


@pytest.mark.parametrize("place", HANDFUL)
def test_the_loop_is_closed(place) -> None:
    run = loop_runs.side_run(place)
    arrival_s, finish_s = run.predicted.arrival_s, run.predicted.finish_s
    assert len(arrival_s) == run.row.request_count
    assert np.isfinite(finish_s).all()
    in_flight = [((arrival_s <= time_s) & (finish_s > time_s)).sum() for time_s in arrival_s]
    assert max(in_flight) == run.row.concurrency


def test_the_lengths_are_what_the_clients_counted() -> None:
    for row, record in loop_runs.side_rows():
        counted = record["total_tok_s"] * record["duration_s"] / row.request_count
        assert counted == pytest.approx(row.input_tokens + row.output_tokens, rel=1e-3)


def test_with_the_speed_known_the_middle_of_e2e_is_met() -> None:
    errors = [loop_runs.matched_side_run(place).errors("e2e")["p50"] for place in HANDFUL]
    assert np.median(np.abs(errors)) < 0.1


@pytest.mark.long
def test_the_dashboard() -> None:
    errors = defaultdict(list)
    trusted = (row for row in loop_runs.dashboard_rows() if row.row_id not in loop_runs.linted().flagged)
    for run in map(loop_runs.dashboard_run, trusted):
        for metric in METRICS:
            errors[run.row.engine, metric].append(abs(run.errors(metric)["mean"]))
    assert {(engine, metric) for engine in REACHED for metric in METRICS} == set(errors)
    for (engine, metric), sizes in errors.items():
        assert np.median(sizes) < REACHED[engine][metric], (engine, metric, np.median(sizes))
