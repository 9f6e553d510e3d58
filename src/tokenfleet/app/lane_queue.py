"""The requests that somebody waits for, where batch stands in the same queues."""

from dataclasses import replace

import numpy as np

from tokenfleet.domain.run import RunRecord, requests_of
from tokenfleet.domain.trace import Bools


def without_batch(record: RunRecord, batch: Bools) -> RunRecord:
    """The record of the requests that are no batch; sampled queues count them alone.

    Batch that was sent twice or gave way, and waits again, is still counted: nobody notes when it was back.
    """
    kept, gauges, ledger = requests_of(record, ~batch), record.telemetry, record.ledger
    if gauges is None or ledger is None or record.ready_s is None:
        return kept
    waiting = gauges.waiting.copy()
    waited = batch & np.isfinite(record.ready_s) & np.isfinite(ledger.scheduled_s)
    for replica in range(waiting.shape[1]):
        rows = waited & (record.replica == replica)
        came, went = np.sort(record.ready_s[rows]), np.sort(ledger.scheduled_s[rows])
        waiting[:, replica] -= np.searchsorted(came, gauges.time_s, side="right").astype(waiting.dtype)
        waiting[:, replica] += np.searchsorted(went, gauges.time_s, side="right").astype(waiting.dtype)
    return replace(kept, telemetry=replace(gauges, waiting=np.maximum(waiting, 0)))
