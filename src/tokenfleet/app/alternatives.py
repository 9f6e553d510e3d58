"""Own, rent, both, or an API: a plan's fleet beside other ways to serve the same demand, from facts of the scenario."""

from collections.abc import Iterator

from tokenfleet import catalog, cost
from tokenfleet.app.compare_types import CompareSpec
from tokenfleet.domain.alternatives import Alternative, Alternatives, UnitCost
from tokenfleet.domain.plan import Bill, Plan, Sized
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.trace import Trace
from tokenfleet.planner import gpus_by_hour

HOURS_PER_MONTH = 730.0
_MONTHS_PER_YEAR = 12.0
_LEAST_HOURS = 24


def alternatives(plan: Plan, trace: Trace, asked: CompareSpec) -> Alternatives | None:
    """Every way that ``asked`` has the facts for.

    Returns:
        ``None`` without a fleet, or when nothing is asked.
    """
    chosen, bill, record = plan.chosen, plan.bill, plan.degraded
    if chosen is None or bill is None or record is None or asked == CompareSpec():
        return None
    rented = Alternative(
        name="rented",
        usd_per_month=bill.total_usd_per_hour * HOURS_PER_MONTH,
        break_even_utilization_fraction=None,
        break_even_tokens_per_month=None,
        note="the plan, all hours, at its price",
    )
    ways = (rented, *_owned(chosen, trace, asked), *_apis(plan, bill, record, asked))
    return Alternatives(ways=ways, units=tuple(_units(bill, asked)))


def _owned(chosen: Sized, trace: Trace, asked: CompareSpec) -> Iterator[Alternative]:
    """Whole servers for the fleet, and the mix of owned and rented where a day of traffic shows how demand moves."""
    spec = asked.owned
    if spec is None:
        return
    yearly = cost.own_cost(spec.pool())
    servers = -(-chosen.gpu_count // spec.gpus)
    rent = chosen.price.price_usd_per_gpu_hour
    busy = cost.break_even_utilization_fraction(yearly.usd_per_available_gpu_hour, rent)
    yield Alternative(
        name="owned",
        usd_per_month=servers * yearly.total_usd_per_year / _MONTHS_PER_YEAR,
        break_even_utilization_fraction=busy,
        break_even_tokens_per_month=None,
        note=(
            f"{servers} x {spec.gpus} gpus at ${yearly.usd_per_available_gpu_hour:.2f} per available gpu-hour, "
            f"against ${rent:.2f} rented"
        ),
    )
    hours = gpus_by_hour(chosen, trace)
    if chosen.price.term != "on_demand" or len(hours) < _LEAST_HOURS:
        note = "needs a day of traffic and a price on demand"
        yield _unknown("hybrid", note)
        return
    (mixed,) = cost.compare_supply(
        hours,
        rent=cost.Rent(on_demand_usd_per_gpu_hour=rent),
        fixed=[cost.Commitment(name="own", usd_per_gpu_hour=yearly.usd_per_available_gpu_hour)],
    )
    yield Alternative(
        name="hybrid",
        usd_per_month=mixed.hybrid.total_usd_per_hour * HOURS_PER_MONTH,
        break_even_utilization_fraction=None,
        break_even_tokens_per_month=None,
        note=f"own {mixed.hybrid.committed_gpu_count} gpus, rent the hours above",
    )


def _apis(plan: Plan, bill: Bill, record: RunRecord, asked: CompareSpec) -> Iterator[Alternative]:
    if not asked.apis:
        return
    parts = plan.question.stands_for_count
    cached = float(record.cached_tokens.sum())
    inputs, outputs = float(record.input_tokens.sum()) - cached, float(record.output_tokens.sum())
    total = inputs + cached + outputs
    tokens_per_s = total * parts / max(record.end_s, float(record.arrival_s[-1]))
    per_request = total / len(record.arrival_s)
    rows = cost.host_or_buy(
        [price for price in catalog.api_prices() if price.model in asked.apis],
        mix=cost.TokenMix(
            input_fraction=inputs / total, cached_fraction=cached / total, output_fraction=outputs / total
        ),
        demand_tokens_per_month=tokens_per_s * HOURS_PER_MONTH * 3600.0,
        hosted_usd_per_hour=bill.total_usd_per_hour,
        capacity_tokens_per_s=(plan.sustained_rate_per_s or plan.peak_rate_per_s) * per_request,
    )
    for row in rows:
        name = f"api {row.provider} {row.model}"
        if row.api_usd_per_month is None:
            yield _unknown(name, "a price it needs is not published")
            continue
        cheaper = "hosting is cheaper" if row.hosting_is_cheaper else "the API is cheaper"
        yield Alternative(
            name=name,
            usd_per_month=row.api_usd_per_month,
            break_even_utilization_fraction=row.break_even_utilization_fraction,
            break_even_tokens_per_month=row.break_even_tokens_per_month,
            note=f"${row.api_usd_per_million_tokens:.3g} per million tokens of this mix ({row.as_of}); {cheaper} here",
        )


def _units(bill: Bill, asked: CompareSpec) -> Iterator[UnitCost]:
    per_request = bill.usd_per_request
    tasks, month = asked.tasks, bill.total_usd_per_hour * HOURS_PER_MONTH
    if tasks is not None and per_request is not None:
        failed_per_success = 1.0 / tasks.success - 1.0
        yield UnitCost(
            name="per successful task",
            cost_usd=per_request * tasks.requests_per_task / tasks.success + tasks.usd_by_hand * failed_per_success,
            formula=(
                f"${per_request:.3g} a request x {tasks.requests_per_task:g} requests / {tasks.success:.1%} success, "
                f"${tasks.usd_by_hand:g} of hand work for each that failed"
            ),
        )
    if asked.users is not None:
        yield UnitCost(
            name="per user and month",
            cost_usd=month / asked.users,
            formula=f"${month:,.0f} a month / {asked.users:,} users",
        )


def _unknown(name: str, note: str) -> Alternative:
    return Alternative(
        name=name,
        usd_per_month=None,
        break_even_utilization_fraction=None,
        break_even_tokens_per_month=None,
        note=note,
    )
