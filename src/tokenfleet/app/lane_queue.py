"""The requests of one lane, where batch stands in the same queues as those that somebody waits for."""

from dataclasses import replace
from typing import Final

import numpy as np

from tokenfleet.domain.run import GapHistogram, RunRecord, requests_of
from tokenfleet.domain.trace import Bools

INTERACTIVE: Final = "lane interactive"
BATCH: Final = "lane batch"


def of_lane(record: RunRecord, lane: str, mine: Bools) -> RunRecord:
    """The record of the requests of one lane, with their gaps; gauges stay those of all.

    Args:
        record: Of all requests.
        lane: Its name among the classes of the record.
        mine: Who is in it.
    """
    return with_gaps_of(requests_of(record, mine), lane, is_all=bool(mine.all()))


def with_gaps_of(record: RunRecord, lane: str, *, is_all: bool) -> RunRecord:
    """The record with the gaps of one lane; none where they were not counted apart, for nobody knows whose they are."""
    if is_all:
        return record
    nothing = GapHistogram(lower_s=record.gaps.lower_s, count=np.zeros_like(record.gaps.count))
    apart = record.class_gaps.get(lane)
    gaps, peak_gaps = (nothing, nothing) if apart is None else (apart.gaps, apart.peak_gaps)
    return replace(record, gaps=gaps, peak_gaps=None if record.peak_gaps is None else peak_gaps)


def without_batch(record: RunRecord, batch: Bools) -> RunRecord:
    """The record of the requests that are no batch; sampled queues count them alone.

    Batch that was sent twice or gave way, and waits again, is still counted: nobody notes when it was back.
    """
    kept, gauges, ledger = of_lane(record, INTERACTIVE, ~batch), record.telemetry, record.ledger
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
