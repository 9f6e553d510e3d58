import json
from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.domain.trace import Observed, Quality, Trace
from tokenfleet.workload import Lengths, compare, draw_trace, profile, profile_facts, quality_lines, synthesize
from tokenfleet.workload.time_facts import bursts, regime, time_facts


def test_a_change_of_regime_is_found_with_its_ratio():
    rng = np.random.default_rng(0)
    head, steady = 0.0343, 3.1713
    counts = np.concatenate([rng.poisson(head * 180, 400), rng.poisson(steady * 180, 400)])
    ratio, place = regime(counts)
    assert ratio == pytest.approx(92.5, rel=0.05)
    assert place == 400


def test_the_daily_swing_is_no_change_of_regime():
    minutes = np.arange(3 * 1440)
    counts = np.random.default_rng(1).poisson(20 * (1 + 0.6 * np.sin(2 * np.pi * minutes / 1440)))
    assert regime(counts) is None
    assert regime(counts[:30]) is None


def test_a_ramp_reaches_the_warnings(tmp_path):
    from tokenfleet.workload import read_trace

    slow, fast = np.arange(0, 3600, 40.0), np.arange(3600, 7200, 0.5)
    rows = "".join(f"{stamp},5,5\n" for stamp in np.concatenate([slow, fast]))
    path = tmp_path / "log.csv"
    path.write_text("time_s,input_tokens,output_tokens\n" + rows)
    trace, quality = read_trace(path)
    assert any("not stationary: at minute 60 its mean rises 80." in text for text in quality.warnings)
    assert profile(trace, quality).extra["non_stationary"]["ratio"] == pytest.approx(80, rel=0.05)


