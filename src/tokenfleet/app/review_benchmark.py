"""What the report of a load test gives away by itself: figures that no run can have, and a server that fell behind."""

import math
from itertools import pairwise
from typing import Final

from tokenfleet.app.review_files import METRICS, RANKS, Benchmark

_BLUR: Final = 1.1
"""Between two figures of one run, from which on one of them is wrong: its ends blur them, and reports round."""
_OF_THE_DRAIN: Final = 0.2
"""Half of the requests wait for half of the drain where a queue grows from the first on; never for so little of it."""
_OF_THE_SLOWEST: Final = 3.0
"""Of a hundred answers the last may take so many times as long as the 99th."""
_STREAMED: Final = {"ttft": "time to first token", "itl": "time between tokens"}


def impossible(run: Benchmark) -> str | None:
    """Figures that no run can have; the rate is compared where it is a number."""
    rate = _rate(run)
    if rate is not None and run.request_throughput is not None and run.request_throughput > _BLUR * rate:
        return f"{run.request_throughput:g} requests/s were answered of {rate:g} that were sent"
    for metric, name in _STREAMED.items():
        value = run.latencies_ms.get(f"median_{metric}_ms")
        if value is not None and value <= 0.0:
            return f"the median {name} is {value:g} ms: it was not measured (streaming off, or all text in one piece)"
    return _falling(run) or _disagreeing(run) or _held_back(run)


def _falling(run: Benchmark) -> str | None:
    """A quantile below one that fewer requests exceed."""
    for metric in METRICS:
        names = [name for rank in RANKS if (name := f"{rank}_{metric}_ms") in run.latencies_ms]
        for lower, higher in pairwise(names):
            values = run.latencies_ms[lower], run.latencies_ms[higher]
            if values[1] < values[0]:
                return f"{higher} is {values[1]:g}, below {lower}, which is {values[0]:g}"
    return None


def _disagreeing(run: Benchmark) -> str | None:
    """A count over the time of the run that is not the rate beside it."""
    if not run.duration_s:
        return None
    rates = (
        ("requests", float(run.completed), run.request_throughput),
        ("output tokens", run.output_tokens, run.output_throughput),
    )
    for what, count, told in rates:
        if count and told and not 1.0 / _BLUR <= told / (count / run.duration_s) <= _BLUR:
            own = count / run.duration_s
            return (
                f"{count:,.0f} {what} in {run.duration_s:g} s are {own:,.3g} a second, and the report says {told:,.4g}"
            )
    return None


def _held_back(run: Benchmark) -> str | None:
    """A run much longer than it takes to send its requests and to answer the slowest: the client sent them later."""
    rate, answered = _rate(run), run.request_throughput
    whole_ms = max((run.latencies_ms.get(f"p99_{name}_ms", 0.0) for name in ("e2el", "e2e_latency")), default=0.0)
    if run.max_concurrency is not None or not rate or not answered or not whole_ms or not run.completed:
        return None
    took_s, sent_s = run.completed / answered, (run.completed + run.failed) / rate
    if took_s <= _BLUR * sent_s + _OF_THE_SLOWEST * whole_ms / 1e3:
        return None
    return (
        f"{run.completed + run.failed:,} requests at {rate:g}/s are sent in {sent_s:,.3g} s and 99 % are answered "
        f"within {whole_ms / 1e3:,.3g} s, but the run took {took_s:,.3g} s: the client did not send at its rate"
    )


def fell_behind(run: Benchmark) -> str | None:
    """Requests came faster than they were answered, and waited for it."""
    rate, answered, waited_ms = _rate(run), run.request_throughput, run.latencies_ms.get("median_ttft_ms")
    if run.max_concurrency is not None or not rate or not answered or waited_ms is None or not run.completed:
        return None
    count = run.completed + run.failed
    # What failed was taken off the queue as well.
    taken = answered * count / run.completed
    drain_s = count / taken - count / rate
    if taken * _BLUR >= rate or waited_ms < _OF_THE_DRAIN * drain_s * 1e3:
        return None
    return (
        f"{answered:g} requests/s were answered of {rate:g} that were sent: the queue grew for the whole run, and "
        f"every latency is a matter of its length (median first token after {waited_ms / 1e3:,.3g} s)"
    )


def _rate(run: Benchmark) -> float | None:
    """Requests sent per second, where they had a rate."""
    if run.request_rate is None:
        return None
    try:
        rate = float(run.request_rate)
    except ValueError:
        return None
    return rate if math.isfinite(rate) else None
