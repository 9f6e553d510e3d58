"""A row predicted: its schedule priced with the step times of its deployment."""

from typing import Literal

import numpy as np

from tokenfleet.calibration.measured import Row
from tokenfleet.calibration.open_loop import is_open_loop, open_loop
from tokenfleet.calibration.schedule import Schedule, schedule
from tokenfleet.calibration.step_space import StepKinds
from tokenfleet.calibration.subject import Refusal, Subject, resolve
from tokenfleet.domain.errors import BadInput, OutOfRange
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import StepTimeModel
from tokenfleet.domain.trace import Floats
from tokenfleet.performance import mean_window_pairs, step_time_model

Metric = Literal["ttft", "tpot", "e2e", "output_rate"]
_PS_PER_S = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the model says of a row: seconds, and tokens per second of the whole deployment."""

    subject: Subject
    schedule: Schedule
    values: dict[str, float]


def predict(row: Row) -> Prediction | Refusal:
    """Predict every figure of a row that its load determines.

    Args:
        row: a linted row.

    Returns:
        The prediction, or the reason why there is none.
    """
    subject = resolve(row)
    if isinstance(subject, Refusal):
        return subject
    try:
        return _priced(row, subject)
    except (OutOfRange, BadInput) as error:
        return Refusal("step time not known", str(error))


def _priced(row: Row, subject: Subject) -> Prediction | Refusal:
    if is_open_loop(row):
        values = open_loop(row, subject)
        if isinstance(values, Refusal):
            return values
        return Prediction(subject=subject, schedule=Schedule(load="open_loop"), values=values)
    batches = schedule(row, subject)
    if isinstance(batches, Refusal):
        return batches
    step_time = step_time_model(subject.model, subject.gpu, subject.deployment)
    return Prediction(subject=subject, schedule=batches, values=price(batches, subject, step_time))


def price(batches: Schedule, subject: Subject, step_time: StepTimeModel) -> dict[str, float]:
    """Figures of a schedule under a step-time model: seconds, and output tokens per second."""
    request_s = step_time.request_ps / _PS_PER_S
    values: dict[str, float] = {}
    if batches.ttft is not None:
        values["ttft"] = total_s(batches.ttft, step_time) + request_s
    if batches.tpot is not None:
        values["tpot"] = total_s(batches.tpot, step_time)
    if batches.total is not None:
        run_s = total_s(batches.total, step_time)
        values["output_rate"] = subject.replica_count * batches.output_token_count / run_s
        if batches.load == "burst":
            values["e2e"] = run_s + request_s
    if "e2e" not in values and "ttft" in values and "tpot" in values:
        values["e2e"] = values["ttft"] + values["tpot"] * max(batches.mean_output_tokens - 1, 0)
    return values


def total_s(kinds: StepKinds, step_time: StepTimeModel) -> float:
    """``sum(weight x step)`` in seconds; fractional token counts are interpolated in the table.

    A count beyond the table is continued with its last slope: it stands for a prompt that the engine did not split.
    """
    return float((kinds.weight * step_s(kinds, step_time)).sum())


def step_s(kinds: StepKinds, step_time: StepTimeModel) -> Floats:
    """Seconds of each step kind."""
    table = step_time.token_ps
    last = len(table) - 1
    floor = np.clip(np.floor(kinds.token_count).astype(np.int64), 0, last - 1)
    low, high = table[floor].astype(np.float64), table[floor + 1].astype(np.float64)
    base = low + (high - low) * (kinds.token_count - floor)
    base += step_time.sequence_ps * kinds.sequence_count + step_time.pair_ps * kinds.pair_count
    if step_time.window_pair_ps:
        prompt = kinds.token_count - kinds.sequence_count
        base += step_time.window_pair_ps * mean_window_pairs(kinds.pair_count, prompt, step_time.window_tokens)
    base += step_time.context_ps * kinds.context_tokens + step_time.window_ps * window_tokens(kinds, step_time)
    eager = np.where(kinds.prefill, float(step_time.eager_ps), 0.0)
    with np.errstate(under="ignore"):
        step: Floats = np.sqrt(np.sqrt(base**4 + eager**4)) / _PS_PER_S
    return step


def window_tokens(kinds: StepKinds, step_time: StepTimeModel) -> Floats:
    """Context within the window, each sequence taken at the mean context of its step."""
    if not step_time.window_tokens:
        return np.zeros_like(kinds.context_tokens)
    mean = kinds.context_tokens / np.maximum(kinds.sequence_count, 1e-9)
    return kinds.sequence_count * np.minimum(mean, step_time.window_tokens)
