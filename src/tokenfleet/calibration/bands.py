"""How wrong a predicted figure may be, by what is new about its deployment."""

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from tokenfleet.calibration.subject import Subject
from tokenfleet.performance.coefficients import engine_version
from tokenfleet.performance.support import crosses_nodes

Novelty = Literal["known", "new_model", "new_gpu", "new_engine", "new_vendor"]


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("bands.toml").read_text(encoding="utf-8"))


def novelty(subject: Subject) -> Novelty:
    """What the fit has not seen of a deployment; the least known part decides.

    Args:
        subject: a resolved row.

    Returns:
        ``new_vendor`` when no part of that vendor was fitted: no interval is honest then.
    """
    seen = _table()["seen"]
    name, _ = engine_version(subject.deployment.engine.name)
    if subject.gpu.vendor.lower() not in seen["vendors"]:
        return "new_vendor"
    if name not in seen["engines"]:
        return "new_engine"
    if subject.gpu.name not in seen["gpus"] or crosses_nodes(subject.gpu, subject.deployment.layout):
        return "new_gpu"
    return "known" if subject.model.name in seen["models"] else "new_model"


def band_factor(metric: str, kind: Novelty, *, experts: bool) -> float | None:
    """Factor of the 90 % interval: multiply and divide.

    Args:
        metric: ``ttft``, ``tpot``, ``e2e`` or ``output_rate``.
        kind: what is new.
        experts: whether the model has experts; their kernels differ more between engine versions.

    Returns:
        The factor, or ``None`` where no recipe covers the truth (a new vendor, a new engine): calibrate first.
    """
    factor = _table().get(metric, {}).get("experts" if experts else "dense", {}).get(kind)
    return None if factor is None else float(factor)


def has_experts(subject: Subject) -> bool:
    """Whether a row's model has experts."""
    return any(block.expert_count for block in subject.model.feed_forward)
