"""A few measured runs of one's own deployment turned into a factor and a slope, shrunk towards none.

``log(measured / predicted) = factor + slope x log(concurrency / reference)`` for each figure of each deployment,
with Gaussian priors around zero: one point moves the answer, three make it, and none can carry it far away.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tokenfleet.calibration.lint import lint
from tokenfleet.calibration.measured import Row, read_rows
from tokenfleet.calibration.predict import Prediction, predict
from tokenfleet.calibration.subject import Refusal
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import Deployment, ErrorBand, ReplicaPhysics
from tokenfleet.domain.trace import Floats
from tokenfleet.performance import scaled

FACTOR_SD = 0.3
"""Prior spread of the factor, natural log: what left-out deployments show."""
SLOPE_SD = 0.12
"""Prior spread of the slope per unit of natural log of concurrency."""
NOISE_SD = 0.08
"""Spread of one run around a straight line: the same configuration measured again, with its tail."""
_LEAST_BAND = 1.25
_NORMAL_90 = 1.645
_FEWEST_ROUNDS = 3
_CLIENT_SHORTFALL = 0.8
_TWIN_RATIO = 1.25
_FORMAT = 1

Refused = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What one figure of one deployment is multiplied with."""

    metric: str
    factor: float
    """At the reference load."""
    slope: float
    """Power of concurrency over the reference."""
    reference_concurrency: float
    lowest_concurrency: int
    highest_concurrency: int
    run_count: int
    band_factor: float
    """Factor of the 90 % interval inside the measured range."""
    held_out_error_before_fraction: float | None
    """Median error of each run predicted without calibration; ``None`` with one run."""
    held_out_error_after_fraction: float | None
    """Median error of each run predicted from the other runs."""

    def at(self, concurrency: float) -> float:
        """Factor at a concurrency; the slope ends at the borders of the measured range."""
        inside = min(max(concurrency, self.lowest_concurrency), self.highest_concurrency)
        return float(self.factor * (inside / self.reference_concurrency) ** self.slope)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """Corrections of one deployment, by metric."""

    model: str
    gpu: str
    engine: str
    tensor_parallel: int
    attention_data_parallel: int
    precision: str
    corrections: dict[str, Correction]

    @property
    def key(self) -> tuple[object, ...]:
        """What must be equal for the corrections to apply."""
        return (self.model, self.gpu, self.engine, self.tensor_parallel, self.attention_data_parallel, self.precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Everything that was learned, and the runs that were refused with the reason."""

    deployments: tuple[Calibrated, ...]
    refused: Refused

    def find(self, prediction: Prediction) -> Calibrated | None:
        """Corrections of a prediction's deployment."""
        wanted = _key(prediction.subject.deployment)
        return next((one for one in self.deployments if one.key == wanted), None)

    def corrected(self, row: Row, prediction: Prediction) -> Prediction:
        """A prediction with its figures corrected, unchanged where nothing was learned."""
        found = self.find(prediction)
        if found is None or row.concurrency is None:
            return prediction
        values = dict(prediction.values)
        for metric, correction in found.corrections.items():
            if metric in values:
                values[metric] *= correction.at(row.concurrency)
        return replace(prediction, values=values)

    def applied(self, physics: ReplicaPhysics) -> ReplicaPhysics:
        """Physics of a calibrated deployment: step time scaled by the TPOT factor, band as measured.

        Physics of other deployments come back unchanged. The factor is that of the reference load.
        """
        deployment = physics.deployment
        wanted = _key(deployment)
        found = next((one for one in self.deployments if one.key == wanted), None)
        if found is None or "tpot" not in found.corrections:
            return physics
        tpot = found.corrections["tpot"]
        evidence = (
            f"calibrated on {tpot.run_count} measured runs at concurrency {tpot.lowest_concurrency} to "
            f"{tpot.highest_concurrency}: x{tpot.factor:.3g}"
        )
        return replace(
            physics,
            step_time=scaled(physics.step_time, tpot.factor),
            band=ErrorBand(
                step_time_factor=tpot.band_factor,
                evidence=evidence,
                first_token_factor=(
                    found.corrections["ttft"].band_factor
                    if "ttft" in found.corrections
                    else physics.band.first_token_factor
                ),
            ),
        )

    def as_document(self) -> dict[str, object]:
        """Plain data for YAML."""
        return {
            "calibration": _FORMAT,
            "deployments": [
                {
                    **{name: getattr(one, name) for name in _IDENTITY},
                    "corrections": {
                        metric: {name: getattr(correction, name) for name in _FIGURES}
                        for metric, correction in one.corrections.items()
                    },
                }
                for one in self.deployments
            ],
            "refused": dict(self.refused),
        }


_IDENTITY = ("model", "gpu", "engine", "tensor_parallel", "attention_data_parallel", "precision")
_FIGURES = tuple(name for name in Correction.__dataclass_fields__ if name != "metric")


def calibrate(paths: Iterable[str | Path]) -> Calibration:
    """Learn corrections from measured runs.

    Args:
        paths: CSV files of measured runs, best the lowest, a middle and the highest concurrency of a deployment.

    Returns:
        Corrections with their held-out errors, and refused runs.

    Raises:
        BadInput: no run can be used; the reasons are named.
    """
    paths = tuple(paths)
    calibration = calibrate_rows(read_rows(paths))
    if not calibration.deployments:
        raise BadInput.at(
            ", ".join(map(str, paths)),
            "no run can be used: " + "; ".join(f"{row} {why}" for row, why in calibration.refused.items()),
            "give closed-loop runs with concurrency, lengths, layout and TPOT or output rate",
        )
    return calibration


def calibrate_rows(rows: Sequence[Row]) -> Calibration:
    """Learn corrections from rows that were read."""
    linted = lint(rows)
    refused: Refused = {**linted.dropped, **linted.flagged}
    usable = [row for row in linted.rows if row.row_id not in refused]
    for row_id, why in contradictions(usable).items():
        refused[row_id] = why
    points: dict[tuple[object, ...], dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in usable:
        if row.row_id in refused:
            continue
        answer = predict(row)
        if isinstance(answer, Refusal):
            refused[row.row_id] = answer.reason
            continue
        for one in row.measurements:
            if one.metric in answer.values and row.concurrency and not _is_queue(one.metric, answer):
                ratio = float(np.log(one.value / answer.values[one.metric]))
                points[_key(answer.subject.deployment)][one.metric].append((row.concurrency, ratio))
    deployments = tuple(
        Calibrated(
            **dict(zip(_IDENTITY, key, strict=True)),  # type: ignore[arg-type]
            corrections={metric: correction(metric, seen) for metric, seen in metrics.items()},
        )
        for key, metrics in points.items()
    )
    return Calibration(deployments=deployments, refused=refused)


def _is_queue(metric: str, answer: Prediction) -> bool:
    return metric == "ttft" and answer.schedule.queueing


def _key(deployment: Deployment) -> tuple[object, ...]:
    layout = deployment.layout
    return (
        *(deployment.model, deployment.gpu, engine_line(deployment.engine.name), layout.tensor_parallel),
        *(layout.attention_data_parallel, deployment.precision),
    )


def engine_line(name: str) -> str:
    """Engine and minor version: patches share a calibration (``vllm-0.32.1`` is ``vllm-0.32``)."""
    engine, _, version = name.rpartition("-")
    return f"{engine}-{'.'.join(version.split('.')[:2])}" if engine else name


def contradictions(rows: Sequence[Row]) -> Refused:
    """Runs that contradict themselves or each other, with the reason.

    Too few samples: less than three rounds of the requests in flight. Client-bound: the output rate is below 80 %
    of what concurrency over latency gives, so the client did not keep its requests in flight. Twins: the same load
    with figures more than a quarter apart, so something unnamed changed, a warm cache for one.
    """
    refused: Refused = {}
    loads: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row.request_count and row.concurrency and row.request_count < _FEWEST_ROUNDS * row.concurrency:
            refused[row.row_id] = f"too few samples: {row.request_count} requests at {row.concurrency} in flight"
        elif _client_bound(row):
            refused[row.row_id] = "client-bound: the rate is below what concurrency and latency give"
        else:
            setup = (row.model, row.gpu, row.engine, row.engine_version, row.tensor_parallel, row.precision)
            load = (row.input_tokens, row.output_tokens, row.concurrency)
            loads[*setup, *load].append(row)
    for twins in loads.values():
        for metric in ("ttft", "tpot"):
            values = [value for row in twins if (value := row.value(metric))]
            if len(values) > 1 and max(values) > _TWIN_RATIO * min(values):
                told = f"{metric} of equal runs differs {max(values) / min(values):.2g} times: is a cache warm?"
                refused.update(dict.fromkeys((row.row_id for row in twins), told))
    return refused


def _client_bound(row: Row) -> bool:
    ttft, tpot, rate = (row.value(metric) for metric in ("ttft", "tpot", "output_rate"))
    if not (ttft and tpot and rate and row.concurrency and row.output_tokens):
        return False
    in_flight_rate = row.concurrency * row.output_tokens / (ttft + tpot * (row.output_tokens - 1))
    return rate < _CLIENT_SHORTFALL * in_flight_rate


def correction(metric: str, points: Sequence[tuple[int, float]]) -> Correction:
    """Factor and slope from (concurrency, log of measured over predicted).

    Args:
        metric: what is corrected.
        points: at least one.

    Returns:
        The posterior mean, its 90 % band (never below x1.25) and leave-one-out errors.
    """
    loads = np.array([point[0] for point in points], dtype=np.float64)
    ratios = np.array([point[1] for point in points])
    reference = float(np.exp(np.mean(np.log(loads))))
    mean, covariance = _posterior(np.log(loads / reference), ratios)
    spread = float(np.sqrt(np.mean((ratios - mean[0] - mean[1] * np.log(loads / reference)) ** 2)))
    width = np.sqrt(max(NOISE_SD, spread) ** 2 + covariance[0, 0])
    before, after = _held_out(loads, ratios) if len(points) > 1 else (None, None)
    return Correction(
        metric=metric,
        factor=float(np.exp(mean[0])),
        slope=float(mean[1]),
        reference_concurrency=reference,
        lowest_concurrency=int(loads.min()),
        highest_concurrency=int(loads.max()),
        run_count=len(points),
        band_factor=max(_LEAST_BAND, float(np.exp(_NORMAL_90 * width))),
        held_out_error_before_fraction=before,
        held_out_error_after_fraction=after,
    )


def _posterior(offsets: Floats, ratios: Floats) -> tuple[Floats, Floats]:
    """Mean and covariance of factor and slope under the priors."""
    design = np.stack([np.ones_like(offsets), offsets], axis=1)
    precision = design.T @ design / NOISE_SD**2 + np.diag([1 / FACTOR_SD**2, 1 / SLOPE_SD**2])
    covariance: Floats = np.linalg.inv(precision).astype(np.float64)
    mean: Floats = covariance @ design.T @ ratios / NOISE_SD**2
    return mean, covariance


def _held_out(loads: Floats, ratios: Floats) -> tuple[float, float]:
    after = []
    for out in range(len(loads)):
        rest = np.arange(len(loads)) != out
        reference = np.exp(np.mean(np.log(loads[rest])))
        mean, _ = _posterior(np.log(loads[rest] / reference), ratios[rest])
        after.append(abs(np.expm1(mean[0] + mean[1] * np.log(loads[out] / reference) - ratios[out])))
    return float(np.median(np.abs(np.expm1(-ratios)))), float(np.median(after))


def read_calibration(path: str | Path) -> Calibration:
    """Read what :func:`write_calibration` wrote.

    Raises:
        BadInput: the file is missing or is no calibration.
    """
    import yaml

    where = str(path)
    try:
        document: Any = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise BadInput.at(where, f"cannot be read ({error})", "run tokenfleet calibrate") from error
    if not isinstance(document, dict) or document.get("calibration") != _FORMAT:
        raise BadInput.at(where, "is no calibration of this format", "run tokenfleet calibrate")
    try:
        deployments = tuple(
            Calibrated(
                **{name: entry[name] for name in _IDENTITY},
                corrections={
                    metric: Correction(metric=metric, **figures) for metric, figures in entry["corrections"].items()
                },
            )
            for entry in document["deployments"]
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput.at(where, f"is not complete ({error})", "run tokenfleet calibrate again") from error
    return Calibration(deployments=deployments, refused=dict(document.get("refused", {})))


def write_calibration(calibration: Calibration, path: str | Path) -> None:
    """Write a calibration as YAML that a person can read and keep beside a scenario."""
    import yaml

    text = yaml.safe_dump(calibration.as_document(), sort_keys=False, allow_unicode=True)
    Path(path).write_text(text, encoding="utf-8")
