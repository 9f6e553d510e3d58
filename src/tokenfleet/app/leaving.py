"""Users who left before their answer was complete, as a log knows them."""

from dataclasses import replace
from typing import Final

import numpy as np

from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import Leaving

_CANCELLED: Final = "cancelled"
_STEPS_UNTIL_KNOWN: Final = 2
"""An engine computes so many more tokens at most before it lets a request go."""


def leaving_of(trace: Trace) -> tuple[Leaving | None, Trace]:
    """Who leaves when, and the traffic as it would go on if they stayed for what their engine computes in vain.

    A call that its client cancelled is left with its last token in the log; one that had no token by then, after the
    time that the log says. How long the answer would have been is not known and does not matter.

    Args:
        trace: The traffic, with what its log says happened.

    Returns:
        ``None`` and the same traffic where the log knows of nobody.
    """
    seen = trace.observed
    if seen is None or seen.status is None or _CANCELLED not in seen.statuses:
        return None, trace
    left = seen.status == seen.statuses.index(_CANCELLED)
    if not left.any():
        return None, trace
    after_s = np.full(trace.request_count, np.inf)
    if seen.e2e_s is not None and seen.ttft_s is not None:
        silent = left & np.isnan(seen.ttft_s) & (seen.e2e_s > 0.0)
        after_s[silent] = seen.e2e_s[silent]
    with_token = left & np.isinf(after_s) & (trace.output_tokens > 0)
    leaving = Leaving(after_tokens=np.where(with_token, trace.output_tokens, 0).astype(np.int32), after_s=after_s)
    further = np.where(with_token, _STEPS_UNTIL_KNOWN, 0).astype(trace.output_tokens.dtype)
    return leaving, replace(trace, output_tokens=trace.output_tokens + further)
