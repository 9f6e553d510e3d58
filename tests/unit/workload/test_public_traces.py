"""The statistics published for the real traces, reproduced from the files."""

import polars as pl
import pytest

from shared import SHARED, needs_shared
from tokenfleet.workload import profile, read_trace, synthesize_like

pytestmark = [needs_shared, pytest.mark.shared]

TRACES = SHARED / "data" / "traces"

PUBLISHED = {
    # rows, rate, peak/mean minute by requests, by tokens, gap variation, input and output p50/p95/p99
    "azure_2023_code.csv.gz": (8819, 2.57, 4.18, 4.28, 13.2, (1469, 7303, 7436), (13, 90, 251)),
    "azure_2023_conv_first42min.csv.gz": (14864, 5.90, 1.43, 1.64, 1.08, (1014, 4085, 4121), (115, 449, 598)),
    "mooncake_conversation.jsonl.gz": (12031, 3.40, 1.21, 1.27, 3.03, (6909, 39550, 85400), (350, 698, 1118)),
    "aibrix_8min_up_and_down.csv.gz": (2026, 4.44, 1.95, 1.97, 1.81, (263, 648, 789), (34, 266, 559)),
    "servegen_m-large_steady_days1-10_realised.parquet": (
        1192200,
        1.38,
        4.8,
        6.4,
        2.8,
        (1265, 3514, 3986),
        (79, 153, 274),
    ),
    "servegen_m-large_bursty_days1-10_realised.parquet": (
        798454,
        0.95,
        21,
        50,
        57,
        (796, 2299, 10100),
        (244, 517, 632),
    ),
    "servegen_deepseek-r1_subset_24h_realised.parquet": (
        181378,
        2.10,
        7.6,
        2.1,
        1.5,
        (364, 20036, 27683),
        (936, 12589, 19311),
    ),
    "servegen_mm-image_subset_24h_realised.parquet": (135825, 1.57, 2.6, 2.6, 1.9, (1284, 1594, 1594), (47, 202, 289)),
}


def rounds_to(value, published):
    """Whether ``value`` is what was published, to the digits that were published."""
    digits = len(str(published).split(".")[1]) if "." in str(published) else 0
    return abs(value - published) <= 0.5 * 10**-digits + 1e-9


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_statistics(name):
    rows, rate, peak_requests, peak_tokens, cv, inputs, outputs = PUBLISHED[name]
    # Published figures take stamps as they are and calls without output as calls.
    trace, quality = read_trace(TRACES / name, spread_ticks=False, zero_output="keep")
    found = profile(trace, quality)
    assert found.request_count == quality.rows_kept == quality.rows_read == rows
    assert rounds_to(found.mean_rate_per_s, rate)
    assert rounds_to(found.peak_to_mean_minute_requests, peak_requests)
    assert rounds_to(found.peak_to_mean_minute_tokens, peak_tokens)
    assert rounds_to(found.interarrival_cv, cv)
    # Quantiles were published rounded or cut to whole tokens.
    for summary, published in ((found.input_tokens, inputs), (found.output_tokens, outputs)):
        for value, expected in zip((summary.p50, summary.p95, summary.p99), published, strict=True):
            assert expected - 0.5 <= value < expected + 1


def test_mooncake_ticks_are_found_and_spread():
    raw, _ = read_trace(TRACES / "mooncake_conversation.jsonl.gz", spread_ticks=False)
    spread, quality = read_trace(TRACES / "mooncake_conversation.jsonl.gz")
    assert len(set(raw.arrival_s.tolist())) == 1180
    assert len(set(spread.arrival_s.tolist())) == 12031
    assert quality.detected["clock tick"] == "3 s"
    assert any("up to 28 share one" in text and "spread" in text for text in quality.warnings)
    found = profile(spread, quality)
    assert found.input_tokens.mean == pytest.approx(12035.1, abs=0.05)
    assert found.output_tokens.mean == pytest.approx(342.6, abs=0.05)
    assert found.interarrival_cv == pytest.approx(1.0, abs=0.05)
    assert quality.detected["time unit"] == "ms"


def test_mooncake_prefixes():
    trace, quality = read_trace(TRACES / "mooncake_conversation.jsonl.gz")
    assert quality.detected["prefix blocks"] == "512 tokens"
    # 0.366 of blocks is published; whole blocks hold more tokens than last ones, so the share of tokens is higher.
    assert profile(trace).shareable_input_fraction == pytest.approx(0.37, abs=0.01)


