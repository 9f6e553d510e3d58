"""The step-time table of one replica, and what one step is made of; both from the same terms."""

from dataclasses import replace

import numpy as np

from tokenfleet.domain.errors import OutOfRange
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.replica import Deployment, EngineSettings, StepShares, StepTimeModel
from tokenfleet.domain.trace import Floats
from tokenfleet.performance.attention import mean_window_pairs
from tokenfleet.performance.pipeline import pipelined_terms
from tokenfleet.performance.speculation import Drafting, speculating_terms
from tokenfleet.performance.support import unsupported
from tokenfleet.performance.terms import StepTerms

_PS_PER_S = 1e12


def supported_terms(model: ModelArchitecture, gpu: Gpu, deployment: Deployment) -> tuple[StepTerms, Drafting | None]:
    """Step terms and what a drafter adds, or :class:`OutOfRange` with every reason why they are not known."""
    reasons = unsupported(model, gpu, deployment)
    if reasons:
        raise OutOfRange(f"{deployment.model} on {deployment.gpu}: {'; '.join(reasons)}")
    return speculating_terms(pipelined_terms(model, gpu, deployment), model, gpu, deployment)


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
    terms, drafting = supported_terms(model, gpu, deployment)
    tokens = np.arange(_most_tokens(deployment.engine) + 1, dtype=np.float64)
    drafted = tokens[: _most_tokens(deployment.engine) // terms.step_token_count + 1]
    draft_s = None if drafting is None else drafting.split(drafted).total
    sequence_s = terms.sequence_overhead_s + terms.sequence_state_s - terms.sequence_credit_s
    return StepTimeModel(
        token_ps=np.rint(terms.token_split(tokens).total * _PS_PER_S).astype(np.int64),
        sequence_ps=round(sequence_s * _PS_PER_S),
        context_ps=round(terms.context.step_s * _PS_PER_S),
        window_ps=round(terms.window.step_s * _PS_PER_S),
        window_tokens=terms.window_tokens,
        pair_ps=round(terms.pair_s * _PS_PER_S),
        window_pair_ps=round(terms.window_pair_s * _PS_PER_S),
        eager_ps=round(terms.eager_s * _PS_PER_S),
        request_ps=round(terms.request_s * _PS_PER_S),
        draft_ps=None if draft_s is None else np.rint(draft_s * _PS_PER_S).astype(np.int64),
    )


def shortened(step_time: StepTimeModel, deployment: Deployment) -> StepTimeModel:
    """The step times of the same replica with a step budget that is no larger: nothing but the length hangs on it."""
    most = _most_tokens(deployment.engine)
    drafted = most // deployment.engine.step_token_count
    return replace(
        step_time,
        token_ps=step_time.token_ps[: most + 1].copy(),
        draft_ps=None if step_time.draft_ps is None else step_time.draft_ps[: drafted + 1].copy(),
    )


def _most_tokens(engine: EngineSettings) -> int:
    """Of one step."""
    return max(engine.max_batched_tokens, engine.max_sequence_count * engine.step_token_count)


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
        token_count: Tokens in the step: one for each decoding sequence (with speculation, those drafted as well),
            more for prefill chunks.
        sequence_count: Decoding sequences.
        context_tokens: Their contexts added up; for windows each counts as their mean.
        pair_count: Query-key pairs of prefill; for windows each query counts as their mean.
        prefill: Whether the step holds any prefill.

    Returns:
        Seconds that add up to ``step_s``.

    Raises:
        OutOfRange: The deployment is not supported.
    """
    parts = step_parts(
        model,
        gpu,
        deployment,
        tokens=np.asarray(token_count, dtype=np.float64),
        sequences=np.asarray(sequence_count, dtype=np.float64),
        context_tokens=np.asarray(context_tokens, dtype=np.float64),
        pairs=np.asarray(pair_count, dtype=np.float64),
        prefill=prefill,
    )
    seconds = {name: float(each) for name, each in parts.items()}
    return StepShares(
        step_s=sum(seconds.values()),
        compute_s=seconds["compute"],
        bandwidth_s=seconds["bandwidth"],
        communication_s=seconds["communication"],
        overhead_s=seconds["overhead"],
    )


def step_parts(
    model: ModelArchitecture,
    gpu: Gpu,
    deployment: Deployment,
    *,
    tokens: Floats,
    sequences: Floats,
    context_tokens: Floats,
    pairs: Floats | None = None,
    prefill: bool = False,
) -> dict[str, Floats]:
    """What many steps are made of, mean ones too: :func:`step_shares` of arrays of one shape, whole numbers or not.

    Returns:
        Seconds by ``compute``, ``bandwidth``, ``communication`` and ``overhead``; together they are the steps.

    Raises:
        OutOfRange: The deployment is not supported.
    """
    terms, drafting = supported_terms(model, gpu, deployment)
    split = terms.token_split(tokens)
    if drafting is not None:
        split = split.plus(drafting.split(sequences))
    mean = context_tokens / np.maximum(sequences, 1e-9)
    in_window = sequences * np.minimum(mean, terms.window_tokens)
    compute = split.compute - sequences * terms.sequence_credit_s
    if pairs is not None:
        inside = mean_window_pairs(pairs, tokens - sequences * terms.step_token_count, terms.window_tokens)
        compute = compute + pairs * terms.pair_s + inside * terms.window_pair_s
    bandwidth = split.bandwidth + sequences * terms.sequence_state_s
    for size, each in ((context_tokens, terms.context), (in_window, terms.window)):
        if each.compute_s > each.bandwidth_s:
            compute = compute + size * each.compute_s
        else:
            bandwidth = bandwidth + size * each.bandwidth_s
    overhead = split.overhead + sequences * terms.sequence_overhead_s
    if prefill:
        base = compute + bandwidth + split.communication + overhead
        overhead = overhead + np.sqrt(np.sqrt(base**4 + terms.eager_s**4)) - base
    return {"compute": compute, "bandwidth": bandwidth, "communication": split.communication, "overhead": overhead}
