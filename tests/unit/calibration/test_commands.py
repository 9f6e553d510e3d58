"""What ``validate`` and ``calibrate`` print, and what they write."""

import importlib.util
import json
from pathlib import Path

from click.testing import CliRunner

from tokenfleet.app.cli.calibrate import command as calibrate_command
from tokenfleet.app.cli.face import Face
from tokenfleet.app.cli.validate import command as validate_command
from tokenfleet.calibration import read_calibration

_SPEC = importlib.util.spec_from_file_location("calibration_rows", Path(__file__).with_name("rows.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
rows = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(rows)

SWEEP = [rows.row(concurrency=load, tpot_ms_unspec=tpot) for load, tpot in ((4, 7.9), (16, 9.6), (64, 16.0))]


def test_validate_prints_errors_groups_and_refusals(tmp_path: Path) -> None:
    path = rows.write(tmp_path / "m.csv", *SWEEP, rows.row(gpu="abacus"))
    result = CliRunner().invoke(validate_command, [str(path), "--by", "engine"], obj=Face(), catch_exceptions=False)
    assert result.exit_code == 0
    assert "3 of 4 predicted (75%)" in result.output
    assert "gpu not in the catalog" in result.output
    assert "engine " in result.output
    assert "  tpot  " in result.output
    assert "m.csv:2" in result.output


def test_validate_answers_machines_with_one_document(tmp_path: Path) -> None:
    path = rows.write(tmp_path / "m.csv", *SWEEP)
    result = CliRunner().invoke(validate_command, [str(path)], obj=Face(json=True), catch_exceptions=False)
    document = json.loads(result.output)
    assert {group["metric"] for group in document["groups"]} == {"tpot", "ttft"}
    assert document["refused"] == []


def test_calibrate_writes_what_it_says(tmp_path: Path) -> None:
    path, output = rows.write(tmp_path / "m.csv", *SWEEP), tmp_path / "calibration.yaml"
    arguments = [str(path), "-o", str(output)]
    result = CliRunner().invoke(calibrate_command, arguments, obj=Face(), catch_exceptions=False)
    assert result.exit_code == 0
    assert "runs held out" in result.output
    tpot = read_calibration(output).deployments[0].corrections["tpot"]
    assert f"x{tpot.factor:.2f}" in result.output
    again = CliRunner().invoke(calibrate_command, arguments, obj=Face(json=True), catch_exceptions=False)
    assert json.loads(again.output)["written"] == str(output)
