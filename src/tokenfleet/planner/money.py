"""Who pays for the chosen fleet, and how to buy it."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tokenfleet import cost
from tokenfleet.domain.plan import Bill, Plan, Purchase, PurchaseLine, Sized, TenantInvoice, TenantShare
from tokenfleet.domain.trace import Trace
from tokenfleet.planner.traffic import Traffic

HOURS_PER_MONTH = 730.0
_HOUR_S = 3600.0
_LEAST_HOURS = 24


def tenant_invoice(plan: Plan, traffic: Traffic) -> TenantInvoice | None:
    """A month of the plan's bill by tenant, at the mean load of the trace.

    Inside a line of the bill tenants pay by the gpu time that the replay charged to their requests; idle and spare, in
    the loaded view, by the gpu time of those that arrive in the peak window, for whoever makes the fleet large pays for
    it to be there.

    Returns:
        ``None`` when the trace names no tenants, or nothing was planned.

    Raises:
        ValueError: the plan was replayed without a ledger.
    """
    trace, record, bill, chosen = traffic.trace, plan.degraded, plan.bill, plan.chosen
    if trace.tenant is None or record is None or bill is None or chosen is None:
        return None
    if record.ledger is None:
        raise ValueError("a record without a ledger says nothing of gpu time")
    work = cost.request_work(record.ledger)
    usage = cost.usage_by_key(record, trace.tenant, trace.tenants, work=work)
    usage = {name: used for name, used in usage.items() if used.request_count}
    if not usage or not _explained(bill, usage):
        return None
    spent_s = work.input_s + work.cached_s + work.output_s
    start_s, end_s = traffic.window_s
    inside = (trace.arrival_s >= start_s) & (trace.arrival_s < end_s)
    reserved = {name: float(spent_s[inside & _of(trace.tenant, trace.tenants, name)].sum()) for name in usage}
    if not sum(reserved.values()):
        return None
    month = cost.invoice(bill, usage, hours=HOURS_PER_MONTH, reserved=reserved)
    loaded = month.loaded_cents or {}
    shares = [
        TenantShare(
            tenant=name,
            request_count=used.request_count,
            input_tokens=used.input_tokens,
            cached_tokens=used.cached_tokens,
            output_tokens=used.output_tokens,
            busy_usd=month.busy_cents(name) / 100,
            loaded_usd=loaded[name] / 100,
        )
        for name, used in usage.items()
    ]
    return TenantInvoice(
        duration_s=HOURS_PER_MONTH * _HOUR_S,
        total_usd=month.total_cents / 100,
        idle_usd=month.part_cents("idle") / 100,
        spare_usd=month.part_cents("spare") / 100,
        tenants=tuple(sorted(shares, key=lambda share: (-share.loaded_usd, share.tenant))),
    )


def _of(tenant: npt.NDArray[np.int32], names: tuple[str, ...], name: str) -> npt.NDArray[np.bool_]:
    """Requests of one tenant, or of nobody."""
    mine: npt.NDArray[np.bool_] = tenant == (names.index(name) if name in names else -1)
    return mine


def _explained(bill: Bill, usage: Mapping[str, cost.TokenCounts]) -> bool:
    """Whether somebody's finished requests stand behind each busy line of the bill."""
    used = usage.values()
    return (
        (not bill.input_usd_per_hour or any(each.weight("input") for each in used))
        and (not bill.cached_usd_per_hour or any(each.weight("cached") for each in used))
        and (not bill.output_usd_per_hour or any(each.weight("output") for each in used))
    )


def purchase(plan: Plan, traffic: Traffic) -> Purchase | None:
    """The cheapest mix of commitments and rent, if the carrying replicas follow the demand by the hour.

    The replicas of an hour are those of the peak times the tokens of the hour's busiest minute over those of the peak,
    rounded up, and the spare ones on top: a formula, not a replay. Online traffic never goes on spot.

    Returns:
        ``None`` when the trace shows less than a day, or when the price is not that of an hour on demand. Where nobody
        publishes a price to commit at, everything is rented, and ``unknown_terms`` says so.
    """
    chosen = plan.chosen
    if chosen is None or chosen.price.term != "on_demand":
        return None
    gpus = gpus_by_hour(chosen, traffic.trace)
    if len(gpus) < _LEAST_HOURS:
        return None
    market = cost.market(chosen.replica.deployment.gpu)
    rent = cost.Rent(on_demand_usd_per_gpu_hour=chosen.price.price_usd_per_gpu_hour)
    mix = cost.purchase_mix(
        gpus,
        rent=rent,
        commitments=market.commitments,
        step_gpu_count=chosen.replica.deployment.layout.gpu_count,
    )
    return Purchase(
        hour_count=len(gpus),
        lines=tuple(
            PurchaseLine(name=line.name, mean_gpu_count=line.mean_gpu_count, usd_per_hour=line.usd_per_hour)
            for line in mix.lines
        ),
        total_usd_per_hour=mix.total_usd_per_hour,
        all_on_demand_usd_per_hour=mix.all_rented_usd_per_hour,
        committed_gpu_count=mix.committed_gpu_count,
        unknown_terms=tuple(market.unknown),
    )


def gpus_by_hour(chosen: Sized, trace: Trace) -> npt.NDArray[np.int64]:
    """GPUs of each whole hour of the trace, spare ones included."""
    hour_count = int(trace.duration_s // _HOUR_S)
    if hour_count == 0:
        return np.zeros(0, dtype=np.int64)
    minute = np.minimum((trace.arrival_s // 60.0).astype(np.int64), hour_count * 60)
    tokens = trace.input_tokens.astype(np.float64) + trace.output_tokens
    by_minute = np.bincount(minute, weights=tokens, minlength=hour_count * 60 + 1)[: hour_count * 60]
    peak_of_hour = by_minute.reshape(hour_count, 60).max(axis=1)
    highest = peak_of_hour.max()
    share = peak_of_hour / highest if highest > 0.0 else np.ones(hour_count)
    replicas = np.ceil(chosen.carrying_count * share - 1e-9).astype(np.int64) + chosen.spare_count
    return replicas * chosen.replica.deployment.layout.gpu_count
