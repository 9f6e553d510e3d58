"""What became of the batch lane, as a person and as a machine reads it."""

from typing import Final

import numpy as np

from tokenfleet.app.quantities import shown_duration
from tokenfleet.contract.quantile import order_statistic
from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.trace import Bools

_QUANTILE: Final = 0.95


def lane_document(record: RunRecord, batch: Bools | None) -> dict[str, object] | None:
    """The summary of batch; ``None`` without a lane."""
    if batch is None:
        return None
    done = batch & (record.status == Status.FINISHED)
    return {
        "request_count": int(batch.sum()),
        "finished_count": int(done.sum()),
        "preemption_count": int(record.preemption_count[batch].sum(dtype=np.int64)),
        "most_preemption_count": int(record.preemption_count[batch].max(initial=0)),
        "e2e_p95_s": order_statistic(record.e2e_s[done], _QUANTILE),
        "last_finish_s": float(record.finish_s[done].max()) if done.any() else None,
    }


def lane_lines(record: RunRecord, batch: Bools | None) -> list[str]:
    """How the offline work went; none without a lane."""
    found = lane_document(record, batch)
    if found is None:
        return []
    lines = [f"{found['finished_count']:,} of {found['request_count']:,} requests done"]
    e2e_s, last_s = found["e2e_p95_s"], found["last_finish_s"]
    if isinstance(e2e_s, float) and isinstance(last_s, float):
        lines[0] += f", the last at {shown_duration(last_s)}; p95 {shown_duration(e2e_s)} from arrival to end"
    lines.append(f"gave way {found['preemption_count']:,} times, one request {found['most_preemption_count']} at most")
    if batch is not None and not batch.all():
        lines.append("The promise is judged over all other requests.")
    return lines
