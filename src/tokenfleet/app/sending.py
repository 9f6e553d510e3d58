"""When requests of a trace are sent, where a daily window holds some of them back."""

from collections.abc import Iterable

import numpy as np

from tokenfleet.domain.slo import DAY_S
from tokenfleet.domain.stages import Hold
from tokenfleet.domain.trace import Floats, Trace


def sending_s(trace: Trace, windows: Iterable[Hold] = ()) -> float:
    """Seconds until the last request can have been sent: the shortest that a replay lasts.

    Args:
        trace: The requests.
        windows: Hold back those that take them.
    """
    last_s = float(trace.arrival_s.max(initial=0.0))
    for each in windows:
        open_for_s = (each.closes_s - each.opens_s) % DAY_S
        last_s = max(last_s, _last_s(trace.arrival_s[each.takes], each.opens_s - each.start_s, open_for_s))
    return last_s


def _last_s(arrival_s: Floats, opens_s: float, open_for_s: float) -> float:
    """When the last of some requests is let in by a daily window."""
    since_s = (arrival_s - opens_s) % DAY_S
    return float(np.where(since_s < open_for_s, arrival_s, arrival_s - since_s + DAY_S).max(initial=0.0))
