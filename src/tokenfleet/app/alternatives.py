"""Own, rent, both, or an API: a plan's fleet beside other ways to serve the same demand, from facts of the scenario."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt

from tokenfleet import catalog, cost
from tokenfleet.app.compare_types import ALL_USERS, CompareSpec, OwnedSpec, TasksSpec
from tokenfleet.app.quantities import shown_duration
from tokenfleet.app.service_sheet import HOURS_PER_MONTH, hosted_usd_per_hour, service
from tokenfleet.domain.alternatives import Alternative, Alternatives, Service, UnitCost
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.plan import Bill, Plan, PlannedPool, TenantInvoice, TenantShare
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.trace import Trace
from tokenfleet.planner import described_gpus, gpus_by_slot

_MONTHS_PER_YEAR = 12.0
_DAY_S = 86_400.0
_IN_BATCHES = ", in batches"
_PAID_BY_USE = ("on_demand", "spot")
"""Terms whose idle hours cost nothing: against the others no share of use decides, but the two prices."""


def alternatives(plan: Plan, trace: Trace, asked: CompareSpec) -> Alternatives | None:
    """Every way that ``asked`` has the facts for.

    Returns:
        ``None`` without a fleet, or when nothing is asked.
    """
    bill, record = plan.bill, plan.degraded
    if not plan.fleets or bill is None or record is None or asked == CompareSpec.model_construct():
        return None
    scarce = _scarcity(plan)
    rented = Alternative(
        name="rented",
        usd_per_month=bill.total_usd_per_hour * scarce * HOURS_PER_MONTH,
        break_even_utilization_fraction=None,
        break_even_tokens_per_month=None,
        note="the plan, all hours, at its price" + (", what cannot be had included" if scarce > 1.0 else ""),
    )
    beside = service(bill, asked.beside, gpu_count=sum(sized.gpu_count for sized in plan.fleets))
    hosted = hosted_usd_per_hour(bill, beside)
    if hosted is not None:
        kept = sum(pool.plan.bill.total_usd_per_hour for pool in _beside_an_api(plan) if pool.plan.bill is not None)
        hosted += bill.total_usd_per_hour * (scarce - 1.0) - kept * scarce
    ways = (
        rented,
        *_owned(plan, trace, asked),
        *_apis(plan, hosted, bill.span_s, record, asked),
    )
    return Alternatives(ways=ways, units=tuple(_units(plan, bill, asked, beside)), service=beside)


def _beside_an_api(plan: Plan) -> list[PlannedPool]:
    """Pools that embed or rank: what they do an API that answers does not."""
    return [pool for pool in plan.pools if pool.does == "reads"]


def _scarcity(plan: Plan) -> float:
    """What an hour of need costs over its price on demand, as the purchase counts it: more where it may not be had."""
    facts = plan.question.buying
    if any(sized.price.term != "on_demand" for sized in plan.fleets):
        return 1.0
    expected = sum(
        sized.gpu_count
        * cost.Rent(
            on_demand_usd_per_gpu_hour=sized.price.price_usd_per_gpu_hour,
            obtainable_fraction=facts.obtainable_fraction,
            shortage_usd_per_gpu_hour=facts.shortage_usd_per_gpu_hour,
        ).expected_usd_per_gpu_hour
        for sized in plan.fleets
    )
    return expected / sum(sized.gpu_count * sized.price.price_usd_per_gpu_hour for sized in plan.fleets)


def _owned(plan: Plan, trace: Trace, asked: CompareSpec) -> Iterator[Alternative]:
    """Whole servers for the fleet, and the mix of owned and rented where a day of traffic shows how demand moves."""
    spec = asked.owned
    if spec is None:
        return
    kinds = dict.fromkeys(sized.price.gpu for sized in plan.fleets)
    if len(kinds) > 1:
        yield _unknown("owned", f"one kind of server holds no pools of {' and of '.join(kinds)}")
        return
    yearly = cost.own_cost(spec.pool())
    servers = -(-sum(sized.gpu_count for sized in plan.fleets) // spec.gpus)
    rent = plan.fleets[0].price.price_usd_per_gpu_hour * _scarcity(plan)
    term = plan.fleets[0].price.term
    by_use = term in _PAID_BY_USE
    busy = cost.break_even_utilization_fraction(yearly.usd_per_available_gpu_hour, rent) if by_use else None
    against = "rented" if by_use else f"of {term}, idle hours paid for in both"
    yield Alternative(
        name="owned",
        usd_per_month=servers * yearly.total_usd_per_year / _MONTHS_PER_YEAR,
        break_even_utilization_fraction=busy,
        break_even_tokens_per_month=None,
        note=(
            f"{servers} x {spec.gpus} gpus at ${yearly.usd_per_available_gpu_hour:.2f} per available gpu-hour, "
            f"against ${rent:.2f} {against}{_out_of_order(plan, servers, spec)}"
        ),
    )
    slots, thin = _needed(plan, trace)
    if any(sized.price.term != "on_demand" for sized in plan.fleets) or not len(slots):
        yield _unknown("hybrid", "needs a minute of traffic and a price on demand")
        return
    mixed = cost.whole_servers(
        slots,
        gpus_per_server_count=spec.gpus,
        usd_per_server_hour=yearly.total_usd_per_year / HOURS_PER_MONTH / _MONTHS_PER_YEAR,
        rent_usd_per_gpu_hour=rent,
        available_fraction=spec.available,
    )
    own = f"own {mixed.server_count} x {spec.gpus} gpus" if mixed.server_count else "own nothing"
    yield Alternative(
        name="hybrid",
        usd_per_month=mixed.usd_per_hour * HOURS_PER_MONTH,
        break_even_utilization_fraction=None,
        break_even_tokens_per_month=None,
        note=f"{own}, rent the hours above{thin}",
    )


def _out_of_order(plan: Plan, servers: int, spec: OwnedSpec) -> str:
    """What owned servers that do not work all the time leave of the fleet."""
    working, needed = servers * spec.gpus * spec.available, sum(sized.gpu_count for sized in plan.fleets)
    return f"; on average {working:.3g} of them work, where the plan has {needed}" if working < needed else ""


def _needed(plan: Plan, trace: Trace) -> tuple[npt.NDArray[np.int64], str]:
    """GPUs of each hour described, or else seen in the trace, which every pool follows; and what is thin about it."""
    facts = plan.question.buying
    if facts.hour_fraction:
        hours = [described_gpus(plan.question, sized) for sized in plan.fleets]
        return np.sum([gpus for gpus in hours if gpus is not None], axis=0), ""
    seen = [gpus_by_slot(plan.question, sized, trace) for sized in plan.fleets]
    slot_s, slots = seen[0][0], np.sum([gpus for _, gpus in seen], axis=0)
    span_s = len(slots) * slot_s
    if span_s >= _DAY_S:
        return slots, ""
    return slots, f"; {shown_duration(span_s)} of traffic stand for all hours, and quieter ones may lie outside"


def _apis(
    plan: Plan, hosted: float | None, span_s: float, record: RunRecord, asked: CompareSpec
) -> Iterator[Alternative]:
    if hosted is None:
        yield from (_unknown(f"api {name}", "a line beside the gpus has no price yet") for name in asked.apis)
        return
    parts = plan.question.stands_for_count
    cached = float(record.cached_tokens.sum())
    inputs, outputs = float(record.input_tokens.sum()) - cached, float(record.output_tokens.sum())
    total = inputs + cached + outputs
    tokens_per_s = total * parts / span_s
    per_request = total / len(record.arrival_s)
    rows = cost.host_or_buy(
        _api_prices(plan, asked),
        mix=cost.TokenMix(
            input_fraction=inputs / total, cached_fraction=cached / total, output_fraction=outputs / total
        ),
        demand_tokens_per_month=tokens_per_s * HOURS_PER_MONTH * 3600.0,
        hosted_usd_per_hour=hosted,
        capacity_tokens_per_s=_most_per_s(plan) * per_request,
    )
    for row in rows:
        name = f"api {row.provider} {row.model}"
        if row.api_usd_per_month is None:
            yield _unknown(name, "a price it needs is not published")
            continue
        cheaper = "hosting is cheaper" if row.hosting_is_cheaper else "the API is cheaper"
        kept = [pool.name for pool in _beside_an_api(plan)]
        stays = f"; paid either way and left out: {', '.join(kept)}" if kept else ""
        when = "; answers come when it has time, within a day as a rule" if row.model.endswith(_IN_BATCHES) else ""
        yield Alternative(
            name=name,
            usd_per_month=row.api_usd_per_month,
            break_even_utilization_fraction=row.break_even_utilization_fraction,
            break_even_tokens_per_month=row.break_even_tokens_per_month,
            note=(
                f"${row.api_usd_per_million_tokens:.3g} per million tokens of this mix ({row.as_of}); "
                f"{cheaper} here{when}{stays}"
            ),
        )


def _most_per_s(plan: Plan) -> float:
    """Requests a second that the fleet sustains for a month: within its promise, and no more than full replicas do.

    A peak of work that can wait may be many times what gets done meanwhile.
    """
    sustained = plan.sustained_rate_per_s or plan.peak_rate_per_s
    parts = [each.plan for each in plan.pools] or [plan]
    full = [
        plan.peak_rate_per_s * each.saturated_rate_per_s / each.peak_rate_per_s
        for each in parts
        if each.saturated_rate_per_s is not None and each.peak_rate_per_s > 0.0
    ]
    return min([sustained, *full])


def _api_prices(plan: Plan, asked: CompareSpec) -> Iterator[catalog.ApiPrice]:
    """Of each model that was asked for; where nobody waits for an answer, what it costs in batches too."""
    for price in catalog.api_prices():
        if price.model not in asked.apis:
            continue
        yield price
        if plan.question.slo.latency or price.batch_input_usd_per_million_tokens is None:
            continue
        yield replace(
            price,
            model=f"{price.model}{_IN_BATCHES}",
            input_usd_per_million_tokens=price.batch_input_usd_per_million_tokens,
            # Nobody publishes what a cached token costs in a batch: it is read like any other.
            cached_input_usd_per_million_tokens=price.batch_input_usd_per_million_tokens,
            output_usd_per_million_tokens=price.batch_output_usd_per_million_tokens,
        )


def _units(plan: Plan, bill: Bill, asked: CompareSpec, beside: Service | None) -> Iterator[UnitCost]:
    per_request = bill.usd_per_request
    busy = bill.input_usd_per_hour + bill.cached_usd_per_hour + bill.output_usd_per_hour
    busy_fraction = busy / bill.total_usd_per_hour
    if asked.tasks is not None and per_request is not None:
        yield _per_task(asked.tasks, per_request, busy_fraction)
    for name, count in (asked.users or {}).items():
        yield from _per_user(plan, bill.total_usd_per_hour * HOURS_PER_MONTH, busy_fraction, name, count)
    everybody = (asked.users or {}).get(ALL_USERS)
    if everybody and beside is not None and beside.total_usd_per_month is not None:
        whole_usd = beside.total_usd_per_month
        yield UnitCost(
            name="per user and month of the whole service",
            cost_usd=whole_usd / everybody,
            busy_usd=None,
            formula=f"${whole_usd:,.0f} a month with all that stands beside the gpus / {everybody:,} users",
        )


def _per_task(tasks: TasksSpec, usd_per_request: float, busy_fraction: float) -> UnitCost:
    """A task that was solved, with the requests of tries that failed, tools that failed, and hand work."""
    requests = tasks.requests_per_task / (1.0 - tasks.failed_tool_calls)

    def cost_of(per_request: float) -> float | None:
        return cost.task_cost(
            per_request * requests,
            success_fraction=tasks.success,
            most_attempts_count=tasks.tries,
            hand_work_usd=tasks.usd_by_hand,
        ).usd_per_successful_task

    again = f" / {1.0 - tasks.failed_tool_calls:.1%} tools that work" if tasks.failed_tool_calls else ""
    tries = f", at most {tasks.tries} tries" if tasks.tries > 1 else ""
    return UnitCost(
        name="per successful task",
        cost_usd=cost_of(usd_per_request) or 0.0,
        busy_usd=cost_of(usd_per_request * busy_fraction),
        formula=(
            f"${usd_per_request:.3g} a request x {tasks.requests_per_task:g} requests{again} / {tasks.success:.1%} "
            f"success{tries}, ${tasks.usd_by_hand:g} of hand work for each that failed"
        ),
    )


def _per_user(plan: Plan, month_usd: float, busy_fraction: float, name: str, count: int) -> Iterator[UnitCost]:
    """A user and month, of everybody or of those that requests name; nothing where none of theirs finished."""
    if name == ALL_USERS:
        yield UnitCost(
            name="per user and month",
            cost_usd=month_usd / count,
            busy_usd=month_usd * busy_fraction / count,
            formula=f"${month_usd:,.0f} a month / {count:,} users",
        )
        return
    shares = next((found for each in _invoices(plan) if (found := _shares_of(each, name))), [])
    if shares:
        loaded_usd = sum(share.loaded_usd for share in shares)
        yield UnitCost(
            name=f"per user of {name} and month",
            cost_usd=loaded_usd / count,
            busy_usd=sum(share.busy_usd for share in shares) / count,
            formula=f"${loaded_usd:,.2f} a month of {name} / {count:,} users",
        )


def _shares_of(invoice: TenantInvoice, name: str) -> list[TenantShare]:
    """What is paid for a name; for a class with each combination that it is part of."""
    return [share for share in invoice.tenants if name in (share.tenant, *share.tenant.split(" + "))]


def users_are_known(asked: CompareSpec, trace: Trace) -> None:
    """Refuse users of somebody whom the demand does not name.

    Raises:
        BadInput: all of them at once.
    """
    seen = trace.observed
    names = {*trace.tenants, *trace.classes, *(() if seen is None else (*seen.labels, *seen.models))}
    strangers = [name for name in asked.users or {} if name not in names | {ALL_USERS}]
    if strangers:
        raise BadInput(
            Problem(f"compare.users.{name}", "nobody of the demand is called so", _nearest(name, names))
            for name in strangers
        )


def _nearest(name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, sorted(names), n=3, cutoff=0.0)
    return f"nearest: {', '.join(near)}" if near else "the demand names nobody: give one number of users"


def _invoices(plan: Plan) -> tuple[TenantInvoice, ...]:
    return (*([plan.invoice] if plan.invoice else []), *plan.invoices)


def _unknown(name: str, note: str) -> Alternative:
    return Alternative(
        name=name,
        usd_per_month=None,
        break_even_utilization_fraction=None,
        break_even_tokens_per_month=None,
        note=note,
    )
