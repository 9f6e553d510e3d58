import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.trace import PrefixTree, Trace
from tokenfleet.workload import draw_trace, load_profile, profile, profile_document, save_profile, synthesize_like
from tokenfleet.workload.joint import count_pairs, fixed_edges
from tokenfleet.workload.lengths import Lengths
from tokenfleet.workload.profiling import describe
from tokenfleet.workload.tally import add, interarrival_cv, tally_of


def trace_of(arrival_s, input_tokens=None, output_tokens=None, **more):
    arrival_s = np.asarray(arrival_s, dtype=np.float64)
    full = np.full(len(arrival_s), 10, dtype=np.int32)
    return Trace(
        arrival_s=arrival_s,
        input_tokens=full if input_tokens is None else np.asarray(input_tokens, dtype=np.int32),
        output_tokens=full if output_tokens is None else np.asarray(output_tokens, dtype=np.int32),
        **more,
    )


def test_minutes_count_from_second_0_and_a_broken_last_one_is_left_out():
    found = profile(trace_of([0, 1, 2, 61, 125, 126, 127, 128, 130]))
    assert found.minute_requests.tolist() == [3, 1, 5]
    assert found.peak_to_mean_minute_requests == pytest.approx(3 / 2)
    assert found.peak_minute_rate_per_s == pytest.approx(3 / 60)


def test_a_last_minute_that_is_nearly_over_counts():
    found = profile(trace_of([0, 30, 61, 70, 80, 119.5]))
    assert found.peak_to_mean_minute_requests == pytest.approx(4 / 3)


def test_peak_minute_is_the_one_with_most_tokens():
    found = profile(trace_of([0, 1, 2, 61, 119.9], input_tokens=[1, 1, 1, 5000, 5000]))
    assert found.peak_minute_start_s == 60
    assert found.peak_to_mean_minute_tokens > 1.9


def test_quantiles_are_numpys():
    rng = np.random.default_rng(2)
    tokens = rng.integers(1, 5000, 1001)
    found = profile(trace_of(np.sort(rng.uniform(0, 900, 1001)), input_tokens=tokens)).input_tokens
    assert [found.p50, found.p90, found.p95, found.p99] == pytest.approx(
        list(np.quantile(tokens, [0.5, 0.9, 0.95, 0.99]))
    )
    assert found.mean == pytest.approx(tokens.mean())


def test_gap_variation_is_numpys_and_unknown_for_two_requests():
    times = np.sort(np.random.default_rng(1).exponential(3, 500).cumsum())
    gaps = np.diff(times)
    assert profile(trace_of(times)).interarrival_cv == pytest.approx(gaps.std() / gaps.mean(), rel=1e-6)
    assert math.isnan(profile(trace_of([0, 5])).interarrival_cv)


def test_shareable_input_is_counted_by_hand():
    tree = PrefixTree(parent=np.array([-1, 0], dtype=np.int32), token_count=np.array([100, 50], dtype=np.int32))
    trace = trace_of(
        [0, 1, 2, 3],
        input_tokens=[200, 200, 120, 90],
        prefixes=tree,
        prefix_node=np.array([1, 1, 0, -1], dtype=np.int32),
    )
    # First: nothing yet. Second: both nodes. Third: the root alone. Fourth: nothing shared.
    assert profile(trace).shareable_input_fraction == pytest.approx((150 + 100) / 610)


def test_no_prefixes_means_unknown_and_not_zero():
    assert profile(trace_of([0, 1])).shareable_input_fraction is None


def test_an_empty_trace_is_refused():
    with pytest.raises(BadInput, match="no requests"):
        profile(trace_of([]))


def test_bins_are_at_most_nine_percent_wide_and_hold_their_edges():
    edges = fixed_edges()
    wide = edges[17:]
    assert np.all(np.diff(edges) > 0)
    assert np.all(np.diff(wide) / wide[:-1] < 0.125)
    pairs = count_pairs(np.array([0, 15, 16, 5_000_000], dtype=np.int32), np.array([1, 2, 3, 4], dtype=np.int32), edges)
    assert pairs.sum() == 4
    assert pairs[0, 1] == pairs[15, 2] == pairs[16, 3] == pairs[-1, 4] == 1


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(1, 399), seed=st.integers(0, 5))
def test_profiles_of_parts_add_up_exactly(cut, seed):
    whole = draw_trace(
        Lengths.parse("300:900"), Lengths.parse("50"), mean_rate_per_s=2, duration_s=200, peak_to_mean=1.2, seed=seed
    )
    whole = replace(whole, tenant=(np.arange(400) % 3).astype(np.int32), tenants=("a", "b", "c"))
    parts = [
        replace(
            whole,
            arrival_s=whole.arrival_s[part],
            input_tokens=whole.input_tokens[part],
            output_tokens=whole.output_tokens[part],
            tenant=whole.tenant[part],
        )
        for part in (slice(0, cut), slice(cut, None))
    ]
    quality = profile(whole).quality
    first, second = tally_of(parts[0]), tally_of(parts[1])
    merged = profile_document(describe(add(first, second), quality))
    assert merged == profile_document(describe(tally_of(whole), quality))
    assert merged == profile_document(describe(add(second, first), quality))


def test_parts_that_overlap_leave_the_gaps_unknown():
    first, second = tally_of(trace_of([0, 10, 20])), tally_of(trace_of([5, 15, 25]))
    assert math.isnan(interarrival_cv(add(first, second)))


def test_a_saved_profile_comes_back_exactly(tmp_path):
    trace = draw_trace(Lengths.parse("300:900"), Lengths.parse("50"), mean_rate_per_s=2, duration_s=400, seed=3)
    found = profile(trace)
    path = save_profile(found, tmp_path / "p.json")
    back = load_profile(path)
    assert profile_document(back) == profile_document(found)
    assert synthesize_like(back, seed=1).arrival_s.tobytes() == synthesize_like(found, seed=1).arrival_s.tobytes()
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "no workload profile"),
        ('{"kind": "tokenfleet workload profile", "version": 9}', "version 9"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path, text, words):
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=words):
        load_profile(path)


def test_a_damaged_profile_is_refused(tmp_path):
    path = save_profile(profile(trace_of([0, 1, 2])), tmp_path / "p.json")
    document = json.loads(path.read_text())
    del document["minute_requests"]
    path.write_text(json.dumps(document))
    with pytest.raises(BadInput, match="damaged"):
        load_profile(path)
    with pytest.raises(BadInput, match="no such file"):
        load_profile(tmp_path / "q.json")