def test_agent_sessions_reuse_most_of_their_prompts():
    trace, quality = read_trace(TRACES / "lmcache_agent_miniswe.parquet")
    assert quality.detected["prefix blocks"] == "64 tokens"
    assert profile(trace).shareable_input_fraction == pytest.approx(0.93, abs=0.02)
    assert profile(trace).session_count == 20


AGENTS = {
    # rows, sessions, input and output p50/p95/p99
    "exgentic_swebench_claude_code_deepseek.csv.gz": (799, 13, (33_566, 60_353, 66_268), (120, 756, 1090)),
    "lmcache_agent_miniswe.parquet": (402, 20, (3890, 25_152, 39_428), (95, 223, 290)),
    "lmcache_agent_taubench.parquet": (471, 24, (102, 528, 771), (0, 87, 195)),
    "cc_weka_claude_code_sessions.parquet": (5000, 21, (205_000, 726_000, 817_000), (248, 2520, 6103)),
}


@pytest.mark.parametrize("name", AGENTS)
def test_published_statistics_of_agents(name):
    rows, sessions, inputs, outputs = AGENTS[name]
    told = {"arrival": "arrival_in_session_s"} if "weka" in name else {}
    trace, quality = read_trace(TRACES / name, columns=told, spread_ticks=False, zero_output="keep")
    found = profile(trace, quality)
    assert (found.request_count, found.session_count) == (rows, sessions)
    for summary, published in ((found.input_tokens, inputs), (found.output_tokens, outputs)):
        for value, expected in zip((summary.p50, summary.p95, summary.p99), published, strict=True):
            assert value == pytest.approx(expected, rel=0.003, abs=1)
    own_clocks = any("each counts time from a start of its own" in text for text in quality.warnings)
    assert own_clocks == ("weka" in name)


def test_thinking_of_people_and_tools_in_real_sessions():
    path = TRACES / "cc_weka_claude_code_sessions.parquet"
    think = profile(*read_trace(path, columns={"arrival": "arrival_in_session_s"})).extra["sessions"]["think_s"]
    published = pl.read_parquet(path)["think_time_s"]
    # From the end of an answer to the next call; the published column leaves out what some tools took.
    for fraction, name in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99")):
        assert published.quantile(fraction) <= think[name] <= 1.5 * published.quantile(fraction)


def test_azure_code_loads_whole_and_says_what_is_missing():
    trace, quality = read_trace(TRACES / "azure_2023_code.csv.gz")
    assert quality.rows_read == 8819
    assert quality.detected["time unit"] == "date and time, 7 digits of a second"
    assert "not written" in quality.detected["zone"]
    assert trace.start_utc is None
    assert trace.tenant is None
    told, quality = read_trace(TRACES / "azure_2023_code.csv.gz", zone="UTC")
    assert told.start_utc == "2023-11-16T18:17:03.979960Z"
    assert "as told" in quality.detected["zone"]


@pytest.mark.parametrize(
    "name",
    [
        "azure_2023_code.csv.gz",
        "azure_2023_conv_first42min.csv.gz",
        "mooncake_conversation.jsonl.gz",
        "servegen_deepseek-r1_subset_24h_realised.parquet",
    ],
)
def test_drawn_anew_the_profile_is_the_same(name):
    source = profile(*read_trace(TRACES / name))
    drawn = profile(synthesize_like(source, seed=11))
    assert drawn.request_count == source.request_count
    assert drawn.peak_to_mean_minute_requests == pytest.approx(source.peak_to_mean_minute_requests, rel=0.01)
    assert drawn.peak_to_mean_minute_tokens == pytest.approx(source.peak_to_mean_minute_tokens, rel=0.03)
    assert drawn.interarrival_cv == pytest.approx(source.interarrival_cv, rel=0.05)
    for side in ("input_tokens", "output_tokens"):
        one, two = getattr(source, side), getattr(drawn, side)
        assert (two.mean, two.p50, two.p90, two.p95) == pytest.approx((one.mean, one.p50, one.p90, one.p95), rel=0.06)
        assert two.p99 == pytest.approx(one.p99, rel=0.10)
