"""Floor 4: measured against predicted: data lint, validation, intervals, fitting.

Promises: rows are excluded by a written rule and never by their residual; errors are reported on left-out models
and gpus. It replays, so it stands above the simulator. Must not choose a fleet.
"""

from tokenfleet.calibration.calibrate import (
    Calibrated,
    Calibration,
    Correction,
    calibrate,
    calibrate_rows,
    read_calibration,
    write_calibration,
)
from tokenfleet.calibration.lint import RULES, Linted, Rule, lint
from tokenfleet.calibration.measured import Measurement, Row, read_rows
from tokenfleet.calibration.predict import Prediction, predict
from tokenfleet.calibration.subject import Refusal, Subject, resolve
from tokenfleet.calibration.validate import Group, Score, Scoreboard, score_rows, validate

__all__ = [
    "RULES",
    "Calibrated",
    "Calibration",
    "Correction",
    "Group",
    "Linted",
    "Measurement",
    "Prediction",
    "Refusal",
    "Row",
    "Rule",
    "Score",
    "Scoreboard",
    "Subject",
    "calibrate",
    "calibrate_rows",
    "lint",
    "predict",
    "read_calibration",
    "read_rows",
    "resolve",
    "score_rows",
    "validate",
    "write_calibration",
]
