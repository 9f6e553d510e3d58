from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfleet import workload
from tokenfleet.domain.trace import Observed, PrefixTree, Trace
from tokenfleet.planner.traffic import Traffic, cut, demand, stretch, with_inputs_capped
from unit.planner import toy


def test_a_stretch_keeps_the_labels_by_which_pools_take_requests():
    trace = toy.trace(count=400)
    labels = (np.arange(400) % 3).astype(np.int32)
    seen = Observed(label=labels, labels=("a", "b", "c"), ttft_s=np.ones(400))
    short = cut(Traffic(replace(trace, observed=seen), (5.0, 15.0)), 100, 250).trace
    assert np.array_equal(short.observed.label, labels[100:250])
    assert short.observed.labels == ("a", "b", "c")
    assert short.observed.ttft_s is None, "what happened to them is left behind"


def forest(draw_nodes, requests):
    parent = np.array([min(p, i - 1) for i, p in enumerate(draw_nodes)], dtype=np.int32)
    tree = PrefixTree(parent=parent, token_count=np.arange(1, len(parent) + 1, dtype=np.int32))
    count = len(requests)
    return Trace(
        arrival_s=np.arange(count, dtype=float) + 5.0,
        input_tokens=np.full(count, 10_000, dtype=np.int32),
        output_tokens=np.full(count, 7, dtype=np.int32),
        prefix_node=np.array([min(node, len(parent) - 1) for node in requests], dtype=np.int32),
        prefixes=tree,
    )


@given(
    nodes=st.lists(st.integers(-1, 12), min_size=1, max_size=12),
    requests=st.lists(st.integers(-1, 11), min_size=2, max_size=20),
    data=st.data(),
)
def test_a_cut_keeps_what_each_request_shares_and_drops_the_rest(nodes, requests, data):
    trace = forest(nodes, requests)
    first = data.draw(st.integers(0, len(requests) - 1))
    last = data.draw(st.integers(first + 1, len(requests)))
    short = cut(Traffic(trace, (5.0, 6.0 + len(requests))), first, last).trace
    whole_depth, short_depth = trace.prefixes.depth_tokens, short.prefixes.depth_tokens
    for index in range(last - first):
        was, now = trace.prefix_node[first + index], short.prefix_node[index]
        assert (was < 0) == (now < 0)
        if was >= 0:
            assert whole_depth[was] == short_depth[now]
    assert np.all(short.prefixes.parent < np.arange(len(short.prefixes.parent)))
    assert len(short.prefixes.parent) <= len(trace.prefixes.parent)


def test_a_cut_starts_its_clock_no_later_than_the_window():
    trace = toy.trace(count=100, rate=1.0)
    start = float(trace.arrival_s[50]) - 0.001
    short = cut(Traffic(trace, (start, start + 10.0)), 50, 90)
    assert short.window_s[0] == 0.0
    assert short.trace.arrival_s[0] == pytest.approx(0.001)
    assert (
        demand(short, caching=False).rate_per_s
        == demand(Traffic(trace, (start, start + 10.0)), caching=False).rate_per_s
    )


@pytest.mark.parametrize("limit", [50, 200, 500])
def test_a_stretch_holds_the_peak_and_keeps_to_its_limit(limit):
    trace = toy.trace(count=2000, rate=10.0)
    window = (100.0, 103.0)
    whole = Traffic(trace, window)
    short = stretch(whole, limit)
    assert short.trace.request_count <= limit
    assert demand(short, caching=False).rate_per_s == pytest.approx(demand(whole, caching=False).rate_per_s)
    assert short.trace.arrival_s[0] >= 0.0
    assert stretch(whole, 2000) is whole


def test_capped_prompts_keep_their_prefix_only_as_far_as_they_reach():
    tree = PrefixTree(parent=np.array([-1, 0], dtype=np.int32), token_count=np.array([100, 400], dtype=np.int32))
    trace = Trace(
        arrival_s=np.arange(3, dtype=float),
        input_tokens=np.array([600, 600, 90], dtype=np.int32),
        output_tokens=np.ones(3, dtype=np.int32),
        prefix_node=np.array([0, 1, 0], dtype=np.int32),
        prefixes=tree,
    )
    capped = with_inputs_capped(Traffic(trace, (0.0, 3.0)), 200).trace
    assert capped.input_tokens.tolist() == [200, 200, 90]
    assert capped.prefix_node.tolist() == [0, -1, 0]
    whole = workload.cut_requests(replace(trace, output_tokens=np.array([50, 700, 1], dtype=np.int32)), 300)
    assert (whole.input_tokens.tolist(), whole.output_tokens.tolist()) == ([250, 1, 90], [50, 299, 1])
