"""Short series that keep the worst of the long ones."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.app.report.latency import best_of
from tokenfleet.app.report.sampling import in_buckets, over_time


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=500), st.integers(1, 50))
def test_buckets_keep_the_maximum_and_the_mean(values, points):
    series = np.array(values)
    buckets = in_buckets(series, points)
    assert len(buckets.start) <= points
    assert buckets.highest.max() == series.max()
    sizes = np.diff(np.append(buckets.start, len(series)))
    assert np.isclose((buckets.mean * sizes).sum(), series.sum())


def test_short_series_stay_as_they_are():
    buckets = in_buckets(np.array([3, 1, 2]))
    assert buckets.highest.tolist() == [3, 1, 2]
    assert buckets.note("minutes") == ""
    assert in_buckets(np.array([], dtype=np.int64)).highest.size == 0


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 50) | st.just(float("nan"))), min_size=1, max_size=80))
def test_time_buckets_match_a_plain_reading(pairs):
    arrival = np.sort(np.array([pair[0] for pair in pairs]))
    values = np.array([pair[1] for pair in pairs])
    seen = over_time(arrival, values, buckets=7)
    known = np.isfinite(values)
    if not known.any():
        assert seen.start_s.size == 0
        return
    first = arrival.min()
    place = np.minimum(((arrival[known] - first) / seen.width_s).astype(int), 6)
    for bucket in range(7):
        inside = values[known][place == bucket]
        if len(inside):
            assert seen.highest[bucket] == inside.max()
            assert np.isclose(seen.median[bucket], np.median(inside))
        else:
            assert np.isnan(seen.highest[bucket])


def test_the_frontier_drops_what_is_beaten():
    places = [(10.0, 2.0), (12.0, 2.5), (12.0, 1.0), (20.0, 1.0), (30.0, 0.5)]
    assert best_of(places) == [(10.0, 2.0), (12.0, 1.0), (30.0, 0.5)]
