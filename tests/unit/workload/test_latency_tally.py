"""Latencies are told to four digits, and parts add up to the whole."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfleet.workload import profile, profile_files, read_trace
from tokenfleet.workload.latency_tally import add_latencies, latency_facts, latency_tally, step_of, us_of

US = st.integers(0, 10**14)


@given(US)
def test_a_step_is_the_nearest_four_digit_value(us):
    step = step_of(np.array([us]))
    value = int(us_of(step)[0])
    assert value == pytest.approx(us, rel=0.5e-3)
    assert us >= 10_000 or value == us
    assert step_of(np.array([value])) == step


@given(US, US)
def test_steps_rise_with_the_latency(one, two):
    low, high = sorted((one, two))
    assert step_of(np.array([low])) <= step_of(np.array([high]))


def test_cells_that_no_call_can_have_taken_are_unknown():
    found = latency_tally(pl.Series([None, -1.0, float("nan"), float("inf"), 1e9, 2.0, 4.0], dtype=pl.Float64))
    assert latency_facts(found) == {"p50": 3.0, "p90": 3.8, "p95": 3.9, "p99": 3.98, "max": 4.0, "mean": 3.0}
    assert latency_facts(latency_tally(pl.Series([None], dtype=pl.Float64))) == {}


def test_parts_add_up():
    seconds = np.random.default_rng(0).lognormal(0, 2, 1000)
    both = add_latencies(latency_tally(pl.Series(seconds[:300])), latency_tally(pl.Series(seconds[300:])))
    whole = latency_tally(pl.Series(seconds))
    assert latency_facts(both) == latency_facts(whole)
    assert latency_facts(whole)["p99"] == pytest.approx(np.quantile(seconds, 0.99), rel=1e-3)
    assert latency_facts(whole)["mean"] == pytest.approx(seconds.mean(), rel=1e-6)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_in_parts_tells_the_latencies_of_the_whole(tmp_path, kind):
    rng = np.random.default_rng(1)
    frame = pl.DataFrame(
        {
            "time_s": 1_774_745_880 + np.cumsum(rng.exponential(1.0, 2000)),
            "input_tokens": rng.integers(1, 4000, 2000),
            "output_tokens": rng.integers(0, 900, 2000),
            "ttft_ms": rng.lognormal(5, 1, 2000),
            "duration_ms": [None if place % 7 == 0 else 1000.0 + place for place in range(2000)],
        }
    )
    path = tmp_path / f"log.{kind}"
    frame.write_csv(path) if kind == "csv" else frame.write_parquet(path)
    whole = profile(*read_trace(path)).extra
    parts = profile_files(path, rows_per_part=300, bytes_per_part=9000).extra
    for name in ("ttft_s", "e2e_s"):
        assert parts[name] == pytest.approx(whole[name], rel=1e-3)
    one = profile_files(path, mapper=map).extra
    assert {name: one[name] for name in ("ttft_s", "e2e_s")} == {name: parts[name] for name in ("ttft_s", "e2e_s")}
