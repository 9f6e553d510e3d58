"""Each written rule on rows made for it; none looks at a prediction."""

import importlib.util
from pathlib import Path

from tokenfleet.calibration import RULES, lint, read_rows
from tokenfleet.calibration.lint import Linted

_SPEC = importlib.util.spec_from_file_location("calibration_rows", Path(__file__).with_name("rows.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
rows = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(rows)

R1 = {
    "model": "deepseek-ai/DeepSeek-R1",
    "gpu": "b200_sxm",
    "engine": "sglang",
    "precision": "fp8",
    "n_gpus": 8,
    "tp": 8,
}


def linted(tmp_path: Path, *lines: str) -> Linted:
    return lint(read_rows([rows.write(tmp_path / "m.csv", *lines)]))


def test_multiplied_layouts_are_mended_and_then_twins_dropped(tmp_path: Path) -> None:
    plain = rows.row(**R1, ep=8, notes="moe_tp=1;moe_ep=8")
    product = rows.row(**{**R1, "n_gpus": 64, "tp": 64}, ep=8, notes="moe_tp=8;moe_ep=8")
    found = linted(tmp_path, plain, product)
    assert found.mended == {"m.csv:3": "layout-multiplied"}
    assert found.dropped == {"m.csv:3": "duplicate"}


def test_multiplied_data_parallel_degrees_are_mended(tmp_path: Path) -> None:
    product = rows.row(**{**R1, "n_gpus": 64, "tp": 1}, ep=8, dp=64, notes="moe_tp=8;moe_ep=8")
    (row,) = linted(tmp_path, product).rows
    assert (row.tensor_parallel, row.attention_data_parallel, row.gpu_count) == (1, 8, 8)


def test_one_measurement_under_two_model_names_counts_once(tmp_path: Path) -> None:
    found = linted(tmp_path, rows.row(**R1), rows.row(**{**R1, "model": "deepseek-ai/DeepSeek-V3"}))
    assert found.dropped == {"m.csv:3": "duplicate"}


def test_racks_named_as_one_replica_are_dropped(tmp_path: Path) -> None:
    rack = rows.row(**{**R1, "gpu": "gb200", "tp": 36, "n_gpus": 36})
    assert linted(tmp_path, rack).dropped == {"m.csv:2": "whole-system"}


def test_a_run_far_faster_than_its_twin_is_flagged(tmp_path: Path) -> None:
    lines = [
        rows.row(**R1, engine_version=version, concurrency=load, tpot_ms_unspec=tpot)
        for version, times in (("0.5.8", (20, 30)), ("0.5.9", (12, 18)))
        for load, tpot in zip((4, 16), times, strict=True)
    ]
    assert linted(tmp_path, *lines).flagged == {"m.csv:4": "hidden-speculation", "m.csv:5": "hidden-speculation"}


def test_a_sweep_that_falls_is_flagged(tmp_path: Path) -> None:
    lines = [rows.row(concurrency=load, tpot_ms_unspec=tpot) for load, tpot in ((1, 8), (2, 42), (4, 10))]
    assert set(linted(tmp_path, *lines).flagged.values()) == {"sweep-not-monotone"}


def test_a_build_whose_sweeps_often_fall_is_flagged_whole(tmp_path: Path) -> None:
    steady = [
        rows.row(engine_version="1.3.0", input_tokens=size, concurrency=load, tpot_ms_unspec=8 + load)
        for size in (256, 512, 1024)
        for load in (1, 2)
    ]
    falling = [
        rows.row(engine_version="1.3.0", input_tokens=2048, concurrency=load, tpot_ms_unspec=tpot)
        for load, tpot in ((1, 42), (2, 12))
    ]
    assert set(linted(tmp_path, *steady).flagged.values()) == set()
    found = linted(tmp_path, *steady, *falling)
    assert sorted(found.flagged.values()) == ["sweep-not-monotone"] * 2 + ["unsteady-build"] * 6


def test_a_first_token_later_than_all_others_is_flagged(tmp_path: Path) -> None:
    late = rows.row(concurrency=64, ttft_ms_unspec=3 * 12 * 256, tpot_ms_unspec=12)
    long = rows.row(concurrency=32, ttft_ms_unspec=2 * 12 * 256, tpot_ms_unspec=12)
    assert list(linted(tmp_path, late, long).flagged.values()) == ["first-token-withheld"]


def test_figures_below_perfect_hardware_are_dropped(tmp_path: Path) -> None:
    fast = rows.row(tpot_ms_unspec=3)  # 15 GB of weights at 3.35 TB/s take 4.5 ms
    early = rows.row(ttft_ms_unspec=10)  # 1,024 tokens at 80 % of 989 TFLOP/s take 18 ms
    cached = rows.row(concurrency=128, input_tokens=4096, output_tokens=32, tpot_ms_unspec=40, ttft_ms_unspec=200)
    other = rows.row(engine_version="0.13.0", tpot_ms_unspec=10)
    found = linted(tmp_path, rows.row(), fast, early, cached, other)
    assert found.dropped == dict.fromkeys(("m.csv:3", "m.csv:4", "m.csv:5"), "faster-than-hardware")
    assert found.flagged == {"m.csv:2": "impossible-sweep"}, "the same run, another version is another run"


def test_context_only_rows_are_dropped_and_counts_cover_every_rule(tmp_path: Path) -> None:
    found = linted(tmp_path, rows.row(quality="C"), rows.row(engine="llama.cpp", concurrency=8))
    assert found.dropped == {"m.csv:2": "not-scored", "m.csv:3": "one-sequence"}
    assert set(found.counts()) == {rule.rule_id for rule in RULES}
