"""Traffic drawn from a profile has the sessions, prompts and clients of its source, within stated tolerances."""

from functools import cache

import numpy as np
import pytest

from tokenfleet.domain.trace import Trace
from tokenfleet.workload import (
    grow,
    load_profile,
    profile,
    profile_document,
    save_profile,
    shared_input_tokens,
    splice,
    stretch,
    synthesize,
    synthesize_like,
)

SOURCES = {
    "chat": {"peak_rate_per_s": 8, "duration_s": 2400},
    "agents": {"peak_rate_per_s": 8, "duration_s": 2400},
    "rag": {"peak_rate_per_s": 8, "duration_s": 2400},
    "multitenant": {"peak_rate_per_s": 20, "duration_s": 2400},
}


@cache
def source(name):
    trace = synthesize(name, seed=1, **SOURCES[name])
    return trace, profile(trace)


@cache
def drawn(name):
    trace = synthesize_like(source(name)[1], seed=5)
    return trace, profile(trace)


@pytest.mark.parametrize("name", SOURCES)
def test_lengths_and_load_are_those_of_the_source(name):
    one, two = source(name)[1], drawn(name)[1]
    assert two.request_count == one.request_count
    for side in ("input_tokens", "output_tokens"):
        for quantile in ("p50", "p90", "p95", "p99", "mean"):
            assert getattr(getattr(two, side), quantile) == pytest.approx(
                getattr(getattr(one, side), quantile), rel=0.03
            )
    assert two.peak_to_mean_minute_requests == pytest.approx(one.peak_to_mean_minute_requests, rel=0.01)
    assert two.peak_to_mean_minute_tokens == pytest.approx(one.peak_to_mean_minute_tokens, rel=0.06)
    assert two.interarrival_cv == pytest.approx(one.interarrival_cv, rel=0.05)


@pytest.mark.parametrize("name", SOURCES)
def test_sessions_are_those_of_the_source(name):
    one, two = (found.extra["sessions"] for found in (source(name)[1], drawn(name)[1]))
    assert two["count"] == pytest.approx(one["count"], rel=0.02)
    for quantile in ("p50", "p95", "p99", "mean"):
        assert two["turns"][quantile] == pytest.approx(one["turns"][quantile], rel=0.05)
    assert ("input_growth_tokens" in one) == ("input_growth_tokens" in two)
    if "input_growth_tokens" in one:
        for key, quantiles in (("input_growth_tokens", ("p50", "p95", "mean")), ("pause_s", ("p50", "p90", "mean"))):
            for quantile in quantiles:
                assert two[key][quantile] == pytest.approx(one[key][quantile], rel=0.15), (key, quantile)


@pytest.mark.parametrize("name", ["chat", "agents", "rag"])
def test_prompts_share_what_those_of_the_source_share(name):
    one, two = source(name)[1], drawn(name)[1]
    assert two.shareable_input_fraction == pytest.approx(one.shareable_input_fraction, abs=0.02)
    trace = drawn(name)[0]
    tree, node = trace.prefixes, trace.prefix_node
    assert np.all(tree.parent < np.arange(len(tree.parent)))
    assert tree.token_count.min() > 0
    known = node >= 0
    held = trace.input_tokens.astype(np.int64) + trace.output_tokens
    assert np.all(tree.depth_tokens[node[known]] <= held[known])


def test_each_client_bunches_and_writes_as_it_did():
    trace, one = source("multitenant")
    two = drawn("multitenant")[1]
    before, after = ({client.name: client for client in found.clients} for found in (one, two))
    assert len(before) >= 20
    for name in list(before)[:10]:
        assert after[name].request_count == pytest.approx(before[name].request_count, rel=0.02)
        assert after[name].gap_cv == pytest.approx(before[name].gap_cv, rel=0.35)
        groups = (found.extra["tenants"][name] for found in (one, two))
        left, right = groups
        for key in ("input_tokens_p50", "input_tokens_p95", "output_tokens_p50"):
            assert right[key] == pytest.approx(left[key], rel=0.15)
    bursty, calm = (sorted(before.values(), key=lambda client: client.gap_cv)[place] for place in (-1, 0))
    assert after[bursty.name].gap_cv > 2 * after[calm.name].gap_cv
    assert trace.tenants[0] in before


def test_the_same_seed_draws_the_same_bytes_and_a_file_in_between_changes_nothing(tmp_path):
    kept = load_profile(save_profile(source("chat")[1], tmp_path / "profile.json"))
    assert profile_document(kept) == profile_document(source("chat")[1])
    again = synthesize_like(kept, seed=5)
    for name in ("arrival_s", "input_tokens", "output_tokens", "session", "prefix_node"):
        assert getattr(again, name).tobytes() == getattr(drawn("chat")[0], name).tobytes()


def test_more_and_slower_and_spliced_sessions_stay_sessions():
    described = source("chat")[1]
    turns = described.extra["sessions"]["turns"]
    more = synthesize_like(described, rate_factor=2, seed=2)
    assert more.request_count == pytest.approx(2 * described.request_count, rel=0.01)
    slower, grown = stretch(more, 3), grow(more, 1.5)
    event = synthesize_like(source("agents")[1], duration_s=300, seed=3)
    both = splice(more, event, 600)
    for trace in (more, slower, grown):
        assert profile(trace).extra["sessions"]["turns"]["mean"] == pytest.approx(turns["mean"], rel=0.05)
        assert_repeats(trace, described.shareable_input_fraction)
    pauses = [profile(trace).extra["sessions"]["pause_s"]["p50"] for trace in (more, slower)]
    assert pauses[1] == pytest.approx(3 * pauses[0], rel=1e-6)
    assert len(np.unique(both.session)) == len(np.unique(more.session)) + len(np.unique(event.session))
    assert both.request_count == more.request_count + event.request_count


def assert_repeats(trace: Trace, share: float):
    served = shared_input_tokens(trace).sum() / trace.input_tokens.sum(dtype=np.int64)
    assert served == pytest.approx(share, abs=0.03)


def test_a_short_draw_cuts_sessions_and_loses_no_request():
    described = source("agents")[1]
    short = synthesize_like(described, duration_s=120, seed=4)
    assert short.duration_s <= 120
    assert short.request_count == pytest.approx(described.minute_requests[:2].sum(), abs=2)
    assert np.all(short.session >= 0)


def test_what_a_source_does_not_tell_is_not_drawn():
    trace = Trace(
        arrival_s=np.arange(300) * 0.7,
        input_tokens=np.full(300, 50, dtype=np.int32),
        output_tokens=np.full(300, 9, dtype=np.int32),
        session=(np.arange(300, dtype=np.int32) // 3),
    )
    found = synthesize_like(profile(trace), seed=1)
    assert found.prefixes is None
    assert profile(found).shareable_input_fraction is None
    assert profile(found).extra["sessions"]["turns"]["max"] == 3
