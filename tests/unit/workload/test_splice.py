from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.domain.errors import BadInput
from tokenfleet.workload import Lengths, draw_trace, profile, shared_input_tokens, splice, stretch, synthesize


def test_stretching_slows_the_clock_and_keeps_the_requests():
    trace = synthesize("chat", peak_rate_per_s=5, duration_s=600, seed=1)
    slow = stretch(trace, 2)
    assert slow.duration_s == pytest.approx(2 * trace.duration_s)
    assert profile(slow).interarrival_cv == pytest.approx(profile(trace).interarrival_cv)
    assert slow.input_tokens is trace.input_tokens
    with pytest.raises(BadInput, match="doubles the time"):
        stretch(trace, 0)


def test_an_event_comes_on_top_and_shares_nothing():
    usual = synthesize("agents", peak_rate_per_s=3, duration_s=600, seed=1)
    launch = synthesize("chat", peak_rate_per_s=9, duration_s=180, seed=2)
    usual = replace(usual, tenant=np.zeros(usual.request_count, dtype=np.int32), tenants=("blue",))
    launch = replace(launch, tenant=(np.arange(launch.request_count) % 2).astype(np.int32), tenants=("red", "blue"))
    both = splice(usual, launch, 240)
    assert both.request_count == usual.request_count + launch.request_count
    assert np.all(np.diff(both.arrival_s) >= 0)
    during = (both.arrival_s >= 240) & (both.arrival_s < 420)
    alone = (usual.arrival_s >= 240) & (usual.arrival_s < 420)
    assert during.sum() == alone.sum() + launch.request_count
    assert len(np.unique(both.session)) == len(np.unique(usual.session)) + len(np.unique(launch.session))
    assert shared_input_tokens(both).sum() == shared_input_tokens(usual).sum() + shared_input_tokens(launch).sum()
    counts = profile(both).tenant_request_counts
    assert both.tenants == ("blue", "red")
    assert counts["red"] == (launch.tenant == 0).sum()


def test_an_event_without_sessions_joins_one_with():
    usual = synthesize("chat", peak_rate_per_s=3, duration_s=300, seed=1)
    job = draw_trace(
        Lengths.parse("2000"), Lengths.parse("100"), mean_rate_per_s=5, duration_s=120, peak_to_mean=1, seed=3
    )
    both = splice(usual, job, 60)
    assert (both.session == -1).sum() == job.request_count
    assert (both.prefix_node == -1).sum() == job.request_count + (usual.prefix_node == -1).sum()
    with pytest.raises(BadInput, match="second 0"):
        splice(usual, job, -1)
