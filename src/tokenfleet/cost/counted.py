"""A bill from counters alone: what a running fleet tells, where nobody replays and nobody logs steps."""

from fractions import Fraction

import numpy as np

from tokenfleet.cost.billing import headroom_s, lines_of
from tokenfleet.cost.steps import counter_weights
from tokenfleet.cost.unit import usd_per_million
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.plan import Bill
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Floats

KINDS = ("input", "cached", "output")
_MOST_ANYWAY = 0.5
"""Of the busy time: where more of it goes with no token, a trifle would decide who pays for all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """One hour of a fleet by counters."""

    bill: Bill
    gpu_s_per_million_tokens: dict[str, float]
    """By kind of tokens; their part of what a busy engine spends anyway is in it."""
    anyway_fraction: float
    """Share of the busy time that goes with no token: what an engine that has work spends in every interval."""
    fit_error_fraction: float
    """Mean distance between the busy time that the tokens explain and the measured one, over its mean."""


def bill_of_counters(
    busy_gpu_s: Floats,
    tokens: Floats,
    *,
    interval_s: float,
    gpu_count: int,
    usd_per_gpu_hour: float,
    spare_gpu_count: int = 0,
) -> Counted:
    """Splits the price of an hour by what each kind of token is found to take of the gpus.

    The weights are those of :func:`counter_weights`; busy time that no token explains is shared over the kinds like the
    rest, so the lines of work are the busy time that was measured. Busy is what the gauge says: how full a busy gpu is
    no counter tells, so headroom here is gpu time without work alone, as much per work as in the busiest interval.

    Args:
        busy_gpu_s: gpu-seconds with work in each interval; shape (interval,).
        tokens: input that no cache served, cached input, output; shape (interval, 3).
        interval_s: length of each.
        gpu_count: gpus paid for, the spare ones included.
        usd_per_gpu_hour: price of each.
        spare_gpu_count: those kept for the day one fails.

    Raises:
        BadInput: more busy time than there is, counters that tell nothing, busy time most of which follows no token,
            or no gpu that carries.
    """
    carrying = gpu_count - spare_gpu_count
    _check(busy_gpu_s, interval_s, carrying)
    by_kind, explained, anyway_s = _explained(busy_gpu_s, tokens)
    paid_s = Fraction(carrying * interval_s * len(tokens))
    busy_s = sum(by_kind.values(), Fraction(0))
    free_s = headroom_s(busy_s, paid_s, carrying, float(busy_gpu_s.max()) / interval_s)
    total = usd_per_gpu_hour * gpu_count
    lines = lines_of({**by_kind, "headroom": free_s}, paid_s, total, Fraction(spare_gpu_count, gpu_count))
    counts = {name: float(tokens[:, index].sum()) for index, name in enumerate(KINDS)}
    per_s = {name: count / (interval_s * len(tokens)) for name, count in counts.items()}
    return Counted(
        bill=Bill(
            span_s=interval_s * len(tokens),
            total_usd_per_hour=total,
            **{f"{name}_usd_per_hour": line for name, line in lines.items()},
            usd_per_million_input_tokens=usd_per_million(lines["input"], per_s["input"]),
            usd_per_million_cached_tokens=usd_per_million(lines["cached"], per_s["cached"]),
            usd_per_million_output_tokens=usd_per_million(lines["output"], per_s["output"]),
            usd_per_million_output_tokens_loaded=usd_per_million(total, per_s["output"]),
            usd_per_request=None,
        ),
        gpu_s_per_million_tokens={name: float(by_kind[name]) / count * 1e6 for name, count in counts.items() if count},
        anyway_fraction=anyway_s / float(explained.sum()),
        fit_error_fraction=float(np.abs(explained - busy_gpu_s).mean() / busy_gpu_s.mean()),
    )


def _explained(busy_gpu_s: Floats, tokens: Floats) -> tuple[dict[str, Fraction], Floats, float]:
    """All busy time by kind of token, that of each interval as the tokens explain it, and what goes with no token."""
    kinds = [index for index in range(len(KINDS)) if tokens[:, index].any()]
    design = np.column_stack([tokens[:, kinds], np.ones(len(tokens))])
    weights = counter_weights(busy_gpu_s, design)
    work = tokens[:, kinds].sum(axis=0) * weights[:-1]
    if not work.any():
        raise BadInput.at("counters", "busy time does not follow any tokens", "check that both are of the same time")
    explained, anyway_s = design @ weights, float(weights[-1]) * len(tokens)
    if anyway_s > _MOST_ANYWAY * float(explained.sum()):
        raise BadInput.at(
            "counters",
            f"{anyway_s / float(explained.sum()):.0%} of the busy time goes with no token: gpus that are busy all the "
            "time do not tell what a token takes",
            "take hours in which they rest at times, or share by replay: tokenfleet plan with the log",
        )
    shared = work / work.sum() * float(busy_gpu_s.sum())
    by_kind = dict.fromkeys(KINDS, Fraction(0))
    by_kind |= {KINDS[kind]: Fraction(float(part)) for kind, part in zip(kinds, shared, strict=True)}
    return by_kind, explained, anyway_s


def _check(busy_gpu_s: Floats, interval_s: float, carrying_count: int) -> None:
    if carrying_count < 1:
        raise BadInput.at("gpus", "none of them carries", "give more gpus than spare ones")
    if not float(busy_gpu_s.sum()) > 0.0:
        raise BadInput.at("counters", "no gpu was ever busy", "give time in which there was work")
    most = float(busy_gpu_s.max())
    if most > carrying_count * interval_s * (1.0 + 1e-9):
        raise BadInput.at(
            "counters",
            f"{most:g} busy gpu-seconds in an interval of {carrying_count} gpus and {interval_s:g} s",
            "give all gpus that carry, and the length of an interval",
        )
