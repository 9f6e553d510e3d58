"""The design matrix of a fit: every measured figure as weighted steps, every step as parts owned by constants."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tokenfleet.calibration.basis import BY_ENGINE, DIRECT, INVERSE, Basis, basis
from tokenfleet.calibration.lint import model_group
from tokenfleet.calibration.measured import Row
from tokenfleet.calibration.schedule import Schedule, schedule
from tokenfleet.calibration.step_space import StepKinds
from tokenfleet.calibration.subject import Refusal, Subject, model_kind, resolve
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Floats
from tokenfleet.performance import mean_window_pairs
from tokenfleet.performance.terms import StepTerms

STEMS = (*INVERSE, *DIRECT, *BY_ENGINE)
"""Columns of the design: constants, those that differ by engine under one name."""
_EAGER = STEMS.index("eager_s")
_REQUEST = STEMS.index("request_s")


@dataclass(frozen=True, slots=True)
class Target:
    """One measured figure as a time: seconds, or seconds per output token of the deployment for a rate."""

    row: Row
    subject: Subject
    metric: str
    load: str
    queueing: bool
    measured_s: float
    cell: tuple[str, ...]
    """source, model, gpu, engine, metric."""
    group: str
    """Model with its twins, for leaving out."""
    kind: str


@dataclass(frozen=True, slots=True)
class Design:
    """Targets and the steps they are made of. A target owns the steps ``start[i]:start[i + 1]``."""

    targets: tuple[Target, ...]
    start: npt.NDArray[np.int64]
    owner: npt.NDArray[np.int64]
    weight: Floats
    parts_s: Floats
    """(step, stem) seconds at the shipped constants, eager and request apart."""
    eager_s: Floats
    """(step,) seconds; 0 without prefill."""
    request_s: Floats
    """(target,) seconds added once."""
    measured_s: Floats


def build(rows: Iterable[Row]) -> tuple[Design, dict[str, int]]:
    """Build the design of some rows.

    Args:
        rows: linted rows.

    Returns:
        The design, and the rows left out by reason.
    """
    targets: list[Target] = []
    weights: list[Floats] = []
    parts: list[Floats] = []
    eagers: list[Floats] = []
    requests: list[float] = []
    refused: dict[str, int] = {}
    for row in rows:
        subject = resolve(row)
        batches = subject if isinstance(subject, Refusal) else schedule(row, subject)
        if isinstance(subject, Refusal) or isinstance(batches, Refusal):
            reason = batches.reason if isinstance(batches, Refusal) else "refused"
            refused[reason] = refused.get(reason, 0) + 1
            continue
        pieces = basis(subject.model, subject.gpu, subject.deployment)
        for metric, kinds, scale, measured_s, once in _figures(row, subject, batches):
            targets.append(_target(row, subject, batches, metric, measured_s))
            weights.append(kinds.weight * scale)
            parts.append(step_parts(kinds, pieces))
            eagers.append(np.where(kinds.prefill, pieces.terms.eager_s, 0.0))
            requests.append(pieces.terms.request_s if once else 0.0)
    counts = np.array([len(one) for one in weights], dtype=np.int64)
    design = Design(
        targets=tuple(targets),
        start=np.concatenate([[0], np.cumsum(counts)]),
        owner=np.repeat(np.arange(len(counts)), counts),
        weight=np.concatenate(weights),
        parts_s=np.concatenate(parts),
        eager_s=np.concatenate(eagers),
        request_s=np.array(requests),
        measured_s=np.array([target.measured_s for target in targets]),
    )
    return design, refused


def _target(row: Row, subject: Subject, batches: Schedule, metric: str, measured_s: float) -> Target:
    return Target(
        row=row,
        subject=subject,
        metric=metric,
        load=batches.load,
        queueing=batches.queueing,
        measured_s=measured_s,
        cell=(row.source, model_group(row), subject.gpu.name, row.engine, metric),
        group=model_group(row),
        kind=model_kind(subject.model),
    )


def _figures(row: Row, subject: Subject, batches: Schedule) -> Sequence[tuple[str, StepKinds, float, float, bool]]:
    """Metric, steps, scale of their weights, measured seconds, whether front-end time is added once."""
    found = []
    ttft, tpot, e2e, rate = (row.value(name) for name in ("ttft", "tpot", "e2e", "output_rate"))
    if ttft and batches.ttft is not None:
        found.append(("ttft", batches.ttft, 1.0, ttft, True))
    if tpot and batches.tpot is not None:
        found.append(("tpot", batches.tpot, 1.0, tpot, False))
    if batches.total is not None and batches.load == "burst" and e2e:
        found.append(("e2e", batches.total, 1.0, e2e, True))
    elif batches.total is not None and rate:
        scale = 1.0 / (batches.output_token_count * subject.replica_count)
        found.append(("output_rate", batches.total, scale, 1.0 / rate, False))
    return found


def step_parts(kinds: StepKinds, pieces: Basis) -> Floats:
    """(step, stem) seconds; eager and request stay 0 because they do not add up within a step."""
    table = np.zeros((len(kinds.weight), len(STEMS)))
    whole = pieces.terms
    for name, part in pieces.parts.items():
        stem = name.split(".")[0] if name.split(".")[0] in BY_ENGINE else name
        column = STEMS.index(stem)
        if column not in {_EAGER, _REQUEST}:
            table[:, column] += _seconds(kinds, part, whole)
    return table


def _seconds(kinds: StepKinds, part: StepTerms, whole: StepTerms) -> Floats:
    tokens, sequences = kinds.token_count, kinds.sequence_count
    seconds: Floats = tokens * (part.token_compute_s + part.token_activation_s + part.token_message_s)
    seconds = seconds + (tokens - sequences) * part.prefill_token_s
    seconds += part.weight_stream_s + part.latency_s + part.launch_s + part.fixed_s
    for read in part.experts:
        seconds += read.seconds(tokens)
    seconds += sequences * (part.sequence_overhead_s + part.sequence_state_s) + kinds.pair_count * part.pair_s
    full = part.context.compute_s if whole.context.compute_s > whole.context.bandwidth_s else part.context.bandwidth_s
    if whole.window_pair_s:
        inside = mean_window_pairs(kinds.pair_count, tokens - sequences, whole.window_tokens)
        seconds += inside * part.window_pair_s
    seconds += kinds.context_tokens * full
    if whole.window_tokens:
        mean = kinds.context_tokens / np.maximum(sequences, 1e-9)
        inside = sequences * np.minimum(mean, whole.window_tokens)
        bound = whole.window.compute_s > whole.window.bandwidth_s
        seconds += inside * (part.window.compute_s if bound else part.window.bandwidth_s)
    return seconds
