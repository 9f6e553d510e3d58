"""The constants of the physics fitted to measured figures, with priors, and with whole groups left out.

Each constant is its prior times an exponential of a few shrunk numbers: one for the constant itself, one for the
engine family where it differs by engine, one for the vendor. Residuals are logarithms of predicted over measured,
loss is Huber's, a cell (source, model, gpu, engine, figure) weighs as the root of its rows. Gauss-Newton, with the
chain rule through the parts of a step that :mod:`tokenfleet.calibration.design` keeps apart.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tokenfleet.calibration.basis import INVERSE
from tokenfleet.calibration.design import STEMS, Design, Target
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Floats
from tokenfleet.performance.coefficients import constants, engine_family
from tokenfleet.performance.terms import is_blackwell, vendor_family

Mask = npt.NDArray[np.bool_]
_Class = tuple[str, str, str | None, bool]
"""Engine group, engine family, vendor with factors of its own, whether launches are those of newer parts."""

PRIORS: Mapping[str, tuple[float, float]] = {
    "dense_compute_fraction.bf16": (0.68, 0.12),
    "dense_compute_fraction.fp8": (0.58, 0.15),
    "dense_compute_fraction.int8": (0.55, 0.2),
    "dense_compute_fraction.fp4": (0.45, 0.15),
    "expert_compute_fraction.bf16": (0.22, 0.3),
    "expert_compute_fraction.fp8": (0.18, 0.3),
    "expert_compute_fraction.int8": (0.18, 0.3),
    "expert_compute_fraction.fp4": (0.15, 0.3),
    "dense_bandwidth_fraction.bf16": (0.82, 0.08),
    "dense_bandwidth_fraction.fp8": (0.82, 0.08),
    "dense_bandwidth_fraction.int4": (0.75, 0.12),
    "dense_bandwidth_fraction.fp4": (0.8, 0.1),
    "expert_bandwidth_fraction.bf16": (0.75, 0.2),
    "expert_bandwidth_fraction.fp8": (0.75, 0.15),
    "expert_bandwidth_fraction.int4": (0.75, 0.2),
    "expert_bandwidth_fraction.fp4": (0.75, 0.2),
    "kv_bandwidth_fraction": (0.85, 0.1),
    "attention_compute_fraction": (0.5, 0.2),
    "link_fraction": (0.4, 0.2),
    "pcie_fraction.2": (0.55, 0.1),
    "pcie_fraction.4": (0.4, 0.15),
    "pcie_fraction.8": (0.3, 0.3),
    "activation_transfers": (20.0, 0.35),
    "collective_s.link": (8e-6, 0.4),
    "collective_s.pcie": (30e-6, 0.05),
    "collective_s.network": (40e-6, 0.3),
    "eager_s": (150e-6, 0.4),
    "launch_s": (20e-6, 0.4),
    "step_s": (0.8e-3, 0.5),
    "sequence_s": (12e-6, 0.5),
    "request_s": (0.04, 0.7),
}
"""Value and spread (natural log) before any serving row is seen: kernel tables and launch costs of the hardware."""
FAMILY_SD: Mapping[str, float] = {"launch_s": 0.35, "step_s": 0.35, "sequence_s": 0.35, "request_s": 0.7}
COLLECTIVE_SD = 0.4
VENDOR_SD = 0.5
LAUNCH_SD = 0.3
_LAUNCHED = frozenset({"launch_s", "eager_s"})
_HUBER = 0.15
_NOISE = 0.12
_TTFT_WEIGHT = 0.35
_LEARNED = 0.97
"""A number whose spread shrank by less than this share of its prior was not learned."""
_MOST_ITERATIONS = 12
_LARGEST_STEP = 0.7
_REQUEST = STEMS.index("request_s")
_EAGER = STEMS.index("eager_s")
_SIGN = np.array([-1.0 if stem in INVERSE else 1.0 for stem in STEMS])


@dataclass(frozen=True, slots=True)
class Model:
    """How parameters make constants: per class of targets a matrix (stem, parameter) and an offset."""

    names: tuple[str, ...]
    prior_sd: Floats
    classes: tuple[tuple[Floats, Floats], ...]
    """(stem, parameter) incidence and (stem,) logarithm of the prior over the shipped value."""
    class_of: npt.NDArray[np.int64]
    """Class of each target."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Parameters with their posterior spread."""

    model: Model
    value: Floats
    sd: Floats

    def constants(self) -> dict[str, tuple[float, float]]:
        """Fitted constants by shipped name, value and relative spread; those that no row moved are left out."""
        rows = zip(self.model.names, self.value, self.sd, self.model.prior_sd, strict=True)
        found = {name: (value, sd, sd < _LEARNED * prior_sd) for name, value, sd, prior_sd in rows}
        answer: dict[str, tuple[float, float]] = {}
        for stem, (prior, _) in PRIORS.items():
            shift, sd, learned = found.get(stem, (0.0, 0.0, False))
            if learned and stem not in FAMILY_SD:
                answer[stem] = (prior * float(np.exp(shift)), float(sd))
            elif learned:
                answer[f"{stem}.other"] = (prior * float(np.exp(shift)), float(np.hypot(sd, FAMILY_SD[stem])))
                for name, (more, wide, _) in found.items():
                    if name.startswith(f"{stem}@"):
                        answer[f"{stem}.{name.split('@')[1]}"] = (prior * float(np.exp(shift + more)), float(wide))
        for name, (shift, sd, learned) in found.items():
            if learned and name.startswith(("collective_factor.", "vendor_", "launch_factor.")):
                answer[name] = (float(np.exp(shift)), float(sd))
        return answer


