"""Clients that give up, in replays of quiet times."""

from dataclasses import replace

import numpy as np

from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.world import Clients


def given_up(record: RunRecord, clients: Clients | None) -> RunRecord:
    """A record as clients see it that do not wait for ever: who waited longer than its time-out got no answer.

    In the replay they stay all the same, and others wait for what nobody wants any more. So no time-out is missed
    that a replay with such clients would have, and where few give up there is hardly a difference.

    Args:
        record: Where clients were part of the replay, it is the answer as it is.
        clients: Their time-outs; ``None``: nobody knows any.
    """
    if clients is None or record.turmoil is not None:
        return record
    late = np.zeros(len(record.status), dtype=np.bool_)
    if clients.first_token_timeout_s is not None:
        first_s = np.where(record.output_tokens > 0, record.ttft_s, record.e2e_s)
        late |= first_s >= clients.first_token_timeout_s
    if clients.timeout_s is not None:
        late |= record.e2e_s >= clients.timeout_s
    if not late.any():
        return record
    status = np.where(late, np.int8(Status.TIMED_OUT), record.status)
    return replace(record, status=status, finish_s=np.where(late, np.nan, record.finish_s))
