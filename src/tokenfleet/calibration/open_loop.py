"""Rows with a stated request rate: arrivals drawn, served by the compiled replay of a fleet."""

import math

import numpy as np

from tokenfleet.calibration.measured import Row
from tokenfleet.calibration.subject import Refusal, Subject
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.trace import Trace
from tokenfleet.performance import replica_physics
from tokenfleet.simulator import replay

_RUN_S = 120.0
"""Seconds of arrivals where a row does not say how many requests it sent: many times any latency."""
_FEWEST_REQUESTS = 300
_MOST_REQUESTS = 30_000
_SPREAD_TRAFFIC = ("sharegpt", "mlperf", "prefix", "trace")
"""Words for traffic whose lengths vary like those of people; other rates send equal lengths."""


def is_open_loop(row: Row) -> bool:
    """Whether a row states a rate and nothing that caps the requests in flight."""
    rate = row.request_rate_per_s
    return row.concurrency is None and rate is not None and math.isfinite(rate) and rate > 0


def open_loop(row: Row, subject: Subject) -> dict[str, float] | Refusal:
    """Means of a run at a stated rate: Poisson arrivals, fixed seed.

    Lengths are exponential around their mean for traffic of people, else equal; no prefix is shared.

    Args:
        row: with a finite rate and mean lengths.
        subject: its resolved deployment.

    Returns:
        Mean TTFT, TPOT and E2E in seconds and the output rate, or why there are none.
    """
    if row.input_tokens is None or row.output_tokens is None:
        return Refusal("lengths not published", row.row_id)
    physics = replica_physics(subject.model, subject.gpu, subject.deployment)
    if physics.kv_block_count <= 0:
        return Refusal("memory model finds no room for KV", row.row_id)
    fleet = Fleet(groups=(ReplicaGroup(replica=physics, replica_count=subject.replica_count),))
    record = replay(drawn(row), fleet)
    served = np.isfinite(record.finish_s)
    if not served.any():
        return Refusal("no request of the row could be served", row.row_id)
    several = served & (record.output_tokens > 1)
    values = {
        "ttft": float(np.mean(record.ttft_s[served])),
        "e2e": float(np.mean(record.e2e_s[served])),
        "output_rate": float(record.output_tokens[served].sum() / record.end_s),
    }
    if several.any():
        values["tpot"] = float(np.mean(record.tpot_s[several]))
    return values


def drawn(row: Row) -> Trace:
    """The requests of a row."""
    generator = np.random.default_rng(20260102)
    rate = row.request_rate_per_s or 1.0
    count = min(row.request_count or max(round(rate * _RUN_S), _FEWEST_REQUESTS), _MOST_REQUESTS)
    gaps = generator.exponential(1 / rate, count)
    spread = any(word in row.workload.lower() for word in _SPREAD_TRAFFIC)

    def lengths(mean: float) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        drawn = generator.exponential(mean, count) if spread else np.full(count, mean)
        whole: np.ndarray[tuple[int], np.dtype[np.int32]] = np.maximum(np.rint(drawn), 1).astype(np.int32)
        return whole

    return Trace(
        arrival_s=np.cumsum(gaps),
        input_tokens=lengths(row.input_tokens or 1.0),
        output_tokens=lengths(row.output_tokens or 1.0),
    )
