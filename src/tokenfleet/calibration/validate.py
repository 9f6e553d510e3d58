"""Predicted against measured: every row of some files, scored by groups, the worst rows named."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from tokenfleet.calibration.bands import band_factor, has_experts, novelty
from tokenfleet.calibration.lint import RULES, Linted, lint
from tokenfleet.calibration.measured import Row, read_rows
from tokenfleet.calibration.memory_cases import MemoryCase, PoolScore, is_memory_table, read_memory_cases, scored_cases
from tokenfleet.calibration.predict import Prediction, predict
from tokenfleet.calibration.subject import Refusal, model_kind
from tokenfleet.domain.records import dataclass

_UNKNOWN_KIND = "unknown"
_SCORED_GRADES = frozenset({"A", "B"})
_WORST = 20
_NO_BAND = frozenset({"pool_of_unknown_size", "open_loop"})
"""Loads of which too much is unknown to state an interval."""
_TPOT_NAMES = {
    "decode_pool": "tpot_decode_pool",
    "pool_of_unknown_size": "tpot_pool_of_unknown_size",
    "burst": "tpot_all_at_once",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One figure of one row: seconds, or output tokens per second. ``predicted`` is ``None`` when it was refused."""

    row_id: str
    source: str
    model: str
    gpu: str
    engine: str
    model_kind: str
    metric: str
    grade: str
    flag: str
    """Rule that sets the row apart, empty for a clean one."""
    measured: float
    predicted: float | None
    band: float | None
    """Factor of the 90 % interval; ``None`` where none is stated."""

    @property
    def log_ratio(self) -> float:
        """Natural logarithm of predicted over measured; NaN when refused."""
        return float("nan") if self.predicted is None else float(np.log(self.predicted / self.measured))

    @property
    def cell(self) -> tuple[str, str, str, str, str]:
        """What counts as one configuration family."""
        return (self.source, self.model, self.gpu, self.engine, self.metric)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Errors of a group of figures; a field that the group is pooled over is ``None``."""

    source: str | None
    gpu: str | None
    engine: str | None
    model_kind: str | None
    metric: str
    row_count: int
    predicted_count: int
    median_abs_error_fraction: float | None
    p90_abs_error_fraction: float | None
    bias_fraction: float | None
    """Median of predicted over measured, minus one."""
    interval_coverage_fraction: float | None
    cell_count: int
    cell_median_abs_error_fraction: float | None
    """Median over cells of the cell medians."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoreboard:
    """What ``validate`` answers."""

    groups: tuple[Group, ...]
    """Rows that no lint rule sets apart."""
    groups_with_flagged: tuple[Group, ...]
    """The same with every row that can be predicted."""
    row_count: int
    predicted_row_count: int
    refused: dict[str, int]
    """Rows not predicted, by reason."""
    lint: dict[str, int]
    """Rows by lint rule."""
    worst: tuple[Score, ...]
    """Clean figures with the largest errors."""
    scores: tuple[Score, ...]

    def as_document(self) -> dict[str, object]:
        """Plain data for JSON: groups, refusals, lint counts with their rules, worst rows."""
        return {
            "groups": [asdict(group) for group in self.groups],
            "groups_with_flagged": [asdict(group) for group in self.groups_with_flagged],
            "row_count": self.row_count,
            "predicted_row_count": self.predicted_row_count,
            "refused": [{"reason": reason, "count": count} for reason, count in self.refused.items()],
            "lint": [
                {"rule": rule.rule_id, "action": rule.action, "text": rule.text, "row_count": self.lint[rule.rule_id]}
                for rule in RULES
            ],
            "worst": [asdict(score) for score in self.worst],
        }


def validate(paths: Iterable[str | Path], *, progress: Callable[[int, int], None] | None = None) -> Scoreboard:
    """Predict every measured row of some files and score the predictions.

    Args:
        paths: CSV files in the schema of :mod:`tokenfleet.calibration.measured`.
        progress: called with rows done and rows in all.

    Returns:
        The scoreboard.

    Raises:
        BadInput: files that cannot be read.
    """
    paths = tuple(paths)
    tables = [path for path in paths if is_memory_table(path)]
    cases = [case for path in tables for case in read_memory_cases(path)]
    return score_rows(lint(read_rows(path for path in paths if path not in tables)), cases=cases, progress=progress)


def score_rows(
    linted: Linted,
    *,
    progress: Callable[[int, int], None] | None = None,
    predictor: Callable[[Row], Prediction | Refusal] = predict,
    cases: Sequence[MemoryCase] = (),
) -> Scoreboard:
    """Score rows that were read and linted.

    Args:
        linted: rows with their fates.
        cases: start-up logs, scored by their KV pool.
        progress: called with rows done and rows in all.
        predictor: how a row is predicted; a calibration gives its own.

    Returns:
        The scoreboard.
    """
    scores: list[Score] = []
    refused: dict[str, int] = defaultdict(int)
    predicted = 0
    for done, row in enumerate(linted.rows, start=1):
        answer = predictor(row)
        found = _scores(row, answer, linted.flagged.get(row.row_id, ""))
        scores.extend(found)
        if isinstance(answer, Refusal):
            refused[answer.reason] += 1
        elif not any(score.predicted is not None for score in found):
            refused["no figure of the row is determined by its load"] += 1
        else:
            predicted += 1
        if progress is not None:
            progress(done, len(linted.rows))
    for case, outcome in scored_cases(cases):
        scores.append(_memory_score(case, outcome))
        if isinstance(outcome, Refusal):
            refused[outcome.reason] += 1
        else:
            predicted += 1
    clean = [score for score in scores if not score.flag and score.grade in _SCORED_GRADES]
    named = sorted((score for score in clean if score.predicted is not None), key=lambda one: -abs(one.log_ratio))
    return Scoreboard(
        groups=tuple(grouped(clean)),
        groups_with_flagged=tuple(grouped(scores)),
        row_count=len(linted.rows) + len([case for case in cases if case.row.quality != "C"]),
        predicted_row_count=predicted,
        refused=dict(sorted(refused.items(), key=lambda pair: -pair[1])),
        lint=linted.counts(),
        worst=tuple(named[:_WORST]),
        scores=tuple(scores),
    )


