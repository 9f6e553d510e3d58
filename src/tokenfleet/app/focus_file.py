"""A month of a plan's bill as a FOCUS file, for tools that read cloud bills."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np

from tokenfleet import cost
from tokenfleet.app.whole_files import write_whole
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.plan import Plan, Sized
from tokenfleet.domain.trace import Trace

_HOURS_PER_MONTH = 730.0
_EVERYBODY = "everybody"
_KEPT = ("headroom", "idle", "spare")


def write_focus(plan: Plan, trace: Trace, path: Path, *, made_on: date) -> None:
    """Write the bill of a month of 730 hours, a row per tenant and kind of tokens and for each line nobody used.

    The rows add up to the invoice, to the cent, and tokens are those of such a month: as many as in the demand, for
    longer. The charge period begins with the month after ``made_on``.

    Raises:
        BadInput: there is no fleet to bill, or the file cannot be written.
    """
    bill, record = plan.bill, plan.degraded
    if bill is None or record is None:
        raise BadInput.at("--focus", "there is no fleet, so there is no bill", "leave it out, or relax the promise")
    tenant = np.zeros(trace.request_count, dtype=np.int32) if trace.tenant is None else trace.tenant
    names = (_EVERYBODY,) if trace.tenant is None else trace.tenants
    if record.ledger is None:
        raise ValueError("a record without a ledger says nothing of gpu time")
    usage = cost.usage_by_key(record, tenant, names, work=cost.request_work(record.ledger))
    months = _HOURS_PER_MONTH * 3600.0 / bill.span_s * plan.question.stands_for_count
    used = {name: counts.times(months) for name, counts in usage.items() if counts.request_count}
    start = datetime(made_on.year + made_on.month // 12, made_on.month % 12 + 1, 1, tzinfo=UTC)
    charged_until = start + timedelta(hours=_HOURS_PER_MONTH)
    month_end = datetime(start.year + start.month // 12, start.month % 12 + 1, 1, tzinfo=UTC)
    rows = cost.focus_rows(
        cost.invoice(bill, used, hours=_HOURS_PER_MONTH),
        cost.FocusAccount(
            billing_account_id=plan.question.name,
            billing_account_name=plan.question.name,
            service_provider=plan.question.name,
            host_provider=" and ".join(dict.fromkeys(sized.price.provider for sized in plan.fleets)),
            service_name=f"{plan.question.model.name} inference",
            resource_id=f"fleet/{plan.question.name}",
            model=plan.question.model.name,
            usd_per_gpu_hour=_usd_per_gpu_hour(plan.fleets),
            usd_per_gpu_hour_of=_usd_by_part(plan),
        ),
        charge_period=(start, charged_until),
        billing_period=(start, max(month_end, charged_until)),
    )
    try:
        write_whole(cost.focus_csv(rows), path)
    except OSError as error:
        raise BadInput.at(str(path), f"cannot be written: {error.strerror}", "give another one with --focus") from None


def _usd_by_part(plan: Plan) -> dict[str, float]:
    """The mean price of the gpus behind headroom, idle and spare, where pools have gpus of several prices."""
    found = {}
    billed = [(pool.plan.bill, sized.price) for pool in plan.pools for sized in pool.plan.fleets]
    for part in _KEPT:
        lines = [
            (getattr(bill, f"{part}_usd_per_hour"), price.price_usd_per_gpu_hour)
            for bill, price in billed
            if bill is not None
        ]
        gpus = sum(usd / each for usd, each in lines)
        if gpus > 0.0:
            found[part] = sum(usd for usd, _ in lines) / gpus
    return found


def _usd_per_gpu_hour(fleets: Sequence[Sized]) -> float:
    """The price of a gpu, or of several pools the mean of theirs."""
    prices = {sized.price.price_usd_per_gpu_hour for sized in fleets}
    if len(prices) == 1:
        return prices.pop()
    return sum(sized.price_usd_per_hour for sized in fleets) / sum(sized.gpu_count for sized in fleets)
