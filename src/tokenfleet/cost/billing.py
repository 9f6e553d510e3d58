"""One hour of a fleet as a bill whose lines add up to the last bit."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from tokenfleet.cost.unit import usd_per_million
from tokenfleet.cost.work import TokensByKind, TokenWork, tokens_by_kind
from tokenfleet.domain.plan import Bill
from tokenfleet.domain.run import RunRecord, Status

_QUANTUM_USD = Fraction(1, 2**30)
_ROUNDING = 1e-9
_WORK = ("input", "cached", "output")

Work = tuple[RunRecord, TokenWork | None]
"""A run, and what a token takes of a full replica of its; ``None``: nobody knows."""


def bill(
    record: RunRecord,
    *,
    usd_per_gpu_hour: float,
    gpus_per_replica_count: int,
    spare_count: int,
    span_s: float,
    peak_window_s: tuple[float, float],
    full: TokenWork | None = None,
    beside: Sequence[Work] = (),
) -> Bill:
    """Splits the price of one hour into work, headroom, idle time and spare replicas.

    ``record`` is the run of the carrying replicas alone, R of them. Work is what the tokens of the run take on
    replicas that are full: a replica that decodes for one request alone is busy all the same, but has room for more,
    and that room is not what the tokens cost. With W replicas' worth of work on average and P in the peak window,

        headroom = W * (R / P - 1)        idle = R - W * R / P

    so at the peak all that is not work is headroom, at every other load as much of it per work, and idle is what a
    fleet that followed the demand would give back. Spare replicas are a line of their own. Each token's price times
    its count, plus headroom, idle and spare, is the bill. Each line but idle is cut to 2**-30 dollars and idle is what
    remains; sums of such numbers are exact in float64, so the lines add up to the total without rounding.

    Args:
        record: Run of the carrying replicas, the spare ones gone.
        usd_per_gpu_hour: Price of one gpu for one hour.
        gpus_per_replica_count: Gpus of one replica.
        spare_count: Replicas paid for beside those of the record.
        span_s: Time the record stands for, see :func:`span_of`.
        peak_window_s: When the fleet has most to do.
        full: What a token takes of a full replica; a line of work is never more than the time it took. ``None``: that
            time, for a run of which nobody knows how much fuller its replicas could be.
        beside: Runs of other pools on the same gpus. What a token takes of these gpus is then that of all pools.

    Returns:
        The bill of one hour at the mean load of the record; unit prices are ``None`` where there were no such tokens.

    Raises:
        ValueError: More work in the record than its replicas have time for in ``span_s``.
    """
    total = usd_per_gpu_hour * gpus_per_replica_count * (record.replica_count + spare_count)
    works = [(run, _work_s(run, tokens_by_kind(run), each)) for run, each in ((record, full), *beside)]
    work_s = [sum(kind, Fraction(0)) for kind in zip(*(own_s for _, own_s in works), strict=True)]
    paid_s = _paid_s(record, span_s, sum(work_s, Fraction(0)))
    peak_s = sum(_peak_work_s(tokens_by_kind(run), own_s, tokens_by_kind(run, peak_window_s)) for run, own_s in works)
    free_s = headroom_s(
        sum(work_s, Fraction(0)), paid_s, record.replica_count, peak_s / (peak_window_s[1] - peak_window_s[0])
    )
    spent = dict(zip((*_WORK, "headroom"), (*work_s, free_s), strict=True))
    lines = lines_of(spent, paid_s, total, Fraction(spare_count, record.replica_count + spare_count))
    return _bill(total, lines, [run for run, _ in works], span_s)


def span_of(runs: Sequence[Work], *, period_s: float, until_done: bool = False) -> float:
    """The time that a demand stands for in bills by the hour.

    It is the demand's own period: requests an hour are those that arrive in one, and what is still to be answered when
    a log ends makes no hour longer. Where full replicas need more time than that for the work, it is what they need;
    and for work that only has to be done by some time, it is the time until the last is done.

    Args:
        runs: Of the carrying replicas of one fleet, or of each of several pools, with what a token takes of a full
            replica, as for :func:`bill`.
        period_s: From second 0 of the demand to its end.
        until_done: The promise is one of deadlines.
    """
    arrived = [float(run.arrival_s[-1]) for run, _ in runs if len(run.arrival_s)]
    works = [work_span_s([run]) for run in runs]
    return max(period_s, *arrived, *works, *(run.end_s for run, _ in runs if until_done))


def work_span_s(runs: Sequence[Work]) -> float:
    """The time that full replicas need for the work of one pool, or of several on the same gpus."""
    work_s = sum((sum(_work_s(run, tokens_by_kind(run), full), Fraction(0)) for run, full in runs), Fraction(0))
    return float(work_s / runs[0][0].replica_count)


def together(bills: Sequence[Bill], record: RunRecord, *, span_s: float) -> Bill:
    """The bill of several pools: each line is theirs added up, and so is the total, to the last bit.

    Args:
        bills: Of each pool, over the same time.
        record: What their users saw of all of them: a request that two pools serve is one request.
        span_s: Time that the bills and the record stand for.
    """
    exact = {
        name: sum((Fraction(getattr(each, f"{name}_usd_per_hour")) for each in bills), Fraction(0))
        for name in ("total", *_WORK, "headroom", "spare")
    }
    total = float(exact.pop("total"))
    # What the sum of totals was rounded by is idle's, like all that is left of one bill.
    exact["idle"] = max(Fraction(total) - sum(exact.values(), Fraction(0)), Fraction(0))
    return _bill(total, {name: float(line) for name, line in exact.items()}, [record], span_s)


def _bill(total: float, lines: Mapping[str, float], runs: Sequence[RunRecord], span_s: float) -> Bill:
    """A bill; ``runs`` are those of pools on the same gpus, the first one's requests are those that pay."""
    served = [tokens_by_kind(run) for run in runs]
    inputs, cached, outputs = (sum(getattr(each, kind) for each in served) for kind in _WORK)
    per_s = 1.0 / span_s if span_s > 0.0 else 0.0
    return Bill(
        span_s=span_s,
        total_usd_per_hour=total,
        **{f"{name}_usd_per_hour": line for name, line in lines.items()},
        usd_per_million_input_tokens=usd_per_million(lines["input"], inputs * per_s),
        usd_per_million_cached_tokens=usd_per_million(lines["cached"], cached * per_s),
        usd_per_million_output_tokens=usd_per_million(lines["output"], outputs * per_s),
        usd_per_million_output_tokens_loaded=usd_per_million(total, outputs * per_s),
        usd_per_request=_per_request(total, int((runs[0].status == Status.FINISHED).sum()) * per_s),
    )


