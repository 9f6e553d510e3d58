"""One hour of a fleet as a bill whose lines add up to the last bit."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tokenfleet.cost.unit import usd_per_million
from tokenfleet.domain.plan import Bill
from tokenfleet.domain.run import RunRecord, Status

_QUANTUM_USD = Fraction(1, 2**30)
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class _Served:
    """What finished requests took and gave, per second of the run."""

    uncached_per_s: float
    cached_per_s: float
    output_per_s: float
    request_per_s: float


def bill(
    record: RunRecord, *, usd_per_gpu_hour: float, gpus_per_replica_count: int, spare_count: int, span_s: float
) -> Bill:
    """Splits the price of one hour by what the replicas spent their time on.

    ``record`` is the run of the carrying replicas alone. Prefill time pays for input, the part of it spent on
    cached prefixes for cached tokens, decode time for output; time without work is idle, and spare replicas are a
    line of their own. So input x its price + cached x its price + output x its price + idle + spare is the bill.
    Each line but idle is cut to 2**-30 dollars and idle is what remains; sums of such numbers are exact in
    float64, so the lines add up to the total without rounding.

    Args:
        record: Run of the carrying replicas, the spare ones gone.
        usd_per_gpu_hour: Price of one gpu for one hour.
        gpus_per_replica_count: Gpus of one replica.
        spare_count: Replicas paid for beside those of the record.
        span_s: Time the record stands for, from second 0 of the trace: at least the end of the last request.

    Returns:
        The bill of one hour at the mean load of the record; unit prices are ``None`` where there were no such tokens.

    Raises:
        ValueError: More busy time in the record than its replicas have in ``span_s``.
    """
    total = usd_per_gpu_hour * gpus_per_replica_count * (record.replica_count + spare_count)
    lines = _lines(record, total, spare_count, span_s)
    served = _served(record, span_s)
    return Bill(
        total_usd_per_hour=total,
        input_usd_per_hour=lines["input"],
        cached_usd_per_hour=lines["cached"],
        output_usd_per_hour=lines["output"],
        idle_usd_per_hour=lines["idle"],
        spare_usd_per_hour=lines["spare"],
        usd_per_million_input_tokens=usd_per_million(lines["input"], served.uncached_per_s),
        usd_per_million_cached_tokens=usd_per_million(lines["cached"], served.cached_per_s),
        usd_per_million_output_tokens=usd_per_million(lines["output"], served.output_per_s),
        usd_per_million_output_tokens_loaded=usd_per_million(total, served.output_per_s),
        usd_per_request=_per_request(total, served.request_per_s),
    )


def _per_request(total: float, request_per_s: float) -> float | None:
    price = usd_per_million(total, request_per_s)
    return None if price is None else price / 1e6


def _lines(record: RunRecord, total: float, spare_count: int, span_s: float) -> dict[str, float]:
    paid_s = Fraction(span_s) * record.replica_count
    busy = record.busy
    cached = Fraction(min(busy.cached_prefix_s, busy.prefill_s))
    spent = {"input": Fraction(busy.prefill_s) - cached, "cached": cached, "output": Fraction(busy.decode_s)}
    busy_s = sum(spent.values(), Fraction(0))
    if busy_s > paid_s * Fraction(1 + _ROUNDING):
        raise ValueError(f"{float(busy_s)} replica-seconds of work in {float(paid_s)} of time")
    # A run that never rests may add up to a hair more than its time; it is shared out whole.
    paid_s = max(paid_s, busy_s)
    exact_total = Fraction(total)
    carrying = exact_total * record.replica_count / (record.replica_count + spare_count)
    lines = {name: _cut(carrying * part / paid_s if paid_s else Fraction(0), total) for name, part in spent.items()}
    lines["spare"] = _cut(exact_total - carrying, total)
    lines["idle"] = exact_total - sum(lines.values(), Fraction(0))
    return {name: float(line) for name, line in lines.items()}


def _cut(amount: Fraction, total: float) -> Fraction:
    """Rounds down to a multiple of the quantum, or of the last bit of ``total`` where that is coarser."""
    quantum = max(_QUANTUM_USD, Fraction(math.ulp(total)))
    return amount // quantum * quantum


def _served(record: RunRecord, span_s: float) -> _Served:
    done = record.status == Status.FINISHED
    inputs = int(record.input_tokens[done].sum(dtype=np.int64))
    cached = int(record.cached_tokens[done].sum(dtype=np.int64))
    outputs = int(record.output_tokens[done].sum(dtype=np.int64))
    per_s = 1.0 / span_s if span_s > 0.0 else 0.0
    return _Served(
        uncached_per_s=(inputs - cached) * per_s,
        cached_per_s=cached * per_s,
        output_per_s=outputs * per_s,
        request_per_s=int(done.sum()) * per_s,
    )
