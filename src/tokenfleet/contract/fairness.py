"""Fairness between tenants: who got what share of what it asked for, who waited, and how unequal that is."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from tokenfleet.contract.quantile import order_statistic
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.trace import Bools, Ints

FEWEST_REQUESTS: Final = 20
"""First tokens of a tenant below which its 95th percentile says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantService:
    """How one tenant was served."""

    tenant: str
    request_count: int
    asked_tokens: int
    """Input and output of its requests."""
    served_fraction: float
    """The part of them in requests that finished."""
    slowdown: float | None
    """E2E of its finished requests over the time from their admission to their end: 1 when nobody waited."""
    ttft_p95_s: float | None
    """``None`` below :data:`FEWEST_REQUESTS` first tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    """Tenants against one another."""

    tenants: tuple[TenantService, ...]
    """The most slowed down first."""
    served_jain_fraction: float
    """Jain's index of the served shares: 1 when all are equal, 1/n when one of n has everything."""
    slowdown_jain_fraction: float | None
    """The same of the slowdowns."""
    worst_ttft_tenant: str | None
    worst_ttft_factor: float | None
    """Its TTFT p95 over that of the median tenant."""


def jain_fraction(values: Sequence[float]) -> float:
    """Jain's fairness index, ``(sum x)**2 / (n * sum x**2)``.

    Args:
        values: One for each party, 0 or more, any unit; at least one.

    Returns:
        From 1/n to 1; 1 where nobody has anything.

    Source: R. Jain, D. Chiu, W. Hawe, DEC-TR-301, 1984.
    """
    whole = np.asarray(values, dtype=np.float64)
    squares = float((whole**2).sum())
    return float(whole.sum()) ** 2 / (len(whole) * squares) if squares > 0.0 else 1.0


def fairness_of(record: RunRecord, tenant: Ints, names: Sequence[str]) -> Fairness | None:
    """Compares how tenants were served.

    Args:
        record: The run, with a ledger.
        tenant: For each request an index into ``names``; requests of nobody (-1) are left out.
        names: Of the tenants.

    Returns:
        ``None`` where fewer than two tenants sent anything.

    Raises:
        ValueError: a record without a ledger.
    """
    if record.ledger is None:
        raise ValueError("a record without a ledger says nothing of queues")
    served = [_service(record, tenant == index, name) for index, name in enumerate(names)]
    tenants = tuple(
        sorted((each for each in served if each is not None), key=lambda each: (-(each.slowdown or 0.0), each.tenant))
    )
    if len(tenants) < 2:
        return None
    slowdowns = [each.slowdown for each in tenants if each.slowdown is not None]
    known = sorted((each.ttft_p95_s, each.tenant) for each in tenants if each.ttft_p95_s is not None)
    worst_s, worst = known[-1] if len(known) > 1 else (None, None)
    middle_s = float(np.median([ttft_s for ttft_s, _ in known])) if known else 0.0
    return Fairness(
        tenants=tenants,
        served_jain_fraction=jain_fraction([each.served_fraction for each in tenants]),
        slowdown_jain_fraction=jain_fraction(slowdowns) if len(slowdowns) > 1 else None,
        worst_ttft_tenant=worst,
        worst_ttft_factor=None if worst_s is None or not middle_s else worst_s / middle_s,
    )


def _service(record: RunRecord, mine: Bools, name: str) -> TenantService | None:
    if not mine.any() or record.ledger is None:
        return None
    tokens = record.input_tokens.astype(np.int64) + record.output_tokens
    asked = int(tokens[mine].sum())
    ended = mine & (record.status == Status.FINISHED)
    inside_s = float((record.finish_s[ended] - record.ledger.scheduled_s[ended]).sum())
    ttft_s = record.ttft_s[ended & np.isfinite(record.ttft_s)]
    return TenantService(
        tenant=name,
        request_count=int(mine.sum()),
        asked_tokens=asked,
        served_fraction=int(tokens[ended].sum()) / asked if asked else 1.0,
        slowdown=float(record.e2e_s[ended].sum()) / inside_s if inside_s > 0.0 else None,
        ttft_p95_s=order_statistic(ttft_s, 0.95) if len(ttft_s) >= FEWEST_REQUESTS else None,
    )