def _scores(row: Row, answer: Prediction | Refusal, flag: str) -> list[Score]:
    found = []
    kind = _UNKNOWN_KIND if isinstance(answer, Refusal) else model_kind(answer.subject.model)
    for one in row.measurements:
        if one.metric == "output_rate" and row.value("e2e") and named_metric("e2e", answer) == "batch_time":
            continue  # the rate of a whole batch is its time once more
        value = None if isinstance(answer, Refusal) else answer.values.get(one.metric)
        band = None
        if not isinstance(answer, Refusal) and value is not None and answer.schedule.load not in _NO_BAND:
            band = band_factor(one.metric, novelty(answer.subject), experts=has_experts(answer.subject))
        found.append(
            Score(
                row_id=row.row_id,
                source=row.source,
                model=row.model,
                gpu=row.gpu,
                engine=row.engine or "not stated",
                model_kind=kind,
                metric=named_metric(one.metric, answer),
                grade=row.quality,
                flag=flag,
                measured=one.value,
                predicted=value,
                band=band,
            )
        )
    return found


def _memory_score(case: MemoryCase, outcome: PoolScore | Refusal) -> Score:
    measured = next((one.value for one in case.row.measurements), float("nan"))
    return Score(
        row_id=case.row.row_id,
        source=case.row.source,
        model=case.row.model,
        gpu=case.row.gpu,
        engine=case.row.engine,
        model_kind=_UNKNOWN_KIND if isinstance(outcome, Refusal) else model_kind(outcome.subject.model),
        metric="kv_pool",
        grade=case.row.quality,
        flag="" if isinstance(outcome, Refusal) else outcome.flag,
        measured=measured if isinstance(outcome, Refusal) else outcome.measured,
        predicted=None if isinstance(outcome, Refusal) else outcome.predicted or None,
        band=None,
    )


def named_metric(metric: str, answer: Prediction | Refusal) -> str:
    """The metric with what changes its meaning: queueing, decode pools, whole batches, saturation."""
    if isinstance(answer, Refusal):
        return metric
    batches = answer.schedule
    if metric == "ttft" and batches.queueing:
        return "ttft_queueing"
    if metric == "tpot" and batches.load in _TPOT_NAMES:
        return _TPOT_NAMES[batches.load]
    if batches.load == "open_loop":
        return f"{metric}_open_loop"
    if metric == "e2e" and batches.load == "burst":
        return "batch_time"
    if metric == "output_rate" and batches.load in {"saturated", "burst"}:
        return "output_rate_saturated"
    return metric


def grouped(scores: Sequence[Score]) -> list[Group]:
    """Groups per metric: all, by source, by gpu, by engine, by model kind, and by all of them."""
    views: tuple[tuple[str, ...], ...] = (
        (),
        ("source",),
        ("gpu",),
        ("engine",),
        ("model_kind",),
        ("source", "gpu", "engine", "model_kind"),
    )
    groups: list[Group] = []
    for view in views:
        members: dict[tuple[str, ...], list[Score]] = defaultdict(list)
        for score in scores:
            members[*(getattr(score, name) for name in view), score.metric].append(score)
        groups.extend(_group(dict(zip(view, key, strict=False)), key[-1], members[key]) for key in sorted(members))
    return groups


def _group(named: dict[str, str], metric: str, scores: Sequence[Score]) -> Group:
    ratios = np.array([score.log_ratio for score in scores if score.predicted is not None])
    errors = np.abs(np.expm1(ratios))
    inside = [
        abs(score.log_ratio) <= np.log(score.band)
        for score in scores
        if score.predicted is not None and score.band is not None
    ]
    cells: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for score in scores:
        if score.predicted is not None:
            cells[score.cell].append(abs(float(np.expm1(score.log_ratio))))
    medians = [float(np.median(values)) for values in cells.values()]
    return Group(
        source=named.get("source"),
        gpu=named.get("gpu"),
        engine=named.get("engine"),
        model_kind=named.get("model_kind"),
        metric=metric,
        row_count=len(scores),
        predicted_count=len(ratios),
        median_abs_error_fraction=float(np.median(errors)) if len(ratios) else None,
        p90_abs_error_fraction=float(np.quantile(errors, 0.9)) if len(ratios) else None,
        bias_fraction=float(np.expm1(np.median(ratios))) if len(ratios) else None,
        interval_coverage_fraction=float(np.mean(inside)) if inside else None,
        cell_count=len(cells),
        cell_median_abs_error_fraction=float(np.median(medians)) if medians else None,
    )
