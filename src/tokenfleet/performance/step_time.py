"""The step-time table of one replica, and what one step is made of; both from the same terms."""

from dataclasses import replace

import numpy as np

from tokenfleet.domain.errors import OutOfRange
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.replica import Deployment, StepShares, StepTimeModel
from tokenfleet.performance.pipeline import pipelined_terms
from tokenfleet.performance.support import unsupported
from tokenfleet.performance.terms import StepTerms

_PS_PER_S = 1e12


def supported_terms(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> StepTerms:
    """Step terms, or :class:`OutOfRange` with every reason why they are not known."""
    reasons = unsupported(model, gpu, deployment)
    if reasons:
        raise OutOfRange(f"{deployment.model} on {deployment.gpu}: {'; '.join(reasons)}")
    return pipelined_terms(model, gpu, deployment)


def step_time_model(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> StepTimeModel:
    """Step time of a replica as a table over tokens and a few slopes, in integer picoseconds.

    Args:
        model: A complete architecture.
        gpu: The part.
        deployment: Layout, precisions, engine settings; the step budget sets the length of the table.

    Returns:
        The model; see :class:`StepTimeModel` for how a step is put together.

    Raises:
        OutOfRange: The deployment is not supported.
    """
    terms = supported_terms(model, gpu, deployment)
    engine = deployment.engine
    tokens = np.arange(max(engine.max_batched_tokens, engine.max_sequence_count) + 1, dtype=np.float64)
    sequence_s = terms.sequence_overhead_s + terms.sequence_state_s - terms.sequence_credit_s
    return StepTimeModel(
        token_ps=np.rint(terms.token_split(tokens).total * _PS_PER_S).astype(np.int64),
        sequence_ps=round(sequence_s * _PS_PER_S),
        context_ps=round(terms.context.step_s * _PS_PER_S),
        window_ps=round(terms.window.step_s * _PS_PER_S),
        window_tokens=terms.window_tokens,
        pair_ps=round(terms.pair_s * _PS_PER_S),
        eager_ps=round(terms.eager_s * _PS_PER_S),
        request_ps=round(terms.request_s * _PS_PER_S),
    )


def scaled(step_time: StepTimeModel, factor: float) -> StepTimeModel:
    """The same replica, every duration multiplied by a factor.

    Args:
        step_time: The model.
        factor: Positive; an error band's factor or its inverse, or a calibration.

    Returns:
        The scaled model.
    """
    return replace(
        step_time,
        token_ps=np.rint(step_time.token_ps * factor).astype(np.int64),
        sequence_ps=round(step_time.sequence_ps * factor),
        context_ps=round(step_time.context_ps * factor),
        window_ps=round(step_time.window_ps * factor),
        pair_ps=round(step_time.pair_ps * factor),
        eager_ps=round(step_time.eager_ps * factor),
        request_ps=round(step_time.request_ps * factor),
    )


def step_shares(
    model: ModelArchitecture,
    gpu: Gpu,
    deployment: Deployment,
    *,
    token_count: int,
    sequence_count: int,
    context_tokens: int,
    pair_count: int = 0,
    prefill: bool = False,
) -> StepShares:
    """What one step's time is made of.

    Compute is matrix work and prefill attention; bandwidth is weights, experts, KV cache, state and activations;
    communication is collectives; overhead is launches, scheduling, sampling, and in a short step with prefill the
    wait for launches.

    Args:
        model: A complete architecture.
        gpu: The part.
        deployment: Layout, precisions, engine settings.
        token_count: Tokens in the step: one for each decoding sequence, more for prefill chunks.
        sequence_count: Decoding sequences.
        context_tokens: Their contexts added up; for windows each counts as their mean.
        pair_count: Query-key pairs of prefill.
        prefill: Whether the step holds any prefill.

    Returns:
        Seconds that add up to ``step_s``.

    Raises:
        OutOfRange: The deployment is not supported.
    """
    terms = supported_terms(model, gpu, deployment)
    split = terms.token_split(np.asarray(token_count, dtype=np.float64))
    mean = context_tokens / sequence_count if sequence_count else 0.0
    in_window = sequence_count * min(mean, terms.window_tokens) if terms.window_tokens else 0.0
    compute = float(split.compute) + pair_count * terms.pair_s - sequence_count * terms.sequence_credit_s
    bandwidth = float(split.bandwidth) + sequence_count * terms.sequence_state_s
    for size, each in ((context_tokens, terms.context), (in_window, terms.window)):
        if each.compute_s > each.bandwidth_s:
            compute += size * each.compute_s
        else:
            bandwidth += size * each.bandwidth_s
    overhead = float(split.overhead) + sequence_count * terms.sequence_overhead_s
    base = compute + bandwidth + float(split.communication) + overhead
    step = float(np.sqrt(np.sqrt(base**4 + terms.eager_s**4))) if prefill else base
    return StepShares(
        step_s=step,
        compute_s=compute,
        bandwidth_s=bandwidth,
        communication_s=float(split.communication),
        overhead_s=overhead + step - base,
    )
