"""Who pays for the chosen fleet, and how much of it each hour needs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from tokenfleet import cost
from tokenfleet.domain.plan import Bill, Plan, PlanQuestion, Sized, TenantInvoice, TenantShare
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.trace import Floats, Ints, Trace
from tokenfleet.planner.redundancy import spare_replicas
from tokenfleet.planner.traffic import Traffic

Counts = npt.NDArray[np.int64]

HOURS_PER_MONTH = 730.0
HOUR_S = 3600.0
LEAST_SLOTS = 24
"""As many hours as a day has."""
_WHOLE_FRACTION = 0.9
"""Of the last slot: a log ends with its last request, so that of a whole day falls short of it by a moment."""

By = Literal["tenant", "label", "model", "class"]
NO_CLASS = "no class"


def tenant_invoice(plan: Plan, traffic: Traffic, kept_usd: Floats | None = None) -> TenantInvoice | None:
    """A month of the plan's bill by tenant, at the mean load of the trace; ``None`` when it names no tenants.

    Inside a line of the bill tenants pay by the gpu time that the replay charged to their requests; headroom, idle and
    spare, in the loaded view, by the gpu time of those that arrive in the peak window, for whoever makes the fleet
    large pays for it to be there.

    Args:
        plan: One fleet, or several pools.
        traffic: The demand.
        kept_usd: Of several pools, what each request answers for of the three; shape (request,).

    Raises:
        ValueError: the plan was replayed without a ledger.
    """
    trace = traffic.trace
    if trace.tenant is None:
        return None
    return _invoice(plan, traffic, "tenant", trace.tenant, trace.tenants, kept_usd)


def invoices(plan: Plan, traffic: Traffic, kept_usd: Floats | None = None) -> tuple[TenantInvoice, ...]:
    """The same month by whatever else the trace tells of its requests: label, model, traffic class."""
    found: dict[tuple[TenantShare, ...], TenantInvoice] = {}
    for by, codes, names in _keys(traffic.trace):
        made = _invoice(plan, traffic, by, codes, names, kept_usd)
        # Classes that are labels of the log are said once.
        if made is not None:
            found.setdefault(made.tenants, made)
    return tuple(found.values())


def _keys(trace: Trace) -> Iterator[tuple[By, Ints, tuple[str, ...]]]:
    seen = trace.observed
    if seen is not None and seen.label is not None and len(seen.labels) > 1:
        yield "label", seen.label, seen.labels
    if seen is not None and seen.model is not None and len(seen.models) > 1:
        yield "model", seen.model, seen.models
    if trace.class_bits is not None:
        # A request of two classes is paid for once, so each combination stands for itself.
        kinds, codes = np.unique(trace.class_bits, return_inverse=True)
        yield "class", codes.astype(np.int32), tuple(_combined(int(bits), trace.classes) for bits in kinds)


def _combined(bits: int, classes: tuple[str, ...]) -> str:
    return " + ".join(name for index, name in enumerate(classes) if bits >> index & 1) or NO_CLASS


def _invoice(
    plan: Plan, traffic: Traffic, by: By, codes: Ints, names: tuple[str, ...], kept_usd: Floats | None
) -> TenantInvoice | None:
    trace, record, bill = traffic.trace, plan.degraded, plan.bill
    if record is None or bill is None:
        return None
    if record.ledger is None:
        raise ValueError("a record without a ledger says nothing of gpu time")
    work = cost.request_work(record.ledger)
    usage = cost.usage_by_key(record, codes, names, work=work)
    usage = {name: used for name, used in usage.items() if used.request_count}
    if not usage or not _explained(bill, usage):
        return None
    start_s, end_s = traffic.window_s
    inside = (trace.arrival_s >= start_s) & (trace.arrival_s < end_s)
    kept = (work.input_s + work.cached_s + work.output_s) * inside if kept_usd is None else kept_usd
    reserved = {name: float(kept[_of(codes, names, name)].sum()) for name in usage}
    if not sum(reserved.values()):
        return None
    month = cost.invoice(bill, usage, hours=HOURS_PER_MONTH, reserved=reserved)
    # Each request of the trace stands for so many of the month, where a part of the demand was replayed for more.
    parts = plan.question.stands_for_count
    months = HOURS_PER_MONTH * HOUR_S / bill.span_s * parts
    shares = [_share(name, used, month, months) for name, used in usage.items()]
    return TenantInvoice(
        duration_s=HOURS_PER_MONTH * HOUR_S,
        total_usd=month.total_cents / 100,
        headroom_usd=month.part_cents("headroom") / 100,
        idle_usd=month.part_cents("idle") / 100,
        spare_usd=month.part_cents("spare") / 100,
        tenants=tuple(sorted(shares, key=lambda share: (-share.loaded_usd, share.tenant))),
        by=by,
    )


def billed_span_s(
    question: PlanQuestion, traffic: Traffic, runs: Sequence[tuple[RunRecord, cost.TokenWork | None]]
) -> float:
    """The time that a plan's demand stands for in its bill."""
    period_s = max(traffic.trace.duration_s, traffic.window_length_s)
    return cost.span_of(runs, period_s=period_s, until_done=bool(question.slo.deadlines))


