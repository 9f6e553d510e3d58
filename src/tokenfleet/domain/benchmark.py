"""A measured run of a load tool: what was asked, what came back."""

from collections.abc import Mapping

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRequests:
    """Single requests of a run, one entry each; NaN and -1 are unknown."""

    start_s: Floats | None
    """When each was sent, from the first one; ``None`` where the tool does not say."""
    input_tokens: Ints
    output_tokens: Ints
    ttft_s: Floats
    e2e_s: Floats
    ok: Ints
    """1 finished, 0 failed, cancelled or cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRun:
    """One run. ``None`` is not reported, never 0."""

    tool: str
    source: str
    predicted: bool
    """Whether the figures are a model's and nothing was measured."""
    model: str | None
    engine: str | None
    asked_rate_per_s: float | None
    """Requests per second that were asked for; infinite when all were sent at once."""
    asked_concurrency_count: int | None
    duration_s: float | None
    finished_count: int | None
    failed_count: int | None
    mean_input_tokens: float | None
    mean_output_tokens: float | None
    request_rate_per_s: float | None
    """Finished requests per second."""
    output_rate_tokens_per_s: float | None
    latencies_s: Mapping[str, Mapping[str, float]]
    """``ttft``, ``tpot``, ``itl``, ``e2e`` -> ``mean``, ``p50``, ``p90``, ``p95``, ``p99``, in seconds."""
    requests: MeasuredRequests | None
    settings: Mapping[str, str]
    """What else the file says about the run, as text."""
    warnings: tuple[str, ...]
