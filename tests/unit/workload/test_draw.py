import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfleet.domain.errors import BadInput
from tokenfleet.workload import Lengths, draw_trace, profile
from tokenfleet.workload.arrivals import fit_into_minutes, peaked_counts, renewal_cv_for

SHORT = Lengths.parse("700:1500")


def draw(**changes):
    settings_ = {"mean_rate_per_s": 20.0, "duration_s": 1800.0, "seed": 7, **changes}
    return draw_trace(SHORT, Lengths.parse("200"), **settings_)


def test_rate_peak_and_burstiness_are_those_asked_for():
    found = profile(draw())
    assert found.request_count == 36_000
    assert found.mean_rate_per_s == pytest.approx(20, rel=1e-3)
    assert found.peak_minute_rate_per_s == pytest.approx(40, abs=0.02)
    assert found.peak_to_mean_minute_requests == pytest.approx(2.0, abs=1e-3)
    assert found.interarrival_cv == pytest.approx(2.0, rel=0.08)


@pytest.mark.parametrize("cv", [0.5, 1.0, 4.0])
def test_burstiness_can_be_chosen(cv):
    # A clock-like stream cannot be had when minutes differ: the lowest possible is that of the minutes.
    assert profile(draw(interarrival_cv=cv, peak_to_mean=1.0)).interarrival_cv == pytest.approx(cv, rel=0.1)


def test_same_seed_same_bytes_and_another_seed_others():
    first, again, other = draw(), draw(), draw(seed=8)
    assert first.arrival_s.tobytes() == again.arrival_s.tobytes()
    assert first.input_tokens.tobytes() == again.input_tokens.tobytes()
    assert first.arrival_s.tobytes() != other.arrival_s.tobytes()


def test_columns_have_streams_of_their_own():
    plain, longer = (
        draw(),
        draw_trace(Lengths.parse("5k"), Lengths.parse("200"), mean_rate_per_s=20, duration_s=1800, seed=7),
    )
    assert plain.arrival_s.tobytes() == longer.arrival_s.tobytes()
    assert plain.output_tokens.tobytes() == longer.output_tokens.tobytes()


def test_joint_lengths_of_a_profile_stay_joint():
    tokens = np.arange(1, 2001, dtype=np.int32)
    from tokenfleet.domain.trace import Trace

    source = profile(Trace(arrival_s=np.arange(2000) * 1.0, input_tokens=tokens, output_tokens=2001 - tokens))
    drawn = draw_trace(*Lengths.from_profile(source), mean_rate_per_s=10, duration_s=1000, seed=1)
    assert np.corrcoef(drawn.input_tokens, drawn.output_tokens)[0, 1] < -0.98
    with pytest.raises(BadInput, match="the other is not"):
        draw_trace(Lengths.from_profile(source)[0], SHORT, mean_rate_per_s=10, duration_s=100)


def test_every_bad_number_is_named_at_once():
    with pytest.raises(BadInput) as error:
        draw(mean_rate_per_s=-1, duration_s=0, interarrival_cv=-2, seed=-1)
    assert {problem.where for problem in error.value.problems} == {
        "mean_rate_per_s",
        "duration_s",
        "interarrival_cv",
        "seed",
    }
    with pytest.raises(BadInput, match="1 or more"):
        draw(peak_to_mean=0.5)
    with pytest.raises(BadInput, match="at least"):
        draw(duration_s=300, peak_to_mean=8)
    with pytest.raises(BadInput, match="no request"):
        draw(mean_rate_per_s=0.001, duration_s=60, peak_to_mean=1)


def test_a_trace_shorter_than_a_minute_can_be_drawn():
    trace = draw(duration_s=30, peak_to_mean=1)
    assert trace.request_count == 600
    assert trace.arrival_s[-1] < 30


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(lambda counts: sum(counts) > 0),
    gaps=st.lists(st.floats(0, 1e3), min_size=400, max_size=400),
)
def test_fitting_puts_each_request_into_its_minute(counts, gaps):
    counts = np.array(counts)
    times = np.cumsum(gaps[: counts.sum()])
    arrival = fit_into_minutes(times, counts, 60.0 * len(counts))
    assert np.all(np.diff(arrival) >= 0)
    assert np.array_equal(np.bincount((arrival // 60).astype(int), minlength=len(counts)), counts)


@settings(max_examples=60, deadline=None)
@given(
    load=st.lists(st.floats(0, 100), min_size=2, max_size=40).filter(lambda load: sum(load) > 0),
    total=st.integers(1, 5000),
    ratio=st.floats(1, 1.8),
    rest=st.floats(0, 59),
)
def test_peaked_counts_add_up_and_nothing_passes_the_peak(load, total, ratio, rest):
    duration_s = 60.0 * len(load) + rest
    peak = ratio * total * 60 / duration_s
    counts = peaked_counts(np.array(load), total, peak, duration_s)
    assert counts.sum() == total
    assert counts.min() >= 0
    whole = counts[: len(load)]
    assert whole.max() <= max(round(peak), -(-int(whole.sum()) // len(load)))


def test_the_mixture_formula_is_that_of_a_two_rate_stream():
    shape = np.array([0.5, 1.5])
    inside = renewal_cv_for(2.0, shape)
    rng = np.random.default_rng(0)
    k = 1 / inside**2
    gaps = np.concatenate([rng.gamma(k, 1 / (k * rate), int(200_000 * rate)) for rate in shape])
    assert gaps.std() / gaps.mean() == pytest.approx(2.0, rel=0.02)


def test_importing_the_room_does_not_load_polars():
    code = (
        "import sys, tokenfleet.workload as w; names = ('polars', 'scipy', 'tokenfleet.workload.read');"
        "found = [name for name in names if name in sys.modules];"
        "assert all(getattr(w, name) for name in w.__all__); sys.exit(found != [])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
