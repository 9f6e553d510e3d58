from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.trace import Trace
from tokenfleet.workload import (
    Lengths,
    draw_trace,
    grow,
    peak_window,
    profile,
    read_trace,
    repeated,
    synthesize,
    write_trace,
)


@pytest.fixture(scope="module")
def plain():
    return draw_trace(Lengths.parse("700:1500"), Lengths.parse("200"), mean_rate_per_s=15, duration_s=1800, seed=2)


@pytest.fixture(scope="module")
def chat():
    return synthesize("chat", peak_rate_per_s=15, duration_s=1800, seed=2)


@pytest.mark.parametrize("factor", [0.5, 1.3, 2.0, 3.7])
@pytest.mark.parametrize("kind", ["plain", "chat"])
def test_rate_peak_and_mix_scale_and_the_clock_stays(request, kind, factor):
    trace = request.getfixturevalue(kind)
    before, after = profile(trace), profile(grow(trace, factor))
    assert after.request_count == pytest.approx(before.request_count * factor, rel=0.01)
    assert after.peak_minute_rate_per_s == pytest.approx(before.peak_minute_rate_per_s * factor, rel=0.05)
    assert after.peak_to_mean_minute_tokens == pytest.approx(before.peak_to_mean_minute_tokens, rel=0.07)
    assert after.input_tokens.mean == pytest.approx(before.input_tokens.mean, rel=0.02)
    assert after.output_tokens.p95 == pytest.approx(before.output_tokens.p95, rel=0.04)
    assert after.interarrival_cv == pytest.approx(before.interarrival_cv, rel=0.35)
    assert after.duration_s <= before.duration_s


@pytest.mark.parametrize("factor", [0.5, 1.3, 2.0])
def test_sessions_stay_whole_and_their_prefixes_their_own(chat, factor):
    grown = grow(chat, factor)
    before, after = profile(chat), profile(grown)
    assert after.shareable_input_fraction == pytest.approx(before.shareable_input_fraction, abs=0.01)
    depth = grown.prefixes.depth_tokens
    order = np.lexsort((grown.arrival_s, grown.session))
    session, node = grown.session[order], grown.prefix_node[order]
    follows = np.flatnonzero(np.diff(session) == 0)
    assert np.all(grown.input_tokens[order][follows + 1] > depth[node[follows]])
    private = grown.prefixes.parent[node[follows]] >= 0
    owners = {}
    for owner, mine in zip(session[follows][private].tolist(), node[follows][private].tolist(), strict=True):
        assert owners.setdefault(mine, owner) == owner


def test_a_demand_comes_again_with_other_people(chat):
    again = repeated(chat, 3)
    assert again.request_count == 3 * chat.request_count
    first = again.arrival_s < 1800.0
    # The first time is the demand itself, but for what its prefix tree numbers.
    np.testing.assert_array_equal(again.arrival_s[first], chat.arrival_s)
    np.testing.assert_array_equal(again.input_tokens[first], chat.input_tokens)
    counts = np.bincount((again.arrival_s // 1800.0).astype(int))
    assert counts.tolist() == [chat.request_count] * 3
    assert len(np.unique(again.session)) == 3 * len(np.unique(chat.session))
    # What conversations have of their own is shared with nobody of the times before.
    before, after = profile(chat), profile(again)
    assert after.shareable_input_fraction == pytest.approx(before.shareable_input_fraction, abs=0.01)
    assert repeated(chat, 1) is chat


def test_a_factor_of_one_is_the_trace_itself(plain):
    assert grow(plain, 1) is plain


def test_growth_is_the_same_each_time(plain):
    assert grow(plain, 1.7).arrival_s.tobytes() == grow(plain, 1.7).arrival_s.tobytes()


@pytest.mark.parametrize("factor", [0, -1, 1e9, float("nan")])
def test_factors_out_of_range_are_refused(plain, factor):
    with pytest.raises(BadInput, match="factor above 0"):
        grow(plain, factor)


def test_a_factor_that_leaves_nothing_is_refused():
    tokens = np.ones(2, dtype=np.int32)
    with pytest.raises(BadInput, match="leaves no request"):
        grow(Trace(arrival_s=np.array([0.0, 1.0]), input_tokens=tokens, output_tokens=tokens), 0.1)


def test_peak_window_is_the_busiest_minute_by_tokens():
    arrival = np.concatenate([np.linspace(60 * k, 60 * k + 59, 600) for k in range(5)])
    tokens = np.full(3000, 10, dtype=np.int32)
    tokens[1800:2400] = 11
    trace = Trace(arrival_s=arrival, input_tokens=tokens, output_tokens=np.ones(3000, dtype=np.int32))
    assert peak_window(trace) == (180, 240)


def test_peak_window_widens_to_the_busier_side():
    arrival = np.concatenate([np.linspace(60 * k, 60 * k + 59, n) for k, n in enumerate((100, 250, 300, 200, 100))])
    tokens = np.full(len(arrival), 10, dtype=np.int32)
    trace = Trace(arrival_s=arrival, input_tokens=tokens, output_tokens=tokens)
    assert peak_window(trace) == (60, 180)
    assert peak_window(trace, least_count=700) == (60, 240)
    assert peak_window(trace, least_count=10**6)[0] == 0
    assert peak_window(trace, least_count=10**6)[1] >= trace.duration_s


def test_a_written_trace_comes_back_byte_for_byte(tmp_path, chat):
    path = write_trace(replace(chat, time_of_day_s=3600.5), tmp_path / "chat.parquet")
    back, quality = read_trace(path)
    assert back.time_of_day_s == 3600.5
    for name in ("arrival_s", "input_tokens", "output_tokens", "prefix_node", "session"):
        assert getattr(back, name).tobytes() == getattr(chat, name).tobytes()
        assert getattr(back, name).dtype == getattr(chat, name).dtype
    assert back.prefixes.parent.tolist() == chat.prefixes.parent.tolist()
    assert back.tenants == chat.tenants
    assert quality.detected["format"] == "tokenfleet trace"
    again = write_trace(back, tmp_path / "again.parquet")
    assert again.read_bytes() == path.read_bytes()
    with pytest.raises(BadInput, match="no folder"):
        write_trace(chat, tmp_path / "nowhere" / "chat.parquet")


@pytest.mark.filterwarnings("error")
def test_requests_of_a_broken_last_minute_alone_are_the_peak():
    # A lone request is past the last whole minute whenever it comes.
    lone = draw_trace(Lengths.parse("1000"), Lengths.parse("300"), mean_rate_per_s=0.001, duration_s=600)
    assert lone.request_count == 1
    start_s, end_s = peak_window(lone)
    assert start_s <= lone.arrival_s[0] < end_s
    assert profile(lone).peak_to_mean_minute_tokens >= 1.0
