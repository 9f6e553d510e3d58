"""How soon after a shock a run keeps its promise again."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tokenfleet.contract import conservative_rank, ended
from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.slo import Slo
from tokenfleet.domain.survival import LASTING_WINDOWS, Recovery
from tokenfleet.domain.trace import Floats

_STEP_S = 1.0


def settled(
    record: RunRecord, slo: Slo, shock_s: float, *, window_s: float, longer: Callable[[], RunRecord] | None
) -> Recovery:
    """:func:`recovery` of a run, or of a ``longer`` one, if there is any, where it ends before that is sure."""
    found = recovery(record, slo, shock_s, window_s=window_s)
    if found.lasts or longer is None:
        return found
    return recovery(longer(), slo, shock_s, window_s=window_s)


def recovery(
    record: RunRecord, slo: Slo, shock_s: float, *, window_s: float, usual: RunRecord | None = None
) -> Recovery:
    """When after a shock the promise holds again for those who arrive.

    From then on, and for three windows or to the end of the demand, the requests that arrive in any window keep TTFT,
    TPOT and E2E at their quantiles, and the shares that may fail. ITL has no place in it, as its gaps belong to no
    arrival, nor have the queue and deadlines. Only windows that are full before the last arrival count: a run that is
    broken to its end has not recovered because nobody comes any more.

    Args:
        record: What happened, in order of arrival.
        slo: The promise.
        shock_s: When it came.
        window_s: Arrivals that are judged together, such as a minute.
        usual: The same requests without the shock, on what is left after it. A window that breaks the promise there too
            does so by chance, and is no trace of the shock.
    """
    left_s = max(0.0, float(record.arrival_s[-1]) - shock_s)
    clauses = list(_clauses(record, slo))
    by_chance = [] if usual is None else list(_clauses(usual, slo))
    lasting = math.ceil(LASTING_WINDOWS * window_s / _STEP_S)
    kept_since_s: float | None = None
    kept_count = 0
    for since_s in np.arange(math.floor((left_s - window_s) / _STEP_S) + 1) * _STEP_S:
        start_s = shock_s + since_s
        first, last = (int(row) for row in np.searchsorted(record.arrival_s, [start_s, start_s + window_s]))
        window = slice(first, last)
        if _breaks(clauses, window) and not _breaks(by_chance, window):
            kept_since_s, kept_count = None, 0
            continue
        kept_since_s = float(since_s) if kept_since_s is None else kept_since_s
        kept_count += 1
        if kept_count == lasting:
            break
    return Recovery(after_s=kept_since_s, demand_left_s=left_s, window_s=window_s)


def _clauses(record: RunRecord, slo: Slo) -> Iterator[tuple[Floats, float, float]]:
    """For each clause a value per request (NaN: it is not about this one), the quantile and the limit."""
    done, left = record.status == Status.FINISHED, record.status == Status.CANCELLED
    for rate in slo.rates:
        bad = ended(record, done, rate, apart=slo.counts_rejections(rate.traffic_class))
        told = np.where(record.of_class(rate.traffic_class) & ~left, bad.astype(np.float64), np.nan)
        yield told, 1.0 - rate.limit_fraction, 0.5
    times = {"ttft": record.ttft_s, "tpot": record.tpot_s, "e2e": record.e2e_s}
    for target in slo.latency:
        if target.metric != "itl":
            silent = done & np.isnan(times[target.metric]) | left | ~record.of_class(target.traffic_class)
            values = np.where(done, times[target.metric], np.inf)
            yield np.where(silent, np.nan, values), target.quantile, target.limit_s


def _breaks(clauses: Sequence[tuple[Floats, float, float]], window: slice) -> bool:
    return any(_late(values[window], quantile, limit) for values, quantile, limit in clauses)


def _late(values: Floats, quantile: float, limit: float) -> bool:
    held = np.sort(values[~np.isnan(values)])
    return len(held) > 0 and bool(held[conservative_rank(len(held), quantile) - 1] > limit)