def kind_of(stem: str) -> str:
    """``compute``, ``bandwidth``, ``overhead`` or ``other``: what a vendor factor scales."""
    if "compute" in stem:
        return "compute"
    if "bandwidth" in stem:
        return "bandwidth"
    return "overhead" if stem in {"launch_s", "step_s", "sequence_s", "eager_s"} else "other"


def vendor_of(target: Target) -> str | None:
    """Vendor with factors of its own; NVIDIA is the reference, Gaudi is taken at its peaks."""
    vendor = vendor_family(target.subject.gpu, engine_family(target.subject.deployment.engine.name))
    return None if vendor in {"nvidia", "gaudi"} else vendor


def engine_group(engine: str) -> str:
    """What shares engine constants in a fit: the family, or the engine itself where it belongs to none."""
    family = engine_family(engine)
    return family if family != "other" else engine.rpartition("-")[0] or engine


def parameterize(targets: Sequence[Target]) -> Model:
    """Parameters of a set of targets."""
    names: dict[str, int] = {}
    spreads: list[float] = []

    def place(name: str, spread: float) -> int:
        if name not in names:
            names[name] = len(names)
            spreads.append(spread)
        return names[name]

    classes: dict[_Class, int] = {}
    rows: list[list[list[int]]] = []
    offsets: list[Floats] = []
    class_of = np.zeros(len(targets), dtype=np.int64)
    for number, target in enumerate(targets):
        engine = target.subject.deployment.engine.name
        family = engine_family(engine)
        newer = is_blackwell(target.subject.gpu)
        key = (engine_group(engine), family, vendor_of(target), newer)
        if key not in classes:
            classes[key] = len(classes)
            rows.append([_parameters(stem, key, place) for stem in STEMS])
            offsets.append(np.array([_offset(stem, key) for stem in STEMS]))
        class_of[number] = classes[key]
    matrices = []
    for row in rows:
        matrix = np.zeros((len(STEMS), len(names)))
        for stem, members in enumerate(row):
            matrix[stem, members] = 1.0
        matrices.append(matrix)
    return Model(tuple(names), np.array(spreads), tuple(zip(matrices, offsets, strict=True)), class_of)


def _parameters(stem: str, key: _Class, place: Callable[[str, float], int]) -> list[int]:
    group, _, vendor, newer = key
    members = [place(stem, PRIORS[stem][1])]
    if stem in FAMILY_SD:
        members.append(place(f"{stem}@{group}", FAMILY_SD[stem]))
    if stem.startswith("collective_s"):
        members.append(place(f"collective_factor.{group}", COLLECTIVE_SD))
    if vendor is not None and kind_of(stem) != "other":
        members.append(place(f"vendor_{kind_of(stem)}_factor.{vendor}", VENDOR_SD))
    if newer and stem in _LAUNCHED:
        members.append(place("launch_factor.blackwell", LAUNCH_SD))
    return members


def _offset(stem: str, key: _Class) -> float:
    """Logarithm of the prior over what is shipped for an engine family, a vendor and a generation, factors included."""
    _, family, vendor, newer = key
    table = constants()
    shipped = table[stem if stem in table else f"{stem}.{family}"].value
    factors = [f"collective_factor.{family}"] if stem.startswith("collective_s") else []
    if vendor is not None and kind_of(stem) != "other":
        factors.append(f"vendor_{kind_of(stem)}_factor.{vendor}")
    if newer and stem in _LAUNCHED:
        factors.append("launch_factor.blackwell")
    for name in factors:
        shipped *= table[name].value if name in table else 1.0
    return float(np.log(PRIORS[stem][0] / shipped))