def test_hours_days_and_trend_of_a_known_week():
    minutes = np.arange(14 * 1440)
    tokens = np.full(len(minutes), 100)
    tokens[(minutes // 60) % 24 == 3] = 300
    facts = time_facts(tokens, tokens, "2026-01-05T09:00:00Z")
    hours = facts["hour_of_day_tokens"]
    # Minute 0 is nine in the morning, so the third hour of the trace is noon.
    assert int(np.argmax(hours)) == 12
    assert hours[12] / hours[0] == pytest.approx(3)
    assert len(facts["day_of_week_tokens"]) == 7
    assert abs(facts["trend_fraction_per_day"]) < 1e-9
    assert facts["busiest_hour_start_s"] == 3 * 3600
    growing = time_facts(tokens + minutes, tokens + minutes, None)
    assert growing["trend_fraction_per_day"] > 0.05
    assert growing["hour_of_day_tokens"] is None


def test_bursts_are_listed_by_weight():
    tokens = np.full(100, 10)
    tokens[20:23] = 200
    tokens[60] = 300
    found = bursts(tokens)
    assert [(burst["start_s"], burst["duration_s"], burst["tokens"]) for burst in found] == [
        (1200, 180, 600),
        (3600, 60, 300),
    ]


def observed_trace():
    return Trace(
        arrival_s=np.array([0.0, 1.0, 2.0, 70.0]),
        input_tokens=np.array([100, 300, 5000, 100], dtype=np.int32),
        output_tokens=np.array([10, 20, 500, 10], dtype=np.int32),
        session=np.array([0, 0, 1, 0], dtype=np.int32),
        tenant=np.array([0, 1, 1, -1], dtype=np.int32),
        tenants=("blue", "red"),
        observed=Observed(
            model=np.array([0, 0, 0, 0], dtype=np.int32),
            models=("m",),
            cached_input_tokens=np.array([50, -1, 0, 50], dtype=np.int32),
            reasoning_tokens=np.array([5, 5, 250, 5], dtype=np.int32),
            streamed=np.array([1, 0, -1, 1], dtype=np.int32),
            finish=np.array([0, 1, 0, -1], dtype=np.int32),
            finishes=("stop", "length"),
            e2e_s=np.array([0.5, 2.0, np.nan, 1.0]),
        ),
    )


def test_what_requests_say_is_counted_and_the_unknown_left_out():
    facts = profile(observed_trace()).extra
    assert facts["cached_tokens"]["fraction"] == pytest.approx(100 / 5200)
    assert facts["cached_tokens"]["known_fraction"] == 0.75
    assert facts["reasoning_tokens"]["fraction"] == pytest.approx(265 / 540)
    assert facts["streamed_fraction"] == pytest.approx(2 / 3)
    assert facts["truncated_fraction"] == pytest.approx(1 / 3)
    assert facts["length_buckets"] == {"short_short": 0.75, "long_short": 0, "short_long": 0, "long_long": 0.25}
    assert facts["sessions"]["turns"]["max"] == 3
    assert facts["sessions"]["input_growth_tokens"]["max"] == 200
    assert facts["sessions"]["pause_s"]["max"] == 69
    assert facts["sessions"]["think_s"]["max"] == pytest.approx(67)
    assert facts["tenants"]["red"]["request_count"] == 2
    assert facts["tenants"][""]["request_count"] == 1
    assert facts["models"]["m"]["input_tokens_p50"] == 200
    assert "ttft_s" not in facts
    assert "labels" not in facts


def test_facts_for_machines_are_json_and_add_up():
    facts = json.loads(json.dumps(profile_facts(profile(observed_trace())), allow_nan=False))
    assert facts["rows_read"] == facts["rows_kept"] + sum(facts["rows_dropped"].values())
    assert set(facts["input_tokens"]) == {"p50", "p90", "p95", "p99", "max", "mean"}
    assert facts["interarrival_cv"] > 1
    for name in ("peak_to_mean_minute_requests", "peak_to_mean_minute_tokens", "detected", "warnings"):
        assert name in facts


def test_quality_in_words_adds_up():
    quality = Quality(
        rows_read=1012, rows_kept=1000, rows_dropped={"a": 5, "b": 7}, detected={"format": "x"}, warnings=("w",)
    )
    assert quality_lines(quality) == [
        "1,012 rows read = 1,000 kept + 12 dropped",
        "  7 dropped: b",
        "  5 dropped: a",
        "format: x",
        "warning: w",
    ]


def drawn(**changes):
    wish = {"mean_rate_per_s": 10.0, "duration_s": 900.0, "peak_to_mean": 1.5, "seed": 1, **changes}
    return draw_trace(Lengths.parse(wish.pop("input", "700:1500")), Lengths.parse("200"), **wish)


def test_the_same_profile_has_not_moved():
    found = profile(drawn())
    assert compare(found, found) == ()


def test_what_moved_is_said_with_its_effect_on_demand():
    old, new = drawn(), drawn(input="1400:3000", mean_rate_per_s=15.0)
    tenants = np.zeros(old.request_count, dtype=np.int32), (np.arange(new.request_count) % 4 == 0).astype(np.int32)
    before = profile(replace(old, tenant=tenants[0], tenants=("blue",)))
    after = profile(replace(new, tenant=tenants[1], tenants=("blue", "red")))
    changes = {change.name: change for change in compare(before, after)}
    assert changes["input tokens p50"].demand == "up"
    assert changes["input tokens p50"].new / changes["input tokens p50"].old == pytest.approx(2, rel=0.03)
    assert changes["mean rate"].demand == "up"
    assert changes["tenant red"].old is None
    assert "is new and sends 25%" in changes["tenant red"].text
    assert "output tokens p50" not in changes
    assert {change.demand for change in compare(after, before) if change.name == "mean rate"} == {"down"}


def test_a_drop_of_prefix_reuse_raises_demand():
    chat = synthesize("chat", peak_rate_per_s=5, duration_s=600, seed=1)
    apart = replace(chat, prefix_node=np.full(chat.request_count, -1, dtype=np.int32))
    changes = {change.name: change for change in compare(profile(chat), profile(apart))}
    assert changes["shareable input"].demand == "up"


def longer(trace, tokens):
    return replace(trace, input_tokens=(trace.input_tokens + tokens).astype(np.int32))


def test_a_new_version_of_a_prompt_is_told_from_longer_texts():
    old = drawn(mean_rate_per_s=20.0)
    changes = {change.name: change for change in compare(profile(old), profile(longer(old, 640)))}
    assert "640 tokens longer" in changes["all prompts, fixed part"].text
    assert changes["all prompts, fixed part"].demand == "up"
    assert changes["all prompts, fixed part"].new - changes["all prompts, fixed part"].old == pytest.approx(640)
    back = {change.name: change for change in compare(profile(longer(old, 640)), profile(old))}
    assert back["all prompts, fixed part"].demand == "down"
    doubled = profile(replace(old, input_tokens=old.input_tokens * 2))
    assert not any("fixed part" in change.name for change in compare(profile(old), doubled))


def test_a_new_version_of_one_labels_prompt_is_found_among_others():
    old = drawn(mean_rate_per_s=20.0)
    label = (np.arange(old.request_count) % 4).astype(np.int32)
    labelled = replace(old, observed=Observed(label=label, labels=("a", "b", "c", "d")))
    new = replace(labelled, input_tokens=(old.input_tokens + 300 * (label == 2)).astype(np.int32))
    names = [change.name for change in compare(profile(labelled), profile(new)) if "fixed part" in change.name]
    assert names == ["prompts of label c, fixed part"]


def test_input_that_no_cache_serves_is_what_a_drop_of_hits_raises():
    old = drawn()
    served = [(old.input_tokens * share).astype(np.int32) for share in (0.8, 0.2)]
    before, after = (profile(replace(old, observed=Observed(cached_input_tokens=tokens))) for tokens in served)
    changes = {change.name: change for change in compare(before, after)}
    assert set(changes) == {"cached input", "input to compute"}
    assert changes["input to compute"].new / changes["input to compute"].old == pytest.approx(4, rel=0.01)
    assert changes["cached input"].demand == changes["input to compute"].demand == "up"


@pytest.mark.parametrize("cell", ["1e999", "-5", "inf"])
def test_durations_that_cannot_be_are_unknown(tmp_path, cell):
    from tokenfleet.workload import read_trace

    path = tmp_path / "log.csv"
    path.write_text(f"time_s,input_tokens,output_tokens,e2e_s\n0,5,5,{cell}\n1,5,5,2.5\n2,5,5,1.5\n")
    found = profile(*read_trace(path))
    assert found.extra["e2e_s"]["max"] == 2.5
    assert found.extra["e2e_s"]["mean"] == 2.0
