"""The fit on rows made from known constants: parts add up, a known shift is found, left-out groups leave no trace."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tokenfleet.calibration import Prediction, Subject, predict, read_rows, resolve
from tokenfleet.calibration.basis import basis, perfect_step_s
from tokenfleet.calibration.design import STEMS, build
from tokenfleet.calibration.fit import PRIORS, fit, leave_out, parameterize, predict_log
from tokenfleet.performance import constants
from tokenfleet.performance.coefficients import constants_as

_SPEC = importlib.util.spec_from_file_location("calibration_rows", Path(__file__).with_name("rows.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
rows = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(rows)

SETUPS = (
    {},
    {"model": "Qwen/Qwen3-32B", "tp": 4, "n_gpus": 4},
    {"model": "Qwen/Qwen3-30B-A3B", "tp": 2, "n_gpus": 2, "ep": 2},
    {
        "model": "deepseek-ai/DeepSeek-R1",
        "gpu": "h200_sxm",
        "engine": "sglang",
        "precision": "fp8",
        "tp": 8,
        "n_gpus": 8,
    },
)


def measured(tmp_path: Path) -> Path:
    """Rows whose figures are the shipped model's own."""
    lines = [rows.row(**setup, concurrency=load) for setup in SETUPS for load in (1, 4, 16, 64, 128)]
    drafts = read_rows([rows.write(tmp_path / "draft.csv", *lines)])
    written = []
    for line, draft in zip(lines, drafts, strict=True):
        answer = predict(draft)
        assert isinstance(answer, Prediction)
        cells = line.split(",")
        names = rows.HEADER.split(",")
        cells[names.index("tpot_ms_unspec")] = str(1000 * answer.values["tpot"])
        cells[names.index("ttft_ms_unspec")] = str(1000 * answer.values["ttft"])
        written.append(",".join(cells))
    return rows.write(tmp_path / "measured.csv", *written)


def test_the_parts_of_a_step_add_up_to_the_step(tmp_path: Path) -> None:
    design, refused = build(read_rows([measured(tmp_path)]))
    assert refused == {}
    model = parameterize(design.targets)
    # Parameters that undo the distance between priors and shipped values give the shipped model back.
    matrix, _ = model.classes[0]
    assert matrix.shape == (len(STEMS), len(model.names))
    value = np.linalg.lstsq(
        np.concatenate([part for part, _ in model.classes]),
        -np.concatenate([shift for _, shift in model.classes]),
        rcond=None,
    )[0]
    found = predict_log(design, model, value, np.arange(len(design.targets)))
    assert np.exp(found) == pytest.approx(design.measured_s, rel=1e-4)


def test_a_fit_recovers_figures_and_shrinks_what_it_never_saw(tmp_path: Path) -> None:
    design, _ = build(read_rows([measured(tmp_path)]))
    model = parameterize(design.targets)
    found = fit(design, model, np.ones(len(design.targets), dtype=np.bool_))
    error = predict_log(design, model, found.value, np.arange(len(design.targets))) - np.log(design.measured_s)
    before = predict_log(design, model, np.zeros(len(model.names)), np.arange(len(design.targets)))
    assert np.median(np.abs(error)) < 0.03
    assert np.median(np.abs(error)) < 0.5 * np.median(np.abs(before - np.log(design.measured_s)))
    learned = found.constants()
    assert "pcie_fraction.8" not in learned
    assert "dense_compute_fraction.fp4" not in learned
    known = {name: value for name, (value, _) in learned.items() if name in PRIORS}
    assert known
    assert all(0.3 < value / PRIORS[name][0] < 3 for name, value in known.items())
    assert np.all(found.sd <= model.prior_sd * 1.0001)


def test_left_out_groups_are_predicted_from_the_others(tmp_path: Path) -> None:
    design, _ = build(read_rows([measured(tmp_path)]))
    model = parameterize(design.targets)
    everything = np.ones(len(design.targets), dtype=np.bool_)
    start = np.zeros(len(model.names))
    residual = leave_out(design, model, everything, everything, lambda target: target.group, start)
    assert np.all(np.isfinite(residual))
    one = np.array([target.group.startswith("qwen/qwen3-32b") for target in design.targets])
    direct = fit(design, model, ~one, start)
    places = np.flatnonzero(one)
    expected = predict_log(design, model, direct.value, places) - np.log(design.measured_s[places])
    assert residual[places] == pytest.approx(expected, abs=1e-9)


def test_constants_come_back_after_a_block(tmp_path: Path) -> None:
    before = constants()["eager_s"].value
    with constants_as({"eager_s": 1.0}):
        assert constants()["eager_s"].value == 1.0
    assert constants()["eager_s"].value == before


def test_each_constant_owns_what_changes_with_it(tmp_path: Path) -> None:
    (row,) = read_rows([rows.write(tmp_path / "m.csv", rows.row(tp=2, n_gpus=2))])
    subject = resolve(row)
    assert isinstance(subject, Subject)
    found = basis(subject.model, subject.gpu, subject.deployment)
    assert sum(part.latency_s for part in found.parts.values()) == pytest.approx(found.terms.latency_s)
    assert sum(part.token_compute_s for part in found.parts.values()) == pytest.approx(found.terms.token_compute_s)
    assert sum(part.weight_stream_s for part in found.parts.values()) == pytest.approx(found.terms.weight_stream_s)
    read_s, token_s, cache_s, pair_s = perfect_step_s(subject)
    assert read_s < found.terms.weight_stream_s
    assert token_s < found.terms.token_compute_s
    assert 0 < pair_s < found.terms.pair_s
    assert 0 < cache_s < found.terms.context.bandwidth_s
