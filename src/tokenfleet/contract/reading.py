"""Clients that read slower than an engine writes.

An engine does not wait for them: vLLM joins what a client has not taken yet into one output
(``RequestOutputCollector``, vLLM 0.32) and goes on, so the request ends on the gpu as if it were read at once. What
lasts longer is the connection.
"""

import numpy as np

from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.trace import Floats


def read_s(record: RunRecord, tokens_per_s: float) -> Floats:
    """When each client has read its last token, in seconds since the start of the trace; NaN without an answer.

    It reads one token after the other at its rate from the first on, and never ahead of the engine. Tokens are taken
    to leave evenly between the first and the last: a stall that the engine makes up for later is not seen.

    Args:
        record: What the engine did.
        tokens_per_s: Reading rate of every client, above 0.
    """
    later = np.maximum(record.output_tokens.astype(np.float64) - 1.0, 0.0) / tokens_per_s
    answered = record.status == Status.FINISHED
    return np.where(answered, np.fmax(record.finish_s, record.first_token_s + later), np.nan)


def most_at_once(start_s: Floats, end_s: Floats) -> int:
    """The most of these spans that overlap; one without an end is left out."""
    known = np.isfinite(end_s)
    starts, ends = np.sort(start_s[known]), np.sort(end_s[known])
    if not len(starts):
        return 0
    return int((np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")).max())