def predict_log(design: Design, model: Model, value: Floats, chosen: npt.NDArray[np.int64]) -> Floats:
    """Logarithm of predicted seconds of some targets."""
    seconds, _ = _evaluate(design, model, value, chosen, gradient=False)
    return np.log(seconds)


def _evaluate(
    design: Design, model: Model, value: Floats, chosen: npt.NDArray[np.int64], *, gradient: bool
) -> tuple[Floats, Floats]:
    """Predicted seconds, and their logarithmic derivative by stem."""
    counts = design.start[chosen + 1] - design.start[chosen]
    ends = np.cumsum(counts)
    steps = np.repeat(design.start[chosen] - (ends - counts), counts) + np.arange(ends[-1])
    owner = np.repeat(np.arange(len(chosen)), counts)
    shifts = np.array([matrix @ value + offset for matrix, offset in model.classes])
    scale = np.exp(shifts[model.class_of[chosen]] * _SIGN)
    parts = design.parts_s[steps] * scale[owner]
    base = parts.sum(axis=1)
    eager = design.eager_s[steps] * scale[owner, _EAGER]
    step = (base**4 + eager**4) ** 0.25
    weight = design.weight[steps]
    request = design.request_s[chosen] * scale[:, _REQUEST]
    seconds: Floats = np.bincount(owner, weight * step, len(chosen)) + request
    if not gradient:
        return seconds, np.zeros((0, 0))
    by_part = np.add.reduceat((weight * (base / step) ** 3)[:, None] * parts, ends - counts, axis=0)
    by_part[:, _EAGER] += np.bincount(owner, weight * (eager / step) ** 3 * eager, len(chosen))
    by_part[:, _REQUEST] += request
    slope: Floats = by_part * _SIGN / seconds[:, None]
    return seconds, slope


def fit(design: Design, model: Model, train: Mask, start: Floats | None = None) -> Fit:
    """Posterior mode and its spread.

    Args:
        design: targets and their steps.
        model: parameters.
        train: which targets count.
        start: parameters to begin with.

    Returns:
        The fit; Gauss-Newton ends when no parameter moves by more than one percent.
    """
    chosen = np.flatnonzero(train)
    measured = np.log(design.measured_s[chosen])
    weight = _weights([design.targets[place] for place in chosen])
    value = np.zeros(len(model.names)) if start is None else start.copy()
    curvature = np.eye(len(value))
    for _ in range(_MOST_ITERATIONS):
        seconds, slope = _evaluate(design, model, value, chosen, gradient=True)
        residual = measured - np.log(seconds)
        jacobian = np.zeros((len(chosen), len(value)))
        for number, (matrix, _) in enumerate(model.classes):
            members = model.class_of[chosen] == number
            jacobian[members] = slope[members] @ matrix
        robust = np.minimum(1.0, _HUBER / np.maximum(np.abs(residual), 1e-12))
        scaled = jacobian * (weight * robust / _NOISE**2)[:, None]
        curvature = scaled.T @ jacobian + np.diag(1 / model.prior_sd**2)
        move = np.linalg.solve(curvature, scaled.T @ residual - value / model.prior_sd**2)
        move *= min(1.0, _LARGEST_STEP / float(np.abs(move).max()))
        value = value + move
        if float(np.abs(move).max()) < 0.01:
            break
    spread: Floats = np.sqrt(np.diag(np.linalg.inv(curvature))).astype(np.float64)
    return Fit(model, value, spread)


def _weights(targets: Sequence[Target]) -> Floats:
    cells = Counter(target.cell for target in targets)
    metric = [_TTFT_WEIGHT if target.metric == "ttft" else 1.0 for target in targets]
    return np.array([one / np.sqrt(cells[target.cell]) for one, target in zip(metric, targets, strict=True)])


def leave_out(
    design: Design, model: Model, train: Mask, test: Mask, group: Callable[[Target], str], start: Floats
) -> Floats:
    """Log of predicted over measured of each target, its whole group left out of the fit; NaN elsewhere.

    Args:
        design: targets and their steps.
        model: parameters.
        train: targets that may be fitted.
        test: targets to predict.
        group: what is left out together.
        start: parameters to begin with; half of them, so that a left-out group leaves no trace in a short run.

    Returns:
        (target,) natural logarithms.
    """
    names = np.array([group(target) for target in design.targets])
    residual = np.full(len(design.targets), np.nan)
    for name in sorted(set(names[test])):
        inside = names == name
        fitted = fit(design, model, train & ~inside, start * 0.5)
        chosen = np.flatnonzero(test & inside)
        residual[chosen] = predict_log(design, model, fitted.value, chosen) - np.log(design.measured_s[chosen])
    return residual
