"""A replay whose outcome is certain need not run to its end.

A fleet that is far too small breaks its promise in the first tenth of the traffic: so many requests are late by then
that the rest could all be served at once and the quantile would still be above its limit. Taking the rest at its best
gives a lower bound of every clause, so what is broken then is broken for good.
"""

from dataclasses import replace

import numpy as np

from tokenfleet.domain.run import GapHistogram, RunRecord, Status


def at_best(record: RunRecord) -> RunRecord:
    """A cut record, as if whatever is open happened at once and without a gap; the record itself when it is whole.

    No clause judged on it comes out above its value in the whole replay: times still open end at the cut or on
    arrival, whichever is later, gaps still to come count in the lowest bin, and nobody else is refused.
    """
    if record.cut_s is None:
        return record
    soonest_s = np.maximum(record.arrival_s, record.cut_s)
    served = record.status == Status.FINISHED
    first_open = served & np.isnan(record.first_token_s) & (record.output_tokens > 0)
    finish_open = served & np.isnan(record.finish_s)
    coming = int(np.maximum(record.output_tokens.astype(np.int64) - 1, 0)[served].sum() - record.gaps.count.sum())
    return replace(
        record,
        first_token_s=np.where(first_open, soonest_s, record.first_token_s),
        finish_s=np.where(finish_open, soonest_s, record.finish_s),
        gaps=_with_short_ones(record.gaps, coming),
        peak_gaps=None if record.peak_gaps is None else _with_short_ones(record.peak_gaps, coming),
    )


def _with_short_ones(gaps: GapHistogram, coming: int) -> GapHistogram:
    count = gaps.count.copy()
    count[0] += max(0, coming)
    return replace(gaps, count=count)
