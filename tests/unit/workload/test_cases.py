"""The questions about traffic of the case collection, each answered from its own inputs."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml

from shared import SHARED, needs_shared
from tokenfleet.workload import profile, read_trace
from tokenfleet.workload.time_facts import regime

pytestmark = [needs_shared, pytest.mark.shared]

TRACES = SHARED / "data" / "traces"


@cache
def cases():
    read = yaml.safe_load((SHARED / "cases" / "open.yaml").read_text())
    return {case["id"]: case for case in read["cases"] if "trace_profile" in case["tests"]}


def case(name):
    found = cases()[name]
    return found["inputs"], found["expected"]["values"]


def test_every_traffic_case_is_answered_here():
    assert {f"test_{name.lower()}" for name in cases()} <= set(globals())


def test_every_question_about_inputs_is_answered_here_or_where_configs_are_read():
    read = yaml.safe_load((SHARED / "cases" / "open.yaml").read_text())
    asked = {case["id"].lower() for case in read["cases"] if case["id"].startswith("I")}
    here = {name.removeprefix("test_") for name in globals()}
    configs = (Path(__file__).parent.parent / "performance" / "test_config_cases.py").read_text()
    assert asked == {name for name in asked if name in here or f"{name}-" in configs or f"test_{name}_" in configs}


def written(tmp_path, rows, header="time_s,input_tokens,output_tokens"):
    path = tmp_path / "log.csv"
    path.write_text(header + "\n" + "\n".join(rows) + "\n")
    return path


def test_f03():
    given, expected = case("F03")
    rng = np.random.default_rng(0)
    bins = [rng.poisson(given[part] * given["bin_s"], 400) for part in ("head", "steady")]
    ratio, place = regime(np.concatenate(bins))
    assert ratio == pytest.approx(expected["ratio"], rel=0.05)
    assert place == 400


def test_i01():
    given, expected = case("I01")
    for name, file in (("code", "azure_2023_code.csv.gz"), ("conv", "azure_2023_conv_first42min.csv.gz")):
        trace, quality = read_trace(TRACES / file, zone="UTC")
        there = given["files"][name].get("rows_in_shared_copy", expected["rows"][name])
        assert quality.rows_read == quality.rows_kept == there
        assert quality.detected["time unit"].endswith("7 digits of a second")
        assert trace.start_utc.replace("T", " ")[:26] == given["files"][name]["first"][:26]
        assert trace.tenant is None
        assert "as told" in quality.detected["zone"]
    _, quality = read_trace(TRACES / "azure_2023_code.csv.gz")
    assert "not written" in quality.detected["zone"]


def test_i03():
    _, expected = case("I03")
    raw, _ = read_trace(TRACES / "mooncake_conversation.jsonl.gz", spread_ticks=False)
    stamps, counts = np.unique(raw.arrival_s, return_counts=True)
    assert (len(stamps), counts.max()) == (expected["distinct_timestamps"], expected["max_same"])
    spread, quality = read_trace(TRACES / "mooncake_conversation.jsonl.gz")
    assert quality.detected["clock tick"] == f"{expected['bin_ms'] / 1000:g} s"
    assert np.unique(spread.arrival_s, return_counts=True)[1].max() < 3
    found = profile(spread, quality)
    assert found.input_tokens.mean == pytest.approx(expected["mean_in"], abs=0.05)
    assert found.output_tokens.mean == pytest.approx(expected["mean_out"], abs=0.05)


def test_i05(tmp_path):
    given, expected = case("I05")
    for (all_k, fine_k), percent in zip(given["rows_k"], expected["failure_pct"], strict=True):
        total, failed = 5000, round(5000 * (1 - fine_k / all_k))
        silent = set(np.random.default_rng(1).choice(np.arange(1, total), failed, replace=False).tolist())
        rows = [f"{place * 0.37:.2f},60,{0 if place in silent else 200}" for place in range(total)]
        path = written(tmp_path, rows)
        trace, quality = read_trace(path)
        assert quality.rows_dropped["output tokens 0: failed or cut"] / total * 100 == pytest.approx(percent, abs=0.02)
        # Failures stay out of the lengths, are told as unmet demand, and count as arrivals when asked for.
        assert set(trace.output_tokens.tolist()) == {200}
        assert any("demand was higher" in text for text in quality.warnings)
        kept, quality = read_trace(path, unfinished="impute")
        assert kept.request_count == total
        assert quality.rows_dropped == {}


def test_i06(tmp_path):
    given, expected = case("I06")
    rows = [f"{place},{row['input_tokens']},{row['output_tokens']}" for place, row in enumerate(given["rows"])]
    path = written(tmp_path, [*rows, "3,10,10"])
    _, quality = read_trace(path)
    # The header is line 1, so row n stands in line n + 1.
    lines = [reject.where.rsplit(":", 1)[1] for reject in quality.rejects if reject.reason == "input tokens below 1"]
    assert lines == [str(row + 1) for row in expected["quarantine"]]
    assert [reject.reason for reject in quality.rejects][-1] == "output tokens 0: failed or cut"
    kept, _ = read_trace(path, zero_output="keep")
    assert kept.output_tokens.tolist() == [0, 10]