def _share(name: str, used: cost.TokenCounts, month: cost.Invoice, months: float) -> TenantShare:
    busy_usd, loaded_usd = month.busy_cents(name) / 100, (month.loaded_cents or {})[name] / 100
    requests, outputs = used.request_count * months, used.output_tokens * months
    return TenantShare(
        tenant=name,
        request_count=used.request_count,
        input_tokens=used.input_tokens,
        cached_tokens=used.cached_tokens,
        output_tokens=used.output_tokens,
        busy_usd=busy_usd,
        loaded_usd=loaded_usd,
        busy_usd_per_request=busy_usd / requests,
        loaded_usd_per_request=loaded_usd / requests,
        loaded_usd_per_million_output_tokens=loaded_usd / outputs * 1e6 if outputs else None,
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


SLOTS_S = (3600.0, 1200.0, 300.0, 60.0)


def gpus_by_slot(question: PlanQuestion, chosen: Sized, trace: Trace) -> tuple[float, Counts]:
    """The longest of ``SLOTS_S`` of which the trace shows a day's worth (24), in seconds, and the GPUs of each.

    Returns:
        Minutes where the trace shows fewer; none where it is shorter than one. Spare GPUs included.
    """
    slot_s = next((each for each in SLOTS_S if slots_of(trace, each) >= LEAST_SLOTS), SLOTS_S[-1])
    carrying = carrying_by_slot(chosen, trace, slot_s)
    replicas = carrying + spare_beside(question, chosen, carrying)
    return slot_s, replicas * chosen.replica.deployment.layout.gpu_count


def spare_beside(question: PlanQuestion, chosen: Sized, carrying: Counts) -> Counts:
    """Spare replicas of each hour: a zone that may be lost takes half of a few at night, as of many at the peak.

    Args:
        question: What may be lost.
        chosen: The fleet of the peak. What it has beyond what is asked for stays at all hours.
        carrying: Replicas that each hour needs, up to those of the peak; where none is, there is nothing to spare.
    """
    least = spare_replicas(question, chosen.replica, chosen.carrying_count)
    beyond = 0 if least is None else max(0, chosen.spare_count - least)
    counts, place = np.unique(carrying, return_inverse=True)
    spare = [_spare_beside(question, chosen, int(count), beyond) for count in counts]
    return np.array(spare, dtype=np.int64)[place]


def _spare_beside(question: PlanQuestion, chosen: Sized, carrying_count: int, beyond: int) -> int:
    if not carrying_count:
        return 0
    least = spare_replicas(question, chosen.replica, carrying_count)
    # Pools that depend on each other may keep fewer spare ones than each would need alone.
    return chosen.spare_count if least is None else min(chosen.spare_count, least + beyond)


def slots_of(trace: Trace, slot_s: float) -> int:
    """Whole slots that a trace shows; the last one from nine tenths of it on."""
    return int(trace.duration_s / slot_s + 1.0 - _WHOLE_FRACTION)


def carrying_by_slot(chosen: Sized, trace: Trace, slot_s: float) -> Counts:
    """Carrying replicas of each whole slot: those of the peak times its busiest minute over that of the peak."""
    slot_count, minutes = slots_of(trace, slot_s), round(slot_s / 60.0)
    if slot_count == 0:
        return np.zeros(0, dtype=np.int64)
    minute = (trace.arrival_s // 60.0).astype(np.int64)
    tokens = trace.input_tokens.astype(np.float64) + trace.output_tokens
    by_minute = np.bincount(minute, weights=tokens, minlength=slot_count * minutes)
    peak_of_slot = by_minute[: slot_count * minutes].reshape(slot_count, minutes).max(axis=1)
    # The peak may lie in what is left of a slot at the end.
    highest = by_minute.max()
    share = peak_of_slot / highest if highest > 0.0 else np.ones(slot_count)
    needed: Counts = np.ceil(chosen.carrying_count * share - 1e-9).astype(np.int64)
    return needed
