"""Which constant of the physics owns which part of a step: the step-time model taken apart by its constants.

Every term of a step is proportional to a constant (seconds, counts) or to its inverse (shares of a peak). So the
terms under one changed constant show what it contributes, and a fit needs no second copy of the formulas.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from tokenfleet.calibration.subject import Subject
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import Deployment
from tokenfleet.performance.coefficients import constants, constants_as, engine_family
from tokenfleet.performance.pipeline import pipelined_terms
from tokenfleet.performance.terms import StepTerms

INVERSE = (
    *("dense_compute_fraction.bf16", "dense_compute_fraction.fp8", "dense_compute_fraction.int8"),
    *("dense_compute_fraction.fp4", "expert_compute_fraction.bf16", "expert_compute_fraction.fp8"),
    *("expert_compute_fraction.int8", "expert_compute_fraction.fp4"),
    *("dense_bandwidth_fraction.bf16", "dense_bandwidth_fraction.fp8", "dense_bandwidth_fraction.int4"),
    *("dense_bandwidth_fraction.fp4", "expert_bandwidth_fraction.bf16", "expert_bandwidth_fraction.fp8"),
    *("expert_bandwidth_fraction.int4", "expert_bandwidth_fraction.fp4", "kv_bandwidth_fraction"),
    *("attention_compute_fraction", "link_fraction", "pcie_fraction.2", "pcie_fraction.4", "pcie_fraction.8"),
)
"""Shares of a peak: twice the share is half the time."""
DIRECT = ("activation_transfers", "collective_s.link", "collective_s.pcie", "collective_s.network", "eager_s")
"""Seconds and counts: twice the value is twice the time."""
BY_ENGINE = ("launch_s", "step_s", "sequence_s", "request_s")
"""Seconds that differ by engine family."""
_PERFECT_COMPUTE = 0.8


@dataclass(frozen=True, slots=True)
class Basis:
    """Step terms of a deployment and the part of each that a constant owns."""

    terms: StepTerms
    parts: Mapping[str, StepTerms]
    """For each constant that matters here: the seconds of every term that are proportional to it (or its inverse)."""


_SCALARS = (
    *("token_compute_s", "token_activation_s", "token_message_s", "prefill_token_s", "weight_stream_s"),
    *("latency_s", "launch_s", "fixed_s", "sequence_overhead_s", "sequence_state_s", "pair_s", "window_pair_s"),
    *("eager_s", "request_s"),
)


@lru_cache(maxsize=8192)
def basis(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> Basis:
    """Take the step of a deployment apart.

    Args:
        model: a complete architecture.
        gpu: the part.
        deployment: layout, precisions, engine.

    Returns:
        Terms at the shipped constants and their parts.
    """
    whole = pipelined_terms(model, gpu, deployment)
    family = engine_family(deployment.engine.name)
    names = [*INVERSE, *DIRECT, *(f"{name}.{family}" for name in BY_ENGINE)]
    parts = {}
    for name in names:
        value = constants()[name].value
        with constants_as({name: value * 2}):
            changed = pipelined_terms(model, gpu, deployment)
        factor = -2.0 if name in INVERSE else 1.0
        part = _difference(whole, changed, factor)
        if part is not None:
            parts[name] = part
    return Basis(whole, parts)


def _difference(whole: StepTerms, changed: StepTerms, factor: float) -> StepTerms | None:
    values = {name: factor * (getattr(changed, name) - getattr(whole, name)) for name in _SCALARS}
    experts = tuple(
        replace(old, all_s=factor * (new.all_s - old.all_s))
        for new, old in zip(changed.experts, whole.experts, strict=True)
    )
    contexts = {
        name: replace(
            getattr(whole, name),
            compute_s=factor * (getattr(changed, name).compute_s - getattr(whole, name).compute_s),
            bandwidth_s=factor * (getattr(changed, name).bandwidth_s - getattr(whole, name).bandwidth_s),
        )
        for name in ("context", "window")
    }
    pieces = [*values.values(), *(one.all_s for one in experts)]
    pieces += [figure for one in contexts.values() for figure in (one.compute_s, one.bandwidth_s)]
    if not any(abs(piece) > 0 for piece in pieces):
        return None
    return replace(whole, **values, experts=experts, **contexts)


def perfect_step_s(subject: Subject) -> tuple[float, float, float, float]:
    """Seconds that perfect hardware needs: for a step of one sequence, a token, a token of context, a prefill pair.

    Bytes at full bandwidth, FLOP at 80 % of the dense peak of the data sheet, no collectives, no launches.
    """
    names = {name: _PERFECT_COMPUTE if "compute" in name else 1.0 for name in INVERSE}
    names.update({name: 1.0 for name in constants() if name.startswith("vendor_")})
    with constants_as(names):
        terms = pipelined_terms(subject.model, subject.gpu, subject.deployment)
    read_s = terms.weight_stream_s + sum(read.all_s * (1 - read.miss_fraction) for read in terms.experts)
    return read_s, terms.token_compute_s, terms.context.bandwidth_s, terms.pair_s
