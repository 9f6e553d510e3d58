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
_AT_THE_LIMIT: Final = 0.7
"""Share of the limit that is in flight on average where a run is at it, but for its beginning and its end."""
_DEVIATIONS: Final = 3.0
_LEAST_SENDING: Final = 0.1
"""Share of its time that luck leaves to the sending of a few requests."""
_CALMEST: Final = 0.01
"""No burstiness is taken to be below."""
_WHOLE: Final = ("e2el", "e2e_latency")
_STREAMED: Final = {"ttft": "time to first token", "itl": "time between tokens"}


def impossible(run: Benchmark) -> str | None:
    """Figures that no run can have; the rate is compared where it is a number."""
    rate, answered = _rate(run), run.request_throughput
    if rate is not None and answered is not None and answered * max(1.0 - _luck(run), _LEAST_SENDING) > _BLUR * rate:
        return f"{answered:g} requests/s were answered of {rate:g} that were sent"
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
    whole_ms = max((run.latencies_ms.get(f"p99_{name}_ms", 0.0) for name in _WHOLE), default=0.0)
    if closed_loop(run) or not rate or not answered or not whole_ms or not run.completed:
        return None
    took_s, sent_s = run.completed / answered, (run.completed + run.failed) / rate
    if took_s <= (_BLUR + _luck(run)) * sent_s + _OF_THE_SLOWEST * whole_ms / 1e3:
        return None
    return (
        f"{run.completed + run.failed:,} requests at {rate:g}/s are sent in {sent_s:,.3g} s and 99 % are answered "
        f"within {whole_ms / 1e3:,.3g} s, but the run took {took_s:,.3g} s: the client did not send at its rate"
    )


def closed_loop(run: Benchmark) -> str | None:
    """Requests were sent when others were answered: a limit on those in flight was there and held them back."""
    limit = run.max_concurrency
    if limit is None or limit >= run.completed + run.failed:
        return None
    if run.in_flight_most is not None and run.in_flight_most < limit:
        return None
    if run.request_rate is None or run.request_rate.strip().lower() == "inf":
        why: str | None = "no rate is asked for"
    else:
        why = _held_at(run, limit)
    if why is None:
        return None
    return f"at most {limit:,} requests are in flight, and {why}: a slow server is asked for less, so no queue is seen"


def _held_at(run: Benchmark, limit: int) -> str | None:
    """Why a run with a rate was at its limit; ``None`` where it was not, as far as the report shows."""
    rate, answered, each_s, mean = _rate(run), run.request_throughput, _answer_s(run), run.in_flight_mean
    taken = None if not answered or not run.completed else answered * (run.completed + run.failed) / run.completed
    if mean is None and taken is not None and each_s is not None:
        mean = taken * each_s
    if rate is not None and taken is not None and taken * _BLUR < rate:
        # It fell behind, or was not let keep up: then it was at its limit for most of the time.
        held = mean is None or mean >= _AT_THE_LIMIT * limit
        return f"{taken:,.3g} a second were taken of {rate:g}" if held else None
    steady = rate * each_s if rate is not None and each_s is not None else mean
    if steady is None:
        return None
    # Arrivals that nothing holds back vary by the root of their number, bursts by more.
    most = steady + _DEVIATIONS * math.sqrt(steady / min(max(run.burstiness or 1.0, _CALMEST), 1.0))
    return f"the rate would have up to {most:,.3g} of them" if most >= limit else None


def _answer_s(run: Benchmark) -> float | None:
    """How long a request takes on average, as far as the report says; where it does not, for the median one."""
    told = run.latencies_ms
    for rank in ("mean", "median"):
        whole = [told[name] for metric in _WHOLE if (name := f"{rank}_{metric}_ms") in told]
        if whole:
            return whole[0] / 1e3
        first, gap = told.get(f"{rank}_ttft_ms"), told.get(f"{rank}_tpot_ms", told.get(f"{rank}_itl_ms"))
        if first is not None and gap is not None and run.output_tokens and run.completed:
            return (first + gap * max(0.0, run.output_tokens / run.completed - 1.0)) / 1e3
    return None


def fell_behind(run: Benchmark) -> str | None:
    """Requests came faster than they were answered, and waited for it."""
    rate, answered, waited_ms = _rate(run), run.request_throughput, run.latencies_ms.get("median_ttft_ms")
    if closed_loop(run) or not rate or not answered or waited_ms is None or not run.completed:
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


def _luck(run: Benchmark) -> float:
    """Share by which gaps that are drawn at random may make the sending shorter or longer than the rate says."""
    burstiness = max(1.0 if run.burstiness is None else run.burstiness, _CALMEST)
    return _DEVIATIONS / math.sqrt(burstiness * max(run.completed + run.failed, 1))


def _rate(run: Benchmark) -> float | None:
    """Requests sent per second, where they had a rate."""
    if run.request_rate is None:
        return None
    try:
        rate = float(run.request_rate)
    except ValueError:
        return None
    return rate if math.isfinite(rate) else None
