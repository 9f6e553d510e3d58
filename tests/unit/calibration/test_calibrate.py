"""Corrections from a few runs: shrinkage, held-out errors, refusals, and what they do to predictions."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tokenfleet.calibration import Prediction, predict, read_rows
from tokenfleet.calibration.calibrate import (
    calibrate,
    calibrate_rows,
    correction,
    engine_line,
    read_calibration,
    write_calibration,
)
from tokenfleet.domain.errors import BadInput
from tokenfleet.performance import replica_physics

_SPEC = importlib.util.spec_from_file_location("calibration_rows", Path(__file__).with_name("rows.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
rows = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(rows)

LOADS = (4, 16, 64)


def truth(tmp_path: Path, factor: float, power: float = 0.0) -> Path:
    """Runs that are what we predict, times a factor that grows with concurrency."""
    drafts = read_rows([rows.write(tmp_path / "draft.csv", *(rows.row(concurrency=load) for load in LOADS))])
    lines = []
    for load, draft in zip(LOADS, drafts, strict=True):
        answer = predict(draft)
        assert isinstance(answer, Prediction)
        times = 1000 * factor * (load / 16) ** power
        lines.append(
            rows.row(
                concurrency=load,
                tpot_ms_unspec=answer.values["tpot"] * times,
                ttft_ms_unspec=answer.values["ttft"] * times,
            )
        )
    return rows.write(tmp_path / "runs.csv", *lines)


def test_three_runs_recover_a_factor(tmp_path: Path) -> None:
    found = calibrate([truth(tmp_path, 1.4)])
    (deployment,) = found.deployments
    tpot = deployment.corrections["tpot"]
    assert tpot.factor == pytest.approx(1.4, rel=0.02)
    assert abs(tpot.slope) < 0.01
    assert tpot.held_out_error_before_fraction == pytest.approx(1 - 1 / 1.4, rel=0.01)
    assert tpot.held_out_error_after_fraction is not None
    assert tpot.held_out_error_after_fraction < 0.05
    assert (tpot.lowest_concurrency, tpot.highest_concurrency, tpot.run_count) == (4, 64, 3)
    assert tpot.band_factor == 1.25


def test_a_slope_is_found_and_ends_at_the_borders(tmp_path: Path) -> None:
    tpot = calibrate([truth(tmp_path, 1.0, 0.1)]).deployments[0].corrections["tpot"]
    assert 0.05 < tpot.slope <= 0.1
    assert tpot.at(64) == tpot.at(1000)
    assert tpot.at(4) == tpot.at(1)
    assert tpot.at(4) < 1 < tpot.at(64)


def test_one_point_moves_the_answer_and_none_moves_it_past_the_data() -> None:
    one = correction("tpot", [(16, 0.4)])
    assert 0.3 < np.log(one.factor) < 0.4
    assert one.held_out_error_after_fraction is None
    many = correction("tpot", [(16, 0.4)] * 20)
    assert np.log(one.factor) < np.log(many.factor) < 0.4
    wide = correction("tpot", [(4, 0.5), (16, -0.5), (64, 0.5)])
    assert wide.band_factor > 1.6


def test_predictions_and_physics_are_corrected_only_where_learned(tmp_path: Path) -> None:
    found = calibrate([truth(tmp_path, 1.4)])
    row = read_rows([tmp_path / "runs.csv"])[1]
    answer = predict(row)
    assert isinstance(answer, Prediction)
    assert found.corrected(row, answer).values["tpot"] == pytest.approx(row.value("tpot"), rel=0.02)
    subject = answer.subject
    physics = replica_physics(subject.model, subject.gpu, subject.deployment)
    applied = found.applied(physics)
    assert applied.step_time.eager_ps == pytest.approx(1.4 * physics.step_time.eager_ps, rel=0.02)
    assert applied.band.step_time_factor == 1.25
    assert "3 measured runs" in applied.band.evidence
    other = read_rows([rows.write(tmp_path / "other.csv", rows.row(tp=2, n_gpus=2))])[0]
    elsewhere = predict(other)
    assert isinstance(elsewhere, Prediction)
    assert found.corrected(other, elsewhere) is elsewhere


def test_runs_that_contradict_are_refused_by_name(tmp_path: Path) -> None:
    lines = (
        rows.row(concurrency=16, n_requests=20),
        rows.row(concurrency=32, output_tok_s=100, ttft_ms_unspec=120, tpot_ms_unspec=12),
        rows.row(concurrency=8, ttft_ms_unspec=60),
        rows.row(concurrency=8, ttft_ms_unspec=90),
        rows.row(concurrency=4, ttft_ms_unspec=5, engine_version="0.13.0"),
        rows.row(concurrency=64, model="nobody/knows"),
    )
    found = calibrate_rows(read_rows([rows.write(tmp_path / "m.csv", *lines)]))
    assert found.deployments == ()
    told = list(found.refused.values())
    assert any(why.startswith("too few samples") for why in told)
    assert any(why.startswith("client-bound") for why in told)
    assert sum("cache warm" in why for why in told) == 2
    assert "faster-than-hardware" in told
    assert "model not in the catalog" in told
    with pytest.raises(BadInput, match="no run can be used"):
        calibrate([tmp_path / "m.csv"])


def test_the_file_comes_back_as_it_went(tmp_path: Path) -> None:
    found = calibrate([truth(tmp_path, 0.8, 0.05)])
    write_calibration(found, tmp_path / "calibration.yaml")
    assert read_calibration(tmp_path / "calibration.yaml") == found


@pytest.mark.parametrize("text", ["", "calibration: 99", "calibration: 1\ndeployments: [{}]", "a: ["])
def test_other_files_are_no_calibrations(tmp_path: Path, text: str) -> None:
    path = tmp_path / "calibration.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput):
        read_calibration(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="gone"):
        read_calibration(tmp_path / "gone.yaml")


def test_patches_of_an_engine_share_a_calibration() -> None:
    assert engine_line("vllm-0.32.1") == engine_line("vllm-0.32") == "vllm-0.32"
    assert engine_line("sglang") == "sglang"