def _per_request(total: float, request_per_s: float) -> float | None:
    price = usd_per_million(total, request_per_s)
    return None if price is None else price / 1e6


def _paid_s(record: RunRecord, span_s: float, work_s: Fraction) -> Fraction:
    """Replica-seconds paid for: work of replicas that never rest may add up to a hair more than their time."""
    paid_s = Fraction(span_s) * record.replica_count
    if work_s > paid_s * Fraction(1 + _ROUNDING):
        raise ValueError(f"{float(work_s)} replica-seconds of work in {float(paid_s)} of time")
    return max(paid_s, work_s)


def _work_s(record: RunRecord, served: TokensByKind, full: TokenWork | None) -> list[Fraction]:
    """Replica-seconds of input, cached and output: as on full replicas, and never more than they took."""
    busy = record.busy
    cached_s = Fraction(min(busy.cached_prefix_s, busy.prefill_s))
    took_s = [Fraction(busy.prefill_s) - cached_s, cached_s, Fraction(busy.decode_s)]
    if full is None:
        return took_s
    return [min(took, Fraction(least)) for took, least in zip(took_s, full.of(served), strict=True)]


def _peak_work_s(served: TokensByKind, work_s: list[Fraction], peak: TokensByKind) -> float:
    """Replica-seconds of the tokens of the peak window, each at the mean of its kind."""
    counts = ((served.input, peak.input), (served.cached, peak.cached), (served.output, peak.output))
    return sum(
        float(spent_s) * inside / count for spent_s, (count, inside) in zip(work_s, counts, strict=True) if count
    )


def headroom_s(work_s: Fraction, paid_s: Fraction, replica_count: int, peak_replicas: float) -> Fraction:
    """Replica-seconds that the promise keeps free: per work as many as at the peak, where no replica is idle."""
    if peak_replicas <= 0.0:
        return Fraction(0)
    free_per_work = max(Fraction(0), replica_count / Fraction(peak_replicas) - 1)
    return min(work_s * free_per_work, paid_s - work_s)


def lines_of(spent_s: dict[str, Fraction], paid_s: Fraction, total: float, spare: Fraction) -> dict[str, float]:
    """Dollars of an hour by line: what was spent of the carrying time, the spare share of all, and idle as the rest."""
    exact_total = Fraction(total)
    carrying = exact_total * (1 - spare)
    lines = {name: _cut(carrying * part / paid_s if paid_s else Fraction(0), total) for name, part in spent_s.items()}
    lines["spare"] = _cut(exact_total * spare, total)
    lines["idle"] = exact_total - sum(lines.values(), Fraction(0))
    return {name: float(line) for name, line in lines.items()}


def _cut(amount: Fraction, total: float) -> Fraction:
    """Rounds down to a multiple of the quantum, or of the last bit of ``total`` where that is coarser."""
    quantum = max(_QUANTUM_USD, Fraction(math.ulp(total)))
    return amount // quantum * quantum
